"""Beam search: the best few sequences at every step, and of all that ended the best."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import Spec
from stepnet.errors import StepError
from stepnet.repeat import while_loop

from .words import WordStep, check_count, checked_state, log_probabilities


class _Ended(NamedTuple):
    """The best K sequences that ended, of each row: [B, K] each, best first."""

    score: Tensor  # normalised; -inf where there is none
    length: Tensor  # words without eos
    beam: Tensor  # whose words they are, after so many steps


def beam_search(
    step: WordStep, state: Any, *, bos: int, eos: int, beam_size: int, max_length: int,
    length_penalty: float = 0.0, n_best: int = 1,
) -> tuple[LoDTensor, LoDTensor]:  # fmt: skip
    """Generate the best sequences for each row of the state.

    A sequence ends with eos, or with its `max_length`-th word. Its score is its log probability (that of
    eos included) divided by `((5 + n) / 6) ** length_penalty`, n its number of words, eos counted. A row is
    done as soon as no sequence that goes on can come among its `n_best`; then it costs nothing more.

    Args:
        step: as in `greedy`; it is called with `beam_size` rows for each row that still runs.
        state: tensors [B, ...] or a nesting of them.
        bos: the number of the word that begins a sequence.
        eos: the number of the word that ends one.
        beam_size: how many sequences go on at each step.
        max_length: the most words of a sequence, eos counted.
        length_penalty: 0 or more; 0 compares log probabilities, more favours long sequences.
        n_best: how many sequences to give for each row, at most `beam_size`.

    Returns:
        The words, int64, without bos and eos: two levels, the sequences of each row, best first, and their
        words. And the scores of the sequences, one level. A row has fewer than `n_best` if there are no more.

    Raises:
        StepError: the step or the state does not fit, or a number is out of range.

    Source: the length penalty of Wu et al., Google's Neural Machine Translation System (2016), equation 14;
    parents and words in arrays as in Paddle's beam_search and beam_search_decode.

    >>> def coin(word, state):
    ...     return torch.tensor([[0.0, 0.5, 0.3, 0.2]]).log().expand(len(word), 4), state
    >>> start, sizes = torch.zeros(1, 1), {"beam_size": 3, "max_length": 2, "n_best": 2}
    >>> words, scores = beam_search(coin, start, bos=0, eos=3, **sizes)
    >>> [sequence.tolist() for sequence in words[0]], scores.values.exp()
    ([[1, 1], []], tensor([0.2500, 0.2000]))
    """
    where = "beam_search"
    for name, value in (("beam_size", beam_size), ("max_length", max_length), ("n_best", n_best)):
        check_count(where, name, value)
    if n_best > beam_size:
        raise StepError(
            f"{where}: n_best is at most beam_size", got=f"n_best={n_best}, beam_size={beam_size}"
        )
    if length_penalty < 0:
        raise StepError(f"{where}: length_penalty must not be negative", got=length_penalty)
    leaves, spec, rows = checked_state(state, where)
    device = leaves[0].device
    if rows == 0:
        nothing = torch.zeros(0, device=device)
        return LoDTensor(nothing.long(), [[0], [0]]), LoDTensor(nothing, [[0]])
    search = _Search(step, spec, eos, beam_size, max_length, length_penalty, n_best)
    with torch.no_grad():
        start = torch.full((rows, beam_size), bos, dtype=torch.int64, device=device)
        scores = torch.full((rows, beam_size), -torch.inf, dtype=search.dtype(start, leaves), device=device)
        ended = _Ended(scores, torch.zeros_like(start), torch.zeros_like(start))
        scores = scores.clone()
        scores[:, 0] = 0  # one beam at first: all would be the same
        beams = [v.unsqueeze(1).expand(-1, beam_size, *v.shape[1:]) for v in leaves]
        first = (torch.tensor(0), start, scores, beams, ended, TensorArray(), TensorArray())
        _, _, scores, _, ended, words, parents = while_loop(search.going, search.body, first)
        return _read_out(ended, n_best, words, parents)


class _Search:
    def __init__(
        self, step: WordStep, spec: Spec, eos: int, beam_size: int, max_length: int, penalty: float,
        n_best: int,
    ) -> None:  # fmt: skip
        self.step, self.spec, self.eos = step, spec, eos
        self.beam_size, self.max_length, self.penalty, self.n_best = beam_size, max_length, penalty, n_best

    def dtype(self, start: Tensor, leaves: list[Tensor]) -> torch.dtype:
        return log_probabilities(self.step, start[:, 0], leaves, self.spec, self.eos)[0].dtype

    def normal(self, score: Tensor, words: int) -> Tensor:
        """A score by the number of words, eos counted."""
        return score / ((5 + words) / 6) ** self.penalty

    def going(self, steps: Tensor, _: Any, scores: Tensor, __: Any, ended: _Ended, *arrays: Any) -> Tensor:
        """True for rows in which a sequence that goes on may still come among the n best."""
        hope = self.normal(scores.max(1).values, self.max_length)  # scores only fall, and are negative
        return (hope > ended.score[:, self.n_best - 1]) & (steps < self.max_length)

    def body(
        self, steps: Tensor, last: Tensor, scores: Tensor, beams: list[Tensor], ended: _Ended,
        words: TensorArray, parents: TensorArray,
    ) -> tuple[Any, ...]:  # fmt: skip
        n, k, done = len(last), self.beam_size, int(steps) + 1
        log_p, new = log_probabilities(
            self.step, last.reshape(-1), [v.reshape(n * k, *v.shape[2:]) for v in beams], self.spec, self.eos
        )
        total = scores[:, :, None] + log_p.view(n, k, -1)
        size = total.shape[2]
        own = torch.arange(k, device=last.device).expand(n, k)
        ended = self._merge(ended, total[:, :, self.eos], torch.full_like(last, done - 1), own, done)
        total[:, :, self.eos] = -torch.inf
        best, place = total.view(n, -1).topk(k, 1)
        parent, word = place // size, place % size
        words.write(steps, word)
        parents.write(steps, parent)
        from_rows = (torch.arange(n, device=last.device)[:, None] * k + parent).flatten()
        beams = [v.index_select(0, from_rows).view(n, k, *v.shape[1:]) for v in new]
        if done == self.max_length:  # what is left ends here
            ended = self._merge(ended, best, torch.full_like(last, done), own, done)
        return steps + 1, word, best, beams, ended, words, parents

    def _merge(self, ended: _Ended, score: Tensor, length: Tensor, beam: Tensor, words: int) -> _Ended:
        """The best K of those that ended before and those that end now."""
        all_scores = torch.cat([ended.score, self.normal(score, words)], 1)
        best, place = all_scores.topk(self.beam_size, 1)
        lengths, beams = torch.cat([ended.length, length], 1), torch.cat([ended.beam, beam], 1)
        return _Ended(best, lengths.gather(1, place), beams.gather(1, place))


def _read_out(
    ended: _Ended, n_best: int, words: TensorArray, parents: TensorArray
) -> tuple[LoDTensor, LoDTensor]:
    """Follow the parents back from where each sequence ended."""
    score, length, beam = (v[:, :n_best] for v in ended)
    steps = words.size()
    table = torch.zeros((steps, *length.shape), dtype=torch.int64, device=length.device)
    for t in reversed(range(steps)):
        running = t < length
        table[t] = words.read(t).gather(1, beam)
        beam = torch.where(running, parents.read(t).gather(1, beam), beam)
    there = score > -torch.inf
    counts, lengths = there.sum(1), length[there]
    columns = table.movedim(0, -1)[there]  # [sequences, steps], row after row, best first
    within = torch.arange(steps, device=length.device) < lengths[:, None]
    nested = LoDTensor.from_lengths(columns[within], [counts.tolist(), lengths.tolist()])
    return nested, LoDTensor.from_lengths(score[there], [counts.tolist()])
