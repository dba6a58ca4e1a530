"""Recurrences in programs that torch's own exporter writes: `torch.onnx.export(..., dynamo=True)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import nn

from stepnet.data.lod import LoDTensor
from stepnet.errors import IRError
from stepnet.export import Graph, module_graph
from stepnet.graph import calls
from stepnet.graph.recurrence import Recurrence
from stepnet.graph.sequences import FUNCTIONS, SequenceCall

from .from_graph import ONNX, OpWriter
from .graph_writer import GraphWriter

_numbers = itertools.count()


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export` has to be told to write modules that hold recurrences.

    A recurrence becomes a Scan of what depends on the state; the rest stands before and after it. Rows of
    ragged sequences stay rows in the graph, beside their offsets. The exporter needs onnxscript.

    >>> [str(op) for op in translations()]
    ['stepnet.run.default']
    """
    return {torch.ops.stepnet.run.default: _run}


def _run(tensors: Sequence[ir.Value], sizes: Sequence[Any], what: str) -> list[ir.Value]:
    """`stepnet::run` as nodes, which torch's exporter collects."""
    from onnxscript import evaluator

    call = calls.find(what)
    recorder: Any = evaluator.default()
    if isinstance(call, SequenceCall) and call.function in (FUNCTIONS["offsets"], FUNCTIONS["lengths"]):
        w = OpWriter(Graph("offsets", ONNX), {}, False, {}, prefix=f"stepnet_{next(_numbers)}_")
        results = [_offsets(w, value, call.function is FUNCTIONS["lengths"]) for value in tensors]
        if len(sizes) == 1:  # the number of rows alone: lengths come with them
            results += [_lengths(w, value) for value in results]
        recorder.nodes.extend(_nodes(w))
        return results
    if not isinstance(call, Recurrence):
        raise IRError(
            f"'{what.split(' ')[0]}' of sequences is not translated for torch's exporter",
            remedy="stepnet.onnx.save writes it",
            got="a function of sequences",
            expected="recurrences",
        )
    if sizes or call.way.resets:
        raise IRError(
            f"step '{call.way.name}' is not translated for torch's exporter: it "
            + ("has resets" if call.way.resets else "reads a size"),
            remedy="stepnet.onnx.save writes modules without the exporter",
            got=call.way.name,
            expected="a step without resets that reads no sizes",
        )
    written = _Translation(call, tensors)
    recorder.nodes.extend(_nodes(written.writer))
    return written.results


def _offsets(w: GraphWriter, value: ir.Value, lengths: bool) -> ir.Value:
    """Offsets as they come, or those of lengths."""
    value = w.call("Cast", value, to=ir.DataType.INT64)
    return (
        w.call("Concat", w.numbers([0]), w.call("CumSum", value, w.numbers(0)), axis=0) if lengths else value
    )


def _lengths(w: GraphWriter, offsets: ir.Value) -> ir.Value:
    ends = w.call("Slice", offsets, w.numbers([1]), w.numbers([2**63 - 1]))
    return w.call("Sub", ends, w.call("Slice", offsets, w.numbers([0]), w.numbers([-1])))


def _nodes(w: GraphWriter) -> list[ir.Node]:
    """What was written, constants first: the graph around takes no initializers from here."""
    constants = []
    for value in w.initializers:
        if not value.uses():
            continue
        assert value.const_value is not None
        attribute = ir.AttrTensor("value", value.const_value)
        constants.append(ir.Node("", "Constant", [], [attribute], outputs=[value]))
    return [*constants, *w.nodes]


