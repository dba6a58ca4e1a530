"""An executor written outside of the package: sequence after sequence, row after row, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.executors.base import Executor
from stepnet.executors.layout import Layout
from stepnet.ir.graph import Node, Value
from stepnet.ir.plan import LoopPlan, Region

Array = np.ndarray[Any, Any]

_POINTWISE: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.round, "trunc": np.trunc, "not": np.logical_not, "isnan": np.isnan, "copy": np.copy,
    "cast": lambda a: a, "reciprocal": np.reciprocal, "relu": lambda a: np.maximum(a, 0), "exp": np.exp,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a),
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sigmoid": lambda a: (1 + np.tanh(a / 2)) / 2,
    "erf": np.vectorize(math.erf, otypes=[float]), "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "maximum": np.maximum, "minimum": np.minimum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and,
    "or": np.logical_or, "xor": np.logical_xor, "pow": np.power, "where": np.where,
}  # fmt: skip
_REDUCE: dict[str, Callable[..., Any]] = {"sum": np.sum, "amax": np.max, "amin": np.min}


def _slice(a: Array, dim: int, start: int, end: int, step: int) -> Array:
    return a[(slice(None),) * dim + (slice(start, end, step),)]


_SHAPE: dict[str, Callable[..., Any]] = {
    "permute": lambda a, dims: np.transpose(a, dims),
    "flip": lambda a, dims: np.flip(a, dims),
    "slice": _slice,
    "cat": lambda *parts, dim: np.concatenate(parts, dim),
}


def compute(node: Node, result: Value, inputs: list[Array]) -> Array:
    """One op on the features of one row."""
    if node.op in _POINTWISE:
        out = _POINTWISE[node.op](*inputs)
    elif node.op in _REDUCE:
        out = _REDUCE[node.op](*inputs, axis=tuple(node.attr("dims")), keepdims=True)
    elif node.op in _SHAPE:
        out = _SHAPE[node.op](*inputs, **dict(node.attrs))
    elif node.op == "reshape":
        out = inputs[0].reshape(result.shape)
    elif node.op == "expand":
        out = np.broadcast_to(inputs[0], result.shape)
    elif node.op == "full":
        out = np.full(result.shape, node.attr("value"))
    else:
        out = np.matmul(*inputs)
    return np.asarray(out, dtype=result.dtype)


class NumpyScan:
    """A scan in numpy."""

    def __init__(self, loop: LoopPlan, region: Region) -> None:
        self.values = loop.body.values
        self.outputs = loop.outputs(region)

    def __call__(
        self, region: Region, values: dict[str, Tensor], states: Mapping[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        tables = {name: values[name].detach().numpy() for name in region.read}
        finals = {c.parameter: states[c.parameter].detach().clone() for c in region.carries}
        for name in self.outputs:
            value = self.values[name]
            values[name] = torch.empty((layout.rows, *value.shape), dtype=getattr(torch, value.dtype))
        made = {name: values[name].numpy() for name in self.outputs}
        ends = {name: final.numpy() for name, final in finals.items()}
        for b, (start, length) in enumerate(
            zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)
        ):
            carried = {name: end[b].copy() for name, end in ends.items()}
            for row in range(start, start + length * layout.stride, layout.stride):
                at = {"row": row, "sequence": b, "shared": ...}
                known = {n: t[at[self.values[n].kind]] for n, t in tables.items()} | carried
                for node in region.nodes:
                    inputs = [known[name] for name in node.inputs]
                    known[node.output] = compute(node, self.values[node.output], inputs)
                for name, table in made.items():
                    table[row] = known[name]
                carried = {c.parameter: known[c.result] for c in region.carries}
            for name, end in ends.items():
                end[b] = carried[name]
        return finals


class Numpy(Executor):
    """Rows one by one in numpy."""

    name = "numpy"
    label = "numpy, row by row"
    form = "hoisted"
    devices = ("cpu",)
    dtypes = ("float32", "float64")

    def check(self, loop: LoopPlan, region: Region) -> None:
        super().check(loop, region)
        known = {*_POINTWISE, *_REDUCE, *_SHAPE, "reshape", "expand", "full", "matmul"}
        for node in region.nodes:
            if node.op not in known:
                raise Unsupported(f"numpy has no '{node.op}' here", line=node.line)

    def scan(self, loop: LoopPlan, region: Region) -> NumpyScan:
        return NumpyScan(loop, region)
