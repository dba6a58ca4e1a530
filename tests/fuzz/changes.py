"""Random programs of "run, change something, run": what a step reads is changed between its calls.

A world holds one number or weight behind each of the ways in which code can come by a value. A step reads
some of them; each change sets one of those, or one that it does not read, in one of the ways in which it can
be set. After each the step runs by a plan and by the plain loop, which must agree in values and in gradients.
"""

from __future__ import annotations

import array
import contextvars
import dataclasses
import functools
import os
import random
import sys
import threading
import types
import typing
import warnings
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from stepnet import LoDTensor, recurrent
from stepnet.errors import SlowPathWarning, Unsupported

from . import seeds

D = 3
NAME, IMPORTED = "STEPNET_FUZZ_NUMBER", "stepnet_fuzz_settings"

# What a step writes to come by a value; `self` is the module, all else globals of its own.
READS = {
    "global": "NUMBER",
    "class attribute": "self.of_class",
    "instance attribute": "self.of_instance",
    "property": "self.doubled",
    "method": "self.method()",
    "method of an object": "OBJECT.scaled()",
    "attribute of an object": "OBJECT.value",
    "slot": "SLOTTED.value",
    "module": "MODULE.value",
    "object in a module": "MODULE.inner.value",
    "list": "LIST[1]",
    "dict": "TABLE['a']",
    "dict of lists": "TABLE['b'][0]",
    "set": "(2.0 if 'on' in FLAGS else 0.5)",
    "deque": "QUEUE[0]",
    "function attribute": "helper.value",
    "helper": "helper()",
    "default": "defaulted()",
    "closure": "closed()",
    "getattr": "getattr(self, 'of_' + KIND)",
    "globals": "globals()['NUMBER']",
    "environment": "float(os.environ[NAME])",
    "context": "CONTEXT.get()",
    "weight": "self.weight",
    "buffer": "self.shift",
    "weight in a list": "WEIGHTS[0]",
    "dynamic weight": "getattr(self, 'wei' + 'ght')",
    "mode": "(2.0 if self.training else 0.5)",
    "linear": "self.linear(x).sum(1, keepdim=True)",
    "base class": "self.of_base",
    "class method": "self.of_kind()",
    "static method": "self.static()",
    "super": "self.inherited()",
    "descriptor": "OBJECT.described",
    "metaclass": "Object.of_meta",
    "found by __getattr__": "FINDS.anything",
    "operator": "OBJECT[0]",
    "named tuple": "PAIR.first",
    "data class": "RECORD.value",
    "keyword default": "keyed()",
    "partial": "PARTIAL()",
    "wrapped": "wrapped()",
    "cached": "cached()",
    "evaluated": "eval('NUMBER')",
    "imported": "imported()",
    "thread": "LOCAL.value",
    "array": "ARRAY[0]",
    "numpy": "TABLED[1]",
    "memory": "MEMORY[0] / 2",
    "proxy": "PROXY['a']",
    "weak reference": "WEAK().value",
    "function": "torch.sigmoid(x)",
    "keys of a mapping": "keyed(**MAPPED)",
    "class of a property": "OBJECT.multiplied",
    "static method of no class": "unbound()",
    "method that a layer calls": "self.convolution(x.unsqueeze(1)).squeeze(1)",
    "requires": "(2.0 if self.weight.requires_grad else 0.5)",
    "default dtype": "(2.0 if torch.tensor(1.5).dtype == torch.float64 else 0.5)",
    "autocast dtype": "(2.0 if torch.get_autocast_dtype('cpu') == torch.float16 else 0.5)",
}

