"""What a step's code leads to without a name: what Python calls for it, what the classes of descriptors
compute, and what torch finds by its own code, in methods of the user's or in tables."""

from __future__ import annotations

import collections
import collections.abc
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.distributions import kl
from torch.distributions.constraints import real

from stepnet import recurrent
from stepnet.compiler.reads.functions_set import functions_set
from stepnet.compiler.reads.reach import reach

DTYPE, D = torch.float64, 3
PLANS_ON_DISK = False  # keys tell steps apart
GAIN = 2.0


class Keyed:
    """No dict, but a dict can be made of it."""

    def keys(self):
        return ["a"] if GAIN > 2 else ["b"]

    def __getitem__(self, key):
        return {"a": 1.5, "b": 0.5}[key]


class Scaled(property):
    def __get__(self, instance, owner=None):
        return super().__get__(instance, owner) * GAIN


class ScaledOfClass(classmethod):
    def __get__(self, instance, owner=None):
        found = super().__get__(instance, owner)
        return lambda: found() * GAIN


class ScaledStatic(staticmethod):
    def __get__(self, instance, owner=None):
        return lambda: self.__func__() * GAIN


class ScaledOnce(functools.cached_property):
    def __get__(self, instance, owner=None):
        return self.func(instance) * GAIN


class Described:
    scaled = Scaled(lambda self: 1.5)
    of_class = ScaledOfClass(lambda cls: 1.5)
    static = ScaledStatic(lambda: 1.5)
    once = ScaledOnce(lambda self: 1.5)


class Settable:
    @property
    def number(self):
        return self._held

    @number.setter
    def number(self, value):
        self._held = value * GAIN


class Of(collections.abc.Set):
    def __init__(self, items):
        self.items = list(items)

    def __contains__(self, item):
        return item in self.items

    def __iter__(self):
        yield from self.items

    def __len__(self):
        return len(self.items)

    @classmethod
    def _from_iterable(cls, items):
        return cls([item * GAIN for item in items])


class Got(dict):
    def get(self, key, default=None):
        return self[key] * GAIN if key in self else default


class Feeds(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return super()._ff_block(x) * GAIN


class Convolves(nn.Conv1d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input * GAIN, weight, bias)


class Called(nn.Linear):
    def _call_impl(self, *args, **kwargs):
        return self.forward(args[0] * GAIN)


class Transforms(distributions.Transform):
    domain = codomain = real
    bijective = True

    def _call(self, x):
        return x * GAIN

    def _inverse(self, y):
        return y / GAIN


class Special(distributions.Normal):
    @property
    def variance(self):
        return self.scale * GAIN


class Divergent(distributions.Normal):
    pass


def _divergence(p, q):
    return (p.loc - q.loc) * GAIN


@pytest.fixture(autouse=True)
def registered():
    """Divergences of the tests' own, while one runs."""
    before = dict(kl._KL_REGISTRY)
    distributions.register_kl(Divergent, Divergent)(_divergence)
    yield
    for pair in kl._KL_REGISTRY.keys() - before.keys():
        del kl._KL_REGISTRY[pair]
    kl._KL_MEMOIZE.clear()


def matched(held):
    match held:
        case {"a": number}:
            return number
    return 0.5


def keyed(a=1.0, b=2.0):
    return a * b


def updated(held):
    found = {}
    found.update(held)
    return sum(found.values())


def joined(held):
    found = {}
    found |= held
    return sum(found.values())


def own_object():
    made = Settable()
    made.number = 1.5
    return made.number


unbound = staticmethod(lambda: GAIN)
OBJECT, KEYED, GOT = Described(), Keyed(), Got(a=1.5)
LAYER = Feeds(D, 1, 4, dropout=0.0, batch_first=True, dtype=DTYPE)
CONVOLUTION, LINEAR = Convolves(1, 1, 1, dtype=DTYPE), Called(D, D, dtype=DTYPE)
TRANSFORM = Transforms()
ONE = torch.ones(D, dtype=DTYPE)

READS = {
    "keys of what is given by name": lambda x: x * keyed(**KEYED),
    "keys of what a dict is made of": lambda x: x * sum(dict(KEYED).values()),
    "keys of what a dict is made of by stars": lambda x: x * sum({**KEYED}.values()),
    "keys of an update": lambda x: x * updated(KEYED),
    "keys of a union": lambda x: x * joined(KEYED),
    "get of a pattern": lambda x: x * matched(GOT),
    "class of a property": lambda x: x * OBJECT.scaled,
    "class of a class method": lambda x: x * OBJECT.of_class(),
    "class of a static method": lambda x: x * OBJECT.static(),
    "class of a cached property": lambda x: x * OBJECT.once,
    "setter of a property": lambda x: x * own_object(),
    "static method of no class": lambda x: x * unbound(),
    "method that a class of Python calls": lambda x: x * sum(Of([1.0, 2.0]) & Of([1.0])),
    "method that a layer calls": lambda x: LAYER(x.unsqueeze(1)).squeeze(1),
    "method that forward calls": lambda x: CONVOLUTION(x.unsqueeze(1)).squeeze(1),
    "method that every module calls": lambda x: LINEAR(x),
    "method that a transform calls": lambda x: TRANSFORM(x),
    "property that a function asks": lambda x: distributions.kl_divergence(
        Special(x, ONE, validate_args=False), distributions.Normal(ONE, ONE, validate_args=False)
    ),
    "function in a table": lambda x: distributions.kl_divergence(
        Divergent(x, ONE, validate_args=False), Divergent(ONE, ONE, validate_args=False)
    ),
}


def results(step, backend):
    """Values, final state and gradients of random rows."""
    torch.manual_seed(1)
    x = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True)
    h = torch.randn(2, D, dtype=DTYPE, requires_grad=True)
    y, final = recurrent(step, x, h, backend=backend)
    return y, final, *torch.autograd.grad(y.square().sum() + final.square().sum(), [x, h])


