"""LSTM, GRU and RNN: a step of each, run by `recurrent`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError
from stepnet.file_model import FewSteps, is_recorded_with, not_in_recordings, same_types
from stepnet.file_model.specialized_graph import plainly_fed
from stepnet.watchers import instead

from .elementwise import UNARY, activation
from .info import Info, Misfit, Run, op

Activation = Callable[[Tensor], Tensor]
_MOST_FIT = 64  # shapes of inputs that are remembered
_ALPHA = {"Affine", "Celu", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "Selu", "ThresholdedRelu"}
_BETA = {"Affine", "HardSigmoid", "ScaledTanh"}
_CANONICAL = {name.lower(): name for name in (*_ALPHA, *UNARY)}


def _number(numbers: dict[str, float | None], name: str, default: float) -> float:
    value = numbers.get(name)
    return default if value is None else value


class Cell:
    """What the three operators share: directions, layouts, lengths, activations.

    Args:
        node: the node.
        gates: how many blocks of rows the weights have.
        activations: the names of those of one direction, where the node names none.
        states: how many states are carried.
    """

    def __init__(self, node: Info, gates: int, activations: Sequence[str], states: int) -> None:
        self.node, self.gates, self.states = node, gates, states
        direction = node.get("direction", "forward")
        kinds = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        if direction not in kinds:
            raise Misfit("no such direction", repr(direction), ", ".join(kinds))
        self.reversed = kinds[direction]
        self.layout = node.get("layout", 0)
        if self.layout not in (0, 1):
            raise Misfit("no such layout", self.layout, "0 or 1")
        for name in ("linear_before_reset", "input_forget"):
            if node.get(name, 0) not in (0, 1):
                raise Misfit(f"{name} is neither on nor off", node.get(name), "0 or 1")
        size = node.get("hidden_size")
        if isinstance(size, int) and size < 1:  # of another type it is told of with the node's form
            raise Misfit("hidden_size must be at least 1", size, "a number from 1 on")
        self.clip = node.get("clip", 0.0) if "clip" in node.node.attributes else None
        if self.clip is not None and not self.clip >= 0:
            raise Misfit("clip must not be negative", self.clip, "a number from 0 on")
        self.functions = self._activations(list(activations))
        self._fit: set[Any] = set()  # shapes of inputs that were found to fit
        self._steps: dict[int, tuple[list[Any], Any]] = {}  # of each direction, and of which memory
        self._usual = self.functions == [[UNARY[name] for name in activations]] * len(self.reversed)
        self._few: tuple[str, Sequence[int]] | None = None

    def is_as(self, kind: str, order: Sequence[int]) -> None:
        """Note the kind of `FewSteps` that does the same with the usual activations, and which block of rows
        of the weights is each of torch's."""
        self._few = (kind, order) if self._usual else None

    def _activations(self, default: list[str]) -> list[list[Activation]]:
        names = node_names = self.node.get("activations", default * len(self.reversed))
        if len(names) != len(default) * len(self.reversed):
            wanted = default * len(self.reversed)
            raise Misfit("there must be activations for each direction", node_names, f"as many as {wanted}")
        alphas: Iterator[float] = iter(self.node.get("activation_alpha", []))
        betas: Iterator[float] = iter(self.node.get("activation_beta", []))
        found = []
        for name in names:
            known = _CANONICAL.get(str(name).lower())
            if known is None:
                raise Misfit("no such activation", repr(name), ", ".join(sorted(_CANONICAL.values())))
            numbers = {}
            if known in _ALPHA:
                numbers["alpha"] = next(alphas, None)
            if known in _BETA:
                numbers["beta"] = next(betas, None)
            found.append(activation(known, partial(_number, numbers)))
        size = len(default)
        # the last of an LSTM takes its cell, not a sum of gates, and is not clipped
        clipped = [f if size == 3 and k % size == 2 else self._clipped(f) for k, f in enumerate(found)]
        return [clipped[k : k + size] for k in range(0, len(clipped), size)]

    def _clipped(self, function: Activation) -> Activation:
        clip = self.clip
        return function if clip is None else lambda x: function(x.clamp(-clip, clip))

    def run(self, step_of: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """Run the steps of all directions.

        Args:
            step_of: `step_of(d, inputs)` gives the step of direction d.
            inputs: of the node, as ONNX's own recurrences have them.
        """
        x, r, lengths = inputs[0], inputs[2], _at(inputs, 4)  # None: all are whole
        first = [_at(inputs, 5 + k) for k in range(self.states)]
        shapes = [None if value is None else tuple(value.shape) for value in inputs]
        hidden = self.node.get("hidden_size", 0) or None
        traced = instead() is not None or torch.compiler.is_compiling()  # its sizes may be open
        kinds = [None if value is None else value.dtype for value in inputs]
        fits = () if traced else (*shapes, *kinds)
        if not fits or fits not in self._fit:
            check_sizes(self.node.node.op_type, len(self.reversed), self.layout, hidden, shapes)
            same_types([value for k, value in enumerate(inputs) if value is not None and k != 4])
            self._fit = {*self._fit, fits} if len(self._fit) < _MOST_FIT else {fits}
        x = x.transpose(0, 1) if self.layout else x
        batch, hidden = x.shape[1], r.shape[2]
        ys, finals = [], []
        few = self._few_steps(inputs, x) if lengths is None else None
        one = lengths is None and few is None and not traced and x.shape[0] == 1  # of a stream, say
        for d, reverse in enumerate(self.reversed):
            states = [self._first(s, d, x, batch, hidden) for s in first]
            state = tuple(states) if self.states > 1 else states[0]
            step = self._step(step_of, d, inputs)
            if not one:
                not_in_recordings(sized=True, settled=() if lengths is None else None, steps=few)
            if one:  # there is nothing to loop over
                y, last = step(x[0], state)
                y = y.unsqueeze(0)
            elif lengths is None:
                y, last = recurrent(step, x, state, reverse=reverse)
            elif instead() is not None:  # what writes the model knows no sequences but those of its inputs
                y, last = recurrent(masked(step), (x, within(x, lengths)), state, reverse=reverse)
            else:
                rows, last = recurrent(step, _ragged(x, lengths), state, reverse=reverse)
                y = rows.to_padded(batch_first=False)[0]
                y = torch.cat([y, y.new_zeros(x.shape[0] - y.shape[0], *y.shape[1:])])
            ys.append(y)
            finals.append(last if self.states > 1 else (last,))
        y = torch.stack(ys, 1) if len(ys) > 1 else ys[0].unsqueeze(1)
        leaves = [*zip(*finals, strict=True)]
        last = [torch.stack(each) if len(ys) > 1 else each[0].unsqueeze(0) for each in leaves]
        if self.layout:
            y, last = y.permute(2, 0, 1, 3), [leaf.transpose(0, 1) for leaf in last]
        return (y, *last)[: self.node.count]

    def _few_steps(self, inputs: Sequence[Any], x: Tensor) -> FewSteps | None:
        """What it does, where that is what a line of small calls may hold."""
        if self._few is None or not is_recorded_with(inputs):
            return None
        few = FewSteps(*self._few, self.reversed, self.states, bool(self.layout))
        weights = sum(value[0].numel() for value in inputs[1:3])
        return few if few.fits(x.shape[0], x.shape[1], weights) else None

    def _step(self, step_of: Callable[..., Any], d: int, inputs: Sequence[Any]) -> Any:
        """The step of a direction: the same one while its weights are the same memory, as what is known of
        a step is known by that. A step that gradients go through reads its weights anew."""
        weights = [value for place, value in enumerate(inputs) if place in (1, 2, 3, 7)]
        given = [value for value in weights if value is not None]
        if not plainly_fed(given) or (torch.is_grad_enabled() and any(v.requires_grad for v in given)):
            return step_of(d, inputs)
        memory = [None if v is None else (v.data_ptr(), v.dtype, v.shape, v.stride()) for v in weights]
        known = self._steps.get(d)  # the step holds what stands there: nothing else comes to stand there
        if known is None or known[0] != memory:
            apart = [v if v is None else v.data for v in inputs]  # views would refer to their base
            known = self._steps[d] = memory, step_of(d, apart)
        return known[1]

    def _first(self, state: Any, d: int, x: Tensor, batch: int, hidden: int) -> Tensor:
        if state is None:
            return x.new_zeros(batch, hidden)
        state = state.transpose(0, 1) if self.layout else state
        return state[d] if len(self.reversed) > 1 else state.squeeze(0)


def _ragged(x: Tensor, lengths: Tensor) -> LoDTensor:
    try:
        return LoDTensor.from_padded(x, lengths, batch_first=False)
    except LoDError as problem:
        wanted = f"numbers from 0 to {x.shape[0]}, the steps of X"
        raise Misfit("sequence_lens does not fit X", lengths[:8].tolist(), wanted) from problem


def within(x: Tensor, lengths: Tensor) -> Tensor:
    """Whether a place of x [steps, batch, ...] is one of its sequence: [steps, batch, 1]."""
    return (torch.arange(x.shape[0]).unsqueeze(1) < lengths.reshape(-1)).unsqueeze(2)


def masked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that outside of the sequences gives zero and keeps its state."""

    def run(given: tuple[Tensor, Tensor], state: Any) -> tuple[Tensor, Any]:
        x, inside = given
        y, new = step(x, state)
        if isinstance(state, tuple):
            new = tuple(torch.where(inside, a, b) for a, b in zip(new, state, strict=True))
        else:
            new = torch.where(inside, new, state)
        return torch.where(inside, y, 0.0), new

    return run


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, "DynamicQuantizeLSTM": 4}


def check_sizes(
    kind: str, directions: int, layout: int, hidden: int | None,
    shapes: Sequence[Sequence[int | None] | None],
) -> None:  # fmt: skip
    """Refuse inputs that do not fit each other; None stands for a shape or a size that is not known.

    Raises:
        Misfit: says which input must be what.
    """

    def size(place: int, axis: int) -> int | None:
        shape = shapes[place]
        return None if shape is None or axis >= len(shape) else shape[axis]

    hidden = size(2, 2) if hidden is None else hidden
    batch, features = size(0, 0 if layout else 1), size(0, 2)
    gates, two = (None if hidden is None else n * GATES[kind] * hidden for n in (1, 2))
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    wanted: tuple[tuple[str, str, tuple[int | None, ...]], ...] = (
        ("X", "batch, steps, features" if layout else "steps, batch, features", (None, None, None)),
        ("W", f"directions, {GATES[kind]}*hidden, features", (directions, gates, features)),
        ("R", f"directions, {GATES[kind]}*hidden, hidden", (directions, gates, hidden)),
        ("B", f"directions, {2 * GATES[kind]}*hidden", (directions, two)),
        ("sequence_lens", "batch", (batch,)),
        *((name, "batch, directions, hidden" if layout else "directions, batch, hidden", state)
          for name in ("initial_h", "initial_c")),
        ("P", "directions, 3*hidden", (directions, None if hidden is None else 3 * hidden)),
    )  # fmt: skip
    for shape, (name, text, sizes) in zip(shapes, wanted, strict=False):
        if shape is None:
            continue
        if len(shape) != len(sizes) or any(
            None not in (a, b) and a != b for a, b in zip(shape, sizes, strict=True)
        ):
            shown, said = (f"[{', '.join('?' if n is None else str(n) for n in s)}]" for s in (shape, sizes))
            raise Misfit(f"{name} must be [{text}]", shown, said)


def _weights(inputs: Sequence[Any], d: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """W and R of a direction, and the biases of each."""
    w, r = inputs[1][d], inputs[2][d]
    b = inputs[3] if len(inputs) > 3 else None
    if b is None:
        return w, r, None, None
    return w, r, *b[d].split(w.shape[0])


def _at(inputs: Sequence[Any], index: int) -> Any:
    return inputs[index] if index < len(inputs) else None


@op("RNN", inputs=(3, 6))
def _rnn(node: Info) -> Run:
    cell = Cell(node, 1, ["Tanh"], 1)
    cell.is_as("rnn", (0,))

    def step_of(d: int, inputs: Sequence[Any]) -> Any:
        w, r, b, c = _weights(inputs, d)
        (function,) = cell.functions[d]

        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = function(linear(x, w, b) + linear(h, r, c))
            return h, h

        return step

    return lambda *inputs: cell.run(step_of, inputs)


@op("GRU", inputs=(3, 6))
def _gru(node: Info) -> Run:
    cell = Cell(node, 3, ["Sigmoid", "Tanh"], 1)
    before = node.get("linear_before_reset", 0)
    if before:
        cell.is_as("gru", (1, 0, 2))

    def step_of(d: int, inputs: Sequence[Any]) -> Any:
        w, r, b, c = _weights(inputs, d)
        f, g = cell.functions[d]
        hidden = r.shape[1]
        r_gates, r_new = r[: 2 * hidden], r[2 * hidden :]
        c_gates, c_new = (None, None) if c is None else (c[: 2 * hidden], c[2 * hidden :])

        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            x_z, x_r, x_h = linear(x, w, b).chunk(3, -1)
            h_z, h_r = linear(h, r_gates, c_gates).chunk(2, -1)
            z, reset = f(x_z + h_z), f(x_r + h_r)
            if before:
                new = g(x_h + reset * linear(h, r_new, c_new))
            else:
                new = g(x_h + linear(reset * h, r_new, c_new))
            h = (1 - z) * new + z * h
            return h, h

        return step

    return lambda *inputs: cell.run(step_of, inputs)


@op("LSTM", inputs=(3, 8))
def _lstm(node: Info) -> Run:
    cell = Cell(node, 4, ["Sigmoid", "Tanh", "Tanh"], 2)
    coupled = node.get("input_forget", 0)
    if not coupled and not node.has(7):
        cell.is_as("lstm", (0, 2, 3, 1))

    def step_of(d: int, inputs: Sequence[Any]) -> Any:
        w, r, b, c_bias = _weights(inputs, d)
        f, g, out = cell.functions[d]
        p = _at(inputs, 7)
        peep = (None,) * 3 if p is None else p[d].chunk(3)

        def peeped(gate: Tensor, c: Tensor, weight: Tensor | None) -> Tensor:
            return gate if weight is None else gate + weight * c

        def step(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            h, c = state
            i, o, forget, new = (linear(x, w, b) + linear(h, r, c_bias)).chunk(4, -1)
            i = f(peeped(i, c, peep[0]))
            forget = 1 - i if coupled else f(peeped(forget, c, peep[2]))
            c = forget * c + i * g(new)
            h = f(peeped(o, c, peep[1])) * out(c)
            return h, (h, c)

        return step

    return lambda *inputs: cell.run(step_of, inputs)
