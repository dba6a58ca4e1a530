"""A recurrence inside a step that does not depend on the step's state runs once, over the rows of all steps.

It is one where the inner recurrence reads what the outer loop hands to its step, as it is, by a step that has
a plan (so it computes from its rows, its state and the tensors it reads, and nothing else), from an initial
state that is the same for every sequence. Nothing is taken on trust: at every outer step the inner call is
held against the one that ran, and where it differs in anything, it runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from stepnet.compiler.trace.iteration import code_of
from stepnet.data.attributes import attribute
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import settings, transformed
from stepnet.data.offsets import LoD
from stepnet.data.storage import versions
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.data.values import rows_of
from stepnet.engine import find_plan, read, run
from stepnet.executors.segment import LoDCut
from stepnet.front.memory import ScopeStep
from stepnet.front.step import StepBody, boot_state
from stepnet.ir.loop import Loop, Slice


class OuterBody(StepBody):
    """The step of a loop over a level above the last, with the loop in sight of what the step calls."""

    def __init__(self, body: StepBody, x_leaves: Sequence[Any], *, level: int, reverse: bool) -> None:
        super().__init__(body.step, body.x_spec, body.state_spec)
        self._loop = _OuterRun(code_of_step(body.step), list(x_leaves), level, reverse)

    def call(self, x_leaves: Sequence[Any], state_leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        self._loop.begin(self.t, x_leaves, state_leaves)
        token = _LOOP.set(self._loop)
        try:
            return super().call(x_leaves, state_leaves)
        finally:
            _LOOP.reset(token)


@dataclass(frozen=True)
class Inner:
    """A call of `recurrent` inside the step of another.

    Attributes:
        booted: whether the cell gave the initial state.
        read: a key of all that its step reads, and the tensors among that; None if that is not known.
        pure: whether its step has a plan and draws no noise.
        boot: the initial state that its cell gives for n sequences.
        run: runs it over given leaves of x and of the state: leaves of y, their nesting, final state.
    """

    loop: Loop
    feeds: dict[str, Any]
    booted: bool
    backend: str
    read: Callable[[], tuple[Any, Sequence[Tensor]] | None]
    pure: Callable[[], bool]
    boot: Callable[[int], Sequence[Tensor]]
    run: Callable[[Sequence[LoDTensor], Sequence[Tensor]], tuple[list[LoDTensor], Spec, list[Tensor]]]

    @property
    def x(self) -> list[Any]:
        """What is cut into steps."""
        return [self.feeds[name] for name in self.loop.sources[0]]

    @property
    def state(self) -> list[Tensor]:
        """The initial states."""
        return [self.feeds[name] for name in self.loop.sources[1]]


@dataclass
class _Lifted:
    """An inner recurrence that ran over all elements, and what it depended on."""

    call: tuple[Any, ...]
    found: tuple[Any, Sequence[Tensor]]
    about: list[tuple[int, bool]]
    boot: list[Tensor]
    weights: list[Tensor]  # copies, as of x: what is written by way of `.data` is counted nowhere
    x: list[LoDCut]
    y_spec: Spec
    y: list[LoDCut]
    final: list[LoDCut]


def inside_a_step() -> bool:
    """Whether the step of a loop over whole sequences is being run."""
    return _LOOP.get() is not None


def may_run_once(x: Any, state: Any) -> bool:
    """Whether a call may be one that `lifted` answers. Any other is found as calls like one before are."""
    loop = _LOOP.get()
    return loop is not None and loop.may_run_once(x, state)


def passed() -> None:
    """Count a call that ran by itself and was not asked for."""
    loop = _LOOP.get()
    if loop is not None:
        loop.calls += 1


def once(
    loop: Loop, feeds: dict[str, Any], body: StepBody, booted: bool, backend: str
) -> tuple[Any, list[Tensor]] | None:
    """The results of a recurrence inside a step, if it ran once for all steps of the loop around it.

    Raises:
        Unsupported: as `engine.run`.
    """

    def pure() -> bool:
        entry, _, _ = find_plan(loop, feeds, backend=backend)
        return entry.ready is not None and entry.compiled is not None and not entry.compiled.fused.random

    def reads() -> tuple[Any, Sequence[Tensor]] | None:
        found = read(loop, [rows_of(leaf) for leaf in call.x], call.state, ())
        return None if found.refusal is not None else (found.whole, found.tensors)

    def boot(n: int) -> list[Tensor]:
        return flatten(boot_state(body.step, n))[0]

    def over_all(
        x: Sequence[LoDTensor], state: Sequence[Tensor]
    ) -> tuple[list[LoDTensor], Spec, list[Tensor]]:
        out = run(loop, dict(zip(body.parameters, (*x, *state), strict=True)), backend=backend)
        return *flatten(out["y"]), [out[name] for name in body.new_state_names]

    call = Inner(loop, feeds, booted, backend, reads, pure, boot, over_all)
    return lifted(call)


def lifted(inner: Inner) -> tuple[Any, list[Tensor]] | None:
    """y and the leaves of the final state of an inner recurrence, for the sequences of this step, if it is
    one that runs once for all steps of the loop around it; None: run it by itself."""
    loop = _LOOP.get()
    return None if loop is None else loop.lifted(inner)


class _OuterRun:
    """The steps of one run of an outer loop."""

    def __init__(self, code: Any, x: list[Any], level: int, reverse: bool) -> None:
        self._x, self._level = x, level
        self._cut = {"axis": 0, "level": level} | ({"start": -1, "end": 0, "stride": -1} if reverse else {})
        self._given_up = _GIVEN_UP.setdefault(code, set())
        self._kept: dict[int, _Lifted] = {}
        self._versions = _versions(x)
        self._step_versions: list[int] | None = None

    def begin(self, t: int, x_leaves: Sequence[Any], state_leaves: Sequence[Any]) -> None:
        self._t, self._here, self.calls = t, list(x_leaves), 0
        self._state = {leaf.untyped_storage().data_ptr() for leaf in state_leaves if isinstance(leaf, Tensor)}
        if self._step_versions is None:  # the steps of a leaf are views of one table, with one such number
            self._step_versions = _versions(x_leaves)

    def lifted(self, inner: Inner) -> tuple[Any, list[Tensor]] | None:
        number, self.calls = self.calls, self.calls + 1
        places = self._places(inner.x)
        if places is None or number in self._given_up or _is_in_a_mode():
            return None
        kept = self._kept.get(number)
        if kept is None:
            kept = self._run(inner, places)
            if kept is None:
                return None
            self._kept[number] = kept
        elif not self._same(kept, inner, places):
            self._given_up.add(number)  # it will not be tried again: the run over all steps was wasted
            return None
        leaf = self._here[places[0]]
        y = [LoDTensor.of(rows_of(cut.parts[self._t]), leaf.structure) for cut in kept.y]
        return unflatten(kept.y_spec, y), [rows_of(cut.parts[self._t]) for cut in kept.final]

    def may_run_once(self, x: Any, state: Any) -> bool:
        if self.calls in self._given_up:
            return False
        leaves = [leaf for leaf in flatten(x)[0] if type(leaf) is LoDTensor]
        if any(all(here is not leaf for here in self._here) for leaf in leaves):
            return False
        return state is None or not any(map(self._waits, flatten(state)[0]))

    def _waits(self, state: Any) -> bool:
        """Whether an initial state depends on that of the outer loop, or has a gradient."""
        if not isinstance(state, Tensor):
            return False
        return state.requires_grad or state.untyped_storage().data_ptr() in self._state

    def _places(self, leaves: Sequence[Any]) -> list[int] | None:
        """Which leaf of the outer step's input each leaf is, if each is one, unchanged."""
        places = []
        for leaf in leaves:
            place = next((i for i, here in enumerate(self._here) if here is leaf), None)
            if place is None or not isinstance(leaf, LoDTensor):
                return None
            assert self._step_versions is not None
            now = _versions([leaf, self._x[place]])
            if now != [self._step_versions[place], self._versions[place]]:
                return None
            places.append(place)
        return places

    def _run(self, inner: Inner, places: list[int]) -> _Lifted | None:
        if not all(len(s) and _uniform(s) for s in inner.state):
            return None
        if not inner.booted and any(map(self._waits, inner.state)):
            return None
        if not inner.pure():
            return None
        whole = [self._x[place] for place in places]
        below = self._level % whole[0].lod_level + 1
        x = [w.drop_levels(below) for w in whole]
        n = len(x[0].structure.levels[-1]) - 1
        if inner.booted:
            state = list(inner.boot(n))
            if not all(len(s) and _uniform(s) for s in state):
                return None
        else:
            state = [s[:1].expand(n, *s.shape[1:]) for s in inner.state]
        found = inner.read()
        if found is None:
            return None
        y, y_spec, final = inner.run(x, state)
        outer = whole[0].structure
        ends = LoD.trusted(outer.levels[:-1], n)
        return _Lifted(
            call=_call(inner, places),
            found=found,
            about=_about(found[1]),
            boot=[s[:1].detach() for s in state],
            weights=[t.detach().clone() for t in found[1]],
            x=[self._cut_of(w.with_values(w.values.detach().clone())) for w in whole],
            y_spec=y_spec,
            y=[self._cut_of(LoDTensor.of(leaf.values, outer)) for leaf in y],
            final=[self._cut_of(LoDTensor.of(leaf, ends)) for leaf in final],
        )

    def _cut_of(self, value: LoDTensor) -> LoDCut:
        return LoDCut(Slice("lifted", "lifted", **self._cut), value)

    def _same(self, kept: _Lifted, inner: Inner, places: list[int]) -> bool:
        """Whether the call would compute, row by row, what the kept one computed."""
        if kept.call != _call(inner, places):
            return False
        found = inner.read()
        if found is None or found[0] != kept.found[0] or _about(found[1]) != kept.about:
            return False
        if any(a is not b for a, b in zip(found[1], kept.found[1], strict=True)):
            return False
        if not all(
            torch.equal(s.detach(), row.expand_as(s)) for s, row in zip(inner.state, kept.boot, strict=True)
        ):
            return False
        if transformed():  # where nobody writes so, and vmap compares no numbers
            return True
        here = [rows_of(self._here[place]) for place in places]
        known = [*kept.weights, *(rows_of(cut.parts[self._t]) for cut in kept.x)]
        return all(map(_equal, (*found[1], *here), known))


