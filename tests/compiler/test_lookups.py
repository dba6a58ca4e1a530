"""Attributes that code finds by texts, members of enums, weak references: part of a key, told whole where a
walk sees all of them.

Only keys are held against each other here, which takes no compiler.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
import weakref

import pytest
import torch
from torch import nn

from key_changes import changes_are_seen
from stepnet.compiler.reads import monkeypatches
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.unchanged import words
from stepnet.executors.c.memory import unchanged

PLANS_ON_DISK = False  # keys alone tell steps apart

GAIN = 2.0


class Held:
    gain = 2.0


def set_gain(value):
    globals()["GAIN"] = value


def _with_mode(scaled, base=enum.Enum):
    """A step with a member of an enum, and that."""
    kind = base("Kind", {"A": 1, "B": 2})

    class Step(nn.Module):
        def forward(self, x, h):
            return scaled(self, x), h

    step = Step()
    step.kind, step.scaled = kind.A, scaled
    return step, kind


class Ways:
    """Each gives a step and a change after which it gives something else."""

    def member_of_an_enum():
        step, kind = _with_mode(lambda self, x: x * self.kind.value)
        return step, lambda: setattr(step, "kind", kind.B)

    def attribute_of_a_member():
        step, kind = _with_mode(lambda self, x: x * self.kind.gain)
        kind.A.gain = 2.0
        return step, lambda: setattr(kind.A, "gain", 3.0)

    def value_of_a_member():
        step, kind = _with_mode(lambda self, x: x * self.kind.value)
        return step, lambda: setattr(kind.A, "_value_", 3)

    def members_by_value():
        step, kind = _with_mode(lambda self, x: x * type(self.kind)(9).value)
        return step, lambda: setattr(kind, "_missing_", classmethod(lambda cls, value: cls.B))

    def property_of_an_enum():
        step, kind = _with_mode(lambda self, x: x * self.kind.gain)
        kind.gain = property(lambda self: 2.0)
        return step, lambda: setattr(kind, "gain", property(lambda self: 3.0))

    def number_that_is_a_member():
        step, _ = _with_mode(lambda self, x: x * self.kind, enum.IntEnum)
        return step, lambda: setattr(step, "kind", enum.IntEnum("Kind", {"A": 7, "B": 2}).A)

    def attribute_that_may_be_there():
        step, _ = _with_mode(lambda self, x: x * getattr(self, "gain", 1.0))
        return step, lambda: setattr(step, "gain", 3.0)

    def attribute_that_is_asked_for():
        step, _ = _with_mode(lambda self, x: x * 2 if hasattr(self, "gain") else x)
        return step, lambda: setattr(type(step), "gain", 3.0)

    def attribute_by_a_name_that_is_made():
        step, _ = _with_mode(lambda self, x: x * getattr(self, f"gain{len(x.shape)}"))
        step.gain2 = 2.0
        return step, lambda: setattr(step, "gain2", 3.0)

    def attribute_by_a_name_that_was_made():
        def scaled(self, x):
            for n in range(2):
                name = f"gain{n}"
                x = getattr(self, name)(x)
            return x

        step, _ = _with_mode(scaled)
        step.gain0, type(step).gain1 = nn.Linear(2, 2), staticmethod(lambda x: x)
        return step, lambda: setattr(type(step), "gain1", staticmethod(lambda x: x * 2))

    def attribute_by_a_name_that_percent_makes():
        step, _ = _with_mode(lambda self, x: x * getattr(self, "gain%d" % len(x.shape)))  # noqa: UP031
        step.gain2 = 2.0
        return step, lambda: setattr(step, "gain2", 3.0)

    def attribute_by_a_name_that_format_makes():
        step, _ = _with_mode(lambda self, x: x * getattr(self, "gain{:d}".format(len(x.shape))))  # noqa: UP032
        step.gain2 = 2.0
        return step, lambda: setattr(step, "gain2", 3.0)

    def attribute_by_a_name_that_a_sum_makes():
        step, _ = _with_mode(lambda self, x: x * getattr(self, "gain" + str(len(x.shape))))
        step.gain2 = 2.0
        return step, lambda: setattr(step, "gain2", 3.0)

    def attribute_by_names_of_a_loop():
        def scaled(self, x):
            for name in ("one", "other"):
                x = x * getattr(self, name)
            return x

        step, _ = _with_mode(scaled)
        step.one = step.other = 2.0
        return step, lambda: setattr(step, "other", 3.0)

    def attribute_by_parts_of_a_loop():
        def scaled(self, x):
            for part in "ab":
                x = x * getattr(self, "gain_" + part)
            return x

        step, _ = _with_mode(scaled)
        step.gain_a = step.gain_b = 2.0
        return step, lambda: setattr(step, "gain_b", 3.0)

    def function_of_torch_that_an_attribute_names():
        step, _ = _with_mode(lambda self, x: getattr(torch, self.act)(x))
        step.act = "tanh"
        return step, lambda: setattr(step, "act", "relu")

    def function_of_torch_that_a_class_names():
        def scaled(self, x):
            name = self.act
            return getattr(torch, name)(x)

        step, _ = _with_mode(scaled)
        type(step).act = "tanh"
        return step, lambda: _PATCHES.setattr(torch, "tanh", torch.relu)

    def function_of_mine_that_an_attribute_names():
        step, _ = _with_mode(lambda self, x: getattr(LIBRARY, self.act)(x))
        step.act = "doubled"
        return step, lambda: _PATCHES.setattr(LIBRARY, "doubled", torch.relu)

    def attribute_that_a_list_names():
        def scaled(self, x):
            for name in self.order:
                x = x * getattr(self, name)
            return x

        step, _ = _with_mode(scaled)
        step.order, step.one, step.other = ["one", "other"], 2.0, 2.0
        return step, lambda: setattr(step, "other", 3.0)

    def list_of_names():
        step, _ = Ways.attribute_that_a_list_names()
        step.last = 3.0
        return step, lambda: step.order.append("last")

    def names_in_slots():
        class Act:
            __slots__ = ("act", "tanh")

            def of(self, x):
                return x * getattr(self, self.act)

        step, _ = _with_mode(lambda self, x: self.held.of(x))
        step.held = Act()
        step.held.act, step.held.tanh = "tanh", 2.0
        return step, lambda: setattr(step.held, "tanh", 3.0)

    def text_that_format_makes_of_an_object():
        class Size:
            def __str__(self):
                return "2"

        step, _ = _with_mode(lambda self, x: x * float("{}".format(self.size)))  # noqa: UP032
        step.size = Size()
        return step, lambda: setattr(Size, "__str__", lambda self: "3")

    def global_by_a_name_that_is_made():
        return lambda x, h: x * getattr(sys.modules[__name__], f"GAI{x}"), lambda: set_gain(3.0)

    def table_by_a_name_that_is_made():
        step, _ = _with_mode(lambda self, x: x * dict(getattr(self, f"named_{x}")())["gain"])
        step.gain = nn.Parameter(torch.ones(2))
        return step, lambda: setattr(step, "more", nn.Parameter(torch.ones(2)))

    def weak_reference():
        one, other = Held(), Held()
        step, _ = _with_mode(lambda self, x: x * (1.0 if self.weak() is one else 2.0))
        step.weak, step.held = weakref.ref(one), [one, other]
        return step, lambda: setattr(step, "weak", weakref.ref(other))

    def through_a_weak_reference():
        held = Held()
        step, _ = _with_mode(lambda self, x: x * self.weak().gain)
        step.weak, step.held = weakref.ref(held), held
        return step, lambda: setattr(held, "gain", 3.0)

    def through_a_weak_proxy():
        held = Held()
        step, _ = _with_mode(lambda self, x: x * self.weak.gain)
        step.weak, step.held = weakref.proxy(held), held
        return step, lambda: setattr(held, "gain", 3.0)

    def weak_proxy():
        one, other = Held(), Held()
        other.gain = 3.0
        step, _ = _with_mode(lambda self, x: x * self.weak.gain)
        step.weak, step.held = weakref.proxy(one), [one, other]
        return step, lambda: setattr(step, "weak", weakref.proxy(other))

    def weight_of_a_layer():
        step, _ = _with_mode(lambda self, x: self.layer(x)[0])
        step.layer = nn.GRU(2, 2)
        return step, lambda: setattr(step.layer, "weight_hh_l0", nn.Parameter(torch.ones(6, 2)))

    def way_that_tuples_are_made():
        class Pair(collections.namedtuple("Pair", "a b")):
            pass

        def step(x, h):
            return x, h._replace(a=x)

        pair = Pair(1, 2)
        return lambda x, h: step(x, pair), lambda: setattr(Pair, "_make", classmethod(lambda cls, i: pair))

    def default_of_a_tuple_that_is_replaced():
        pair = collections.namedtuple("Pair", "a b")(1.0, 2.0)
        step, _ = _with_mode(lambda self, x: x * self.pair._replace(a=x).b + self.pair._asdict()["a"])
        step.pair = pair
        return step, lambda: setattr(step, "pair", pair._replace(b=3.0))

    def fields_of_a_tuple():
        kind = collections.namedtuple("Pair", "a b")
        step, _ = _with_mode(lambda self, x: self.kind._make([x, x * 2])._asdict()["a"])
        step.kind = kind
        return step, lambda: setattr(kind, "_fields", ("b", "a"))

    def whether_torch_compiles():
        step, _ = _with_mode(lambda self, x: x * 2 if torch.jit.is_scripting() else x)
        return step, lambda: _PATCHES.setattr(torch.jit, "is_scripting", lambda: True)


LIBRARY = types.ModuleType("mine")
LIBRARY.doubled = lambda x: x * 2
_PATCHES = pytest.MonkeyPatch()
TOLD = """member_of_an_enum attribute_of_a_member members_by_value property_of_an_enum number_that_is_a_member
    attribute_that_may_be_there attribute_that_is_asked_for attribute_by_a_name_that_is_made
    attribute_by_a_name_that_was_made weak_reference weight_of_a_layer way_that_tuples_are_made
    attribute_by_a_name_that_percent_makes attribute_by_a_name_that_format_makes
    attribute_by_a_name_that_a_sum_makes attribute_by_names_of_a_loop attribute_by_parts_of_a_loop
    text_that_format_makes_of_an_object default_of_a_tuple_that_is_replaced fields_of_a_tuple
    whether_torch_compiles function_of_torch_that_an_attribute_names function_of_torch_that_a_class_names
    function_of_mine_that_an_attribute_names attribute_that_a_list_names list_of_names names_in_slots
    through_a_weak_proxy weak_proxy"""
WAYS = {k: v for k, v in vars(Ways).items() if isinstance(v, types.FunctionType)}


@pytest.fixture(autouse=True)
def _as_before():
    yield
    set_gain(2.0)
    _PATCHES.undo()


@pytest.mark.parametrize("name", WAYS)
def test_a_change_is_seen(name):
    changes_are_seen(*WAYS[name]())


def test_what_a_weak_reference_led_to_is_gone():
    held = [Held()]
    step, _ = _with_mode(lambda self, x: x if self.weak() is None else x * 2)
    step.weak = weakref.ref(held[0])
    reach(step)
    key, told = reach(step).key, words(reach(step))
    ask = None if told is None else unchanged(told.checks, told.tensors)
    assert ask is None or ask() == []
    held.clear()
    assert ask is None or ask() is None
    assert reach(step).key != key


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="one instruction loads two variables there")
def test_what_is_told_whole():
    """A step that is walked whole is not recorded at each call."""
    for name in TOLD.split():
        found = reach(WAYS[name]()[0])
        assert (name, found.open, found.refused) == (name, None, None)


def test_names_that_may_be_any_are_not_told():
    def twice(x, h, name="gain"):
        name = f"gain{h}" if h is None else name
        return getattr(x, name), h

    def of_a_loop(x, h):
        for name in ("a", "b") if h is None else h:
            x = getattr(x, name)
        return x, h

    def of_itself(x, h):
        if h is not None:
            name = "gain" + name  # noqa: F821
        return getattr(x, name), h

    def held(content, scaled=lambda self, x: getattr(torch, self.act)(x)):
        step, _ = _with_mode(scaled)
        step.act = content
        return step

    def sets(self, x):
        self.act = "ta" + "nh"
        return getattr(torch, self.act)(x)

    def rebound(self, x):
        self = x
        return getattr(torch, self.act)(x)

    def of_a_property():
        step = held("tanh", lambda self, x: getattr(torch, self.name)(x))
        type(step).name = property(lambda self: self.act[:4])
        return step

    def ways():
        yield held("tanh", sets)
        yield held("tanh", rebound)
        yield held("tanh", lambda self, x: getattr(torch, x.act)(x))
        yield held("tanh", lambda self, x: getattr(torch, (self if x is None else x).act)(x))
        yield held("manual_seed")
        yield held("__dict__")
        yield held({"tanh": 1}, lambda self, x: [getattr(torch, name)(x) for name in self.act])
        yield of_a_property()
        yield lambda x, h: (getattr(x, f"{h}_gain"), h)
        yield lambda x, h: (getattr(x, "gain" + h), h)  # h may say what the sum is
        yield lambda x, h: (getattr(x, "gra%s" % h), h)  # noqa: UP031
        yield lambda x, h: (getattr(x, "%s_gain" % h), h)  # noqa: UP031
        yield lambda x, h: (getattr(x, "gra{}".format(h)), h)  # noqa: UP032
        yield lambda x, h: (x * float("{0.gain}".format(h)), h)  # noqa: UP030, UP032
        yield lambda x, h: (x * float("{:{}}".format(h, h)), h)
        yield lambda x, h: (x * float(("{0.gain}" if h is None else "{}").format(h)), h)
        yield of_a_loop
        yield of_itself
        yield lambda x, h: (getattr(x, f"gra{h}"), h)
        yield lambda x, h: (getattr(torch, f"c{h}"), h)
        yield lambda x, h: (getattr(x, "gain" if h is None else h), h)
        yield lambda x, h: (list(map(getattr, x, h)), getattr(x, "gain"))  # noqa: B009
        yield lambda x, h: (getattr(x, "grad"), h)  # noqa: B009
        yield lambda x, h: (globals()["GAIN"] * x, h)
        yield twice

    for step in ways():
        found = reach(step)
        assert found.open is not None or found.refused is not None


def test_a_solver_put_in_the_place_of_another_is_one_that_was_replaced():
    """Of a library whose functions are known to compute, a table of them is looked at, too."""
    library = types.ModuleType("library")
    library.sizes = {"a": 1}
    library.SOLVERS = {"rk4": torch.nn.functional.relu, "euler": nn.RNNCell}
    (table,) = monkeypatches.registries([("library", library)])
    assert not [*table.replaced()]
    library.SOLVERS["rk4"] = set_gain
    assert [(patch.name, patch.held) for patch in table.replaced()] == [("library.SOLVERS.rk4", set_gain)]
