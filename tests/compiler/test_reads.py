"""Whatever a step's Python reads may change between two calls: the second gives what the plain loop gives.

A table of the ways in which code can come by a value; each row makes a step and changes. After each change
the step is run again, by a plan, and held against the plain loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import inspect
import linecache
import os
import re
import sys
import tempfile
import threading
import types
import warnings
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
import torch

import ways_to_read
from covering import every
from outcomes import of_sequences
from stepnet import recurrent
from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.reads.kinds import Names
from stepnet.compiler.reads.reach import reach
from stepnet.errors import SlowPathWarning
from ways_to_read import CONTEXT, DTYPE, SETTINGS, UNDO, WAYS, D, set_global

LOOP = asyncio.new_event_loop()
LOOP.close()
PLANS_ON_DISK = False  # each change is seen with nothing known before


@pytest.fixture(autouse=True)
def _as_before():
    token, before = CONTEXT.set(2.0), ways_to_read.GLOBAL
    yield
    CONTEXT.reset(token)
    set_global(before)
    os.environ.pop("OF_THE_TEST", None)
    sys.modules.pop("settings_of_the_test", None)
    while UNDO:
        UNDO.pop()()


class More:
    """More ways in which a step's code can come by a value, and changes of it."""

    def modules_inside_a_module():
        """Each function asks them for other names."""
        SETTINGS.inner, SETTINGS.other = types.ModuleType("inner"), types.ModuleType("other")
        SETTINGS.inner.scale, SETTINGS.inner.gain, SETTINGS.other.inner = 2.0, 3.0, SETTINGS.inner

        def scaled(x):
            return x * SETTINGS.inner.scale

        def gained(h):
            inner = SETTINGS.other
            return h * inner.inner.gain

        return lambda x, h: (scaled(x), torch.tanh(gained(h))), [
            lambda: setattr(SETTINGS.inner, "gain", 5.0),
            lambda: setattr(SETTINGS.inner, "scale", 7.0),
        ]

    def setting_of_autocast_that_is_off():
        def step(x, h):
            return x * (2.0 if torch.get_autocast_dtype("cpu") == torch.float16 else 1.0), torch.tanh(h)

        def turn():
            torch.set_autocast_dtype("cpu", torch.float16)
            UNDO.append(lambda: torch.set_autocast_dtype("cpu", torch.bfloat16))

        return step, [turn]

    def autocast_of_another_device():
        def step(x, h):
            return x * (2.0 if torch.is_autocast_enabled("cuda") else 1.0), torch.tanh(h)

        def turn():
            torch.set_autocast_enabled("cuda", True)
            UNDO.append(lambda: torch.set_autocast_enabled("cuda", False))

        return step, [turn]

    def copy_of_code_of_torch():
        """Equal code; what torch's reads is torch's own, what the copy reads is not."""

        def made(file):
            space = {"GAIN": 2.0}
            exec(compile("def scaled(v): return v * GAIN", file, "exec"), space)
            return space

        theirs, own = made(torch.__file__)["scaled"], made("copied.py")
        recurrent(lambda x, h: (theirs(x), h), torch.ones(1, 1, D), torch.ones(1, D), backend="eager")

        scaled = own["scaled"]
        return lambda x, h: (scaled(x), torch.tanh(h)), [lambda: own.update(GAIN=3.0)]

    def many_whole_numbers():
        many = list(range(5000))
        return lambda x, h: (x * many[-1], torch.tanh(h)), [
            lambda: many.__setitem__(-1, 1), lambda: many.__setitem__(-1, True), many.reverse
        ]  # fmt: skip

    def many_floats():
        many = [2.0] * 5000
        return lambda x, h: (x * many[-1], torch.tanh(h)), [
            lambda: many.__setitem__(-1, 0.0), lambda: many.__setitem__(-1, -0.0), many.reverse
        ]  # fmt: skip

    def one_float_among_many_names():
        many = {str(i): 2.0 for i in range(500)}
        return lambda x, h: (x * many["7"], torch.tanh(h)), [lambda: many.update({"7": 3.0})]


SILENT = frozenset({"default_dtype"})  # whose change changes nothing
ALL_WAYS = WAYS | {k: v for k, v in vars(More).items() if isinstance(v, types.FunctionType)}


@pytest.mark.parametrize("name", every(3, ALL_WAYS))
def test_a_second_call_after_a_change(name):
    step, changes = ALL_WAYS[name]()
    x, h = torch.randn(5, D, dtype=DTYPE), torch.randn(3, D, dtype=DTYPE)
    before = None
    for change in (lambda: None, *changes):
        change()
        expected = of_sequences(step, x, h, "naive")
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowPathWarning)
            for _ in range(2):
                found = of_sequences(step, x, h, "eager")
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        if change is changes[0] and name not in SILENT:
            assert not all(map(torch.equal, before, expected)), "the change changes nothing"
        before = expected


