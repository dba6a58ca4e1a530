"""What torch compiles, scripts or checkpoints in a step means what its Python says; logs and ranges of a
profile change no result. Such steps are compiled, until they log something."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from beside_plain import CLOSE, Cell, by_hand, executor_of, ours, results, rows
from covering import few
from stepnet import recurrent
from stepnet.compiler.reads.as_written import as_written
from stepnet.errors import SlowPathWarning

LOG = logging.getLogger("tests.as_written")


def gated(x, h):
    return torch.tanh(x) * torch.sigmoid(h) + 0.5 * h


def scripted_gated(x: torch.Tensor, h: torch.Tensor, times: int = 1) -> torch.Tensor:
    for _ in range(times):
        h = torch.tanh(x) * torch.sigmoid(h) + 0.5 * h
    return h


def logs(x, h):
    LOG.debug("x %s", x.shape)
    logging.getLogger().debug(f"h {h.shape}")
    return gated(x, h)


def in_a_range(x, h):
    with torch.profiler.record_function("gated"):
        return gated(x, h)


HELPERS: dict[str, Callable[[], Any]] = {
    "scripted": lambda: torch.jit.script(scripted_gated),
    "compiled": lambda: torch.compile(gated, backend="eager"),
    "not compiled": lambda: torch.compiler.disable(gated),
    "checkpointed": lambda: lambda x, h: checkpoint(gated, x, h, use_reentrant=False),
    "checkpointed reentrantly": lambda: lambda x, h: checkpoint(gated, x, h, use_reentrant=True),
    "checkpointed in parts": lambda: (
        lambda x, h: checkpoint_sequential(
            nn.Sequential(nn.Tanh(), nn.Softsign()), 2, x + h, use_reentrant=False
        )
    ),
    "logs": lambda: logs,
    "a range of a profile": lambda: in_a_range,
}


class With(Cell):
    """The shared cell, with a helper."""

    def __init__(self, helper):
        super().__init__()
        self.helper = helper

    def forward(self, x, h):
        h = self.helper(self.inp(x), self.rec(h))
        return h, h


def with_helper(name: str) -> With:
    torch.manual_seed(3)
    return With(HELPERS[name]()).double()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of Dynamo, by hand
@pytest.mark.parametrize("name", few(HELPERS, ["scripted", "checkpointed", "logs"]))
def test_as_written(name):
    step = with_helper(name)
    assert executor_of(step)[0] == "c"
    for a, b in zip(results(step, ours), results(step, by_hand), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_checkpoints_outside_of_steps_compute_twice():
    """While a step is tried, and after."""
    calls = []

    def noted(x):
        calls.append(x)
        return x.sin()

    def trained():
        x = torch.ones(2, requires_grad=True)
        checkpoint(noted, x, use_reentrant=False).sum().backward()
        return len(calls)

    with as_written():
        other = threading.Thread(target=trained)
        other.start()
        other.join()
        assert len(calls) == 2
    assert trained() == 4


def test_a_step_that_logs_runs_by_the_plain_loop():
    """As long as it does: what would be logged is asked at every call."""
    step = with_helper("logs")
    x, h0 = rows()
    steps = int(x.lengths().max())
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append
    LOG.addHandler(handler)
    level, told = LOG.level, f"logs to '{LOG.name}'"
    try:
        for again in range(2):
            LOG.setLevel(logging.DEBUG)
            kept.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if again else "error")
                with nullcontext() if again else pytest.raises(SlowPathWarning, match=told):
                    recurrent(step, x, h0)
            kept.clear()
            y, h = ours(step, x, h0)
            assert len(kept) == steps
            LOG.setLevel(logging.INFO)
            torch.testing.assert_close(ours(step, x, h0), (y, h), **CLOSE)
            assert len(kept) == steps
            assert executor_of(step)[0] == "c"
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)
