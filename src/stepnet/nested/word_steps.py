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
from stepnet.data.modes import surely_differ, without_any_mode
from stepnet.data.tree import by_leaf, flatten, flatten_as, unflatten
from stepnet.data.values import rows_of
from stepnet.errors import Unsupported
from stepnet.front.step import StepBody, WithStatic, as_step, boot_state, kept_dtypes, own_spec
from stepnet.watchers import kept_by

from . import separable_steps


class Words:
    """In the place of the offsets of sentences, in a step that gets a word of each.

    Args:
        rows: a tensor with a row for each word.
        first, last: whether they are those of their sentence, [n, 1].
        states: those of the recurrences inside, in the order of their calls, after the word before.
    """

    lod_level = 1

    def __init__(self, rows: Tensor, first: Tensor, last: Tensor, states: Sequence[Any]) -> None:
        self.table, self._first, self._last, self._states = rows, first, last, states
        self.new: list[Any] = []

    def __len__(self) -> int:
        return len(self.table)

    @property
    def rows(self) -> int:
        """How many words."""
        return self.table.shape[0]

    def count(self, level: int) -> int:
        """How many sentences, as far as the step knows."""
        return self.table.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        raise Unsupported("the step does more with its sequences than run recurrences over them")

    def cut(self, rows: Tensor) -> LoDTensor:
        """Words as the sentences that they are of."""
        structure: Any = self
        return LoDTensor.of(rows, structure)

    def answer(
        self, step: Any, x: Any, state: Any, *, level: int, axis: int, backend: Any, static: Any, **how: Any
    ) -> Any:
        """What a call of `recurrent` in the step gives for the words that there are by now."""
        if level not in (-1, 0) or any(value not in (None, False) for value in how.values()):
            raise Unsupported("a recurrence inside does not run plainly from the first word to the last")
        return self.recurrence(step, x, state, static)

    def recurrence(self, step: Any, x: Any, state: Any, static: Any) -> tuple[Any, Any]:
        """The same of a call that runs from the first word to the last."""
        if len(self.new) == len(self._states):
            raise Unsupported("the step runs more recurrences than it did before")
        body, leaves, boot, beside = _call(self, step, x, state, static, self.rows)
        before, spec = flatten(self._states[len(self.new)])
        if spec != own_spec(body.state_spec) or [_kind(leaf) for leaf in before] != [
            _kind(leaf) for leaf in boot
        ]:
            raise Unsupported("a recurrence inside begins with another kind of state than before")
        now = [torch.where(like(self._first, b), a, b) for a, b in zip(boot, before, strict=True)]
        y, new = body.call(leaves, [*now, *beside])
        new = new[: len(now)]
        self.new.append(unflatten(spec, new))
        # Up to the last word it is a state that the step never sees: numbers of which all that it may compute
        # is finite.
        last = [torch.where(like(self._last, leaf), leaf, torch.zeros_like(leaf)) for leaf in new]
        return by_leaf(self.cut, y), unflatten(spec, last)


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

    def recurrence(self, step: Any, x: Any, state: Any, static: Any) -> tuple[Any, Any]:
        body, leaves, boot, beside = _call(self, step, x, state, static, separable_steps.SENTENCES)
        if any(map(self._seen.is_late, boot)):
            raise Unsupported("a recurrence inside begins from what another one ends with")
        if any(map(self._seen.is_late, beside)):
            raise Unsupported("a recurrence inside reads at each word what another one ends with")
        spec = own_spec(body.state_spec)
        with self._seen.aside():
            y, new = body.call([separable_steps.of_sentence(leaf) for leaf in leaves], [*boot, *beside])
            self.new.append(unflatten(spec, [separable_steps.like(leaf) for leaf in boot]))
            out = by_leaf(lambda leaf: self.cut(separable_steps.of_words(leaf)), y)
            last = [separable_steps.of_sentence(leaf) for leaf in new[: len(boot)]]
        self._seen.late(last)
        return out, unflatten(spec, last)


def _call(
    words: Words, step: Any, x: Any, state: Any, static: Any, n: int
) -> tuple[StepBody, list[Tensor], list[Tensor], list[Tensor]]:
    """The body of a recurrence inside; leaves of its input, of its first state, of what it sees beside it."""
    function = as_step(step)
    leaves, spec = flatten(x)
    if not all(isinstance(leaf, LoDTensor) and leaf.structure is words for leaf in leaves):
        raise Unsupported("a recurrence inside runs over other sequences than those of the step")
    state = boot_state(function, n) if state is None else state
    boot = flatten(state)[0]
    beside = flatten(static)[0] if static is not None else []
    if not all(isinstance(leaf, Tensor) and not isinstance(leaf, LoDTensor) for leaf in beside):
        raise Unsupported("a recurrence inside looks at sequences of its own for each sentence")
    if any(not leaf.dim() or surely_differ(leaf.shape[0], words.table.shape[0]) for leaf in beside):
        raise Unsupported("what a recurrence inside sees at each step does not have a row for each sentence")
    _, state_spec = flatten(state if static is None else WithStatic(state, static))
    return StepBody(function, spec, state_spec), [leaf.values for leaf in leaves], boot, beside


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

    def __call__(self, step: Any, x: Any, state: Any, static: Any = None) -> tuple[Any, Any]:
        (x, first, last), (outer, inner) = x, state
        # Each time: it may be captured anew, since what it reads has changed.
        if tried(step, x, outer, static)[1] != self.of_words:
            raise Unsupported("the step gives words where it gave sentences, or the other way")
        words = Words(flatten(x)[0][0], first, last, inner)
        with _OnRows(), kept_by(words.answer):
            y, new = step(by_leaf(words.cut, x), outer, *_beside(static))
        if len(words.new) != len(inner):
            raise Unsupported("the step runs fewer recurrences than it did before")
        (before, spec), (after, _) = flatten(outer), flatten_as(flatten(outer)[1], new)
        after = kept_dtypes(before, after)
        kept = [torch.where(like(last, a), a, b) for a, b in zip(after, before, strict=True)]
        return by_leaf(rows_of, y), (unflatten(spec, kept), tuple(words.new))


_made = Bounded[tuple[bool, ...], _OfAWord](64)


def tried(step: Any, x: Any, outer: Any, static: Any = None) -> tuple[list[Any], tuple[bool, ...]]:
    """States like those of the recurrences inside, without data; and whether each leaf of y has a row a word.
    `static`: what the step sees beside its state.

    Raises:
        Unsupported: over words, it would not compute the same.
    """
    found = reach(step, everything=True)
    if found.refused is not None or found.open is not None:
        raise Unsupported("what the step reads is not known")
    with without_any_mode():
        x, outer, static = (by_leaf(separable_steps.like, one) for one in (x, outer, _beside(static)))
    both, changed = undone(found.holders, found.key, lambda _: _run(step, x, outer, static))
    if changed is not None:
        raise Unsupported("the step changes objects of yours, for each sentence")
    return both


def _beside(static: Any) -> tuple[Any, ...]:
    """What a step is called with behind its state."""
    return () if static is None else (static,)


def _run(step: Any, x: Any, outer: Any, static: tuple[Any, ...]) -> tuple[list[Any], tuple[bool, ...]]:
    with separable_steps.watched() as seen:
        words = _Tried(seen)
        sentences = by_leaf(lambda leaf: words.cut(separable_steps.of_words(leaf)), x)
        with kept_by(words.answer):
            y, new = step(sentences, *by_leaf(separable_steps.of_sentence, (outer, *static)))
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
