"""A module as a graph: torch ops as they were traced, each recurrence a loop, sequences padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stepnet.compiler.trace.endless import EndsOnExample
from stepnet.data.arguments import brief
from stepnet.data.attributes import attribute
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import as_written
from stepnet.data.offsets import LENGTHS, LoD
from stepnet.data.outputs import Outputs
from stepnet.data.tree import flatten, names, unflatten
from stepnet.data.values import unpacked
from stepnet.errors import IRError
from stepnet.front.static import length_of_padded
from stepnet.front.step import original_of
from stepnet.interrupts import let_through
from stepnet.tape.topology import Metrics
from stepnet.watchers import during, tried

from . import (  # noqa: F401  (they fill tables)
    aten_grids,
    aten_math,
    aten_pick,
    aten_shape,
    guarded_values,
    iterators,
    numbers_of_tensors,
    recurrences,
    sequences,
    torch_rnns,
    while_loops,
)
from .aten import AtenNet, is_known, join_lead, split_lead
from .attributes import Kept, as_it_was, left_as_it_was, run_plainly, uncompiled
from .body_trace import BY_SIZES, FixedSize
from .calls import Calls, call_of
from .counts import (
    AsManyAsSequences,
    Other,
    check_counters,
    check_counts,
    check_graphs,
    following,
    other_reader,
    read_in,
)
from .distributions import unasked
from .emit import Emit
from .fixed_sizes import Lead, fixed_leads, follows, leads_of, lengthened, longer_examples, much_longer
from .graph import Graph, Target, Value
from .inputs import (
    FEW,
    Dynamic,
    Input,
    alone_as_long,
    batch_number,
    closed,
    declared_of_one,
    dynamic_of,
    frozen_leads,
    inputs_of,
    many,
    places_asked_for,
    repeated,
    structures,
    without_features,
)
from .open_sizes import SOME
from .scans import StepAxis, mask_of
from .sequences import PLACES
from .size_inputs import plain_values
from .tensor_kinds import PlainTensors
from .trace import BATCH, AnyNumber, Numbers, Program, program, sizes_of, unsaid


@as_written(torch.device("cpu"))  # a file is of no block of code
@unasked()
def module_graph(
    module: Any, example_inputs: Any, target: Target, *, dynamic: Dynamic | None = None, name: str = "model"
) -> Graph:
    """A torch module, or a function of tensors, as a graph.

    Args:
        module: it is run on the example, and traced.
        example_inputs: a tensor or a LoDTensor, a tuple of arguments, or a dict of arguments by name.
        target: the format that the graph is for.
        dynamic: the dimensions of each input that take any size. None: those that hold batch and time.
        name: of the graph.

    Raises:
        IRError: something in it cannot be written; says what, and the line it came from.
    """
    if not isinstance(module, nn.Module):
        raise IRError(
            "save: 'module' must be a module of torch",
            got=brief(module),
            expected="a torch.nn.Module",
            remedy="a module whose forward calls it",
        )
    if dynamic is not None and not isinstance(dynamic, Mapping):
        raise IRError("save: 'dynamic' must be a dict", got=brief(dynamic), remedy="dynamic={'x': [0, 1]}")
    module = original_of(module)
    where = _described(module)
    _check_kinds(module, where)
    args, kwargs = _arguments(module, example_inputs)
    leaves, spec = unpacked((args, kwargs))
    inputs = inputs_of(module, args, kwargs, leaves)
    taken = partial(_leads_of, module, spec, target)
    made = partial(_made, module, where, spec, Graph(name, target), dynamic)
    alone = declared_of_one(module, inputs) if dynamic is None else []
    if alone and taken(longer := lengthened(inputs, alone, much_longer)) is not None:
        with suppress(IRError), unsaid("torch._subclasses.fake_tensor"):
            graph, stuck = made(longer)
            if not stuck:
                return graph
    try:
        graph, stuck = made(inputs)
    except IRError:
        asked = places_asked_for(inputs, dynamic)
        longer = lengthened(inputs, asked, much_longer)
        if not asked or taken(longer) is None:
            raise
        with suppress(IRError), unsaid("torch._subclasses.fake_tensor"):
            return made(longer)[0]
        raise
    while stuck:
        before = len(stuck)
        for longer in longer_examples(inputs, stuck, lambda example: taken(example) is not None):
            with suppress(IRError), unsaid("torch._subclasses.fake_tensor"):
                other, left = made(longer)
                if len(left) < len(stuck):
                    graph, stuck, inputs = other, left, longer
                    break
        if len(stuck) == before:
            break
    return graph


def _made(
    module: nn.Module, where: str, spec: Any, graph: Graph, dynamic: Dynamic | None, inputs: list[Input]
) -> tuple[Graph, list[tuple[Input, int]]]:
    """A module as a graph, by one example, which is that of its next call, too; and the dimensions that were
    to be open but are not."""
    made, trace = _from_example(module, where, spec, graph, dynamic, inputs)
    if trace.reader is not None:
        with as_it_was(module):
            trace.kept.put_back()
            again, _ = _from_example(module, where, spec, graph, dynamic, inputs)
        check_graphs(made, again, trace.reader, trace.kept.numbers, loops_only=not trace.steady)
    return made, trace.stuck


def _from_example(
    module: nn.Module, where: str, spec: Any, graph: Graph, dynamic: Dynamic | None, inputs: list[Input],
    least: int = SOME,
) -> tuple[Graph, _Trace]:  # fmt: skip
    """A module as a graph, by one example, and how it was traced."""
    batch, given = 0, inputs
    if any(i.lod is not None for i in inputs):
        batch = batch_number(module, inputs, least)
        inputs = repeated(inputs, batch, dynamic)
    calls = Calls(graph.target)
    with left_as_it_was(module), ExitStack() as at_the_end:
        at_the_end.callback(calls.forget)
        before = plain_values(module)
        with torch.no_grad(), calls.noted(), tried(), EndsOnExample(), PlainTensors(where):
            args, kwargs = unflatten(spec, [i.value for i in inputs])
            try:
                with run_plainly(module), as_it_was(module) as kept:
                    outputs = _outputs(_plain(module(*args, **kwargs)), where)
                    changes = plain_values(module) != before
            except Exception as error:  # the user's code may raise any
                let_through(error)
                if batch and str(batch) in str(error) and not isinstance(error, IRError):
                    raise _of_one_batch(where, batch, error) from error
                raise
        trace = _Trace(module, where, spec, inputs, calls, dynamic, kept)
        trace.changes = changes
        if batch:
            more = [batch_number(module, inputs, least, batch) for least in many(given)]
            trace.others = [[partial(repeated, given, n, dynamic) for n in counts] for counts in (more, FEW)]
        try:
            return _graph(Graph(graph.name, graph.target), trace, outputs, batch), trace
        except AsManyAsSequences:
            pass
        except IRError as error:
            if trace.opened:  # a step may need the size of what it reads
                trace.memories = False
            elif isinstance(error, FixedSize) and trace.declared is not None:
                trace.declared = None  # its file leaves more open than its weights do
            else:
                raise
            return _graph(Graph(graph.name, graph.target), trace, outputs, batch), trace
    return _from_example(module, where, spec, graph, dynamic, given, batch + 1)


def _of_one_batch(where: str, batch: int, error: Exception) -> IRError:
    return IRError(
        f"{where} cannot be written: it fails where the sequences of the example are repeated to {batch}",
        got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
        expected="a module for any number of sequences",
        remedy="take it from the inputs: torch.zeros(len(x), ...), x.lengths(), a state as an input",
    )


def _leads_of(module: nn.Module, spec: Any, target: Target, inputs: Sequence[Input]) -> list[Lead] | None:
    """The sizes of time and batch on another example; None where the module does not take it."""
    calls = Calls(target)
    try:
        args, kwargs = unflatten(spec, [i.value for i in inputs])
        with torch.no_grad(), calls.noted(), run_plainly(module), as_it_was(module):
            module(*args, **kwargs)
        return leads_of(calls)
    except Exception as error:  # the user's code may raise any
        let_through(error)
        return None
    finally:
        calls.forget()


class _Trace:
    """A module that is traced with what was noted when it ran for real."""

    def __init__(
        self, module: Any, where: str, spec: Any, inputs: list[Input], calls: Calls,
        dynamic: Dynamic | None, kept: Kept,
    ) -> None:  # fmt: skip
        self.kept = kept  # by the run before, in attributes of the module
        self.changes = False  # whether numbers that its code may read are others since that run
        self.reader: str | None = None  # a loop that may read them
        self.steady = True  # the next call makes the same calls of torch
        self.module, self.where, self.spec, self.inputs, self.calls = module, where, spec, inputs, calls
        self.dynamic = dynamic
        # whether the rows of what steps read for each sequence stay open, and whether there are any
        self.memories, self.opened = True, False
        self.declared: Dynamic | None = attribute(module, "open_sizes") if dynamic is None else None
        self.tensors = [i for i in inputs if isinstance(i.value, (Tensor, LoDTensor))]
        self.others: list[list[Callable[[], list[Input]]]] = []  # the same for more sequences, and for fewer
        self.lods = structures(inputs)
        self.examples = [i.value.values if isinstance(i.value, LoDTensor) else i.value for i in self.tensors]
        self.levels = [level for lod in self.lods for level in range(len(lod.levels))]
        self.examples += [lod.lengths(level) for lod in self.lods for level in range(len(lod.levels))]
        self.pads = any(getattr(call_of(number), "pads", False) for number in calls.numbers())
        if self.pads:
            longest = (max(lod.lengths(-1).tolist(), default=0) for lod in self.lods)
            self.examples += [torch.arange(length_of_padded(rows)) for rows in longest]
        self.leads = leads_of(calls)

    def program(self) -> Program:
        """The module with as many sizes left open as was asked for, or else as make sense."""
        chosen = self._open(declared=self.declared)
        made = self._traced(chosen)
        if self.declared is not None:
            return self._chosen(made, chosen)
        if self.dynamic is None and closed(made):  # time may be the last dimension
            chosen = self._open(wide=True)
            made = self._traced(chosen)
            fewer = alone_as_long(self.tensors, chosen, self.leads)
            if closed(made) and fewer != chosen:  # what else is open may make the step fix all of it
                narrow = self._traced(fewer)
                if not closed(narrow):
                    made, chosen = narrow, fewer
        if self.dynamic is None:
            own = len(self.tensors)  # what stands behind them is no input that could be of fixed sizes
            fewer, fewest = (
                without_features(made, chosen, self.examples, memories=memories)[:own] + chosen[own:]
                for memories in (True, False)
            )
            self.opened = self.memories and fewer != fewest
            fewer = fewer if self.memories else fewest
            if fewer != chosen:
                made, chosen = self._traced(fewer), fewer
        return self._chosen(made, chosen)

    def _chosen(self, made: Program, dims: list[dict[int, bool]]) -> Program:
        """Note how the inputs of the program are open, and where they were to be but are not: not by Python
        that counts by a size, which would count by any."""
        self.dims = dims
        self.stuck = [
            (i, d)
            for i, node, chosen in zip(self.tensors, made.inputs, dims, strict=False)
            for d, size in enumerate(() if self.lods else sizes_of(node.meta["val"]))
            if d in chosen and isinstance(size, int) and size not in made.fixed
        ]
        return made

    def _open(self, **how: Any) -> list[dict[int, bool]]:
        """The open dimensions of each example."""
        places = [{0: False}] * (len(self.examples) - len(self.tensors) - len(self.levels))
        chosen = dynamic_of(self.tensors, len(self.levels), self.dynamic, self.where, **how) + places
        if self.lods and self.leads and self.dynamic is None:  # dense recurrences beside ragged inputs
            batch = len(self.lods[0].levels[0]) - 1
            times = [(size,) for lead in self.leads for size in lead if size not in (1, batch)]
            every: list[dict[int, bool]] = [
                dict.fromkeys(range(i.value.dim()) if i.lod is None else (), False) for i in self.tensors
            ]
            for dims, more in zip(chosen, alone_as_long(self.tensors, every, times), strict=False):
                dims.update(more)
        return chosen

    def again(self) -> Iterator[Other]:
        """The program for more sequences, and for fewer, of the first number of each that it takes."""
        for given in self.others:
            for inputs in given:
                t = _Trace(self.module, self.where, self.spec, inputs(), self.calls, self.dynamic, self.kept)
                try:
                    made = t.program()
                except IRError:  # of the module: `topk(3, 0)` needs three sequences
                    continue
                sizes = ([len(n) - 1 for lod in of.lods for n in lod.levels[:2]] for of in (self, t))
                yield Other(made, dict(zip(*sizes, strict=True)), read_in(made))
                break

    def fixed_by_inputs(self, made: Program) -> set[int]:
        """The fixed numbers of steps and sequences that are sizes of inputs, and not the module's own."""
        shapes = [sizes_of(node.meta["val"]) for node in made.inputs]
        places = fixed_leads(made, self.calls)
        sizes = {size for shape in shapes for size in shape if isinstance(size, int)} & places.keys()
        if self.lods:
            return sizes
        frozen = frozen_leads(self.tensors, shapes)
        run = partial(_leads_of, self.module, self.spec, self.calls.target)
        return {size for size in sizes if follows(size, places[size], self.inputs, frozen, run)}

    def following(self) -> Program:
        """The program of the call after the one before."""
        with as_it_was(self.module), uncompiled(self.module):
            self.kept.put_back()
            return program(self._run, self.module, self.examples, self.dims, self.where, is_known)

    def _traced(self, dynamic: list[dict[int, bool]]) -> Program:
        with as_it_was(self.module), uncompiled(self.module):
            made = program(self._run, self.module, self.examples, dynamic, self.where, is_known)
        for node in made.inputs[len(self.tensors) + len(self.levels) :]:
            size = sizes_of(node.meta["val"])[0]
            if isinstance(size, int):
                line = made.fixed.get(size)
                raise IRError(
                    f"{self.where} cannot be written for ragged memories of any length: "
                    f"the dimension L of their rows, [n, L, ...], became {size} in the trace",
                    got="a step that counts by it" + (f" ({line.short})" if line else ""),
                    expected="a step that is the same for all lengths, as a softmax with the mask is",
                    remedy=BY_SIZES,
                )
        read = {t.untyped_storage().data_ptr() for node, t in made.constants.items() if node.users}
        read.discard(0)  # of what is empty
        carried = [
            name for name, old in self.kept.replaced.items() if old.untyped_storage().data_ptr() in read
        ]
        if carried:
            raise IRError(
                f"{self.where} cannot be written: it keeps what it computes for its next call",
                got=", ".join(carried),
                remedy="what stays from call to call as inputs and outputs",
                expected="a module that keeps nothing from call to call",
            )
        return made

    def _run(self, *leaves: Tensor) -> Sequence[Tensor]:
        values = iter(leaves)
        rebuilt: list[Any] = []
        shared: dict[int, LoD] = {}
        for i in self.inputs:
            if i.lod is None:
                rebuilt.append(next(values) if isinstance(i.value, Tensor) else i.value)
                continue
            rows = next(values)
            lod = shared.setdefault(i.lod, LoD.trusted(self.lods[i.lod].levels, rows.shape[0]))
            rebuilt.append(LoDTensor.of(rows, lod))
        by_offsets = {id(level): next(values) for lod in self.lods for level in lod.levels}
        last = [id(lod.levels[-1]) for lod in self.lods]
        places = dict(zip(last, values, strict=True)) if self.pads else {}

        def lengths(offsets: Tensor) -> Tensor:
            if id(offsets) not in by_offsets:
                raise IRError(
                    f"{self.where} cannot be written: "
                    "a recurrence runs over sequences, or asks for lengths, that are not an input's",
                    got="sequences whose lengths the module computes",
                    expected="sequences of a LoDTensor or PackedSequence that the module is given",
                    remedy="an input that has these lengths; or tensors, and the mask of rows as an input",
                )
            return by_offsets[id(offsets)]

        args, kwargs = unflatten(self.spec, rebuilt)
        with self.calls.traced(lengths), during(LENGTHS, lengths), during(PLACES, lambda of: places[id(of)]):
            results, _ = flatten(_plain(self.module(*args, **kwargs)))
        return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in results]


