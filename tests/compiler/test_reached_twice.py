"""What a step comes by in more than one way, or by code of Python's, is read and put back as the plain loop
has it."""

from __future__ import annotations

import contextlib
import functools
import math
import string
import types
import warnings

import pytest
import torch
import torch.nn.functional as F

from stepnet import recurrent
from stepnet.errors import SlowPathWarning
from ways_to_read import DTYPE, UNDO, D

PACKAGE = types.ModuleType("package_of_the_test")
PACKAGE.settings = types.ModuleType("package_of_the_test.settings")
PACKAGE.settings.more = types.ModuleType("package_of_the_test.settings.more")
for _module in (PACKAGE.settings, PACKAGE.settings.more):
    _module.__dict__.update(gain=2.0, bias=3.0)


@pytest.fixture(autouse=True)
def _undone():
    yield
    while UNDO:
        UNDO.pop()()


def results(step, backend):
    x = torch.linspace(-1, 1, 4 * D, dtype=DTYPE).view(4, 1, D)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        return recurrent(step, x, torch.ones(1, D, dtype=DTYPE), backend=backend)


class Changes:
    """Each gives a step, and changes of what it reads."""

    def module_in_a_module_asked_by_three():
        def first(x):
            return x * PACKAGE.settings.more.gain

        def second(x):
            return x * PACKAGE.settings.bias

        def third(x):
            return x * PACKAGE.settings.more.bias

        return lambda x, h: (first(x) + second(x) + third(h), torch.tanh(h)), [
            lambda: setattr(PACKAGE.settings.more, "bias", 9.0),
            lambda: setattr(PACKAGE.settings, "bias", 7.0),
        ]  # fmt: skip

    def module_within_torch_asked_by_two():
        patch_new(torch, "of_the_test", PACKAGE.settings)

        def first(x):
            return x * torch.of_the_test.gain

        def second(x):
            return x * torch.of_the_test.bias

        return lambda x, h: (first(x) + second(h), torch.tanh(h)), [
            lambda: setattr(PACKAGE.settings, "bias", 8.0), lambda: setattr(PACKAGE.settings, "gain", 7.0)
        ]  # fmt: skip

    def name_that_a_module_of_python_did_not_hold():
        return lambda x, h: (x * getattr(math, "of_the_test", 1.0), torch.tanh(h)), [
            lambda: patch_new(math, "of_the_test", 3.0), lambda: delattr(math, "of_the_test")
        ]  # fmt: skip

    def name_that_torch_did_not_hold():
        return lambda x, h: (x * (F.of_the_test if hasattr(F, "of_the_test") else 1.0), torch.tanh(h)), [
            lambda: patch_new(F, "of_the_test", 3.0), lambda: delattr(F, "of_the_test")
        ]  # fmt: skip

    def attribute_of_a_function_of_torch():
        return lambda x, h: (x * getattr(F.relu, "of_the_test", 1.0), torch.tanh(h)), [
            lambda: patch_new(F.relu, "of_the_test", 3.0), lambda: delattr(F.relu, "of_the_test")
        ]  # fmt: skip

    def attribute_of_a_function_of_torch_imported_alone():
        relu = F.relu
        return lambda x, h: (x * getattr(relu, "of_the_test", 1.0), torch.tanh(h)), [
            lambda: patch_new(F.relu, "of_the_test", 3.0), lambda: delattr(F.relu, "of_the_test")
        ]  # fmt: skip


class Effects:
    """Each gives a step that changes objects, and what tells what became of them."""

    def object_within_a_context_of_contextlib():
        counter = Counter()
        context = contextlib.contextmanager(counter.counted)

        def step(x, h):
            with context() as count:
                return x * count, torch.tanh(h)

        return step, lambda: counter.count

    def list_within_a_context_of_contextlib():
        collected = []

        def collecting(held):
            held.append(1)
            yield len(held)

        context = contextlib.contextmanager(functools.partial(collecting, collected))

        def step(x, h):
            with context() as count:
                return x * count, torch.tanh(h)

        return step, lambda: collected

    def decorator_of_contextlib():
        around = Around()

        @around
        def scaled(x):
            return x * 2.0

        return lambda x, h: (scaled(x), torch.tanh(h)), lambda: around.count

    def decorator_of_contextlib_named_too():
        around = Around()

        @around
        def scaled(x):
            return x * 2.0

        return lambda x, h: (scaled(x) * around.count, torch.tanh(h)), lambda: around.count

    def method_registered_with_functools():
        counter = Counter()
        scaled = functools.singledispatch(lambda x: x)
        scaled.register(torch.Tensor, counter.scaled)
        return lambda x, h: (scaled(x), torch.tanh(h)), lambda: counter.count

    def object_in_a_module_of_python():
        patch_new(string, "of_the_test", Counter())

        def step(x, h):
            return string.of_the_test.scaled(x), torch.tanh(h)

        return step, lambda: string.of_the_test.count

    def list_in_a_module_of_python():
        patch_new(string, "of_the_test", [])

        def step(x, h):
            string.of_the_test.append(1)
            return x * len(string.of_the_test), torch.tanh(h)

        return step, lambda: string.of_the_test


class Counter:
    count = 0

    def scaled(self, x):
        self.count += 1
        return x * self.count

    def counted(self):
        self.count += 1
        yield self.count


class Around(contextlib.ContextDecorator):
    count = 0

    def __enter__(self):
        self.count += 1

    def __exit__(self, *raised):
        pass


def patch_new(owner, name, value):
    UNDO.append(lambda: vars(owner).pop(name, None))
    setattr(owner, name, value)


CHANGES = {k: v for k, v in vars(Changes).items() if isinstance(v, types.FunctionType)}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name):
    step, changes = CHANGES[name]()
    before = None
    for change in (lambda: None, *changes):
        change()
        expected = results(step, "naive")
        for _ in range(2):
            torch.testing.assert_close(results(step, "auto"), expected, rtol=0, atol=1e-12)
        assert before is None or not torch.equal(before[0], expected[0])
        before = expected


EFFECTS = {k: v for k, v in vars(Effects).items() if isinstance(v, types.FunctionType)}


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_are_those_of_the_plain_loop(name):
    told = []
    for backend in ("auto", "naive"):
        step, effect = EFFECTS[name]()
        found = [results(step, backend)[0].tolist() for _ in range(2)]
        told.append((found, effect()))
        while UNDO:
            UNDO.pop()()
    assert told[0] == told[1]
