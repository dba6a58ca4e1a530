"""Recurrences that start anew in the middle of their sequences: `recurrent(..., resets=...)`.

The rows between two resets are a sequence of their own, so they run side by side. Where the marks have no
numbers to cut by (a traced model, tensors without data) the loop looks at each mark instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .data.attributes import begins_by_itself
from .data.lod import LoDTensor
from .data.modes import beside, nothing_around, outside_modes, traced
from .data.offsets import LoD, short
from .data.pieces import Pieces, cut, marks_of, places, truths
from .data.tree import LEAF, Spec, by_leaf, flatten, rows_at, unflatten
from .data.unpatched_torch import from_numpy
from .data.values import unpacked
from .errors import LoDError, StepError
from .executors.c.pieces import cut_dense, cut_ragged
from .executors.layout import Layout
from .front.step import WithStatic, as_step, boot_state, check_rows_of, describe_leaf, step_name


@dataclass(frozen=True)
class Resets:
    """Where a recurrence starts anew, by the name that the marks have in their library, and from which state.

    Args:
        is_init: marks of first rows, as torchrl's: a marked row starts from the reset state.
        done: marks of last rows, as gym's: the row after a marked one does, and so does the next call if the
            last row is marked.
        state: the reset state, a row per sequence; None for the step's `initial_state(n)`, or where it has
            none, the state that the recurrence was given.

    Raises:
        StepError: not one of `is_init` and `done`.

    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[4]])
    >>> done = torch.tensor([False, True, False, True])
    >>> from stepnet import recurrent
    >>> y, total = recurrent(lambda x, s: (s + x, s + x), x, torch.zeros(1, 1), resets=Resets(done=done))
    >>> y.values.flatten().tolist(), total.tolist()
    ([1.0, 2.0, 1.0, 2.0], [[0.0]])
    """

    is_init: Any = None
    done: Any = None
    state: Any = None

    def __post_init__(self) -> None:
        if (self.is_init is None) == (self.done is None):
            raise StepError(
                "Resets takes marks of first rows or of last rows",
                got="neither" if self.is_init is None else "both",
                remedy="Resets(is_init=...) or Resets(done=...)",
            )

    @property
    def marks(self) -> Any:
        """The marks, whatever they mean."""
        return self.done if self.is_init is None else self.is_init


def as_resets(resets: Any) -> Resets:
    """Bare marks are those of first rows."""
    return resets if isinstance(resets, Resets) else Resets(is_init=resets)


def run_with_resets(
    run: Callable[..., Any],
    step: Any,
    x: Any,
    state: Any,
    resets: Any,
    *,
    reverse: bool,
    level: int,
    axis: int,
    scopes: bool,
    look: bool,
    in_place: Callable[..., tuple[Any, Any] | None] | None = None,
    **how: Any,
) -> tuple[Any, Any]:
    """y and the final state.

    Args:
        run: `recurrent` itself, called at most once: on the pieces, or with a step that looks at each mark.
        step, x, state, resets, reverse, level, axis, scopes, how: as in `recurrent`.
        look: whether the step is to look at each mark.
        in_place: runs a step on x, or on pieces of it where they lie, and gives None where it does not.

    Raises:
        StepError: the marks do not fit the rows of x, or the reset state does not fit the state.
    """
    if scopes:
        raise StepError(
            "scopes=True cannot be joined with resets=: the steps of pieces are not those of sequences",
            remedy="the scopes of recurrent(step, x.split_at(...)) are those of the pieces",
        )
    function = as_step(step)
    marks, reset_state, at_ends = resets, None, False
    if isinstance(resets, Resets):
        marks, reset_state, at_ends = resets.marks, resets.state, resets.is_init is None
    rows = _rows(x, level, axis)
    marks = rows.aligned(marks)
    given = None if state is None else _one_a_sequence(function, state, rows.n)
    begun = _Begun(function, rows.n, given, reset_state)
    as_it_is = unflatten(rows.spec, rows.leaves)
    flags = None if look or not rows.movable else _flags(marks)
    if flags is None:  # the step looks at each mark
        marked = _Marked(function, at_ends != reverse, how.pop("detach_every", None))
        fresh = _fresh(function, reset_state, begun.first, rows.n)
        start = (begun.first, fresh, marked.first(marks, rows.n))
        x_marked = (as_it_is, rows.beside(marks))
        y, (final, *_) = run(marked, x_marked, start, reverse=reverse, level=rows.level, axis=axis, **how)
        return y, final
    if rows.is_one_step:  # what is marked begins anew before its only row, or behind it
        count, before, start = int(flags.count_nonzero()), at_ends == reverse, begun.first
        if count and before and not begun.alike:
            start = begun.anew(flags, count, start)
        out = None if in_place is None else in_place(step, as_it_is, start, reverse=reverse, axis=axis, **how)
        if out is None:
            out = run(step, as_it_is, start, reverse=reverse, level=rows.level, axis=axis, **how)
        return (out[0], begun.anew(flags, count, out[1])) if count and not before else out
    pieces = rows.pieces(flags, at_ends)
    if pieces is None:  # no row is marked
        return run(step, as_it_is, begun.first, reverse=reverse, level=rows.level, axis=axis, **how)
    begin, end = (pieces.last, pieces.first) if reverse else (pieces.first, pieces.last)
    start = begun.of_pieces(pieces, begin)
    # where all end without a row, the last states are initial ones, and carry the gradient of those alone
    rowless = at_ends != reverse and torch.is_grad_enabled() and _are_rowless(pieces, end)
    laid = None if in_place is None else rows.laid(pieces, reverse)
    if laid is not None:
        assert in_place is not None
        out = in_place(step, rows.leaves[0], start, reverse=reverse, axis=rows.axis, pieces=laid, **how)
        if out is not None:
            return out[0], rows_at(start if rowless else out[1], end)
    y, final = run(step, rows.cut(pieces), start, reverse=reverse, level=0, **how)
    return rows.whole(y), rows_at(start if rowless else final, end)


class _Begun:
    """The states that the sequences of a call begin with, and begin anew with.

    Args:
        function: the step.
        n: how many sequences there are.
        given: their initial state; None: the step's own.
        reset_state: what they begin anew with; None: the same.
    """

    def __init__(self, function: Any, n: int, given: Any, reset_state: Any) -> None:
        self.function, self.n, self.given, self.reset_state = function, n, given, reset_state
        self.alike = given is None and reset_state is None  # each begins as the step says, first and anew

    @functools.cached_property
    def first(self) -> Any:
        """What each sequence begins with."""
        return boot_state(self.function, self.n) if self.given is None else self.given

    def anew(self, flags: Tensor, count: int, state: Any) -> Any:
        """The state, and where there are flags, so many, what begins anew."""
        return _begun_anew(flags, count, self.function, self.reset_state, self.first, state)

    def of_pieces(self, pieces: Any, begin: Tensor) -> Any:
        """What each piece begins with; `begin`: those that begin as their sequence does."""
        count = len(pieces.owner)
        if self.alike:
            return boot_state(self.function, count)
        if self.reset_state is self.first:
            return rows_at(self.first, pieces.owner)
        fresh = _fresh(self.function, self.reset_state, self.first, count, pieces.owner)
        return by_leaf(lambda new, old: new.index_copy(0, beside(begin, new), old), fresh, self.first)


def as_pieces(
    step: Any, x: Any, state: Any, resets: Any, *, reverse: bool, level: int, axis: int
) -> tuple[Any, Any, int]:
    """What a call with resets comes to, without running it: x cut into pieces, their initial states, the
    level whose elements are the steps.

    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[4]])
    >>> marks = torch.tensor([False, False, False, True])
    >>> how = {"reverse": False, "level": -1, "axis": 0}
    >>> pieces, state, level = as_pieces(lambda x, s: (x, s), x, torch.zeros(1, 1), marks, **how)
    >>> pieces.lengths(level).tolist(), state.tolist()
    ([3, 1], [[0.0], [0.0]])
    """
    calls: list[tuple[Any, Any, int]] = []

    def note(step: Any, x: Any, state: Any, *, level: int, **_: Any) -> tuple[Any, Any]:
        calls.append((x, state, level))
        return x, state

    run_with_resets(
        note, step, x, state, resets, reverse=reverse, level=level, axis=axis, scopes=False, look=False
    )
    return calls[0]


WHERE = "recurrent: 'resets'"


def _flags(marks: Tensor) -> Tensor | None:
    """`truths` of marks that are not traced."""
    if type(marks) is Tensor and marks.dtype is torch.bool and marks.is_cpu and nothing_around():
        return marks  # as they are when acting, a frame at each call
    return None if traced() else truths(marks)


class _Marked:
    """A step beside the marks of its rows, and its state beside the state that marked rows start from; and
    the number of the step in its episode, where gradients are cut off at every so many."""

    def __init__(self, step: Callable[..., Any], after: bool, detach_every: int | None) -> None:
        self.__name__ = step_name(step)
        self.step = step
        self.after = after
        self.detach_every = detach_every

    def first(self, marks: Tensor, n: int) -> tuple[Tensor, ...]:
        """The number of the first step, if numbers are of use."""
        return (torch.zeros(n, dtype=torch.int64, device=marks.device),) if self.detach_every else ()

    def __call__(self, x: Any, state: Any) -> tuple[Any, Any]:
        (x, marks), (state, fresh, at) = x, state
        if not self.after:
            state, at = self._renewed(state, fresh, at, marks)
        if at and self.detach_every:
            cut = (at[0] % self.detach_every == 0) & (at[0] > 0)
            own = state.state if isinstance(state, WithStatic) else state
            own = _where(cut, by_leaf(lambda leaf: leaf.detach(), own), own)
            state, at = WithStatic(own, state.static) if isinstance(state, WithStatic) else own, (at[0] + 1,)
        if isinstance(state, WithStatic):
            y, new = self.step(x, state.state, state.static)
            new = WithStatic(new, state.static)
        else:
            y, new = self.step(x, state)
        if self.after:
            new, at = self._renewed(new, fresh, at, marks)
        return y, (new, fresh, at)

    def _renewed(
        self, state: Any, fresh: Any, at: tuple[Tensor, ...], marks: Tensor
    ) -> tuple[Any, tuple[Tensor, ...]]:
        marked = marks != 0
        return _where(marked, fresh, state), tuple(torch.where(marked.reshape(-1), 0, n) for n in at)


def _where(rows: Tensor, new: Any, old: Any) -> Any:
    return by_leaf(functools.partial(_picked, rows), new, old)


def _picked(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (old.dim() - 1)), new, old)


def _begun_anew(
    flags: Tensor, count: int, step: Callable[..., Any], reset_state: Any, given: Any, state: Any
) -> Any:
    """The state of each sequence; of those that are marked, so many, the one that they start from."""
    n = flags.numel()
    fresh, static = _fresh(step, reset_state, given, n), None
    if isinstance(state, WithStatic):
        fresh, (state, static) = fresh.state, state
    if count == n:  # no gradient of the others reaches anything
        new = by_leaf(torch.clone, fresh)
    else:
        marked = flags.reshape(-1)
        new = by_leaf(lambda a, b: _picked(beside(marked, b), a, b), fresh, state)
    return new if static is None else WithStatic(new, static)


def _one_a_sequence(step: Callable[..., Any], state: Any, n: int) -> Any:
    for leaf in flatten(state)[0]:
        check_rows_of(f"state of step '{step_name(step)}'", leaf, n)
    return state


def _fresh(
    step: Callable[..., Any], reset_state: Any, given: Any, count: int, owner: Tensor | None = None
) -> Any:
    """The state that marked rows start from: of each sequence, or of each piece of the sequences `owner`."""
    if isinstance(given, WithStatic):
        static = given.static
        if owner is not None:
            static = rows_at(static, owner)
        return WithStatic(_fresh(step, reset_state, given.state, count, owner), static)
    if reset_state is None and begins_by_itself(step):
        fresh, owner = boot_state(step, count), None
    else:
        fresh = given if reset_state is None else reset_state
    one_tensor = owner is None and type(fresh) is type(given) is Tensor and given.dim()
    if one_tensor and fresh.shape == given.shape and fresh.dtype is given.dtype:
        return fresh
    (leaves, spec), (wanted, wanted_spec) = flatten(fresh), flatten(given)
    alike = spec == wanted_spec and all(map(_alike, leaves, wanted))
    if not alike or (reset_state is not None and any(map(_other_rows, leaves, wanted))):
        raise StepError(
            f"the reset state of step '{step_name(step)}' must be like its state",
            got=f"{spec}: {', '.join(map(describe_leaf, leaves))}",
            expected=f"{wanted_spec}: {', '.join(map(describe_leaf, wanted))}",
            remedy="Resets(..., state=...) takes a row per sequence, nested as the state",
        )
    if owner is not None:
        leaves = rows_at(leaves, owner)
    pairs = zip(leaves, wanted, strict=True)
    return unflatten(spec, [a if a.dtype is b.dtype else a.to(b.dtype) for a, b in pairs])


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 0 and a.shape[1:] == b.shape[1:]


def _other_rows(a: Tensor, b: Tensor) -> bool:
    return a.shape[0] != b.shape[0]  # not len, which a trace would take for a number that stays


def _rows(x: Any, level: int, axis: int) -> _Ragged | _Dense:
    if type(x) is Tensor:
        return _Dense([x], LEAF, axis)
    leaves, spec = unpacked(x)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, LoDTensor)) or isinstance(leaf, Tensor) != isinstance(
            leaves[0], Tensor
        ):
            raise StepError(
                "x must be tensors, or all LoDTensors, where it has resets",
                got=", ".join(map(describe_leaf, leaves)),
                remedy="LoDTensor.from_padded(tensor, lengths) makes the tensors ragged, too",
            )
    if not leaves:
        raise StepError(
            "x holds no tensor, so there are no steps", remedy="pass a tensor or a LoDTensor as x"
        )
    return _Dense(leaves, spec, axis) if isinstance(leaves[0], Tensor) else _Ragged(leaves, spec, level)


class _Ragged:
    """x of LoDTensors: what is cut are the sequences of one level."""

    movable, axis, is_one_step = True, 0, False

    def __init__(self, leaves: list[Any], spec: Spec, level: int) -> None:
        first = leaves[0]
        first.check_level(level, "recurrent: 'level'")
        self.leaves, self.spec = leaves, spec
        self.level = level % first.lod_level
        self.levels = first.structure.levels[: self.level + 1]
        for leaf in leaves[1:]:
            own = leaf.structure.levels
            if len(own) <= self.level or not _same(own[self.level], self.levels[-1]):
                raise LoDError(
                    "two inputs of recurrent must have sequences of the same lengths",
                    got=f"lengths {first.structure.show()} and {leaf.structure.show()}",
                    remedy="stepnet.sequence_expand(t, x) repeats one entry per sequence to the rows of x",
                )
        self.offsets = self.levels[-1]
        below = first.structure.levels[self.level + 1 :]
        self.n, self.count = len(self.offsets) - 1, len(below[0]) - 1 if below else first.structure.rows
        self._layout: Layout | None = None

    def aligned(self, marks: Any) -> Tensor:
        """The marks, a value per element of the level."""
        if isinstance(marks, PackedSequence):
            marks = LoDTensor.from_packed(marks)
        if not isinstance(marks, LoDTensor):
            return marks_of(marks, [(self.count,), (self.count, 1)], WHERE)
        if not _same(marks.structure.levels[-1], self.offsets):
            raise LoDError(
                f"{WHERE} must have sequences of the lengths that x has",
                got=f"lengths {marks.structure.show()}",
                expected=f"lengths {short(self.offsets.diff())}",
            )
        count = marks.values.shape[0]  # that of x: but a trace has a symbol for each
        return marks_of(marks.values, [(count,), (count, 1)], WHERE)

    def beside(self, marks: Tensor) -> LoDTensor:
        """The marks as a second input."""
        return LoDTensor.of(marks, LoD.trusted(self.levels, self.count))

    def pieces(self, flags: Tensor, after: bool) -> Pieces | None:
        """The sequences cut at `truths`; None where none of those holds. Where there is a C compiler, their
        layout is made at once."""
        made = cut_ragged(flags, self.offsets, after)
        if made is None:
            return _cut(self.offsets, flags, after)
        pieces, self._layout = made
        return pieces

    def cut(self, pieces: Pieces) -> Any:
        """x with the pieces as its sequences."""
        return unflatten(self.spec, [_above(leaf, (pieces.offsets,), self.level + 1) for leaf in self.leaves])

    def laid(self, pieces: Pieces, reverse: bool) -> Layout | None:
        """Where the rows of the pieces stand, if x is one table whose sequences hold a row for each step."""
        if self.spec is not LEAF or self.leaves[0].lod_level != self.level + 1:
            return None
        layout = self._layout or Layout.ragged(pieces.offsets, False)
        return layout.backward if reverse else layout

    def whole(self, y: Any) -> Any:
        """y with the sequences of x."""
        return by_leaf(lambda leaf: _above(leaf, self.levels, 1), y)


@outside_modes
def _are_rowless(pieces: Pieces, which: Tensor) -> bool:
    offsets, places = pieces.offsets.numpy(), which.numpy()
    return bool((offsets[places] == offsets[places + 1]).all())


def _cut(offsets: Tensor, flags: Tensor, after: bool) -> Pieces | None:
    marked = places(flags)
    return cut(offsets, marked, after) if len(marked) else None


@outside_modes
def _same(offsets: Tensor, others: Tensor) -> bool:
    return offsets is others or torch.equal(offsets, others)


def _above(x: LoDTensor, levels: tuple[Tensor, ...], level: int) -> Any:
    """x with other levels above `level`."""
    return LoDTensor.of(x.values, LoD.trusted((*levels, *x.structure.levels[level:]), x.structure.rows))


class _Dense:
    """x of tensors, time along an axis: the rows of a sequence are moved side by side to be cut."""

    level = -1

    def __init__(self, leaves: list[Any], spec: Spec, axis: int) -> None:
        self.leaves, self.spec = leaves, spec
        first = leaves[0]
        if not -first.dim() <= axis < first.dim():
            raise StepError(
                f"x has no dimension {axis} to step along",
                got=describe_leaf(first),
                expected=f"axis={-first.dim()} to {first.dim() - 1}" if first.dim() else "[time, batch, ...]",
            )
        self.axis, self.steps = axis % first.dim(), first.shape[axis]
        self.n = first.shape[0 if self.axis else 1] if first.dim() > 1 else 1
        self.movable = all(leaf.dim() > 1 for leaf in leaves)
        self._layout: Layout | None = None

    @property
    def is_one_step(self) -> bool:
        """Whether there is nothing to cut; not to be asked of a trace, which keeps sizes open."""
        return self.steps == 1

    @property
    def offsets(self) -> Tensor:
        """Of the sequences, all as long: made where they are cut, since a trace keeps sizes open."""
        return from_numpy(np.arange(self.n + 1) * self.steps)

    def aligned(self, marks: Any) -> Tensor:
        """The marks as [sequences, steps], or as [steps, sequences] where x has the steps first."""
        size = (self.n, self.steps) if self.axis else (self.steps, self.n)
        if type(marks) is not Tensor or marks.shape != size or marks.layout is not torch.strided:
            marks = marks_of(marks, [size, (*size, 1), *([(self.steps,)] if self.n == 1 else [])], WHERE)
            marks = marks if marks.dim() == 2 else marks.reshape(size)
        return marks

    def beside(self, marks: Tensor) -> Tensor:
        """The marks as a second input."""
        return marks.reshape(self.n, *(1,) * (self.axis - 1), self.steps) if self.axis else marks

    def pieces(self, flags: Tensor, after: bool) -> Pieces | None:
        """As of ragged sequences."""
        made = cut_dense(flags, after, self.axis == 0)
        if made is None:
            return _cut(self.offsets, flags if self.axis else flags.t(), after)
        pieces, self._layout = made
        return pieces

    def cut(self, pieces: Pieces) -> Any:
        """x as rows, with the pieces as its sequences."""
        lod = LoD.trusted((pieces.offsets,), self.n * self.steps)
        tables = [self._turned(leaf) for leaf in self.leaves]
        for table, leaf in zip(tables, self.leaves, strict=True):
            if tuple(table.shape[:2]) != (self.n, self.steps):
                raise StepError(
                    "all tensors of x must have as many steps and sequences, where it has resets",
                    got=describe_leaf(leaf),
                    expected=f"{self.steps} steps of {self.n}, as in {describe_leaf(self.leaves[0])}",
                )
        return unflatten(self.spec, [LoDTensor.of(table.flatten(0, 1), lod) for table in tables])

    def laid(self, pieces: Pieces, reverse: bool) -> Layout | None:
        """Where the rows of the pieces stand, if x is one tensor that holds a row for each step."""
        if self.spec is not LEAF or self.axis > 1:
            return None
        if self._layout is not None:
            return self._layout.backward if reverse else self._layout
        return Layout.pieces(pieces.offsets, pieces.owner, self.steps, self.n, self.axis == 0, reverse)

    def whole(self, y: Any) -> Any:
        """y as tensors along the axis."""
        size = (self.n, self.steps)
        turn = self._turned if self.axis == 0 else lambda leaf: leaf.movedim(1, self.axis)
        return by_leaf(lambda leaf: turn(leaf.values.view(*size, *leaf.values.shape[1:])), y)

    def _turned(self, leaf: Tensor) -> Tensor:
        """A tensor with the axis second."""
        return leaf.transpose(0, 1) if self.axis == 0 else leaf.movedim(self.axis, 1)
