"""Decoding by generated C: a block of steps is one loop whose output is its next input.

A row that is done within a block runs to the end of the block without effect; after each block the rows that
are done are left out, and the next one is twice as long. The first is as long as half of the rows took when a
step of the same code was run before.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from stepnet.api import recurrent, run_as_before, warm
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.rewritten.inner_loops import inner
from stepnet.compiler.trace.capture import FailsOnAnyRows
from stepnet.data.bounded_cache import Bounded
from stepnet.data.tree import Spec, by_leaf, flatten, rows_at
from stepnet.engine import FailsOnSamples, Way, tell
from stepnet.errors import OF_A_NAME, NotBuilt, SlowPathWarning, StepError, TorchOpsWarning, Unsupported
from stepnet.executors.base import Backend
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.setting import check_backend
from stepnet.front.step import step_name
from stepnet.interrupts import let_through
from stepnet.watchers import nobody_else

from .words import WordStep, normaliser, scores_of

_FIRST, _MOST_FIRST = 16, 64  # steps of the first block: more are wasted where a run is shorter than the last
_MOST_WAYS = 64
_T = TypeVar("_T")
Step = Callable[[Any, Any], tuple[Any, Any]]  # what a step gives for the tables, and the rows after it


class Before(NamedTuple):
    """What is known of a step from when generated C ran it: what a call may begin with, to be held against
    what comes of it. `same`: which leaves of the state the step hands on as they are."""

    dtype: torch.dtype
    steps: int
    same: tuple[bool, ...] = ()


_before: WeakKeyDictionary[Any, Bounded[Any, Before]] = WeakKeyDictionary()
_made = Bounded[Any, Any](_MOST_WAYS)


def before(step: WordStep, way: Any) -> Before | None:
    """What is known of steps of this code; `way`: how they were run."""
    return _before.get(_code(step), {}).get(way) if _in_c() else None


def note(step: WordStep, way: Any, known: Before) -> None:
    """Keep what is known of a step."""
    _before.setdefault(_code(step), Bounded(_MOST_WAYS))[way] = known


def _code(step: Any) -> Any:
    if isinstance(step, functools.partial):
        return _code(step.func)
    step = getattr(step, "__func__", step)
    return step.__code__ if type(step) is types.FunctionType else type(step)


def _in_c() -> Backend | None:
    """What runs blocks, where it may: by another executor, step by step, nothing is gained."""
    best = tried(AUTO)[0].name
    return best if check_backend(None) in (AUTO, best) else None


def half_done(lengths: Sequence[int]) -> int:
    """The steps after which half of the rows are done."""
    return sorted(lengths)[len(lengths) // 2] + 1


class Running(NamedTuple):
    """The rows that run: the word before, whether one still runs, its score, and the leaves of its state."""

    word: Tensor
    alive: Tensor
    score: Tensor
    leaves: list[Tensor]


def likeliest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest word of each row, and its log probability."""
    return scores.argmax(1), -normaliser(scores)[1][:, 0]


class GreedyStep:
    """One step of all rows: the likeliest word, any word for rows that have ended."""

    def __init__(self, spec: Spec, eos: int) -> None:
        self.spec, self.eos = spec, eos

    def __call__(self, step: WordStep, _: Any, at: Running) -> tuple[Tensor, Running]:
        scores, new = scores_of(step, at.word, at.leaves, self.spec, self.eos)
        check_score(scores, at.score)
        return self.taken(scores, new, at)

    def taken(self, scores: Tensor, new: list[Tensor], at: Running) -> tuple[Tensor, Running]:
        """The words of a step and the rows after it."""
        best, log_p = likeliest(scores)
        score = torch.where(at.alive, at.score + log_p, at.score)
        alive = at.alive & (best != self.eos)
        word = torch.where(alive, best, at.word)  # a row that has ended gets a word that it has met
        return best, Running(word, alive, score, new)


def made(kind: Callable[..., _T], *how: Any) -> _T:
    """A step of all rows, the same one for all calls that ask for it: bound to a step of words it is then
    found again as what it was at the call before, and nothing keeps the step of words alive."""
    one = _made.get((kind, how))
    if one is None:
        one = _made[kind, how] = kind(*how)
    return one


