"""How the zoo keeps its cells: by name, with what they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Kind:
    """A cell and the shapes of what it is given: x without the batch, and each state."""

    make: Callable[[], nn.Module]
    x: tuple[int, ...]
    states: tuple[tuple[int, ...], ...]
    ints: int = 0  # x holds numbers below this one
    floats: str = "real"  # or "complex", "count"
    noise: bool = False  # it draws
    form: Callable[..., Any] | None = None  # how states are held, if not one after the other

    def inputs(self, lengths: list[int], dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Rows of x and initial states that require gradients where they can."""
        rows = sum(lengths)
        if self.ints:
            x = torch.randint(0, self.ints, (rows, *self.x))
        else:
            x = torch.randn(rows, *self.x, dtype=dtype, requires_grad=True)
        return x, tuple(
            (torch.randn(len(lengths), *s, dtype=dtype) * 0.1).requires_grad_() for s in self.states
        )


class Zoo(dict[str, Kind]):
    """Cells by name."""

    def cell(self, x: int | tuple[int, ...], states: list[Any], **more: Any) -> Callable[[type], type]:
        """Keep a class of cells."""

        def keep(made: type) -> type:
            shapes = tuple(s if isinstance(s, tuple) else (s,) for s in states)
            self[made.__name__] = Kind(made, x if isinstance(x, tuple) else (x,), shapes, **more)
            return made

        return keep
