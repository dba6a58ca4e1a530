"""Beam search: the best few sequences at every step, and of all that ended the best."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.data.tree import Spec
from stepnet.errors import StepError

from .words import WordStep, check_count, checked_state, log_probabilities


class _Ended(NamedTuple):
    """The best K sequences that ended, of each row: [B, K] each, best first."""

    score: Tensor  # normalised; -inf where there is none
    place: Tensor  # K times the number of words without eos, and the beam whose words they are then


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
    with torch.no_grad():
        search = _Search(step, spec, eos, beam_size, max_length, length_penalty)
        ended, words, parents = search.run(leaves, bos, n_best)
        return _read_out(ended, beam_size, n_best, words, parents)


class _Search:
    def __init__(
        self, step: WordStep, spec: Spec, eos: int, beam_size: int, max_length: int, penalty: float
    ) -> None:
        self.step, self.spec, self.eos = step, spec, eos
        self.beam_size, self.max_length, self.penalty = beam_size, max_length, penalty

    def run(self, leaves: list[Tensor], bos: int, n_best: int) -> tuple[_Ended, Tensor, Tensor]:
        """What ended, and the words and the parents of all beams: [steps, B, K]."""
        (rows, k), device = (len(leaves[0]), self.beam_size), leaves[0].device
        shape = (self.max_length, rows, k)
        words = torch.zeros(shape, dtype=torch.int64, device=device)
        parents = torch.zeros_like(words)
        done = None  # what ended in rows that are done
        running: Tensor | None = None  # the rows that are not; None: all of them
        last = torch.full((rows * k,), bos, dtype=torch.int64, device=device)
        beams = [v.repeat_interleave(k, 0) for v in leaves]
        own = torch.arange(k, device=device).repeat(rows, 1)
        first = torch.arange(rows, device=device)[:, None] * k  # the first beam of each row
        scores = ended = None
        for steps in range(1, self.max_length + 1):
            log_p, new = log_probabilities(self.step, last, beams, self.spec, self.eos)
            n, size = len(own), log_p.shape[1]
            if scores is None or ended is None:
                scores = log_p.new_full((n, k), -torch.inf)
                ended = _Ended(scores, torch.zeros_like(own))
                scores = scores.clone()
                scores[:, 0] = 0  # one beam at first: all would be the same
            total = scores[:, :, None] + log_p.view(n, k, size)
            ended = self._merge(ended, total[:, :, self.eos], own + k * (steps - 1), steps)
            total[:, :, self.eos] = -torch.inf
            scores, place = total.view(n, -1).topk(k, 1)
            parent, word = place // size, place % size
            at = slice(None) if running is None else running
            words[steps - 1, at] = word
            parents[steps - 1, at] = parent
            if steps == self.max_length:  # what is left ends here
                ended = self._merge(ended, scores, own + k * steps, steps)
                break
            from_rows = (first[:n] + parent).view(-1)
            hope = self._normal(scores.max(1).values, self.max_length)  # scores only fall, and are negative
            going = hope > ended.score[:, n_best - 1]
            if bool(going.all()):
                last = word.view(-1)
                beams = [v.index_select(0, from_rows) for v in new]
                continue
            done = _kept(done, ended, running, rows)
            left = going.nonzero().squeeze(1)
            running = left if running is None else running[left]
            if not len(left):
                return done, words[:steps], parents[:steps]
            ended = _Ended(*(part[left] for part in ended))
            last, scores, own = word[left].view(-1), scores[left], own[left]
            chosen = from_rows.view(n, k)[left].view(-1)
            beams = [v.index_select(0, chosen) for v in new]
        assert ended is not None
        return _kept(done, ended, running, rows), words, parents

    def _normal(self, score: Tensor, words: int) -> Tensor:
        """A score by the number of words, eos counted."""
        return score / ((5 + words) / 6) ** self.penalty if self.penalty else score

    def _merge(self, ended: _Ended, score: Tensor, place: Tensor, words: int) -> _Ended:
        """The best K of those that ended before and those that end now."""
        best, chosen = torch.cat([ended.score, self._normal(score, words)], 1).topk(self.beam_size, 1)
        return _Ended(best, torch.cat([ended.place, place], 1).gather(1, chosen))


def _kept(done: _Ended | None, ended: _Ended, running: Tensor | None, rows: int) -> _Ended:
    """What ended in all rows, that of the running ones put in its place."""
    if running is None:
        return ended
    assert done is not None
    for whole, part in zip(done, ended, strict=True):
        whole[running] = part
    return done


def _read_out(
    ended: _Ended, beam_size: int, n_best: int, words: Tensor, parents: Tensor
) -> tuple[LoDTensor, LoDTensor]:
    """Follow the parents back from where each sequence ended."""
    score, place = (v[:, :n_best] for v in ended)
    length, beam = place // beam_size, place % beam_size
    steps = len(words)
    table = torch.zeros((steps, *length.shape), dtype=torch.int64, device=length.device)
    for t in reversed(range(steps)):
        running = t < length
        table[t] = words[t].gather(1, beam)
        beam = torch.where(running, parents[t].gather(1, beam), beam)
    there = score > -torch.inf
    counts, lengths = there.sum(1), length[there]
    columns = table.movedim(0, -1)[there]  # [sequences, steps], row after row, best first
    within = torch.arange(steps, device=length.device) < lengths[:, None]
    nested = LoDTensor.from_lengths(columns[within], [counts.tolist(), lengths.tolist()])
    return nested, LoDTensor.from_lengths(score[there], [counts.tolist()])
