"""Decoding by generated C: a block of steps is one loop whose output is its next input.

A row that is done within a block runs to the end of the block without effect; after each block the rows that
are done are left out, and the next one is twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.tree import Spec, by_leaf, flatten, rows_at
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.setting import check_backend

from .words import WordStep, log_probabilities

_FIRST = 16  # steps of the first block
Step = Callable[[None, Any], tuple[Any, Any]]  # what a step gives for the tables, and the rows after it


class Running(NamedTuple):
    """The rows that run: the word before, whether one still runs, its score, and the leaves of its state."""

    word: Tensor
    alive: Tensor
    score: Tensor
    leaves: list[Tensor]


class GreedyStep:
    """One step of all rows: the likeliest word, eos for rows that have ended."""

    def __init__(self, step: WordStep, spec: Spec, eos: int) -> None:
        self.step, self.spec, self.eos = step, spec, eos

    def __call__(self, _: None, at: Running) -> tuple[Tensor, Running]:
        log_p, new = log_probabilities(self.step, at.word, at.leaves, self.spec, self.eos)
        return self.taken(log_p, new, at)

    def taken(self, log_p: Tensor, new: list[Tensor], at: Running) -> tuple[Tensor, Running]:
        """The words of a step and the rows after it."""
        best = log_p.argmax(1)
        score = torch.where(at.alive, at.score + log_p.amax(1), at.score)
        alive = at.alive & (best != self.eos)
        word = torch.where(alive, best, at.word)  # a row that has ended gets a word that it has met
        return torch.where(at.alive, best, self.eos), Running(word, alive, score, new)


def in_blocks(
    step: Step, first: Any, kept: Sequence[str], tables: Sequence[Tensor], plainly: bool = False
) -> tuple[int, list[Tensor]] | None:
    """Run on until every row is done.

    Args:
        step: one step.
        first: the rows after the first step; `alive` says which still run.
        kept: the names of what is wanted of each row in the end.
        tables: [steps, B, ...] each: what the steps give is written there. The first step has been.
        plainly: step after step; else by generated C.

    Returns:
        How many steps there were, and what is kept. None where generated C does not run the step.
    """
    best = tried(AUTO)[0].name  # by another one, step by step, nothing is gained
    if not plainly and check_backend(None) not in (AUTO, best):
        return None
    results = [getattr(first, name).clone() for name in kept]
    rows = torch.arange(len(first.alive), device=first.alive.device)
    at, done, block = first, 1, 1 if plainly else _FIRST
    while done < len(tables[0]):
        if not bool(at.alive.all()):
            left = at.alive.nonzero().squeeze(1)
            rows = rows[left]
            at = rows_at(at, left)
        if not len(rows):
            break
        steps = min(block, len(tables[0]) - done)
        if plainly:
            found, at = step(None, at)
            found = by_leaf(lambda leaf: leaf[None], found)
        else:
            try:
                found, at = recurrent(step, steps=steps, state=at, backend=best)
            except Exception:  # whatever it is, the plain loop may do without, or tells it in its own words
                return None
            block *= 2
        for table, part in zip(tables, flatten(found)[0], strict=True):
            table[done : done + steps, rows] = part
        for result, name in zip(results, kept, strict=True):
            result[rows] = getattr(at, name)
        done += steps
    return done, results
