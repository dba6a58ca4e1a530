"""Arithmetic on sizes: it stays in Python, so that a model that is traced keeps sizes open.

What Shape gives is an array of whole numbers, or of torch's symbols for them. Operators that models compute
shapes by take such arrays; before any other operator, they become tensors.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from stepnet.export.open_sizes import Sizes, equal

from .info import Info, Misfit, op

Rule = Callable[..., Any]  # of the node, and arrays


@op("Shape")
def _shape(node: Info) -> Callable[[Tensor], Sizes]:
    start, end = node.get("start", 0), node.get("end")
    return lambda x: Sizes(np.array([*x.shape], dtype=object)[start:end])


@op("Size")
def _size(node: Info) -> Callable[[Tensor], Sizes]:
    return lambda x: Sizes(x.numel())


def _gather(node: Info, x: np.ndarray, index: np.ndarray) -> Any:
    return np.asarray(x.take(index.astype(np.int64), axis=node.get("axis", 0)), dtype=object)


def _check_row(axes: Sequence[int]) -> None:
    """Sizes stand in one row, so that there is one axis: of others the operator itself tells."""
    if any(axis not in (0, -1) for axis in axes):
        raise Misfit("sizes are in one row")


def _concat(node: Info, *xs: np.ndarray) -> Any:
    _check_row([node.get("axis", 0)])
    return np.concatenate([np.atleast_1d(x) for x in xs])


def _slice(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    inputs = [None] * len(node.node.inputs)
    starts, ends = node.listed(1, "starts")(inputs), node.listed(2, "ends")(inputs)
    axes, steps = node.listed(3, "axes")(inputs), node.listed(4)(inputs)
    if starts is None or ends is None:
        raise Misfit("where sizes are cut is open")
    count = len(starts)
    axes = [*range(count)] if axes is None else axes
    for axis, *cut in zip(axes, starts, ends, [1] * count if steps is None else steps, strict=True):
        if not -x.ndim <= axis < x.ndim:
            raise Misfit("sizes have no such axis")
        x = x[(slice(None),) * (axis % x.ndim) + (slice(*cut),)]
    return x


def _reshape(node: Info, x: np.ndarray, *shape: np.ndarray) -> Any:
    wanted = shape[0].tolist() if shape else node.get("shape")
    if not all(isinstance(size, int) and size for size in wanted):
        raise Misfit("sizes are laid out in known numbers")
    return x.reshape(wanted)


def _cast(node: Info, x: np.ndarray) -> Any:
    if node.get("to") == ir.DataType.INT64 and x.dtype != bool:
        return x
    if not all(isinstance(value, int) for value in x.flat):
        raise Misfit("a size is open")
    kinds = {ir.DataType.INT64: int, ir.DataType.BOOL: bool}
    if node.get("to") not in kinds:
        raise Misfit("sizes are of int64")
    kind = kinds[node.get("to")]
    found = np.vectorize(kind, otypes=[object])(x)
    return found.astype(bool) if kind is bool else found


def _div(node: Info, x: np.ndarray, y: np.ndarray) -> Any:
    """Towards zero, as ONNX has it: for symbols that are no less."""
    least = [value if isinstance(value, int) else value.node.expr.is_nonnegative for value in x.flat]
    if not all(value is not None and value is not False and value >= 0 for value in least):
        raise Misfit("sizes are no less than 0")
    if not all(isinstance(value, int) and value > 0 for value in y.flat):
        raise Misfit("sizes are divided by known numbers")
    return np.asarray(x // y, dtype=object)


def _squeeze(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    axes = node.listed(1, "axes")([None, None])
    if x.ndim > 1 or (axes is not None and (x.size != 1 or not x.ndim)):
        raise Misfit("sizes are in one row")
    _check_row(axes or [])
    return x.reshape(()) if x.size == 1 else x


def _unsqueeze(node: Info, x: np.ndarray, *_: np.ndarray) -> Any:
    axes = node.listed(1, "axes")([None, None])
    if x.ndim or axes is None or len(axes) != 1:
        raise Misfit("sizes are in one row")
    _check_row(axes)
    return x.reshape(1)


def _elementwise(compute: Callable[[Any, Any], Any]) -> Rule:
    each = np.frompyfunc(compute, 2, 1)  # not numpy's own comparison, which asks open sizes for their truth
    return lambda node, *xs: np.asarray(functools.reduce(each, xs), dtype=object)


def _reduced(compute: Callable[[Any, Any], Any]) -> Rule:
    def rule(node: Info, x: np.ndarray, *axes: np.ndarray) -> Any:
        truths = any(isinstance(value, (bool, np.bool_, torch.SymBool)) for value in x.flat)
        if truths or x.ndim != 1 or not x.size or any(not given.size for given in axes):
            raise Misfit("sizes are in one row")
        _check_row([int(axis) for given in axes for axis in given.flat] or node.get("axes", []))
        found = np.asarray(functools.reduce(compute, x), dtype=object)
        return found.reshape(1) if node.get("keepdims", 1) else found

    return rule


def _filled(node: Info, x: np.ndarray) -> Any:
    value = node.get("value")
    if not all(isinstance(size, int) for size in x.flat):
        raise Misfit("how many there are is open")
    if getattr(value, "dtype", None) != ir.DataType.INT64 or x.ndim != 1 or math.prod(x) > _MOST:
        raise Misfit("a few whole numbers")
    return np.full([*x], value.numpy().item(), dtype=object)


def _range(node: Info, *bounds: np.ndarray) -> Any:
    start, stop, step = (bound.item() for bound in bounds)
    if not all(isinstance(number, int) for number in (start, stop, step)):
        raise Misfit("how many there are is open")
    found = range(start, stop, step)
    if len(found) > _MOST:
        raise Misfit("a few whole numbers")
    return np.array(found, dtype=object)


def _where(node: Info, truths: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    sizes = all(type(value) in (int, torch.SymInt) for value in (*x.flat, *y.flat))
    if truths.dtype != bool or not sizes:
        raise Misfit("a truth is open")
    return np.where(truths, x, y)


def _of_truths(compute: Callable[..., Any]) -> Rule:
    def rule(node: Info, *xs: np.ndarray) -> Any:
        if any(x.dtype != bool for x in xs):
            raise Misfit("a truth is open")
        return np.asarray(compute(*xs))

    return rule


_MOST = 64  # sizes that are computed with
_COMPARED = {"Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt}
RULES: dict[str, Rule] = {
    "Add": _elementwise(operator.add),
    "And": _of_truths(np.logical_and),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Div": _div,
    "Equal": _elementwise(equal),
    "Gather": _gather,
    "Greater": _elementwise(operator.gt),
    "Identity": lambda node, x: x,
    "Less": _elementwise(operator.lt),
    "Max": _elementwise(torch.sym_max),
    "Min": _elementwise(torch.sym_min),
    "Mul": _elementwise(operator.mul),
    "Not": _of_truths(np.logical_not),
    "Or": _of_truths(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduced(torch.sym_max),
    "ReduceMin": _reduced(torch.sym_min),
    "ReduceProd": _reduced(operator.mul),
    "ReduceSum": _reduced(operator.add),
    "Reshape": _reshape,
    "Size": lambda node, x: np.asarray(x.size, dtype=object),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(operator.sub),
    "Transpose": lambda node, x: x.transpose(node.get("perm")),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def on_sizes(node: Info, arguments: Sequence[Any]) -> Sizes | None:
    """The result of a node on sizes and constants; None if it is not computed so."""
    rule = RULES.get(node.node.op_type)
    if rule is None:
        return None
    arrays = []
    for k, value in enumerate(arguments):
        if (not isinstance(value, Sizes) and k not in node.known) or getattr(value, "made", None) is not None:
            return None
        arrays.append(value.array if isinstance(value, Sizes) else np.array(node.known[k], dtype=object))
    if node.node.op_type == "Where" and not any(isinstance(value, Sizes) for value in arguments[1:]):
        return None
    try:
        found = rule(node, *arrays)
    except (Misfit, ValueError, TypeError, IndexError):  # the operator itself tells it
        return None
    if node.node.op_type not in _COMPARED:
        return Sizes(found, torch.bool if found.dtype == bool else torch.int64)
    if all(type(value) is bool for value in found.flat):
        return Sizes(found.astype(bool), torch.bool)
    x, y = (torch.as_tensor(Sizes(array).tensor()) for array in arrays)
    return Sizes(found, torch.bool, _COMPARED[node.node.op_type](x, y))
