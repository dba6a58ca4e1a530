"""Steps that keep tensors in attributes from step to step, as libraries of spiking neurons do.

The first step runs as the plain loop runs it. What it leaves in the attributes is carried as state through
the others, which are compiled, and what is carried last is put there. That this is what the plain loop does
is tried once, on the first steps of a call: what a step changes is tensors with a row for each sequence, and
nothing that was made before it is changed in place.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from stepnet.compiler.reads.attributes import CarriesMore, Place, WithAttributes
from stepnet.compiler.reads.kinds import shows_attributes
from stepnet.compiler.reads.undo import Snapshot, is_only_thread, undone
from stepnet.compiler.trace.iteration import code_of, reached
from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import draws_put_back, nothing_around
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import Unsupported
from stepnet.executors.autograd import is_computed_again
from stepnet.executors.naive import PlainRun, State
from stepnet.executors.registry import AUTO
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .reads import FailsOnSamples, Reads
from .self_check import versions
from .trial import apart

_T = TypeVar("_T")
_TRIED = 3  # steps: that which may begin otherwise, one as all others, and one that is held against it
_LEAST = 12  # steps that are worth it, if they are small

# By what a step reads and is given: where it keeps tensors, as (which of the objects that a walk meets, the
# dict in it, the name); None if it changes anything else.
_Where = tuple[int, "str | None", str]
_known = Bounded[int, "tuple[_Where, ...] | None"](10_000)
# By a step's code: how often in a row what it read was new, as a number that changes at each call is. It is
# tried ever more rarely then.
_misses = Bounded[Any, int](10_000)
_MOST_MISSES = 12


def run_with_attributes(
    loop: Loop, feeds: Mapping[str, Any], reads: Reads, refusal: Unsupported, backend: str,
    run: Callable[..., dict[str, Any]],
) -> tuple[dict[str, Any], Unsupported | None] | None:  # fmt: skip
    """The outputs of a loop whose body keeps tensors in attributes, and why it ran by the plain loop, if it
    did. None: it is no such body, or its steps are not worth it.

    Args:
        loop, feeds, backend: as for `run`.
        reads: what the body reads.
        refusal: why it has no plan.
        run: runs the loop of another body by a plan.

    Raises:
        Unsupported: another backend than "auto" declines it; the attributes hold what they held.
    """
    places = _places(loop, feeds, reads)
    if not places:
        return None
    before = [place.value for place in places]
    plain, first = _begun(loop, feeds)
    if all(map(_is_held, [place.value for place in places])):
        try:
            rest = _others(loop, feeds, first, places, run, backend)
            return _joined(loop, plain.outputs(first), *rest), None
        except Unsupported as declined:
            if not isinstance(declined, FailsOnSamples):
                refusal = declined.fresh()
    if backend != AUTO:
        _put(places, before)
        raise refusal.fresh()
    plain = PlainRun(plain.loop, feeds)
    return plain.outputs(plain.advance(first)), refusal


def _begun(loop: Loop, feeds: Mapping[str, Any]) -> tuple[PlainRun, State]:
    """The plain loop after the first step, which is all that it is given."""
    start = dict(zip(loop.sources[0], _steps(loop, feeds, 0, 1), strict=True))
    plain = PlainRun(loop.around(code_of(loop).fresh()), {**feeds, **start})
    return plain, plain.advance(plain.begin())


def _steps(loop: Loop, feeds: Mapping[str, Any], first: int, count: int | None = None) -> list[Tensor]:
    """What is cut, for so many of the steps; None: for all others."""
    sweep, leaves = loop.sweep, [feeds[name] for name in loop.sources[0]]
    assert sweep is not None
    axis, steps = sweep.axis, leaves[0].shape[sweep.axis]
    count = steps - first if count is None else count
    start = steps - first - count if sweep.reverse else first
    return [leaf.narrow(axis, start, count) for leaf in leaves]


def _is_held(value: Any) -> bool:
    return type(value) is Tensor and value.dim() > 0 and value.layout is torch.strided


def _put(places: Sequence[Place], values: Sequence[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        place.put(value)


def _others(
    loop: Loop, feeds: Mapping[str, Any], first: State, places: Sequence[Place],
    run: Callable[..., dict[str, Any]], backend: str,
) -> tuple[Any, list[Tensor]]:  # fmt: skip
    """y and the last states of all steps but the first, by a plan."""
    own, given = _carrying(loop, _steps(loop, feeds, 1), first, places)
    out = run(own, given, backend=backend, warn=False)
    last = [out[name] for name, _ in own.finals]
    at, n = _body(loop).own_states, len(places)
    _put(places, last[at : at + n])
    return out["y"], [*last[:at], *last[at + n :]]


def _carrying(
    loop: Loop, x: list[Tensor], first: State, places: Sequence[Place]
) -> tuple[Loop, dict[str, Any]]:
    """The loop over steps that carries what stands in the attributes after the first, and what it is fed."""
    sweep = loop.sweep
    assert sweep is not None
    states = [first.values[port.parameter] for port in loop.merged]
    body, leaves = _with_attributes(_body(loop), states, places)
    return body.as_loop(x, leaves, reverse=sweep.reverse, level=-1, axis=sweep.axis)


def carrying(
    loop: Loop, feeds: Mapping[str, Any], reads: Reads
) -> tuple[Loop, dict[str, Any], list[str]] | None:
    """The loop that carries what a body keeps in attributes, over all steps; what it is fed; and the names of
    the attributes. None: such a loop is not run. What the first step changes is undone."""
    places = _places(loop, feeds, reads)
    if not places:
        return None

    def begun() -> tuple[Loop, dict[str, Any]] | None:
        first = _begun(loop, feeds)[1]
        held = all(map(_is_held, [place.value for place in places]))
        return _carrying(loop, _steps(loop, feeds, 0), first, places) if held else None

    found = _undone(loop, reads, begun)
    return None if found is None else (*found, [place.name for place in places])


def _with_attributes(
    body: CarriesMore, states: Sequence[Any], places: Sequence[Place]
) -> tuple[CarriesMore, list[Any]]:
    """The body that carries what is kept in attributes; all that is carried, with what stands there now."""
    held = tuple([place.value for place in places])
    return body.carrying(WithAttributes(body.name, body.step, places), states, held)


def _body(loop: Loop) -> CarriesMore:
    body: Any = code_of(loop)
    return body


def _joined(loop: Loop, first: Mapping[str, Any], y: Any, last: list[Tensor]) -> dict[str, Any]:
    """The outputs of a loop: those of the first step and of the others."""
    sweep = loop.sweep
    assert sweep is not None
    (port,) = loop.joined
    one, spec = flatten(first[port.output])
    others, _ = flatten(y)
    pairs = zip(others, one, strict=True) if sweep.reverse else zip(one, others, strict=True)
    whole = [torch.cat(pair, sweep.axis) for pair in pairs]
    return {port.output: unflatten(spec, whole)} | {name: last[place] for name, place in loop.finals}


def _places(loop: Loop, feeds: Mapping[str, Any], reads: Reads) -> list[Place] | None:
    """Where a body keeps tensors, if all that it changes is that, and its steps are worth it."""
    body, sweep = code_of(loop), loop.sweep
    if (
        not isinstance(body, CarriesMore)
        or sweep is None
        or sweep.level is not None
        or sweep.axis not in (0, 1)
    ):
        return None
    if is_computed_again() or not nothing_around() or reads.open is not None:
        return None
    if feeds[loop.sources[0][0]].shape[sweep.axis] < _LEAST:
        return None
    holders, like = reads.reach.holders, _like(loop, feeds, reads)
    if like not in _known:
        misses = _misses[reads.root] = _misses.get(reads.root, 0) + 1
        if misses > _MOST_MISSES and misses & (misses - 1):
            return None
        found = _found(loop, feeds, reads)
        if found is None and not is_only_thread():  # which may be for what others did
            return None
        _known[like] = found
    else:
        _misses.pop(reads.root, None)
    where = _known[like]
    if where is None:
        return None
    places = [Place(holders[at] if at < len(holders) else None, table, name) for at, table, name in where]
    if all(map(is_there, places)):
        return places
    del _known[like]
    return None


def _like(loop: Loop, feeds: Mapping[str, Any], reads: Reads) -> int:
    """What is the same for calls of which one tells what all change."""
    cut, carried, _ = loop.sources
    given = [(feeds[name], 2) for name in cut] + [(feeds[name], 1) for name in carried]
    looks = [(type(t), t.shape[rows:], t.dtype, t.requires_grad) for t, rows in given]
    return hash((reads.key, tuple(looks), torch.is_grad_enabled()))


def is_there(place: Place) -> bool:
    if type(place.owner) is dict:
        return place.table is None
    if not shows_attributes(type(place.owner)):
        return False
    own = object.__getattribute__(place.owner, "__dict__")
    return place.table is None or type(own.get(place.table)) is dict


def _found(loop: Loop, feeds: Mapping[str, Any], reads: Reads) -> tuple[_Where, ...] | None:
    """Where a body keeps tensors; None if it does anything else."""

    def tried() -> tuple[_Where, ...] | None:
        try:
            return _tried(loop, feeds, reads.reach.holders)
        except Exception as error:  # whatever it is, the plain loop meets it, too
            let_through(error)
            return None

    return _undone(loop, reads, tried)


def _undone(loop: Loop, reads: Reads, attempt: Callable[[], _T]) -> _T | None:
    """What an attempt gives; what it changes is undone. None where others change things, too."""

    def tried(snapshot: Snapshot) -> _T | None:
        if not len(snapshot):
            return None
        with apart(reads), draws_put_back():
            return attempt()

    return undone(reached(loop, everything=True).holders, reads.root, tried)[0]


def _tried(loop: Loop, feeds: Mapping[str, Any], holders: Sequence[Any]) -> tuple[_Where, ...] | None:
    """The same, by the first steps of a call."""
    sweep, (cut, carried, _) = loop.sweep, loop.sources
    assert sweep is not None
    own = dict(zip(cut, _copies(_steps(loop, feeds, 0, _TRIED)), strict=True))
    own |= zip(carried, _copies([feeds[name] for name in carried]), strict=True)
    plain = PlainRun(loop.around(code_of(loop).fresh()), own)
    before = plain.advance(plain.begin(), _TRIED - 1)
    reach = reached(loop, everything=True)
    snapshot, noise = Snapshot(reach.holders), torch.get_rng_state()
    made = flatten((before.values, before.results))[0]
    still = [*made, *own.values(), *reach.tensors]
    counts = versions(still)
    after = plain.advance(before, 1)
    changed = snapshot.items_changed()
    if not changed or counts != versions(still):
        return None
    where = [where_is(holder, name, holders) for holder, name, _ in changed]
    found = tuple([way for way in where if way is not None])
    if len(found) < len(where):
        return None
    places = [Place(holders[at], table, name) for at, table, name in found]
    last, held = [place.value for place in places], [held for *_, held in changed]
    n = own[cut[0]].shape[1 - sweep.axis]
    if not all(map(_is_alike, last, held)) or not all(t.dim() and t.shape[0] == n for t in held):
        return None
    _put(places, _copies(held))
    states = _copies([before.values[port.parameter] for port in loop.merged])
    again, leaves = _with_attributes(_body(loop), states, places)
    torch.set_rng_state(noise)
    at = 0 if sweep.reverse else _TRIED - 1
    y, *new = again(*(own[name].select(sweep.axis, at) for name in cut), *leaves)
    new_states, n = [after.values[port.parameter] for port in loop.merged], _body(loop).own_states
    wanted = [*flatten(after.results[loop.joined[0].result])[0], *new_states[:n], *last, *new_states[n:]]
    given = [*flatten(y)[0], *new]
    return found if len(given) == len(wanted) and all(map(same, given, wanted)) else None


def _copies(tensors: Sequence[Any]) -> list[Tensor]:
    grad = torch.is_grad_enabled()
    return [t.detach().clone().requires_grad_(grad and t.requires_grad) for t in tensors]


def _is_alike(a: Tensor, b: Tensor) -> bool:
    return (type(a), a.shape, a.dtype, a.requires_grad) == (type(b), b.shape, b.dtype, b.requires_grad)


def same(a: Tensor, b: Tensor) -> bool:
    return _is_alike(a, b) and torch.allclose(a, b, 0, 0, equal_nan=True)


def where_is(holder: dict[str, Any], name: str, holders: Sequence[Any]) -> _Where | None:
    """Which object keeps a tensor in a dict by a name."""
    for at, owner in enumerate(holders):
        if owner is holder:
            return at, None, name
        if isinstance(owner, (type, types.ModuleType)) or not shows_attributes(type(owner)):
            continue
        own = object.__getattribute__(owner, "__dict__")
        if own is holder:
            return at, None, name
        for table, held in own.items():
            if held is holder:
                return at, table, name
    return None
