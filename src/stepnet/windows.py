"""Long recurrences in windows: `recurrent(..., checkpoint=, detach_every=)`.

All sequences are cut into windows of k steps, and the recurrence runs window after window. With `checkpoint`,
what backward needs of a window is computed again when it gets there, from the state that it began with; of
the last one, where backward begins, it is kept. With `detach_every`, no gradient goes from a window to the
one before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .data.arguments import brief
from .data.lod import LoDTensor
from .data.modes import traced, transformed
from .data.offsets import LoD
from .data.tree import by_leaf, flatten, rows_at, unflatten
from .data.windows import Between, Copied, Joined, Standing, Windows, taken, windows
from .errors import StepError
from .executors.autograd import computed_again
from .front.step import WithStatic, as_step, boot_state, describe_leaf

_MOST = 1 << 21  # numbers of states in a window, if it is longer than half the root: caches hold its tables
_MANY = 32  # windows, from which they are half as large: the last, which is run once, is no large part of all
_LEAST = 1 << 14  # rows of a window, unless that is too many: with fewer, beginning one costs too much
_COUNT = 128  # windows, unless they have too few rows or too many numbers


def check_windows(checkpoint: Any, detach_every: Any, scopes: bool) -> None:
    """Refuse what says no number of steps.

    Raises:
        StepError: it is none.
    """
    for name, value in {"checkpoint": checkpoint, "detach_every": detach_every}.items():
        none = value is None or value is False or (value is True and name == "checkpoint")
        if not none and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            other = "None, True, or" if name == "checkpoint" else "None or"
            raise StepError(f"recurrent: '{name}' must be {other} a number of steps from 1", got=brief(value))
    if scopes and (checkpoint or detach_every):
        raise StepError(
            "scopes=True cannot be joined with checkpoint= or detach_every=: they keep steps, and drop them",
            remedy="call it without scopes=, or return from the step what its scopes would show",
        )


def run_in_windows(
    run: Callable[..., Any],
    step: Any,
    x: Any,
    state: Any,
    *,
    checkpoint: int | bool | None,
    detach_every: int | None,
    level: int,
    axis: int,
    reverse: bool,
    **how: Any,
) -> tuple[Any, Any]:
    """`run` is `recurrent` itself: called on window after window; or on all at once, where no gradient is
    recorded, or torch lets nothing be computed again (torch.func, forward mode, a trace).

    Raises:
        StepError: x mixes tensors and LoDTensors.
    """
    how |= {"axis": axis, "reverse": reverse}
    again = not detach_every
    if not torch.is_grad_enabled() or (again and (transformed() or traced())):
        return run(step, x, state, level=level, **how)
    if detach_every:
        how["checkpoint"] = checkpoint
    leaves, spec = flatten(x)
    cuts = _cuts(leaves, level, axis, reverse)
    if cuts is None:
        return run(step, x, state, level=level, **how)
    function = as_step(step)
    state = boot_state(function, cuts.n) if state is None else state
    size = detach_every or _size(checkpoint, cuts, state)
    if cuts.longest <= size:
        return run(step, x, state, level=level, **how)

    spare: dict[str, Tensor] = {}

    def window(
        own: list[Any], before: Any, places: Sequence[Tensor | None], copied: Sequence[Copied],
        made: list[Standing],
    ) -> tuple[Any, Any]:  # fmt: skip
        return run(function, unflatten(spec, own), before, level=0, **how)

    def lone(
        own: list[Any], before: Any, places: Sequence[Tensor | None], copied: Sequence[Copied],
        made: list[Standing],
    ) -> tuple[Any, Any]:  # fmt: skip
        with computed_again(places, spare, copied, made):
            return window(own, before, places, copied, made)

    return cuts.run(size, lone if again else window, window, state, again)


Window = Callable[
    [list[Any], Any, Sequence["Tensor | None"], Sequence[Copied], list[Standing]], "tuple[Any, Any]"
]


def _size(checkpoint: int | bool | None, cuts: _Ragged | _Dense, state: Any) -> int:
    longest = cuts.longest
    if checkpoint is not True:
        return int(checkpoint or longest)
    numbers = sum(leaf.numel() for leaf in flatten(state)[0] if isinstance(leaf, Tensor))
    enough = max(_LEAST // max(cuts.n, 1), longest // _COUNT)
    most = _MOST // max(numbers, 1)
    most = most // 2 if longest > _MANY * most else most
    return max(math.isqrt(longest) // 2, min(enough, most), 1)


def _first(longest: int, size: int) -> int:
    """The steps of the first window, so that the last, which is kept, is a whole one."""
    return longest % size or size


def _detached(state: Any) -> Any:
    if isinstance(state, WithStatic):
        return WithStatic(_detached(state.state), state.static)
    return by_leaf(lambda leaf: leaf.detach(), state)


def _put(between: Between, state: Any) -> Any:
    if isinstance(state, WithStatic):
        return WithStatic(_put(between, state.state), state.static)
    leaves, spec = flatten(state)
    return unflatten(spec, between.put(leaves))


def _cuts(leaves: list[Any], level: int, axis: int, reverse: bool) -> _Ragged | _Dense | None:
    """How to cut x; None where its leaves do not fit, which `recurrent` tells."""
    ragged = [leaf for leaf in leaves if isinstance(leaf, LoDTensor)]
    if ragged:
        if len(ragged) < len(leaves):
            raise StepError(
                "x must be tensors, or all LoDTensors, where it runs in windows",
                got=", ".join(map(describe_leaf, leaves)),
                remedy="LoDTensor.from_padded(tensor, lengths) makes the tensors ragged, too",
            )
        if not all(-leaf.lod_level <= level < leaf.lod_level for leaf in leaves):
            return None
        first = ragged[0].structure.levels
        levels = first[: level % len(first) + 1]
        below = [leaf.drop_levels(level % leaf.lod_level) for leaf in ragged]
        if not all(torch.equal(leaf.structure.levels[0], levels[-1]) for leaf in below):
            return None
        return _Ragged(below, levels, reverse)
    if not leaves or not all(
        isinstance(leaf, Tensor) and -leaf.dim() <= axis < leaf.dim() and leaf.layout is torch.strided
        for leaf in leaves
    ):
        return None
    if len({leaf.shape[axis] for leaf in leaves}) > 1:
        return None
    return _Dense(leaves, axis, reverse)


class _Dense:
    """x of tensors, cut along the axis of time."""

    def __init__(self, leaves: list[Tensor], axis: int, reverse: bool) -> None:
        self.leaves, self.axis, self.reverse = leaves, axis, reverse
        first = leaves[0]
        self.longest = first.shape[axis]
        rest = [size for k, size in enumerate(first.shape) if k != axis % first.dim()]
        self.n = rest[0] if rest else 1

    def run(self, size: int, window: Window, last: Window, state: Any, again: bool) -> tuple[Any, Any]:
        """Run `window` on each window in turn, but `last` on the last; the results as those of one run.
        `again`: gradients go from window to window, and `window` keeps nothing of its steps."""
        first = _first(self.longest, size) if again else size
        after, short = divmod(self.longest - first, size)
        sizes = [first, *[size] * after, *[short] * bool(short)]
        sizes = sizes[::-1] if self.reverse else sizes
        count, ys = len(sizes), _Results(self.longest, self.axis, lean=again)
        between = Between((count - 1) * self.n)
        places = [*zip(itertools.accumulate([0, *sizes[:-1]]), sizes, strict=True)]
        places = places[::-1] if self.reverse else places
        parts = zip(*(taken(leaf, self.axis, places) for leaf in self.leaves), strict=True)
        for k, (own, place) in enumerate(zip(parts, places, strict=True), 1):
            if k > 1:
                state = _put(between, state) if again else _detached(state)
            run = last if k == count else window
            y, state = run([*own], state, ys.room(place), (), made := [])
            ys.add(y, place, made)
        return ys.whole(lambda leaves: torch.cat(leaves[::-1] if self.reverse else leaves, self.axis)), state


class _Ragged:
    """x of LoDTensors, cut along the sequences of one level; `levels` are those down to it."""

    def __init__(self, leaves: list[LoDTensor], levels: tuple[Tensor, ...], reverse: bool) -> None:
        self.leaves, self.levels, self.reverse = leaves, levels, reverse
        self.n = len(levels[-1]) - 1
        self.longest = int(levels[-1].diff().max()) if self.n else 0

    def run(self, size: int, window: Window, last: Window, state: Any, again: bool) -> tuple[Any, Any]:
        """Run each window in turn; the results as those of one run. See `_Dense.run`."""
        cut = windows(self.levels[-1], size, self.reverse, _first(self.longest, size) if again else size)
        places = cut.places()
        parts = zip(*(cut.cut(leaf, places) for leaf in self.leaves), strict=True)
        before, ended = cut.sequences[0], []
        ys = _Results(int(self.levels[-1][-1]), 0, lean=again)
        between = Between(sum(map(len, cut.sequences[1:])))
        for k, (own, part, place) in enumerate(zip(cut.sequences, parts, places, strict=True), 1):
            if len(own) < len(before):
                goes_on = torch.isin(before, own)
                stays, ends = (kept.nonzero()[:, 0] for kept in (goes_on, ~goes_on))
                ended.append((before[ends], rows_at(state, ends)))
                state = rows_at(state, stays)
            if k > 1:
                state = _put(between, state) if again else _detached(state)
            run = last if k == len(cut.sequences) else window
            copied = [each for _, each in part if each is not None]
            y, state = run([own for own, _ in part], state, ys.room(place), copied, made := [])
            ys.add(y, place, made)
            before = own
        ended.append((before, state))
        y = ys.whole(lambda leaves: self._whole(cut, leaves), self._of_rows)
        if len(ended) == 1:
            return y, state
        order = torch.cat([sequences for sequences, _ in ended]).argsort()
        return y, rows_at(by_leaf(lambda *leaves: torch.cat(leaves), *(states for _, states in ended)), order)

    def _of_rows(self, rows: Tensor) -> LoDTensor:
        return LoDTensor.of(rows, LoD.trusted(self.levels, len(rows)))

    def _whole(self, cut: Windows, leaves: list[LoDTensor]) -> LoDTensor:
        y = cut.join(leaves, self.levels[-1])
        return LoDTensor.of(y.values, LoD.trusted((*self.levels[:-1], *y.structure.levels), y.structure.rows))


class _Results:
    """The results of all windows, joined leaf by leaf: `lean`, each when it is made, where nothing else keeps
    it; or all at the end."""

    def __init__(self, size: int, axis: int, lean: bool) -> None:
        self.size, self.axis, self.lean = size, axis, lean
        self.trees: list[Any] = []
        self.joined: list[Joined] = []
        self.spec: Any = None

    def room(self, place: Any) -> list[Tensor | None]:
        """Memory where the results of a window may be made."""
        return [joined.room(place) for joined in self.joined]

    def add(self, y: Any, place: Any, made: Sequence[Standing]) -> None:
        """Take up the results of a window, which stand in these places. `made`: by its runs."""
        leaves, self.spec = flatten(y)
        self.lean &= all(not isinstance(leaf, LoDTensor) or leaf.lod_level == 1 for leaf in leaves)
        if not self.lean:
            self.trees.append(y)
            return
        self.joined = self.joined or [Joined(self.size, self.axis) for _ in leaves]
        for joined, leaf in zip(self.joined, leaves, strict=True):
            joined.add(leaf.values if isinstance(leaf, LoDTensor) else leaf, place, made)

    def whole(
        self, join: Callable[[list[Any]], Any], of_rows: Callable[[Tensor], Any] = lambda rows: rows
    ) -> Any:
        """The results of one run: what `join` makes of the windows of each leaf, or `of_rows` of its rows."""
        if not self.lean:
            return by_leaf(lambda *parts: join(list(parts)), *self.trees)
        return unflatten(self.spec, [of_rows(joined.whole()) for joined in self.joined])
