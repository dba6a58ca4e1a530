"""LSTMCell, GRUCell and RNNCell: one step of a recurrence.

Sources: the OpenVINO operation specifications LSTMCell-1 and -4, GRUCell-3, RNNCell-0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import Function, Misfit, Row, same_types, shape_text

# Default alpha and beta where a name takes them; what takes none ignores them.
_DEFAULTS = {"hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "affine": (1.0, 0.0),
             "scaledtanh": (1.0, 1.0), "thresholdedrelu": (1.0, 0.0)}  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "relu": lambda x, a, b: torch.relu(x),
    "softplus": lambda x, a, b: F.softplus(x),
    "softsign": lambda x, a, b: x / (1 + torch.abs(x)),
    "hardsigmoid": lambda x, a, b: (a * x + b).clamp(0, 1),
    "elu": lambda x, a, b: torch.where(x > 0, x, a * torch.expm1(x.clamp(max=0))),
    "leakyrelu": lambda x, a, b: torch.where(x > 0, x, a * x),
    "affine": lambda x, a, b: a * x + b,
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "thresholdedrelu": lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
}


_FIRST = ("opset1", "opset2", "opset3")  # in which an LSTM says the order of its gates


class Cell:
    """The attributes that all cells and sequences share, and one step.

    `gates` blocks of rows in W [gates * hidden, input] and R [gates * hidden, hidden], `bias_gates` in B.
    `step(x, states, W, R, B)` gives the new states, h first.
    """

    kind: str
    gates: int
    states: int = 1
    defaults: tuple[str, ...]

    def __init__(self, layer: Layer, attributes: Attributes) -> None:
        self.hidden = attributes.size("hidden_size")
        self.clip = attributes.float("clip", 0.0)
        if not self.clip >= 0:
            raise Misfit("clip must be >= 0", got=self.clip, expected="a limit, or 0 for none")
        words = attributes.words("activations", self.defaults)
        alpha, beta = attributes.floats("activations_alpha"), attributes.floats("activations_beta")
        if len(words) < len(self.defaults):
            raise Misfit(f"needs {len(self.defaults)} activations", got=words, expected=list(self.defaults))
        unknown = [w for w in words if w not in _ACTIVATIONS]
        if unknown:
            raise Misfit(f"activation {unknown[0]} is not known", got=words, expected=sorted(_ACTIVATIONS))
        self.bias_gates = self.gates
        self.activations: list[tuple[str, float, float]] = []
        for i, word in enumerate(words[: len(self.defaults)]):
            a, b = _DEFAULTS.get(word, (0.0, 0.0))
            self.activations.append(
                (word, alpha[i] if i < len(alpha) else a, beta[i] if i < len(beta) else b)
            )

    def activate(self, which: int, x: Tensor) -> Tensor:
        """An activation, after the clip of what it is given."""
        word, a, b = self.activations[which]
        return _ACTIVATIONS[word](x.clamp(-self.clip, self.clip) if self.clip > 0 else x, a, b)

    def check(self, x: Tensor, states: Sequence[Tensor], w: Tensor, r: Tensor, b: Tensor | None) -> None:
        """Refuse shapes that do not fit `hidden_size` and each other.

        Raises:
            Misfit: says which input must be what.
        """
        same_types([t for t in (x, *states, w, r, b) if t is not None])
        hidden, rows = self.hidden, self.gates * self.hidden
        many = "hidden" if self.gates == 1 else f"{self.gates}*hidden"
        if x.dim() != 2:
            raise Misfit("X must be [batch, input]", got=shape_text(x), dims=x.dim())
        for state in states:
            if state.dim() != 2 or state.shape[1] != hidden:
                last = state.shape[1] if state.dim() == 2 else state.dim()
                raise Misfit(
                    f"hidden_size {hidden} does not match state {shape_text(state)}",
                    got=shape_text(state),
                    expected=f"[batch, {hidden}]",
                    dims=(hidden, last),
                )
            if state.shape[0] != x.shape[0]:
                raise Misfit(
                    f"X {shape_text(x)} and state {shape_text(state)} have different batch sizes",
                    dims=(x.shape[0], state.shape[0]),
                )
        # W last: what it must be may be open, with the features of X.
        wanted: list[tuple[str, Tensor, tuple[int, ...], str]] = [
            ("R", r, (rows, hidden), f"[{many}, hidden]")
        ]
        if b is not None:
            biases = "hidden" if self.bias_gates == 1 else f"{self.bias_gates}*hidden"
            wanted.append(("B", b, (self.bias_gates * hidden,), f"[{biases}]"))
        wanted.append(("W", w, (rows, x.shape[1]), f"[{many}, input]"))
        for name, tensor, shape, text in wanted:
            if tensor.shape != shape:
                of_features = name == "W" and tensor.dim() == 2 and tensor.shape[0] == rows and x.is_meta
                raise Misfit(
                    f"{name} must be {text} = {list(shape)}, got {shape_text(tensor)}",
                    got=shape_text(tensor),
                    expected=list(shape),
                    dims=(str(list(shape)), shape_text(tensor)),
                    gives=[*states] if of_features else None,
                )

    def step(
        self, x: Tensor, states: Sequence[Tensor], w: Tensor, r: Tensor, b: Tensor | None
    ) -> tuple[Tensor, ...]:
        raise NotImplementedError


class LSTM(Cell):
    """Gates f, i, c, o. `weights_format` and `input_forget` are of LSTMCell-1."""

    kind, gates, states = "LSTM", 4, 2
    defaults = ("sigmoid", "tanh", "tanh")

    def __init__(self, layer: Layer, attributes: Attributes) -> None:
        super().__init__(layer, attributes)
        self.order = attributes.text("weights_format", "fico").strip().lower()
        if sorted(self.order) != sorted("fico"):
            raise Misfit(
                "weights_format is not known", got=self.order[:20], expected="the letters f, i, c, o"
            )
        self.input_forget = attributes.bool("input_forget", False)
        if (self.order != "fico" or self.input_forget) and layer.version not in _FIRST:
            name = "input_forget" if self.input_forget else "weights_format"
            raise Misfit(
                f"{name} is an attribute of the first {layer.type} only",
                got=f'{name}="{attributes.text(name)[:20]}" in a layer of {layer.version}',
                expected=f"{', '.join(_FIRST)}, or gates in the order fico, each with weights of its own",
            )

    def step(
        self, x: Tensor, states: Sequence[Tensor], w: Tensor, r: Tensor, b: Tensor | None,
        peepholes: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        h, c = states
        total = torch.matmul(x, w.t()) + torch.matmul(h, r.t())
        if b is not None:
            total = total + b
        gates = dict(zip(self.order, total.chunk(4, 1), strict=True))
        peep_f, peep_i, peep_o = (None, None, None) if peepholes is None else peepholes.chunk(3)
        i = self.activate(0, gates["i"] if peep_i is None else gates["i"] + peep_i * c)
        f = (
            1 - i
            if self.input_forget
            else self.activate(0, gates["f"] if peep_f is None else gates["f"] + peep_f * c)
        )
        new_c = f * c + i * self.activate(1, gates["c"])
        o = self.activate(0, gates["o"] if peep_o is None else gates["o"] + peep_o * new_c)
        return o * self.activate(2, new_c) if self.clip <= 0 else o * self._unclipped(new_c), new_c

    def _unclipped(self, x: Tensor) -> Tensor:
        word, a, b = self.activations[2]
        return _ACTIVATIONS[word](x, a, b)


class GRU(Cell):
    """Gates z, r, h. With `linear_before_reset` B has a fourth block: the recurrent bias of h."""

    kind, gates = "GRU", 3
    defaults = ("sigmoid", "tanh")

    def __init__(self, layer: Layer, attributes: Attributes) -> None:
        super().__init__(layer, attributes)
        self.linear_before_reset = attributes.bool("linear_before_reset", False)
        self.bias_gates = 4 if self.linear_before_reset else 3

    def step(
        self, x: Tensor, states: Sequence[Tensor], w: Tensor, r: Tensor, b: Tensor | None
    ) -> tuple[Tensor, ...]:
        (h,) = states
        n = self.hidden
        from_x = torch.matmul(x, w.t())
        if b is not None:
            from_x = from_x + b[: 3 * n]
        x_z, x_r, x_h = from_x.split(n, 1)
        if self.linear_before_reset:
            h_z, h_r, h_h = torch.matmul(h, r.t()).split(n, 1)
            if b is not None:
                h_h = h_h + b[3 * n :]
            z, reset = self.activate(0, x_z + h_z), self.activate(0, x_r + h_r)
            new = self.activate(1, x_h + reset * h_h)
        else:
            h_z, h_r = torch.matmul(h, r[: 2 * n].t()).split(n, 1)
            z, reset = self.activate(0, x_z + h_z), self.activate(0, x_r + h_r)
            new = self.activate(1, x_h + torch.matmul(reset * h, r[2 * n :].t()))
        return ((1 - z) * new + z * h,)


class RNN(Cell):
    """One gate."""

    kind, gates = "RNN", 1
    defaults = ("tanh",)

    def step(
        self, x: Tensor, states: Sequence[Tensor], w: Tensor, r: Tensor, b: Tensor | None
    ) -> tuple[Tensor, ...]:
        (h,) = states
        total = torch.matmul(x, w.t()) + torch.matmul(h, r.t())
        return (self.activate(0, total if b is None else total + b),)


def _lstm_cell(layer: Layer, attributes: Attributes) -> Function:
    cell = LSTM(layer, attributes)

    def run(x: Tensor, h: Tensor, c: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        r, b, peepholes = rest[0], rest[1] if len(rest) > 1 else None, rest[2] if len(rest) > 2 else None
        if len(rest) == 1 and r.dim() == 1:  # the oldest form: W and R side by side in one matrix
            b = r
            both = x.shape[-1] + cell.hidden
            if w.dim() != 2 or w.shape[1] != both:
                raise Misfit(
                    f"the joined weights must be [4*hidden, input + hidden] = [{4 * cell.hidden}, {both}]",
                    got=shape_text(w),
                    dims=(shape_text(w), both),
                )
            w, r = w[:, : x.shape[-1]], w[:, x.shape[-1] :]
        cell.check(x, (h, c), w, r, b)
        if peepholes is not None and peepholes.shape != (3 * cell.hidden,):
            raise Misfit(
                f"P must be [3*hidden] = [{3 * cell.hidden}]",
                got=shape_text(peepholes),
                dims=str(peepholes.shape),
            )
        return cell.step(x, (h, c), w, r, b, peepholes)

    return run


def _one_state(kind: type[Cell]) -> Callable[[Layer, Attributes], Function]:
    def make(layer: Layer, attributes: Attributes) -> Function:
        cell = kind(layer, attributes)

        def run(x: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Any = None) -> Tensor:
            cell.check(x, (h,), w, r, b)
            return cell.step(x, (h,), w, r, b)[0]

        return run

    return make


ROWS = (
    Row("LSTMCell", _lstm_cell, (5, 7), (2, 2)),
    Row("GRUCell", _one_state(GRU), (4, 5)),
    Row("RNNCell", _one_state(RNN), (4, 5)),
)