def _graph(graph: Graph, trace: _Trace, outputs: list[str], batch: int) -> Graph:
    """The program of a module as nodes."""
    others = list(trace.again()) if batch else []  # before: what is noted of calls is that of the last trace
    made = trace.program()
    numbers: dict[int, AnyNumber] = {batch: BATCH} if batch else {}
    for k, lod in enumerate(trace.lods):
        if len(lod.levels) > 1:
            numbers[len(lod.levels[1]) - 1] = AnyNumber(f"sequences_{k}")
    more = others[0] if others and others[0].numbers[batch] > batch else None
    grown = {} if more is None else following(made, more.program, more.numbers)
    inputs: list[Value] = []
    for i, node in zip(trace.tensors, made.inputs, strict=False):
        levels = 0 if i.lod is None else len(trace.lods[i.lod].levels)
        inputs.append(graph.parameter(i.name, node.meta["val"].dtype, _shape(node, numbers, levels)))
    emit, outer = Emit(graph), {}
    aten = AtenNet(emit, trace.where)
    aten.numbers, aten.fixed = numbers, made.fixed
    aten.following = {size: AnyNumber(f"number_{size}") for size in grown}
    if trace.dynamic is trace.declared is None:
        read = [part for part in trace.module.modules() if attribute(part, "open_sizes") is not None]
        declared = {size for model in read for socket in model.inputs for size in socket.shape or ()}
        aten.not_open = trace.fixed_by_inputs(made) - declared
    for k, lod in enumerate(trace.lods):
        text = "lengths" if len(trace.lods) == 1 else f"lengths_{k}"
        deep = len(lod.levels) > 1
        lengths = graph.parameter(f"{text}_0" if deep else text, torch.int64, (-1,))
        inputs.append(lengths)
        if deep:
            grid = graph.parameter(f"{text}_1", torch.int64, (-1, -1))
            inside = emit.squeeze(mask_of(emit, StepAxis(1, False, lengths), grid), 2)
            grid = emit.call("where", inside, grid, emit.scalar(0))
            aten.ragged[f"sequences_{k}"], aten.grids[f"sequences_{k}"] = lengths, grid
            lengths = emit.reshape(grid, [-1])
            inputs.append(grid)
        for at, (i, node) in enumerate(zip(trace.tensors, made.inputs, strict=False)):
            if i.lod == k:
                symbol = str(node.meta["val"].shape[0])
                aten.ragged[symbol] = lengths
                if deep:
                    inputs[at], outer[symbol] = join_lead(emit, inputs[at]), aten.grids[f"sequences_{k}"]
                inputs[at] = _read_anywhere(emit, inputs[at], node, lengths)
    tables = {i.lod: value for i, value in zip(trace.tensors, inputs, strict=False)}
    for k in range(len(trace.lods) if trace.pads else 0):
        inputs.append(emit.range(emit.squeeze(emit.size(tables[k], 1), 0)))
    for value, node, text in zip(aten.run(made, inputs), made.outputs, outputs, strict=True):
        symbol = str((aten.shape(node) or [None])[0])
        ended = _ended(aten, node, value)
        levels = int(symbol in aten.ragged) + int(symbol in outer)
        if symbol in outer:
            ended = split_lead(emit, ended, outer[symbol])
        graph.result(ended, (text,), _shape(node, {**numbers, **aten.following}, levels))
    if others:
        check_counts(made, others, grown, trace.where)
    if trace.changes:
        read = read_in(made)
        trace.steady = check_counters(made, trace.following(), trace.kept.numbers, trace.where)
        trace.reader = other_reader(made, read)
    return graph


