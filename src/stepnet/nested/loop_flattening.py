"""A recurrence over sentences, whose step runs recurrences over their words, as one over all words.

Where a step over words computes the same (`word_steps`, `separable_steps`), it is one loop of generated code
where there were a loop in Python and a call for each of its steps. What it computes of a sentence it computes
at each word, so the two ways are timed on the caller's own rows. The first run is by the loop over sentences;
what comes over words is held against its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from stepnet.checks import checked
from stepnet.compiler.reads.reach import reach
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import draws_put_back, nothing_around, outside_modes, sees_saved_tensors, settings
from stepnet.data.offsets import LoD
from stepnet.data.storage import distinct
from stepnet.data.tree import by_leaf, flatten, unflatten
from stepnet.data.unpatched_torch import from_numpy
from stepnet.data.values import rows_of
from stepnet.engine import Steps, Way, asked, executor_choice, find_plan, run, run_again, run_warm
from stepnet.errors import StepnetError, Unsupported
from stepnet.executors import naive
from stepnet.executors.autograd import plainly
from stepnet.executors.registry import AUTO
from stepnet.executors.setting import only_plain
from stepnet.front.memory import ScopeStep
from stepnet.front.step import StepBody, WithStatic, as_called, as_step, as_they_are, boot_state, loop_of
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from . import lifting
from .recreated_steps import found_by
from .word_steps import over_words, tried

_STEPS = Steps(as_step, boot_state, StepBody, loop_of, as_they_are, lambda step: step, as_called)
_MOST_KINDS = 32  # of calls of one piece of source
_MOST_CUTS = 64  # batches of which it is remembered where sentences begin and end
_ROUNDS = 3
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of sums in another order; else 2e-2


@dataclass
class _Kind:
    """What is known of calls of one kind. `inner`: states like those of the recurrences inside."""

    inner: list[Any]
    of_words: tuple[bool, ...]
    declined: str | None = None
    faster: dict[tuple[int, ...], bool] = field(default_factory=dict)


_kinds: WeakKeyDictionary[Any, Bounded[Any, _Kind]] = WeakKeyDictionary()
_cuts: Bounded[Any, _Cut] = Bounded(_MOST_CUTS)


@dataclass(frozen=True)
class _Cut:
    """Where the sentences of a batch are among its words."""

    words: LoD  # of a text in its words
    sentences: LoD  # of a text in its sentences
    first: LoDTensor
    last: LoDTensor
    ends: Tensor  # the last word of each sentence
    tells: bool  # whether a run shows what is handed on from word to word, and from sentence to sentence

    @property
    def size(self) -> tuple[int, ...]:
        """Alike for as many texts, sentences and words to the next power of two."""
        return tuple(n.bit_length() for n in (len(self.words), self.sentences.rows, self.words.rows))


def over_sentences(
    loop: Loop, feeds: dict[str, Any], body: StepBody, refusal: Unsupported, *, backend: str
) -> dict[str, Any]:
    """The outputs of a recurrence whose steps are sentences: over their words, or the recurrences inside all
    steps together where they need not wait for its state.

    Raises:
        Unsupported: the refusal of its plan, where a backend was asked for and it does not run over words.
    """

    cut, x = loop.slices[0], [feeds[name] for name in body.x_names]

    def once_for_all(feeds: dict[str, Any]) -> Any:
        assert cut.level is not None
        outer = lifting.OuterBody(body, x, level=cut.level, reverse=cut.stride < 0)  # of one run
        return naive.run(loop.around(outer), feeds)

    def plain() -> dict[str, Any]:
        return plainly(body.name, once_for_all, feeds, lambda: reach(body.step).generators)

    out = _as_one(loop, feeds, body, plain, backend=backend)
    if out is None and backend != AUTO:
        raise refusal.fresh()
    return plain() if out is None else out


def _as_one(
    loop: Loop, feeds: dict[str, Any], body: StepBody, plain: Callable[[], dict[str, Any]], *, backend: str
) -> dict[str, Any] | None:
    """The outputs of a recurrence whose steps are sentences, over their words; None: it is to run as it is.

    Args:
        loop, feeds, body: the recurrence, and what it is fed.
        plain: runs it as it is.
        backend: by which executors.
    """
    call = _call_of(loop, feeds, body, backend)
    if call is None:
        return None
    kinds = _kinds.setdefault(_whose(body.step), Bounded(_MOST_KINDS))
    if call.is_known(kinds.get(call.key)):
        return call.as_known(kinds)
    if not call.cut.tells:
        return None
    if not sees_saved_tensors():
        return call.at_first(kinds, plain)
    # a second run, as that of `torch.utils.checkpoint`, is to save what this one does
    with saved_tensors_hooks(_as_it_is, _as_it_is), draws_put_back():
        call.at_first(kinds, plain)
    return call.as_known(kinds)


def _as_it_is(saved: Any) -> Any:
    return saved


def as_one_again(step: Any, x: Any, state: Any, way: tuple[bool, int, int, str]) -> tuple[Any, Any] | None:
    """y and the final state of a call like one that ran over words; None where it is not known to
    be one: then the long way says what comes of it. `way`: reverse, level, axis and the backend."""
    reverse, level, _, backend = way
    if reverse or state is None or lifting.inside_a_step():
        return None
    kinds = _kinds.get(_whose(step))
    if kinds is None or not nothing_around():
        return None
    (leaves, spec), (states, state_spec) = flatten(x), flatten(state)
    at = _cut_of(leaves, level)
    tables = [*map(rows_of, leaves), *states]
    if at is None or not all(isinstance(t, Tensor) for t in tables) or only_plain(tables) is not None:
        return None
    if any(not t.dim() or t.shape[0] != len(at.words) for t in states):
        return None
    call = _Call(StepBody(as_step(step), spec, state_spec), leaves, states, at, backend)
    kind = kinds.get(call.key)
    if kind is None or kind.declined is not None or not kind.faster.get(at.size, False):
        return None
    try:
        out = call.run(kind)
    except StepnetError:
        return None
    last = [out[name] for name in call.body.new_state_names]
    return out["y"], unflatten(state_spec, distinct(last, states))


def loop_over_words(
    loop: Loop, feeds: dict[str, Any], body: Any, *, backend: str
) -> tuple[Loop, dict[str, Any]]:
    """A recurrence whose steps are sentences as the one over words that runs it, and what that is fed.

    Raises:
        Unsupported: it runs over sentences; says why.
    """
    if not isinstance(body, StepBody):
        raise Unsupported("it is no call of recurrent")
    call = _call_of(loop, feeds, body, backend)
    if call is None:
        raise Unsupported("sentences in reverse, without words, or of several levels run one by one")
    kind = _kinds.get(_whose(body.step), {}).get(call.key)
    if kind is None:
        kind = _Kind(*call.tried())
    if kind.declined is not None:
        raise Unsupported(kind.declined)
    if not kind.faster.get(call.cut.size, True):
        raise Unsupported("over words it took longer than over sentences, when both were timed")
    return call.as_loop(kind)


def _call_of(loop: Loop, feeds: dict[str, Any], body: StepBody, backend: str) -> _Call | None:
    """A call whose steps are sentences of words; None: they are none, or run in another order."""
    cut, x = loop.slices[0], [feeds[name] for name in body.x_names]
    state = [feeds[name] for name in body.state_names]
    at = None if cut.stride < 0 else _cut_of(x, cut.level)
    return None if at is None else _Call(body, x, state, at, backend)


class _Call:
    """One call, over words."""

    def __init__(
        self, body: StepBody, x: Sequence[Any], state: Sequence[Tensor], cut: _Cut, backend: str
    ) -> None:
        self.cut, self.key = cut, _key(body, x, state)
        self.body, self._structure = body, x[0].structure
        self._x, self._state, self._backend = list(x), list(state), backend

    def is_known(self, kind: _Kind | None) -> bool:
        """Whether it is known by which way it runs."""
        return kind is not None and (kind.declined is not None or self.cut.size in kind.faster)

    def as_known(self, kinds: Bounded[Any, _Kind]) -> dict[str, Any] | None:
        """The outputs of the loop, over words; None: it is to run as it is."""
        kind = kinds.get(self.key)
        if kind is None or kind.declined is not None:
            return None
        if not kind.faster[self.cut.size] and self._backend == AUTO:
            return None
        try:
            return self.run(kind)
        except StepnetError:  # it does other things by now, or the plain loop tells what is wrong
            kinds.pop(self.key, None)
            return None

    def at_first(
        self, kinds: Bounded[Any, _Kind], plain: Callable[[], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """The outputs of the loop, run as it is, and beside it over words, to know which way is right and
        takes less time; None: it has no plan."""
        out = plain()
        try:
            kind = kinds.get(self.key)
            if kind is None:
                kinds[self.key] = kind = _Kind(*self.tried())
            if not _same(out, self.run(kind)):
                raise Unsupported("over words the results differ")
            kind.faster[self.cut.size] = self._backend != AUTO or self.is_faster(kind, plain)
        except Exception as error:  # nothing that goes wrong here ends a call that has its results
            let_through(error)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            kinds[self.key] = _Kind([], (), declined=reason)
            return out if self._backend == AUTO else None
        return out

    def tried(self) -> tuple[list[Any], tuple[bool, ...]]:
        """See `words.tried`."""
        x = unflatten(self.body.x_spec, [leaf.values for leaf in self._x])
        return tried(self.body.step, x, *self._own_and_static())

    def _own_and_static(self) -> tuple[Any, Any]:
        """The state of the step, and what it sees at every step, or None."""
        state = unflatten(self.body.state_spec, self._state)
        return (state.state, state.static) if isinstance(state, WithStatic) else (state, None)

    def run(self, kind: _Kind) -> dict[str, Any]:
        """The outputs of the loop.

        Raises:
            Unsupported: there is no plan for it.
        """
        out = _by_plan(*self._given(kind), self._backend)
        return self._as_it_came(out, kind)

    def as_loop(self, kind: _Kind) -> tuple[Loop, dict[str, Any]]:
        """The recurrence over words, and what it is fed."""
        body, x, state = checked(*self._given(kind))
        return body.as_loop(x, state, reverse=False, level=-1, axis=0)

    def _given(self, kind: _Kind) -> tuple[Any, Any, Any]:
        cut, n = self.cut, len(self.cut.words)
        leaves = [LoDTensor.of(leaf.values, cut.words) for leaf in self._x]
        x = unflatten(self.body.x_spec, leaves), cut.first, cut.last
        inner = by_leaf(
            lambda leaf: torch.zeros(n, *leaf.shape[1:], dtype=leaf.dtype, device="cpu"), tuple(kind.inner)
        )
        step = over_words(self.body.step, kind.of_words)
        own, static = self._own_and_static()
        state = (own, inner) if static is None else WithStatic((own, inner), static)
        return step, x, state

    def _as_it_came(self, out: tuple[Any, Any], kind: _Kind) -> dict[str, Any]:
        (leaves, spec), last = flatten(out[0]), out[1]
        final = WithStatic(last.state[0], last.static) if isinstance(last, WithStatic) else last[0]
        y = [
            LoDTensor.of(leaf.values, self._structure)
            if of_words
            else LoDTensor.of(leaf.values.index_select(0, self.cut.ends), self.cut.sentences)
            for leaf, of_words in zip(leaves, kind.of_words, strict=True)
        ]
        return {
            "y": unflatten(spec, y),
            **dict(zip(self.body.new_state_names, flatten(final)[0], strict=True)),
        }

    def is_faster(self, kind: _Kind, plain: Callable[[], dict[str, Any]]) -> bool:
        """Whether it takes less time than the loop over sentences, forward and backward."""
        entry, reads, _ = find_plan(*self.as_loop(kind), backend=self._backend)
        read = [*(leaf.values for leaf in self._x), *self._state, *(reads.tensors[k] for k in entry.weights)]
        hooked = not all(map(executor_choice.is_bare, read))

        def once(way: Callable[[], Any]) -> None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not hooked):
                executor_choice.go_back([rows_of(leaf) for leaf in flatten(way())[0]], read)

        ways = {"words": lambda: self.run(kind), "sentences": plain}
        seconds = dict.fromkeys(ways, float("inf"))
        for _ in range(_ROUNDS):
            for name, way in ways.items():
                taken = executor_choice.stopwatch(lambda way=way: once(way))
                seconds[name] = min(seconds[name], taken)
        return seconds["words"] <= seconds["sentences"]


def _by_plan(step: Any, x: Any, state: Any, backend: str) -> tuple[Any, Any]:
    way = Way(False, -1, 0, backend)
    with found_by(step.__self__) as own:
        like = MethodType(step.__func__, own)
        of = _STEPS._replace(found_by=lambda _: like)
        state, out = run_warm(of, step, x, state, way)
        if out is not None:
            return out
        state, call = asked(of, step, x, state, way)
        out = None if call is None else run_again(call)
    if out is None:
        body, x_leaves, state_leaves = checked(step, x, state)
        loop, feeds = body.as_loop(x_leaves, state_leaves, reverse=False, level=-1, axis=0)
        named = run(loop, feeds, backend=backend, warn=False, asked=call)
        out = named["y"], unflatten(body.state_spec, [named[name] for name in body.new_state_names])
    return out


@outside_modes
def _cut_of(x: Sequence[Any], level: int | None) -> _Cut | None:
    """Where sentences are; None where the steps are no sentences of words, or a sentence has none."""
    if level is None or not all(isinstance(leaf, LoDTensor) for leaf in x):
        return None
    first, depth = x[0].structure, x[0].lod_level
    if depth < 2 or level % depth != depth - 2:
        return None
    if any(leaf.structure is not first and leaf.structure != first for leaf in x[1:]):
        return None
    if not all(leaf.values.is_cpu for leaf in x):
        return None
    *above, texts, sentences = (offsets.numpy() for offsets in first.levels)
    key = tuple(offsets.tobytes() for offsets in (*above, texts, sentences))
    cut = _cuts.get(key)
    if cut is None:
        if not len(sentences) or (sentences[1:] == sentences[:-1]).any() or len(sentences) < 2:
            return None
        rows = first.rows
        begins, ends = np.zeros((rows, 1), bool), np.zeros((rows, 1), bool)
        begins[sentences[:-1]] = ends[sentences[1:] - 1] = True
        words = LoD.trusted((*first.levels[:-2], from_numpy(sentences[texts])), rows)
        cut = _cuts[key] = _Cut(
            words,
            LoD.trusted(first.levels[:-1], len(sentences) - 1),
            LoDTensor.of(from_numpy(begins), words),
            LoDTensor.of(from_numpy(ends), words),
            from_numpy(sentences[1:] - 1),
            bool((np.diff(texts) > 1).any() and (np.diff(sentences) > 1).any()),
        )
    return cut


def _whose(step: Any) -> Any:
    """A module, which may be configured otherwise than others of its class; of all else the code."""
    own = step.stepnet if isinstance(step, ScopeStep) else step
    return own if isinstance(own, nn.Module) else lifting.code_of_step(own)


def _key(body: StepBody, x: Sequence[Any], state: Sequence[Tensor]) -> tuple[Any, ...]:
    """What calls of one kind have in common."""
    kinds = [(t.shape[1:], t.dtype, t.requires_grad) for t in (*map(rows_of, x), *state)]
    around = *settings(), torch.is_inference_mode_enabled(), torch.get_num_threads()
    step = body.step
    names = (step.inputs, step.outputs, step.static) if isinstance(step, ScopeStep) else ()
    return body.x_spec, body.state_spec, names, *kinds, *around


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether results agree, and carry gradients alike."""
    (first, spec), (second, other) = flatten(a), flatten(b)
    if spec != other:
        return False
    for one, two in zip(first, second, strict=True):
        if isinstance(one, LoDTensor) != isinstance(two, LoDTensor):
            return False
        if isinstance(one, LoDTensor) and one.structure != two.structure:
            return False
        p, q = rows_of(one), rows_of(two)
        if (p.shape, p.dtype, p.requires_grad) != (q.shape, q.dtype, q.requires_grad):
            return False
        most = 2e-2 if torch.is_autocast_enabled("cpu") else _TOLERANCE.get(p.dtype, 2e-2)
        if not torch.allclose(p.detach(), q.detach(), rtol=most, atol=most, equal_nan=True):
            return False
    return True
