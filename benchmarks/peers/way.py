"""What the contenders that run in torch share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Contender
from benchmarks.work import Setting, named


@dataclass(frozen=True)
class Way:
    """A recurrence on its input.

    Args:
        setting: what it is to do.
        forward: gives y.
        x: what forward reads; it has gradients.
        weights: what else has gradients, under the names of the setting's weights.
        seeds: the gradients of y, laid out as y.
        to_rows: from the layout of x and y to rows, sequence after sequence.
    """

    setting: Setting
    forward: Callable[[], Tensor]
    x: Tensor
    weights: Mapping[str, Tensor]
    seeds: Tensor
    to_rows: Callable[[Tensor], Tensor]

    @property
    def leaves(self) -> list[Tensor]:
        """What gets gradients."""
        return [self.x, *self.weights.values()]

    def contender(self, training: bool) -> Contender:
        """Forward alone without recording, or forward and the gradients of x and of all weights, as training
        has them: in `.grad`, which is empty before."""

        def infer() -> Any:
            with torch.no_grad():
                return (self.forward(),)

        def train() -> Any:
            for leaf in self.leaves:
                leaf.grad = None
            y = self.forward()
            y.backward(self.seeds.to(y.dtype))
            return (y, *[leaf.grad for leaf in self.leaves])

        return Contender(train if training else infer, self.values)

    def values(self, done: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
        """What `run` returned, relative to what is expected."""
        y, *grads = done
        rows = self.to_rows(y.detach())
        if not grads:
            return self.setting.relative({"y": rows})
        weights = dict(zip(self.weights, grads[1:], strict=True))
        return self.setting.relative(named(rows, self.to_rows(grads[0]), weights))


def as_contenders(ways: Mapping[str, Way], training: bool) -> dict[str, Contender]:
    """Each way as a contender."""
    return {name: way.contender(training) for name, way in ways.items()}
