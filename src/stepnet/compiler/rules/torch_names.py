"""What torch calls the ops of the closed list that work element by element."""

from __future__ import annotations

import torch
from torch import Tensor

_SAME = (
    "neg", "abs", "sign", "relu", "floor", "ceil", "trunc", "reciprocal", "exp", "expm1", "log", "log1p",
    "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf",
)  # fmt: skip
UNARY = {**dict(zip(_SAME, _SAME, strict=True)), "sgn": "sign"}
_RARE = (
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2", "log2", "log10", "erfc",
    "erfinv", "lgamma", "digamma",
)  # fmt: skip
RARE = dict(zip(_RARE, _RARE, strict=True))  # not every file format has them
COMPARE = {name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
LOGIC = {f"{kind}_{op}": op for kind in ("logical", "bitwise") for op in ("and", "or", "xor")}
# What operators of Python and functions of torch call the same.
SHIFTS = {
    name: f"bitwise_{side}_shift"
    for side in ("left", "right")
    for name in (f"__{side[0]}shift__", f"bitwise_{side}_shift")
}


def stand_in_for(dtype: torch.dtype, rank: int) -> Tensor:
    """A tensor without values that counts as one of `rank` dimensions where torch promotes dtypes.

    >>> torch.result_type(stand_in_for(torch.float16, 2), stand_in_for(torch.float64, 0))
    torch.float16
    """
    return torch.empty([1] * rank, dtype=dtype, device="meta")
