"""Products over rows, which gradients of weights are: by the tile instructions of AMX, or by vectors where
torch's own are slower."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.data.unpatched_torch import data_ptr, empty, stride
from stepnet.executors.base import Run
from stepnet.executors.loop import Bound
from stepnet.ir.graph import Graph, Node

from . import build as c_build
from . import threads as c_threads
from .on_rows import in_wider
from .products import (
    BY_DTYPE,
    OVER_ROOM,
    are_loops_of_torch,
    are_slow_in_torch,
    float_parts,
    over_rows,
    over_vectors,
    split,
)  # fmt: skip

# features or columns, and their product, below which splitting rows takes longer than tiles save (measured)
_LEAST, _SIZE = 128, 1 << 15
_MOST_TOGETHER = 256  # features of two tables that go together: `SN_OVER_FEATURES`
_SHARE = 256  # rows of a thread, below which there is nothing to gain by tiles
# features or columns, rows, and numbers multiplied, below which torch's are not slower (measured)
_FEW_COLUMNS, _FEW_ROWS, _WORK = 32, 16, 1 << 19
# rows of a part; parts at least, which threads share evenly, and at most; numbers of the sums of all parts
_PART, _FEW_PARTS, _MOST_PARTS, _MOST_SUMS = 8192, 8, 32, 1 << 20
_ROOM = 164_992  # numbers of room of each thread, on whose stack they may not fit


class _Over(ctypes.Structure):
    """`sn_over` of sn_over_rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("sums", "more", "a", "b")),
        *((name, ctypes.c_int64) for name in ("a_stride", "b_stride", "rows", "k", "n", "parts")),
        ("a2", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("a2_stride", "k1")),
        *((name, ctypes.c_void_p) for name in ("turned", "turned2", "room")),
    )


class _Table(ctypes.Structure):
    """`sn_over_table` of sn_over_vectors.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("sums", "rows")),
        ("stride", ctypes.c_int64),
        ("n", ctypes.c_int64),
    )


class _OverVectors(ctypes.Structure):
    """`sn_over_vectors`."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "rows", "k")),
        ("tables", _Table * 2),
        ("room", ctypes.c_void_p),
        ("parts", ctypes.c_int64),
    )


def product_over_rows(graph: Graph, node: Node, by_torch: Run) -> Run:
    """a' b for rows a [rows, k] and b [rows, n] of float32, as exact as torch's, or of bfloat16, with sums in
    float32; else torch's own."""
    a, b = (graph.values[name] for name in node.inputs)
    out = graph.values[node.output]
    if a.dtype == b.dtype == "bfloat16" and are_loops_of_torch():
        by_torch = in_wider(graph, node, by_torch)
    flat = len(a.shape) == len(b.shape) == 1 and not node.attr("batch")
    if not flat or a.dtype != b.dtype or out.dtype != "float32":
        return by_torch
    least = min(*a.shape, *b.shape)
    if are_slow_in_torch(a.dtype) and least >= _FEW_COLUMNS:
        return _product_by_vectors(by_torch)
    if a.dtype != "float32" or least < _LEAST or math.prod((*a.shape, *b.shape)) < _SIZE:
        return by_torch

    def product(a: Tensor, b: Tensor, rows: int) -> Tensor:
        parts = float_parts()
        run = library() if parts > 1 and rows >= _SHARE and stride(a)[1] == stride(b)[1] == 1 else None
        if run is None:
            return by_torch(a, b, rows=rows)
        return _by_tiles(run, a, b, rows, parts)

    return product


def _product_by_vectors(by_torch: Run) -> Run:
    def product(a: Tensor, b: Tensor, rows: int) -> Tensor:
        found = by_vectors(a, (b,), rows)
        return by_torch(a, b, rows=rows) if found is None else found[0]

    return product


