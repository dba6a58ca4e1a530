"""Shapes of a whole model without running it: every layer on meta tensors, so nothing is allocated.

Shapes that a model computes are numbers: what is small and known is computed, the rest is only a shape.
A dynamic dimension has no size, so the model is gone through twice, with two sizes for all of them. What
fails in the same way for both fails for every size, and is an error of the file. What fails in different
ways, or for one size, is not known here; it shows when the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name, typed_shape
from stepnet.errors import IRError, LoopError
from stepnet.executors.naive import number_of
from stepnet.executors.segment import Count, iterations
from stepnet.file_model import ERRORS, Broken, Socket, shorten
from stepnet.ir.loop import Concat, Iteration, Loop, Slice

from .element_types import by_name
from .graph import Graph, Node
from .layers.row import Misfit
from .loops import IfRunner, LoopRunner, TensorIteratorRunner
from .reader import declared_shape, fits, shown
from .records import Layer
from .table import ROWS
from .weights import check_bytes

# The first operator on a meta tensor imports much of torch: with this module, not within the first load.
torch.empty(1, device="meta").add(1)

SIZES = (12, 24)  # for dynamic dimensions: with many divisors, so that strides and splits fit
_SMALL = 4096  # elements of a value that is computed
_MOST_NODES = 20_000
_ALL = ('start="0" end="-1": all that the loop gives', 'start="-1" end="0": all of it, the last first')


class _Unknown:
    """A value of which not even the shape is known."""


UNKNOWN = _Unknown()


class _Fault(Exception):
    """A layer that fails, and `key`: what must be equal under both sizes for the fault to be one."""

    def __init__(self, error: IRError, key: object, gives: Sequence[Tensor] | None = None) -> None:
        super().__init__(str(error))
        self.error, self.gives = error, gives
        self.key = (re.sub(r"\d+", "?", str(error).splitlines()[0]), key)

    @classmethod
    def at(cls, layer: Layer, what: str, key: object = None, **said: Any) -> _Fault:
        """The fault of a layer; `key` is `what` if nothing else is given."""
        return cls(Broken(f"{layer.where}: {what}", **said), what if key is None else key)

    def told_with(self, more: str) -> _Fault:
        """The same fault, with more in what was got."""
        error = self.error
        if error.got is not None:
            got = f"{error.got}; {more}"
            self.error = IRError(error.where, got=got, expected=error.expected, remedy=error.remedy)
        return self


def check_shapes(
    graph: Graph, shapes: Sequence[tuple[int, ...] | None], dtypes: Sequence[torch.dtype]
) -> None:
    """Infer all shapes from those of the model's inputs (None: rank unknown).

    Raises:
        IRError: a layer's inputs do not fit, or what it gives does not fit what its port declares, whatever
            sizes the dynamic dimensions have.
    """
    _check(_walks(graph, shapes, dtypes), declared=True)


def _walks(
    graph: Graph, shapes: Sequence[tuple[int, ...] | None], dtypes: Sequence[torch.dtype]
) -> Iterator[Walk]:
    """A walk for each size of the dynamic dimensions; one where there are none."""
    dynamic = any(shape is None or -1 in shape for shape in shapes)
    for size in SIZES if dynamic else SIZES[:1]:
        walk = Walk({})
        arguments: list[Any] = []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            if shape is None:
                arguments.append(UNKNOWN)
            else:
                sizes = [size if d == -1 else d for d in shape]
                arguments.append(torch.empty(sizes, dtype=dtype, device="meta"))
        results = walk.graph(graph, arguments)
        _check_states(graph, shapes, dtypes, results, walk.faults)
        yield walk


def _check(walks: Iterable[Walk], declared: bool = False) -> None:
    found: list[dict[str, _Fault]] = []
    for walk in walks:
        faults = walk.faults
        if declared:  # what comes of another fault is told behind it
            faults = faults | {w: f for w, f in walk.misdeclared.items() if w not in faults}
        if not faults:
            return
        found.append(faults)
    for where, fault in found[0].items():
        if all(where in faults and faults[where].key == fault.key for faults in found):
            raise Broken(_in_open_sizes(*(str(faults[where].error) for faults in found))) from fault.error


def _in_open_sizes(text: str, other: str | None = None) -> str:
    """What an error says, where it says it of two sizes: what differs is no size of the file."""
    parts, others = (re.split(r"(\d+)", said) for said in (text, other or text))
    alike = parts[::2] == others[::2]
    return "".join("?" if alike and a != b else a for a, b in zip_longest(parts, others, fillvalue=""))


def _check_states(
    graph: Graph,
    shapes: Sequence[tuple[int, ...] | None],
    dtypes: Sequence[torch.dtype],
    results: Sequence[Any],
    faults: dict[str, _Fault],
) -> None:
    """Hold what is assigned to each variable against what the file says of the variable."""
    net = graph.net
    for name, (read, write) in net.states.items():
        at, value = net.parameters.index(read), results[net.results.index(write)]
        if not isinstance(value, Tensor):
            continue
        variable = Socket(name, shapes[at], dtypes[at])
        where = net.layers[net.layers[write].sources[0][0]].where
        if not variable.fits(value) or value.dtype != variable.dtype:
            error = Broken(
                f"{where}: what it assigns does not fit the variable '{shorten(name)}'",
                got=typed_shape(value),
                expected=str(variable),
            )
            faults.setdefault(where, _Fault(error, typed_shape(value)))


def infer(
    graph: Graph, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]
) -> dict[int, list[tuple[torch.dtype, tuple[int, ...] | None] | None]]:
    """What is known of the outputs of each layer, bodies included, by the `id` of its record.

    A dimension that both sizes of the dynamic dimensions give alike is static. None: the dtype is not
    known; a shape of None: only the dtype is.

    Raises:
        IRError: a layer's inputs do not fit, whatever sizes the dynamic dimensions have.
    """
    walks = [*_walks(graph, shapes, dtypes)]
    _check(walks)
    first, second = walks[0].seen, walks[-1].seen
    return {
        key: [_merged(a, b) for a, b in zip(first[key], second[key], strict=False)]
        for key in first.keys() & second.keys()
    }


def _merged(a: Any, b: Any) -> tuple[torch.dtype, tuple[int, ...] | None] | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        known = next((v.dtype for v in (a, b) if isinstance(v, Tensor)), None)
        return None if known is None else (known, None)
    if a.dim() != b.dim():
        return a.dtype, None
    return a.dtype, tuple(m if m == n else -1 for m, n in zip(a.shape, b.shape, strict=True))


class Walk:
    """One walk through a graph and the bodies in it; faults by layer, results by the `id` of its record."""

    def __init__(self, faults: dict[str, _Fault], seen: dict[int, Sequence[Any]] | None = None) -> None:
        self.faults = faults
        self.misdeclared: dict[str, _Fault] = {}
        self.seen: dict[int, Sequence[Any]] = {} if seen is None else seen
        self.visited = 0

    def graph(self, graph: Graph, arguments: Sequence[Any]) -> list[Any]:
        """Go through a graph; its results."""
        for number, value in zip(graph.net.parameters, arguments, strict=True):
            self._check_fed(graph.net.layers[number], value)
        slots, misfed = graph.start(arguments), _misfed(graph, arguments)
        for node in graph.nodes:
            self.visited += 1
            given = [slots[slot] for slot in node.inputs]
            results: Sequence[Any] = [UNKNOWN] * len(node.outputs)
            if self.visited <= _MOST_NODES and not any(value is UNKNOWN for value in given):
                try:
                    results = self.node(node, given)
                except _Fault as fault:
                    told = fault.told_with(misfed) if misfed else fault
                    self.faults.setdefault(node.layer.where, told)
                    results = fault.gives or results
            self.seen[id(node.layer)] = results
            self._check_given(node.layer, results)
            for slot, result in zip(node.outputs, results, strict=False):
                slots[slot] = result
        for number, value in zip(graph.net.parameters, arguments, strict=True):
            self._check_fed_shape(graph.net.layers[number], value)
        return [slots[slot] for slot in graph.result_slots]

    def _check_fed(self, parameter: Layer, value: Any) -> None:
        """Hold the element type that a Parameter declares against what comes in."""
        name = parameter.attributes.get("element_type")
        if name is None or not isinstance(value, Tensor):
            return
        declared = by_name(name, parameter.where)
        if value.dtype == declared.dtype:
            return
        said = {"got": dtype_name(value.dtype), "expected": dtype_name(declared.dtype)}
        fault = _Fault.at(parameter, "what it is fed has another element type", str(value.dtype), **said)
        self.faults.setdefault(parameter.where, fault)

    def _check_fed_shape(self, parameter: Layer, value: Any) -> None:
        """The same of its shape, which the layers that read it do not ask for: they are blamed before it."""
        shape = declared_shape(parameter)
        if shape and _is_misfed(parameter, value):
            said = {"got": shown(tuple(value.shape)), "expected": shown(shape)}
            fault = _Fault.at(parameter, "what it is fed has another shape", _differ(shape, value), **said)
            self.faults.setdefault(parameter.where, fault)

    def _check_given(self, layer: Layer, results: Sequence[Any]) -> None:
        """Hold what a layer gives against what its ports declare."""
        for port, value in zip(layer.outputs, results, strict=False):
            if not isinstance(value, Tensor) or not port.shape or fits(port.shape, value.shape):
                continue  # () is also what a port has that says no dims
            got, made = shown(port.shape), shown(tuple(value.shape))
            what = f"output port {port.id} declares {got}, but the layer gives {made}"
            fault = _Fault.at(layer, what, _differ(port.shape, value), got=got, expected=made)
            self.misdeclared.setdefault(layer.where, fault)

    def branch(self) -> Walk:
        """A walk for a branch of an If, whose faults do not count."""
        return Walk({}, self.seen)

    def node(self, node: Node, given: Sequence[Any]) -> Sequence[Any]:
        """What one layer gives."""
        if isinstance(node.run, TensorIteratorRunner):
            return self._tensor_iterator(node, node.run, given)
        if isinstance(node.run, LoopRunner):
            return self._loop(node, node.run, given)
        if isinstance(node.run, IfRunner):
            return self._if(node, node.run, given)
        _check_kinds(node, given)
        for i in node.values:
            if i < len(given) and given[i].dim() > 1:
                said = {"got": typed_shape(given[i]), "expected": "at most one dimension"}
                what = f"input {i} must be one number, or a list of them"
                raise _Fault.at(node.layer, what, None, **said)
        if any(given[i].is_meta for i in node.values if i < len(given) and i not in node.fixed):
            return [UNKNOWN] * len(node.outputs)
        arguments = list(given)
        for i in range(len(arguments)):
            if i in node.values:
                arguments[i] = node.fixed[i] if i in node.fixed else arguments[i].tolist()
            else:
                arguments[i] = _as_meta(arguments[i])
        results = self._call(node, arguments)
        if results is None:
            return [UNKNOWN] * len(node.outputs)
        small = all(r.numel() <= _SMALL for r in results)
        if small and not any(
            v.is_meta or v.numel() > _SMALL for i, v in enumerate(given) if i not in node.values
        ):
            real = [a if i in node.values else given[i] for i, a in enumerate(arguments)]
            return self._call(node, real) or [UNKNOWN] * len(node.outputs)
        return results

    def _call(self, node: Node, arguments: Sequence[Any]) -> Sequence[Any] | None:
        same = _same_calls(node, arguments)
        if same in _KNOWN:
            return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in _KNOWN[same]]
        shapes = str([list(a.shape) if isinstance(a, Tensor) else a for a in arguments])
        try:
            result = node.computed(arguments)
        except Misfit as misfit:
            key = str(misfit.dims) if misfit.dims is not None else shapes
            raise _Fault(node.error(misfit, arguments), key, misfit.gives) from misfit
        except NotImplementedError:
            return None
        except IRError as error:
            raise _Fault(error, str(error)) from error
        except ERRORS as error:
            raise _Fault(node.error(error, arguments), shapes) from error
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        for value in results:
            try:
                check_bytes(value.shape, value.element_size(), node.layer.where)
            except IRError as error:
                raise _Fault(error, shapes) from error
        if same is not None and len(_KNOWN) < _MOST_KNOWN and all(value.is_meta for value in results):
            _KNOWN[same] = [(tuple(value.shape), value.dtype) for value in results]
        return results

    def _tensor_iterator(
        self, node: Node, runner: TensorIteratorRunner, given: Sequence[Any]
    ) -> Sequence[Any]:
        loop = runner.loop
        feeds = dict(zip(runner.ports, given, strict=True))
        counts: dict[str, int] = {}
        arguments: dict[str, Any] = {}
        outside: _Fault | None = None
        for port in loop.slices:
            arguments[port.parameter] = self._one_slice(node, port, feeds[port.source])
            try:
                counts[port.parameter] = self._slices(node, port, feeds[port.source])
            except _Fault as fault:
                outside = outside or fault
        arguments |= {port.parameter: feeds[port.source] for port in (*loop.merged, *loop.invariants)}
        if outside is not None:  # perhaps of the sizes tried alone; the body is as it is
            self.faults.setdefault(node.layer.where, outside)
            self.graph(node.bodies[""], [arguments[p] for p in loop.body.parameters])
            return [UNKNOWN] * len(node.outputs)
        if len(set(counts.values())) > 1:
            if 0 in counts.values():  # perhaps of a range that is none in a dimension of the sizes tried
                return [UNKNOWN] * len(node.outputs)
            text = ", ".join(f"'{shorten(name)}': {count}" for name, count in list(counts.items())[:8])
            what, wanted = "sliced inputs have different numbers of iterations", "the same number for each"
            raise _Fault.at(
                node.layer, what, text, got=text, expected=f"{wanted}, by axis, start, end and stride"
            )
        steps = next(iter(counts.values()), None)
        if steps is None:
            steps = self._counted(node, runner)
        results = self.graph(loop.body.graph, [arguments[p] for p in loop.body.parameters])  # type: ignore[attr-defined]
        named = dict(zip(loop.body.results, results, strict=True))
        self._check_carried(node, loop, arguments, named)
        if self._moves(node, loop, arguments, named, steps) and steps > 1:
            return [UNKNOWN] * len(node.outputs)
        outputs = []
        for port in loop.outputs:
            value = named[port.result]
            if isinstance(port, Concat) and isinstance(value, Tensor):
                outputs.append(self._joined(node, port, value, steps))
            else:
                outputs.append(value)
        by_name = dict(zip((port.output for port in loop.outputs), outputs, strict=True))
        return [by_name[name] for name in runner.outputs]

    def _check_carried(
        self, node: Node, loop: Loop, arguments: Mapping[str, Any], results: Mapping[str, Any]
    ) -> None:
        """Refuse a back edge from one element type to another."""
        for parameter, result in loop.carried.items():
            before, after = arguments.get(parameter), results.get(result)
            if isinstance(before, Tensor) and isinstance(after, Tensor) and before.dtype != after.dtype:
                text = f"back edge from '{shorten(result)}' to '{shorten(parameter)}'"
                wanted = f"{dtype_name(before.dtype)}, of which the first value is"
                what = f"{text}: the element type changes from step to step"
                raise _Fault.at(node.layer, what, text, got=dtype_name(after.dtype), expected=wanted)

    def _moves(
        self,
        node: Node,
        loop: Loop,
        arguments: Mapping[str, Any],
        results: Mapping[str, Any],
        steps: int | None,
    ) -> bool:
        """Whether a state changes its shape; refuses one with which a second step does not run."""
        carried = {to: start for to, start in loop.carried.items() if to in arguments}
        moved = [to for to, start in carried.items() if not _alike(arguments[to], results[start])]
        if not moved or steps is None or steps < 2:
            return bool(moved)
        again, given = Walk({}, {}), {**arguments, **{to: results[start] for to, start in carried.items()}}
        again.visited = self.visited
        again.graph(node.bodies[""], [given[p] for p in loop.body.parameters if p in given])
        self.visited = again.visited
        for fault in again.faults.values():
            to = next((to for to in moved if isinstance(results[carried[to]], Tensor)), moved[0])
            what = f"back edge from '{shorten(carried[to])}' to '{shorten(to)}': the second step does not run"
            text = str(fault.error).splitlines()[0]
            raise _Fault.at(
                node.layer, what, (fault.key, steps), got=f"{_kind(results[carried[to]])}; {text}",
                expected=f"{_kind(arguments[to])}, as the first step is given",
            ) from fault.error  # fmt: skip
        return True

    def _counted(self, node: Node, runner: TensorIteratorRunner) -> int:
        try:
            return Count(runner.loop).steps
        except LoopError as error:
            raise _Fault.at(node.layer, error.args[0], "count") from error

    def _one_slice(self, node: Node, port: Slice, value: Tensor) -> Tensor:
        """What one iteration is given of a sliced input."""
        if not -value.dim() <= port.axis < value.dim():
            raise _outside(
                node.layer, f"the slice of '{shorten(port.parameter)}'", port.axis, "an input", value
            )
        shape = list(value.shape)
        shape[port.axis] = port.part_size or 1
        return torch.empty(shape, dtype=value.dtype, device="meta")

    def _slices(self, node: Node, port: Slice, value: Tensor) -> int:
        """How many slices a sliced input has, along an axis that it has."""
        size = value.shape[port.axis]
        try:
            return iterations(port, size)[2]
        except LoopError as error:
            text = error.args[0].replace(port.parameter, shorten(port.parameter))
            raise _Fault.at(node.layer, text, size) from error

    def _part(self, node: Node, port: Concat, value: Tensor) -> tuple[int, int]:
        """The axis along which the results of an output are joined, and how many each has there."""
        if not -value.dim() <= port.axis < value.dim():
            raise _outside(node.layer, f"output {port.output}", port.axis, "a result", value)
        axis, part = port.axis % value.dim(), port.part_size or 1
        if value.shape[axis] != part:
            size = value.shape[axis]
            text = f"part_size is {part}, but the result has {size} elements along axis {axis}"
            got, wanted = f"a result of {list(value.shape)}", f"{part} along axis {axis}, or part_size={size}"
            what = f"output {port.output}: {text}"
            raise _Fault.at(node.layer, what, (part, size), got=got, expected=wanted)
        return axis, part

    def _joined(self, node: Node, port: Concat, value: Tensor, steps: int) -> Tensor:
        axis, part = self._part(node, port, value)
        whole = steps * part
        start, end = (v + whole + 1 if v < 0 else v for v in (port.start, port.end))
        said = (end - start) / port.stride
        text = f"output {port.output}: the range from {port.start} to {port.end} by {port.stride}"
        if port.start >= 0 and port.end >= 0 and said != steps:  # it says by itself how many there are
            what = f"{text} is not as long as the loop"
            raise _Fault.at(node.layer, what, (said, steps), got=f"{said:g} iterations", expected=steps)
        if any(not 0 <= v <= whole for v in (start, end)):
            what, got = f"{text} lies outside what the loop gives", f"start={port.start}, end={port.end}"
            key, wanted = str((port.start, port.end)), f"both within {whole} elements"
            raise _Fault.at(node.layer, what, key, got=got, expected=wanted)
        if said != steps:
            what, got = f"{text} is not as long as the loop", f"{said:g} iterations of {steps}"
            raise _Fault.at(node.layer, what, said - steps, got=got, expected=_ALL[port.stride < 0])
        declared = next(p for p in node.layer.outputs if f"port {p.id}" == port.output).shape
        if declared is not None and len(declared) == value.dim() and declared[axis] not in (-1, steps * part):
            size, made = declared[axis], steps * part
            what = (
                f"output {port.output} declares {size} along axis {axis} but {steps} iterations x part {part}"
            )
            raise _Fault.at(node.layer, f"{what} give {made}", (size, made), got=size, expected=made)
        shape = list(value.shape)
        shape[axis] = steps * part
        check_bytes(tuple(shape), value.element_size(), node.layer.where)
        return torch.empty(shape, dtype=value.dtype, device="meta")

    def _loop(self, node: Node, runner: LoopRunner, given: Sequence[Any]) -> Sequence[Any]:
        loop = runner.loop
        self._check_one(node, given[0], "trip count")
        self._check_one(node, given[1], "condition")
        feeds: dict[str, Any] = {f"port {port}": given[i] for port, i in runner.index.items()}
        numbers = (port for port in loop.inputs if isinstance(port, Iteration))
        arguments = {port.parameter: _as_meta(number_of(port, 0)) for port in numbers}
        cut = [(port, feeds[port.source]) for port in loop.slices]
        arguments |= {port.parameter: self._one_slice(node, port, value) for port, value in cut}
        longest = min((self._slices(node, port, value) for port, value in cut), default=None)
        if runner.trips is not None and longest is not None and longest < runner.trips:
            said = {"got": f"{longest} slices", "expected": f"{runner.trips}, the trip count"}
            what = "an input has fewer slices than the trip count"
            raise _Fault.at(node.layer, what, (longest, runner.trips), **said)
        whole = [port for port in (*loop.merged, *loop.invariants) if port.source in feeds]
        arguments |= {port.parameter: feeds[port.source] for port in whole}
        found = self.graph(runner.graph, [arguments[p] for p in loop.body.parameters if p in arguments])
        named = dict(zip(loop.body.results[-len(found) :], found, strict=True))
        going = found[runner.graph.net.results.index(runner.condition)]
        self._check_one(node, going, "execution condition")
        self._check_carried(node, loop, arguments, named)
        steps = None
        if runner.goes_on_always and runner.trips is not None:
            steps = longest if runner.trips < 0 else runner.trips
        if self._moves(node, loop, arguments, named, steps):
            return [UNKNOWN] * len(node.outputs)
        by_port = {port.output: _shape_of(named[port.result]) for port in loop.outputs}
        for port in loop.outputs:
            if isinstance(port, Concat) and isinstance(value := by_port[port.output], Tensor):
                if steps is None:
                    self._part(node, port, value)
                by_port[port.output] = UNKNOWN if steps is None else self._joined(node, port, value, steps)
        return [by_port[f"port {p.id}"] for p in node.layer.outputs]

    def _check_one(self, node: Node, value: Any, what: str) -> None:
        """What a layer that decides takes: one number, whole or a truth value."""
        truth = isinstance(value, Tensor) and value.dtype == torch.bool and "trip" in what
        if isinstance(value, Tensor) and (value.is_floating_point() or truth):
            said = {"got": dtype_name(value.dtype), "expected": "whole numbers" if "trip" in what else "bool"}
            raise _Fault.at(node.layer, f"the {what} is of another element type", str(value.dtype), **said)
        if isinstance(value, Tensor) and value.numel() != 1:
            said = {"got": f"a tensor of {list(value.shape)}", "expected": "one value"}
            raise _Fault.at(node.layer, f"the {what} must be one value", str(value.shape), **said)

    def _if(self, node: Node, runner: IfRunner, given: Sequence[Any]) -> Sequence[Any]:
        branches: list[Mapping[int, Any]] = []
        self._check_one(node, given[0], "condition")
        for prefix, graph in runner.graphs.items():
            rows = node.layer.maps[prefix]
            values = {row.internal: given[runner.index[row.external]] for row in rows.inputs}
            for i, value in values.items():
                self._check_fed(graph.net.layers[i], value)
            quiet = self.branch()  # a branch that is never taken may not fit
            found = quiet.graph(graph, [values[i] for i in graph.net.parameters])
            results = dict(zip(graph.net.results, found, strict=True))
            branches.append({row.external: results[row.internal] for row in rows.outputs})
        for port in node.layer.outputs:
            one, other = (found[port.id] for found in branches)
            if isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype != other.dtype:
                types = f"{dtype_name(one.dtype)} of then_body, {dtype_name(other.dtype)} of else_body"
                what = f"its bodies give output port {port.id} values of different element types"
                raise _Fault.at(node.layer, what, types, got=types, expected="one element type")
        return [
            _shape_of(branches[0][p.id]) if _alike(branches[0][p.id], branches[1][p.id]) else UNKNOWN
            for p in node.layer.outputs
        ]


# What layers give of shapes. Those of a model are few, and each is met in its body, in the whole, and again
# when the file is read; a call of torch takes many times as long as a look.
_KNOWN: dict[str, list[tuple[tuple[int, ...], torch.dtype]]] = {}
_MOST_KNOWN = 4_000


def _check_kinds(node: Node, given: Sequence[Any]) -> None:
    """Refuse inputs of element types that a layer does not take."""
    row = ROWS[node.layer.type.lower()]
    for i, value in enumerate(given):
        kind = row.refused(i, value.dtype)
        if kind is not None:
            name = dtype_name(value.dtype)
            said = {"got": typed_shape(value), "expected": kind}
            raise _Fault.at(node.layer, f"input {i} is of {name}", None, **said)


def _differ(declared: Sequence[int], value: Tensor) -> str:
    """Where a shape differs from the declared one: the same at other sizes of the dynamic dimensions."""
    if len(declared) != value.dim():
        return f"{len(declared)}, {value.dim()}"
    pairs = enumerate(zip(declared, value.shape, strict=True))
    return str([(i, *pair) for i, pair in pairs if -1 not in pair and pair[0] != pair[1]])


def _is_misfed(parameter: Layer, value: Any) -> bool:
    """Whether a Parameter declares another shape than comes in."""
    shape = declared_shape(parameter)
    return isinstance(value, Tensor) and bool(shape) and not fits(shape, value.shape)


def _misfed(graph: Graph, arguments: Sequence[Any]) -> str:
    """The Parameters of a body that declare other shapes than come in: the fault of a layer may be theirs."""
    layers = [graph.net.layers[number] for number in graph.net.parameters]
    return "; ".join(
        f"the Parameter '{shorten(layer.name)}' is fed {shown(tuple(value.shape))}"
        f" and declares {shown(declared_shape(layer))}"
        for layer, value in zip(layers, arguments, strict=True)
        if _is_misfed(layer, value)
    )


def _same_calls(node: Node, arguments: Sequence[Any]) -> str | None:
    """What a layer's results follow from, where they are shapes."""
    if not all(a.is_meta for a in arguments if isinstance(a, Tensor)):
        return None
    layer = node.layer
    of = [(list(a.shape), a.dtype) if isinstance(a, Tensor) else a for a in arguments]
    kinds = [port.type for port in layer.outputs]
    text = str((layer.type, layer.version, layer.attributes, kinds, of, node.known))
    return text if len(text) < 2000 else None


def _outside(layer: Layer, what: str, axis: int, of: str, value: Tensor) -> _Fault:
    text = f"axis {axis} lies outside {of} of {value.dim()} dimensions"
    axes = f"{-value.dim()} to {value.dim() - 1}" if value.dim() else "a tensor with axes"
    return _Fault.at(layer, f"{what}: {text}", text, got=f"axis={axis}", expected=axes)


def _as_meta(value: Tensor) -> Tensor:
    return value if value.is_meta else torch.empty(value.shape, dtype=value.dtype, device="meta")


def _kind(value: Any) -> str:
    return typed_shape(value) if isinstance(value, Tensor) else "not known"


def _shape_of(value: Any) -> Any:
    return _as_meta(value) if isinstance(value, Tensor) else value


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype
