"""Ways in which a step's code can come by a value, and changes of it."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import os
import sys
import threading
import types

import numpy as np
import torch
from torch import nn

DTYPE = torch.float64
D = 3
GLOBAL = 2.0
CONTEXT = contextvars.ContextVar("CONTEXT", default=2.0)
SETTINGS = types.ModuleType("settings_of_the_test")


def tanh(value):
    return torch.tanh(value)


class Ways:
    """Each gives a step and the changes to make, one after the other."""

    def global_number():
        def step(x, h):
            return h * GLOBAL, torch.tanh(x + h * GLOBAL)

        return step, [lambda: set_global(3.0), lambda: set_global(-0.0), lambda: set_global(0.0)]

    def class_attribute():
        class Step(nn.Module):
            scale = 2.0

            def forward(self, x, h):
                return x * self.scale, torch.tanh(h * self.scale)

        return Step(), [lambda: setattr(Step, "scale", 3.0), lambda: delattr_and(Step, "scale", 4.0)]

    def property_of_a_class():
        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self._scale = 2.0

            @property
            def scale(self):
                return self._scale * 2

            def forward(self, x, h):
                return x * self.scale, torch.tanh(h * self.scale)

        made = Step()
        return made, [
            lambda: setattr(made, "_scale", 3.0),
            lambda: setattr(Step, "scale", property(lambda self: 7.0)),
        ]

    def helper_method():
        class Step:
            def inner(self, x):
                return x * 2

            def __call__(self, x, h):
                return self.inner(x), torch.tanh(self.inner(h))

        return Step(), [lambda: setattr(Step, "inner", lambda self, x: x * 3)]

    def globals_of_another_method():
        class Step:
            def inner(self, x):
                return x * GLOBAL

            def __call__(self, x, h):
                return self.inner(x), torch.tanh(self.inner(h))

        return Step(), [lambda: set_global(5.0)]

    def method_of_an_object_inside():
        class Config:
            def __init__(self):
                self.gain = 2.0

            def scaled(self, x):
                return x * self.gain * GLOBAL

        config = Config()

        def step(x, h):
            return config.scaled(x), torch.tanh(config.scaled(h))

        return step, [lambda: setattr(config, "gain", 3.0), lambda: set_global(7.0),
                      lambda: setattr(Config, "scaled", lambda self, x: x)]  # fmt: skip

    def static_and_class_methods():
        class Rules:
            gain = 2.0

            @staticmethod
            def one(x):
                return x * GLOBAL

            @classmethod
            def two(cls, x):
                return x * cls.gain

        def step(x, h):
            return Rules.one(x), torch.tanh(Rules.two(h))

        return step, [lambda: set_global(7.0), lambda: setattr(Rules, "gain", 3.0),
                      lambda: setattr(Rules, "one", staticmethod(lambda x: x))]  # fmt: skip

    def attribute_of_a_module():
        SETTINGS.scale = 2.0

        def step(x, h):
            return x * SETTINGS.scale, torch.tanh(h * SETTINGS.scale)

        return step, [lambda: setattr(SETTINGS, "scale", 3.0)]

    def object_inside_a_module():
        SETTINGS.inner = types.SimpleNamespace(scale=2.0, table={"a": [1.0]})

        def step(x, h):
            return x * SETTINGS.inner.scale, torch.tanh(h * SETTINGS.inner.table["a"][0])

        return step, [lambda: setattr(SETTINGS.inner, "scale", 3.0),
                      lambda: SETTINGS.inner.table["a"].__setitem__(0, 5.0)]  # fmt: skip

    def module_imported_inside():
        SETTINGS.scale = 2.0
        sys.modules["settings_of_the_test"] = SETTINGS

        def step(x, h):
            import settings_of_the_test as inside

            return x * inside.scale, torch.tanh(h * inside.scale)

        return step, [lambda: setattr(SETTINGS, "scale", 3.0)]

    def attributes_of_a_function():
        def scaled(x):
            return x * scaled.gain

        scaled.gain = 2.0

        def step(x, h):
            return scaled(x), torch.tanh(h)

        return step, [lambda: setattr(scaled, "gain", 3.0)]

    def code_of_a_function():
        def scaled(x):
            return x * 2.0

        def other(x):
            return x * 3.0

        def step(x, h):
            return scaled(x), torch.tanh(h)

        return step, [lambda: setattr(scaled, "__code__", other.__code__)]

    def defaults_of_a_function():
        def step(x, h, gain=2.0, *, shift=1.0):
            return x * gain + shift, torch.tanh(h * gain)

        return step, [lambda: setattr(step, "__defaults__", (3.0,)),
                      lambda: setattr(step, "__kwdefaults__", {"shift": 2.0})]  # fmt: skip

    def set_of_names():
        on = {"double"}

        def step(x, h):
            return x * (2.0 if "double" in on else 1.0), torch.tanh(h)

        return step, [on.clear, lambda: on.add("double")]

    def deque_of_numbers():
        kept = collections.deque([2.0, 3.0])

        def step(x, h):
            return x * kept[0], torch.tanh(h * kept[-1])

        return step, [lambda: kept.rotate(1), lambda: kept.append(5.0)]

    def array_of_numbers():
        kept = array.array("d", [2.0, 3.0])

        def step(x, h):
            return x * kept[0], torch.tanh(h * kept[1])

        return step, [lambda: kept.__setitem__(0, 4.0)]

    def array_of_numpy():
        kept = np.array([2.0, 3.0])

        def step(x, h):
            return x * float(kept[0]), torch.tanh(h)

        return step, [lambda: kept.__setitem__(0, 4.0)]

    def mapping_proxy():
        inner = {"a": 2.0}
        proxy = types.MappingProxyType(inner)

        def step(x, h):
            return x * proxy["a"], torch.tanh(h)

        return step, [lambda: inner.__setitem__("a", 3.0)]

    def context_variable():
        def step(x, h):
            return x * CONTEXT.get(), torch.tanh(h)

        return step, [lambda: CONTEXT.set(3.0)]

    def environment_variable():
        def step(x, h):
            return x * float(os.environ.get("OF_THE_TEST", "2")), torch.tanh(h)

        return step, [lambda: os.environ.__setitem__("OF_THE_TEST", "3")]

    def local_of_a_thread():
        local = threading.local()
        local.scale = 2.0

        def step(x, h):
            return x * local.scale, torch.tanh(h)

        return step, [lambda: setattr(local, "scale", 3.0)]

    def cached_helper():
        @functools.lru_cache
        def gain():
            return GLOBAL

        def step(x, h):
            return x * gain(), torch.tanh(h)

        return step, [lambda: (set_global(5.0), gain.cache_clear())]

    def cached_property():
        class Step:
            def __init__(self):
                self.base = 2.0

            @functools.cached_property
            def scale(self):
                return self.base

            def __call__(self, x, h):
                return x * self.scale, torch.tanh(h)

        made = Step()
        return made, [lambda: (setattr(made, "base", 3.0), made.__dict__.pop("scale", None))]

    def name_made_at_run_time():
        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.which, self.scale_1, self.scale_2 = 1, 2.0, 3.0

            def forward(self, x, h):
                return x * getattr(self, f"scale_{self.which}"), torch.tanh(h)

        made = Step()
        return made, [lambda: setattr(made, "scale_1", 5.0), lambda: setattr(made, "which", 2),
                      lambda: setattr(made, "scale_2", 7.0)]  # fmt: skip

    def names_of_globals():
        def step(x, h):
            return x * globals()["GLOBAL"], torch.tanh(h)

        return step, [lambda: set_global(5.0)]

    def variables_of_an_object():
        class Config:
            def __init__(self):
                self.gain = 2.0

        config = Config()

        def step(x, h):
            return x * sum(vars(config).values()), torch.tanh(h)

        return step, [lambda: setattr(config, "gain", 3.0), lambda: setattr(config, "other", 1.0)]

    def attributes_found_by_getattr():
        class Config:
            def __init__(self):
                self.__dict__["_of"] = {"gain": 2.0}

            def __getattr__(self, name):
                return self._of[name]

        config = Config()

        def step(x, h):
            return x * config.gain, torch.tanh(h)

        return step, [lambda: config._of.__setitem__("gain", 3.0)]

    def wrapped_like_a_known_function():
        scale = [2.0]

        @functools.wraps(torch.nn.functional.relu)
        def relu(x):
            return torch.relu(x) * scale[0]

        def step(x, h):
            return relu(x), torch.tanh(h)

        return step, [lambda: scale.__setitem__(0, 3.0)]

    def code_made_by_exec():
        space = {"torch": torch, "gain": 2.0}
        exec("def step(x, h):\n    return x * gain, torch.tanh(h * gain)", space)
        return space["step"], [lambda: space.__setitem__("gain", 3.0)]

    def class_made_by_exec():
        space = {"torch": torch}
        exec("class Step:\n    gain = 2.0\n    def __call__(self, x, h):\n"
             "        return x * self.gain, torch.tanh(h)", space)  # fmt: skip
        return space["Step"](), [lambda: setattr(space["Step"], "gain", 3.0)]

    def function_of_torch_replaced():
        def step(x, h):
            return torch.nn.functional.silu(x), torch.tanh(h)

        return step, [
            lambda: patch(torch.nn.functional, "silu", lambda x: x * GLOBAL),
            lambda: set_global(9.0),
        ]

    def builtin_hidden_by_a_global():
        space = {"torch": torch}
        exec("def step(x, h):\n    return x * max(1.0, 2.0), torch.tanh(h)", space)
        return space["step"], [lambda: space.__setitem__("max", min)]

    def enum_member():
        class Mode(enum.Enum):
            SLOW = 3
            FAST = 2

        config = types.SimpleNamespace(mode=Mode.SLOW)

        def step(x, h):
            return x * config.mode.value if config.mode is not Mode.FAST else x, torch.tanh(h)

        return step, [lambda: setattr(config, "mode", Mode.FAST)]

    def dataclass_with_slots():
        @dataclasses.dataclass
        class Config:
            __slots__ = ("gain",)
            gain: float

        config = Config(2.0)

        def step(x, h):
            return x * config.gain, torch.tanh(h)

        return step, [lambda: setattr(config, "gain", 3.0)]

    def container_of_the_users_own():
        class Table(dict):
            gain = 2.0

            def __getitem__(self, key):
                return dict.__getitem__(self, key) * self.gain

        table = Table(a=2.0)

        def step(x, h):
            return x * table["a"], torch.tanh(h)

        return step, [lambda: table.__setitem__("a", 3.0), lambda: setattr(Table, "gain", 5.0),
                      lambda: setattr(table, "gain", 7.0)]  # fmt: skip

    def operators_of_the_users_own():
        class Gain:
            def __init__(self, by):
                self.by = by

            def __rmul__(self, x):
                return x * self.by

            def __matmul__(self, x):
                return x * self.by

        gain = Gain(2.0)

        def step(x, h):
            return gain @ x, torch.tanh(gain @ h)

        return step, [lambda: setattr(gain, "by", 3.0),
                      lambda: setattr(Gain, "__matmul__", lambda self, x: x - self.by)]  # fmt: skip

    def forward_replaced_on_an_instance():
        linear = nn.Linear(D, D, dtype=DTYPE)

        def step(x, h):
            return linear(x), torch.tanh(h)

        return step, [lambda: setattr(linear, "forward", lambda x: x * GLOBAL), lambda: set_global(4.0)]

    def forward_replaced_on_a_class():
        class Part(nn.Linear):
            pass

        part = Part(D, D, dtype=DTYPE)

        def step(x, h):
            return part(x), torch.tanh(h)

        return step, [lambda: setattr(Part, "forward", lambda self, x: x * 2)]

    def bound_method():
        class Model:
            def __init__(self):
                self.gain, self.count = 2.0, 0

            def step(self, x, h):
                return x * self.gain, torch.tanh(h)

        model = Model()
        return model.step, [lambda: setattr(model, "gain", 3.0), lambda: setattr(model, "count", 1)]

    def partial_of_a_function():
        def scaled(gain, x, h):
            return x * gain[0], torch.tanh(h)

        gain = [2.0]
        return functools.partial(scaled, gain), [lambda: gain.__setitem__(0, 3.0)]

    def custom_backward():
        class Scaled(torch.autograd.Function):
            gain = 2.0

            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad * Scaled.gain * GLOBAL

        def step(x, h):
            return Scaled.apply(x), torch.tanh(Scaled.apply(h))

        return step, [lambda: setattr(Scaled, "gain", 3.0), lambda: set_global(5.0)]

    def custom_backward_of_an_open_step():
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad * GLOBAL

        def step(x, h):
            return getattr(Scaled, "app" + "ly")(x), torch.tanh(h)

        return step, [lambda: set_global(5.0)]

    def hook_of_a_module():
        linear = nn.Linear(D, D, dtype=DTYPE)
        gain = [2.0]

        def step(x, h):
            return linear(x), torch.tanh(h)

        handle = []
        return step, [
            lambda: handle.append(linear.register_forward_hook(lambda _, __, y: y * gain[0])),
            lambda: gain.__setitem__(0, 3.0),
            lambda: handle[0].remove(),
        ]

    def hook_of_all_modules():
        linear = nn.Linear(D, D, dtype=DTYPE)

        def step(x, h):
            return linear(x), torch.tanh(h)

        handle = []

        def add():
            hook = torch.nn.modules.module.register_module_forward_hook(lambda _, __, y: y * 2)
            handle.append(hook)
            UNDO.append(hook.remove)

        return step, [add, lambda: handle[0].remove()]

    def attribute_of_a_tensor():
        weight = torch.ones(D, dtype=DTYPE)
        weight.gain = 2.0

        def step(x, h):
            return x * weight * weight.gain, torch.tanh(h)

        return step, [lambda: setattr(weight, "gain", 3.0)]

    def metaclass_attribute():
        class Meta(type):
            gain = 2.0

        class Rules(metaclass=Meta):
            pass

        def step(x, h):
            return x * Rules.gain, torch.tanh(h)

        return step, [lambda: setattr(Meta, "gain", 3.0)]

    def descriptor_of_the_users_own():
        class Field:
            def __init__(self):
                self.value = 2.0

            def __get__(self, instance, owner):
                return self.value

        field = Field()

        class Config:
            gain = field

        config = Config()

        def step(x, h):
            return x * config.gain, torch.tanh(h)

        return step, [lambda: setattr(field, "value", 3.0)]

    def setting_of_torch():
        def step(x, h):
            return x * (2.0 if torch.are_deterministic_algorithms_enabled() else 1.0), torch.tanh(h)

        def turn():
            torch.use_deterministic_algorithms(True)
            UNDO.append(lambda: torch.use_deterministic_algorithms(False))

        return step, [turn]

    def weights_in_a_set_by_a_dynamic_name():
        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.w_0 = nn.Parameter(torch.randn(D, dtype=DTYPE))
                self.w_1 = nn.Parameter(torch.randn(D, dtype=DTYPE))
                self.order = [0, 1]

            def forward(self, x, h):
                for i in self.order:
                    h = torch.tanh(h * getattr(self, f"w_{i}") + x)
                return h, h

        made = Step()

        def new():
            made.w_0 = nn.Parameter(torch.randn(D, dtype=DTYPE))

        return made, [made.order.reverse, new, lambda: made.w_1.requires_grad_(False)]


UNDO = []

WAYS = {k: v for k, v in vars(Ways).items() if isinstance(v, types.FunctionType)}


def set_global(value):
    globals()["GLOBAL"] = value


def delattr_and(kind, name, value):
    delattr(kind, name)
    setattr(kind, name, value)


def patch(owner, name, value):
    before = getattr(owner, name)
    UNDO.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)
