"""All rows times a matrix in floats, where torch's own products are slower; and any products of bfloat16."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.unpatched_torch import data_ptr, empty, stride
from stepnet.executors.base import Run
from stepnet.ir.graph import Graph, Node

from . import build as c_build
from . import threads as c_threads
from .products import BY_SUFFIX, are_loops_of_torch, are_slow_in_torch, float_parts, on_rows

_LEAST = 16  # features and columns: what is narrower leaves lanes of vectors empty
# rows, and numbers multiplied, below which packing the matrix takes longer than is gained (measured)
_ROWS, _WORK = 16, 1 << 19


class _On(ctypes.Structure):
    """`sn_on` of sn_on_rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("to", "a", "b")),
        *((name, ctypes.c_int64) for name in ("stride", "stride_k", "stride_n", "rows", "k", "n")),
        ("packed", ctypes.c_void_p),
    )


def product_on_rows(graph: Graph, node: Node, by_torch: Run) -> Run:
    """a b for rows a [rows, k] and a matrix b [k, n] of float32 or bfloat16; else torch's own."""
    a, b = (graph.values[name] for name in node.inputs)
    out = graph.values[node.output]
    if a.dtype == b.dtype == "bfloat16" and are_loops_of_torch():
        flat = _flat(graph, node) and out.dtype in ("float32", "bfloat16")
        return in_wider(graph, node, _by_floats(by_torch) if flat else by_torch)
    if not _flat(graph, node) or {a.dtype, b.dtype, out.dtype} != {"float32"}:
        return by_torch
    return _by_floats(by_torch)


def _flat(graph: Graph, node: Node) -> bool:
    a, b = (graph.values[name] for name in node.inputs)
    flat = (a.kind, b.kind, len(a.shape), len(b.shape)) == ("row", "shared", 1, 2)
    return flat and min(b.shape) >= _LEAST


def in_wider(graph: Graph, node: Node, product: Run) -> Run:
    """A product of numbers of bfloat16 as one of floats, which holds what multiplies them exactly."""
    dtype = dtype_of(graph.values[node.output].dtype)

    def widened(a: Tensor, b: Tensor, rows: int) -> Tensor:
        return product(a.to(torch.float32), b.to(torch.float32), rows=rows).to(dtype)

    return widened


def _by_floats(by_torch: Run) -> Run:
    if not are_slow_in_torch():
        return by_torch

    def product(a: Tensor, b: Tensor, rows: int) -> Tensor:
        found = in_floats(a, b)
        return by_torch(a, b, rows=rows) if found is None else found

    return product


def in_floats(a: Tensor, b: Tensor) -> Tensor | None:
    """a b; None of little work, or where torch may round floats, or a row has gaps."""
    (rows, k), n = a.shape, b.shape[1]
    work = rows * k * n
    if rows < _ROWS or work < _WORK or stride(a)[1] != 1 or float_parts() == 1:
        return None
    run = library()
    if run is None:
        return None
    out = empty((rows, n), dtype=torch.float32)
    packed = empty(BY_SUFFIX["f32"].packed_bytes(k, n), dtype=torch.uint8)
    threads = c_threads.worth(work)
    places = data_ptr(out), data_ptr(a), data_ptr(b)
    on = _On(*places, stride(a)[0], *stride(b), rows, k, n, data_ptr(packed))
    run(c_threads.pool(threads), ctypes.byref(on))
    return out


@c_build.until_built
def library() -> Callable[..., None]:
    """The function in C."""
    text = f"{c_build.preamble('f32', linked=True)}\n{on_rows()}"
    text += "\nvoid run(const sn_pool *pool, sn_on *on) { sn_on_rows(pool, on); }\n"
    library = c_build.build(text, "f32", libm=False)
    return library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.POINTER(_On))
