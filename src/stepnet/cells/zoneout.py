"""Zoneout: units that now and then keep their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.tree import flatten, flatten_as, unflatten
from stepnet.errors import StepError
from stepnet.front.step import step_name

from .mlstm import MLSTM
from .rwkv import RWKVTimeMix
from .slstm import SLSTM
from .wrapper import Wrapper, check_probability, innermost


class Zoneout(Wrapper):
    """A cell with zoneout (Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden
    activations", 2016).

    In training each unit of the new state is, with probability p, that of the old state, drawn anew at every
    step and for each tensor of the state; in evaluation it is the expectation:

        training:    new = where(rand < p, old, new)
        evaluation:  new = p * old + (1 - p) * new

    Where the cell's y is a tensor of its new state, as in all cells here, y is the one zoned out. Tensors of
    the state that are not floating-point are left alone.

    Args:
        cell: a cell, a cell of torch.nn, or any step.
        p: the probability; one for all tensors of the state, or one for each: (0.05, 0.5) for (h, c).

    Raises:
        StepError: p is no probability, or there is not one for each tensor of the state; or p would mix the
            tensors of an SLSTM, MLSTM or RWKVTimeMix that mean something only together.

    >>> import torch
    >>> from stepnet.cells import LSTM
    >>> cell = Zoneout(LSTM(3, 4), p=1.0)
    >>> y, (h, c) = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> bool(h.any())
    False
    """

    def __init__(self, cell: Any, p: float | Sequence[float]) -> None:
        super().__init__(cell)
        self.p: float | tuple[float, ...]
        if isinstance(p, Sequence):
            self.p = tuple(check_probability("Zoneout", f"p[{i}]", value) for i, value in enumerate(p))
        else:
            self.p = check_probability("Zoneout", "p", p)
        of_c_n_m = self.p[1:4] if isinstance(self.p, tuple) else (self.p,)
        if isinstance(innermost(self.cell), SLSTM) and any(of_c_n_m):
            raise StepError(
                "Zoneout cannot keep a unit's c, n or m of an SLSTM without the others",
                got=f"p={p}",
                remedy="zone out h alone: p=(0.1, 0, 0, 0)",
            )
        inside = innermost(self.cell)
        if isinstance(inside, (MLSTM, RWKVTimeMix)) and any(self.p if isinstance(self.p, tuple) else (p,)):
            raise StepError(
                f"Zoneout cannot keep a part of an {type(inside).__name__}'s state without the rest",
                got=f"p={p}",
                remedy="its state has no h to zone out: p=0 alone is possible",
            )

    def forward(self, x: Any, state: Any, mask: Tensor | None = None) -> tuple[Any, Any]:
        """One step. Raises StepError: the cell nests its new state otherwise than its state."""
        y, new = self.inner(x, state, mask)
        old_leaves, spec = flatten(state)
        new_leaves, new_spec = flatten_as(spec, new)
        if new_spec != spec:
            raise StepError(
                f"step '{step_name(innermost(self.cell))}' changed the structure of the state",
                got=f"new_state {new_spec}",
                expected=f"state {spec}",
                remedy="return the new state nested as the state that came in",
            )
        rates = self._rates(len(old_leaves))
        kept = [self._zone(*leaf) for leaf in zip(old_leaves, new_leaves, rates, strict=True)]
        zoned = {id(before): after for before, after in zip(new_leaves, kept, strict=True)}
        y_leaves, y_spec = flatten(y)
        y = unflatten(y_spec, [zoned.get(id(leaf), leaf) for leaf in y_leaves])
        return y, unflatten(spec, kept)

    def _zone(self, old: Tensor, new: Tensor, p: float) -> Tensor:
        if p == 0 or not new.is_floating_point():
            return new
        if self.training:
            return torch.where(torch.rand_like(new) < p, old, new)
        return p * old + (1 - p) * new

    def _rates(self, leaves: int) -> tuple[float, ...]:
        if not isinstance(self.p, tuple):
            return (self.p,) * leaves
        if len(self.p) != leaves:
            raise StepError(
                "Zoneout 'p' must hold one probability for each tensor of the state",
                got=f"{len(self.p)} for {leaves} tensors",
                remedy="pass one number for all of them, or as many as the state has tensors",
            )
        return self.p

    def extra_repr(self) -> str:
        return f"p={self.p}"
