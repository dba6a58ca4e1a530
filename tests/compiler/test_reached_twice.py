"""What a step comes by in more than one way, or by code of Python's, is read and put back as the plain loop
has it."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import functools
import logging
import math
import operator
import string
import threading
import types
import warnings
import weakref

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

    def attribute_of_a_logger():
        logger = logging.Logger("of_the_test")
        logger.gain = 2.0
        return lambda x, h: (x * logger.gain, torch.tanh(h)), [lambda: setattr(logger, "gain", 3.0)]

    def what_a_context_variable_begins_with():
        held = types.SimpleNamespace(gain=2.0)
        of_context = contextvars.ContextVar("of_the_test", default=held)
        return lambda x, h: (x * of_context.get().gain, torch.tanh(h)), [lambda: setattr(held, "gain", 3.0)]


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

    def what_a_cache_of_functools_keeps():
        @functools.lru_cache(maxsize=4)
        def held(kind):
            return kind()

        counter, collected = held(Counter), held(dict)

        def step(x, h):
            held(dict)[len(held(dict))] = 1
            return held(Counter).scaled(x), torch.tanh(h)

        return step, lambda: (counter.count, len(collected))

    def what_a_cache_of_functools_will_keep():
        @functools.cache
        def held():
            return {"count": 0}

        def step(x, h):
            held()["count"] += 1
            return x * 2.0, torch.tanh(h)

        return step, lambda: held()["count"]

    def weak_reference_to_an_object_of_a_known_class():
        collected, module = collections.deque(), torch.nn.Identity()
        module.count = 0
        to = weakref.ref(collected), weakref.ref(module)

        def step(x, h):
            to[0]().append(1)
            to[1]().count += 1
            return x * 2.0, torch.tanh(h)

        return step, lambda: (list(collected), module.count)

    def argument_of_a_methodcaller():
        class Collector:
            def put(self, collected):
                collected.append(1)
                return 2.0

        collected = []
        put, collector = operator.methodcaller("put", collected), Collector()
        return lambda x, h: (x * put(collector), torch.tanh(h)), lambda: collected

    def what_a_context_variable_begins_with():
        held = []
        of_context = contextvars.ContextVar("of_the_test", default=held)

        def step(x, h):
            of_context.get().append(1)
            return x * 2.0, torch.tanh(h)

        return step, lambda: held

    def list_of_a_logger():
        logger = logging.Logger("of_the_test")
        logger.collected = []

        def step(x, h):
            logger.collected.append(1)
            return x * 2.0, torch.tanh(h)

        return step, lambda: logger.collected

    def comparison_made_a_key():
        counter = Counter()

        def compared(a, b):
            counter.count += 1
            return a - b

        key = functools.cmp_to_key(compared)
        small, large = key(1.0), key(2.0)
        return lambda x, h: (x * (2.0 if small < large else 3.0), torch.tanh(h)), lambda: counter.count

    def object_of_each_thread():
        class Own(threading.local):
            count = 0

        own = Own()

        def step(x, h):
            own.count += 1
            return x * 2.0, torch.tanh(h)

        return step, lambda: own.count

    def object_made_for_each_thread():
        class Own(threading.local):
            def __init__(self):
                self.collected = []

        own = Own()

        def step(x, h):
            own.collected.append(1)
            return x * 2.0, torch.tanh(h)

        return step, lambda: own.collected

    def class_of_an_object():
        class On:
            gain = 2.0

        class Off:
            gain = 3.0

        switch = On()

        def step(x, h):
            switch.__class__ = Off if type(switch) is On else On
            return x * switch.gain, torch.tanh(h)

        return step, lambda: switch.gain

    def argument_of_an_error():
        error = ValueError([])

        def step(x, h):
            error.args[0].append(1)
            return x * 2.0, torch.tanh(h)

        return step, lambda: error.args[0]

    def attribute_of_a_function_of_torch():
        F.relu.of_the_test = 0
        UNDO.append(lambda: vars(F.relu).pop("of_the_test"))

        def step(x, h):
            F.relu.of_the_test += 1
            return x * 2.0, torch.tanh(h)

        return step, lambda: F.relu.of_the_test

    def attribute_of_a_class_of_torch_set_by_a_helper():
        UNDO.append(lambda: delattr(torch.nn.Identity, "of_the_test"))
        torch.nn.Identity.of_the_test = 0
        module = torch.nn.Identity()

        def count(found):
            type(found).of_the_test = type(found).of_the_test + 1

        def applied(x):
            return module(x)

        def step(x, h):
            y = applied(x)
            count(module)
            return y, torch.tanh(h)

        return step, lambda: torch.nn.Identity.of_the_test


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
        told.append((found, copy.copy(effect())))
        while UNDO:
            UNDO.pop()()
    assert told[0] == told[1]
