"""A loop and the nodes around it that do to each step what they do to all: one loop, as the cell was written.

    z = sigmoid(x W); Scan: h = z[t] h; y = tanh(h)    ->    Scan: h = sigmoid(x[t] W) h; y[t] = tanh(h)

Those nodes are run on one step in place of all. Each is known to treat steps alike by a rule of its format
(`step_rules`), which looks at the sizes of a run.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.executors.line import Otherwise
from stepnet.ir.last_uses import last_uses
from stepnet.ir.loop import BackEdge, Concat, Invariant, Last, Loop, Merged, Slice
from stepnet.iterator.rows import RowLoop

from .misfit import Misfit
from .model import FileBody
from .recording import not_in_recordings
from .scan_loop import compiled, way
from .scan_steps import ScanStep, without_moves
from .specialized_graph import ERRORS
from .step_rules import Seen, Shape, Step, Value


class Declined(Otherwise):
    """The loop does not compile: its nodes run one by one."""


class Body:
    """One step of a loop and of the nodes around it, on tables of one step.

    Args:
        scan, before, after: the loop, and the nodes.
        given: what is cut: the tables that come from elsewhere.
        joined: what is given on.
        seen: the sizes of a run.
        values: what the graph captures, and more.
    """

    def __init__(
        self, scan: ScanStep, before: Sequence[Step], after: Sequence[Step], given: Sequence[Value],
        joined: Sequence[Value], seen: Seen, values: Mapping[Value, Any],
    ) -> None:  # fmt: skip
        self.name, self.scan, self.before, self.after = scan.name, scan, before, after
        self.given, self.joined, self.seen = list(given), list(joined), seen
        own = {*given, *_own(scan, before, after)}
        read = [v for step in (*before, *after) for v in step.inputs]
        found = [v for v in dict.fromkeys([*scan.outer, *read]) if v is not None and v not in own]
        read_in = [*before, scan.step, *after, *scan.inside]
        # whole numbers that the file says, and that nodes hold already
        self.numbers = {v: values[v] for v in found if _is_known(v, read_in)}
        self.captured = [v for v in found if v not in self.numbers]
        self.states = [f"s{k}" for k in range(len(scan.first))]
        self.x = [f"x{k}" for k in range(len(given))]
        self.outer = [f"outer{k}" for k in range(len(self.captured))]
        self.parameters = (*self.states, *self.x, *self.outer)
        self.results = (*(f"new{k}" for k in range(len(scan.first))), *(f"y{k}" for k in range(len(joined))))

    @cached_property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures, as a digest."""
        steps = [*self.before, self.scan.step, *self.after]
        given = dict.fromkeys((*self.numbers, *self.captured, *self.scan.first, *self.given))
        kinds = [(str(t.dtype), list(t.shape)) for t in self.numbers.values()]
        return content_of([*given], steps, self.joined) + str((kinds, self.seen.axis))

    def loop(self) -> Loop:
        """The loop over all steps."""
        along: dict[str, Any] = {"axis": self.seen.axis, "part_size": 1, **way(self.scan.turned)}
        count = len(self.states)
        return Loop(
            self,
            inputs=(
                *(Merged(name, name) for name in self.states),
                *(Slice(name, name, **along) for name in self.x),
                *(Invariant(name, name) for name in self.outer),
            ),
            outputs=(
                *(Last(name, name) for name in self.results[:count]),
                *(Concat(name, name, **along) for name in self.results[count:]),
            ),
            back_edges=[BackEdge(a, b) for a, b in zip(self.results, self.states, strict=False)],
        )

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        fed = zip((*self.given, *self.captured), values[len(self.states) :], strict=True)
        own: dict[Value, Any] = {None: None, **self.numbers, **dict(fed)}
        new = self._call(values[: len(self.states)], own)
        return (*new, *(own[value] for value in self.joined))

    def _call(self, states: Sequence[Any], values: dict[Value, Any]) -> Sequence[Any]:
        """Run the nodes on tables of one step; the new states."""
        scan = self.scan
        for step in self.before:
            results = step.call([values[value] for value in step.inputs])
            values.update(zip(step.outputs, results, strict=False))
        x = [plain(values[value]) for value in scan.x]
        new, rows = scan.one(states, x, {value: values[value] for value in scan.outer})
        values.update(zip(scan.rows, rows, strict=True))
        for step in self.after:
            again = step.call([values[value] for value in step.inputs])
            values.update(zip(step.outputs, again, strict=False))
        return new

    def check(self, values: Mapping[Value, Any]) -> bool:
        """Whether one step has the sizes of all, but for the number of steps."""
        own: dict[Value, Any] = {value: values[value] for value in (None, *self.numbers, *self.captured)}
        own |= {value: values[value].narrow(self.seen.axis, 0, 1) for value in self.given}
        self._call([values[value] for value in self.scan.first], own)
        for value in _own(self.scan, self.before, self.after):
            shape = self.seen.shapes.get(value)
            if shape is None:
                continue
            at = self.seen.leading(value) - 1
            one = [n // self.seen.steps if k == at else n for k, n in enumerate(shape)]
            if not isinstance(own[value], Tensor) or list(own[value].shape) != one:
                return False
        return True


def plain(value: Any) -> Any:
    """A tensor in place of sizes that readers compute with as numbers."""
    make = getattr(value, "tensor", None)
    return value if make is None else make()


def _is_known(value: Value, steps: Sequence[Step]) -> bool:
    """Whether all nodes that read a value know its numbers."""
    at = [step.knows(k) for step in steps for k, read in enumerate(step.inputs) if read is value]
    return bool(at) and all(at)


def content_of(given: Sequence[Value], steps: Sequence[Step], outputs: Sequence[Value]) -> str:
    """A digest of all that steps do, but for the numbers that they are given."""
    names = itertools.count()
    of: dict[Value, int] = {None: next(names)}
    for value in given:
        of[value] = next(names)
    parts: list[Any] = [len(given)]
    for step in steps:
        reads = [of[value] for value in step.inputs]
        of |= {value: next(names) for value in step.outputs}
        parts.append((step.said, reads))
    parts.append([of[value] for value in outputs])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Joined:
    """Runs such a loop."""

    def __init__(self, body: Body) -> None:
        self.body, self.reports, self.loop = body, body.scan.reports, body.loop()
        self.function = FileBody(body, body.name, body.content)
        self.rows = RowLoop(self.loop, lambda batch, axis: (self.function, True))

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        not_in_recordings(settled=(self.reports,))
        feeds = dict(zip(self.body.parameters, map(plain, values), strict=True))
        out = compiled(self.loop, feeds, None, self.reports, None, lambda backend: self.rows.run(
            feeds, backend, reads=()
        ))  # fmt: skip
        if out is None:
            raise Declined
        return tuple(out[name] for name in self.body.results)


@dataclass(eq=False)
class JoinedStep:
    """A loop and the nodes around it, as one node."""

    run: Joined
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    done: tuple[Value, ...] = ()

    def call(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run, and give one result for each output."""
        return self.run(*arguments)

    def order(self) -> None:
        """It brings axes into no order."""


def join(
    steps: Sequence[Step], at: int, scan: ScanStep, outputs: Sequence[Value], seen: Seen,
    values: Mapping[Value, Any],
) -> list[Any] | None:  # fmt: skip
    """The steps of a graph with a loop and the nodes around it as one; None: there are none such.

    Args:
        steps: of the graph.
        at: which is the loop.
        scan: it.
        outputs: of the graph.
        seen: the sizes of a run.
        values: what it gave.
    """
    if seen.steps < 2 or not all(map(seen.is_cut, scan.x)):
        return None
    inside, behind, rest = _around(steps, at, scan, outputs, seen)
    if not inside and not behind:
        return None
    read = {number: set(values) for number, values in (*inside.items(), *behind.items())}
    before, after = _whole(steps, inside, behind, seen)
    tables = [*scan.x, *(v for values in (*inside.values(), *behind.values()) for v in values)]
    given = _given(tables, scan, before, after, seen)
    own = set(_own(scan, before, after))
    shared = {v for number, values in read.items() for v in steps[number].inputs if v not in values}
    shared = {v for v in shared if v is not None and seen.shapes.get(v) is not None}
    if not all(map(seen.is_cut, given)) or not (own | {*given}).isdisjoint(shared.union(scan.outer)):
        return None  # one step of it is read, and all
    wanted = {v for step in rest for v in step.inputs} | set(outputs)
    kept = {v for step in rest for v in step.outputs}
    joined = [v for v in _own(scan, before, after) if v in wanted and v not in kept]
    if not joined or not all(map(seen.is_cut, joined)):
        return None
    body = Body(scan, before, after, given, joined, seen, values)
    if any(v in {o for step in steps[at:] for o in step.outputs} for v in body.captured):
        return None
    inputs, results = (*scan.first, *given, *body.captured), (*scan.finals, *joined)
    before_it = sum(steps.index(step) < at for step in rest)
    return [*rest[:before_it], JoinedStep(Joined(body), inputs, results), *rest[before_it:]]


def _around(
    steps: Sequence[Step], at: int, scan: ScanStep, outputs: Sequence[Value], seen: Seen
) -> tuple[dict[int, list[Value]], dict[int, list[Value]], list[Step]]:
    """The nodes before and after a loop that are part of it, and the rest. What they read of the rest can be
    cut, and so can what that reads of them."""
    out: set[int] = set()
    while True:
        inside = _made_for(steps, at, scan, outputs, seen, out)
        behind = _made_of(steps, at, scan, inside, seen, out)
        both = {**inside, **behind}
        rest = [step for number, step in enumerate(steps) if number not in both and number != at]
        rest = _read_ones(rest, {*outputs, *(v for v in steps[at].inputs if v is not None)}, seen)
        own = {*scan.rows, *(v for number in both for v in steps[number].outputs)}
        wanted = {*outputs, *(v for step in rest for v in step.inputs)}
        border = {
            number: [v for v in read if v not in own] + [v for v in steps[number].outputs if v in wanted]
            for number, read in both.items()
        }
        uncut = {number for number, values in border.items() if not all(map(seen.is_cut, values))}
        if not uncut:
            return inside, behind, rest
        out |= uncut


def _made_for(
    steps: Sequence[Step], at: int, scan: ScanStep, outputs: Sequence[Value], seen: Seen, out: set[int]
) -> dict[int, list[Value]]:
    """The nodes before a loop, but for those left out, that nothing else reads, each with what it reads of
    steps."""
    whole = {*scan.first, *scan.outer, *outputs}
    readers: dict[Value, set[int]] = {}
    for number, step in enumerate(steps):
        for value in step.inputs:
            if value is not None:
                readers.setdefault(value, set()).add(number)
    inside: dict[int, list[Value]] = {}
    for number in reversed(range(at)):
        step = steps[number]
        made = [v for v in step.outputs if v in readers]
        alone = made and set().union(*(readers[v] for v in made)) <= {at, *inside}
        if number in out or not alone or not whole.isdisjoint(step.outputs):
            continue
        read = _of_steps(step, seen)
        if read is not None:
            inside[number] = read
    return inside


def _of_steps(step: Any, seen: Seen) -> list[Value] | None:
    return None if isinstance(step, JoinedStep) else step.of_steps(seen)


def _made_of(
    steps: Sequence[Step], at: int, scan: ScanStep, inside: Mapping[int, Sequence[Value]], seen: Seen,
    out: set[int],
) -> dict[int, list[Value]]:  # fmt: skip
    """The nodes after a loop, but for those left out, that treat steps of what it gives alike, with what each
    reads of steps."""
    later = {value for step in steps[at:] for value in step.outputs}
    of_steps = {*scan.x, *(v for number, read in inside.items() for v in (*read, *steps[number].outputs))}
    of_steps |= set(scan.rows)
    behind: dict[int, list[Value]] = {}
    for number in range(at + 1, len(steps)):
        step = steps[number]
        met = number not in out and any(value in of_steps for value in step.inputs)
        read = _of_steps(step, seen) if met else None
        if read is None:
            continue
        others = [
            v for v in step.inputs if v is not None and v not in read and seen.shapes.get(v) is not None
        ]
        tables = [v for v in read if v not in of_steps]
        if any(v in later for v in (*others, *tables)) or any(v in of_steps for v in others):
            continue
        behind[number] = read
        of_steps |= {*read, *step.outputs}
    return behind


def _whole(
    steps: Sequence[Step], inside: Iterable[int], behind: Iterable[int], seen: Seen
) -> tuple[list[Step], list[Step]]:
    """The nodes before and after a loop, with those that compute sizes for them."""
    makers = {value: step for step in steps for value in step.outputs}
    before = _with_sizes([steps[number] for number in sorted(inside)], makers, seen)
    after = _with_sizes([steps[number] for number in sorted(behind)], makers, seen)
    return before, [step for step in after if step not in before]


def _own(scan: ScanStep, before: Sequence[Step], after: Sequence[Step]) -> list[Value]:
    """What a step makes of what it is given."""
    made = [v for step in before for v in step.outputs]
    return [*dict.fromkeys([*made, *scan.rows, *(v for step in after for v in step.outputs)])]


def _given(
    read: Sequence[Value], scan: ScanStep, before: Sequence[Step], after: Sequence[Step], seen: Seen
) -> list[Value]:
    """What is cut into steps: the tables that nodes read, and those of which they read the sizes."""
    own = set(_own(scan, before, after))
    sized = [v for step in (*before, *after) if _is_sizes(step, seen) for v in step.inputs if v is not None]
    found = [*read, *(v for v in sized if seen.leading(v) == seen.axis + 1)]
    return [v for v in dict.fromkeys(found) if v not in own]


def _is_sizes(step: Step, seen: Seen) -> bool:
    return all(value in seen.shapes and seen.shapes[value] is None for value in step.outputs)


def _with_sizes(steps: Sequence[Step], makers: Mapping[Value, Step], seen: Seen) -> list[Step]:
    """Steps, each after those that compute the sizes which it reads."""
    found: list[Step] = []

    def add(step: Step) -> None:
        for value in step.inputs:
            maker = None if value is None else makers.get(value)
            if maker is not None and _is_sizes(maker, seen):
                add(maker)
        if step not in found:
            found.append(step)

    for step in steps:
        add(step)
    return found


def _read_ones(steps: Sequence[Step], wanted: set[Value], seen: Seen) -> list[Step]:
    """Steps without those that compute sizes which nothing reads; `wanted` is read besides."""
    kept = []
    for step in reversed(steps):
        if not _is_sizes(step, seen) or any(value in wanted for value in step.outputs):
            kept.append(step)
            wanted |= {value for value in step.inputs if value is not None}
    return kept[::-1]


def sizes_of(steps: Sequence[Step], values: dict[Value, Any]) -> Iterator[tuple[ScanStep, Seen]]:
    """Run steps for the sizes of what they give, loops that may take in others for one step; each of these,
    with what was seen, from the last.

    Args:
        steps: of a graph.
        values: its inputs and what it captures; the rest is added.
    """
    scans: list[tuple[ScanStep, int]] = []
    sizes: set[Value] = set()
    for step in steps:
        scan = step.as_scan()
        if scan is not None:
            count = values[scan.x[0]].shape[scan.axis]
            values.update(_one_step(scan, count, values))
            scans.append((scan, count))
            continue
        results = step.call([values[value] for value in step.inputs])
        values.update(zip(step.outputs, results, strict=False))
        sizes.update(step.outputs if step.makes_sizes(sizes) else ())
    shapes: dict[Value, Shape | None] = {}
    for value, held in values.items():
        if value is not None and hasattr(plain(held), "shape"):
            shapes[value] = tuple(held.shape) if isinstance(held, Tensor) and value not in sizes else None
    for scan, count in reversed(scans):
        yield scan, Seen(shapes, count, scan.axis, scan.x[0])


def _one_step(scan: ScanStep, steps: int, values: Mapping[Value, Any]) -> dict[Value, Tensor]:
    """What a loop gives after one step, with tables as large as those of all."""
    one = [plain(values[value]).narrow(scan.axis, 0, 1) for value in scan.x]
    states = [plain(values[value]) for value in scan.first]
    new, rows = scan.one(states, one, {value: plain(values[value]) for value in scan.outer})
    sizes = ([steps if k == scan.axis else n for k, n in enumerate(row.shape)] for row in rows)
    tables = (row.expand(size) for row, size in zip(rows, sizes, strict=True))
    return dict(zip((*scan.finals, *scan.rows), (*new, *tables), strict=True))


def found(
    steps: Sequence[Step], outputs: Sequence[Value], captured: Sequence[Value], given: Mapping[Value, Any]
) -> list[Any] | None:
    """The steps of a graph, with nodes around loops as part of those; None: there are none such.

    Args:
        steps, outputs, captured: of the graph.
        given: its inputs and what it captures.
    """
    new: list[Any] | None = None
    try:
        with torch.no_grad():
            values = {None: None, **given}
            for scan, sizes in sizes_of(steps, values):
                now, loop = list(steps if new is None else new), scan
                moved = without_moves(now, scan, outputs)
                if moved is not None:
                    now, loop = moved
                    sizes = replace(sizes, axis=loop.axis, table=loop.x[0])
                joined = join(now, now.index(loop.step), loop, outputs, sizes, values)
                if joined is not None and all(
                    step.run.body.check(values) for step in joined if isinstance(step, JoinedStep)
                ):
                    new = joined
    except (StepnetError, Declined, Misfit, *ERRORS):  # the plain way meets it, too, and tells it
        return None
    if new is None:
        return None
    uses = [[v for v in (*step.inputs, *step.outputs) if v is not None] for step in new]
    done = last_uses(uses, {*outputs, *captured})
    return [replace(step, done=values) for step, values in zip(new, done, strict=True)]