def _shape(node: Any, numbers: Numbers, levels: int) -> list[int]:
    """The shape of a traced tensor, -1 where it is open; rows of ragged sequences are padded."""
    shape = [size if isinstance(size, int) else -1 for size in sizes_of(node.meta["val"], numbers)]
    return [*[-1] * (levels + 1), *shape[1:]] if levels else shape


def _read_anywhere(emit: Emit, table: Value, node: Any, lengths: Value) -> Value:
    """Rows of which the padding does no harm: whole numbers may be indices, or what is divided by."""
    rows = node.meta["val"]
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool or not node.users:
        return table
    mask = mask_of(emit, StepAxis(1, False, lengths), table, rows.dim() - 1)
    return emit.call("where", mask, table, emit.number(1, rows.dtype))


def _ended(aten: AtenNet, node: Any, out: Value) -> Value:
    """Zeros past the end of each sequence."""
    if not aten.is_ragged(node):
        return out
    emit, dtype = aten.emit, node.meta["val"].dtype
    steps = StepAxis(1, False, aten.ragged[str(aten.shape(node)[0])])
    mask = mask_of(emit, steps, out, len(node.meta["val"].shape) - 1)
    return emit.call("where", mask, out, emit.number(0, dtype))


def _described(module: Any) -> str:
    if isinstance(module, nn.Module):
        return f"module {type(module).__name__}"
    return f"function {getattr(module, '__name__', type(module).__name__)}"


