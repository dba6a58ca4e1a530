"""Layers that compute shapes, on sizes that stay open while a model is traced."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data.modes import outside_modes
from stepnet.export.open_sizes import Repeated, Sizes, equal

from .layers.row import listed

Rule = Callable[..., Any]


def _elementwise(compute: Callable[..., Any]) -> Rule:
    return lambda *xs: np.asarray(np.frompyfunc(compute, len(xs), 1)(*xs), dtype=object)


def _known(compute: Callable[..., Any]) -> Rule:
    """Of numbers none of which is open."""

    def rule(*xs: np.ndarray) -> Any:
        if not all(isinstance(value, (int, float)) for x in xs for value in x.flat):
            return None
        return _elementwise(compute)(*xs)

    return rule


def _divide(x: np.ndarray, y: np.ndarray) -> Any:
    """Of sizes, which are not negative, by known numbers; of fractions, which come of sizes, too."""
    if any(type(value) is float for value in (*x.flat, *y.flat)):
        return _known(operator.truediv)(x, y)
    above = all(isinstance(value, int) and value > 0 for value in y.flat)
    least = (value if isinstance(value, int) else 0 for value in x.flat)
    return _elementwise(operator.floordiv)(x, y) if above and min(least, default=0) >= 0 else None


def _rest(x: np.ndarray, y: np.ndarray) -> Any:
    """Of sizes, which are not negative: of others the sign is not that of `%`."""
    known = all(isinstance(value, int) and value >= 0 for value in (*x.flat, *y.flat)) and all(y.flat)
    return _elementwise(operator.mod)(x, y) if known else None


def _equal(x: np.ndarray, y: np.ndarray) -> Any:
    found = _elementwise(equal)(x, y)
    return found if all(isinstance(value, bool) for value in found.flat) else None


def _unsqueeze(x: np.ndarray, axes: np.ndarray) -> Any:
    return x.reshape(1) if x.ndim == 0 else None


def _slice(x: np.ndarray, start: np.ndarray, stop: np.ndarray, step: np.ndarray, *axes: np.ndarray) -> Any:
    if x.ndim != 1 or start.size != 1 or any(axis.reshape(-1)[0] not in (0, -1) for axis in axes):
        return None
    first, last, by = (part.reshape(-1)[0] for part in (start, stop, step))
    return x[first:last:by]


@outside_modes
def _on_places(run: Rule, x: np.ndarray, *others: Any) -> np.ndarray:
    """What a layer makes of places in the order of `x`: which it picks, or how many it leaves."""
    return run(torch.arange(x.size).reshape(x.shape), *others).numpy()


def _picked(run: Rule, x: np.ndarray, *others: Any) -> Any:
    return x.reshape(-1)[_on_places(run, x, *others)]


def _folded(compute: Callable[..., Any], *first: int) -> Rule:
    """All numbers of a vector in one."""

    def rule(run: Rule, x: np.ndarray, *axes: Any) -> Any:
        if x.ndim != 1 or not (x.size or first):
            return None
        shape = _on_places(run, x, *axes).shape
        if math.prod(shape) != 1:  # over no axis
            return None
        return np.array(functools.reduce(compute, x, *first), dtype=object).reshape(shape)

    return rule


_MOST = 64  # sizes that are computed with
# Of the first input, by the layer itself, which has attributes that say how.
BY_LAYER: dict[str, Callable[..., Any]] = {
    "stridedslice": _picked,
    "reduceprod": _folded(operator.mul, 1),
    "reducesum": _folded(operator.add, 0),
    "reducemax": _folded(torch.sym_max),
    "reducemin": _folded(torch.sym_min),
}
RULES: dict[str, Rule] = {
    "add": _elementwise(operator.add),
    "subtract": _elementwise(operator.sub),
    "multiply": _elementwise(operator.mul),
    "concat": lambda *xs: np.concatenate([np.atleast_1d(x) for x in xs]),
    "convert": lambda x: x,
    "abs": _known(abs),
    "ceiling": _known(math.ceil),
    "divide": _divide,
    "equal": _equal,
    "floor": _known(math.floor),
    "floormod": _known(operator.mod),
    "greater": _known(operator.gt),
    "less": _known(operator.lt),
    "mod": _rest,
    "maximum": _elementwise(torch.sym_max),
    "minimum": _elementwise(torch.sym_min),
    "select": lambda which, x, y: None if which.dtype != bool else np.where(which, x, y),
    "gather": lambda x, index, axis: np.asarray(x.take(index.astype(np.int64)), dtype=object),
    "squeeze": lambda x, *_: x.reshape(()) if x.size == 1 else None,
    "unsqueeze": _unsqueeze,
    "reshape": lambda x, shape: x.reshape([int(n) for n in shape.reshape(-1)]),
    "slice": _slice,
}


def on_sizes(
    kind: str, arguments: Sequence[Any], known: Mapping[int, Any], run: Rule, dtype: torch.dtype | None = None
) -> Sizes | Repeated | None:
    """The result of a layer on sizes and constants; None if it is not computed so.

    Args:
        kind: the type of the layer, in small letters.
        arguments: what it is given.
        known: the numbers of the inputs that are constants.
        run: the function of the layer.
        dtype: what a Convert makes.
    """
    first = arguments[0]
    if kind == "broadcast" and isinstance(first, Sizes) and first.array.size == 1:
        size, shape = first.array.reshape(()).item(), listed(arguments[1])
        if all(isinstance(n, int) for n in shape) and math.prod(shape) <= _MOST:
            return Sizes(np.full(shape, size, dtype=object), first.dtype)
        return Repeated(size, shape, first.dtype)
    if kind in BY_LAYER and isinstance(first, Sizes):
        told = all(not isinstance(value, (Tensor, Sizes, Repeated)) for value in arguments[1:])
        found = BY_LAYER[kind](run, first.array, *arguments[1:]) if told else None
        return None if found is None else Sizes(np.asarray(found, dtype=object), first.dtype)
    rule = RULES.get(kind)
    arrays = []
    for i, value in enumerate(arguments):
        if isinstance(value, Tensor) and i not in known:
            return None
        number = value.array if isinstance(value, Sizes) else known.get(i, value)
        if rule is None or isinstance(number, Repeated):
            return None
        arrays.append(number if isinstance(number, np.ndarray) else np.array(number, dtype=object))
    found = None if rule is None else rule(*arrays)
    if found is None:
        return None
    if kind in ("equal", "greater", "less"):
        return Sizes(found.astype(bool), torch.bool)
    if kind == "convert":
        if dtype not in (torch.int64, torch.int32, torch.float64, torch.float32):
            return None
        number = float if dtype.is_floating_point else int
        as_told = _elementwise(lambda value: value if isinstance(value, torch.SymInt) else number(value))
        return Sizes(as_told(found), dtype)
    kept = [value.dtype for value in arguments[kind == "select" :] if isinstance(value, Sizes)]
    return Sizes(found, kept[0]) if kept else None