class _Translation:
    """A recurrence on values of a graph that somebody else makes."""

    def __init__(self, call: Recurrence, tensors: Sequence[ir.Value]) -> None:
        count = sum(call.counts[:3])
        levels = call.way.levels
        n_x = call.counts[0]
        offsets = tensors[count + levels - 1] if levels else None
        read = tensors[count + levels * n_x :]
        self.tensors = [*tensors[:count], *read]
        batch = 1 - call.way.axis if call.way.axis in (0, 1) else 0  # the axis of it in x
        known = [
            _size(value, 0 if levels or i >= n_x else batch) for i, value in enumerate(self.tensors[:count])
        ]
        sequences = next((size for size in known if size is not None and not levels), 3)
        examples: list[Any] = []
        for i, value in enumerate(self.tensors):
            shape = [size if isinstance(size, int) else 4 for size in value.shape or ()]
            if i < count:
                shape[batch if i < n_x and not levels else 0] = sequences
            assert value.dtype is not None
            examples.append(torch.zeros(shape, dtype=to_torch_dtype(value.dtype)))
        names = [f"tensor_{i}" for i in range(len(examples))]
        module = _Call(call, count, names, self.tensors)
        if levels:
            lengths = [[1 + k % 3 for k in range(sequences)]]
            for i in range(n_x):
                rows = examples[i].new_zeros(sum(lengths[0]), *examples[i].shape[1:])
                examples[i] = LoDTensor.from_lengths(rows, lengths)
        graph = module_graph(module, tuple(examples), ONNX, name=call.way.name)
        parameters = [number for number, node in enumerate(graph.nodes) if node.op == "parameter"]
        self.writer = OpWriter(graph, {}, False, {}, prefix=f"stepnet_{next(_numbers)}_")
        inputs = list(self.tensors)
        if offsets is not None:
            self.rows = _Rows(self.writer, offsets)
            inputs = [*(self.rows.padded(value) for value in inputs[:n_x]), *inputs[n_x:], self.rows.lengths]
        self.writer.outer = dict(zip(parameters, inputs, strict=True))
        self.writer.write(graph.nodes)
        found = list(self.writer.results.values())
        if levels:
            found[: len(call.y)] = [self.rows.of(value) for value in found[: len(call.y)]]
        self.results = [self.writer.call("Identity", value) for value in found]


class _Call(nn.Module):
    """A recurrence as a module of its tensors. Those of ragged sequences come as LoDTensors."""

    def __init__(self, call: Recurrence, count: int, names: list[str], values: Sequence[ir.Value]) -> None:
        super().__init__()
        self.call, self.count = call, count
        self.open_sizes = {
            name: [d for d, size in enumerate(value.shape or ()) if not isinstance(size, int)]
            for name, value in zip(names, values, strict=True)
        }

    def forward(self, *tensors: Any) -> Any:
        if not self.call.way.levels:
            return tuple(self.call.run(tensors, []))
        n_x = self.call.counts[0]
        return tuple(self.call.on(tensors[:n_x], tensors[n_x : self.count], tensors[self.count :]))


def _size(value: ir.Value, axis: int) -> int | None:
    """The size of an axis, if it is fixed."""
    size = value.shape[axis] if value.shape is not None and len(value.shape) > axis else None
    return size if isinstance(size, int) else None


class _Rows:
    """Rows of sequences, and the same padded, in a graph."""

    def __init__(self, w: GraphWriter, offsets: ir.Value) -> None:
        self.w = w
        end = w.numbers([2**63 - 1])
        self.starts = w.call("Slice", offsets, w.numbers([0]), w.numbers([-1]), w.numbers([0]))
        self.ends = w.call("Slice", offsets, w.numbers([1]), end, w.numbers([0]))
        self.lengths = w.call("Sub", self.ends, self.starts)
        one = w.numbers([1])
        longest = w.call("ReduceMax", w.call("Concat", self.lengths, one, axis=0), keepdims=0)
        self.steps = w.call("Range", w.numbers(0), longest, w.numbers(1))

    def padded(self, rows: ir.Value) -> ir.Value:
        """[rows, ...] as [batch, time, ...], padded with any row."""
        w = self.w
        blank = w.call("Slice", w.call("Shape", rows), w.numbers([1]), w.numbers([2**63 - 1]), w.numbers([0]))
        blank = w.call("ConstantOfShape", w.call("Concat", w.numbers([1]), blank, axis=0))
        some = w.call("Concat", rows, w.call("CastLike", blank, rows), axis=0)  # where there is no row at all
        index = w.call("Add", w.call("Unsqueeze", self.starts, w.numbers([1])), self.steps)
        last = w.call("Shape", rows, start=0, end=1)
        return w.call("Gather", some, w.call("Min", index, last), axis=0)

    def of(self, padded: ir.Value) -> ir.Value:
        """The rows of what is padded."""
        w = self.w
        total = w.call("ReduceSum", self.lengths, keepdims=0)
        row = w.call("Range", w.numbers(0), total, w.numbers(1))
        past = w.call("GreaterOrEqual", w.call("Unsqueeze", row, w.numbers([1])), self.ends)
        number = w.call("ReduceSum", w.call("Cast", past, to=ir.DataType.INT64), w.numbers([1]), keepdims=0)
        step = w.call("Sub", row, w.call("Gather", self.starts, number, axis=0))
        places = [w.call("Unsqueeze", part, w.numbers([1])) for part in (number, step)]
        return w.call("GatherND", padded, w.call("Concat", *places, axis=1))
