"""What every test starts from: fixtures, in the processes that run tests (`conftest.py`)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import signal_stack
from hurry import in_a_hurry

TESTS = Path(__file__).parent
MADE_ANEW = ("compiler", "fuzz", "test_modes.py")
OPTIMISED = ("executors",)
PLAIN = ("cells", "layers", "nn", "saving", "tape")
SETTINGS = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)

gc.set_threshold(100_000, 20, 20)  # by its own count Python spends a tenth of the time on looking for garbage

# Two processes run the tests on two cores; tests of shared work set threads of their own.
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _garbage():
    """What 12,000 tests, torch and what it imports are made of lives as long as the process: collections of
    garbage pass it by."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """Each test draws the same numbers. Settings of the process that it changes are put back. A file says as
    `BACKEND` what runs its recurrences; those that test other things than that are run by the plain loop.
    A mode of torch that outlives what entered it would see all calls."""
    import stepnet

    torch.default_generator.manual_seed(0)  # torch.manual_seed keeps the stack of each call for other devices
    settings = [(get(), get, put) for get, put in (*SETTINGS, (stepnet.get_backend, stepnet.set_backend))]
    listed = any(_is_under(request.path, name) for name in PLAIN)
    stepnet.set_backend(getattr(request.module, "BACKEND", "naive" if listed else "auto"))
    with signal_stack.kept():
        yield
    for before, get, put in settings:
        if get() != before:
            put(before)
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_timed(request):
    """Executors are as fast as each other, so that the first one that accepts a step runs it, on a busy
    machine too. A file says `TIMED = True` to have them timed."""
    with pytest.MonkeyPatch.context() as patched:
        if not getattr(request.module, "TIMED", False):
            from stepnet.engine import choice

            patched.setattr(choice, "stopwatch", lambda call: 1.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def _c_is_built_in_a_hurry(request):
    """Where generated C is not what is tested, `make fuzz` alone has it optimised; a file says
    `OPTIMISED = True` or `False` of itself."""
    listed = any(_is_under(request.path, name) for name in OPTIMISED)
    if request.config.getoption("exhaustive") or getattr(request.module, "OPTIMISED", listed):
        yield
        return
    with in_a_hurry():
        yield


def _is_under(path, name):
    return path.is_relative_to(TESTS / name)


@pytest.fixture(scope="module", autouse=True)
def _plans_are_made_anew(request):
    """Where the compiler is tested, each file records each step itself; its executors share what is recorded.
    All other tests may read the plan that an earlier one left in the folder of this run; as with every plan,
    its numbers are first held against the plain loop. A file says `PLANS_ON_DISK = True` to read that folder
    in any case, `False` to record each step anew."""
    compiles = any(_is_under(request.path, name) for name in MADE_ANEW)
    on_disk = getattr(request.module, "PLANS_ON_DISK", None)
    with pytest.MonkeyPatch.context() as patched:
        if on_disk is False or (on_disk is None and compiles):
            from stepnet.executors import plan_files

            kept = {}
            patched.setattr(plan_files, "read", kept.get if on_disk is None else lambda key: None)
            patched.setattr(plan_files, "write", kept.__setitem__)
        yield