def held_to_plain(step):
    for _ in range(3):
        torch.testing.assert_close(results(step, "eager"), results(step, "naive"), rtol=0, atol=1e-11)


def step_of(read):
    return lambda x, h: (read(x), torch.tanh(h + x))


@pytest.fixture(autouse=True)
def _as_before():
    yield
    globals()["GAIN"] = 2.0


@pytest.mark.parametrize("name", READS)
def test_a_change_behind_what_no_name_tells(name):
    step, keys = step_of(READS[name]), set()
    for number in (2.0, 3.0, 2.5):
        globals()["GAIN"] = number
        held_to_plain(step)
        keys.add(reach(step).key)
    assert len(keys) == 3


def test_methods_that_no_run_calls_are_not_read():
    class Layer(nn.Conv1d):
        def reset_parameters(self):
            torch.manual_seed(3)
            super().reset_parameters()

        def train(self, mode=True):
            open("log", "a").write("train")  # noqa: SIM115
            return super().train(mode)

    layer = Layer(1, 1, 1)
    found = reach(lambda x, h: (layer(x.unsqueeze(1)).squeeze(1), h))
    assert (found.refused, found.open) == (None, None)


def test_the_function_of_a_cached_property():
    class Config:
        @functools.cached_property
        def gain(self):
            return 1.5

    config = Config()
    step = step_of(lambda x: x * config.gain)
    before = reach(step).key
    vars(Config)["gain"].func = lambda self: 3.0
    assert reach(step).key != before


class Registered(distributions.Gamma):
    pass


def test_what_is_registered_later():
    step = step_of(lambda x: distributions.kl_divergence(Registered(x, ONE), Registered(ONE, ONE)))
    before = reach(step).key
    distributions.register_kl(Registered, Registered)(lambda p, q: p.concentration)
    assert reach(step).key != before
    assert functions_set(set(), distributions=False) == []


def test_whether_numbers_are_written_out_is_left_to_the_plain_loop():
    weight = torch.ones(D, dtype=torch.complex128).conj()
    step = step_of(lambda x: x * (2.0 if weight.imag.is_neg() else 1.0))
    assert "is_neg" in str(reach(step).refused)


def _renamed(numbers):
    numbers.dtype.names = ("b", "a")


ARRAYS: dict[str, Any] = {
    "its strides": (lambda a: a.strides[0], lambda a: None, lambda: np.asfortranarray(np.ones((2, 2)))),
    "whether it may be written to": (
        lambda a: float(a.flags.writeable), lambda a: a.setflags(write=False), lambda: np.ones((2, 2))
    ),
    "the names of its fields": (
        lambda a: float(a["a"][0]), _renamed, lambda: np.array([(1.0, 2.0)], [("a", float), ("b", float)])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_what_an_array_tells_beside_its_numbers(name):
    read, change, made = ARRAYS[name]
    for numbers in (np.ones((2, 2)), made()) if change.__name__ == "<lambda>" else (made(),):
        step = step_of(lambda x, numbers=numbers: x * read(numbers))
        held_to_plain(step)
        change(numbers)
        held_to_plain(step)


def test_a_method_that_somebody_set_of_a_class_of_pythons(monkeypatch):
    counts = collections.Counter("aab")
    step = step_of(lambda x: x * float(counts.total()))
    held_to_plain(step)
    monkeypatch.setattr(collections.Counter, "total", lambda self: GAIN)
    held_to_plain(step)
    globals()["GAIN"] = 5.0
    held_to_plain(step)


MADE = {
    "from_numpy": torch.from_numpy,
    "as_tensor": torch.as_tensor,
    "tensor": torch.tensor,
    "asarray": torch.asarray,
    "a part": lambda numbers: torch.from_numpy(numbers)[1:],
    "from_dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("made", MADE)
def test_a_plan_keeps_numbers_of_its_own(made):
    """Two arrays of the same numbers have one plan, whatever becomes of the first."""
    function = MADE[made]

    def step_with(numbers):
        return lambda x, h: (x[:, :2] * function(numbers)[:2], torch.tanh(h + x))

    first = np.arange(3.0)
    results(step_with(first), "eager")
    first[:] = 7.0
    held_to_plain(step_with(np.arange(3.0)))
