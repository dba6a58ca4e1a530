"""A Scan and the nodes around it that do to each step what they do to all: one loop, as the cell was written.

    z = sigmoid(x W); Scan: h = z[t] h; y = tanh(h)    ->    Scan: h = sigmoid(x[t] W) h; y[t] = tanh(h)

Those nodes are run on one step in place of all. Each is known to treat steps alike by a rule that looks at
the sizes of a run: of what it computes with, the first axis holds the steps, or several rows of each, or it
is the same for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from stepnet.errors import StepnetError
from stepnet.export.open_sizes import Sizes, plain
from stepnet.file_model import ERRORS, Misfit, Otherwise, not_in_recordings
from stepnet.file_model.scan_loop import ScanLoop
from stepnet.ir.last_uses import last_uses

from .control import ScanRunner
from .elementwise import BINARY, MANY, UNARY
from .graph import Step, content_of
from .sums import REDUCTIONS

Shape = tuple[int, ...]


class Declined(Otherwise):
    """The loop does not compile: its nodes run one by one."""


@dataclass
class Seen:
    """What a run was seen to give: the shape of each tensor; None of sizes; what is not in it is neither."""

    shapes: dict[ir.Value, Shape | None]
    steps: int

    def is_of_steps(self, value: ir.Value | None) -> bool:
        """Whether the first axis of a tensor may hold steps, or rows of each."""
        shape = None if value is None else self.shapes.get(value)
        return bool(shape) and shape[0] >= self.steps and shape[0] % self.steps == 0

    def rank(self, value: ir.Value) -> int:
        """How many axes a tensor has."""
        return len(self.shapes.get(value) or ())


Rule = Callable[["Step", Seen], "list[ir.Value] | None"]
# Of nodes: what they read of steps; None: steps do not come out as they went in.
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule(*UNARY, *BINARY, *MANY, "Div", "Pow", "Where", "Clip", "Cast", "Elu", "LeakyRelu", "HardSigmoid",
       "Selu", "Gelu", "Celu")  # fmt: skip
def _each_number(step: Step, seen: Seen) -> list[ir.Value] | None:
    out = seen.shapes.get(step.outputs[0])
    if not out or not seen.is_of_steps(step.outputs[0]):
        return None
    found: list[ir.Value] = []
    for value in step.inputs:
        shape = None if value is None else seen.shapes.get(value)
        if value is not None and shape is None:
            return None
        if value is not None and shape and len(shape) == len(out) and shape[0] == out[0]:
            found.append(value)
        elif shape and len(shape) == len(out) and shape[0] != 1:
            return None
    return found


@_rule("MatMul")
def _matmul(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, w = step.inputs
    assert x is not None
    assert w is not None
    return [x] if seen.rank(x) >= 2 and seen.rank(w) == 2 and seen.is_of_steps(x) else None


@_rule("Gemm")
def _gemm(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, _, *rest = step.inputs
    bias = seen.shapes.get(rest[0]) if rest and rest[0] is not None else ()
    shared = bias is not None and (len(bias) < 2 or bias[0] == 1)
    return (
        [x] if x is not None and shared and not step.info.get("transA", 0) and seen.is_of_steps(x) else None
    )


@_rule("Reshape")
def _reshape(step: Step, seen: Seen) -> list[ir.Value] | None:
    """The numbers of a step lie one behind the other, and after those of the step before."""
    x = step.inputs[0]
    return [x] if x is not None and seen.is_of_steps(x) and seen.is_of_steps(step.outputs[0]) else None


def _along(axes: Sequence[int] | None, rank: int) -> bool:
    """Whether axes are known, and the first is not among them."""
    return axes is not None and all(-rank < axis < rank and axis != 0 for axis in axes)


@_rule("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization")
def _along_an_axis(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, kind = step.inputs[0], step.info.node.op_type
    axis = step.info.get("axis", 1 if "Softmax" in kind and step.info.opset < 13 else -1)
    if x is None or not _along([axis], seen.rank(x)) or not seen.is_of_steps(x):
        return None
    shared = [seen.shapes.get(value) for value in step.inputs[1:] if value is not None]
    return [x] if all(s is not None and len(s) < seen.rank(x) for s in shared) else None


@_rule("Split", "Concat")
def _parts(step: Step, seen: Seen) -> list[ir.Value] | None:
    axis, values = step.info.get("axis", 0), step.inputs
    if step.info.node.op_type == "Split":
        if step.info.has(1) and 1 not in step.info.known:
            return None
        values = values[:1]
    known = [value for value in values if value is not None and seen.is_of_steps(value)]
    fits = len(known) == len(values) and _along([axis], seen.rank(known[0]))
    return known if fits and len({seen.shapes[value][0] for value in known}) == 1 else None  # type: ignore[index]


@_rule("Squeeze", "Unsqueeze", *REDUCTIONS)
def _axes(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, info = step.inputs[0], step.info
    if x is None or not seen.is_of_steps(x) or (info.has(1) and 1 not in info.known):
        return None
    axes = info.listed(1, "axes")([None] * len(step.inputs))
    rank = seen.rank(step.outputs[0]) if info.node.op_type == "Unsqueeze" else seen.rank(x)
    return [x] if axes and _along(axes, rank) else None


@_rule("Transpose")
def _transpose(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, order = step.inputs[0], step.info.get("perm")
    return [x] if x is not None and order and order[0] == 0 and seen.is_of_steps(x) else None


@_rule("Slice")
def _slice(step: Step, seen: Seen) -> list[ir.Value] | None:
    x, info = step.inputs[0], step.info
    if x is None or not seen.is_of_steps(x) or any(info.has(k) and k not in info.known for k in range(1, 5)):
        return None
    axes = info.listed(3, "axes")([None] * len(step.inputs))
    return [x] if axes and _along(axes, seen.rank(x)) else None


class Body:
    """One step of a Scan and of the nodes around it.

    Args:
        opset: of the file.
        scan, before, after: the nodes.
        given: what is cut: the tables that come from elsewhere.
        joined: what is given on.
        seen: the sizes of a run.
        values: what the graph captures, and more.
    """

    def __init__(
        self, opset: int, scan: Step, before: Sequence[Step], after: Sequence[Step],
        given: Sequence[ir.Value], joined: Sequence[ir.Value], seen: Seen,
        values: Mapping[ir.Value | None, Any],
    ) -> None:  # fmt: skip
        runner = scan.run
        assert isinstance(runner, ScanRunner)
        self.opset, self.scan, self.before, self.after = opset, scan, before, after
        self.runner, self.states = runner, runner.states
        self.given, self.joined, self.seen = list(given), list(joined), seen
        own = {*given, *scan.outputs, *(v for step in (*before, *after) for v in step.outputs)}
        read = [v for step in (*before, *after) for v in step.inputs]
        found = [v for v in dict.fromkeys([*scan.info.outer, *read]) if v is not None and v not in own]
        read_in = [*before, scan, *after, *runner.graph.steps]
        # whole numbers that the file says, and that nodes hold already
        self.numbers = {v: values[v] for v in found if _is_known(v, read_in)}
        self.captured = [v for v in found if v not in self.numbers]

    @cached_property
    def _content(self) -> str:
        steps = [*self.before, self.scan, *self.after]
        given = [*self.numbers, *self.captured, *self.first, *self.given]
        kinds = [(str(t.dtype), list(t.shape)) for t in self.numbers.values()]
        led = [self.is_led(value) for value in (*self.given, *self.joined)]
        return content_of(self.opset, list(dict.fromkeys(given)), steps, self.joined) + str((kinds, led))

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures, as a digest."""
        return self._content

    @property
    def first(self) -> list[ir.Value]:
        """The first states."""
        return [value for value in self.scan.inputs[: self.states] if value is not None]

    def is_led(self, value: ir.Value) -> bool:
        """Whether an axis of one element follows the steps of a table."""
        shape = self.seen.shapes[value] or ()
        return len(shape) > 3 and shape[1] == 1

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The new states and what is joined; rows of steps have an axis of one element before the batch."""
        values: dict[ir.Value | None, Any] = {None: None, **self.numbers, **around}
        for value, row in zip(self.given, arguments[self.states :], strict=True):
            values[value] = row.unsqueeze(0) if self.is_led(value) else row
        new = self._call(arguments[: self.states], values)
        rows = [values[value].squeeze(1) if self.is_led(value) else values[value] for value in self.joined]
        return (*new, *rows)

    def _call(self, states: Sequence[Any], values: dict[ir.Value | None, Any]) -> Sequence[Any]:
        """Run the nodes on tables of one step; the new states."""
        first, last = self.states, len(self.scan.info.node.inputs)
        for step in self.before:
            results = step.call([values[value] for value in step.inputs])
            values.update(zip(step.outputs, results, strict=False))
        outer = {value: values[value] for value in self.runner.graph.captured}
        x = [plain(values[value]).squeeze(0) for value in self.scan.inputs[first:last]]
        results = self.runner.graph.run((*states, *x), outer)
        for value, row in zip(self.scan.outputs[first:], results[first:], strict=True):
            values[value] = row.unsqueeze(0)
        for step in self.after:
            again = step.call([values[value] for value in step.inputs])
            values.update(zip(step.outputs, again, strict=False))
        return results[:first]

    def check(self, values: Mapping[ir.Value | None, Any]) -> bool:
        """Whether one step has the sizes of all, but for the number of steps."""
        own: dict[ir.Value | None, Any] = {
            value: values[value] for value in (None, *self.numbers, *self.captured)
        }
        own |= {value: values[value][:1] for value in self.given}
        self._call([values[value] for value in self.first], own)
        for step in (*self.before, self.scan, *self.after):
            for value in step.outputs if step is not self.scan else step.outputs[self.states :]:
                shape = self.seen.shapes.get(value)
                if shape is None:
                    continue
                found = own[value].shape if isinstance(own[value], Tensor) else None
                if found != (shape[0] // self.seen.steps, *shape[1:]):
                    return False
        return True


def _is_known(value: ir.Value, steps: Sequence[Step]) -> bool:
    """Whether all nodes that read a value know its numbers."""
    at = [(step, k) for step in steps for k, read in enumerate(step.inputs) if read is value]
    return all(k in step.info.known or k >= len(step.info.node.inputs) for step, k in at)


class Joined:
    """Runs such a loop."""

    def __init__(self, body: Body) -> None:
        self.body, self.reports = body, body.runner.reports
        turned = (*body.runner.cut, *body.runner.joined)[0][1]
        name = body.scan.info.node.name or "Scan"
        ways = [(0, turned)]
        self.scan = ScanLoop(
            body, name, body.states, ways * len(body.given), ways * len(body.joined), self.reports, None
        )

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        not_in_recordings(settled=(self.reports,))
        body, count = self.body, self.body.states
        values = tuple(map(plain, values))
        x = values[count : count + len(body.given)]
        fed = [v if body.is_led(value) else v.unsqueeze(1) for value, v in zip(body.given, x, strict=True)]
        given = (*values[:count], *fed, *values[count + len(body.given) :])
        out = self.scan.compiled(dict(zip(self.scan.body.parameters, given, strict=True)))
        if out is None:
            raise Declined
        names = self.scan.body.results
        rows = zip(body.joined, names[count:], strict=True)
        tables = [out[name] if body.is_led(value) else out[name].squeeze(1) for value, name in rows]
        return (*(out[name] for name in names[:count]), *tables)


def join(
    opset: int, steps: Sequence[Step], at: int, outputs: Sequence[ir.Value], seen: Seen,
    values: Mapping[ir.Value | None, Any],
) -> list[Step] | None:  # fmt: skip
    """The steps of a graph with a Scan and the nodes around it as one; None: there are none such.

    Args:
        opset: of the file.
        steps: of the graph.
        at: which is the Scan.
        outputs: of the graph.
        seen: the sizes of a run.
        values: what it gave.
    """
    scan = steps[at]
    x = _cut_as_steps(scan, seen)
    if x is None:
        return None
    inside = _made_for(steps, at, outputs, seen)
    behind = _made_of(steps, at, x, inside, seen)
    if not inside and not behind:
        return None
    read = {number: set(values) for number, values in (*inside.items(), *behind.items())}
    before, after = _whole(steps, inside, behind, seen)
    tables = [*x, *(v for values in (*inside.values(), *behind.values()) for v in values)]
    given = _given(tables, scan, before, after, seen)
    own = _own(scan, before, after)
    shared = {v for number, values in read.items() for v in steps[number].inputs if v not in values}
    shared = {v for v in shared if v is not None and seen.shapes.get(v) is not None}
    if not _are_steps(given, seen) or not (own | {*given}).isdisjoint(shared.union(scan.info.outer)):
        return None  # one step of it is read, and all
    rest = [step for number, step in enumerate(steps) if number not in read and number != at]
    rest = _read_ones(rest, {*outputs, *(v for v in scan.inputs if v is not None)}, seen)
    wanted = {v for step in rest for v in step.inputs} | set(outputs)
    kept = {v for step in rest for v in step.outputs}
    made = dict.fromkeys(v for step in (*before, scan, *after) for v in step.outputs)
    joined = [v for v in made if v in own and v in wanted and v not in kept]
    if not joined or not _are_steps(joined, seen):
        return None
    body = Body(opset, scan, before, after, given, joined, seen, values)
    if any(v in {o for step in steps[at:] for o in step.outputs} for v in body.captured):
        return None
    inputs, results = (*body.first, *given, *body.captured), (*scan.outputs[: body.states], *joined)
    one = replace(scan, run=Joined(body), inputs=inputs, outputs=results, done=())
    before_it = sum(steps.index(step) < at for step in rest)
    return [*rest[:before_it], one, *rest[before_it:]]


def _are_steps(values: Sequence[ir.Value], seen: Seen) -> bool:
    """Whether the first axis of each is the steps."""
    return all((seen.shapes.get(v) or (0,))[0] == seen.steps for v in values)


def _cut_as_steps(scan: Step, seen: Seen) -> list[ir.Value] | None:
    """The tables that a Scan cuts; None if it does not cut and join all alike, along their first axis."""
    runner = scan.run
    if not isinstance(runner, ScanRunner) or runner.old or runner.scan.reason is not None:
        return None
    ways = {*runner.cut, *runner.joined}
    if len(ways) != 1 or next(iter(ways))[0] != 0 or seen.steps < 2:
        return None
    x = [v for v in scan.inputs[runner.states : len(scan.info.node.inputs)] if v is not None]
    return x if _are_steps(x, seen) and len(x) >= len(runner.cut) else None


def _made_for(
    steps: Sequence[Step], at: int, outputs: Sequence[ir.Value], seen: Seen
) -> dict[int, list[ir.Value]]:
    """The nodes before a Scan that nothing else reads, each with what it reads of steps."""
    scan = steps[at]
    assert isinstance(scan.run, ScanRunner)
    whole = {*scan.inputs[: scan.run.states], *scan.info.outer, *outputs}
    readers: dict[ir.Value, set[int]] = {}
    for number, step in enumerate(steps):
        for value in step.inputs:
            if value is not None:
                readers.setdefault(value, set()).add(number)
    inside: dict[int, list[ir.Value]] = {}
    for number in reversed(range(at)):
        step, rule = steps[number], RULES.get(steps[number].info.node.op_type)
        made = [v for v in step.outputs if v in readers]
        alone = made and set().union(*(readers[v] for v in made)) <= {at, *inside}
        if not alone or rule is None or not whole.isdisjoint(step.outputs):
            continue
        read = rule(step, seen)
        if read is not None:
            inside[number] = read
    return inside


def _made_of(
    steps: Sequence[Step],
    at: int,
    x: Sequence[ir.Value],
    inside: Mapping[int, Sequence[ir.Value]],
    seen: Seen,
) -> dict[int, list[ir.Value]]:
    """The nodes after a Scan that treat steps of what it gives alike, with what each reads of steps."""
    scan = steps[at]
    assert isinstance(scan.run, ScanRunner)
    later = {value for step in steps[at:] for value in step.outputs}
    of_steps = {*x, *(v for number, read in inside.items() for v in (*read, *steps[number].outputs))}
    of_steps |= set(scan.outputs[scan.run.states :])
    behind: dict[int, list[ir.Value]] = {}
    for number in range(at + 1, len(steps)):
        step, rule = steps[number], RULES.get(steps[number].info.node.op_type)
        if rule is None or not any(value in of_steps for value in step.inputs):
            continue
        read = rule(step, seen)
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
    """The nodes before and after a Scan, with those that compute sizes for them."""
    makers = {value: step for step in steps for value in step.outputs}
    before = _with_sizes([steps[number] for number in sorted(inside)], makers, seen)
    after = _with_sizes([steps[number] for number in sorted(behind)], makers, seen)
    return before, [step for step in after if step not in before]


def _own(scan: Step, before: Sequence[Step], after: Sequence[Step]) -> set[ir.Value]:
    """What a step makes of what it is given."""
    assert isinstance(scan.run, ScanRunner)
    made = {v for step in (*before, *after) for v in step.outputs}
    return made.union(scan.outputs[scan.run.states :])


def _given(
    read: Sequence[ir.Value], scan: Step, before: Sequence[Step], after: Sequence[Step], seen: Seen
) -> list[ir.Value]:
    """What is cut into steps: the tables that nodes read, and those of which they read the sizes."""
    own = _own(scan, before, after)
    sized = [v for step in (*before, *after) if _is_sizes(step, seen) for v in step.inputs if v is not None]
    found = [*read, *(v for v in sized if seen.is_of_steps(v))]
    return [v for v in dict.fromkeys(found) if v not in own]


def _is_sizes(step: Step, seen: Seen) -> bool:
    return all(value in seen.shapes and seen.shapes[value] is None for value in step.outputs)


def _with_sizes(steps: Sequence[Step], makers: Mapping[ir.Value, Step], seen: Seen) -> list[Step]:
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


def _read_ones(steps: Sequence[Step], wanted: set[ir.Value], seen: Seen) -> list[Step]:
    """Steps without those that compute sizes which nothing reads; `wanted` is read besides."""
    kept = []
    for step in reversed(steps):
        if not _is_sizes(step, seen) or any(value in wanted for value in step.outputs):
            kept.append(step)
            wanted |= {value for value in step.inputs if value is not None}
    return kept[::-1]


def sizes_of(steps: Sequence[Step], values: dict[ir.Value | None, Any]) -> Iterator[tuple[int, Seen]]:
    """Run steps for the sizes of what they give, Scans for one step; each Scan as it is met, with its number
    of steps, then what was seen of all.

    Args:
        steps: of a graph.
        values: its inputs and what it captures.
    """
    scans: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        arguments = [values[value] for value in step.inputs]
        if isinstance(step.run, ScanRunner):
            found = _one_step(step.run, [plain(a) for a in arguments])
            if found is None:
                return
            count, results = found
            scans.append((number, count))
        else:
            results = step.call(arguments)
        values.update(zip(step.outputs, results, strict=False))
    shapes: dict[ir.Value, Shape | None] = {}
    for value, held in values.items():
        if value is not None and isinstance(held, (Tensor, Sizes)):
            shapes[value] = tuple(held.shape) if isinstance(held, Tensor) else None
    for number, count in reversed(scans):
        yield number, Seen(shapes, count)


def _one_step(runner: ScanRunner, values: Sequence[Any]) -> tuple[int, list[Tensor]] | None:
    """How many steps a Scan has, and tables as large as it gives."""
    if runner.old or runner.scan.reason is not None:
        return None
    body, count = runner.scan.body, runner.states
    cut = values[count : count + len(runner.cut)]
    steps = cut[0].shape[runner.cut[0][0]]
    if steps < 2:
        return None
    one = [v.narrow(axis, 0, 1) for v, (axis, _) in zip(cut, runner.cut, strict=True)]
    results = body(*values[:count], *one, *values[count + len(cut) :])
    tables = [
        row.expand([steps if k == axis % row.dim() else size for k, size in enumerate(row.shape)])
        for row, (axis, _) in zip(results[count:], runner.joined, strict=True)
    ]
    return steps, [*results[:count], *tables]


def found(
    opset: int, steps: Sequence[Step], outputs: Sequence[ir.Value], captured: Sequence[ir.Value],
    given: Mapping[ir.Value | None, Any],
) -> list[Step] | None:  # fmt: skip
    """The steps of a graph, with nodes around Scans as part of those; None: there are none such.

    Args:
        opset: of the file.
        steps, outputs, captured: of the graph.
        given: its inputs and what it captures.
    """
    new: list[Step] | None = None
    try:
        with torch.no_grad():
            values = dict(given)
            for number, sizes in sizes_of(steps, values):
                now = list(steps if new is None else new)
                joined = join(opset, now, now.index(steps[number]), outputs, sizes, values)
                if joined is not None and all(
                    step.run.body.check(values) for step in joined if isinstance(step.run, Joined)
                ):
                    new = joined
    except (StepnetError, Declined, Misfit, *ERRORS):  # the plain way meets it, too, and tells it
        return None
    if new is None:
        return None
    uses = [[v for v in (*step.inputs, *step.outputs) if v is not None] for step in new]
    done = last_uses(uses, {*outputs, *captured})
    return [replace(step, done=values) for step, values in zip(new, done, strict=True)]
