"""Recurrent models as OpenVINO IR, written by OpenVINO: what is measured in the topic `openvino_ir`.

Each is what a converter makes of a loop: one TensorIterator, with all that a step does in its body.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

# At its import OpenVINO reports to its makers if it can, from a process forked in the middle of a run.
sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]

import openvino as ov  # noqa: E402
from openvino import opset13 as op  # noqa: E402

_Model: Any = ov.Model  # its stubs do not agree with each other
MEMORY = 50  # rows that attention looks at


class Size(NamedTuple):
    """Steps, sequences, and features of both the input and the state."""

    T: int
    B: int
    H: int

    def __str__(self) -> str:
        return f"T={self.T} B={self.B} H={self.H}"


SIZES = (Size(100, 1, 256), Size(100, 32, 256))
SMALL = (Size(7, 3, 16),)
Step = Callable[["Weights", Any, Sequence[Any]], "tuple[Any, Sequence[Any]]"]


class Weights:
    """Constants of a model, drawn as torch draws those of a cell; `drawn` are their values, in order."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.drawn: list[np.ndarray] = []
        self._draw = np.random.default_rng(size.B)

    def uniform(self, *shape: int) -> Any:
        bound = self.size.H**-0.5
        self.drawn.append(self._draw.uniform(-bound, bound, shape).astype(np.float32))
        return op.constant(self.drawn[-1])

    def filled(self, value: float, *shape: int) -> Any:
        return op.constant(np.full(shape, value, dtype=np.float32))


def _axes(*axes: int) -> Any:
    return op.constant(np.array(axes, dtype=np.int64))


def _linear(w: Weights, x: Any, rows: int, columns: int) -> Any:
    return op.matmul(x, w.uniform(rows, columns), False, True)


