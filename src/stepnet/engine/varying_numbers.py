"""Numbers of Python's that change from call to call: which steps have them, and which are inputs of a plan.

A step whose plans differ by nothing but numbers is recorded from then on (`compiler.trace.record`), and its
plan is found by what it does with any number. Those that were seen to change are handed to it as tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.reads.followed_numbers import Uses
from stepnet.compiler.reads.numbers import Lifted, Number, as_tensor, but_for_numbers
from stepnet.data.bounded_cache import Bounded

_LIMIT = 512
_FEW = 8  # plans of one piece of source that a new one is held against
_WHOLE = range(-(2**63), 2**63)  # that a tensor holds


class Did(NamedTuple):
    """What a closed step does, and the numbers that it hands to torch."""

    key: tuple[Any, ...]
    numbers: Sequence[Number]

    @property
    def coded(self) -> Any:
        """What tells it from others."""
        return self.key, tuple([(number.kind, number.coded) for number in self.numbers])


@dataclass
class Following:
    """What a step does, whatever some numbers are. `proved`: a run with others did what it tells."""

    did: Did
    uses: Uses
    proved: bool = False

    def with_(self, values: Sequence[Any]) -> Did | None:
        """What it does with these; None if that is not known."""
        numbers = self.uses.of(values, self.did.numbers)
        return None if numbers is None else self.did._replace(numbers=numbers)


@dataclass
class Steps:
    """Steps that read the same but for numbers. `recorded`: what those did that read such a key, on rows like
    these; `followed`: what they do, by the key without the numbers that stand at `places` of it; `tries`: how
    often it was tried to follow them."""

    planned: set[Any] = field(default_factory=set)  # keys for which plans were made
    lifts: bool = True
    recorded: Bounded[Any, Did] = field(default_factory=lambda: Bounded(64))
    places: tuple[int, ...] = ()
    tries: int = 0
    followed: Bounded[Any, list[Following]] = field(default_factory=lambda: Bounded(64))


class _Plan(NamedTuple):
    key: tuple[Any, ...]
    step: Callable[[], Any]


_plans: Bounded[Any, list[_Plan]] = Bounded(_LIMIT)
_steps: Bounded[Any, Steps] = Bounded(_LIMIT)


def note_plan(root: Any, key: tuple[Any, ...], step: Callable[..., Any]) -> None:
    """A plan was made of a step that reads this. Another of the same step, or of one that is gone (it may be
    made anew for each call), tells whether only numbers are others."""
    plans, like = _plans.setdefault(root, []), but_for_numbers(key)
    alike = [plan for plan in plans if plan.key != key and but_for_numbers(plan.key) == like]
    if any(plan.step() in (None, step) for plan in alike):
        _steps.setdefault(like, Steps()).planned.update(
            plan.key for plan in (*alike, _Plan(key, lambda: None))
        )
    try:
        plans.append(_Plan(key, weakref.ref(step)))
    except TypeError:  # of an object with slots
        plans.append(_Plan(key, lambda: None))
    del plans[:-_FEW]


def varying(key: tuple[Any, ...]) -> Steps | None:
    """The steps that are like one which reads this, if their numbers are to be inputs."""
    steps = _steps.get(but_for_numbers(key)) if _steps else None
    return None if steps is None or not steps.lifts or key in steps.planned else steps


@dataclass
class Changed:
    """What steps that do the same with numbers handed to torch, and which of those changed since."""

    first: Sequence[Any]
    places: list[int] = field(default_factory=list)
    lifts: bool = True


_changed: Bounded[Any, Changed] = Bounded(_LIMIT)


class Inputs(NamedTuple):
    """Numbers of a step that are inputs of its plan."""

    lifted: Lifted
    of: Changed

    @property
    def tensors(self) -> list[Tensor]:
        """What the plan is given."""
        return [*self.lifted.tensors.values()]


def inputs_of(key: Any, numbers: Sequence[Number], device: torch.device) -> tuple[Any, Inputs | None]:
    """The key of a plan of a step that does this with these numbers, and those that it is given."""
    coded = [number.coded for number in numbers]
    of = _changed.get(key)
    if of is None:
        of = _changed[key] = Changed(coded)
    of.places += [
        at for at, (a, b) in enumerate(zip(of.first, coded, strict=True)) if a != b and at not in of.places
    ]
    lifted = {
        at: as_tensor(numbers[at], device)
        for at in (of.places if of.lifts else ())
        if type(numbers[at].value) is not int or numbers[at].value in _WHOLE
    }
    fixed = tuple([(at, value) for at, value in enumerate(coded) if at not in lifted])
    return (key, fixed, tuple(lifted)), Inputs(Lifted(numbers, lifted), of) if lifted else None


def forget() -> None:
    """Forget every step."""
    for kept in (_plans, _steps, _changed):
        kept.clear()