def test_all_that_a_module_names_is_read_beside_a_thread_that_waits():
    """As in a notebook."""
    end, (step, _) = threading.Event(), ALL_WAYS["names_of_globals"]()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        x, h = torch.randn(5, D, dtype=DTYPE), torch.randn(3, D, dtype=DTYPE)
        found, expected = of_sequences(step, x, h, "eager"), of_sequences(step, x, h, "naive")
    finally:
        end.set()
        thread.join()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


ROWS_ASKED = {
    "contiguous": lambda x, h: (x * (2.0 if x.is_contiguous() else 3.0), torch.tanh(h)),
    "a view": lambda x, h: (x * (2.0 if x._is_view() else 3.0), torch.tanh(h)),
    "strides": lambda x, h: (x * float(x.stride(0)), torch.tanh(h)),
    "a leaf": lambda x, h: (x * (2.0 if h.is_leaf else 3.0), torch.tanh(h)),
    "memory": lambda x, h: (x * float(x.untyped_storage().nbytes()), torch.tanh(h)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("asked", ROWS_ASKED)
@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
def test_what_rows_tell_of_themselves_is_the_plain_loops(asked, axis):
    step = types.FunctionType(ROWS_ASKED[asked].__code__, globals(), "step")
    x, h = torch.randn(4, 4, D, dtype=DTYPE, requires_grad=True), torch.zeros(4, D, dtype=DTYPE)
    expected = recurrent(step, x, h, axis=axis, backend="naive")
    torch.testing.assert_close(recurrent(step, x, h, axis=axis), expected)


class Named(NamedTuple):
    h: torch.Tensor

    def moved(self, x):
        return Named(self.h + x)


@dataclasses.dataclass
class Record:
    h: torch.Tensor

    def moved(self, x):
        return Record(self.h + x)


@pytest.mark.parametrize("kind", [Named, Record])
def test_methods_of_the_classes_of_states_are_read(kind, monkeypatch):
    """No code of the step names the class; once calls are warm, too."""

    def step(x, s):
        s = s.moved(x)
        return s.h, s

    x, state = torch.ones(3, 2, D, dtype=DTYPE), kind(torch.zeros(2, D, dtype=DTYPE))
    for _ in range(6):
        assert recurrent(step, x, state)[1].h[0, 0] == 3
    for times in (2, 5):
        monkeypatch.setattr(kind, "moved", lambda self, x, times=times: kind(self.h + times * x))
        for _ in range(6):
            assert recurrent(step, x, state)[1].h[0, 0] == 3 * times


def test_names_of_arguments_are_none_of_attributes():
    """A step is open where it asks a tensor for its strides, not where a convolution is told some."""

    def told(x, h):
        return torch.conv1d(x[None], WEIGHT, stride=1, padding=0)[0], h

    def asks(x, h):
        match x:
            case torch.Tensor(grad=None):
                return x, h
        return x, h + 1

    assert reach(told).open is None
    assert reach(asks).open is not None


WEIGHT = torch.ones(1, 1, 1)


def test_a_module_is_asked_for_what_code_asks_it_for():
    """numpy finds some attributes by itself: names that code asks others for are none of those."""
    assert reach(lambda x, h: (x.saved_by_nobody(np.pi), functools.wraps(h)(h))).open is None
    assert reach(lambda x, h: (x * np.found_by_nobody, h)).open is not None


class OfSomeKind:
    def __init__(self):
        self.__dict__["kind"] = 1  # no walk sees what code like this makes

    def same(self, other):
        return other.__class__ is self.__class__

    def alike(self, other):
        return type(other) is type(self)

    def anew(self, other):
        return type(self)(), other is self


def test_classes_that_are_only_compared_are_not_called():
    """What makes an object is read where code may call the class of one, not where it holds two together."""
    some = OfSomeKind()
    made = dataclasses.make_dataclass("Made", ["size"])(1)
    assert reach(lambda x, h: (x, h * (made == made) * some.same(some))).open is None
    if sys.version_info >= (3, 11):
        assert reach(lambda x, h: (x, h * some.alike(some))).open is None
    assert reach(lambda x, h: (x, h, some.anew(some))).open is not None


def test_what_nobody_names_of_an_installed_module_is_left_alone():
    """A step tried on sample rows is undone; what torch imports as it traces is not the step's doing."""

    def step(x, h):
        return x * float(os.environ.get("OF_THE_TEST", "2")), torch.tanh(h)

    holders = reach(step, everything=True).holders
    assert any(holder is os.environ for holder in holders)
    assert not any(holder is sys.modules for holder in holders)


def test_what_python_keeps_for_itself_is_nobodys():
    """Searching and printing fill caches of the standard library, here as in any other code; imports stay."""
    mine = []

    def step(x, h):
        mine.clear()
        name = tempfile.gettempdir() + linecache.getline("none", 1) + sys.modules["torch"].__name__
        return x * len(re.split("a+", name)), torch.tanh(h)

    holders = reach(step, everything=True).holders
    spaces = [held.space for held in holders if isinstance(held, Names)]
    assert any(held is mine for held in holders)
    assert not any(held is of for held in holders for of in (re._cache, linecache.cache, sys.modules))
    assert not any(space is vars(module) for space in spaces for module in (tempfile, linecache, sys))
    key = reach(step).key
    re.compile(f"never seen {os.getpid()}")
    linecache.getline(linecache.__file__, 1)
    assert reach(step).key == key


class Hidden(asyncio.Future):
    """Has attributes, and no `__dict__` that shows them."""

    def __init__(self):
        super().__init__(loop=LOOP)


class MadeUp:
    """Its `__dict__` is what its class makes up, by code that fails."""

    @property
    def __dict__(self):
        raise RuntimeError("asked for what it holds")


@pytest.mark.parametrize(
    "kind", [Hidden, MadeUp, lambda: TypeVar("T")], ids=["hidden", "made_up", "type_variable"]
)
@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
def test_attributes_that_an_object_does_not_show(kind):
    """The step is held against what it does, or left to the plain loop, for what it changes there cannot be
    undone; the tensors beside such an object are found."""
    holder = kind()
    holder.gain, held = 2.0, [holder, torch.ones(D, dtype=DTYPE)]

    def step(x, h):
        held[0].gain += 1
        return x * held[0].gain, torch.tanh(h * held[1])

    x, h = torch.randn(5, D, dtype=DTYPE), torch.randn(3, D, dtype=DTYPE)
    assert any(tensor is held[1] for tensor in reach(step, everything=True).tensors)
    for gain in (2.0, 3.0, -1.0):
        for _ in range(2):
            found = []
            for backend in ("auto", "naive"):
                holder.gain = gain
                found.append(of_sequences(step, x, h, backend))
            torch.testing.assert_close(*found)


@pytest.mark.exhaustive
def test_steps_tried_on_a_few_rows_show_callers_nothing():
    """What saves tensors otherwise, or counts them, is for the tensors of the caller."""
    w = torch.randn(D, D, dtype=DTYPE, requires_grad=True)

    def step(x, h):
        return x, globals()["torch"].tanh(x @ w + h)  # told by trying it, at each call

    x, seen = torch.randn(4, 2, D, dtype=DTYPE), []
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(seen.append, lambda t: t):
        warnings.simplefilter("error", SlowPathWarning)
        recurrent(step, x, x[0])
    assert seen
    assert not any(t.shape[0] in (ROWS, 2 * ROWS) for t in seen)


COLLECTIONS = 0


@pytest.mark.exhaustive
def test_collections_of_garbage_change_nothing_for_a_step():
    """Who is called at each is no part of the step that is tried meanwhile."""

    def step(x, h):
        return x, globals()["torch"].tanh(x + h)

    def collected(phase, info):
        global COLLECTIONS
        COLLECTIONS += 1

    x, often = torch.randn(4, 2, D, dtype=DTYPE), gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(20, 2, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowPathWarning)
            recurrent(step, x, x[0])
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(collected)
    assert gc.isenabled()
    assert COLLECTIONS


SCALE = 2.0


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A state that its own code makes."""

    h: torch.Tensor
    n: int = 0

    def __post_init__(self):
        object.__setattr__(self, "n", self.n * SCALE)


def test_what_dataclasses_make_by_replace_is_read(monkeypatch):
    held = Scaled(torch.ones(2))

    def replaces(x, state):
        return x, dataclasses.replace(state, h=torch.tanh(x + state.h))

    def holds(x, h):
        return x * dataclasses.replace(held, n=1).n, h

    for step, given in ((replaces, [Scaled]), (holds, [])):
        found = reach(step, given)
        assert (found.open, found.refused) == (None, None)
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "SCALE", 3.0)
            assert reach(step, given).key != found.key
        with monkeypatch.context() as patch:
            patch.setattr(Scaled, "__post_init__", lambda self: None)
            assert reach(step, given).key != found.key


def test_what_binds_arguments_is_read_by_its_defaults():
    def wrapped(default):
        bind = inspect.signature(lambda x, h, by=default: (x * by, h)).bind

        def step(x, h):
            bound = bind(x, h)
            bound.apply_defaults()
            return x * bound.arguments["by"], h

        return step

    one, other = reach(wrapped(2.0)), reach(wrapped(3.0))
    assert (one.open, one.refused) == (None, None)
    assert one.key != other.key == reach(wrapped(3.0)).key
