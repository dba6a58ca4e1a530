"""torch.nn's LSTM, GRU and RNN in a module that is saved: as recurrences, of which a trace has each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepnet.api import recurrent
from stepnet.cells.gru import gru_step
from stepnet.cells.lstm import lstm_step
from stepnet.cells.rnn import rnn_step
from stepnet.data.lod import LoDTensor
from stepnet.errors import IRError
from stepnet.watchers import instead

from .graph import Target

_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_STEPS: dict[Any, tuple[str, Callable[..., Any]]] = {
    torch.lstm: ("LSTM", lstm_step),
    torch.gru: ("GRU", gru_step),
    torch.rnn_tanh: ("RNN", rnn_step),
    torch.rnn_relu: ("RNN", partial(rnn_step, nonlinearity="relu")),
}


class TorchRNNs(TorchFunctionMode):
    """Answers for the functions behind these modules where something answers for recurrences; in the body of
    one only for a format that has loops there."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.nested, self.around = target.nested is None, instead()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond
            return func(*args, **(kwargs or {}))
        around = instead()
        answered = around is not None and (self.nested or around is self.around)
        known = _STEPS.get(func) if answered else None
        if known is None or kwargs or isinstance(args[3], (list, tuple)):  # the rows of a PackedSequence
            return func(*args, **(kwargs or {}))
        return _layers(*known, *args)


def _layers(
    kind: str, function: Callable[..., Any], x: Tensor, hx: Any, weights: Sequence[Tensor], biases: bool,
    layers: int, dropout: float, training: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    directions = 2 if bidirectional else 1
    if isinstance(x, LoDTensor):
        raise IRError(
            f"torch.nn.{kind} cannot be written over sequences of lengths of their own",
            remedy=f"stepnet.nn.{kind}, which takes the same arguments and state_dict",
        )
    states: Sequence[Tensor] = hx if isinstance(hx, (list, tuple)) else (hx,)
    each = len(weights) // (layers * directions)
    names = _NAMES if biases else _NAMES[:2]
    names += ("weight_hr",) if each > len(names) else ()
    finals: list[Sequence[Tensor]] = []
    for layer in range(layers):
        ys = []
        for reverse in (False, True)[:directions]:
            k = len(finals)
            own = dict(zip(names, weights[k * each : (k + 1) * each], strict=True))
            state = [value[k] for value in states]
            step = _step(f"{kind} l{layer}", function, own)
            given = state[0] if len(state) == 1 else tuple(state)
            y, last = recurrent(step, x, given, reverse=reverse, axis=int(batch_first))
            ys.append(y)
            finals.append(last if isinstance(last, tuple) else (last,))
        x = torch.cat(ys, -1) if len(ys) > 1 else ys[0]
        if dropout and layer < layers - 1:
            x = functional.dropout(x, dropout, training)
    return x, *map(torch.stack, zip(*finals, strict=True))


def _step(name: str, function: Callable[..., Any], weights: dict[str, Tensor]) -> Callable[..., Any]:
    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        new = function(x, state, **weights)
        return (new[0] if isinstance(new, tuple) else new), new

    step.__name__ = name
    return step
