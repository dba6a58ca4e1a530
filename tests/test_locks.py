"""Locks, in processes that are forked while other threads hold them."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stepnet
from forks import in_a_fork
from stepnet import LoDTensor, locks, recurrent
from stepnet.compiler.reads import swapped as swapping
from stepnet.compiler.reads.swapped import Swapped
from stepnet.locks import Lock, _all
from stepnet.nested.recreated_steps import found_by

SOURCE = Path(stepnet.__file__).parent
_MADE = re.compile(
    r"(?:threading|_thread|multiprocessing)\.(?:R?Lock|Condition|(?:Bounded)?Semaphore|Event|Barrier|allocate_lock)\b"
    r"|from (?:threading|_thread|multiprocessing) import.*"
)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def test_all_locks_are_of_one_kind():
    """Those that a fork does not leave held."""
    found = {at.name: _MADE.findall(at.read_text()) for at in SOURCE.rglob("*.py")}
    assert {name: made for name, made in found.items() if made} == {"locks.py": ["_thread.RLock"]}


def stopped_at(event: int, file: str, run: Callable[[], object]) -> bool:
    """Whether a run was stopped, as by a signal, where a function of a file begins or ends."""
    left = [event]

    def trace(frame: Any, kind: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        left[0] -= kind in ("call", "return")
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def is_free(lock: Lock) -> bool:
    """Whether another thread may take a lock."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(timeout=5))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found == [True]


def test_no_error_by_a_signal_leaves_a_lock_held():
    def run() -> None:
        with lock:
            pass

    lock, event = Lock(), 1
    while stopped_at(event, locks.__file__, run):
        assert is_free(lock)
        event += 1
    assert is_free(lock)


def test_no_error_by_a_signal_loses_what_stood_there():
    """Wherever it comes: in the worst case the other value stays, which does as the first one."""

    def run() -> None:
        with swapped.inside():
            assert owner.size == 2

    event, stopped = 1, True
    while stopped:
        owner = SimpleNamespace(size=1)
        swapped = Swapped(owner, "size", 2)
        stopped = stopped_at(event, swapping.__file__, run)
        assert swapping.unswapped(owner.size) == 1
        run()
        assert swapping.unswapped(owner.size) == 1
        assert is_free(swapped._lock)  # pyright: ignore[reportPrivateUsage]
        event += 1
    assert event > 5
    assert owner.size == 1


@contextlib.contextmanager
def another_thread(*inside: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """In here another thread is inside of what is given."""
    entered, leave = threading.Event(), threading.Event()

    def enter() -> None:
        with contextlib.ExitStack() as stack:
            for each in inside:
                stack.enter_context(each)
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=enter)
    thread.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@forks
def test_a_child_holds_none_of_the_locks_of_other_threads():
    with another_thread(*_all):
        assert not any(lock.acquire(blocking=False) for lock in _all)
        assert in_a_fork(lambda: sum(lock.acquire(blocking=False) for lock in _all)) == len(_all) > 5


@pytest.mark.exhaustive  # the child compiles
@forks
def test_a_child_runs_a_new_step_beside_all_locks():
    def child() -> float:
        x = LoDTensor.from_sequences([torch.ones(3, 2), torch.ones(1, 2)])
        return float(recurrent(lambda x, h: (h * k + x, h * k + x), x, torch.zeros(2, 2))[1].sum())

    k = 0.5
    with another_thread(*_all):
        assert in_a_fork(child) == 5.5


@forks
def test_what_the_thread_that_forks_holds_it_still_holds():
    lock = Lock()

    def taken_by_another() -> bool:
        took = list[bool]()
        thread = threading.Thread(target=lambda: took.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return took[0]

    def child() -> tuple[bool, bool]:
        within = taken_by_another()
        lock.release()
        return within, taken_by_another()

    lock.acquire()
    assert in_a_fork(child) == (False, True)


@forks
def test_what_another_thread_swapped_is_put_back():
    owner = SimpleNamespace(sqrt=math.sqrt)
    other = Swapped(owner, "sqrt", abs)

    def child() -> tuple[bool, bool, bool]:
        before = owner.sqrt is math.sqrt
        with other.inside():
            within = owner.sqrt is abs
        return before, within, owner.sqrt is math.sqrt

    with another_thread(other.inside()):
        assert in_a_fork(child) == (True, True, True)
        with other.inside():  # the thread that forks is inside, too
            assert in_a_fork(lambda: owner.sqrt is abs)
    assert owner.sqrt is math.sqrt


@forks
def test_a_step_that_another_thread_is_in_a_call_of():
    def made(x):
        return lambda: x

    def child() -> tuple[bool, int]:
        with found_by(step := made(2)) as found:
            return found is not step, found()

    with another_thread(found_by(made(1))):
        assert in_a_fork(child) == (True, 2)


def test_a_step_within_a_call_of_the_same_code():
    def made(x):
        return lambda: x

    with found_by(made(1)) as outer, found_by(step := made(2)) as inner:
        assert (outer(), inner(), inner is step) == (1, 2, True)
    with found_by(made(3)) as again:
        assert again is outer
