"""A graph of a file, ready to run: its nodes in order, each with its function."""

from __future__ import annotations

import hashlib
import itertools
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
from stepnet.file_model import ERRORS, Broken, Prepared, Recorder, plainly_fed
from stepnet.ir.last_uses import last_uses

from .info import FILLED, FITTING, TABLE, Info, Misfit, attributes_text, error, given, tensor_of
from .scopes import name_of
from .sizes import RULES, on_sizes

_LONGEST = 2**16  # numbers in a constant that is read as sizes or positions
_FEW = 64  # numbers of constants that nodes are computed from as a file is read
DOMAINS = ("", "ai.onnx")


@dataclass
class Step:
    """A node that runs: where its inputs and outputs are among the values."""

    where: str
    run: Callable[..., Any]
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    info: Info
    done: tuple[ir.Value, ...] = ()

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

    Raises:
        IRError: a node cannot run.
    """

    def __init__(self, graph: ir.Graph, constants: dict[ir.Value, Tensor], opset: int, where: str) -> None:
        self.inputs = inputs_of(graph)
        self.outputs = list(graph.outputs)
        self.where = where
        own = set(self.inputs)
        for value in graph.initializers.values():
            if value.const_value is not None and value not in own:
                constants[value] = tensor_of(value.const_value, f"{where}: constant '{value.name}'")
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
            name: type(self)(a.as_graph(), constants, opset, f"{place}, {name}")
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
        return content_of(self._opset, (*self.captured, *self.inputs), self.steps, self.outputs)

    def run(self, arguments: Sequence[Any], around: Mapping[ir.Value, Any]) -> tuple[Any, ...]:
        """The outputs, for the inputs and what it captures."""
        if SEEN.get() is None and plainly_fed(arguments):
            return self._prepared.run(self, arguments, around)
        return self.plainly(arguments, around, None)

    def plainly(
        self, arguments: Sequence[Any], around: Mapping[ir.Value, Any], recorder: Recorder | None
    ) -> tuple[Any, ...]:
        """The outputs, node by node; `recorder` notes what the nodes do."""
        return self.through(self.steps, self.values(arguments, around), recorder)

    def values(self, arguments: Sequence[Any], around: Mapping[ir.Value, Any]) -> dict[ir.Value | None, Any]:
        """What its nodes find before the first of them runs."""
        values: dict[ir.Value | None, Any] = {None: None}
        values.update((value, around[value]) for value in self.captured)
        values.update(zip(self.inputs, arguments, strict=True))
        return values

    def through(
        self, steps: Sequence[Step], values: dict[ir.Value | None, Any], recorder: Recorder | None
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


def content_of(
    opset: int, given: Sequence[ir.Value], steps: Sequence[Step], outputs: Sequence[ir.Value]
) -> str:
    """A digest of all that steps do, but for the numbers that they are given."""
    names = itertools.count()
    of: dict[ir.Value | None, int] = {None: next(names)}
    for value in given:
        of[value] = next(names)
    parts: list[Any] = [opset, len(given)]
    for step in steps:
        node, info = step.info.node, step.info
        said = [
            (name, ir.to_proto(attribute).SerializeToString(deterministic=True))
            for name, attribute in sorted(node.attributes.items())
            if attribute.type != ir.AttributeType.GRAPH
        ]
        reads = [of[value] for value in step.inputs]
        of |= {value: next(names) for value in step.outputs}
        bodies = [(name, body.content) for name, body in sorted(info.bodies.items())]
        wanted = [bool(value.name) for value in step.outputs]
        parts.append((node.op_type, info.opset, said, sorted(info.known.items()), reads, wanted, bodies))
    parts.append([of[value] for value in outputs])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


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
    for name, attribute in node.attributes.items():
        try:
            if name == "value" and attribute.type == ir.AttributeType.TENSOR:
                return tensor_of(attribute.as_tensor(), place)
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