_LOOP: ContextVar[_OuterRun | None] = ContextVar("the loop over whole sequences that runs", default=None)
# By the code of the outer step: the numbers of its inner calls that were not the same at every step.
_GIVEN_UP: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()


def _call(inner: Inner, places: list[int]) -> tuple[Any, ...]:
    return (
        places,
        inner.booted,
        inner.loop.sweep,
        inner.backend,
        code_of(inner.loop).form,
        [(s.shape[1:], s.dtype, s.device, s.requires_grad) for s in inner.state],
        torch.is_inference_mode_enabled(),
        *settings(),
    )


def _is_in_a_mode() -> bool:
    """Whether a mode of torch is around, which may do other things at each step."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def _about(tensors: Sequence[Tensor]) -> list[tuple[int, bool]]:
    return [*zip(versions(tensors), [t.requires_grad for t in tensors], strict=True)]


def code_of_step(step: Any) -> Any:
    """What is the same for every closure a piece of source gives."""
    if isinstance(step, ScopeStep):
        step = step.stepnet
    if isinstance(step, nn.Module):
        return type(step)
    function = attribute(step, "__func__", step)
    return attribute(function, "__code__", type(step))


def _versions(leaves: Sequence[Any]) -> list[int]:
    return versions([*map(rows_of, leaves)])


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype is b.dtype and torch.equal(a.detach(), b)


def _uniform(state: Tensor) -> bool:
    """Whether all rows are the same."""
    return torch.equal(state, state[:1].expand_as(state))
