"""Beam search: the best few sequences at every step, and of all that ended the best."""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.data.arguments import number, size, whole
from stepnet.data.in_graph import by_python
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import outside_modes, unwrapped
from stepnet.data.offsets import LoD
from stepnet.data.tree import Spec
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import StepError

from .blocks import Before, before, check_score, half_done, in_blocks, made, note
from .words import WordStep, checked_state, checked_words, normaliser, scores_of


class Beams(NamedTuple):
    """The rows that run, K beams each, and the best K sequences of each that ended; best first."""

    word: Tensor  # the word before, [n, K]
    score: Tensor
    ended: Tensor  # the scores of those that ended, by their length; -inf where there is none
    place: Tensor  # K times their number of words without eos, and the beam whose words they are then
    steps: Tensor  # the words so far, [n]
    longest: Tensor  # the most words, [n]
    alive: Tensor  # whether what goes on can still come among the best, [n]
    leaves: list[Tensor]  # of the state, [n, K, ...]


@by_python("how many words are decoded is known from the words")
def beam_search(
    step: WordStep, state: Any, *, bos: int, eos: int, beam_size: int, max_length: int,
    length_penalty: float = 0.0, n_best: int = 1, static: Any = None,
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
        static: as in `greedy`; kept once for each row, not for each beam.

    Returns:
        The words, int64, without bos and eos: two levels, the sequences of each row, best first, and their
        words. And the scores of the sequences, one level. A row has fewer than `n_best` if there are no more.

    Raises:
        StepError: the step, the state or `static` does not fit, or a number is out of range.

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
    bos, eos = checked_words(where, step, bos, eos)
    beam_size = size(f"{where}: 'beam_size'", beam_size)
    max_length = whole(f"{where}: 'max_length'", max_length, 1)
    n_best = whole(f"{where}: 'n_best'", n_best, 1)
    if n_best > beam_size:
        raise StepError(
            f"{where}: n_best is at most beam_size",
            got=f"n_best={n_best}, beam_size={beam_size}",
            remedy=f"beam_size={n_best}",
        )
    length_penalty = number(f"{where}: 'length_penalty'", length_penalty, 0)
    leaves, spec, rows = checked_state(step, state, static, where)
    device = leaves[0].device
    if rows == 0:
        nothing = torch.zeros(0, device=device)
        return LoDTensor(nothing.long(), [[0], [0]]), LoDTensor(nothing, [[0]])
    with torch.no_grad():
        one = made(BeamStep, spec, eos, beam_size, length_penalty, n_best)
        run = MethodType(one, step)
        tables = [torch.zeros((1, rows, beam_size), dtype=torch.int64, device=device) for _ in range(2)]
        kept = ["score", "ended", "place", "alive"]
        way = beam_search, spec, tuple([leaf.dtype for leaf in leaves]), beam_size
        known, found = before(step, way), None
        if known is not None:
            each = [v[:, None] if s else one.beams(v) for v, s in zip(leaves, known.same, strict=True)]
            everyone = one.everyone(bos, leaves[0], known.dtype, max_length)._replace(leaves=each)
            found = in_blocks(run, everyone, kept, tables, max_length, done=0, block=known.steps)
        if found is None:
            given = [one.beams(v).flatten(0, 1) for v in leaves]
            start = torch.full((rows * beam_size,), bos, dtype=torch.int64, device=device)
            scores, new = scores_of(step, start, given, spec, eos)
            same = [a is b for a, b in zip(given, new, strict=True)]
            first, at = one.taken(scores, new, one.everyone(bos, leaves[0], scores.dtype, max_length))
            tables = [part[None] for part in first]
            once = at._replace(leaves=[v[:, :1] if s else v for v, s in zip(at.leaves, same, strict=True)])
            known = Before(scores.dtype, 0, tuple(same))
            found = in_blocks(run, once, kept, tables, max_length)
            if found is None:
                known, found = None, in_blocks(run, at, kept, tables, max_length, plainly=True)
        assert found is not None
        steps, (score, ended, place, alive) = found
        if steps == max_length:  # what is left ends here
            longest = torch.full_like(place[:, 0], max_length)
            last = one.merged(ended, place, score, longest, longest)
            ended, place = (
                torch.where(alive[:, None], *both) for both in zip(last, (ended, place), strict=True)
            )
        if known is not None:
            note(step, way, known._replace(steps=half_done((place[:, 0] // beam_size).tolist())))
        words, parents = (table[:steps] for table in tables)
        found, places, lod = _read_out(ended, place, beam_size, n_best, words, parents)
        return found, LoDTensor.of(ended.take(places), lod)  # by torch: it may carry tangents


class BeamStep:
    """One step of all rows: the best words after the words of each beam."""

    def __init__(self, spec: Spec, eos: int, beam_size: int, penalty: float, n_best: int) -> None:
        self.spec, self.eos = spec, eos
        self.beam_size, self.penalty, self.n_best = beam_size, penalty, n_best

    def beams(self, leaf: Tensor) -> Tensor:
        """A leaf of the state for each beam."""
        return leaf.repeat_interleave(self.beam_size, 0).unflatten(0, (-1, self.beam_size))

    def everyone(self, bos: int, leaf: Tensor, dtype: torch.dtype, max_length: int) -> Beams:
        """All rows before their first word: one beam each, for all would be the same. Without their state."""
        place = torch.zeros((len(leaf), self.beam_size), dtype=torch.int64, device=leaf.device)
        ended = torch.full_like(place, -torch.inf, dtype=dtype)
        score = ended.clone()
        score[:, 0] = 0
        steps = place[:, 0].clone()
        return Beams(
            torch.full_like(place, bos), score, ended, place, steps, steps + max_length, steps == 0, []
        )

    def __call__(self, step: WordStep, _: Any, at: Beams) -> tuple[tuple[Tensor, Tensor], Beams]:
        k = self.beam_size
        given = [v.expand(-1, k, *v.shape[2:]).flatten(0, 1) for v in at.leaves]
        once = [v.shape[1] < k for v in at.leaves]  # only where a step is traced
        versions = [v._version if of_all else 0 for v, of_all in zip(given, once, strict=True)]
        scores, new = scores_of(step, at.word.flatten(), given, self.spec, self.eos)
        check_score(scores, at.score)
        found, after = self.taken(scores, new, at)
        leaves = [
            at.leaves[i]
            if of_all and given[i] is new[i] and given[i]._version == versions[i]
            else after.leaves[i]
            for i, of_all in enumerate(once)
        ]
        return found, after._replace(leaves=leaves)

    def taken(self, scores: Tensor, new: list[Tensor], at: Beams) -> tuple[tuple[Tensor, Tensor], Beams]:
        """The words of a step and the beams that they come after, and the rows after it."""
        k, steps = self.beam_size, at.steps + 1
        most, rest = normaliser(scores)
        some, words = scores.topk(min(k + 1, scores.shape[1]), 1)  # of each beam; one of them may be eos
        some = torch.cat([some.masked_fill(words == self.eos, -torch.inf), scores[:, self.eos, None]], 1)
        log_p = ((some - most) - rest).masked_fill(most == -torch.inf, -torch.inf)  # nothing comes after it
        total = at.score.unsqueeze(2) + log_p.unflatten(0, (-1, k))
        ended, place = self.merged(at.ended, at.place, total[:, :, -1], at.steps, steps)
        score, chosen = total[:, :, :-1].flatten(1).topk(k, 1)
        parent = chosen // words.shape[1]
        word = words.unflatten(0, (-1, k)).flatten(1).gather(1, chosen)
        word = torch.where(word == self.eos, at.word, word)  # of a beam that is none: any that was met
        keep = at.alive.unsqueeze(1)  # what a row that is done found stays
        ended, place = torch.where(keep, ended, at.ended), torch.where(keep, place, at.place)
        hope = self.normal(score.amax(1), at.longest)  # scores only fall, and are negative
        alive = at.alive & (hope > ended[:, self.n_best - 1])
        leaves = [_chosen(v.unflatten(0, (-1, k)), parent) for v in new]
        return (word, parent), Beams(word, score, ended, place, steps, at.longest, alive, leaves)

    def normal(self, score: Tensor, words: Tensor) -> Tensor:
        """A score by the number of words, eos counted."""
        return score / ((5 + words.to(score.dtype)) / 6) ** self.penalty if self.penalty else score

    def merged(
        self, ended: Tensor, place: Tensor, score: Tensor, without: Tensor, words: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best K of those that ended before and that end now; `without`: their words without eos."""
        k = self.beam_size
        now = self.normal(score, words.unsqueeze(1))
        best, chosen = torch.cat([ended, now], 1).topk(k, 1)
        places = k * without.unsqueeze(1) + torch.arange(k, device=score.device)
        return best, torch.cat([place, places], 1).gather(1, chosen)


def _chosen(leaf: Tensor, parent: Tensor) -> Tensor:
    """The beams that go on, in their new order."""
    index = parent.view(*parent.shape, *(1,) * (leaf.dim() - 2))
    return leaf.gather(1, index.expand(-1, -1, *leaf.shape[2:]))


@outside_modes
def _read_out(
    score: Tensor, place: Tensor, beam_size: int, n_best: int, words: Tensor, parents: Tensor
) -> tuple[LoDTensor, Tensor, LoD]:
    """Follow the parents back from where each sequence ended: by numpy, whose calls take less time.
    The words, the places of the scores of their sequences, and how many each row has."""
    best, ends, word, parent = (unwrapped(t).cpu().numpy() for t in (score, place, words, parents))
    best, (length, beam) = best[:, :n_best], np.divmod(ends[:, :n_best], beam_size)
    there = best > -np.inf
    counts, lengths = there.sum(1), length[there]  # row after row, best first
    rows = beam_size * np.arange(len(best))[:, None]
    at = (beam + rows)[there]
    word, parent = word.reshape(len(word), -1), (parent + rows).reshape(len(word), -1)
    table = np.empty((len(word), len(at)), np.int64)  # behind the end of each, anything
    least = int(lengths.min(initial=len(word)))
    for t in reversed(range(len(word))):
        table[t] = word[t].take(at)
        before = parent[t].take(at)
        at = before if t < least else np.where(t < lengths, before, at)
    within = np.arange(len(word)) < lengths[:, None]
    inner, outer = (from_numpy(np.concatenate(([0], n.cumsum()))) for n in (lengths, counts))
    nested = LoD.trusted((outer, inner), int(lengths.sum()))
    places = (np.arange(best.shape[1]) + rows)[there]
    found, of_scores = (from_numpy(part).to(score.device) for part in (table.T[within], places))
    return LoDTensor.of(found, nested), of_scores, LoD.trusted((outer,), len(lengths))
