"""Layers that share weights: with another one of the tape, or with the one of their name on another tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from stepnet.data.arguments import brief
from stepnet.tape.creation import Creation
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape

from .check import unfit

Module = TypeVar("Module", bound=nn.Module)
Weights = TapeItem | str | None


def shared(
    kind: str,
    module: Module,
    name: str | None,
    weights: Weights,
    of: Callable[[Any], Any] = lambda layer: layer,
) -> Module:
    """The module that a layer is to use: its own new one, or that of the layer whose weights it shares.

    Args:
        kind: of the layer.
        module: a new one.
        name: of the layer.
        weights: the other layer, an item of any tape or a name; None: the layer of the same name on the tape
            that `Tape(weights=...)` was given, if there is one.
        of: what is shared of the other layer's module.

    Raises:
        TapeError: there is no such layer, or its weights are others.
    """
    other = _other(kind, name, weights)
    if other is None:
        return module
    found = None if other.module is None or other.kind != kind else of(other.module)
    if type(found) is not type(module) or _shapes(found) != _shapes(module):
        got = f"{other.place}, {_said(found)}" if found is not None else other.place
        raise unfit(
            kind,
            f"the weights of '{other.name}' do not fit",
            got,
            expected=f"{kind} with {_said(module)}",
            remedy="name a layer of the same kind and sizes",
        )
    return found  # pyright: ignore[reportReturnType]


def _other(kind: str, name: str | None, weights: Weights) -> Creation | None:
    tape = Tape.current()
    if weights is None:
        return tape.weights.find(name) if tape.weights is not None and name else None
    if isinstance(weights, TapeItem):
        return weights.creation
    for place in (tape, tape.weights):
        found = place.find(weights) if place is not None and isinstance(weights, str) else None
        if found is not None:
            return found
    expected = "an item of any tape, or the name of a layer"
    raise unfit(kind, "'weights' names no layer that was made before", brief(weights), expected=expected)


def _shapes(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def _said(module: Any) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in _shapes(module).items())
