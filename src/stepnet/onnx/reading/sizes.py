"""Arithmetic on sizes: it stays in Python, so that a model that is traced keeps sizes open.

What Shape gives is an array of whole numbers, or of torch's symbols for them. Operators that models compute
shapes by take such arrays; before any other operator, they become tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from stepnet.export.open_sizes import Sizes

from .info import Info, Misfit, op


@op("Shape")
def _shape(node: Info) -> Callable[[Tensor], Sizes]:
    start, end = node.get("start", 0), node.get("end")
    return lambda x: Sizes(np.array([*x.shape], dtype=object)[start:end])


Rule = Callable[..., Any]  # of the node, and arrays


def _gather(node: Info, x: np.ndarray, index: np.ndarray) -> Any:
    return np.asarray(x.take(index.astype(np.int64), axis=node.get("axis", 0)), dtype=object)


def _slice(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    inputs = [None] * len(node.node.inputs)
    starts, ends = node.listed(1, "starts")(inputs), node.listed(2, "ends")(inputs)
    axes, steps = node.listed(3, "axes")(inputs), node.listed(4)(inputs)
    if x.ndim != 1 or starts is None or ends is None or len(starts) != 1 or (axes or [0])[0] not in (0, -1):
        raise Misfit("sizes are cut along one axis")
    return x[starts[0] : ends[0] : (steps or [1])[0]]


def _squeeze(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    return x.reshape(()) if x.size == 1 else x


def _unsqueeze(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    if x.ndim:
        raise Misfit("sizes are in one row")
    return x.reshape(1)


def _elementwise(compute: Callable[[Any, Any], Any]) -> Rule:
    return lambda node, x, y: np.asarray(compute(x, y), dtype=object)


RULES: dict[str, Rule] = {
    "Add": _elementwise(operator.add),
    "Concat": lambda node, *xs: np.concatenate([np.atleast_1d(x) for x in xs]),
    "Gather": _gather,
    "Identity": lambda node, x: x,
    "Mul": _elementwise(operator.mul),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(operator.sub),
    "Unsqueeze": _unsqueeze,
}


def on_sizes(node: Info, arguments: Sequence[Any]) -> Sizes | None:
    """The result of a node on sizes and constants; None if it is not computed so."""
    rule = RULES.get(node.node.op_type)
    if rule is None:
        return None
    arrays = []
    for k, value in enumerate(arguments):
        if not isinstance(value, Sizes) and k not in node.known:
            return None
        arrays.append(value.array if isinstance(value, Sizes) else np.array(node.known[k], dtype=object))
    try:
        return Sizes(rule(node, *arrays))
    except Misfit:
        return None


def plain(value: Any) -> Any:
    """A tensor in place of sizes."""
    return value.tensor() if isinstance(value, Sizes) else value