SOURCE = """
class Described:
    def __init__(self): self.number = 1.5
    def __get__(self, instance, owner): return self.number

class Meta(type):
    of_meta = 1.5

class Multiplied(property):
    def __get__(self, instance, owner=None): return super().__get__(instance, owner) * MULTIPLIED

class Mapped:
    def keys(self): return ["number"] if MAPS > 0 else []
    def __getitem__(self, key): return MAPS

class Convolution(nn.Conv1d):
    def _conv_forward(self, x, weight, bias): return super()._conv_forward(x * CONVOLVED, weight, bias)

unbound = staticmethod(lambda: UNBOUND)

class Object(metaclass=Meta):
    @Multiplied
    def multiplied(self): return 1.5
    factor = 1.0
    described = Described()
    def __init__(self): self.value = 1.5
    def scaled(self): return self.value * self.factor
    def __getitem__(self, key): return self.value * ITEM

class Finds:
    def __init__(self): self.found = {"anything": 1.5}
    def __getattr__(self, name): return self.__dict__["found"][name]

class Pair(typing.NamedTuple):
    first: float
    second: list

Record = dataclasses.make_dataclass("Record", [("value", float, 1.5)])

class Slotted:
    __slots__ = ("value",)
    def __init__(self): self.value = 1.5

def helper(): return HELPED
helper.value = 1.5

def defaulted(number=1.5): return number

def keyed(*, number=1.5): return number

def scale(a, *, b): return a * b

def of(function):
    @functools.wraps(function)
    def wrapper(): return function() * WRAPPED
    return wrapper

@of
def wrapped(): return 1.5

@functools.lru_cache
def cached(): return HELPED

def imported():
    import stepnet_fuzz_settings
    return stepnet_fuzz_settings.value

def make_closed():
    number = 1.5
    def closed(): return number
    def close(value):
        nonlocal number
        number = value
    return closed, close

closed, close = make_closed()

class Base:
    of_base = 1.5
    def inherited(self): return self.of_instance * INHERITED

class Step(Base, nn.Module):
    of_class = 1.5
    def __init__(self):
        super().__init__()
        self.of_instance = 1.5
        self.count = 0
        self.weight = nn.Parameter(torch.full((D,), 0.5, dtype=torch.float64))
        self.register_buffer("shift", torch.full((D,), 0.25, dtype=torch.float64))
        self.linear = nn.Linear(D, D, dtype=torch.float64)
        self.convolution = Convolution(1, 1, 1, dtype=torch.float64)
    @property
    def doubled(self): return self.of_instance * 2
    def method(self): return self.of_instance * METHOD
    def inherited(self): return super().inherited() * 2
    @classmethod
    def of_kind(cls): return cls.of_class
    @staticmethod
    def static(): return STATIC
    def forward(self, x, h):
        h = torch.tanh(x * ({0}) + h * ({1}))
        return h * ({2}), h
"""


