"""A recurrence from Python threads, with other numbers of torch threads, after fork and when spawned."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from beside_plain import CLOSE, Cell, by_hand, cell, check, ours, results, rows
from forks import in_a_fork
from stepnet.engine import plans


def right(step: torch.nn.Module) -> bool:
    torch.testing.assert_close(results(step, ours), results(cell(), by_hand), rtol=1e-9, atol=1e-9)
    return True


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)


def test_other_numbers_of_threads_in_between() -> None:
    step, twin = cell(), cell()
    for threads in (1, 3, 2, 1):
        torch.set_num_threads(threads)
        check(step, twin)


def outputs(step: torch.nn.Module) -> list[torch.Tensor]:
    return list(ours(step, *ROWS))


def gradients(step: torch.nn.Module) -> list[torch.Tensor]:
    y, h = ours(step, *ROWS)
    return list(torch.autograd.grad(y.sin().sum() + h.square().sum(), [*step.parameters()]))


ROWS = rows()


@pytest.mark.parametrize("work", [outputs, gradients])
def test_threads_that_share_a_step(work) -> None:
    step = cell()
    expected = [t.detach() for t in work(step)]
    begin = threading.Barrier(4)

    def many() -> bool:
        begin.wait(30)
        for _ in range(5):
            torch.testing.assert_close([t.detach() for t in work(step)], expected, **CLOSE)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(each.result(60) for each in [pool.submit(many) for _ in range(4)])


def test_threads_that_meet_a_new_step_at_once() -> None:
    """All of them record it, or wait for the one that does."""

    class New(Cell):
        def forward(self, x, h):
            h = torch.tanh(self.inp(x) * 0.75 + self.rec(h))
            return h, h

    step = New().double()
    expected = [t.detach() for t in by_hand(step, *ROWS)]
    begin = threading.Barrier(4)

    def first() -> bool:
        begin.wait(30)
        torch.testing.assert_close([t.detach() for t in ours(step, *ROWS)], expected, **CLOSE)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(each.result(60) for each in [pool.submit(first) for _ in range(4)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_after_use() -> None:
    step = cell()
    assert right(step)
    assert in_a_fork(lambda: right(step) and right(cell()))
    assert right(step)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_while_another_thread_makes_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on, make = threading.Event(), threading.Event(), plans.make

    def slowly(*asked):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait(60)
        return make(*asked)

    class New(Cell):
        pass

    def child() -> bool:
        step = New().double()
        torch.testing.assert_close(results(step, ours), results(step, by_hand), rtol=1e-9, atol=1e-9)
        return True

    monkeypatch.setattr(plans, "make", slowly)
    with ThreadPoolExecutor(1) as pool:
        recorded = pool.submit(ours, New().double(), *ROWS)
        assert inside.wait(60)
        assert in_a_fork(child)
        go_on.set()
        recorded.result()


@pytest.mark.exhaustive  # a new process, that imports torch, for what pickles
def test_spawn_after_use() -> None:
    step = cell()
    assert right(step)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(right, (step,))
    assert right(step)
