"""Greedy decoding by generated C: a block of steps is one loop whose output is its next input.

A row that ends within a block runs to the end of the block without effect; after each block the rows that
have ended are left out, and the next one is twice as long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.tree import Spec
from stepnet.executors.registry import AUTO, tried
from stepnet.executors.setting import check_backend

from .words import WordStep, log_probabilities

_FIRST = 16  # steps of the first block


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


def in_blocks(step: GreedyStep, first: Running, max_length: int) -> tuple[Tensor, Tensor] | None:
    """The words [steps, B], eos behind their end, and the log probability of each row.

    Args:
        step: one step.
        first: the rows after the first word; `word` is that.
        max_length: the most words of a sequence, the first among them.

    Returns:
        None where generated C does not run the step: the plain loop does, or tells what is wrong with it.
    """
    best = tried(AUTO)[0].name  # by another one, step by step, nothing is gained
    if check_backend(None) not in (AUTO, best):
        return None
    words = torch.full((max_length, len(first.word)), step.eos, device=first.word.device)
    words[0] = torch.where(first.alive, first.word, step.eos)
    scores, rows = first.score.clone(), torch.arange(len(first.word), device=first.word.device)
    at, done, block = first, 1, _FIRST
    while done < max_length:
        if not bool(at.alive.all()):
            left = at.alive.nonzero().squeeze(1)
            rows = rows[left]
            at = Running(
                at.word[left], at.alive[left], at.score[left], [v.index_select(0, left) for v in at.leaves]
            )
        if not len(rows):
            break
        steps = min(block, max_length - done)
        try:
            found, at = recurrent(step, steps=steps, state=at, backend=best)
        except Exception:  # whatever it is, the plain loop may do without, or tells it in its own words
            return None
        words[done : done + steps, rows] = found
        scores[rows] = at.score
        done, block = done + steps, 2 * block
    return words[:done], scores