def check_score(scores: Tensor, score: Tensor) -> None:
    """See that what a score began with is of the type of what is added to it."""
    if scores.dtype is not score.dtype:
        raise StepError(
            "the scores of a step have another dtype than those of the first",
            got=scores.dtype,
            expected=score.dtype,
            remedy=f"return scores.to({score.dtype})",
        )


def in_blocks(
    step: Step, first: Any, kept: Sequence[str], tables: list[Tensor], most: int, fill: int = 0,
    done: int = 1, block: int = _FIRST, plainly: bool = False,
) -> tuple[int, list[Tensor]] | None:  # fmt: skip
    """Run on until every row is done.

    Args:
        step: one step.
        first: the rows after the steps that are done; `alive` says which still run.
        kept: the names of what is wanted of each row in the end.
        tables: [steps, B, ...] each: what the steps give is written there, behind those that are done. They
            grow as they must.
        most: how many steps there are at most.
        fill: what the tables hold for rows that do not run.
        done: how many steps that are.
        block: the steps of the first block.
        plainly: step after step; else by generated C.

    Returns:
        How many steps there were, and what is kept. None where generated C does not run the step.
    """
    best = _in_c()
    if best is None and not plainly:
        return None
    results = [getattr(first, name).clone() for name in kept]
    rows: Any = slice(None)  # of the tables, those that run
    at, block = first, 1 if plainly else max(_FIRST, min(block, _MOST_FIRST))
    while done < most:
        if not bool(at.alive.all()):
            left = at.alive.nonzero().squeeze(1)
            if not len(left):
                break
            rows = left if type(rows) is slice else rows[left]
            at = rows_at(at, left)
        steps = min(block, most - done)
        if plainly:
            found, at = step(None, at)
            found = by_leaf(lambda leaf: leaf[None], found)
        else:
            assert best is not None
            ran = _block(step, steps, at, best)
            if ran is None:
                return None
            found, at = ran
            block *= 2
        if done + steps > len(tables[0]):
            more = max(steps, len(tables[0]))
            tables[:] = [torch.cat([t, t.new_full((more, *t.shape[1:]), fill)]) for t in tables]
        for table, part in zip(tables, flatten(found)[0], strict=True):
            table[done : done + steps, rows] = part
        for result, name in zip(results, kept, strict=True):
            result[rows] = getattr(at, name)
        done += steps
    return done, results


def _block(step: Step, steps: int, at: Any, best: Backend) -> tuple[Any, Any] | None:
    """Some steps by generated C; None where it does not run them, or they draw noise: a block would draw for
    rows that are done, too."""
    nothing, call, out = at.score.new_zeros((steps, len(at.alive), 1)), None, None
    try:
        if nobody_else() and inner() is None:
            way = Way(False, -1, 0, best)
            _, out = warm(step, nothing, at, way, draws=False)
            if out is None:
                _, call, out = run_as_before(step, nothing, at, way, draws=False)
        if out is not None:
            return out
        if (call is not None and call.draws) or reach(step).generators:
            return None
        noise = torch.get_rng_state()
        out = recurrent(step, nothing, at, backend=best)
    except Exception as error:  # whatever it is, the plain loop may do without, or tells it in its own words
        let_through(error)
        if isinstance(error, Unsupported) and not isinstance(error, (FailsOnSamples, FailsOnAnyRows)):
            _tell(step, error)
        return None
    if call is None:
        return out if torch.equal(noise, torch.get_rng_state()) else None
    if call.draws:
        torch.set_rng_state(noise)
        return None
    return out


def _tell(step: Step, error: Unsupported) -> None:
    """Warn that a step runs by torch, step after step, as `recurrent` does; raise where C was asked for
    by name and is not there."""
    if check_backend(None) != AUTO:
        if isinstance(error, NotBuilt):
            raise error.fresh()
        return
    told = error.fresh()
    if error.remedy in (None, OF_A_NAME):
        told.remedy = "stepnet.set_backend('eager') accepts that, without a warning"
    words = getattr(step, "__self__", step)
    kind = TorchOpsWarning if isinstance(error, NotBuilt) else SlowPathWarning
    tell(kind, step_name(words), _code(words), told)