class World:
    """A step made of source, and all that it may read."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.reads = [rng.choice(list(READS)) for _ in range(3)]
        module = types.ModuleType("settings")
        module.value, module.inner = 1.5, types.SimpleNamespace(value=1.5)  # pyright: ignore
        self.space: dict[str, Any] = {
            "__name__": "world",
            "torch": torch, "nn": nn, "os": os, "D": D, "NAME": NAME, "NUMBER": 1.5, "HELPED": 1.5,
            "METHOD": 1.5, "MODULE": module, "LIST": [0.0, 1.5], "TABLE": {"a": 1.5, "b": [1.5]},
            "FLAGS": {"on"},
            "QUEUE": deque([1.5, 2.5]), "KIND": "class",
            "CONTEXT": contextvars.ContextVar("number", default=1.5),
            "dataclasses": dataclasses, "functools": functools, "sys": sys, "typing": typing,
            "MULTIPLIED": 1.5, "MAPS": 1.5, "CONVOLVED": 1.5, "UNBOUND": 1.5,
            "ITEM": 1.5, "WRAPPED": 1.5, "INHERITED": 1.5, "STATIC": 1.5,
            "LOCAL": threading.local(), "ARRAY": array.array("d", [1.5]), "TABLED": np.array([0.0, 1.5]),
            "BYTES": bytearray([3, 4]), "PROXIED": {"a": 1.5},
            "WEIGHTS": [torch.full((D,), 0.5, dtype=torch.float64, requires_grad=True)],
        }  # fmt: skip
        os.environ[NAME] = "1.5"
        sys.modules[IMPORTED] = types.ModuleType(IMPORTED)
        vars(sys.modules[IMPORTED])["value"] = 1.5
        self.space["LOCAL"].value = 1.5
        self.source = SOURCE.replace("{0}", READS[self.reads[0]]).replace("{1}", READS[self.reads[1]])
        self.source = self.source.replace("{2}", READS[self.reads[2]])
        exec(self.source, self.space)
        space = self.space
        space |= {"OBJECT": space["Object"](), "SLOTTED": space["Slotted"](), "FINDS": space["Finds"]()}
        space |= {"PAIR": space["Pair"](1.5, []), "RECORD": space["Record"]()}
        space["MAPPED"] = space["Mapped"]()
        space |= {"PARTIAL": functools.partial(space["scale"], 1.5, b=1.0)}
        space |= {"MEMORY": memoryview(space["BYTES"]), "PROXY": types.MappingProxyType(space["PROXIED"])}
        space |= {"REFERENT": space["Record"](), "SIGMOID": torch.sigmoid}
        space["WEAK"] = weakref.ref(space["REFERENT"])
        self.step = self.space["Step"]()
        self.log: list[str] = []

    def change(self) -> None:
        """Set something: mostly what the step reads."""
        of_reads = [name for name in CHANGES if set(CHANGES[name][0]) & set(self.reads)]
        pool = of_reads if of_reads and self.rng.random() < 0.8 else list(CHANGES)
        name = self.rng.choice(pool)
        self.log.append(name)
        CHANGES[name][1](self, self.rng.choice([0.0, -0.0, 1.0, 1.5, 2.0, -0.5]))


def _replaced(world: World, name: str, method: Any) -> None:
    setattr(world.space["Step"], name, method)


def _random_weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(D, dtype=torch.float64))


def _cached(world: World, value: float) -> None:
    world.space["HELPED"] = value
    world.space["cached"].cache_clear()


class _Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


def _parametrized(world: World, value: float) -> None:
    if parametrize.is_parametrized(world.step.linear):
        parametrize.remove_parametrizations(world.step.linear, "weight", leave_parametrized=value > 0)
    else:
        parametrize.register_parametrization(world.step.linear, "weight", _Halved())


def _swapped(world: World) -> None:
    torch.utils.swap_tensors(world.step.weight, _random_weight())


def _another_class(world: World) -> None:
    kind = type(world.step)
    world.step.__class__ = (
        world.space["Step"]
        if kind is not world.space["Step"]
        else type("Other", (kind,), {"of_class": 0.75, "doubled": 0.25, "of_base": 0.5})
    )


def _another(kind: type, value: float) -> Any:
    made = type(kind)("Other", (kind,), {"scaled": lambda self: value})()
    made.value = value
    return made


def _in_place(tensor: Tensor, value: float) -> None:
    with torch.no_grad():
        tensor.fill_(value)


def _set(tensor: Tensor, value: float) -> None:
    with torch.no_grad():
        tensor.set_(torch.full((D,), value, dtype=torch.float64))  # pyright: ignore[reportArgumentType]


# name: (the ways of reading that it concerns, what it does)
CHANGES: dict[str, tuple[tuple[str, ...], Any]] = {
    "global": (("global", "globals", "evaluated"), lambda w, v: w.space.__setitem__("NUMBER", v)),
    "class": (("class attribute", "getattr"), lambda w, v: setattr(w.space["Step"], "of_class", v)),
    "class by instance": (("class attribute", "getattr"), lambda w, v: setattr(w.step, "of_class", v)),
    "instance": (
        ("instance attribute", "property", "method", "getattr"),
        lambda w, v: setattr(w.step, "of_instance", v),
    ),
    "property": (("property",), lambda w, v: _replaced(w, "doubled", property(lambda self: v))),
    "method": (("method",), lambda w, v: _replaced(w, "method", lambda self: v)),
    "global of a method": (("method",), lambda w, v: w.space.__setitem__("METHOD", v)),
    "object": (
        ("method of an object", "attribute of an object"),
        lambda w, v: setattr(w.space["OBJECT"], "value", v),
    ),
    "class of an object": (("method of an object",), lambda w, v: setattr(w.space["Object"], "factor", v)),
    "another object": (
        ("method of an object", "attribute of an object"),
        lambda w, v: w.space.__setitem__("OBJECT", _another(w.space["Object"], v)),
    ),
    "slot": (("slot",), lambda w, v: setattr(w.space["SLOTTED"], "value", v)),
    "module": (("module",), lambda w, v: setattr(w.space["MODULE"], "value", v)),
    "object in a module": (
        ("object in a module",), lambda w, v: setattr(w.space["MODULE"].inner, "value", v)
    ),
    "list": (("list",), lambda w, v: w.space["LIST"].__setitem__(1, v)),
    "list inserted": (("list",), lambda w, v: w.space["LIST"].insert(0, v)),
    "dict": (("dict",), lambda w, v: w.space["TABLE"].__setitem__("a", v)),
    "dict grows": (("dict",), lambda w, v: w.space["TABLE"].__setitem__(f"more {v}", v)),
    "list in a dict": (("dict of lists",), lambda w, v: w.space["TABLE"]["b"].__setitem__(0, v)),
    "set": (("set",), lambda w, v: w.space["FLAGS"].symmetric_difference_update({"on"})),
    "deque": (("deque",), lambda w, v: w.space["QUEUE"].appendleft(v)),
    "deque turned": (("deque",), lambda w, v: w.space["QUEUE"].rotate(1)),
    "function attribute": (("function attribute",), lambda w, v: setattr(w.space["helper"], "value", v)),
    "helped": (("helper",), lambda w, v: w.space.__setitem__("HELPED", v)),
    "code": (("helper",), lambda w, v: setattr(w.space["helper"], "__code__", (lambda: 0.75).__code__)),
    "default": (("default",), lambda w, v: setattr(w.space["defaulted"], "__defaults__", (v,))),
    "closure": (("closure",), lambda w, v: w.space["close"](v)),
    "kind": (("getattr",), lambda w, v: w.space.__setitem__("KIND", w.rng.choice(["class", "instance"]))),
    "environment": (("environment",), lambda w, v: os.environ.__setitem__(NAME, str(v))),
    "context": (("context",), lambda w, v: w.space["CONTEXT"].set(v)),
    "weight in place": (("weight", "dynamic weight"), lambda w, v: _in_place(w.step.weight, v)),
    "weight data": (
        ("weight", "dynamic weight"),
        lambda w, v: setattr(w.step.weight, "data", torch.randn(D, dtype=torch.float64)),
    ),
    "new weight": (("weight", "dynamic weight"), lambda w, v: setattr(w.step, "weight", _random_weight())),
    "frozen": (("weight", "dynamic weight"), lambda w, v: w.step.weight.requires_grad_(v > 0)),
    "buffer": (("buffer",), lambda w, v: setattr(w.step, "shift", torch.full((D,), v, dtype=torch.float64))),
    "buffer in place": (("buffer",), lambda w, v: _in_place(w.step.shift, v)),
    "weight in a list": (("weight in a list",), lambda w, v: w.space["WEIGHTS"].insert(0, _random_weight())),
    "mode": (("mode",), lambda w, v: w.step.train(v > 0)),
    "loaded": (
        ("weight", "linear", "buffer"),
        lambda w, v: w.step.load_state_dict({k: t * 0.5 for k, t in w.step.state_dict().items()}),
    ),
    "hook": (
        ("linear",), lambda w, v: w.step.linear.register_forward_hook(lambda module, given, out, v=v: out * v)
    ),
    "forward of a layer": (("linear",), lambda w, v: setattr(w.step.linear, "forward", lambda x, v=v: x * v)),
    "base": (("base class",), lambda w, v: setattr(w.space["Base"], "of_base", v)),
    "between": (("base class",), lambda w, v: setattr(w.space["Step"], "of_base", v)),
    "another class": (
        ("class attribute", "class method", "property", "base class"), lambda w, v: _another_class(w)
    ),
    "class of a class method": (("class method",), lambda w, v: setattr(w.space["Step"], "of_class", v)),
    "class method": (("class method",), lambda w, v: _replaced(w, "of_kind", classmethod(lambda cls: v))),
    "static": (("static method",), lambda w, v: w.space.__setitem__("STATIC", v)),
    "static method": (("static method",), lambda w, v: _replaced(w, "static", staticmethod(lambda: v))),
    "inherited": (("super",), lambda w, v: w.space.__setitem__("INHERITED", v)),
    "method of a base": (("super",), lambda w, v: setattr(w.space["Base"], "inherited", lambda self: v)),
    "descriptor": (
        ("descriptor",), lambda w, v: setattr(vars(w.space["Object"])["described"], "number", v)
    ),
    "__get__": (("descriptor",), lambda w, v: setattr(w.space["Described"], "__get__", lambda *_: v)),
    "metaclass": (("metaclass",), lambda w, v: setattr(w.space["Meta"], "of_meta", v)),
    "found": (("found by __getattr__",), lambda w, v: w.space["FINDS"].found.__setitem__("anything", v)),
    "there": (("found by __getattr__",), lambda w, v: setattr(w.space["FINDS"], "anything", v)),
    "operator": (("operator",), lambda w, v: setattr(w.space["Object"], "__getitem__", lambda self, key: v)),
    "global of an operator": (("operator",), lambda w, v: w.space.__setitem__("ITEM", v)),
    "pair": (("named tuple",), lambda w, v: w.space.__setitem__("PAIR", w.space["PAIR"]._replace(first=v))),
    "record": (("data class",), lambda w, v: setattr(w.space["RECORD"], "value", v)),
    "keyword default": (("keyword default",), lambda w, v: w.space["keyed"].__kwdefaults__.update(number=v)),
    "partial": (("partial",), lambda w, v: w.space["PARTIAL"].keywords.update(b=v)),
    "global of a wrapper": (("wrapped",), lambda w, v: w.space.__setitem__("WRAPPED", v)),
    "within a wrapper": (
        ("wrapped",),
        lambda w, v: setattr(w.space["wrapped"].__closure__[0], "cell_contents", lambda: v),
    ),
    "cached": (("cached",), _cached),
    "imported": (("imported",), lambda w, v: setattr(sys.modules[IMPORTED], "value", v)),
    "thread": (("thread",), lambda w, v: setattr(w.space["LOCAL"], "value", v)),
    "array": (("array",), lambda w, v: w.space["ARRAY"].__setitem__(0, v)),
    "numpy": (("numpy",), lambda w, v: w.space["TABLED"].__setitem__(1, v)),
    "memory": (("memory",), lambda w, v: w.space["BYTES"].__setitem__(0, int(abs(v) * 2))),
    "proxy": (("proxy",), lambda w, v: w.space["PROXIED"].__setitem__("a", v)),
    "weak reference": (("weak reference",), lambda w, v: setattr(w.space["REFERENT"], "value", v)),
    "number of a descriptor": (("class of a property",), lambda w, v: w.space.__setitem__("MULTIPLIED", v)),
    "keys of a mapping": (("keys of a mapping",), lambda w, v: w.space.__setitem__("MAPS", v)),
    "number of a static method": (
        ("static method of no class",), lambda w, v: w.space.__setitem__("UNBOUND", v)
    ),
    "number of an override": (
        ("method that a layer calls",), lambda w, v: w.space.__setitem__("CONVOLVED", v)
    ),
    "function of torch": (("function",), lambda w, v: setattr(torch, "sigmoid", lambda x, v=v: x * v)),
    "weight swapped": (("weight", "dynamic weight"), lambda w, v: _swapped(w)),
    "weight set": (("weight", "dynamic weight"), lambda w, v: _set(w.step.weight, v)),
    "frozen again": (("requires",), lambda w, v: w.step.weight.requires_grad_(v > 0)),
    "parametrized": (("linear",), _parametrized),
    "hook before": (
        ("linear",),
        lambda w, v: w.step.linear.register_forward_pre_hook(lambda module, given, v=v: (given[0] * v,)),
    ),
    "hooks gone": (("linear",), lambda w, v: w.step.linear._forward_hooks.clear()),
    "default dtype": (
        ("default dtype",), lambda w, v: torch.set_default_dtype(torch.float64 if v > 1 else torch.float32)
    ),
    "autocast dtype": (
        ("autocast dtype",),
        lambda w, v: torch.set_autocast_dtype("cpu", torch.float16 if v > 1 else torch.bfloat16),
    ),
    "what is not read": ((), lambda w, v: setattr(w.step, "count", w.step.count + 1)),
    "no gradient": ((), lambda w, v: w.step.requires_grad_(v > 0)),
}  # fmt: skip


def results(world: World, x: Tensor, h: Tensor, backend: Any) -> list[Tensor]:
    """Values, final state, and the gradients of all that wants one."""
    x, h = x.detach().requires_grad_(), h.detach().requires_grad_()
    y, final = recurrent(world.step, LoDTensor.from_lengths(x, [[2, 0, 1]]), h, backend=backend)
    wanted = [x, h, *(t for t in (*world.step.parameters(), *world.space["WEIGHTS"]) if t.requires_grad)]
    loss = (y.values * torch.arange(9.0).reshape(3, 3)).sum() + final.square().sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return [y.values.detach(), final.detach(), *grads]


def check(seed: int, backend: Any = "eager", changes: int = 5) -> str | None:
    """Run one program; what differs, with the source of its step, or None.

    Raises:
        AssertionError: a step of these, none of which does anything odd, is not compiled.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    world, default = World(rng), torch.get_default_dtype()
    x, h = torch.randn(3, D, dtype=torch.float64), torch.randn(3, D, dtype=torch.float64)
    try:
        for number in range(changes + 1):
            if number:
                world.change()
            expected = results(world, x, h, "naive")
            for again in range(2):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", SlowPathWarning)
                        found = results(world, x, h, backend)
                except Unsupported as refusal:
                    raise AssertionError(f"seed {seed}, after {world.log}: {refusal}") from refusal
                for a, b in zip(found, expected, strict=True):
                    if not torch.allclose(a, b, rtol=0, atol=1e-11, equal_nan=True):
                        return f"seed {seed}, after {world.log}, run {again}: differs\n{world.source}"
    finally:
        os.environ.pop(NAME, None)
        sys.modules.pop(IMPORTED, None)
        torch.sigmoid = world.space["SIGMOID"]
        torch.set_default_dtype(default)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    return None


if __name__ == "__main__":
    seeds.main(check, "programs")
