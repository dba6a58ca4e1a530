"""What every wrapper of a cell shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from stepnet.data.arguments import number
from stepnet.errors import StepError
from stepnet.front.step import as_step, boot_state, signature_of, step_name


class Wrapper(nn.Module):
    """A cell around a cell. The inner one is `cell`: a cell of this package or of torch.nn, or any step."""

    cell: Callable[..., Any]

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = as_step(cell)

    def inner(self, x: Any, state: Any, mask: Tensor | None) -> tuple[Any, Any]:
        """A step of the wrapped cell."""
        return self.cell(x, state) if mask is None else self.cell(x, state, mask)

    def initial_state(self, n: int) -> Any:
        """The state of n sequences before their first step, as the wrapped cell has it."""
        return boot_state(self.cell, n)


def innermost(step: Any) -> Any:
    """The step inside all wrappers.

    >>> innermost(Wrapper(Wrapper(nn.Identity())))
    Identity()
    """
    while isinstance(step, Wrapper):
        step = step.cell
    return step


def takes_mask(step: Any) -> bool:
    """Whether the innermost step has an argument `mask`."""
    step = innermost(step)
    try:
        return "mask" in signature_of(step.forward if isinstance(step, nn.Module) else step).parameters
    except (TypeError, ValueError):  # of a builtin
        return False


def size_of(wrapper: str, step: Any, name: str) -> int:
    """`input_size` or `hidden_size` of the innermost step.

    Raises:
        StepError: it has none.
    """
    step = innermost(step)
    step = getattr(step, "cell", step)  # a cell of torch.nn, as a step
    size = getattr(step, name, None)
    if not isinstance(size, int):
        raise StepError(
            f"{wrapper} needs the '{name}' of step '{step_name(step)}' to draw a mask",
            got=f"a step without an attribute '{name}'",
            remedy=f"make the step an nn.Module and set self.{name}",
        )
    return size


def check_probability(wrapper: str, name: str, p: Any) -> float:
    """A probability, or an error that names it."""
    return number(f"{wrapper} '{name}'", p, 0, 1, kind="a probability")
