"""Aten calls that stay whole in a trace, because the normal form has a rule for each of them.

Every call that is recorded costs a tenth of a millisecond. What would become five calls there is recorded
once, and becomes those five in the normal form, where they cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_OF_REAL = (
    "t.default", "transpose.int", "detach.default", "squeeze.default", "squeeze.dim", "_unsafe_view.default",
    "rsub.Scalar", "rsub.Tensor",
)  # fmt: skip
# torch computes these in float32 where their operands have 16 bits, which a decomposition writes out
_OF_FLOATS = ("addmm.default", "sigmoid_backward.default", "tanh_backward.default")

Decomposition = Callable[..., Any]


def keep_whole(table: Mapping[Any, Decomposition]) -> dict[Any, Decomposition]:
    """A table of decompositions that leaves those calls alone for which a rule means the same."""
    kept = dict(table)
    for names, has_rule in ((_OF_REAL, _is_real), (_OF_FLOATS, _is_float)):
        for name in names:
            packet, overload = name.split(".")
            target = getattr(getattr(torch.ops.aten, packet), overload)
            kept[target] = _unless(has_rule, table[target])
    return kept


def _unless(has_rule: Callable[[Any], bool], decomposition: Decomposition) -> Decomposition:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        plain = not kwargs and all(has_rule(arg) for arg in args)
        return NotImplemented if plain else decomposition(*args, **kwargs)

    return decompose


def _is_real(arg: Any) -> bool:
    return not isinstance(arg, complex) and not (isinstance(arg, Tensor) and arg.is_complex())


def _is_float(arg: Any) -> bool:
    return not isinstance(arg, Tensor) or arg.dtype in (torch.float32, torch.float64)
