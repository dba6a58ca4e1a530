"""Calls of one step, where the step itself is faster: called as the plain loop calls it.

That is what such a call means, whatever the step reads: so nothing of that is looked at, only whether x and
the state look as they did at a call that was checked. Which way is faster is taken from the timing of a
plan (`single_step_timing`), or, without gradients, of steps that are looked into at each call (they read what
no walk tells), from the calls themselves: first some the long way, then some by the step. Not steps that draw
noise: plans draw other numbers, and which way a call goes is to show in none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import autocast_dtype, is_kept_twice, nothing_around
from stepnet.data.storage import differ
from stepnet.data.tensor_guards import alike
from stepnet.data.tree import LEAF, Spec, flatten, unflatten
from stepnet.executors import naive
from stepnet.executors.registry import AUTO
from stepnet.ir.loop import Body
from stepnet.watchers import is_noted

from .kept_by_step import KeptByStep, owner_of

_MOST = 4  # looks of the calls of one step
_LONG_WAY = 6  # calls after which a step is still looked into each time
_TRIED = 3  # calls by the step itself that are timed then
clock = time.perf_counter


class _Results(NamedTuple):
    """What such calls gave: how y is nested, and whether leaves of y and of the new state look as theirs."""

    y: Spec
    alike: Callable[..., bool]
    contiguous: bool


class _Like:
    """Calls that look alike. `others`: seconds of the fastest that ran otherwise; `own`: of those by the
    step."""

    def __init__(self, way: Any, form: Spec, given: Sequence[Tensor]) -> None:
        self.way, self.form, self.alike = way, form, alike(given)
        self.others, self.own = float("inf"), float("inf")
        self.calls = self.tried = 0
        self.is_faster: bool | None = None  # None: it is not known yet
        self.is_pure = False  # whether it may be called once more: it has a plan
        self.results: _Results | None = None

    def note(self, seconds: float) -> None:
        """One ran otherwise."""
        self.calls += 1
        if self.calls > 1:  # the first one made the plan
            self.others = min(self.others, seconds)

    def note_own(self, seconds: float) -> None:
        """One ran by the step."""
        self.own = min(self.own, seconds)
        self.tried += 1
        if self.tried >= _TRIED:
            self.is_faster = self.own <= self.others


_steps = KeptByStep[Bounded[int, _Like]]()


def run_lone(of: Any, step: Any, x: Any, state: Any, way: Any) -> tuple[Any, Any] | None:
    """y and the final state of a call of one step that is known to be faster by itself; None: it is to run
    otherwise. `of`: see `warm_calls.Steps`.

    Raises:
        StepError: as the plain loop.
    """
    known = _steps.of(step)
    if known is None or type(x) is not Tensor or is_noted() or is_kept_twice():
        return None
    states, form = ([state], LEAF) if type(state) is Tensor else flatten(state)
    like = _found(known, _kind(step, way), form, (x, *states))
    if like is None or not nothing_around() or like.is_faster is False:
        return None
    tried = like.is_faster is None
    if tried and like.calls < _LONG_WAY:
        return None
    noise, began = torch.default_generator.get_state(), clock()
    out = _run(of, step, like, x, states, state)
    if tried:
        like.note_own(clock() - began)
    if _drawn(noise):
        like.is_faster = False
        if like.is_pure:
            torch.default_generator.set_state(noise)
            return None
    return out


def _drawn(noise: Tensor) -> bool:
    """Whether numbers were drawn since the state of the generator was this."""
    now = torch.default_generator.get_state()
    return differ(noise.data_ptr(), now.data_ptr(), noise.nbytes)


def _kind(step: Any, way: Any) -> tuple[Any, ...]:
    """What else is alike in calls that look alike: in training a step may draw noise, and with gradients
    another way may be faster."""
    owner = owner_of(step)
    return *way, isinstance(owner, nn.Module) and owner.training, torch.is_grad_enabled()


def _found(likes: Bounded[int, _Like], way: Any, form: Spec, given: Sequence[Tensor]) -> _Like | None:
    for like in [*likes.values()]:
        if like.way == way and like.form == form and like.alike(*given):
            return like
    return None


def _run(of: Any, step: Any, like: _Like, x: Tensor, states: list[Tensor], state: Any) -> tuple[Any, Any]:
    axis, form = like.way[2], like.form
    row = x.select(axis, 0)
    try:
        result = of.called(step)(row, state)
    except Exception as error:
        told = of.body(of.wrap(step), LEAF, form).told(error, [row], states)
        if told is error:
            raise
        raise told from error
    results = like.results
    if results is not None and type(result) is tuple and len(result) == 2:
        y, new = result
        leaves, spec = ([y], LEAF) if type(y) is Tensor else flatten(y)
        last, last_spec = ([new], LEAF) if type(new) is Tensor else flatten(new)
        if spec == results.y and last_spec == form and results.alike(*leaves, *last):
            rows = [torch.stack([t], axis) for t in leaves]
            # it may give what came in, or what it refers to
            last = [t.clone() for t in last] if results.contiguous else [*map(_copy, last)]
            return (
                rows[0] if spec is LEAF else unflatten(spec, rows),
                last[0] if form is LEAF else unflatten(form, last),
            )
    body = of.body(of.wrap(step), LEAF, form)
    y, new = body.accept(result, states)
    leaves, spec = flatten(y)
    n = x.shape[1 - axis]
    if all(type(t) is Tensor and t.dim() and t.shape[0] == n for t in leaves):
        kept = [*map(id, flatten(result[1])[0])] == [*map(id, new)]  # none is cast, or in another order
        if kept and all(type(t) is Tensor for t in new):
            like.results = _Results(spec, alike([*leaves, *new]), all(t.is_contiguous() for t in new))
        y = unflatten(spec, [torch.stack([t], axis) for t in leaves])
    else:
        y = _joined(body, x, states, like.way, (y, *new))
    return y, unflatten(form, [*map(_copy, new)])


def _copy(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def _joined(body: Any, x: Tensor, states: list[Tensor], way: Any, results: tuple[Any, ...]) -> Any:
    """y of a step that gives no row for each sequence, as the plain loop joins it."""
    reverse, _, axis, *_ = way
    loop, feeds = body.as_loop([x], states, reverse=reverse, level=-1, axis=axis)
    return naive.run(loop.around(_Done(body, results)), feeds)["y"]


class _Done(Body):
    """A body that ran."""

    def __init__(self, body: Any, results: tuple[Any, ...]) -> None:
        self.name, self.parameters, self.results = body.name, body.parameters, body.results
        self._results = results

    def __call__(self, *_: Any) -> tuple[Any, ...]:
        return self._results


def note_faster(step: Any, x: Any, states: Sequence[Tensor], form: Spec, way: Any) -> None:
    """From now on calls like this one, which was checked, run by the step: it was timed faster."""
    like = _noted(step, x, states, form, way)
    if like is not None and like.is_faster is not False:
        like.is_faster = like.is_pure = True


def note_call(step: Any, x: Any, way: Any) -> Callable[[Any], None] | None:
    """What to call, with its state, when a call that begins now has run otherwise than by the step alone."""
    if torch.is_grad_enabled() or not _is_of_one(x, way):
        return None
    noise, began = torch.default_generator.get_state(), clock()

    def done(state: Any) -> None:
        seconds = clock() - began
        states, form = flatten(state)
        like = _noted(step, x, states, form, way)
        if like is not None:
            like.note(seconds)
            if _drawn(noise):
                like.is_faster = False

    return done


def _noted(step: Any, x: Any, states: Sequence[Any], form: Spec, way: Any) -> _Like | None:
    """What is known of calls like one; None if it is of another kind than those that run by the step."""
    if not _is_of_one(x, way):
        return None
    for t in (x, *states):
        if type(t) is not Tensor or t.layout is not torch.strided or not t.is_cpu or not t.dim():
            return None
    odd = any(t.shape[0] != x.shape[1 - way[2]] for t in states)
    if odd or autocast_dtype("cpu") is not None or not nothing_around():
        return None
    known = _steps.made(step, lambda _: Bounded(_MOST))
    if known is None:
        return None
    given, kind = (x, *states), _kind(step, way)
    like = _found(known, kind, form, given)
    if like is None:
        like = _Like(kind, form, given)
        known[id(like)] = like
    return like


def _is_of_one(x: Any, way: Any) -> bool:
    """Whether x is one step of a kind that may run by the step."""
    axis = way[2]
    if type(x) is not Tensor or way[3] != AUTO or axis not in (0, 1):
        return False
    # floats of two dimensions may be features of one sequence, which each call is asked
    return x.dim() >= 2 + x.is_floating_point() and x.shape[axis] == 1 and x.shape[1 - axis] > 0


def forget_lone() -> None:
    """Time every step anew."""
    _steps.clear()
