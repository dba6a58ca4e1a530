"""What code may come by without naming it is part of a step's key, or the key says that it does not tell all.

Only keys are held against each other here, which takes no compiler; tests/compiler/test_reads.py runs the
steps of tests/ways_to_read.py.
"""

from __future__ import annotations

import abc
import array
import atexit
import collections
import decimal
import functools
import numbers
import sys
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn, set_default_dtype

from key_changes import changes_are_seen
from stepnet.compiler.reads import reach as walks
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.undo import Snapshot

PLANS_ON_DISK = False  # keys alone tell steps apart

GAIN = 2.0
_halved = functools.lru_cache(lambda n: n * 0.5)


class Ways:
    """Each gives a step and a change after which it gives something else."""

    def text_of_an_object():
        class Config:
            gain = 2.0

            def __repr__(self):
                return str(self.gain)

        config = Config()
        return lambda x, h: x * float(f"{config}"), lambda: setattr(config, "gain", 3.0)

    def text_by_a_sign():
        class Config:
            gain = 2.0

            def __str__(self):
                return str(self.gain)

        config, form = Config(), "%s"
        return lambda x, h: x * float(form % config), lambda: setattr(config, "gain", 3.0)

    def text_of_a_module():
        class Step(nn.Module):
            gain = 2.0

            def extra_repr(self):
                return str(self.gain)

            def forward(self, x, h):
                return x * len(str(self)), h

        step = Step()
        return step, lambda: setattr(step, "gain", 300.0)

    def item_of_a_class():
        class Table:
            held = {"a": 2.0}  # noqa: RUF012

            def __class_getitem__(cls, key):
                return cls.held[key]

        return lambda x, h: x * Table["a"], lambda: Table.held.update(a=3.0)

    def classes_beneath_a_class():
        class Base: ...

        class Rule(Base):
            gain = 2.0

        return lambda x, h: x * sum(c.gain for c in Base.__subclasses__()), lambda: setattr(Rule, "gain", 3.0)

    def arguments_of_a_pattern():
        space = {"point": types.SimpleNamespace}
        source = (
            "class Point:\n    __match_args__ = ('a',)\n"
            "point = Point()\npoint.a, point.b = 2.0, 3.0\n"
            "def step(x, h):\n    match point:\n        case Point(gain):\n            return x * gain, h\n"
        )
        exec(source, space)
        return space["step"], lambda: setattr(space["point"], "a", 4.0)

    def order_of_a_pattern():
        step, _ = Ways.arguments_of_a_pattern()
        return step, lambda: setattr(step.__globals__["Point"], "__match_args__", ("b",))

    def name_of_a_function():
        def act(x):
            return x

        return lambda x, h: x * len(act.__name__), lambda: setattr(act, "__name__", "other")

    def text_beside_a_function():
        def act(x):
            """2.0"""

        return lambda x, h: x * float(act.__doc__), lambda: setattr(act, "__doc__", "3.0")

    def name_of_a_class():
        class Part: ...

        part = Part()
        return lambda x, h: x * len(type(part).__name__), lambda: setattr(Part, "__name__", "Other")

    def text_beside_a_class():
        class Part:
            """2.0"""

        return lambda x, h: x * float(Part.__doc__), lambda: setattr(Part, "__doc__", "3.0")

    def classes_registered():
        class Rule(abc.ABC): ...  # noqa: B024

        part = types.SimpleNamespace()
        return lambda x, h: x * isinstance(part, Rule), lambda: Rule.register(types.SimpleNamespace)

    def numbers_registered():
        class Own: ...

        own = Own()
        return lambda x, h: x * isinstance(own, numbers.Number), lambda: numbers.Number.register(Own)

    def package_of_a_module_imported_inside():
        package, inner = (
            types.ModuleType("package_of_the_test"),
            types.ModuleType("package_of_the_test.inner"),
        )
        package.inner, package.gain = inner, 2.0
        sys.modules.update({package.__name__: package, inner.__name__: inner})

        def step(x, h):
            import package_of_the_test.inner

            return x * package_of_the_test.gain, h

        return step, lambda: setattr(package, "gain", 3.0)

    def module_imported_from_beside():
        package, inner = (
            types.ModuleType("package_of_the_test"),
            types.ModuleType("package_of_the_test.inner"),
        )
        other = types.ModuleType("inner")
        inner.gain, other.gain = 2.0, 5.0
        sys.modules.update({package.__name__: package, inner.__name__: inner, "inner": other})
        space = {"__package__": "package_of_the_test"}
        exec("def step(x, h):\n    from .inner import gain\n    return x * gain, h", space)
        return space["step"], lambda: setattr(inner, "gain", 3.0)

    def index_in_a_slice():
        class Size:
            def __init__(self, rows):
                self.rows = rows

            def __index__(self):
                return self.rows

            def __repr__(self):
                return "size"

        size = Size(1)
        part = slice(size)
        return lambda x, h: (x[:, part], h), lambda: setattr(size, "rows", 2)

    def attribute_of_a_partial():
        part = functools.partial(max, 1)
        part.gain = 2.0
        return lambda x, h: x * part.gain, lambda: setattr(part, "gain", 3.0)

    def partial_of_ones_own():
        class Part(functools.partial):
            gain = 2.0

            def __call__(self, x):
                return x * self.gain

        part = Part(max)
        return lambda x, h: part(x), lambda: setattr(Part, "gain", 3.0)

    def object_made_by_its_type():
        part = Part()
        return lambda x, h: x * type(part)().gain, lambda: set_gain(3.0)

    def object_made_by_its_class():
        part = Part()
        return lambda x, h: x * part.new().gain, lambda: set_gain(3.0)

    def object_made_by_a_class_method():
        part = Part()
        return lambda x, h: x * part.made().gain, lambda: set_gain(3.0)

    def missing_items_of_ones_own_dict():
        class Table(collections.defaultdict): ...

        gain = [2.0]
        table = Table(lambda: gain[0])
        return lambda x, h: x * table.pop("a", table["a"]), lambda: gain.append(gain.pop() + 1)

    def order_of_a_dict():
        table = collections.OrderedDict(a=2.0, b=3.0)
        return lambda x, h: x * next(iter(table.values())), lambda: table.move_to_end("a")

    def attribute_of_a_dict():
        table = collections.OrderedDict()
        table.gain = 2.0
        return lambda x, h: x * table.gain, lambda: setattr(table, "gain", 3.0)

    def room_of_a_deque():
        kept = [collections.deque(maxlen=2)]
        return lambda x, h: x * kept[0].maxlen, lambda: kept.__setitem__(0, collections.deque(maxlen=3))

    def type_of_numbers():
        kept = [array.array("i", [1])]
        return lambda x, h: x * kept[0][0], lambda: kept.__setitem__(0, array.array("f", bytes(kept[0])))

    def parts_met_by_apply():
        class Leaf(nn.Module):
            gain = 2.0

        class Step(nn.Module):
            def forward(self, x, h):
                kept = []
                self.apply(lambda part: kept.append(part.gain) if part is not self else None)
                return x * kept[0], h

        step, leaf = Step(), Leaf()
        step.add_module("unnamed", leaf)
        return step, lambda: setattr(leaf, "gain", 3.0)

    def attribute_of_another_owner():
        outer, inner = types.SimpleNamespace(), types.SimpleNamespace(gain=2.0)
        outer.inner = inner

        def change():
            del inner.gain
            outer.gain = 2.0

        return lambda x, h: x * (outer.gain if len(vars(outer)) > 1 else outer.inner.gain), change

    def slot_of_another_owner():
        class Slotted:
            __slots__ = ("gain", "inner")

        outer, inner = Slotted(), Slotted()
        outer.inner, inner.gain = inner, 2.0

        def step(x, h):
            try:
                return x * outer.gain, h
            except AttributeError:
                return x * outer.inner.gain * 3, h

        def change():
            del inner.gain
            outer.gain = 2.0

        return step, change

    def attribute_of_a_module_that_answers():
        module = types.ModuleType("module_of_the_test")
        module.__getattr__ = lambda name: 2.0
        return lambda x, h: x * module.gain, lambda: setattr(module, "gain", 3.0)

    def value_of_a_thread():
        local = threading.local()
        local.gain = 2.0
        return lambda x, h: x * local.gain, lambda: setattr(local, "gain", 3.0)


