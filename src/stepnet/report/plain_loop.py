"""The plain loop as records, for a step that no plan could be made of: the torch calls of its first step."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.undo import Snapshot
from stepnet.compiler.trace.iteration import code_of
from stepnet.compiler.trace.logs_and_prints import no_remarks
from stepnet.compiler.trace.record import unseen_memory_of
from stepnet.compiler.trace.writes import HOOKS_ON, SHOWS_MEMORY, written
from stepnet.data.dtypes import dtype_name
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import draws_put_back
from stepnet.data.tree import leaves
from stepnet.data.values import rows_of
from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.ir.loop import Loop

from .cost import call_flops, reads_values, tensor_bytes, weight_of_call
from .names import SourceLines, tensor_names
from .records import LoopSummary, Op, Port, Region, Role, by_line


def describe_plain_loop(
    record: Loop, feeds: Mapping[str, Any], here: Callable[[], str | None], counts: Sequence[int],
    code: SourceLines,
) -> tuple[LoopSummary, str]:  # fmt: skip
    """Describe how the plain loop runs a sweep over rows; also returns a remark on the ops that are listed.

    Args:
        record: the loop.
        feeds: the value of each input port's `source`.
        here: tells the user's line being run.
        counts: how many steps each sequence takes.
        code: the text of the user's lines.
    """
    started = max(sum(count > 0 for count in counts), 1)
    calls = recorded(record, feeds, here, sum(counts) / started)
    note = "the ops are those of the first step; a step that branches may run others"
    if not calls.tried:
        note = "its ops are not listed: to try the step would use up, or write out, what it reads"
    elif not calls.y:
        note = "its ops are listed up to a call that changes something of yours, which is left alone here"
    states = [feeds[port.source] for port in record.merged]
    enters = [
        *(_port(port.parameter, "x", feeds[port.source], port.axis) for port in record.slices),
        *(_port(port.parameter, "state", feeds[port.source]) for port in record.merged),
        *(_port(name, "weight", tensor) for name, tensor in calls.outside.items()),
    ]
    y_names = ["y"] if len(calls.y) == 1 else [f"y[{i}]" for i in range(len(calls.y))]
    y_bytes = tensor_bytes(*(tensor for _, tensor in calls.y)) * sum(counts) // started
    region = Region(
        direction="forward",
        kind="loop",
        executor="torch",
        label="torch",
        runs=max(counts, default=0),
        ops=tuple(calls.ops),
        lines=by_line(calls.ops, {op.line: code.at(op.line) for op in calls.ops}),
        reads=tuple(port.name for port in enters if port.role != "state"),
        writes=tuple(dict.fromkeys(name for name, _ in calls.y)),
        bytes_read=tensor_bytes(*_tensors([*feeds.values(), calls.outside])),
        bytes_written=y_bytes + tensor_bytes(*_tensors(states)),
        carries=tuple(zip((port.parameter for port in record.merged), calls.states, strict=False)),
    )
    leaves_out = [_port(label, "y", tensor) for label, (_, tensor) in zip(y_names, calls.y, strict=True)]
    inside = {label: name for label, (name, _) in zip(y_names, calls.y, strict=True)}
    return LoopSummary("forward", tuple(enters), (region,), tuple(leaves_out), inside), note


def _port(name: str, role: Role, leaf: Any, axis: int | None = None) -> Port:
    values = rows_of(leaf)
    sizes = list(values.shape)
    if axis is not None and values is leaf and sizes:
        del sizes[axis]
    rows = role != "weight" and bool(sizes)
    return Port(name, role, "row" if rows else "shared", tuple(sizes[rows:]), dtype_name(values.dtype))


def recorded(
    record: Loop, feeds: Mapping[str, Any], here: Callable[[], str | None], times: float
) -> Recorder:
    """Run the first step of a loop and record its calls of torch.

    The recording ends at a call that would change a tensor outside, hook onto it or show its memory, and at a
    print or a log. The step is not run at all if that would use up what it reads, such as an iterator.
    Objects that it changes are restored.

    Args:
        record: the loop.
        feeds: the value of each input port's `source`.
        here: tells the user's line being run.
        times: the rows of the whole run, by those of the first step.
    """
    recorder, body = Recorder(here), code_of(record)

    class FirstStep:
        name, parameters, results = body.name, body.parameters, body.results

        def __call__(self, *values: Any) -> tuple[Any, ...]:
            recorder.name_arguments(self.parameters, values)
            inner = body.fresh()
            with recorder:
                results = dict(zip(self.results, inner(*values), strict=True))
            y = [results[port.result] for port in record.joined]
            recorder.y = [(recorder.name_of(t), t) for t in _tensors(y)]
            new = [results[record.carried[port.parameter]] for port in record.merged]
            recorder.states = [recorder.name_of(t) for t in new]
            raise _Done

    reached = reach(body.function, everything=True)
    if reached.refused is not None:  # to run it would use something up
        recorder.tried = False
        return recorder
    before = Snapshot(reached.holders)
    with draws_put_back(), contextlib.suppress(_Done, Unsupported), no_remarks():
        try:
            contextvars.copy_context().run(naive.run, record.around(FirstStep()), feeds)
        finally:
            before.restore()
    named = dict(zip(recorder.outside, tensor_names(body.function, recorder.outside.values()), strict=True))
    recorder.outside = {named[name]: tensor for name, tensor in recorder.outside.items()}
    recorder.states = [named.get(name, name) for name in recorder.states]
    recorder.y = [(named.get(name, name), tensor) for name, tensor in recorder.y]
    recorder.ops = [
        replace(op, flops=round(op.flops * times), inputs=tuple(named.get(n, n) for n in op.inputs))
        for op in recorder.ops
    ]
    return recorder


class _Done(Exception):
    """The step has run once; the loop around it need not go on."""


class Recorder(TorchFunctionMode):
    """Records each torch call of a step, with the names of its inputs and results.

    Attributes:
        ops: the calls.
        states, y: names of the new states; names and tensors of the results.
        outside: the tensors that the step reads besides its arguments.
        tried: False if the step was not run.
    """

    def __init__(self, here: Callable[[], str | None]) -> None:
        super().__init__()
        self.here = here
        self.ops: list[Op] = []
        self.states: list[str] = []
        self.y: list[tuple[str, Tensor]] = []
        self.outside: dict[str, Tensor] = {}
        self.memory: set[int] = set()  # of those
        self.tried = True
        self.names: dict[int, str] = {}
        self.alive: list[Tensor] = []  # ids in `names` must stay taken
        self.rows = 0

    def name_arguments(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        """Name the arguments of the step."""
        for name, leaf in zip(names, leaves, strict=True):
            for tensor in _tensors(leaf):
                self._name(tensor, name)
                self.rows = max(self.rows, len(tensor) if tensor.dim() else 0)

    def _name(self, tensor: Tensor, name: str) -> None:
        self.names[id(tensor)] = name
        self.alive.append(tensor)

    def name_of(self, tensor: Tensor) -> str:
        """The name of a value; a new one if the step has it from outside."""
        if id(tensor) not in self.names:
            name = f"outside {len(self.outside)}"
            self.outside[name] = tensor
            self.memory.add(unseen_memory_of(tensor))
            self._name(tensor, name)
        return self.names[id(tensor)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # of a `torch.cond`: its insides are torch's
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "call")
        if name == "__get__":  # x.shape and the like
            return func(*args, **kwargs)
        read = list(_tensors((args, kwargs)))
        if _traced(read):
            return func(*args, **kwargs)
        line = self.here()
        inputs = tuple(dict.fromkeys(map(self.name_of, read)))
        shown = args[:1] if func in SHOWS_MEMORY or func in HOOKS_ON else ()
        if any(unseen_memory_of(t) in self.memory for t in (*shown, *written(func, args, kwargs))):
            raise _Done  # or a tensor of the user's would change once more than by the loop
        out = func(*args, **kwargs)
        results = list(_tensors(out))
        if _traced(results):
            return out
        if results or reads_values(name.strip("_")):
            self._add(name.strip("_"), inputs, read, results, line)
        return out

    def _add(
        self, name: str, inputs: tuple[str, ...], read: list[Tensor], results: list[Tensor], line: str | None
    ) -> None:
        outputs = tuple(f"t{len(self.alive) + i}" for i in range(1, len(results) + 1))
        for tensor, output in zip(results, outputs, strict=True):
            self._name(tensor, output)  # a new name, even if written in place
        kind = weight_of_call(name)
        contracts = read[0].shape[-1] if kind == "matmul" and read[0].dim() else 0
        first = results[0] if results else None
        rows = first is not None and first.dim() > 0 and len(first) == self.rows
        shape = () if first is None else tuple(first.shape[1:] if rows else first.shape)
        flops = call_flops(name, read, results)
        self.ops.append(
            Op(name, inputs, outputs, "row" if rows else "shared", shape, contracts, kind, line, flops)
        )


def _tensors(tree: Any) -> Iterator[Tensor]:
    return map(rows_of, leaves(tree, (Tensor, LoDTensor)))


def _traced(tensors: list[Tensor]) -> bool:
    """True for the tensors of an inner recurrence that is being captured: not the step's own arithmetic."""
    return any(type(tensor) is not Tensor and not isinstance(tensor, nn.Parameter) for tensor in tensors)