def _lstm_cell(w: Weights, x: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    n = w.size.H
    cell = op.lstm_cell(x, *state, w.uniform(4 * n, n), w.uniform(4 * n, n), w.uniform(4 * n), n)
    return cell.output(0), (cell.output(0), cell.output(1))


def _gated(parts: Sequence[Any], c: Any, norm: Callable[[Any], Any] = lambda c: c) -> tuple[Any, Any]:
    """h and c of the pre-activations i, f, g, o."""
    i, f, g, o = parts
    kept = op.multiply(op.sigmoid(f), c)
    c_new = op.add(kept, op.multiply(op.sigmoid(i), op.tanh(g)))
    return op.multiply(op.sigmoid(o), op.tanh(norm(c_new))), c_new


def _lstm(w: Weights, x: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    (h, c), n = state, w.size.H
    gates = op.add(op.add(_linear(w, x, 4 * n, n), _linear(w, h, 4 * n, n)), w.uniform(1, 4 * n))
    h_new, c_new = _gated(op.split(gates, 1, 4).outputs(), c)
    return h_new, (h_new, c_new)


def _peephole_lstm(w: Weights, x: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    (h, c), n = state, w.size.H
    gates = op.add(op.add(_linear(w, x, 4 * n, n), _linear(w, h, 4 * n, n)), w.uniform(1, 4 * n))
    i, f, g, o = op.split(gates, 1, 4).outputs()
    i, f = op.add(i, op.multiply(w.uniform(1, n), c)), op.add(f, op.multiply(w.uniform(1, n), c))
    c_new = op.add(op.multiply(op.sigmoid(f), c), op.multiply(op.sigmoid(i), op.tanh(g)))
    o = op.add(o, op.multiply(w.uniform(1, n), c_new))
    h_new = op.multiply(op.sigmoid(o), op.tanh(c_new))
    return h_new, (h_new, c_new)


def _layer_norm_lstm(w: Weights, x: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    def norm(rows: Any, gain: float, n: int) -> Any:
        unit = op.mvn(rows, _axes(-1), True, 1e-5, "INSIDE_SQRT")
        return op.add(op.multiply(unit, w.filled(gain, 1, n)), w.uniform(1, n))

    (h, c), n = state, w.size.H
    # a gain of 1 makes the state chaotic: float32 and float64 would soon have no digits in common
    gates = op.add(norm(_linear(w, x, 4 * n, n), 1.0, 4 * n), norm(_linear(w, h, 4 * n, n), 0.3, 4 * n))
    h_new, c_new = _gated(op.split(gates, 1, 4).outputs(), c, lambda c: norm(c, 1.0, n))
    return h_new, (h_new, c_new)


def _attention_gru(w: Weights, x: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Additive attention (Bahdanau et al., 2015) over a memory, and a GRU of input and context."""
    (h, memory), n = state, w.size.H
    keys = op.matmul(memory, w.uniform(n, n), False, False)
    query = op.unsqueeze(op.matmul(h, w.uniform(n, n), False, False), _axes(1))
    scores = op.reduce_sum(op.multiply(op.tanh(op.add(keys, query)), w.uniform(1, 1, n)), _axes(2), False)
    chances = op.unsqueeze(op.softmax(scores, 1), _axes(1))
    context = op.squeeze(op.matmul(chances, memory, False, False), _axes(1))
    both = op.concat([x, context], 1)
    weights = w.uniform(3 * n, 2 * n), w.uniform(3 * n, n), w.uniform(4 * n)
    new = op.gru_cell(both, h, *weights, n, linear_before_reset=True)
    return new, (new, memory)


@dataclass(frozen=True)
class Work:
    """A model by the name of its case.

    Args:
        title: what it is, in words.
        step: one step; None: the whole recurrence is one layer.
        custom: no layer of OpenVINO is this cell.
        states: names of the states.
        memory: whether a memory [B, MEMORY, H] stands beside the input.
    """

    title: str
    step: Step | None
    custom: bool
    states: tuple[str, ...] = ("h0", "c0")
    memory: bool = False


WORKS = {
    "LSTMSequence": Work("LSTMSequence", None, False),
    "LSTMCell": Work("LSTMCell in a body", _lstm_cell, False),
    "LSTM": Work("LSTM from primitives", _lstm, True),
    "peephole LSTM": Work("peephole LSTM", _peephole_lstm, True),
    "layer-norm LSTM": Work("layer-norm LSTM", _layer_norm_lstm, True),
    "attention GRU": Work("GRU with attention", _attention_gru, True, ("h0",), memory=True),
}


def write(work: Work, size: Size, folder: Path, weights: Weights | None = None) -> Path:
    """Write the model; the path of its .xml."""
    path = folder / "model.xml"
    w = Weights(size) if weights is None else weights
    ov.serialize(_sequence(w) if work.step is None else _loop(work, work.step, w), path)
    return path


def inputs(work: Work, size: Size) -> dict[str, np.ndarray]:
    """What the model is run on, by the names of its inputs."""
    draw = np.random.default_rng(size.T + size.B)
    shapes = {"x": (size.B, size.T, size.H)} | dict.fromkeys(work.states, (size.B, size.H))
    if work.memory:
        shapes["memory"] = (size.B, MEMORY, size.H)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _parameter(name: str, *shape: int) -> Any:
    made = op.parameter(list(shape), np.float32, name=name)
    made.output(0).set_names({name})
    return made


def _named(value: Any, name: str) -> Any:
    result = op.result(value, name=name)
    value.set_names({name})
    return result


def _sequence(w: Weights) -> Any:
    T, B, n = w.size
    x, h, c = _parameter("x", B, T, n), _parameter("h0", B, n), _parameter("c0", B, n)
    starts = [op.unsqueeze(state, _axes(1)) for state in (h, c)]
    lengths = op.constant(np.full(B, T, dtype=np.int32))
    weights = w.uniform(1, 4 * n, n), w.uniform(1, 4 * n, n), w.uniform(1, 4 * n)
    layer = op.lstm_sequence(x, *starts, lengths, *weights, n, "forward")
    y, last = op.squeeze(layer.output(0), _axes(1)), op.squeeze(layer.output(1), _axes(1))
    return _Model([_named(y.output(0), "y"), _named(last.output(0), "h")], [x, h, c], "LSTMSequence")


def _loop(work: Work, step: Step, w: Weights) -> Any:
    T, B, n = w.size
    x = _parameter("x", B, T, n)
    starts = [_parameter(name, B, n) for name in work.states]
    memories = [_parameter("memory", B, MEMORY, n)] if work.memory else []
    x_t = _parameter("x_t", B, 1, n)
    carried = [_parameter(name[0], B, n) for name in work.states]
    seen = [_parameter("m", B, MEMORY, n) for _ in memories]
    y, new = step(w, op.squeeze(x_t, _axes(1)), [*carried, *seen])
    row = op.unsqueeze(y, _axes(1))
    results = [op.result(row), *(op.result(value) for value in new[: len(carried)])]
    loop: Any = op.tensor_iterator()
    loop.set_body(_Model(results, [x_t, *carried, *seen], "body"))
    loop.set_sliced_input(x_t, x.output(0), 0, 1, 1, -1, 1)
    for parameter, start, result in zip(carried, starts, results[1:], strict=True):
        loop.set_merged_input(parameter, start.output(0), result.output(0))
    for parameter, memory in zip(seen, memories, strict=True):
        loop.set_invariant_input(parameter, memory.output(0))
    whole = loop.get_concatenated_slices(results[0].output(0), 0, 1, 1, -1, 1)
    last = loop.get_iter_value(results[1].output(0), -1)
    return _Model([_named(whole, "y"), _named(last, "h")], [x, *starts, *memories], work.title)


def run(path: Path, feeds: Mapping[str, Any]) -> Callable[[], Any]:
    """OpenVINO's own inference of a model, compiled for as many threads as torch has."""
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = ov.Core().compile_model(path, "CPU", options).create_infer_request()
    arrays = {name: value.numpy() for name, value in feeds.items()}
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)
