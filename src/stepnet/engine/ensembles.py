"""A loop over models that differ in their weights: the step of all of them, as a loop of its own.

What has one row for each sequence gets a dimension of members beside it, and the step runs under
`torch.func.vmap`, which makes batched products of products. It is compiled as any other loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.func import vmap

from stepnet.compiler.trace.capture import Replaced
from stepnet.data.tree import flatten, unflatten
from stepnet.ir.loop import Code, Loop

from .norms import by_small_steps


class Members:
    """A body for many members.

    Args:
        body: the body of one.
        rows: its parameters that have rows; in place of each [rows, ...] is [rows, members, ...].
        weights: tensors that the body reads.
        wide: those of all members, [members, ...].
    """

    def __init__(
        self, body: Code, rows: tuple[str, ...], weights: Sequence[Tensor], wide: Sequence[Tensor]
    ) -> None:
        self.body, self.rows, self.weights, self.wide = body, rows, tuple(weights), tuple(wide)
        self.name, self.parameters, self.results = body.name, body.parameters, body.results

    @property
    def function(self) -> Any:
        """Whatever is read: by the body, and the weights of all members."""
        return partial(self.body.function, self.weights, self.wide)

    @property
    def form(self) -> Any:
        return "members", self.rows, len(self.weights), self.body.form

    def fresh(self) -> Members:
        body: Any = self.body.fresh()
        return Members(body, self.rows, self.weights, self.wide)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        given, forms = dict(zip(self.parameters, values, strict=True)), []

        def one(rows: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
            own = given | dict(zip(self.rows, rows, strict=True))
            with Replaced.by(self.weights, weights), by_small_steps():
                leaves, form = flatten(self.body(*own.values()))
            forms[:] = [form]
            return leaves

        wide = [w.view_as(w) for w in self.wide]  # an operation, so that who replaces tensors sees them
        leaves = vmap(one, (1, 0), 1)([given[name] for name in self.rows], wide)
        return unflatten(forms[0], leaves)


def loop_of_members(loop: Loop, weights: Sequence[Tensor], wide: Sequence[Tensor]) -> Loop:
    """The loop of `Members`. `weights`: tensors that the body of a sweep reads; `wide`: of all members."""
    body: Any = loop.body
    rows = tuple(port.parameter for port in (*loop.slices, *loop.merged))
    return loop.around(Members(body, rows, weights, wide))
