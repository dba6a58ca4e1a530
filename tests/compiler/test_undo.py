"""What a step changes is as the plain loop leaves it, whatever keeps it: a trial leaves no trace."""

from __future__ import annotations

import array
import collections
import functools
import heapq
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stepnet import recurrent
from stepnet.errors import SlowPathWarning

Kept = tuple[Callable[[], float], Callable[[], Any]]  # counts on, as a step does; what is there then


def a_variable_not_assigned_yet() -> Kept:
    def count():
        nonlocal number
        try:
            number += 1
        except NameError:
            number = 1.0
        return number

    if not count:
        number = 0.0
    return count, lambda: number


def a_cached_function() -> Kept:
    calls = [0]

    @functools.lru_cache
    def called(_):
        calls[0] += 1

    return lambda: called(1) or calls[0], lambda: calls[0]


def a_cache_that_held_something(most: int | None = 128) -> Kept:
    calls = [0]

    @functools.lru_cache(maxsize=most)
    def called(_):
        calls[0] += 1
        return calls[0]

    called(1)
    return lambda: called(2) * calls[0], lambda: (*calls, called(1), called(2), *called.cache_info()[2:])


def a_cache_without_bounds() -> Kept:
    return a_cache_that_held_something(None)


def bytes_that_grow() -> Kept:
    kept = bytearray(1)
    return lambda: kept.append(1) or len(kept), lambda: bytes(kept)


def numbers_that_grow() -> Kept:
    kept = array.array("d", [1.0])
    return lambda: kept.append(2.0) or sum(kept), kept.tolist


def memory() -> Kept:
    kept = bytearray(2)
    view = memoryview(kept)
    return lambda: view.__setitem__(0, view[0] + 1) or view[0], lambda: bytes(kept)


def an_order() -> Kept:
    kept = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def count():
        name, number = kept.popitem(last=False)
        kept[name + "x"] = number + 1
        return number

    return count, lambda: [*kept.items()]


def a_heap() -> Kept:
    kept = [3.0, 5.0, 9.0]
    return lambda: heapq.heappushpop(kept, kept[0] + 4), lambda: [*kept]


def a_name_of_a_module() -> Kept:
    space: dict[str, Any] = {}
    exec("def count():\n    global n\n    n = globals().get('n', 0) + 1\n    return n", space)
    return space["count"], lambda: space.get("n")


def a_database() -> Kept:
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("create table kept (n)")

    def count():
        base.execute("insert into kept values (1)")
        return base.execute("select count(*) from kept").fetchone()[0]

    return count, lambda: base.execute("select count(*) from kept").fetchone()


KINDS = [
    a_variable_not_assigned_yet, a_cached_function, a_cache_that_held_something, a_cache_without_bounds,
    bytes_that_grow, numbers_that_grow, memory, an_order, a_heap, a_name_of_a_module, a_database,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings(f"ignore::{SlowPathWarning.__module__}.SlowPathWarning")
def test_what_is_left_is_what_the_plain_loop_leaves(kind):
    left = []
    x = torch.ones(3, 2, 2)
    for backend in ("naive", "auto"):
        count, look = kind()

        def step(x, h, count=count):
            h = torch.tanh(x + h) * count()
            return h, h

        found = [recurrent(step, x, torch.zeros(2, 2), backend=backend)[0] for _ in range(2)]
        left.append((torch.stack(found).tolist(), look()))
    assert left[0] == left[1]
