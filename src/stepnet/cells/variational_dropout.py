"""Variational dropout: one mask for all steps of a sequence."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from stepnet.data.tree import flatten
from stepnet.errors import StepError
from stepnet.front.step import boot_state, step_name

from .wrapper import Wrapper, check_probability, innermost, size_of, takes_mask


class VariationalDropout(Wrapper):
    """A cell with variational dropout (Gal and Ghahramani, "A theoretically grounded application of dropout
    in recurrent neural networks", 2016): each sequence has one mask on x and one on h for all its steps.

    The masks are part of the state, so they follow their sequences wherever these go:

        state = (inner state, {"x": mask, "h": mask})          a mask whose p is 0 is left out

    They are drawn by `initial_state`, once a run where `state` is None, and come back unchanged. So

    - the final state of the cell is the first of two: `y, (h, masks) = recurrent(cell, x)`;
    - given back as the initial state of the next part of the same sequences, the masks stay;
    - to start from a state of your own, `state=cell.initial_state(n, h0)` draws masks to go with it.

    h is masked where it meets weight_hh, nowhere else: a unit that is dropped there still keeps its own past.
    In evaluation the masks that are drawn are ones.

    Args:
        cell: a cell, a cell of torch.nn, or a step that is an nn.Module with `input_size` (for input_p), and
            `hidden_size` and an argument `mask` (for state_p).
        input_p: the probability that a feature of x is dropped, for a whole sequence.
        state_p: the same for a unit of h.

    Raises:
        StepError: p is no probability; the cell does not say its sizes, or takes no `mask` for h.

    >>> import torch
    >>> from stepnet.cells import GRU
    >>> cell = VariationalDropout(GRU(3, 4), input_p=0.5, state_p=0.5)
    >>> h, masks = cell.initial_state(2)
    >>> masks["x"].shape, sorted(set(masks["h"].flatten().tolist()))
    (torch.Size([2, 3]), [0.0, 2.0])
    """

    def __init__(self, cell: Any, input_p: float = 0.0, state_p: float = 0.0) -> None:
        super().__init__(cell)
        self.input_p = check_probability("VariationalDropout", "input_p", input_p)
        self.state_p = check_probability("VariationalDropout", "state_p", state_p)
        if state_p and not takes_mask(self.cell):
            raise StepError(
                f"VariationalDropout cannot mask h inside step '{step_name(innermost(self.cell))}'",
                got=f"state_p={state_p} and a step without an argument 'mask'",
                remedy="use a cell of stepnet.cells with recurrent weights (state_dicts of torch.nn load), "
                "or give the step a third argument 'mask' that multiplies h where weights meet it",
            )
        self._sizes: dict[str, tuple[int, float]] = {}
        if input_p:
            self._sizes["x"] = size_of("VariationalDropout", self.cell, "input_size"), self.input_p
        if state_p:
            self._sizes["h"] = size_of("VariationalDropout", self.cell, "hidden_size"), self.state_p

    def forward(self, x: Tensor, state: tuple[Any, dict[str, Tensor]]) -> tuple[Any, Any]:
        """One step, with the masks of the state. Raises StepError: it holds none."""
        if not (isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)):
            raise StepError(
                "the state of a VariationalDropout must hold its masks",
                got=f"state {flatten(state)[1]}",
                expected="(inner state, masks)",
                remedy="pass state=cell.initial_state(n, state), which draws masks for it",
            )
        inner, masks = state
        if "x" in masks:
            x = x * masks["x"]
        y, new = self.inner(x, inner, masks.get("h"))
        return y, (new, masks)

    def initial_state(self, n: int, state: Any = None) -> tuple[Any, dict[str, Tensor]]:
        """(inner state, masks) of n sequences: masks drawn anew, beside the cell's state or the one given."""
        inner = boot_state(self.cell, n) if state is None else state
        like = next(leaf for leaf in flatten(inner)[0] if leaf.is_floating_point())
        masks = {
            name: F.dropout(like.new_ones(n, size), p, self.training)
            for name, (size, p) in self._sizes.items()
        }
        return inner, masks

    def extra_repr(self) -> str:
        return f"input_p={self.input_p}, state_p={self.state_p}"
