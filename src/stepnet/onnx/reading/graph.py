"""A graph of a file, ready to run: its nodes in order, each with its function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from stepnet.errors import IRError, StepnetError
from stepnet.export.open_sizes import Sizes, plain
from stepnet.file_model import ERRORS, Broken, Prepared, Recorder, plainly_fed, shorten
from stepnet.file_model.joined_steps import content_of
from stepnet.file_model.joining import Joining
from stepnet.file_model.scan_steps import ScanStep
from stepnet.file_model.step_rules import Seen
from stepnet.ir.last_uses import last_uses

from .info import FILLED, FITTING, TABLE, Info, Misfit, attributes_text, error, given, tensor_of
from .places import name_of
from .sizes import RULES, on_sizes
from .step_rules import RULES as RULES_OF_STEPS

_LONGEST = 2**16  # numbers in a constant that is read as sizes or positions
_FEW = 64  # numbers of constants that nodes are computed from as a file is read
DOMAINS = ("", "ai.onnx")


@dataclass(eq=False)
class Step:
    """A node that runs: where its inputs and outputs are among the values."""

    where: str
    run: Callable[..., Any]
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    info: Info
    done: tuple[ir.Value, ...] = ()

    @cached_property
    def said(self) -> Any:
        """All that it does but for the numbers that it is given."""
        node, info = self.info.node, self.info
        said = [
            (name, ir.to_proto(attribute).SerializeToString(deterministic=True))
            for name, attribute in sorted(node.attributes.items())
            if attribute.type != ir.AttributeType.GRAPH
        ]
        bodies = [(name, body.content) for name, body in sorted(info.bodies.items())]
        wanted = [bool(value.name) for value in self.outputs]
        return node.op_type, info.opset, said, sorted(info.known.items()), wanted, bodies

    def knows(self, k: int) -> bool:
        """Whether it holds the numbers of an input; what its bodies read they hold."""
        return k in self.info.known or k >= len(self.info.node.inputs)

    def of_steps(self, seen: Seen) -> list[Any] | None:
        """What it reads of steps, where it treats them alike."""
        rule = RULES_OF_STEPS.get(self.info.node.op_type)
        return None if rule is None else rule(self, seen)

    def order(self) -> list[int] | None:
        """The order that it brings axes into."""
        order = self.info.get("perm") if self.info.node.op_type == "Transpose" else None
        return [axis % len(order) for axis in order] if order else None

    def makes_sizes(self, sizes: set[Any]) -> bool:
        """Whether it computes sizes; those are no tensors."""
        return False

    def as_scan(self) -> ScanStep | None:
        """It as a loop whose steps others may become part of."""
        make = getattr(self.run, "as_scan", None)
        return None if make is None else make(self)

    def call(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run, and give one result for each output.

        Raises:
            IRError: the inputs do not fit.
        """
        try:
            if any(type(value) is Sizes for value in arguments):
                found = on_sizes(self.info, arguments)
                if found is not None:
                    return (found,)
                arguments = [v if k in self.info.read else plain(v) for k, v in enumerate(arguments)]
            result = self.run(*arguments)
        except IRError:
            raise
        except (Misfit, StepnetError, *ERRORS) as problem:
            raise error(self.where, problem, given(arguments), FITTING) from problem
        result = result if isinstance(result, tuple) else (result,)  # a list is one sequence
        if len(result) < len(self.outputs):
            raise Broken(
                f"{self.where}: has more outputs than its operator",
                got=len(self.outputs),
                expected=f"at most {len(result)}",
            )
        return result


Watch = Callable[[Step, Sequence[Any], Sequence[Any]], object]
# What watches a run: called with each node, what it was given and what it gave; loops run plainly for it.
SEEN: ContextVar[Watch | None] = ContextVar("who watches nodes", default=None)


