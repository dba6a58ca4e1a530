"""How exact products of float32 have to be, by torch's own switch."""

from __future__ import annotations

import torch

from stepnet.executors.exactness import are_exact

from .cpu import has_pairs, has_tiles

# torch.set_float32_matmul_precision, and what its newer form calls the same.
_PARTS = {"highest": 3, "high": 2, "medium": 1, "none": 3, "ieee": 3, "tf32": 2, "bf16": 1}


def float_parts() -> int:
    """The numbers of bfloat16 that a float32 is split in for products, now; 0: they are of floats.

    "highest" is three, which loses nothing that float32 has; "high" two, "medium" one. Tiles do all of them;
    pairs alone are faster than floats for one.
    """
    if not (has_tiles() or has_pairs()):
        return 0
    wanted = 3 if are_exact() else _PARTS[asked_precision()]
    return wanted if has_tiles() or wanted == 1 else 0


def asked_precision() -> str:
    """What torch's switch says of float32."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer switches, which the older one cannot tell
        return torch.backends.mkldnn.matmul.fp32_precision  # pyright: ignore
