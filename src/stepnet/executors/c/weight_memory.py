"""What a scan reads of weights: where its matrices lie, and numbers that are made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.executors.schedule.program import Program
from stepnet.ir.graph import Node
from stepnet.ir.plan import LoopPlan

from .products.cpu import has_wide_vectors

# Bytes of a matrix, and the rows with fewer of which packing takes longer than it saves (measured): about as
# many whether they come one or sixteen at a time.
_MATRIX = ((1 << 21, 34), (1 << 20, 22), (1 << 19, 15), (3 << 16, 13), (1 << 17, 8), (1 << 15, 5), (0, 3))
# Where one panel is packed at a time, and used once (measured). Columns in one piece: each product of a row
# and a column ends in a sum of lanes, so that deep matrices are read as they lie for more rows.
_TURNED = ((1024, 20), (512, 15), (256, 13), (192, 10), (128, 7), (96, 5), (0, 4))
# Rows in one piece are read as they would be packed, unless the many numbers of a column meet in few places
# of the first cache.
_STRAIGHT, _MEETING = 24, 9
_MEET, _DEEP = 4096, 512  # bytes from row to row, a multiple of which; rows
_LINE = 16  # columns of a vector at most: of what is left, each number is a sum by itself
_LEFT = ((512, 8), (128, 3), (0, 2))  # columns of such


def worth_packing(size: int) -> int:
    """The rows from which on a matrix of so many bytes is packed in a call."""
    return _first(_MATRIX, size)


def worth_panels(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The rows from which on a matrix of float32, one of whose strides is 1, is packed a panel at a time."""
    depth, columns = shape
    if strides[0] == 1:
        return _first(_TURNED, depth)
    if columns % _LINE:
        return _first(_LEFT, columns)
    return _MEETING if depth >= _DEEP and 4 * strides[0] % _MEET == 0 else _STRAIGHT


def worth_turning(rows: int, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether rows are turned in place of a matrix of float32 whose columns lie in one piece: where they fill
    vectors (measured)."""
    return has_wide_vectors() and strides[0] == 1 and shape[0] >= 128 and rows % _LINE == 0


def _first(measured: Sequence[tuple[int, int]], size: int) -> int:
    return next(rows for least, rows in measured if size >= least)


class Lies(NamedTuple):
    """A matrix in the memory of a value: which dimension of that each of its own is; the dimension along
    which it begins later, and by how many bytes a stride of one."""

    source: str
    dims: tuple[int, ...]
    along: int = 0
    skipped: int = 0


def matrices(loop: LoopPlan, p: Program) -> dict[str, Lies]:
    """Where each matrix is read from: a weight with its dimensions in another order, or some of its columns,
    are read where they lie."""
    made = {name: node for node in before(loop) for name in node.outputs}
    found: dict[str, Lies] = {}
    for name in p.matrices:
        weight = p.by_row.get(name, name)
        lies = found[name] = Lies(weight, tuple(range(len(p.value(name).shape))))
        part = made.get(weight)
        if part is not None and (part.op != "slice" or part.attr("step") != 1):
            part = None
        source, dims = weight if part is None else part.inputs[0], lies.dims
        turned = made.get(source)
        if turned is not None and turned.op == "permute":
            source, dims = turned.inputs[0], turned.attr("dims")
        if source not in loop.body.parameters and source not in made:
            continue
        found[name] = Lies(source, dims)
        if part is not None:
            size = dtype_of(p.value(name).dtype).itemsize
            found[name] = Lies(source, dims, dims[part.attr("dim")], part.attr("start") * size)
    return found


def constants(loop: LoopPlan, p: Program) -> dict[str, Tensor]:
    """Those shared values that are one number, made once."""
    made = {n.output: n.attr("value") for n in before(loop) if n.op == "full" and n.output in p.shared}
    values = {name: p.value(name) for name in made}
    return {n: torch.full(v.shape, made[n], dtype=dtype_of(v.dtype), device="cpu") for n, v in values.items()}


def before(loop: LoopPlan) -> list[Node]:
    """What is computed once, before all steps."""
    return [node for region in loop.regions if region.kind == "prologue" for node in region.nodes]
