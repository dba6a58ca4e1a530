"""Tensors among the arguments of a recorded function, held by a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stepnet.data.tree import map_leaves


@dataclass(frozen=True)
class Held:
    """The place of a tensor that the module holds under this name."""

    name: str


class Holding(nn.Module):
    """A function with some of its tensors: parameters train and are saved, others move with the module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def take(self, tensor: Tensor) -> Held:
        """Hold a tensor from here on."""
        name = f"tensor_{len(self._parameters) + len(self._buffers)}"
        if isinstance(tensor, nn.Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor, persistent=False)
        return Held(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        full = map_leaves((args, kwargs), Held, lambda held: getattr(self, held.name))
        return self.function(*full[0], **full[1])


def hold_tensors(function: Callable[..., Any], arguments: Any) -> tuple[Callable[..., Any], Any]:
    """A module that holds the tensors among the arguments, and the arguments without them."""
    holding = Holding(function)
    return holding, map_leaves(arguments, Tensor, holding.take)
