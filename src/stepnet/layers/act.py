"""Activations, as arguments of layers (`act="tanh"`) and as layers of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stepnet.data.arguments import brief
from stepnet.errors import TapeError
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .check import check_callable

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "exp": torch.exp,
    "square": torch.square,
    "abs": torch.abs,
    "softmax": functools.partial(torch.softmax, dim=-1),
    "log_softmax": functools.partial(torch.log_softmax, dim=-1),
}
Act = str | Callable[..., Any] | None


def as_activation(act: Act) -> Callable[..., Any] | None:
    """An activation by name, or a function; None stays.

    Raises:
        TapeError: there is no such activation, it is a class, or a module with parameters of its own.
    """
    if act is None:
        return None
    if isinstance(act, str) and act in ACTIVATIONS:
        return ACTIVATIONS[act]
    if isinstance(act, nn.Module) and next(act.parameters(), None) is not None:
        raise TapeError(
            "'act' has parameters, so it is a layer",
            got=type(act).__name__,
            remedy="layers.apply(module, item) records it as one",
        )
    if not isinstance(act, str) and callable(act):
        return check_callable("'act'", act)
    raise TapeError("no such activation", got=brief(act), expected=f"a function, or {', '.join(ACTIVATIONS)}")


def activation(x: TapeItem, act: str | Callable[..., Any], *, name: str | None = None) -> TapeItem:
    """The activation `act`, a name or a function, as a layer; softmax and log_softmax are over features.

    Raises:
        TapeError: there is no such activation, or x does not fit.

    >>> from stepnet.layers import Dense, data
    >>> with Tape():
    ...     activation(data("x", Dense(3)), "softmax")
    TapeItem(1, 'softmax_0', float32 [*, 3])
    """
    function = as_activation(act)
    if function is None:
        raise TapeError(
            "activation: 'act' is None",
            remedy="take the item as it is",
            expected=f"a function, or {', '.join(ACTIVATIONS)}",
        )
    kind = act if isinstance(act, str) else getattr(act, "__name__", type(act).__name__)
    return Tape.current().record(kind, function, (x,), name=name)
