"""Where the pieces of sequences stand, by one function of C: beside short recurrences, the two dozen calls of
numpy that `Pieces` and `Layout` take together take as long as a third of the steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.modes import outside_modes
from stepnet.data.pieces import Pieces
from stepnet.data.unpatched_torch import contiguous, data_ptr, empty, split, stride
from stepnet.executors.layout import Layout

from .build import build, until_built

_TEXT = """
#include <stdint.h>

/* Sequences of `steps` rows each; or of at most so many, between offsets. */
struct marked { const uint8_t *marks; const int64_t *offsets; int64_t across, along, sequences, steps; };

static int64_t length_of(struct marked of, int64_t b) {
    return of.offsets ? of.offsets[b + 1] - of.offsets[b] : of.steps;
}

static const uint8_t *marks_of(struct marked of, int64_t b) {
    return of.marks + (of.offsets ? of.offsets[b] * of.along : b * of.across);
}

int64_t sn_marked(struct marked of) {
    int64_t count = 0;
    for (int64_t b = 0; b < of.sequences; ++b) {
        const uint8_t *marks = marks_of(of, b);
        for (int64_t t = 0, steps = length_of(of, b); t < steps; ++t) count += marks[t * of.along] != 0;
    }
    return count;
}

/* Cuts before (after: 0) or after (1) each marked row. Of `pieces` pieces these tables are written, one after
   the other: offsets, and one more; owner, start, length; all of them by length, longest first; the first and
   the last piece of each sequence; room for steps + 1 counts; if somebody asks, the last row of each piece,
   and the row before each row, as `Layout.before` has it. The length of the longest; -1 if there are not so
   many pieces, for another thread has written to the marks. */
