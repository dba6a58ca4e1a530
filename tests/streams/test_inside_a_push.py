"""What a module does, while a push runs it, to the stream that it is run by."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from forks import Fork
from stepnet import Recurrent, Stream, stream
from stepnet.errors import StreamError

BACKEND = "naive"


class Summing(nn.Module):
    """Sums of rows from the beginning; it does something to its stream after those of a push."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = Recurrent(lambda x, s: (s + x, s + x))
        self.then: Callable[[], object] = lambda: None

    def forward(self, x):
        y, _ = self.sums(x, torch.zeros(len(x), 1))
        self.then()
        return y


def opened(module: nn.Module) -> Stream:
    live = stream(module, idle_seconds=3600)
    live.open("a")
    live.open("b")
    return live


def pushed(live: Stream, *ids: str) -> list[float]:
    out = live.push(dict.fromkeys(ids, torch.ones(1, 1)))
    return [out[id].item() for id in ids]


def test_a_push():
    class Pushes(nn.Module):
        def forward(self, x):
            assert live.ids == ["a", "b"]  # it may ask
            return live.push({"a": x[0]})

    live = opened(Pushes())
    with pytest.raises(StreamError, match="pushes to the stream that it is run by"):
        live.push({"a": torch.zeros(1, 1)})


def test_a_reset_holds_from_the_next_push():
    module = Summing()
    live = opened(module)
    module.then = lambda: live.reset("a")
    assert pushed(live, "a", "b") == [1, 1]
    module.then = lambda: None
    assert pushed(live, "a", "b") == [1, 2]
    assert pushed(live, "a", "b") == [2, 3]


def test_a_stream_that_is_closed_and_opened_begins():
    module = Summing()
    live = opened(module)
    assert pushed(live, "a", "b") == [1, 1]
    module.then = lambda: (live.close("a"), live.open("c"))
    assert pushed(live, "a", "b") == [2, 2]
    module.then = lambda: None
    assert pushed(live, "b", "c") == [3, 1]


def test_states_are_not_loaded():
    module = Summing()
    live = opened(module)
    assert pushed(live, "a", "b") == [1, 1]
    state = live.state_dict()
    module.then = lambda: live.load_state_dict(state)
    with pytest.raises(StreamError, match="loads the states of the stream that it is run by"):
        pushed(live, "a")
    module.then = lambda: None
    assert pushed(live, "a", "b") == [2, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_while_another_thread_pushes() -> None:
    """The child has a stream that nobody pushes to."""
    module, inside, go_on = Summing(), threading.Event(), threading.Event()
    live = opened(module)
    pushed(live, "a", "b")

    def wait() -> None:
        inside.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        module.then = wait
        other = pool.submit(pushed, live, "a")
        assert inside.wait(60)
        module.then = lambda: None
        found = Fork(lambda: pushed(live, "b")).result()
        go_on.set()
        assert other.result() == [2.0]
    assert found == pushed(live, "b") == [2.0]
