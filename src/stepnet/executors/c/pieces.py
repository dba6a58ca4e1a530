"""Where the pieces of dense sequences stand, by one function of C: beside short recurrences, the two dozen
calls of numpy that `Pieces` and `Layout` take together take as long as a third of the steps."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.as_imported import data_ptr, empty, split, stride
from stepnet.data.modes import outside_modes
from stepnet.data.pieces import Pieces
from stepnet.errors import BuildError
from stepnet.executors.layout import Layout

from .build import build

_TEXT = """
#include <stdint.h>

struct marked { const uint8_t *marks; int64_t across, along, sequences, steps; };

int64_t sn_marked(struct marked of) {
    int64_t count = 0;
    for (int64_t b = 0; b < of.sequences; ++b)
        for (int64_t t = 0; t < of.steps; ++t) count += of.marks[b * of.across + t * of.along] != 0;
    return count;
}

/* Cuts before (after: 0) or after (1) each marked row. Of `pieces` pieces these tables are written, one after
   the other: offsets, and one more; owner, start, length, last row; all of them by length, longest first; the
   first and the last piece of each sequence; room for steps + 1 counts; the row before each row, as
   `Layout.before` has it, if somebody asks. The length of the longest. */
int64_t sn_cut(struct marked of, int64_t after, int64_t by_step, int64_t asked, int64_t pieces,
               int64_t *offset) {
    int64_t *owner = offset + pieces + 1, *start = owner + pieces, *length = start + pieces;
    int64_t *end = length + pieces, *order = end + pieces, *first = order + pieces;
    int64_t *last = first + of.sequences, *place = last + of.sequences, *before = place + of.steps + 1;
    int64_t p = 0;
    const int64_t stride = by_step ? of.sequences : 1, rows = of.sequences * of.steps;
    for (int64_t r = 0; r < asked * rows; ++r) before[r] = r - stride;
    for (int64_t b = 0; b < of.sequences; ++b) {
        int64_t from = 0;
        first[b] = p;
        for (int64_t t = 0; t <= of.steps; ++t) {
            const int64_t to = t < of.steps ? t + after : t;
            if (t < of.steps && !of.marks[b * of.across + t * of.along]) continue;
            offset[p] = b * of.steps + from;
            owner[p] = b;
            start[p] = by_step ? from * stride + b : offset[p];
            length[p] = to - from;
            end[p] = start[p] + (to > from ? to - from - 1 : 0) * stride;
            if (asked && to > from) before[start[p]] = rows + p;
            ++p;
            from = to;
        }
        last[b] = p - 1;
    }
    offset[p] = rows;
    for (int64_t n = 0; n <= of.steps; ++n) place[n] = 0;
    for (int64_t i = 0; i < p; ++i) if (length[i]) ++place[length[i] - 1];
    for (int64_t n = of.steps; n-- > 0;) place[n] += place[n + 1];
    for (int64_t i = 0; i < p; ++i) order[place[length[i]]++] = i;
    return p ? length[order[0]] : 0;
}
"""


class _Marked(ctypes.Structure):
    _fields_ = (
        ("marks", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("across", "along", "sequences", "steps")),
    )


class _Cut(NamedTuple):
    count: Any
    write: Any


@functools.cache
def _functions() -> _Cut | None:
    try:
        library = build(_TEXT)
    except BuildError:
        return None
    # Python's lock is kept, as in `memory`
    loaded = ctypes.PyDLL(str(library.path), handle=library.handle._handle)
    count, write = loaded.sn_marked, loaded.sn_cut
    count.argtypes, count.restype = [_Marked], ctypes.c_int64
    write.argtypes, write.restype = [_Marked, *[ctypes.c_int64] * 4, ctypes.c_void_p], ctypes.c_int64
    return _Cut(count, write)


@outside_modes
def cut_dense(marks: Tensor, after: bool, by_step: bool) -> tuple[Pieces, Layout] | None:
    """What `data.pieces.cut` and `Layout.pieces` give for sequences of one length.

    Args:
        marks: truth values of [sequences, steps] on the CPU, in any order.
        after: whether they are cut after the rows that are marked, and not before.
        by_step: whether the table of rows is [steps, sequences].

    Returns:
        None where there is no C compiler.

    >>> marks = torch.tensor([[False, True, False], [False, False, False]])
    >>> pieces, layout = cut_dense(marks, after=False, by_step=True)
    >>> pieces.owner.tolist(), layout.starts.tolist(), layout.lengths.tolist(), layout.order.tolist()
    ([0, 0, 1], [0, 2, 1], [1, 2, 3], [2, 1, 0])
    """
    functions = _functions()
    if functions is None:
        return None
    n, steps = marks.shape
    of = _Marked(data_ptr(marks), *stride(marks), n, steps)
    count = n + functions.count(of)
    asked = torch.is_grad_enabled()  # a gradient would want it
    sizes = [count + 1, *[count] * 5, n, n, steps + 1, asked * n * steps]
    table = empty(sum(sizes), dtype=torch.int64, device="cpu")
    longest = functions.write(of, after, by_step, asked, count, data_ptr(table))
    offsets, owner, starts, lengths, ends, order, first, last, _, before = split(table, sizes)
    stride_of = n if by_step else 1
    layout = Layout(starts, lengths, stride_of, n * steps)
    backward = Layout(ends, lengths, -stride_of, n * steps)
    for each in (layout, backward):
        vars(each).update(order=order, steps=longest)  # which they would compute
    vars(layout).update(backward=backward, **({"before": before} if asked else {}))
    return Pieces(offsets, first, last, owner), layout