int64_t sn_cut(struct marked of, int64_t after, int64_t by_step, int64_t asked, int64_t pieces,
               int64_t *offset) {
    int64_t *owner = offset + pieces + 1, *start = owner + pieces, *length = start + pieces;
    int64_t *order = length + pieces, *first = order + pieces, *last = first + of.sequences;
    int64_t *place = last + of.sequences, *end = place + of.steps + 1, *before = end + pieces;
    int64_t p = 0;
    const int64_t stride = by_step ? of.sequences : 1;
    const int64_t rows = of.offsets ? of.offsets[of.sequences] : of.sequences * of.steps;
    for (int64_t r = 0; r < asked * rows; ++r) before[r] = r - stride;
    for (int64_t b = 0; b < of.sequences; ++b) {
        const int64_t begin = of.offsets ? of.offsets[b] : b * of.steps, steps = length_of(of, b);
        const uint8_t *marks = marks_of(of, b);
        int64_t from = 0;
        first[b] = p;
        for (int64_t t = 0; t <= steps; ++t) {
            const int64_t to = t < steps ? t + after : t;
            if (t < steps && !marks[t * of.along]) continue;
            if (p == pieces) return -1;
            offset[p] = begin + from;
            owner[p] = b;
            start[p] = by_step ? from * stride + b : offset[p];
            length[p] = to - from;
            if (asked) end[p] = start[p] + (to > from ? to - from - 1 : 0) * stride;
            if (asked && to > from) before[start[p]] = rows + p;
            ++p;
            from = to;
        }
        last[b] = p - 1;
    }
    if (p < pieces) return -1;
    offset[p] = rows;
    for (int64_t n = 0; n <= of.steps; ++n) place[n] = 0;
    for (int64_t i = 0; i < p; ++i) if (length[i]) ++place[length[i] - 1];
    for (int64_t n = of.steps; n-- > 0;) place[n] += place[n + 1];
    for (int64_t i = 0; i < p; ++i) order[place[length[i]]++] = i;
    return length[order[0]];
}
"""


class _Marked(ctypes.Structure):
    _fields_ = (
        ("marks", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("across", "along", "sequences", "steps")),
    )


class _Cut(NamedTuple):
    count: Any
    write: Any


@until_built
def _functions() -> _Cut:
    loaded = build(_TEXT).under_lock  # which is kept for the reason that `memory` has
    count, write = loaded.sn_marked, loaded.sn_cut
    count.argtypes, count.restype = [_Marked], ctypes.c_int64
    write.argtypes, write.restype = [_Marked, *[ctypes.c_int64] * 4, ctypes.c_void_p], ctypes.c_int64
    return _Cut(count, write)


@outside_modes
def cut_dense(marks: Tensor, after: bool, by_step: bool) -> tuple[Pieces, Layout] | tuple[None, None] | None:
    """What `data.pieces.cut` and `Layout.pieces` give for sequences of one length.

    Args:
        marks: truth values of [sequences, steps] on the CPU, in any order.
        after: whether they are cut after the rows that are marked, and not before.
        by_step: whether the table of rows, and so the marks, are [steps, sequences].

    Returns:
        A pair of None where nothing is marked; None where there is no C compiler.

    >>> marks = torch.tensor([[False, True, False], [False, False, False]])
    >>> pieces, layout = cut_dense(marks.t(), after=False, by_step=True)
    >>> pieces.owner.tolist(), layout.starts.tolist(), layout.lengths.tolist(), layout.order.tolist()
    ([0, 0, 1], [0, 2, 1], [1, 2, 3], [2, 1, 0])
    """
    turn = -1 if by_step else 1
    n, steps = marks.shape[::turn]
    return _cut(
        marks,
        lambda flags: _Marked(data_ptr(flags), None, *stride(flags)[::turn], n, steps),
        n * steps,
        after,
        by_step,
    )


@outside_modes
def cut_ragged(
    marks: Tensor, offsets: Tensor, after: bool
) -> tuple[Pieces, Layout] | tuple[None, None] | None:
    """What `data.pieces.cut` and `Layout.ragged` give for sequences one after the other: see `cut_dense`.

    >>> marks = torch.tensor([False, True, False, True])
    >>> pieces, layout = cut_ragged(marks, torch.tensor([0, 3, 3, 4]), after=True)
    >>> pieces.owner.tolist(), layout.starts.tolist(), layout.lengths.tolist(), layout.order.tolist()
    ([0, 0, 1, 2, 2], [0, 2, 3, 3, 4], [2, 1, 0, 1, 0], [0, 1, 3, 2, 4])
    """
    rows, n, offsets = marks.shape[0], offsets.shape[0] - 1, contiguous(offsets)
    return _cut(
        marks,
        lambda flags: _Marked(data_ptr(flags), data_ptr(offsets), 0, stride(flags)[0], n, rows),
        rows,
        after,
        False,
    )


def _cut(
    marks: Tensor, marked_by: Callable[[Tensor], _Marked], rows: int, after: bool, by_step: bool
) -> tuple[Pieces, Layout] | tuple[None, None] | None:
    functions = _functions()
    if functions is None:
        return None
    asked = torch.is_grad_enabled()  # a gradient would want more
    while True:
        of = marked_by(marks)
        n, marked = of.sequences, functions.count(of)
        if not marked:
            return None, None
        count = n + marked
        sizes = [count + 1, count, count, count, count, n, n, of.steps + 1]
        if asked:
            sizes += count, rows
        table = empty(sum(sizes), dtype=torch.int64, device="cpu")
        longest = functions.write(of, after, by_step, asked, count, data_ptr(table))
        if longest >= 0:
            break
        marks = marks.clone()  # which no other thread writes to
    offsets, owner, starts, lengths, order, first, last, _, *more = split(table, sizes)
    by = n if by_step else 1
    known = {"order": order, "steps": longest, "is_packed": False}  # which they would compute
    layout = Layout(starts, lengths, by, rows)
    vars(layout).update(known)
    if asked:
        ends, before = more
        backward = Layout(ends, lengths, -by, rows)
        vars(backward).update(known, deals=layout.deals)
        vars(layout).update(backward=backward, before=before)
    return Pieces(offsets, first, last, owner), layout
