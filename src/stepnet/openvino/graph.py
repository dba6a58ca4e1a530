"""A net that runs: its constants, and its layers in order, as a torch module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.errors import IRError, StepnetError
from stepnet.export.open_sizes import Repeated, Sizes, plain
from stepnet.file_model import (
    ERRORS,
    UNSIGNED,
    Broken,
    Named,
    Prepared,
    Recorder,
    attributes_text,
    error,
    given,
    plainly_fed,
    widened,
)
from stepnet.file_model.joining import Joining
from stepnet.file_model.scan_steps import ScanStep
from stepnet.file_model.step_rules import Seen
from stepnet.ir.last_uses import last_uses

from .element_types import by_name
from .first_states import choices
from .layers.elementwise import convert
from .layers.row import Misfit, Row, listed
from .layers.sequences import SequenceRunner
from .open_sizes import BY_LAYER, RULES, on_sizes
from .records import Layer, Net
from .step_rules import RULES as RULES_OF_STEPS
from .table import ROWS, is_constant
from .weights import Weights

_CONVERTS = ("convert", "convertlike", "convertpromotetypes")
_ON_SIZES = {*RULES, *BY_LAYER}
_LONGEST = 2**20  # numbers in a value input
_FEW = 64  # numbers in a constant that shapes are computed with


@dataclass(eq=False)
class Node:
    """A layer ready to run: slots of its inputs and outputs, and its function."""

    layer: Layer
    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    values: tuple[int, ...]  # inputs given as Python numbers
    fixed: dict[int, Any] = field(default_factory=dict)  # those known when the file is read
    done: tuple[int, ...] = ()  # slots that no later node reads
    known: dict[int, Any] = field(default_factory=dict)  # whole numbers of inputs that are constants
    bodies: dict[str, Any] = field(default_factory=dict)

    def arguments(self, slots: Sequence[Any] | Mapping[int, Any]) -> list[Any]:
        """What the function is given."""
        return self._with_numbers([slots[slot] for slot in self.inputs])

    def _with_numbers(self, arguments: list[Any]) -> list[Any]:
        for i in self.values:
            if i < len(arguments):
                arguments[i] = self.fixed[i] if i in self.fixed else arguments[i].tolist()
        return arguments

    @cached_property
    def said(self) -> Any:
        """All that it does but for the numbers that it is given."""
        layer, bodies = self.layer, sorted(self.bodies.items())
        fixed = sorted(self.fixed.items()), sorted(self.known.items())
        said = layer.type, layer.version, sorted(layer.attributes.items()), layer.maps, layer.back_edges
        return said, layer.inputs, layer.outputs, fixed, [(prefix, body.content) for prefix, body in bodies]

    def knows(self, k: int) -> bool:
        """Whether it holds the numbers of an input."""
        return k in self.fixed

    def of_steps(self, seen: Seen) -> list[Any] | None:
        """What it reads of steps, where it treats them alike."""
        rule = RULES_OF_STEPS.get(self.layer.type.lower())
        return None if rule is None else rule(self, seen)

    def order(self) -> list[int] | None:
        """The order that it brings axes into."""
        order = listed(self.fixed[1]) if self.layer.type == "Transpose" and 1 in self.fixed else None
        return [axis % len(order) for axis in order] if order else None

    def makes_sizes(self, sizes: set[Any]) -> bool:
        """Whether it computes sizes, of sizes such as `sizes` or of what it finds in tensors."""
        of_sizes = all(slot in sizes or k in self.known for k, slot in enumerate(self.inputs))
        kind = self.layer.type.lower()
        return kind == "shapeof" or (kind in _ON_SIZES and of_sizes)

    def as_scan(self) -> ScanStep | None:
        """It as a loop whose steps others may become part of."""
        make = getattr(self.run, "as_scan", None)
        return None if make is None else make(self)

    def call(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run on its inputs as they are among the slots."""
        return self.run_on(self._with_numbers(list(values)))

    def run_on(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Run, and give one result for each output.

        Raises:
            IRError: the inputs do not fit the layer.
        """
        try:
            if any(isinstance(value, (Sizes, Repeated)) for value in arguments):
                kind = self.layer.type.lower()
                found = on_sizes(kind, arguments, self.known, self.run, self._converted)
                if found is not None:
                    return (found,)
                if not getattr(self.run, "takes_sizes", False):
                    arguments = [plain(value) for value in arguments]
            result = self.computed(arguments)
        except IRError:
            raise
        except (Misfit, StepnetError, *ERRORS) as problem:
            raise self.error(problem, arguments) from problem
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def computed(self, arguments: Sequence[Any]) -> Any:
        """What its function gives; of unsigned types that torch does not compute with, by int64."""
        unsigned = any(isinstance(value, Tensor) and value.dtype in UNSIGNED for value in arguments)
        if not unsigned or self.layer.bodies or self.layer.type.lower() in _CONVERTS:
            return self.run(*arguments)
        found = self.run(*widened(arguments))
        found = found if isinstance(found, (tuple, list)) else (found,)
        kinds = [None if port.type is None else port.type.dtype for port in self.layer.outputs]
        return tuple(v.to(kind) if kind in UNSIGNED else v for v, kind in zip(found, kinds, strict=False))

    @property
    def _converted(self) -> torch.dtype | None:
        """What a Convert makes."""
        name = self.layer.attributes.get("destination_type")
        return None if name is None else by_name(name, self.layer.where, "destination_type").dtype

    def error(self, problem: BaseException, arguments: Sequence[Any]) -> IRError:
        """An IRError that names this layer."""
        return error(self.layer.where, problem, given(arguments), _FITTING.format(self.layer.type))


_FITTING = "inputs and attributes that fit {}, as OpenVINO defines it"


@dataclass(frozen=True)
class Making:
    """What graphs are made with.

    Attributes:
        weights: the numbers of their constants.
        runners: what makes the functions of layers that hold bodies.
        trainable: whether constants are parameters.
        shared: those there are, by the tensors that they were made of.
    """

    weights: Weights
    runners: Mapping[str, Callable[..., Any]]
    trainable: bool = False
    shared: dict[int, nn.Parameter] = field(default_factory=dict)


class Graph(nn.Module):
    """A net whose constants are buffers, or parameters where they are trained.

    Bodies of loops are graphs in `bodies`, by the id of their layer.
    """

    def __init__(self, net: Net, making: Making) -> None:
        super().__init__()
        self.net = net
        self.bodies = nn.ModuleDict()
        self.constant_slots: list[tuple[int, str]] = []
        self._prepared = Prepared()
        self.slot_of: dict[tuple[int, int], int] = {}
        self.nodes: list[Node] = []  # of the file; `running` are those that are run
        constants = self._read_constants(making.weights)
        used = {s for i in net.order for s in net.layers[i].sources if i not in constants}
        # Constants that only feed Converts, for when the model is saved.
        self.folded = {i: value for i, value in constants.items() if (i, 0) not in used}
        for i in net.order:
            layer = net.layers[i]
            slots = tuple(self._slot(i, k) for k in range(len(layer.outputs)))
            if i in constants:
                if (i, 0) in used:
                    self._register(layer, slots[0], constants[i], making)
            elif layer.type not in ("Parameter", "Result"):
                self.nodes.append(self._node(layer, slots, constants, making))
        self.parameter_slots = tuple(self._slot(i, 0) for i in net.parameters)
        self.slot_count = len(self.slot_of)
        instead = {self._slot(*a): self._slot(*b) for a, b in choices(net.layers, constants).items()}
        results = (self._slot(*net.layers[i].sources[0]) for i in net.results)
        self.result_slots = tuple(instead.get(slot, slot) for slot in results)
        self.running = self._read(instead) if instead else self.nodes
        self._plan_releases()
        scans = [node for node in self.running if node.as_scan() is not None]
        # constants of bodies whose steps the layers around may become part of
        self._in_scans = {
            key: (node.bodies[""], name)
            for node in scans
            for key, name in getattr(node.run, "constants", {}).items()
        }
        self.joining = Joining(self.running, self.result_slots, self.captured)

    def _slot(self, layer: int, output: int) -> int:
        return self.slot_of.setdefault((layer, output), len(self.slot_of))

    def _read_constants(self, weights: Weights) -> dict[int, Tensor]:
        """Constants by layer; one that only changes a constant's precision is a constant, too."""
        constants: dict[int, Tensor] = {}
        for i in self.net.order:
            layer = self.net.layers[i]
            if is_constant(layer):
                constants[i] = weights.constant(layer)
            elif layer.type.lower() == "convert" and layer.sources and layer.sources[0][0] in constants:
                source = constants[layer.sources[0][0]]
                row = ROWS["convert"]
                _check_arity(layer, row)
                to = row.make(layer, layer.said)(torch.empty((), dtype=source.dtype))
                if source.dtype.is_floating_point and to.dtype.is_floating_point:
                    constants[i] = weights.converted(source, to.dtype, convert)
        return constants

    def _register(self, layer: Layer, slot: int, value: Tensor, making: Making) -> None:
        name = f"constant_{layer.id}"
        self.constant_slots.append((slot, name))
        if making.trainable and value.dtype.is_floating_point:
            if id(value) not in making.shared:
                making.shared[id(value)] = nn.Parameter(value.clone())
            self.register_parameter(name, making.shared[id(value)])
        else:
            self.register_buffer(name, value)

    def _node(
        self, layer: Layer, slots: tuple[int, ...], constants: dict[int, Tensor], making: Making
    ) -> Node:
        inputs = tuple(self._slot(*source) for source in layer.sources)
        if layer.bodies:
            for prefix, body in layer.bodies.items():
                self.bodies[f"{prefix}{layer.id}"] = Graph(body, making)
            graphs = {prefix: self.bodies[f"{prefix}{layer.id}"] for prefix in layer.bodies}
            run = making.runners[layer.type](layer, graphs, constants)
            return Node(layer, run, inputs, slots, (), bodies=graphs)
        row = ROWS[layer.type.lower()]
        _check_arity(layer, row)
        fixed = {}
        for i in row.values:
            if i < len(inputs) and layer.sources[i][0] in constants:
                value = constants[layer.sources[i][0]]
                if value.numel() > _LONGEST:
                    raise Broken(
                        f"{layer.where}: input {i} has {value.numel()} numbers",
                        got=value.numel(),
                        expected=f"at most {_LONGEST}",
                    )
                fixed[i] = value.tolist()
        try:
            said = layer.said
            run = row.make(layer, said)
            said.check_spelling()
        except Misfit as misfit:
            raise error(
                layer.where, misfit, attributes_text(layer.attributes), _FITTING.format(layer.type)
            ) from misfit
        known = {}
        reads = isinstance(run, SequenceRunner) or layer.type.lower() in _ON_SIZES
        for i, (source, _) in enumerate(layer.sources if reads else ()):
            value = constants.get(source)
            if value is not None and value.numel() <= _FEW and not value.is_floating_point():
                known[i] = value.tolist()
        if isinstance(run, SequenceRunner):
            run.known = known.get(run.cell.states + 1)
        return Node(layer, run, inputs, slots, row.values, fixed, known=known)

    def _read(self, instead: Mapping[int, int]) -> list[Node]:
        """The nodes without those whose slots others stand for, and what makes something for these alone."""
        found: list[Node] = []
        read, alone = {*self.result_slots}, {*instead}
        for node in reversed(self.nodes):
            if node.outputs and alone.issuperset(node.outputs) and read.isdisjoint(node.outputs):
                alone.update(node.inputs)
                continue
            inputs = tuple(instead.get(slot, slot) for slot in node.inputs)
            found.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            read.update(inputs)
        return found[::-1]

    def _plan_releases(self) -> None:
        """Let go of values after their last use; constants, parameters and results stay."""
        kept = {*self.result_slots, *self.parameter_slots, *(slot for slot, _ in self.constant_slots)}
        uses = [(*node.inputs, *node.outputs) for node in self.running]
        for node, done in zip(self.running, last_uses(uses, kept), strict=True):
            node.done = done

    @cached_property
    def content(self) -> str:
        """All that tells it from others but the numbers of its constants, as a digest."""
        parts: list[Any] = [self.constant_slots, self.parameter_slots, self.result_slots]
        parts += [(node.said, node.inputs, node.outputs) for node in self.nodes]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def start(self, arguments: Sequence[Any], around: Mapping[int, Any] | None = None) -> list[Any]:
        """Slots with constants and arguments in place."""
        slots: list[Any] = [None] * self.slot_count
        for slot, name in self.constant_slots:
            slots[slot] = getattr(self, name) if around is None else around[slot]
        for slot, argument in zip(self.parameter_slots, arguments, strict=True):
            slots[slot] = argument
        return slots

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Run all layers; the values of the Results in the order of the file."""
        around = _Held(self)
        out = self._prepared.again(self, arguments, around)
        if out is not None:
            return out
        if plainly_fed(arguments):
            return self._prepared.run(self, arguments, around)
        return self.plainly(arguments, around, None)

    def held(self) -> dict[Any, Any]:
        """The values of all that it captures."""
        around: dict[Any, Any] = {slot: getattr(self, name) for slot, name in self.constant_slots}
        return around | {key: getattr(body, name) for key, (body, name) in self._in_scans.items()}

    @property
    def captured(self) -> Sequence[Any]:
        """The slots of its constants, and those of loops that take in layers around."""
        return [*(slot for slot, _ in self.constant_slots), *self._in_scans]

    @property
    def constants(self) -> Sequence[Any]:
        """All that it captures."""
        return self.captured

    def plainly(
        self, arguments: Sequence[Any], around: Mapping[Any, Any], recorder: Recorder | None
    ) -> tuple[Tensor, ...]:
        """The outputs, layer by layer; `recorder` notes what they do."""
        if self.joining.possible and all(key in around for key in self._in_scans):
            fed = zip(self.parameter_slots, arguments, strict=True)
            out = self.joining.run(arguments, {**around, **dict(fed)}, self._through, recorder)
            if out is not None:
                return out
        return self._through(self.running, self.start(arguments, around), recorder)

    def _through(self, nodes: Sequence[Any], slots: Any, recorder: Recorder | None) -> tuple[Tensor, ...]:
        """The outputs of layers, from all that they read."""
        for node in nodes:
            values = [slots[slot] for slot in node.inputs]
            results = node.call(values) if recorder is None else recorder.call(node.call, values)
            for slot, result in zip(node.outputs, results, strict=False):
                slots[slot] = result
            for slot in node.done:
                slots[slot] = None
        return tuple(plain(slots[slot]) for slot in self.result_slots)

    def tensors(self) -> Iterator[Tensor]:
        """Every constant of this graph and of those in it."""
        yield from self.parameters()
        yield from self.buffers()

    def runners(self) -> Iterator[Any]:
        """The runners of loops and sequences of this graph and of those in it, in the order that they run."""
        for node in self.nodes:
            if hasattr(node.run, "reports"):
                yield node.run
            for prefix in node.layer.bodies:
                inner = self.bodies[f"{prefix}{node.layer.id}"]
                assert isinstance(inner, Graph)
                yield from inner.runners()


def _check_arity(layer: Layer, row: Row) -> None:
    for what, count, (low, high) in (
        ("inputs", len(layer.inputs), row.inputs),
        ("outputs", len(layer.outputs), row.outputs),
    ):
        if not low <= count <= high:
            raise Broken(
                f"{layer.where}: has {count} {what}",
                got=count,
                expected=str(low) if low == high else f"{low} to {high}",
            )


class _Held(Mapping[Any, Tensor]):
    """All that a graph captures, as it is now."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def _values(self) -> dict[Any, Tensor]:
        return self._graph.held()

    def __getitem__(self, key: Any) -> Tensor:
        return self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def picker(self, keys: Sequence[Any]) -> Callable[[_Held], Sequence[Tensor]]:
        """What picks several of them as they then are."""
        names = dict(self._graph.constant_slots)
        if all(key in names for key in keys):
            pick = Named([names[key] for key in keys])
            return lambda now: pick(now._graph)
        return lambda now: [now[key] for key in keys]
