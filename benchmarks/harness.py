"""Run a case: compare the values of all contenders, and only then time them, turn by turn.

Contenders are timed in rounds (A B C, A B C, ...), so that a slow moment of the machine meets all of them; a
ratio is taken within each round, and its spread over the rounds says how far to trust it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .stats import Spread

Clock = Callable[[], float]


def _as_is(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        run: does the work once; this is timed.
        values: from what `run` returned to tensors by name, in a form all contenders share; not timed.
    """

    run: Callable[[], Any]
    values: Callable[[Any], Mapping[str, Tensor]] = _as_is


@dataclass(frozen=True)
class Case:
    """One work item.

    Args:
        name: unique in its topic.
        contenders: two or more, by name, in the order of their turns.
        reference: the contender whose values the others must have.
        ours: the contender that ratios are taken to: peer time / our time, above 1 where ours is faster.
        facts: sizes and other numbers that describe the work.
        rtol, atol: how far a value may be from the reference's, as in `torch.testing.assert_close`.
    """

    name: str
    contenders: Mapping[str, Contender]
    reference: str
    ours: str = "stepnet"
    facts: Mapping[str, float | str] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6

    def __post_init__(self) -> None:
        for role in (self.reference, self.ours):
            if role not in self.contenders:
                raise ValueError(f"case '{self.name}': '{role}' is none of {list(self.contenders)}")
        if len(self.contenders) < 2:
            raise ValueError(f"case '{self.name}' has one contender, so its values cannot be compared")


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        rounds: most turns of each contender.
        warmup: turns that do not count.
        shortest: seconds a turn must last; the work is repeated within a turn until it does.
        budget: seconds after which a case takes no further rounds, once it has three.
    """

    rounds: int
    warmup: int
    shortest: float
    budget: float


FULL = Effort(rounds=15, warmup=2, shortest=0.02, budget=30.0)
QUICK = Effort(rounds=3, warmup=1, shortest=0.0, budget=5.0)


@dataclass(frozen=True)
class Row:
    """The outcome of a case: times in seconds and ratios to ours, or the reason for refusing to give any."""

    case: str
    ours: str
    facts: Mapping[str, float | str]
    refused: str | None = None
    rounds: int = 0
    times: Mapping[str, Spread] = field(default_factory=dict)
    ratios: Mapping[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class Topic:
    """Cases that answer one question.

    Args:
        name: as given on the command line.
        claim: what the numbers are to show, in one sentence.
        cases: makes the cases one after the other; `True` asks for small ones.
        findings: numbers drawn from all rows together, by name; it gets the rows that were not refused.
    """

    name: str
    claim: str
    cases: Callable[[bool], Iterator[Case]]
    findings: Callable[[Sequence[Row]], Mapping[str, float]] | None = None


def run_case(case: Case, effort: Effort, clock: Clock = time.perf_counter) -> Row:
    """Compare, then time. Never gives a time for work whose values are wrong."""
    wrong = check_values(case)
    if wrong is not None:
        return Row(case.name, case.ours, case.facts, refused=wrong)
    turns = measure({name: contender.run for name, contender in case.contenders.items()}, effort, clock)
    times = {name: Spread.of(seconds) for name, seconds in turns.items()}
    ratios = {
        name: Spread.of([peer / ours for peer, ours in zip(seconds, turns[case.ours], strict=True)])
        for name, seconds in turns.items()
        if name != case.ours
    }
    return Row(case.name, case.ours, case.facts, None, len(turns[case.ours]), times, ratios)


def check_values(case: Case) -> str | None:
    """The first way in which the contenders' values are not the reference's, or None."""
    order = [case.reference, *(name for name in case.contenders if name != case.reference)]
    expected: Mapping[str, Tensor] = {}
    for name in order:
        contender = case.contenders[name]
        try:
            values = contender.values(contender.run())
        except Exception as error:  # one broken peer must not lose the other rows; the row says so
            return f"{name} raised {type(error).__name__}: {error}"
        if name == case.reference:
            expected = values
        wrong = _difference(values, expected, case)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def _difference(values: Mapping[str, Tensor], expected: Mapping[str, Tensor], case: Case) -> str | None:
    if not expected or values.keys() != expected.keys():
        return f"returned {sorted(values)}, the reference {sorted(expected)}"
    for name, tensor in values.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            return f"'{name}' has shape {list(tensor.shape)}, expected {list(wanted.shape)}"
        if not bool(torch.isfinite(tensor).all()):
            return f"'{name}' is not finite"
        error = (tensor.double() - wanted.double()).abs()
        if bool((error > case.atol + case.rtol * wanted.double().abs()).any()):
            return (
                f"'{name}' differs by up to {error.max().item():.3g} from '{case.reference}' "
                f"(allowed: {case.atol:g} + {case.rtol:g} relative)"
            )
    return None


def measure(
    runs: Mapping[str, Callable[[], Any]], effort: Effort, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each contender's turns, by round: entry r of each list belongs to round r."""
    repeats = dict.fromkeys(runs, 1)
    for _ in range(effort.warmup):
        for name, run in runs.items():
            seconds = _turn(run, repeats[name], clock)
            repeats[name] = max(repeats[name], math.ceil(effort.shortest / max(seconds, 1e-7)))
    turns: dict[str, list[float]] = {name: [] for name in runs}
    start = clock()
    for done in range(effort.rounds):
        if done >= 3 and clock() - start > effort.budget:
            break
        for name, run in runs.items():
            turns[name].append(_turn(run, repeats[name], clock))
    return turns


def _turn(run: Callable[[], Any], repeats: int, clock: Clock) -> float:
    """Seconds of one run, from `repeats` of them in a row."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = clock()
        for _ in range(repeats):
            run()
        return (clock() - start) / repeats
    finally:
        if enabled:
            gc.enable()
