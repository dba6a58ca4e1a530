"""What every test starts from: fixtures, in the processes that run tests (`conftest.py`)."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from _pytest.runner import runtestprotocol  # as plugins do that say what is told of a test

import signal_stack
from hurry import in_a_hurry

TESTS = Path(__file__).parent
MADE_ANEW = ("compiler", "fuzz", "test_modes.py")
OPTIMISED = ("executors",)
PLAIN = ("cells", "layers", "nn", "saving", "tape")
EAGER = ("commands", "export", "file_model", "graph", "onnx", "openvino", "streams")
SETTINGS = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)

MANY = 50_000  # objects, fewer of which take less time to look through than the look itself takes
gc.set_threshold(100_000, 20, 20)  # by its own count Python spends a tenth of the time on looking for garbage
gc.disable()  # until all tests are collected, which live as long as the process

# Threads that would go on until the process ends: steps are tried with more care where others run Python.
sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
if find_spec("tqdm") is not None:  # which torch's tracers show their progress with
    from tqdm import tqdm

    tqdm.monitor_interval = 0

# Two processes run the tests on two cores; tests of shared work set threads of their own.
torch.set_num_threads(1)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    _those_who_hand_out_tests_change_nothing()


def _those_who_hand_out_tests_change_nothing():
    """Where a step seems to change something while other threads run, they are watched for 0.02 s and more,
    and the step is tried again."""
    from stepnet.compiler.reads import undo

    theirs = sys._current_frames().keys() - {threading.get_ident()}
    undo._threads = lambda: sys._current_frames().keys() - theirs


def pytest_runtest_protocol(item, nextitem):
    """A process that runs tests for another one tells it of a setup and a teardown where they fail or take
    long, and not when a test begins and ends: most tests take no longer than such messages."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed or report.duration > 0.5:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """Each test draws the same numbers. Settings of the process that it changes are put back. A file says as
    `BACKEND` what runs its recurrences; those that test other things than that are run by the plain loop, and
    those of files and streams by torch ops, which need no build, but in `make fuzz`. A mode of torch
    that outlives what entered it would see all calls."""
    import stepnet

    torch.default_generator.manual_seed(0)  # torch.manual_seed keeps the stack of each call for other devices
    settings = [(get(), get, put) for get, put in (*SETTINGS, (stepnet.get_backend, stepnet.set_backend))]
    stepnet.set_backend(getattr(request.module, "BACKEND", None) or _unsaid(request))
    with signal_stack.kept():
        yield
    for before, get, put in settings:
        if get() != before:
            put(before)
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


@pytest.fixture(scope="module", autouse=True)
def _around_a_file(request):
    """One fixture, for each costs every test some time. What 12,000 tests, torch and what it imports are made
    of lives as long as the process: collections of garbage pass it by."""
    allocated, collections, _ = gc.get_count()
    if allocated > MANY or collections:
        gc.collect()
        gc.freeze()
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as around:
        _nothing_is_timed(request, patched)
        _plans_are_made_anew(request, patched)
        # Where generated C is not what is tested, `make fuzz` alone has it optimised; a file says
        # `OPTIMISED = True` or `False` of itself.
        optimised = getattr(request.module, "OPTIMISED", _is_under(request.path, OPTIMISED))
        if not (optimised or request.config.getoption("exhaustive")):
            around.enter_context(in_a_hurry())
        _auto_builds_nothing(request, patched)
        yield


def _nothing_is_timed(request, patched):
    """Executors are as fast as each other, so that the first one that accepts a step runs it, on a busy
    machine too, and no look at a step takes long. A file says `TIMED = True` to have them timed."""
    if not getattr(request.module, "TIMED", False):
        from stepnet.engine import executor_choice, open_steps, refused_steps

        patched.setattr(executor_choice, "stopwatch", lambda call: 1.0)
        patched.setattr(open_steps, "clock", lambda: 0.0)
        patched.setattr(refused_steps, "_LONG", float("inf"))


def _auto_builds_nothing(request, patched):
    """A file whose subject is not generated C says `BUILDS = False`: `auto` goes by torch ops, which need no
    build, but in `make fuzz`."""
    if not (getattr(request.module, "BUILDS", True) or request.config.getoption("exhaustive")):
        from stepnet.executors import registry
        from stepnet.executors.torch_ops.executor import TORCH_OPS

        patched.setitem(registry._tried, registry.AUTO, (TORCH_OPS,))


def _plans_are_made_anew(request, patched):
    """Where the compiler is tested, each file records each step itself; its executors share what is recorded.
    All other tests may read the plan that an earlier one left in the folder of this run; as with every plan,
    its numbers are first held against the plain loop. A file says `PLANS_ON_DISK = True` to read that folder
    in any case, `False` to record each step anew."""
    on_disk = getattr(request.module, "PLANS_ON_DISK", None)
    if on_disk is False or (on_disk is None and _is_under(request.path, MADE_ANEW)):
        from stepnet.executors import plan_files

        kept = {}
        patched.setattr(plan_files, "read", kept.get if on_disk is None else lambda key: None)
        patched.setattr(plan_files, "write", kept.__setitem__)


def _unsaid(request):
    if _is_under(request.path, PLAIN):
        return "naive"
    exhaustive = request.config.getoption("exhaustive")
    return "eager" if _is_under(request.path, EAGER) and not exhaustive else "auto"


@functools.cache
def _is_under(path, names):
    return any(path.is_relative_to(TESTS / name) for name in names)
