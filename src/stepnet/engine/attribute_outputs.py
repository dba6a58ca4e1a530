"""Steps that leave values in attributes without reading them, as an auxiliary loss or the last attention, and
that count.

All steps but the last are compiled, for what they leave is gone by the end. The last runs as the plain loop
runs it, on the sequences that take it: so what it leaves, of whatever rows, and its gradient, is what the
plain loop leaves. That a step reads nothing of what it leaves is seen as it is traced
(`compiler.reads.attributes`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.reads.attributes import CarriesMore, LeavesValues, Place, WithAttributes
from stepnet.compiler.reads.kinds import MISSING, passed_by
from stepnet.compiler.reads.undo import Snapshot, is_only_thread, undone
from stepnet.compiler.trace.iteration import code_of, iteration, reached
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import draws_put_back, nothing_around, sees_saved_tensors
from stepnet.data.recording import LeftByRuns
from stepnet.data.tree import flatten, unflatten
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.executors.autograd import is_computed_again
from stepnet.executors.registry import AUTO
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .attribute_states import is_there, same, where_is
from .reads import Reads, but_for_counts, looks_of_rows
from .rows import Sequences, samples
from .self_check import versions
from .trial import apart

_LEAST = 12  # steps that are worth it
_Cut = Callable[[LoDTensor], LoDTensor]


class _Left(NamedTuple):
    """Where a step leaves values, and by how much it counts there."""

    where: tuple[tuple[int, str | None, str], ...]
    counts: tuple[int | None, ...]


# By what a step reads, but for what it counts: where it leaves values. None: it changes anything else.
_known = Bounded[int, "_Left | None"](10_000)
_proved = Bounded[int, bool](10_000)  # by all that it reads but for that, and what stands there


def run_and_leave(
    loop: Loop, feeds: Mapping[str, Any], reads: Reads, sequences: Sequences, backend: str,
    run: Callable[..., dict[str, Any]],
) -> dict[str, Any] | None:  # fmt: skip
    """The outputs of a loop whose body leaves values in attributes; None: it is no such body, its steps are
    not worth it, or no executor of the backend takes it.

    Args:
        loop, feeds, backend: as for `run`.
        reads, sequences: what the body reads, and the rows.
        run: runs the loop of another body by a plan.
    """
    found = leaving(loop, reads, sequences, _LEAST if backend == AUTO else 2)
    if found is None:
        return None
    step, others = found
    places = step.places()
    before = [place.held for place in places]
    ways = _Ways(loop, feeds)
    try:
        out = run(others, ways.others, backend=backend, warn=False)
        for place, count in zip(places, step.counts, strict=True):
            if count is not None:
                place.put(_held(place) + count * (ways.steps - 1))
        states = {source: out[name] for source, (name, _) in zip(loop.sources[1], others.finals, strict=True)}
        last = naive.run(loop.around(code_of(loop).fresh()), {**ways.last, **states})
    except Exception as error:  # the plain loop leaves what the steps before it left
        let_through(error)
        for place, held in zip(places, before, strict=True):
            place.put(held)
        return None if isinstance(error, Unsupported) else naive.run(loop, feeds)
    (port,) = loop.joined
    parts, spec = flatten(last[port.output])
    joined = map(ways.joined, flatten(out[port.output])[0], parts)
    return {**last, port.output: unflatten(spec, list(joined))}


def leaving(
    loop: Loop, reads: Reads, sequences: Sequences, least: int = _LEAST
) -> tuple[LeavesValues, Loop] | None:
    """What `without_leaving` gives; None: it is no such body, or its steps, fewer than `least`, are not worth
    it, or what is around the call is to see each of them."""
    if len(sequences.layout.active) < least or is_computed_again() or not nothing_around():
        return None
    if not is_only_thread():  # for others to meet what stands there meanwhile
        return None
    if sees_saved_tensors():  # torch's checkpoint ends its second run by an exception, wherever that is then
        return None
    return without_leaving(loop, reads, sequences)


def without_leaving(loop: Loop, reads: Reads, sequences: Sequences) -> tuple[LeavesValues, Loop] | None:
    """The step that leaves nothing, of a body that leaves values in attributes, and its loop; None: it is no
    such body."""
    body = code_of(loop)
    if not isinstance(body, CarriesMore) or isinstance(body.step, WithAttributes):
        return None
    if loop.sweep is None or len(loop.joined) != 1 or reads.open is not None:
        return None
    looks = looks_of_rows(sequences.x_rows), looks_of_rows(sequences.states), torch.is_grad_enabled()
    like = hash((but_for_counts(reads.reach), looks))
    if like not in _known:
        _known[like] = _found(loop, reads, sequences)
    left, holders = _known[like], reads.reach.holders
    if left is None:
        return None
    places = [
        Place(holders[at] if at < len(holders) else None, table, name) for at, table, name in left.where
    ]
    if not all(map(is_there, places)):
        del _known[like]
        return None
    names = reads.reach.names
    if any(isinstance(p.owner, LeftByRuns) and not passed_by(p.owner, names) for p in places):
        return None
    if any(
        n is not None and type(_held(place)) is not int for n, place in zip(left.counts, places, strict=True)
    ):
        return None
    step = LeavesValues(body.name, body.step, places, left.counts)
    others = loop.around(body.over(step))
    stand = tuple([type(_held(place)) for place in places])
    proof = hash((reached(others).key, looks, stand))
    if proof not in _proved:
        _proved[proof] = _found(loop, reads, sequences) == left
    return (step, others) if _proved[proof] else None


def _held(place: Place) -> Any:
    """What code finds at a place: of an attribute that is not set yet, that of the class."""
    if place.table is None and type(place.owner) is not dict:
        return inspect.getattr_static(place.owner, place.name, MISSING)
    return place.held


def _found(loop: Loop, reads: Reads, sequences: Sequences) -> _Left | None:
    """Where a body leaves values; None if it changes anything else, or reads them. Leaves no trace."""

    def tried(snapshot: Snapshot) -> _Left | None:
        with apart(reads), draws_put_back():
            try:
                return _tried(loop, sequences, reads.reach.holders, snapshot)
            except Exception as error:  # whatever it is, the plain loop meets it, too
                let_through(error)
                return None

    return undone(reached(loop, everything=True).holders, reads.root, tried)[0]


def _tried(loop: Loop, sequences: Sequences, holders: Sequence[Any], snapshot: Snapshot) -> _Left | None:
    body: Any = code_of(loop)
    noise = torch.get_rng_state()

    def step(of: Loop, x: Any, states: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
        torch.set_rng_state(noise)
        return iteration(of, x, states, sequences.shared)

    def given(rows: int) -> tuple[list[Tensor], list[Tensor]]:
        return samples(sequences.x_rows, rows), samples(sequences.states, rows)

    x, states = given(ROWS)
    first = step(loop, x, states)
    changed = snapshot.names_set()
    where = [where_is(holder, name, holders) for holder, name, _ in changed or ()]
    found = tuple([way for way in where if way is not None])
    if not changed or len(found) < len(changed):
        return None
    places = [Place(holders[at], table, name) for at, table, name in found]
    held = [place.value for place in places]
    written = [*x, *states, *first[1], *first[2]]
    before = versions(written)
    second = step(loop, x, first[2])  # it may ask whether what it left is the state that it is given
    counts = [
        (place.value - value) or None if type(value) is int and type(place.value) is int else None
        for place, value in zip(places, held, strict=True)
    ]
    now = snapshot.names_set()
    if now is None or not {(id(d), name) for d, name, _ in now} <= {(id(d), name) for d, name, _ in changed}:
        return None
    for place, value in zip(places, held, strict=True):
        place.put(value)
    between = Snapshot([place.holder for place in places])
    others = loop.around(body.over(LeavesValues(body.name, body.step, places, counts)))
    for wanted, carried in ((first, states), (second, first[2])):
        spec, *values = step(others, x, carried)
        pairs = list(zip([*values[0], *values[1]], [*wanted[1], *wanted[2]], strict=True))
        if spec != wanted[0] or not all(same(a, b) for a, b in pairs):
            return None
    step(others, *given(ROWS + 1))  # which refuses what counts rows
    return None if between.changed() or before != versions(written) else _Left(found, tuple(counts))


class _Ways:
    """What a loop is fed, as all steps but the last, and as the last, of the sequences that take it."""

    def __init__(self, loop: Loop, feeds: Mapping[str, Any]) -> None:
        assert loop.sweep is not None
        self._sweep = loop.sweep
        cut = {name: feeds[name] for name in loop.sources[0]}
        self._like = next(iter(cut.values()))
        if isinstance(self._like, LoDTensor):
            others, last = self._rows(self._like)
            parts = {name: (others(x), last(x)) for name, x in cut.items()}
        else:
            axis = self._sweep.axis
            self.steps = self._like.shape[axis]
            rest, end = (1, 0) if self._sweep.reverse else (0, self.steps - 1)
            spans = (rest, self.steps - 1), (end, 1)
            parts = {name: [x.narrow(axis, *span) for span in spans] for name, x in cut.items()}
        self.others = {**feeds, **{name: part for name, (part, _) in parts.items()}}
        self.last = {**feeds, **{name: part for name, (_, part) in parts.items()}}

    def _rows(self, x: LoDTensor) -> tuple[_Cut, _Cut]:
        ends = x.lod[-1].numpy()
        lengths = np.diff(ends)
        self.steps = int(lengths.max())
        longest = lengths == self.steps
        at = (ends[:-1] if self._sweep.reverse else ends[1:] - 1)[longest]
        kept = np.ones(ends[-1], bool)
        kept[at] = False
        rest = np.flatnonzero(kept)
        self._order = from_numpy(np.argsort(np.concatenate([rest, at])))

        def cut(rows: Any, counts: Any) -> _Cut:
            index, offsets = from_numpy(rows), from_numpy(np.concatenate([[0], np.cumsum(counts)]))
            return lambda x: LoDTensor(x.values[index], [*x.lod[:-1], offsets])

        return cut(rest, lengths - longest), cut(at, longest)

    def joined(self, others: Any, last: Any) -> Any:
        """One result of all steps."""
        if isinstance(self._like, LoDTensor):
            return self._like.with_values(torch.cat([others.values, last.values])[self._order])
        return torch.cat((last, others) if self._sweep.reverse else (others, last), self._sweep.axis)