def by_vectors(a: Tensor, tables: Sequence[Tensor], rows: int) -> list[Tensor] | None:
    """a' b for each b of one or two tables; None of little work, or where numbers do not lie side by side."""
    k = a.shape[1]
    work = rows * k * sum(table.shape[1] for table in tables)
    if rows < _FEW_ROWS or work < _WORK or any(stride(table)[1] != 1 for table in (a, *tables)):
        return None
    run = (library_of_floats if a.dtype == torch.float32 else library_of_pairs)()
    if run is None:
        return None
    parts = min(rows // _PART, _MOST_PARTS)
    parts = parts if parts >= _FEW_PARTS and parts * (work // rows) <= _MOST_SUMS else 1
    each = (parts, k) if parts > 1 else (k,)
    found = [empty((*each, table.shape[1]), dtype=torch.float32) for table in tables]
    told = [
        _Table(data_ptr(sums), data_ptr(table), stride(table)[0], table.shape[1])
        for sums, table in zip(found, tables, strict=True)
    ]
    threads = c_threads.worth(work)
    room = empty((max(threads, parts), _ROOM), dtype=torch.float32)
    over = _OverVectors(data_ptr(a), stride(a)[0], rows, k, (_Table * 2)(*told), data_ptr(room), parts)
    run(c_threads.pool(threads), ctypes.byref(over))
    return [sums.sum(0) for sums in found] if parts > 1 else found


def _by_tiles(run: Callable[..., None], a: Tensor, b: Tensor, rows: int, parts: int) -> Tensor:
    k, n = a.shape[1], b.shape[1]
    if k > n:  # rows of a change places with its columns, which takes longer than pairs of rows of b
        return _run(run, (b,), a, rows, parts, turned=True)[0]
    return _run(run, (a,), b, rows, parts)[0]


def _run(
    run: Callable[..., None], a: Sequence[Tensor], b: Tensor, rows: int, parts: int, turned: bool = False
) -> list[Tensor]:
    """a' b, of the features of one or two tables side by side; `turned`, b' a of each table."""
    k, n = sum(table.shape[1] for table in a), b.shape[1]
    threads = max(1, min(torch.get_num_threads(), rows // _SHARE))
    sums, more = empty((k, n), dtype=torch.float32), empty((threads - 1, k, n), dtype=torch.float32)
    addresses = map(data_ptr, (sums, more, a[0], b))
    found = [empty((n, table.shape[1]), dtype=torch.float32) for table in a] if turned else [sums]
    places = (data_ptr(found[0]), data_ptr(found[-1])) if turned else (None, None)
    room = empty((threads, OVER_ROOM), dtype=torch.uint8)
    others = data_ptr(a[-1]), stride(a[-1])[0], a[0].shape[1], *places, data_ptr(room)
    over = _Over(*addresses, stride(a[0])[0], stride(b)[0], rows, k, n, parts, *others)
    run(c_threads.pool(threads), ctypes.byref(over))
    return found


def joined(graph: Graph, nodes: Sequence[Bound]) -> list[Bound]:
    """The same nodes, of which two that multiply the same rows are one, as the gradients of a cell's weights
    for x and for its state do: to split those rows once more takes as long as a fifth of the product."""
    out = [*nodes]
    products = [at for at, node in enumerate(nodes) if node.op == "matmul_tn"]
    for place, at in enumerate(products):
        for before in products[:place]:
            first, second = nodes[before], nodes[at]
            if first not in out or not _go_together(graph, first, second):
                continue
            between = (node.inputs for node in nodes[before + 1 : at])
            if all(map(set(first.outputs).isdisjoint, between)):
                out[out.index(second)] = _both(graph, first, second)
                out.remove(first)
                break
    return out


def _go_together(graph: Graph, first: Bound, second: Bound) -> bool:
    if first.inputs[0] != second.inputs[0]:
        return False
    values = [graph.values[name] for name in (*first.inputs, *second.inputs, *first.outputs, *second.outputs)]
    dtype = values[0].dtype
    alike = {v.dtype for v in values[:4]} == {dtype} and {v.dtype for v in values[4:]} == {"float32"}
    if not alike or any(len(v.shape) != 1 for v in values[:4]):
        return False
    (k,), (one,), _, (other,) = (v.shape for v in values[:4])
    wide = one + other
    if are_slow_in_torch(dtype):
        return min(k, one, other) >= _FEW_COLUMNS
    if dtype != "float32":
        return False
    return (one, other) == (one // 16 * 16, other // 16 * 16) and _LEAST <= wide <= min(_MOST_TOGETHER, k)


def _both(graph: Graph, first: Bound, second: Bound) -> Bound:
    dtype = graph.values[first.inputs[0]].dtype

    def products(rows_of: Tensor, x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, ...]:
        if are_slow_in_torch(dtype) and (found := by_vectors(rows_of, (x, y), rows)):
            return tuple(found)
        parts = float_parts() if dtype == "float32" else 0
        in_a_row = stride(rows_of)[1] == stride(x)[1] == stride(y)[1] == 1
        run = library() if parts > 1 and rows >= _SHARE and in_a_row else None
        if run is None:
            assert first.run is not None
            assert second.run is not None
            return first.run(rows_of, x, rows=rows), second.run(rows_of, y, rows=rows)
        return tuple(_run(run, (x, y), rows_of, rows, parts, turned=True))

    return Bound(products, "matmul_tn", (*first.inputs, second.inputs[1]), (*first.outputs, *second.outputs))


@c_build.until_built
def library_of_floats() -> Callable[..., None]:
    """The function in C of products by vectors of floats."""
    return _library_of_vectors("float32")


@c_build.until_built
def library_of_pairs() -> Callable[..., None]:
    """That of pairs of bfloat16."""
    return _library_of_vectors("bfloat16")


def _library_of_vectors(dtype: str) -> Callable[..., None]:
    text = f"{c_build.preamble('f32', linked=True)}\n#define SN_OVER_ROOM {_ROOM}\n{over_vectors(dtype)}"
    text += "\nvoid run(const sn_pool *pool, sn_over_vectors *over) { sn_over_by_vectors(pool, over); }\n"
    library = c_build.build(text, "f32", libm=False)
    return library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.POINTER(_OverVectors))


@c_build.until_built
def library() -> Callable[..., None]:
    """The function in C, linked with the products: to compile those again would take seconds."""
    needs = BY_DTYPE["float32"].needs
    linked = "#define SN_TURNS\n" + c_build.preamble(*needs, linked=True)
    text = f"{linked}\n#undef SN_LINKED\n{split(is_fast=True)}\n{over_rows()}"
    text += "\nvoid run(const sn_pool *pool, sn_over *over) { sn_over_rows(pool, over); }\n"
    library = c_build.build(text, *needs)
    return library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.POINTER(_Over))
