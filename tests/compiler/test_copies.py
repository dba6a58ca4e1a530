"""Steps that copy objects, dispatch by type and assert, in Python's own code; changes are seen."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import functools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from covering import few
from stepnet import recurrent

W = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
SEEN: list[int] = []


@dataclasses.dataclass
class State:
    a: Tensor
    scale: float = 0.5


@functools.singledispatch
def act(value: object) -> Tensor:
    raise TypeError(value)


@act.register
def _of_tensor(value: Tensor) -> Tensor:
    return value.tanh()


@act.register
def _of_state(value: State) -> Tensor:
    return value.a.sin() * value.scale


def copies(x: Tensor, h: Tensor):
    held = copy.copy(State(x * W + h))
    assert held.a.shape[-1] == 3, "three features"
    return held.a.sin(), held.a * held.scale


def replaces(x: Tensor, h: Tensor):
    held = dataclasses.replace(State(h), a=x * W + h)
    assert isinstance(held.scale, float)
    assert held.a.dim() == 2
    return held.a.sin(), held.a * held.scale


def dispatches(x: Tensor, h: Tensor):
    held = State(x * W + h)
    return act(held), act(held.a)


def as_dict(x: Tensor, h: Tensor):
    held = dataclasses.asdict(State(h))
    return held["a"] * W, held["a"] * held["scale"] + x


def deep(x: Tensor, h: Tensor):
    held: Any = copy.deepcopy([h, State(x)])
    return held[0] * W, held[0] + held[1].a * held[1].scale


def _halved(state: State) -> State:
    return State(state.a * 0.5, state.scale)


def _counts(state: State) -> State:
    SEEN.append(1)
    return State(state.a, state.scale)


def _reduced(state: State):
    return State, (state.a * 0.25, state.scale)


def same(step, training: bool) -> Tensor:
    """What compiled torch ops give, which is what the plain loop gives."""
    x = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h = torch.ones(2, 3, dtype=torch.float64)
    results = []
    for backend in ("naive", "eager", "eager"):
        own = x.clone().requires_grad_(training)
        y, last = recurrent(step, own, h, backend=backend)
        grads = torch.autograd.grad(y.sum() + last.sum(), own) if training else ()
        results.append([y.detach(), last.detach(), *grads])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
    return results[0][0]


@pytest.mark.parametrize(
    ("step", "training"),
    few(
        [(copies, True), (replaces, True), (dispatches, True), (as_dict, False), (deep, False)],
        [(copies, True), (deep, False)],
    ),
)
def test_compiled_and_changes_are_seen(step, training):
    first = same(step, training)
    with mock.patch.object(State.__init__, "__defaults__", (0.75,)):
        assert not torch.equal(same(step, training), first)
    assert torch.equal(same(step, training), first)


def test_another_way_to_copy_is_seen():
    first = same(copies, True)
    with mock.patch.object(State, "__copy__", _halved, create=True):
        second = same(copies, True)
    with mock.patch.dict(copyreg.dispatch_table, {State: _reduced}):
        third = same(copies, True)
    assert torch.equal(same(copies, True), first)
    assert len({float(found.sum()) for found in (first, second, third)}) == 3


def test_another_function_of_a_type_is_seen():
    first = same(dispatches, True)
    before = act.dispatch(Tensor)
    act.register(Tensor, lambda value: value.cos())
    try:
        assert not torch.equal(same(dispatches, True), first)
    finally:
        act.register(Tensor, before)
    assert torch.equal(same(dispatches, True), first)


@pytest.mark.filterwarnings("ignore:step")
def test_copies_that_count_do_so_once_for_each_step():
    with mock.patch.object(State, "__copy__", _counts, create=True):
        SEEN.clear()
        for _ in range(2):
            recurrent(copies, torch.ones(4, 2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64))
    assert len(SEEN) == 8
