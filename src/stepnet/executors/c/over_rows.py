"""Products over rows by the tile instructions of AMX: what gradients of weights are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
from torch import Tensor

from stepnet.data.as_imported import contiguous, data_ptr, empty, stride
from stepnet.executors.base import Run
from stepnet.ir.graph import Graph, Node

from . import build as c_build
from . import threads as c_threads
from .products import BY_DTYPE, float_parts, over_rows, split

# features or columns, and their product, below which splitting rows takes longer than tiles save (measured)
_LEAST, _SIZE = 128, 1 << 15
_SHARE = 256  # rows of a thread, below which there is nothing to gain


class _Over(ctypes.Structure):
    """`sn_over` of sn_over_rows.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("sums", "more", "a", "b")),
        *((name, ctypes.c_int64) for name in ("a_stride", "b_stride", "rows", "k", "n", "parts")),
    )


def product_over_rows(graph: Graph, node: Node, by_torch: Run) -> Run:
    """a' b for rows a [rows, k] and b [rows, n] of float32, as exact as torch's; else torch's own."""
    a, b = (graph.values[name] for name in node.inputs)
    out = graph.values[node.output]
    flat = len(a.shape) == len(b.shape) == 1 and not node.attr("batch")
    few = min(*a.shape, *b.shape) < _LEAST or math.prod((*a.shape, *b.shape)) < _SIZE
    if not flat or few or {a.dtype, b.dtype, out.dtype} != {"float32"}:
        return by_torch

    def product(a: Tensor, b: Tensor, rows: int) -> Tensor:
        parts = float_parts()
        run = _library() if parts > 1 and rows >= _SHARE and stride(a)[1] == stride(b)[1] == 1 else None
        if run is None:
            return by_torch(a, b, rows=rows)
        return _by_tiles(run, a, b, rows, parts)

    return product


def _by_tiles(run: Callable[..., None], a: Tensor, b: Tensor, rows: int, parts: int) -> Tensor:
    k, n = a.shape[1], b.shape[1]
    if k > n:  # rows of a change places with its columns, which takes longer than pairs of rows of b
        return contiguous(_by_tiles(run, b, a, rows, parts).t())
    threads = max(1, min(torch.get_num_threads(), rows // _SHARE))
    sums, more = empty((k, n), dtype=torch.float32), empty((threads - 1, k, n), dtype=torch.float32)
    addresses = map(data_ptr, (sums, more, a, b))
    over = _Over(*addresses, stride(a)[0], stride(b)[0], rows, k, n, parts)
    run(c_threads.pool(threads), ctypes.byref(over))
    return sums


@c_build.until_built
def _library() -> Callable[..., None]:
    """The function in C, linked with the products: to compile those again would take seconds."""
    needs = BY_DTYPE["float32"].needs
    linked = "#define SN_TURNS\n" + c_build.preamble(*needs, linked=True)
    text = f"{linked}\n#undef SN_LINKED\n{split(is_fast=True)}\n{over_rows()}"
    text += "\nvoid run(const sn_pool *pool, sn_over *over) { sn_over_rows(pool, over); }\n"
    library = c_build.build(text, *needs)
    return library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.POINTER(_Over))