class Graph:
    """The nodes of a graph. Values of the graphs around, and all constants, are what it captures.

    Args:
        graph: the graph.
        constants: the tensors of all constants so far, by their values; those of this graph are added.
        opset: the version of the operators.
        where: the file, for errors.
        fed: constants that are inputs here, behind the others.

    Raises:
        IRError: a node cannot run.
    """

    def __init__(
        self, graph: ir.Graph, constants: dict[ir.Value, Tensor], opset: int, where: str,
        fed: Sequence[ir.Value] = (),
    ) -> None:  # fmt: skip
        self.inputs = [*inputs_of(graph), *fed]
        self.outputs = list(graph.outputs)
        self.where = where
        own = set(self.inputs)
        for value in graph.initializers.values():
            if value.const_value is not None and value not in own and value not in constants:
                place = f"{where}: constant '{value.name}'"
                constants[value] = tensor_of(value.const_value, place, value)
        self.steps: list[Step] = []
        captured: dict[ir.Value, None] = {}
        made = set(own)
        for number, node in enumerate(graph):
            place = f"{where}: {name_of(number, node)}"
            if node.op_type == "Constant" and node.domain in DOMAINS and len(node.outputs) == 1:
                constants[node.outputs[0]] = _constant(node, place)
                continue
            step = self._step(node, place, constants, opset)
            found = _folded(step, constants)
            if found is not None:
                constants.update(zip(step.outputs, found, strict=False))
                continue
            captured.update(dict.fromkeys(v for v in step.inputs if v is not None and v not in made))
            made |= set(node.outputs)
            self.steps.append(step)
        captured.update(dict.fromkeys(value for value in self.outputs if value not in made))
        self.captured = list(captured)
        self.constants = frozenset(value for value in captured if value in constants)
        self._opset = opset
        self._prepared = Prepared()
        self.joining = Joining(self.steps, self.outputs, self.captured)
        kept = {*self.outputs, *self.captured}
        uses = [[v for v in (*step.inputs, *step.outputs) if v is not None] for step in self.steps]
        for step, done in zip(self.steps, last_uses(uses, kept), strict=True):
            step.done = done

    def _step(self, node: ir.Node, place: str, constants: dict[ir.Value, Tensor], opset: int) -> Step:
        row = TABLE.get(node.op_type)
        if row is None:
            raise Broken(f"{place}: must have one output", got=len(node.outputs), expected=1)
        if not row.least <= len(node.inputs) <= row.most:
            count, wanted = len(node.inputs), f"{row.least} to {row.most}"
            raise Broken(f"{place}: has {count} inputs", got=count, expected=wanted)
        bodies = {
            name: type(self)(a.as_graph(), constants, opset, f"{place}, {shorten(name)}")
            for name, a in node.attributes.items()
            if a.type == ir.AttributeType.GRAPH
        }
        outer = tuple(dict.fromkeys(value for body in bodies.values() for value in body.captured))
        fixed = {
            k: constants[value]
            for k, value in enumerate(node.inputs)
            if value in constants and constants[value].numel() <= _LONGEST
        }
        known = {k: value.tolist() for k, value in fixed.items() if not value.is_floating_point()}
        info = Info(node, node.version or opset, place, known, fixed, bodies, outer)
        try:
            run = row.make(info)
        except IRError:
            raise
        except (Misfit, *ERRORS) as problem:
            raise error(place, problem, attributes_text(node.attributes), FITTING) from problem
        return Step(place, run, (*node.inputs, *outer), tuple(node.outputs), info)

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures, as a digest."""
        return self._content

    @cached_property
    def _content(self) -> str:
        return content_of((*self.captured, *self.inputs), self.steps, self.outputs) + str(self._opset)

    def again(self, arguments: Sequence[Any], around: Mapping[ir.Value, Any]) -> tuple[Any, ...] | None:
        """The outputs in a call like the one before; None: it is not."""
        return self._prepared.again(self, arguments, around) if SEEN.get() is None else None

    def forget_last(self) -> None:
        """Have the next call be like none before."""
        self._prepared.forget_last()

    def run(self, arguments: Sequence[Any], around: Mapping[ir.Value, Any]) -> tuple[Any, ...]:
        """The outputs, for the inputs and what it captures."""
        if SEEN.get() is None and plainly_fed(arguments):
            return self._prepared.run(self, arguments, around)
        return self.plainly(arguments, around, None)

    def plainly(
        self, arguments: Sequence[Any], around: Mapping[ir.Value, Any], recorder: Recorder | None
    ) -> tuple[Any, ...]:
        """The outputs, node by node; `recorder` notes what the nodes do."""
        values = self.values(arguments, around)
        if self.joining.possible and SEEN.get() is None:
            out = self.joining.run(arguments, values, self.through, recorder)
            if out is not None:
                return out
        return self.through(self.steps, values, recorder)

    def values(self, arguments: Sequence[Any], around: Mapping[ir.Value, Any]) -> dict[ir.Value | None, Any]:
        """What its nodes find before the first of them runs."""
        values: dict[ir.Value | None, Any] = {None: None}
        values.update((value, around[value]) for value in self.captured)
        values.update(zip(self.inputs, arguments, strict=True))
        return values

    def through(
        self, steps: Sequence[Any], values: dict[ir.Value | None, Any], recorder: Recorder | None
    ) -> tuple[Any, ...]:
        """The outputs of steps, from all values that they read."""
        seen = SEEN.get()
        for step in steps:
            arguments = [values[value] for value in step.inputs]
            results = step.call(arguments) if recorder is None else recorder.call(step.call, arguments)
            if seen is not None:
                seen(step, [plain(a) for a in arguments], [plain(r) for r in results])
            values.update(zip(step.outputs, results, strict=False))
            for value in step.done:
                del values[value]
        return tuple(plain(values[value]) for value in self.outputs)


def inputs_of(graph: ir.Graph) -> list[ir.Value]:
    """The inputs of a graph that are no constants, which older files list among them."""
    return [value for value in graph.inputs if value.const_value is None]


def _folded(step: Step, constants: Mapping[ir.Value, Tensor]) -> Sequence[Tensor] | None:
    """What a node gives that computes with a few whole numbers of the file; None: it runs in each call."""
    known = [constants.get(value) for value in step.inputs if value is not None]
    few = all(x is not None and x.numel() <= _FEW and not x.is_floating_point() for x in known)
    if step.info.node.op_type not in _OF_SIZES or not known or not few or None in step.inputs:
        return None
    if step.info.node.op_type == "ConstantOfShape" and math.prod(step.info.known[0]) > _FEW:
        return None
    try:
        found = [plain(result) for result in step.call(known)]
    except IRError:  # which a call meets, too
        return None
    return found if all(isinstance(x, Tensor) and not x.is_floating_point() for x in found) else None


# Of these models compute sizes and positions; none gives many numbers of a few.
_OF_SIZES = frozenset((
    *RULES, "Abs", "ConstantOfShape", "Flatten", "Mod", "Neg", "Shape", "Where",
))  # fmt: skip


def _constant(node: ir.Node, place: str) -> Tensor:
    kinds = {"value_float": torch.float32, "value_floats": torch.float32, "value_int": torch.int64,
             "value_ints": torch.int64}  # fmt: skip
    if node.inputs:
        raise Broken(f"{place}: a constant has no inputs", got=f"{len(node.inputs)} of them", expected="none")
    for name, attribute in node.attributes.items():
        try:
            if name == "value" and attribute.type == ir.AttributeType.TENSOR:
                return tensor_of(attribute.as_tensor(), place, next(iter(node.outputs), None))
            if name in kinds:
                return torch.tensor(attribute.value, dtype=kinds[name])
        except IRError:
            raise
        except ERRORS as problem:
            raise error(place, problem, attributes_text(node.attributes), FILLED) from problem
    what = f"{place}: holds no constant that torch has"
    raise Broken(
        what, got=attributes_text(node.attributes), expected="value, value_float, value_int or lists of these"
    )
