"""An initial state that is learned."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepnet.data.tree import flatten, unflatten
from stepnet.errors import StepError
from stepnet.front.step import boot_state

from .variational_dropout import VariationalDropout
from .wrapper import Wrapper


class LearnedInitialState(Wrapper):
    """A cell whose initial state is a parameter, the same for every sequence, learned with the others.

    It starts at the initial state of the cell. `initial` holds a parameter per floating-point tensor of the
    state, in order, without the dimension of sequences; tensors of other dtypes stay as the cell gives them.
    Of an SLSTM only h learns: its initial m says that nothing has been seen, whatever c and n are.

    Args:
        cell: a cell, a cell of torch.nn, or any step with `initial_state`.

    Raises:
        StepError: the cell has no initial state, or holds dropout masks in it.

    >>> import torch
    >>> from stepnet.cells import GRU
    >>> cell = LearnedInitialState(GRU(3, 4))
    >>> cell.initial[0].shape, cell.initial_state(2).shape
    (torch.Size([4]), torch.Size([2, 4]))
    """

    def __init__(self, cell: Any) -> None:
        super().__init__(cell)
        inside: Any = self.cell
        while isinstance(inside, Wrapper):
            if isinstance(inside, VariationalDropout):
                raise StepError(
                    "LearnedInitialState cannot learn the masks in the state of a VariationalDropout",
                    remedy="wrap the other way round: VariationalDropout(LearnedInitialState(cell), ...)",
                )
            inside = inside.cell
        leaves, _ = flatten(boot_state(self.cell, 1))
        self.initial = nn.ParameterList(
            nn.Parameter(leaf[0].detach().clone()) for leaf in leaves if leaf.is_floating_point()
        )

    def forward(self, x: Any, state: Any, mask: Tensor | None = None) -> tuple[Any, Any]:
        """One step of the wrapped cell."""
        return self.inner(x, state, mask)

    def initial_state(self, n: int) -> Any:
        """The learned state, a row for each of n sequences."""
        leaves, spec = flatten(boot_state(self.cell, n))
        learned = iter(self.initial)
        return unflatten(
            spec, [next(learned).expand_as(leaf) if leaf.is_floating_point() else leaf for leaf in leaves]
        )
