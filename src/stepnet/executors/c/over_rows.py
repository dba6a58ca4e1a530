"""Products over rows, which gradients of weights are, by the tile instructions of AMX or as floats."""

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
from .products import float_parts, has_tiles, has_vectors_of_256, over_rows

# features or columns, and their product, below which splitting rows takes longer than tiles save (measured)
_LEAST, _SIZE = 64, 1 << 14
_SHARE = 256  # rows of a thread, below which there is nothing to gain


class _Over(ctypes.Structure):
    """`sn_over` of sn_over_floats.h."""

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
        gains = parts > 1 or has_vectors_of_256()  # torch's, of no longer vectors, leave time unused
        run = _library() if gains and rows >= _SHARE and stride(a)[1] == stride(b)[1] == 1 else None
        if run is None:
            return by_torch(a, b, rows=rows)
        return _made(run, a, b, rows, parts)

    return product


def _made(run: Callable[..., None], a: Tensor, b: Tensor, rows: int, parts: int) -> Tensor:
    k, n = a.shape[1], b.shape[1]
    if k > n and parts:  # to turn rows of a into columns takes longer than to pair rows of b
        return contiguous(_made(run, b, a, rows, parts).t())
    threads = max(1, min(torch.get_num_threads(), rows // _SHARE))
    sums = empty((k, n), dtype=torch.float32)
    more = empty((threads - 1 if parts else 0, k, n), dtype=torch.float32)
    addresses = map(data_ptr, (sums, more, a, b))
    over = _Over(*addresses, stride(a)[0], stride(b)[0], rows, k, n, parts)
    run(c_threads.pool(threads), ctypes.byref(over))
    return sums


@c_build.until_built
def _library() -> Callable[..., None]:
    """The function in C."""
    tiles = has_tiles()
    text = c_build.preamble("split", linked=not tiles) + over_rows(tiles)
    name = "sn_over_tiles" if tiles else "sn_over_floats"
    text += f"\nvoid run(const sn_pool *pool, sn_over *over) {{ {name}(pool, over); }}\n"
    library = c_build.build(text, *(() if tiles else ("split",)))
    return library.function("run", ctypes.POINTER(c_threads.Pool), ctypes.POINTER(_Over))
