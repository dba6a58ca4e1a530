"""A step that another thread changes while a plan is made of it: no plan holds what the step read for a
moment, and what the other thread wrote stays."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from covering import few
from stepnet import recurrent
from stepnet.engine import executor_choice, make, plans, walked_steps
from stepnet.errors import SlowPathWarning, Unsupported

D = 3
NAME = "STEPNET_TEST_OF_THREADS"
X, H = torch.randn(4, 2, D, dtype=torch.float64), torch.randn(2, D, dtype=torch.float64)


class Read(NamedTuple):
    """A step that reads a number; how that is set and looked up."""

    step: Any
    put: Callable[[float], object]
    get: Callable[[], float]


class Ways:
    def attribute():  # pyright: ignore
        class Step(nn.Module):
            gain = 1.0

            def forward(self, x, h):
                h = torch.tanh(x * self.gain + h)
                return h, h

        step = Step()
        return Read(step, lambda v: setattr(step, "gain", v), lambda: step.gain)

    def item():  # pyright: ignore
        kept = [1.0]

        def step(x, h):
            h = torch.tanh(x * kept[0] + h)
            return h, h

        return Read(step, lambda v: kept.__setitem__(0, v), lambda: kept[0])

    def closure():  # pyright: ignore
        number = 1.0

        def step(x, h):
            h = torch.tanh(x * number + h)
            return h, h

        def put(v):
            nonlocal number
            number = v

        return Read(step, put, lambda: number)

    def array():  # pyright: ignore
        kept = np.array([1.0])

        def step(x, h):
            h = torch.tanh(x * float(kept[0]) + h)
            return h, h

        return Read(step, lambda v: kept.__setitem__(0, v), lambda: float(kept[0]))

    def found_by_a_dynamic_name():  # pyright: ignore
        kept = types.SimpleNamespace(gain=1.0)

        def step(x, h):
            h = torch.tanh(x * getattr(kept, "ga" + "in") + h)
            return h, h

        return Read(step, lambda v: setattr(kept, "gain", v), lambda: kept.gain)

    def environment():  # pyright: ignore
        os.environ[NAME] = "1.0"

        def step(x, h):
            h = torch.tanh(x * float(os.environ[NAME]) + h)
            return h, h

        return Read(step, lambda v: os.environ.__setitem__(NAME, str(v)), lambda: float(os.environ[NAME]))

    def weight():  # pyright: ignore
        step = nn.RNNCell(D, D, dtype=torch.float64)

        def put(v):
            step.weight_ih = nn.Parameter(torch.full((D, D), v, dtype=torch.float64))

        put(1.0)
        return Read(step, put, lambda: step.weight_ih[0, 0].item())

    def weight_in_place():  # pyright: ignore
        step = nn.RNNCell(D, D, dtype=torch.float64)

        def put(v):
            with torch.no_grad():
                step.weight_ih.fill_(v)

        put(1.0)
        return Read(step, put, lambda: step.weight_ih[0, 0].item())


WAYS = {name: way for name, way in vars(Ways).items() if isinstance(way, types.FunctionType)}
THERE_AND_BACK = ["attribute", "closure", "found_by_a_dynamic_name", "weight_in_place"]
# Where the other thread is as this one makes a plan, or writes down what tells that a step is unchanged.
MOMENTS = [
    (plans, "make"), (make, "compile_loop"), (make, "choose"), (executor_choice, "self_check"),
    (walked_steps, "words"),
]  # fmt: skip


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
    os.environ.pop(NAME, None)


def run(step: Any, backend: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        y, h = recurrent(step, X, H, backend=backend)
    return torch.cat([y.flatten(), h.flatten()])


def assert_right(read: Read, value: float, backend: Any) -> None:
    read.put(value)
    for _ in range(4):
        torch.testing.assert_close(run(read.step, backend), run(read.step, "naive"), rtol=0, atol=1e-11)


@pytest.mark.covering(1)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment[1])
@pytest.mark.parametrize("way", few(WAYS, [*WAYS][::2]))
def test_a_change_while_a_plan_is_made(way, moment, before, other, monkeypatch):
    read = WAYS[way]()
    plans.forget()
    (module, name), original, done = moment, getattr(*moment), []

    def change() -> None:
        if not done:
            done.append(other.submit(read.put, 2.0).result(30))

    def meanwhile(*args: Any, **more: Any) -> Any:
        if before:
            change()
        result = original(*args, **more)
        change()
        return result

    monkeypatch.setattr(module, name, meanwhile)
    for _ in range(4):
        run(read.step, "auto")
    assert not done or read.get() == 2.0
    for value in (1.0, 2.0):
        assert_right(read, value, "eager")


@pytest.mark.parametrize("way", few(THERE_AND_BACK, ["closure", "weight_in_place"]))
def test_changes_there_and_back_while_plans_are_made(way):
    read, over, last = WAYS[way](), threading.Event(), 1.0

    def changes() -> None:
        nonlocal last
        while not over.is_set():
            last = 3.0 - last
            read.put(last)
            time.sleep(0.001)

    thread = threading.Thread(target=changes)
    thread.start()
    for _ in range(4):
        with contextlib.suppress(Unsupported):  # which says that it is changed
            run(read.step, "eager")
    over.set()
    thread.join()
    assert read.get() == last
    for value in (1.0, 2.0):
        assert_right(read, value, "eager")


def test_a_step_that_collects_leaves_nothing_beside_other_threads(other):
    kept = []

    def step(x, h):
        kept.append(len(kept))
        return x + h, torch.tanh(h)

    other.submit(len, kept).result(30)  # it waits for more
    for count in (1, 2, 3):
        run(step, "auto")
        assert kept == list(range(4 * count))


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_step_that_changes_what_it_reads_while_it_runs_is_compiled_beside_other_threads(backend, other):
    """By itself, and back: no other thread is to be blamed for it."""
    cell = torch.nn.GRUCell(2, 2)
    weights = {name: torch.randn_like(p).double() for name, p in cell.named_parameters()}

    def step(x, h):
        h = torch.func.functional_call(cell, weights, (x, h))
        return h, h

    other.submit(len, ()).result(30)  # it waits for more
    x, h = torch.randn(3, 2, 2).double(), torch.zeros(2, 2).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        found = recurrent(step, x, h, backend=backend)
    torch.testing.assert_close(found, recurrent(step, x, h, backend="naive"))