def modules():
    return types.ModuleType("package_of_the_test"), types.ModuleType("package_of_the_test.inner")


class Part:
    def __init__(self):
        self.gain = GAIN

    def new(self):
        return self.__class__()

    @classmethod
    def made(cls):
        return cls()


def set_gain(value):
    globals()["GAIN"] = value


WAYS = {k: v for k, v in vars(Ways).items() if isinstance(v, types.FunctionType)}


@pytest.fixture(autouse=True)
def _as_before():
    yield
    set_gain(2.0)
    for name in ("package_of_the_test", "package_of_the_test.inner", "inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", WAYS)
def test_a_change_is_seen(name):
    changes_are_seen(*WAYS[name]())


def test_what_was_walked_before_tells_nothing():
    """Names that other code gave to attributes are none of a step that reaches this code no more."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.everything = sys.modules

        def forward(self, x, h):
            return torch.tanh(x), h

    step = Step()
    before = reach(step)
    hook = step.register_forward_hook(lambda module, x, out: out if module.everything else None)
    assert "sys.modules" in reach(step).refused
    hook.remove()
    for other in (step, Step()):
        after = reach(other)
        assert after.refused is None
        assert after.key == before.key


@pytest.mark.parametrize(
    "step",
    [
        lambda x, h: (x + (torch.manual_seed(3) and torch.rand_like(x)), h),
        lambda x, h: (x, open("a", "a").write("x") and h),  # noqa: SIM115
        lambda x, h: (x, np.save("a", x) or h),
        lambda x, h: (x, atexit.register(print) and h),
        lambda x, h: (x, sys.setrecursionlimit(1000) or h),
        lambda x, h: (x, set_default_dtype(torch.float64) or h),
        lambda x, h: (x, warnings.simplefilter("ignore") or h),
        lambda x, h: (x * decimal.getcontext().prec, h),
        lambda x, h: (x * _halved(2) * _halved.cache_info().hits, h),
    ],
    ids=lambda step: step.__code__.co_names[-1],
)
def test_what_no_run_leaves_as_it_was_is_not_tried(step):
    assert reach(step).refused is not None
    assert reach(lambda x, h: (x * _halved(2), h)).refused is None


def _raising_kind(kind):
    """A class whose objects raise wherever they are asked."""

    def raises(*_):
        raise ValueError

    asked = (
        "__eq__ __hash__ __bool__ __len__ __iter__ __getitem__ __contains__ __repr__ copy keys items values"
    )
    return type("Part", (kind,), dict.fromkeys(asked.split(), raises))


def _raising(kind, content):
    return _raising_kind(kind)(content)


class Strange:
    """Objects whose own class raises where it is asked: no call ends by them."""

    def dict_of_its_own():
        class Part:
            @property
            def __dict__(self):
                raise ValueError

        return Part()

    def class_that_tells_nothing():
        class Meta(type):
            def __getattribute__(cls, name):
                raise ValueError

        class Part(metaclass=Meta): ...

        return Part()

    def class_that_is_not_compared():
        class Meta(type):
            __hash__ = type.__hash__

            def __eq__(cls, other):
                raise ValueError

        class Part(metaclass=Meta): ...

        return Part()

    def object_that_is_not_compared():
        class Part:
            def _raise(self, *_):
                raise ValueError

            __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _raise

        return Part()

    def list_that_raises():
        return _raising(list, [1])

    def tuple_that_raises():
        return _raising(tuple, [1])

    def set_that_raises():
        return _raising(set, [1])

    def dict_that_raises():
        return _raising(dict, {"a": 1})

    def ordered_dict_that_raises():
        return _raising(collections.OrderedDict, {"a": 1})

    def deque_that_raises():
        return _raising(collections.deque, [1])

    def array_that_raises():
        return np.ones(2).view(_raising_kind(np.ndarray))

    def masked_number():
        return np.ma.masked

    def proxy_of_what_raises():
        return types.MappingProxyType(_raising(dict, {"a": 1}))


@pytest.mark.parametrize("name", [name for name in vars(Strange) if not name.startswith("_")])
def test_strange_objects(name):
    part = getattr(Strange, name)()
    table = {"a": part}
    whole = reach(lambda x, h: (table["a"] and part and x, h), everything=True)
    assert not Snapshot(whole.holders).changed()
    assert (whole.refused is not None) == (name in ("dict_of_its_own", "class_that_tells_nothing"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", ["function", "module"])
def test_what_torch_jit_compiled_is_left_to_the_plain_loop(made):
    """It is a program of its own, which a trace sees as other calls each time until it is optimised."""
    scripted = torch.jit.trace(torch.tanh if made == "function" else nn.Tanh(), (torch.ones(2),))

    def step(x, h):
        return scripted(x + h), h

    refused = reach(step).refused
    assert refused is not None
    assert "torch.jit" in refused


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_to_the_plain_loop():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    def step(x, h):
        return x * nested.size(0), h

    assert reach(step).refused == "it reads a nested tensor; by its .unbind() it would be compiled"


@pytest.mark.parametrize("kind", ["tuple", "dict", "object"])
def test_however_deep_it_lies(kind):
    within = {"tuple": lambda held: (held,), "dict": lambda held: {"held": held}, "object": Link}[kind]
    weight, end = torch.ones(2), Link(0.5)
    held = [end, weight]
    for _ in range(1200):  # more calls in each other than Python has room for
        held = within(held)

    def step(x, s):
        return x, s * len(held.held if type(held) is Link else held)

    first = reach(step)
    assert first.complete
    assert first.refused is None
    assert first.tensors == [weight]
    assert reach(step).key == first.key
    end.held = 0.25
    assert reach(step).key != first.key


class Link:
    def __init__(self, held):
        self.held = held


def test_a_module_that_functions_import_is_walked_once_in_a_walk(monkeypatch):
    """Each function of a chain imports the module that holds them all."""
    chain = [f"def f{k}(x):\n    import chained\n    return chained.f{k + 1}(x)\n" for k in range(20)]
    module = types.ModuleType("chained")
    exec(compile("".join(chain) + "def f20(x):\n    return x\n", "chained.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "chained", module)
    made, seen = [], []

    class Walk(walks.Walk):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            made.append(self)

        def _space(self, module, names, within=None):
            seen.append(module)
            super()._space(module, names, within)

    monkeypatch.setattr(walks, "Walk", Walk)
    before = reach(module.f0).key
    assert 0 < seen.count(module) < len(made)
    module.f20 = lambda x: x + 1
    assert reach(module.f0).key != before
