"""Greedy decoding: the likeliest word, again and again."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data.arguments import whole
from stepnet.data.in_graph import by_python
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import outside_modes, unwrapped
from stepnet.data.offsets import LoD
from stepnet.data.unpatched_torch import from_numpy

from .blocks import Before, GreedyStep, Running, before, half_done, in_blocks, made, note
from .words import WordStep, checked_state, checked_words, scores_of


@by_python("how many words are decoded is known from the words")
def greedy(
    step: WordStep, state: Any, *, bos: int, eos: int, max_length: int, static: Any = None
) -> tuple[LoDTensor, Tensor]:
    """Generate a sequence for each row of the state, always taking the likeliest word.

    A row that has ended costs nothing more: the step sees the rows that still run.

    Args:
        step: `step(words, state) -> (scores, new_state)`: words int64 [n], the words before (bos at
            first); scores [n, V], logits or log probabilities of the next word.
        state: tensors [B, ...] or a nesting of them.
        bos, eos: the numbers of the words that begin and end a sequence.
        max_length: the most words of a sequence, eos counted.
        static: as in `recurrent`: tensors [B, ...] or LoDTensors of B sequences, such as what an encoder
            gave, or a nesting of them; the step is then `step(words, state, static)`.

    Returns:
        The words, int64, without bos and eos: B sequences. And the log probability of each, [B], that of
        eos included.

    Raises:
        StepError: the step, the state or `static` does not fit.

    >>> def count_up(word, state):
    ...     return torch.nn.functional.one_hot(word + 1, 5) * 9.0, state
    >>> words, scores = greedy(count_up, torch.zeros(2, 1), bos=0, eos=4, max_length=9)
    >>> [sequence.tolist() for sequence in words]
    [[1, 2, 3], [1, 2, 3]]
    """
    bos, eos = checked_words("greedy", step, bos, eos)
    max_length = whole("greedy: 'max_length'", max_length, 1)
    leaves, spec, rows = checked_state(step, state, static, "greedy")
    device = leaves[0].device
    if rows == 0:
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        return LoDTensor(empty, [[0]]), torch.zeros(0, device=device)

    with torch.no_grad():
        start = torch.full((rows,), bos, dtype=torch.int64, device=device)
        one = made(GreedyStep, spec, eos)
        run = MethodType(one, step)
        everyone = Running(start, torch.ones_like(start, dtype=torch.bool), start, leaves)
        tables = [torch.full((1, rows), eos, device=device)]
        way = greedy, spec, tuple([leaf.dtype for leaf in leaves])
        known, found = before(step, way), None
        if known is not None:
            score = torch.zeros(rows, dtype=known.dtype, device=device)
            once = everyone._replace(score=score)
            found = in_blocks(run, once, ["score"], tables, max_length, eos, 0, known.steps)
        if found is None:
            given = [leaf.clone() for leaf in leaves]  # which the step may write
            scores, new = scores_of(step, start, given, spec, eos)
            score = torch.zeros(rows, dtype=scores.dtype, device=device)
            first_words, running = one.taken(scores, new, everyone._replace(score=score))
            tables = [first_words[None]]
            found = in_blocks(run, running, ["score"], tables, max_length, eos)
            known = None if found is None else Before(scores.dtype, 0)
            if found is None:
                found = in_blocks(run, running, ["score"], tables, max_length, eos, plainly=True)
        assert found is not None
        steps, (score,) = found
        words, lengths = _until(eos, tables[0][:steps])
        if known is not None:
            note(step, way, known._replace(steps=half_done(lengths)))
        return words, score


@outside_modes
def _until(eos: int, table: Tensor) -> tuple[LoDTensor, list[int]]:
    """The words before the first eos of each column, and how many those are."""
    words = unwrapped(table).cpu().numpy().T
    ended = words == eos
    lengths = np.where(ended.any(1), ended.argmax(1), len(table))
    offsets = np.concatenate(([0], lengths.cumsum()))
    there = np.arange(len(table)) < lengths[:, None]
    lod = LoD.trusted((from_numpy(offsets),), int(offsets[-1]))
    return LoDTensor.of(from_numpy(words[there]).to(table.device), lod), lengths.tolist()
