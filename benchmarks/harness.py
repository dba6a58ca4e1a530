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
from rich.console import RenderableType
from torch import Tensor

from .stats import Spread

Clock = Callable[[], float]
Runs = Mapping[str, Callable[[], Any]]


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
        reference: the contender whose values the others must have; or what gives these values, where nobody
            who is timed is as exact as they should be.
        ours: the contender that ratios are taken to: peer time / our time, above 1 where ours is faster.
        facts: sizes and other numbers that describe the work.
        rtol, atol: how far a value may be from the reference's, as in `torch.testing.assert_close`.
    """

    name: str
    contenders: Mapping[str, Contender]
    reference: str | Callable[[], Mapping[str, Tensor]]
    ours: str = "stepnet"
    facts: Mapping[str, float | str] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6

    def __post_init__(self) -> None:
        for role in (self.reference, self.ours):
            if isinstance(role, str) and role not in self.contenders:
                raise ValueError(f"case '{self.name}': '{role}' is none of {list(self.contenders)}")
        if len(self.contenders) < 2 and isinstance(self.reference, str):
            raise ValueError(f"case '{self.name}' has one contender, so its values cannot be compared")

    @property
    def runs(self) -> Runs:
        """What is timed of each contender."""
        return {name: contender.run for name, contender in self.contenders.items()}


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


Measurer = Callable[["Case", Effort], dict[str, list[float]]]


@dataclass(frozen=True)
class Row:
    """The outcome of a case: times in seconds (or what else the topic measures, in its unit) and ratios to
    ours, or the reason for refusing to give any."""

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
        table: shows all rows; None: a line for each contender, in milliseconds.
        measure: what is measured of the contenders, by round; None: seconds.
        unit: of what is measured.
        efforts: for a full run, and for a quick one.
        on_request: it is run only where it is named.
    """

    name: str
    claim: str
    cases: Callable[[bool], Iterator[Case]]
    findings: Callable[[Sequence[Row]], Mapping[str, float]] | None = None
    table: Callable[[Sequence[Row]], RenderableType] | None = None
    measure: Measurer | None = None
    unit: str = "s"
    efforts: tuple[Effort, Effort] = (FULL, QUICK)
    on_request: bool = False


def run_case(
    case: Case, effort: Effort, clock: Clock = time.perf_counter, measurer: Measurer | None = None
) -> Row:
    """Compare, then measure: seconds by `clock`, or what `measurer` says. Never gives a number for work whose
    values are wrong."""
    wrong = check_values(case)
    if wrong is not None:
        return Row(case.name, case.ours, case.facts, refused=wrong)
    try:
        turns = measure(case.runs, effort, clock) if measurer is None else measurer(case, effort)
    except Exception as error:  # as in check_values
        return Row(case.name, case.ours, case.facts, refused=f"measuring raised {said_by(error)}")
    times = {name: Spread.of(seconds) for name, seconds in turns.items()}
    ratios = {
        name: Spread.of([peer / ours for peer, ours in zip(seconds, turns[case.ours], strict=True)])
        for name, seconds in turns.items()
        if name != case.ours
    }
    return Row(case.name, case.ours, case.facts, None, len(turns[case.ours]), times, ratios)


def check_values(case: Case) -> str | None:
    """The first way in which the contenders' values are not the reference's, or None."""
    others = [name for name in case.contenders if name != case.reference]
    try:
        expected = case.reference() if callable(case.reference) else _values(case, case.reference)
    except Exception as error:  # one broken contender must not lose the other rows; this row says so
        return f"the reference raised {said_by(error)}"
    wrong = _difference(expected, expected, case)
    if wrong is not None:
        return f"the reference: {wrong}"
    for name in others:
        try:
            wrong = _difference(_values(case, name), expected, case)
        except Exception as error:
            return f"{name} raised {said_by(error)}"
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def _values(case: Case, name: str) -> Mapping[str, Tensor]:
    contender = case.contenders[name]
    return contender.values(contender.run())


def said_by(error: Exception) -> str:
    """The type of an error and its first line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


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
                f"'{name}' differs by up to {error.max().item():.3g} from {_whose(case)} "
                f"(allowed: {case.atol:g} + {case.rtol:g} relative)"
            )
    return None


def _whose(case: Case) -> str:
    return f"'{case.reference}'" if isinstance(case.reference, str) else "the reference"


def measure(runs: Runs, effort: Effort, clock: Clock = time.perf_counter) -> dict[str, list[float]]:
    """Seconds of each contender's turns, by round: entry r of each list belongs to round r."""
    gc.collect()
    gc.freeze()  # what is loaded by now need not be gone through before every turn
    try:
        repeats, cold = dict.fromkeys(runs, 1), dict.fromkeys(runs, False)
        for _ in range(effort.warmup):
            for name, run in runs.items():
                seconds = _turn(run, repeats[name], cold[name], clock)
                repeats[name] = max(repeats[name], math.ceil(effort.shortest / max(seconds, 1e-7)))
                cold[name] = repeats[name] > 1 or seconds < SHORT
        turns: dict[str, list[float]] = {name: [] for name in runs}
        start = clock()
        for done in range(effort.rounds):
            if done >= 3 and clock() - start > effort.budget:
                break
            for name, run in runs.items():
                turns[name].append(_turn(run, repeats[name], cold[name], clock))
        return turns
    finally:
        gc.unfreeze()


# Seconds before a turn: until then the threads of the contender before it may wait busily for more work.
PAUSE = 0.01
# Seconds of work to which what that pause costs adds much: threads that sleep, caches of others.
SHORT = 0.02


def _turn(run: Callable[[], Any], repeats: int, cold: bool, clock: Clock) -> float:
    """Seconds of one run, from `repeats` of them in a row. `cold`: they are short, and follow one that does
    not count, for everyone alike: it wakes the threads and fills the caches."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    time.sleep(PAUSE)
    try:
        if cold:
            run()
        start = clock()
        for _ in range(repeats):
            run()
        return (clock() - start) / repeats
    finally:
        if enabled:
            gc.enable()
