"""What Python computes of sizes, as torch notes it, in nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from .emit import Emit
from .graph import Value

_ANY_TYPE = {"Add": "add", "Mul": "mul", "Max": "maximum", "Min": "minimum"}
_REAL = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "OpaqueUnaryFn_sqrt": "sqrt",
         "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log"}  # fmt: skip
_WHOLE = {"FloorToInt": "floor", "TruncToInt": "", "CeilToInt": "ceil"}


def in_sizes(emit: Emit, expr: Any, value_of: Callable[[Any], Value]) -> Value | None:
    """An expression of sizes, as a list of one: int64, or float64 where it is not whole. None: not known.

    Args:
        emit: adds the nodes.
        expr: a function of sympy or of torch.
        value_of: gives the values of its arguments.
    """
    kind, args = type(expr).__name__, expr.args
    if kind in _ANY_TYPE:
        parts = _alike(emit, [value_of(a) for a in args])
        return reduce(lambda a, b: emit.call(_ANY_TYPE[kind], a, b), parts)
    if kind in ("FloorDiv", "CleanDiv"):
        parts = [value_of(a) for a in args]
        whole = args[0].is_nonnegative and args[1].is_nonnegative
        return emit.call("floor_divide", *parts) if whole else emit.floored(*parts)
    if kind in ("Mod", "PythonMod"):
        return emit.call("remainder", *(value_of(a) for a in args))
    if kind in ("Pow", "PowByNatural") and args[1].is_Integer and args[1] > 0:
        return reduce(lambda a, b: emit.call("mul", a, b), [value_of(args[0])] * int(args[1]))
    if kind in ("FloorToInt", "TruncToInt", "CeilToInt") and type(args[0]).__name__ == "IntTrueDiv":
        over, under = args[0].args
        return _rounded(emit, kind, over, under, value_of)
    if kind in _WHOLE:
        value, rounding = value_of(args[0]), _WHOLE[kind]
        return emit.cast(emit.call(rounding, value) if rounding else value, torch.int64)
    if kind == "Abs":
        return emit.call("abs", value_of(args[0]))
    if kind == "RoundToInt":
        return emit.cast(emit.call("round", value_of(args[0])), torch.int64)
    if kind == "ToFloat":
        return emit.cast(value_of(args[0]), torch.float64)
    if kind == "OpaqueUnaryFn_log2":
        log = emit.call("log", emit.cast(value_of(args[0]), torch.float64))
        return emit.call("mul", log, emit.number(1 / math.log(2), torch.float64))
    if kind in _REAL:
        return emit.call(_REAL[kind], *(emit.cast(value_of(a), torch.float64) for a in args))
    return None


def _rounded(emit: Emit, kind: str, x: Any, y: Any, value_of: Callable[[Any], Value]) -> Value | None:
    """The quotient of whole numbers, without those between."""
    if kind == "CeilToInt":
        return emit.call("neg", emit.floored(emit.call("neg", value_of(x)), value_of(y)))
    if kind == "TruncToInt" and not (x.is_nonnegative and y.is_nonnegative):
        return emit.truncated(value_of(x), value_of(y))
    return emit.floored(value_of(x), value_of(y))


def _alike(emit: Emit, values: list[Value]) -> list[Value]:
    """Values in one dtype."""
    if len({emit.graph.dtype(value) for value in values}) == 1:
        return values
    return [emit.cast(value, torch.float64) for value in values]
