"""One run of a plan, as a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .layout import Layout
from .memory import Counters
from .ready import Ready

# Of what comes in for some tensors, the gradients of x, states and weights, where they are wanted.
Pull = Callable[[Sequence[tuple[Tensor, Tensor]], Sequence[bool]], "list[Tensor | None]"]
Moving = tuple["list[Tensor | None]", "list[Tensor]", "Pull | None"]


class KeptRows(NamedTuple):
    """What a run kept for its backward: the rows of y, then the plan's `extra`; none, if it is made again.
    What counts how often they are written to; and the states before whose rows their boot values lie."""

    rows: Sequence[Tensor] = ()
    written: Counters | tuple[()] = ()
    led: Sequence[str] = ()


class Along(Protocol):
    """What runs the derivative of a loop along directions of its inputs."""

    def same_step(self, tensors: Sequence[Tensor]) -> Any:
        """Raises StepError if the step reads something else than at the call."""
        ...

    def expect(self, tensors: Sequence[Tensor], asked: Sequence[bool], whole: bool) -> None:
        """Be ready for the gradients that are asked for to be differentiated when the step is another one."""
        ...

    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> Sequence[bool]:
        """For each of x, states and weights, whether its gradient can be differentiated again: whether it
        depends on what does.

        Args:
            given: for each result, whether something comes in for it.
            needed: of x, states and weights, which get a gradient.
            live: of those, and of what comes in for each result, which are to be differentiated by.
        """
        ...

    def __call__(
        self, tensors: Sequence[Tensor], directions: Sequence[Tensor | None],
        noise: Sequence[Tensor] | None = None, whole: bool = False, once: bool = False,
        kept: KeptRows | None = None,
    ) -> Moving:  # fmt: skip
        """Of x, states and weights, a direction for each that moves, and the noise of the call: the
        derivative of each result, y leaves, then last states; None for what has none. And, if `whole`, the
        results. If nobody differentiates these more than `once`, perhaps also what does that, unseen by
        autograd; then what was `kept` need not be computed anew, and tensors may be but names for results.
        Raises Unsupported where no plan runs it."""
        ...


def not_asked_for(*_: Any) -> Any:
    """Stands for the plain loop of a run that nobody asks for a gradient which the plan does not give."""
    raise AssertionError("nobody asks for the plain loop")


class Call(NamedTuple):
    """One run: the plan, where the rows stand, constants, and the plain loop on the same inputs; perhaps what
    runs the derivative of the same loop along directions of its inputs; its noise, if that is of another run,
    or where the generator of its device stood before it drew any."""

    ready: Ready
    layout: Layout
    constants: dict[str, Tensor]
    plain: Callable[..., tuple[list[Tensor], list[Tensor]]]  # of x, states and weights
    along: Callable[[], Along] | None = None  # made where it is asked for, which few calls do
    guarded: bool = False  # gradients that are not finite are asked of the plain loop, whatever comes in
    noise: Sequence[Tensor] | None = None
    before: tuple[torch.device, Tensor] | None = None
    steps: tuple[int, ...] = ()  # what the rows of y are to be: [steps, sequences, ...]; (): rows
    # Raises StepError if code of the step's own that runs in backward may read something else by now.
    same_backward: Callable[[], None] | None = None
    as_it_is: bool = False  # inputs are known to stand in memory as they are, and no mode is around

    def by_loop(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """y and the last states, by the plain loop on x, states and weights."""
        with self.ready.around.again():
            y, finals = self.plain(*self.ready.plan.parted(inputs))
        return [*y, *finals]


def goes_by_places(ready: Ready, constants: Mapping[str, Any], inputs: Iterable[Tensor]) -> bool:
    """Whether runs on tensors that look like these may go by places: a plan reads no constants then, and
    finds in memory what the tensors say that they are."""
    if constants or ready.plan.paired:
        return False
    return not any(t.is_complex() or t.is_neg() or t._is_zerotensor() for t in inputs)
