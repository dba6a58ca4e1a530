"""Lines of small calls in a function of noted calls, run as one each from when that pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from stepnet.data.modes import nothing_around
from stepnet.engine.rounding import close
from stepnet.errors import Unsupported
from stepnet.executors.line import Memory, Otherwise, Place, places_in
from stepnet.executors.registry import tried
from stepnet.executors.setting import check_backend

from .call_lowering import Lowering
from .calls import Call, Slot, function_of, slots_in
from .short_cells import FewSteps

_LEAST = 6  # calls besides views, of fewer it is not worth to build anything
_LOOSE = 1e-3  # by how much numbers may differ that are added up in another order


class Stepping:
    """A node that runs a cell over a few steps, which a line may take in.

    Args:
        run: the node.
        steps: what it does.
        results: of a run, which all others are to be laid out as.
    """

    def __init__(
        self, run: Callable[[Sequence[Any]], Sequence[Any]], steps: FewSteps, results: Sequence[Tensor]
    ) -> None:
        self.run, self.steps = run, steps
        self._strides = [result.stride() for result in results]

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """What the node gives."""
        return [*map(_as_laid, self.run(arguments), self._strides)]


def _as_laid(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    if value.stride() == strides and not value.storage_offset():
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


class Lined:
    """A function of noted calls.

    At first all are called one by one. Then lines of them are made one call by the first executor that has a
    way to do so; what they give is held against the calls once.

    Args:
        calls: those.
        parameters: the slots of what it is given.
        outputs: slots, or tensors that are the same in all calls.
        places: of slots, where that is the same in all calls.
        after: after how many calls it tries to build lines.
    """

    def __init__(
        self, calls: Sequence[Call], parameters: Sequence[int], outputs: Sequence[int | Tensor],
        places: Mapping[int, Place], after: int,
    ) -> None:  # fmt: skip
        self._plain = function_of(calls, parameters, outputs)
        self._rest: Any = calls, parameters, outputs, places
        self._left = after
        self._fast: Callable[..., Any] | None = None
        self._executors: Any = None

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The outputs.

        Raises:
            Otherwise: a branch is another than the one that it takes.
        """
        fast = self._fast
        if fast is not None and self._executors is tried(check_backend(None)) and nothing_around():
            return fast(*values)
        out = self._plain(*values)
        if self._rest is not None and nothing_around():
            self._left -= 1
            if self._left < 0:
                self._build(values, out)
        return out

    def settled(self) -> tuple[Callable[..., Any], Any] | None:
        """What runs it from now on where nothing is around, and the executors that are to be tried for that,
        if it depends on them; None: it is not known yet."""
        if self._fast is not None:
            return self._fast, self._executors
        return (self, None) if self._rest is None else None

    def _build(self, values: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """Make its lines, and keep them if they give what the calls gave."""
        executors, rest = tried(check_backend(None)), self._rest
        if rest is None or not executors:
            return
        self._rest = None
        calls, parameters, outputs, places = rest
        try:
            shorter = _with_lines(calls, [v for v in outputs if isinstance(v, int)], places, executors)
        except Unsupported:  # torch goes on to do it
            return
        if len(shorter) == len(calls) and all(map(is_, shorter, calls)):
            return
        fast = function_of(shorter, parameters, outputs)
        try:
            found = fast(*values)
        except Otherwise:
            return
        if all(map(_is_as, found, out)):
            self._executors, self._fast = executors, fast


def _is_as(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
        return False
    return close(a, b, _LOOSE) if a.is_floating_point() else torch.equal(a, b)


def _with_lines(
    calls: Sequence[Call], outputs: Sequence[int], places: Mapping[int, Place], executors: Sequence[Any]
) -> list[Call]:
    """The calls, with lines of them as one call each.

    Raises:
        Unsupported: an executor cannot make one.
    """
    parts: list[tuple[Lowering, list[Call]] | Call] = []
    for call in calls:
        last = parts[-1] if parts and isinstance(parts[-1], tuple) else None
        lowering, line = last or (Lowering(places), [])
        if not _fits(call, lowering):
            if last is None or all(other.view for other in line):
                parts.append(call)
                continue
            lowering, line = Lowering(places), []
            parts.append(call)
            continue
        line.append(call)
        if last is None:
            parts.append((lowering, line))
    wanted, found = {*outputs}, list[Call]()
    for part in reversed(parts):
        some = [part] if isinstance(part, Call) else _as_one(*part, wanted, executors)
        for call in reversed(some):
            found.append(call)
            wanted.update(slots_in(call.arguments))
    found.reverse()
    return found


def _fits(call: Call, lowering: Lowering) -> bool:
    """Whether a line may hold a call, which is added to it."""
    positional, named = call.arguments
    function = call.function
    if call.view:
        return True
    if decides(call):
        assert isinstance(function, partial)
        (value,) = positional
        return isinstance(value, Slot) and lowering.expect(value.number, *function.args)
    if isinstance(function, Stepping):
        return lowering.take_steps(function.steps, positional[0], call.results)
    name = getattr(function, "__name__", "")
    return not call.kept and lowering.take(name, positional, named, call.results)


def _worth(call: Call) -> int:
    """How many calls it is worth as one of a line."""
    return _LEAST if isinstance(call.function, Stepping) else int(not call.view)


def _as_one(
    lowering: Lowering, line: Sequence[Call], wanted: set[int], executors: Sequence[Any]
) -> Sequence[Call]:
    """A line as one call, and the views of what it makes that are wanted."""
    if sum(map(_worth, line)) < _LEAST:
        return line
    views = [call for call in line if call.view and not wanted.isdisjoint(call.results)]
    roots = {slot for call in views for slot in slots_in(call.arguments)}
    own = {slot for call in line if not call.view for slot in call.results}
    alone = lowering.alone(roots - wanted, [call.results[0] for call in views])
    views = [call for call in views if call.results[0] not in alone.values()]
    made = sorted(own & (wanted | roots))
    results = [alone.get(slot, slot) for slot in made]
    lowering.without_idle(made)
    read = {place.memory for op in lowering.ops for place in places_in(op)}
    given = sorted(memory for memory in read - own if isinstance(memory, int))
    whole: list[Memory] = [*given]
    for executor in executors:
        run = executor.line(lowering.line(whole, results))
        if run is not None:
            one = Call(run, (tuple(map(Slot, given)), {}), results, True, False)
            return [one, *views]
    return line


def decides(call: Call) -> bool:
    """Whether it asks that a value is what it was."""
    return isinstance(call.function, partial) and call.function.func is expect


def expect(number: Any, value: Tensor) -> None:
    """Go on if a value is what it was.

    Raises:
        Otherwise: it is another.
    """
    if value.item() != number:
        raise Otherwise
