"""Layers that compute shapes, on sizes that stay open while a model is traced."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.export.open_sizes import Repeated, Sizes

from .layers.row import listed

Rule = Callable[..., Any]


def _elementwise(compute: Callable[[Any, Any], Any]) -> Rule:
    return lambda x, y: np.asarray(compute(x, y), dtype=object)


def _unsqueeze(x: np.ndarray, axes: np.ndarray) -> Any:
    return x.reshape(1) if x.ndim == 0 else None


def _slice(x: np.ndarray, start: np.ndarray, stop: np.ndarray, step: np.ndarray, *axes: np.ndarray) -> Any:
    if x.ndim != 1 or start.size != 1 or any(axis.reshape(-1)[0] not in (0, -1) for axis in axes):
        return None
    first, last, by = (part.reshape(-1)[0] for part in (start, stop, step))
    return x[first:last:by]


RULES: dict[str, Rule] = {
    "add": _elementwise(operator.add),
    "subtract": _elementwise(operator.sub),
    "multiply": _elementwise(operator.mul),
    "concat": lambda *xs: np.concatenate([np.atleast_1d(x) for x in xs]),
    "convert": lambda x: x,
    "gather": lambda x, index, axis: np.asarray(x.take(index.astype(np.int64)), dtype=object),
    "squeeze": lambda x, *_: x.reshape(()) if x.size == 1 else None,
    "unsqueeze": _unsqueeze,
    "reshape": lambda x, shape: x.reshape([int(n) for n in shape.reshape(-1)]),
    "slice": _slice,
}


def on_sizes(
    kind: str, arguments: Sequence[Any], known: Mapping[int, Any], dtype: torch.dtype | None = None
) -> Sizes | Repeated | None:
    """The result of a layer on sizes and constants; None if it is not computed so.

    Args:
        kind: the type of the layer, in small letters.
        arguments: what it is given.
        known: the numbers of the inputs that are constants.
        dtype: what a Convert makes.
    """
    first = arguments[0]
    if kind == "broadcast" and isinstance(first, Sizes) and first.array.size == 1:
        return Repeated(first.array.reshape(()).item(), listed(arguments[1]), first.dtype)
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
    if dtype is None:
        dtype = next(value.dtype for value in arguments if isinstance(value, Sizes))
    elif dtype not in (torch.int64, torch.int32):
        return None
    return None if found is None else Sizes(found, dtype)


def plain(value: Any) -> Any:
    """A tensor in place of sizes."""
    return value.tensor() if isinstance(value, (Sizes, Repeated)) else value
