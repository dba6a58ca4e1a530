"""A step over sentences as a step over words: the recurrences in it go on where the word before left them.

It is called with sentences of one word each, of which it may know no more than that they are sentences. A
recurrence that it runs over them takes one step: from its initial state at the first word of a sentence, else
from the state of the word before. What it computes of the last states holds at the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.undo import undone
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import without_any_mode
from stepnet.data.tree import by_leaf, flatten, flatten_as, unflatten
from stepnet.data.values import rows as rows_of
from stepnet.errors import Unsupported
from stepnet.front.step import StepBody, as_step, boot_state, kept_dtypes
from stepnet.watchers import kept_by

from . import separable_steps


class Words:
    """In the place of the offsets of sentences, in a step that gets a word of each.

    Args:
        rows: a tensor with a row for each word.
        first, last: whether they are those of their sentence, [n, 1].
        states: those of the recurrences inside, in the order of their calls, after the word before.
    """

    def __init__(self, rows: Tensor, first: Tensor, last: Tensor, states: Sequence[Any]) -> None:
        self.table, self._first, self._last, self._states = rows, first, last, states
        self.new: list[Any] = []

    def __len__(self) -> int:
        return len(self.table)

    @property
    def rows(self) -> int:
        """How many words."""
        return self.table.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        raise Unsupported("the step asks for more of its sequences than that recurrences run over them")

    def cut(self, rows: Tensor) -> LoDTensor:
        """Words as the sentences that they are of."""
        structure: Any = self
        return LoDTensor.of(rows, structure)

    def answer(
        self, step: Any, x: Any, state: Any, *, level: int, axis: int, backend: Any, **how: Any
    ) -> Any:
        """What a call of `recurrent` in the step gives for the words that there are by now."""
        if level not in (-1, 0) or any(value not in (None, False) for value in how.values()):
            raise Unsupported("a recurrence inside does not run plainly from the first word to the last")
        return self.recurrence(step, x, state)

    def recurrence(self, step: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """The same of a call that runs from the first word to the last."""
        if len(self.new) == len(self._states):
            raise Unsupported("the step runs more recurrences than it did before")
        body, leaves, boot = _call(self, step, x, state, self.rows)
        before, spec = flatten(self._states[len(self.new)])
        if spec != body.state_spec or [_kind(leaf) for leaf in before] != [_kind(leaf) for leaf in boot]:
            raise Unsupported("a recurrence inside begins with another kind of state than before")
        now = [torch.where(like(self._first, b), a, b) for a, b in zip(boot, before, strict=True)]
        y, new = body.call(leaves, now)
        self.new.append(unflatten(body.state_spec, new))
        # Up to the last word it is a state that the step never sees: numbers of which all that it may compute
        # is finite.
        last = [torch.where(like(self._last, leaf), leaf, torch.zeros_like(leaf)) for leaf in new]
        return by_leaf(self.cut, y), unflatten(body.state_spec, last)


class _Tried(Words):
    """The same of a step that runs for the shapes alone, with more words than sentences."""

    def __init__(self, seen: separable_steps.Levels) -> None:
        none = torch.empty(0)
        super().__init__(torch.empty(separable_steps.SENTENCES, device="meta"), none, none, ())
        self._seen = seen

    @property
    def rows(self) -> int:
        return separable_steps.WORDS

    def __len__(self) -> int:
        return separable_steps.SENTENCES

    def recurrence(self, step: Any, x: Any, state: Any) -> tuple[Any, Any]:
        body, leaves, boot = _call(self, step, x, state, separable_steps.SENTENCES)
        if any(map(self._seen.is_late, boot)):
            raise Unsupported("a recurrence inside begins from what another one ends with")
        with self._seen.aside():
            y, new = body.call([separable_steps.of_sentence(leaf) for leaf in leaves], boot)
            self.new.append(unflatten(body.state_spec, [separable_steps.like(leaf) for leaf in boot]))
            out = by_leaf(lambda leaf: self.cut(separable_steps.of_words(leaf)), y)
            last = [separable_steps.of_sentence(leaf) for leaf in new]
        self._seen.late(last)
        return out, unflatten(body.state_spec, last)


def _call(words: Words, step: Any, x: Any, state: Any, n: int) -> tuple[StepBody, list[Tensor], list[Tensor]]:
    function = as_step(step)
    leaves, spec = flatten(x)
    if not all(isinstance(leaf, LoDTensor) and leaf.structure is words for leaf in leaves):
        raise Unsupported("a recurrence inside runs over other sequences than those of the step")
    boot, state_spec = flatten(boot_state(function, n) if state is None else state)
    return StepBody(function, spec, state_spec), [leaf.values for leaf in leaves], boot


class _OnRows(TorchFunctionMode):
    """Whoever follows the calls of a step sees those on the rows of LoDTensors, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if LoDTensor in types:
            return LoDTensor.__torch_function__(func, types, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def over_words(step: Any, of_words: tuple[bool, ...]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step over sentences as one over words: `x` is (their words, first, last), the state the step's own
    beside those of the recurrences inside. `of_words`: see `tried`. Of one step it is found again as what it
    was at the call before, and nothing keeps the step alive."""
    one = _made.get(of_words)
    if one is None:
        one = _made[of_words] = _OfAWord(of_words)
    return MethodType(one, step)


class _OfAWord:
    """Bound to a step over sentences it is that step over words."""

    def __init__(self, of_words: tuple[bool, ...]) -> None:
        self.of_words = of_words

    def __call__(self, step: Any, x: Any, state: Any) -> tuple[Any, Any]:
        (x, first, last), (outer, inner) = x, state
        # Each time: it may be captured anew, since what it reads has changed.
        if tried(step, x, outer)[1] != self.of_words:
            raise Unsupported("the step gives words where it gave sentences, or the other way")
        words = Words(flatten(x)[0][0], first, last, inner)
        with _OnRows(), kept_by(words.answer):
            y, new = step(by_leaf(words.cut, x), outer)
        if len(words.new) != len(inner):
            raise Unsupported("the step runs fewer recurrences than it did before")
        (before, spec), (after, _) = flatten(outer), flatten_as(flatten(outer)[1], new)
        after = kept_dtypes(before, after)
        kept = [torch.where(like(last, a), a, b) for a, b in zip(after, before, strict=True)]
        return by_leaf(rows_of, y), (unflatten(spec, kept), tuple(words.new))


_made = Bounded[tuple[bool, ...], _OfAWord](64)


def tried(step: Any, x: Any, outer: Any) -> tuple[list[Any], tuple[bool, ...]]:
    """States like those of the recurrences inside, without data; and whether each leaf of y has a row a word.

    Raises:
        Unsupported: over words, it would not compute the same.
    """
    found = reach(step, everything=True)
    if found.refused is not None or found.open is not None:
        raise Unsupported("what the step reads is not known")
    with without_any_mode():
        x, outer = by_leaf(separable_steps.like, x), by_leaf(separable_steps.like, outer)
    both, changed = undone(found.holders, found.key, lambda _: _run(step, x, outer))
    if changed is not None:
        raise Unsupported("the step changes objects of yours, for each sentence")
    return both


def _run(step: Any, x: Any, outer: Any) -> tuple[list[Any], tuple[bool, ...]]:
    with separable_steps.watched() as seen:
        words = _Tried(seen)
        sentences = by_leaf(lambda leaf: words.cut(separable_steps.of_words(leaf)), x)
        with kept_by(words.answer):
            y, new = step(sentences, by_leaf(separable_steps.of_sentence, outer))
        if not words.new:
            raise Unsupported("no recurrence runs inside the step")
        of_words = tuple(isinstance(leaf, LoDTensor) for leaf in flatten(y)[0])
        for leaf, own in zip(flatten(y)[0], of_words, strict=True):
            seen.must_be(leaf.values if own else leaf, words=own)
        for leaf in flatten(new)[0]:
            seen.must_be(leaf, words=False)
    return words.new, of_words


def _kind(leaf: Tensor) -> tuple[Any, ...]:
    return tuple(leaf.shape[1:]), leaf.dtype, leaf.device.type


def like(flags: Tensor, leaf: Tensor) -> Tensor:
    """A truth value per row, to pick whole rows of a leaf by."""
    return flags[:, 0] if leaf.dim() == 1 else flags[(..., *(None,) * (leaf.dim() - 2))]
