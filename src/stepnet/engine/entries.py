"""What is known of steps: their plans, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.compiler.reads.undo import is_only_thread
from stepnet.data.tree import Spec
from stepnet.errors import NotBuilt, Unsupported
from stepnet.executors.ready import Ready

from .code_in_backward import InBackward

# The tensors that a body reads: which of those that it refers to it is, and whether it trains.
Weights = Sequence[tuple[int, Tensor, bool]]


@dataclass
class Entry:
    """What is known of one signature of a step: its plan and executor, or why there is none."""

    ready: Ready | None = None
    compiled: Compiled | None = None
    weights: list[int] = field(default_factory=list)
    y_spec: Spec | None = None
    refusals: list[tuple[str, Unsupported]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: bool = False  # an executor did not pass the self-check
    own_backward: bool = False  # see `Plan`
    in_backward: InBackward | None = None  # what that code reads, if that is known
    changes: frozenset[str] | None = None  # the step changed what it reads, by these names
    twice: bool | None = None  # of a derivative's plan: whether second derivatives by it are right
    forward_mode: bool | None = None  # and whether derivatives in forward mode are
    unsure: bool = False  # other threads ran while it was made, or C could not be built
    times: int = 1  # that it was made, if it is not sure
    pause: int = 2  # calls until it is made again
    failed: int = 0  # runs in a row of which a check did not hold
    rest: int = 0  # calls until it is run again
    family: Any = None  # what entries of the same code, with other values, have in common
    accepted: Accepted | None = None  # of a plan that is timed for some numbers of sequences
    size: int = 0  # of its number of sequences
    sizes: dict[int, Entry] = field(default_factory=dict)  # the same for more or fewer sequences
    # Of one step of about so many sequences: whether the step itself is faster.
    itself: dict[int, bool] = field(default_factory=dict)
    one_step: Ready | None = None  # what runs calls of one step of few sequences, if that was looked for

    def of_size(self, size: int) -> Entry | None:
        """This, or the same for about as many sequences as `size` says; None if that was not made yet."""
        return self if self.accepted is None or size == self.size else self.sizes.get(size)


class Accepted(NamedTuple):
    """A plan as the first executor that accepts it made it ready, before any is timed, and what was said of
    it until then; the key of its files."""

    ready: Ready
    refusals: Sequence[tuple[str, Unsupported]]
    notes: Sequence[str]
    key: str | None


def stands(entry: Entry) -> bool:
    """Whether an entry is to be used: a refusal found while other threads ran, which may be for what they
    did, stands for some calls; so does a build that failed, for a full disk may have space by then."""
    entry.pause -= entry.unsure
    if was_not_built(entry):
        return entry.ready is not None and entry.pause > 0
    return entry.pause > 0 and not (entry.unsure and is_only_thread())


def was_not_built(entry: Entry) -> bool:
    """Whether a compiler that is there did not build the C of a step."""
    return any(type(refusal) is NotBuilt for _, refusal in entry.refusals)


def refused_as(kind: type[Unsupported], entry: Entry) -> bool:
    """Whether there is no plan for a reason of this kind."""
    return entry.ready is None and any(isinstance(refusal, kind) for _, refusal in entry.refusals)