def _arguments(module: nn.Module, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example_inputs is None:
        raise IRError(
            "save: 'example_inputs' is missing: a module is run on them to see what it does",
            got=f"a {type(module).__name__}, and None",
            remedy="a tensor or a LoDTensor, a tuple of arguments (() for none), or a dict of them by name",
        )
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)) and not isinstance(example_inputs, PackedSequence):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _plain(results: Any) -> Any:
    """What a module returns, as tensors in tuples, lists and dicts, without metrics: no file has those."""
    if isinstance(results, Outputs):
        return dict(results.items())
    if isinstance(results, dict):
        named = {name: _plain(part) for name, part in results.items() if not isinstance(part, Metrics)}
        return named or results
    if type(results) not in (tuple, list) or all(isinstance(part, Metrics) for part in results):
        return results
    parts = [_plain(part) for part in results if not isinstance(part, Metrics)]
    if len(parts) == 1 < len(results):  # what a topology returns: its outputs, and they
        return parts[0]
    return type(results)(parts)


def _outputs(results: Any, where: str) -> list[str]:
    """The names of the outputs: by key if they are in a dict."""
    parts = results if isinstance(results, dict) and results else {"y": results}
    texts: list[str] = []
    for key, part in parts.items():
        leaves, spec = flatten(part)
        for text, value in zip(names(spec, str(key)), leaves, strict=True):
            if not isinstance(value, (Tensor, LoDTensor)):
                raise IRError(
                    f"{where} cannot be written: its result {text} is no tensor",
                    got=type(value).__name__,
                    expected="tensors, LoDTensors, and containers of them",
                    remedy="leave it out of what the module returns",
                )
            texts.append(text)
    return texts


def _check_kinds(module: nn.Module, where: str) -> None:
    """Refuse modules that hold their numbers out of torch's sight.

    Raises:
        IRError: one is quantised.
    """
    for name, part in module.named_modules():
        kind = type(part)
        if kind.__module__.startswith("torch.ao.nn.quantized"):
            raise IRError(
                f"{where} cannot be written: '{name}' is quantised",
                got=f"{kind.__module__}.{kind.__name__}",
                expected="layers whose weights are tensors",
                remedy="save it before it is quantised, and quantise the file by the tools of its runtime",
            )
