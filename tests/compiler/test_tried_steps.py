"""Steps that change objects, and modules with hooks, parametrizations or lazy parameters.

Their values and their effects are those of the plain loop, with a warning that says why; what is tried on
sample rows leaves no trace; and one of them sends no other step to the plain loop.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import ctypes
import gc
import itertools
import os
import queue
import random
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from covering import every, few
from plans import entry_of
from stepnet import explain, recurrent
from stepnet.compiler.reads.monkeypatches import places
from stepnet.compiler.reads.undo import Snapshot
from stepnet.data.lod import LoDTensor
from stepnet.engine import reads
from stepnet.errors import SlowPathWarning, Unsupported

D = 3


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.input, self.recur = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x, h):
        h = torch.tanh(self.input(x) + self.recur(h))
        return h, h


def pruned():
    cell = Cell()
    prune.l1_unstructured(cell.input, "weight", 0.4)
    return cell


def normed(name):
    def make():
        cell = Cell()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            getattr(nn.utils, name)(cell.recur)
        return cell

    return make


def parametrized(name):
    def make():
        cell = Cell()
        getattr(nn.utils.parametrizations, name)(cell.recur)
        return cell

    return make


def evaluated(make):
    return lambda: make().eval()


def with_plain_tensor():
    cell = Cell()
    cell.scale, cell.table = torch.rand(D), [torch.rand(D), {"a": torch.rand(D)}]
    return cell


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.LazyLinear(D)

    def forward(self, x, h):
        h = torch.tanh(self.input(x) + h)
        return h, h


class Counting(Cell):
    def __init__(self):
        super().__init__()
        self.t = 0

    def forward(self, x, h):
        self.t += 1
        return super().forward(x * self.t, h)


class Normed(Cell):
    """Keeps statistics of what it is given."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x, h):
        return super().forward(self.norm(x), h)


class Remembering(Cell):
    """Keeps what it made of a setting once."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x, h):
        if self.mask is None:
            self.mask = torch.arange(D) / D
        return super().forward(x * self.mask, h)


# name: (makes the module, whether it runs by a plan from its second call on)
MODULES = {
    "pruned": (pruned, False),
    "weight_norm by a hook": (normed("weight_norm"), False),
    "spectral_norm by a hook": (normed("spectral_norm"), False),
    "spectral_norm by a hook, evaluated": (evaluated(normed("spectral_norm")), False),
    "weight_norm": (parametrized("weight_norm"), True),
    "spectral_norm, evaluated": (evaluated(parametrized("spectral_norm")), True),
    "a plain tensor": (with_plain_tensor, True),
    "lazy": (Lazy, True),
    "counts": (Counting, False),
    "statistics": (Normed, False),
    "remembers": (Remembering, True),
}


def inputs():
    x = torch.randn(5, D)
    return LoDTensor.from_lengths(x, [[2, 0, 3]]), torch.randn(3, D)


def even(x):
    """Sequences that run side by side to their ends: statistics of one row are refused by torch."""
    return LoDTensor.from_lengths(torch.cat([x.values, x.values[:1]]), [[3, 0, 3]])


def state_of(module):
    return {k: v.detach().clone() for k, v in module.state_dict().items()} | {"t": getattr(module, "t", None)}


@pytest.mark.parametrize("name", few(MODULES, ["remembers", "statistics", "lazy"]))
def test_modules_that_change_themselves(name):
    """Three calls leave values, weights, statistics and counters as the plain loop does."""
    make, compiled = MODULES[name]
    torch.manual_seed(1)
    ours = make()
    torch.manual_seed(1)
    theirs = make()
    x, h = inputs()
    if name == "statistics":
        x = even(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        if name == "lazy":
            recurrent(ours, x, h)
            recurrent(theirs, x, h, backend="naive")
            theirs.load_state_dict(ours.state_dict())
        for _ in range(3):
            found, expected = recurrent(ours, x, h), recurrent(theirs, x, h, backend="naive")
            torch.testing.assert_close(found[0].values, expected[0].values)
            torch.testing.assert_close(found[1], expected[1])
            grads = [
                torch.autograd.grad(y.values.sum(), [p for p in m.parameters() if p.requires_grad])
                for (y, _), m in ((found, ours), (expected, theirs))
            ]
            torch.testing.assert_close(grads[0], grads[1])
            torch.testing.assert_close(state_of(ours), state_of(theirs))
        assert (explain(ours, x, h).executor != "naive") == compiled
        torch.testing.assert_close(state_of(ours), state_of(theirs))
    for value in vars(ours).values():
        assert not isinstance(value, torch.Tensor) or type(value) is torch.Tensor  # no traced one is left


def test_cached_weights_are_those_of_the_block():
    """The first call of a process may be in such a block: it keeps real weights, and once."""
    cell = parametrized("weight_norm")()
    x, h = inputs()
    with nn.utils.parametrize.cached():
        found, _ = recurrent(cell, x, h, backend="eager")
    for given in (found, recurrent(cell, x, h, backend="eager")[0]):
        torch.testing.assert_close(given.values, recurrent(cell, x, h, backend="naive")[0].values)
    with nn.utils.parametrize.cached():
        expected = cell.recur.weight
        recurrent(cell, x, h, backend="eager")
        assert cell.recur.weight is expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantiz.*:UserWarning")
def test_quantised_modules():
    cell = torch.ao.quantization.quantize_dynamic(Cell(), {nn.Linear}, dtype=torch.qint8)
    x, h = inputs()
    with torch.no_grad(), pytest.warns(SlowPathWarning, match="of which nothing is known"):
        y, final = recurrent(cell, x, h)
    with torch.no_grad():
        expected = recurrent(cell, x, h, backend="naive")
    torch.testing.assert_close((y.values, final), (expected[0].values, expected[1]))


KEPT = []


class Effects:
    """Each gives a step and what it leaves behind."""

    def a_list():
        kept = []
        return lambda x, h: (kept.append(h) or x, torch.tanh(x + h)), lambda: len(kept)

    def a_global_list():
        KEPT.clear()
        return lambda x, h: (KEPT.append(1) or x, torch.tanh(x + h)), lambda: len(KEPT)

    def a_deque():
        kept = collections.deque(maxlen=9)
        return lambda x, h: (kept.append(1) or x, torch.tanh(x + h)), lambda: len(kept)

    def a_set():
        kept = set()
        return lambda x, h: (kept.add(len(kept)) or x, torch.tanh(x + h)), lambda: len(kept)

    def a_dict():
        kept = {}
        return lambda x, h: (kept.update({len(kept): h}) or x, torch.tanh(x + h)), lambda: len(kept)

    def a_variable():
        count = 0

        def step(x, h):
            nonlocal count
            count += 1
            return x, torch.tanh(x + h)

        return step, lambda: count

    def an_attribute_of_a_function():
        def step(x, h):
            step.count += 1
            return x, torch.tanh(x + h)

        step.count = 0
        return step, lambda: step.count

    def counts_elsewhere():
        def count(): ...

        random.calls = torch.calls = nn.Identity.calls = 0
        numbers, layer = np.array([0, None], dtype=object), nn.Identity()

        def step(x, h):
            count.calls = getattr(count, "calls", 0) + 1
            random.calls += 1
            torch.calls += 1
            nn.Identity.calls += 1
            numbers[0] += 1
            layer.register_forward_hook(lambda module, given, out: out * 1.1)
            return layer(x) * count.calls * nn.Identity.calls, torch.tanh(x + h)

        found, hooks = (count, random, torch, nn.Identity), layer._forward_hooks
        return step, lambda: [(o.calls, delattr(o, "calls")) for o in found] + [numbers[0], len(hooks)]

    def an_attribute_of_a_class():
        class Step:
            count = 0

            def __call__(self, x, h):
                Step.count += 1
                return x, torch.tanh(x + h)

        return Step(), lambda: Step.count

    def a_slot():
        class Step:
            __slots__ = ("count",)

            def __init__(self):
                self.count = 0

            def __call__(self, x, h):
                self.count += 1
                return x, torch.tanh(x + h)

        step = Step()
        return step, lambda: step.count

    def a_name_made_at_run_time():
        class Step:
            def __init__(self):
                self.count_1 = 0

            def __call__(self, x, h):
                name = "count_" + str(len([1]))
                setattr(self, name, getattr(self, name) + 1)
                return x, torch.tanh(x + h)

        step = Step()
        return step, lambda: step.count_1

    def an_iterator():
        numbers = itertools.count()
        return lambda x, h: (x * next(numbers), torch.tanh(x + h)), lambda: repr(numbers)

    def a_generator():
        numbers = iter(range(100))
        return lambda x, h: (x * next(numbers), torch.tanh(x + h)), lambda: numbers.__length_hint__()

    def noise_of_python():
        noise = random.Random(3)
        return lambda x, h: (x * noise.random(), torch.tanh(x + h)), noise.getstate

    def noise_of_numpy():
        noise = np.random.default_rng(3)
        return lambda x, h: (x * float(noise.random()), torch.tanh(x + h)), lambda: repr(
            noise.bit_generator.state
        )

    def noise_of_a_generator():
        noise = torch.Generator().manual_seed(3)
        return (
            lambda x, h: (x * torch.rand(x.shape, generator=noise), torch.tanh(x + h)),
            lambda: noise.get_state().tolist(),
        )

    def a_tensor_written_to():
        counts = torch.zeros(D)
        return lambda x, h: (x + counts.add_(1), torch.tanh(x + h)), lambda: counts.tolist()

    def a_tensor_written_to_by_a_view():
        counts = torch.zeros(D, 2)
        return lambda x, h: (x + counts[:, 0].add_(1), torch.tanh(x + h)), lambda: counts.tolist()

    def a_tensor_written_to_by_its_data():
        counts = torch.zeros(D, requires_grad=True)
        return lambda x, h: (x + counts.data.add_(1), torch.tanh(x + h)), lambda: counts.tolist()

    def an_attribute_of_a_tensor():
        weight = torch.ones(D)
        weight.count = 0

        def step(x, h):
            weight.count += 1
            return x * weight * weight.count, torch.tanh(x + h)

        return step, lambda: weight.count

    def an_array():
        counts = np.zeros(2)

        def step(x, h):
            counts[0] += 1
            return x * float(counts[0]), torch.tanh(x + h)

        return step, lambda: counts.tolist()

    def memory():
        counts = bytearray(2)
        view = memoryview(counts)

        def step(x, h):
            view[0] += 1
            return x * view[0], torch.tanh(x + h)

        return step, lambda: bytes(counts)

    def a_buffer_made():
        layer = nn.Identity()

        def step(x, h):
            layer.register_buffer("count", getattr(layer, "count", torch.zeros(())) + 1)
            return x * layer.count, torch.tanh(x + h)

        return step, lambda: layer.count.item()

    def a_context_variable():
        count = contextvars.ContextVar("count", default=0)

        def step(x, h):
            count.set(count.get() + 1)
            return x * count.get(), torch.tanh(x + h)

        return step, count.get

    def a_value_of_a_thread():
        local = threading.local()
        local.count = 0

        def step(x, h):
            local.count += 1
            return x * local.count, torch.tanh(x + h)

        return step, lambda: local.count

    def the_order_of_a_dict():
        kept = collections.OrderedDict(a=1, b=2, c=3)

        def step(x, h):
            kept.move_to_end(next(k for k in kept))
            return x * next(iter(kept.values())), torch.tanh(x + h)

        return step, lambda: list(kept)

    def the_environment():
        os.environ["OF_THE_TEST"] = "0"

        def step(x, h):
            os.environ["OF_THE_TEST"] = str(int(os.environ["OF_THE_TEST"]) + 1)
            return x, torch.tanh(x + h)

        return step, lambda: os.environ.pop("OF_THE_TEST")

    def a_queue():
        numbers = queue.SimpleQueue()
        for k in range(20):
            numbers.put(k)
        return lambda x, h: (x * numbers.get(), torch.tanh(x + h)), numbers.qsize

    def a_list_by_a_name_made_at_run_time():
        class Step:
            def __init__(self):
                self.kept_1 = []

            def __call__(self, x, h):
                getattr(self, "kept_" + str(len([1]))).append(1)
                return x, torch.tanh(x + h)

        step = Step()
        return step, lambda: len(step.kept_1)

    def a_seed():
        def step(x, h):
            torch.manual_seed(3)
            return x + torch.rand_like(x), torch.tanh(x + h)

        return step, lambda: torch.rand(2).tolist()

    def a_tensor_written_to_by_out():
        counts = torch.zeros(D)
        return lambda x, h: (x + torch.add(counts, 1, out=counts), torch.tanh(x + h)), lambda: counts.tolist()


EFFECTS = {k: v for k, v in vars(Effects).items() if callable(v)}


@pytest.mark.parametrize("name", every(2, EFFECTS))
def test_effects_are_those_of_the_plain_loop(name):
    """Neither trying the step nor explaining it adds to what it leaves behind."""
    results = []
    for backend in ("naive", "auto"):
        torch.manual_seed(5)
        step, left = EFFECTS[name]()
        x, h = inputs()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", SlowPathWarning)
            for _ in range(2):
                y, final = recurrent(step, x, h, backend=backend)
            compiles = name == "noise_of_a_generator"  # which is drawn before the loop
            if backend == "auto":
                assert explain(step, x, h).executor == ("c" if compiles else "naive")
        results.append((y.values, final, left()))
        assert len(told) == (backend == "auto" and not compiles)
    assert results[0][2] == results[1][2]
    torch.testing.assert_close(results[1][:2], results[0][:2])


def test_a_hook_that_collects_leaves_other_steps_compiled():
    """It may come and go: with it the plain loop runs, without it a plan."""
    cell, other, kept = Cell(), Cell(), []
    x, h = inputs()
    recurrent(cell, x, h, backend="eager")
    handle = cell.input.register_forward_hook(lambda module, given, out: kept.append(out.detach()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        recurrent(cell, x, h)
    assert len(kept) == 3
    with pytest.raises(Unsupported, match="changes Python objects as it runs"):
        recurrent(cell, x, h, backend="eager")
    assert len(kept) == 3
    recurrent(other, x, h, backend="eager")
    handle.remove()
    recurrent(cell, x, h, backend="eager")
    assert len(kept) == 3


@pytest.mark.parametrize("opens", few([False, True], [True]))
@pytest.mark.filterwarnings("ignore:step")
def test_a_step_that_changes_objects_is_not_tried_at_each_call(opens, monkeypatch):
    """It is once it no longer does, and from time to time."""

    class Counts(Cell):
        def __init__(self):
            super().__init__()
            self.counts, self.more, self.n, self.kept = True, 1, 0, []

        def forward(self, x, h):
            if self.counts and self.more:
                self.n = (getattr(self, "n") if opens else self.n) + 1  # noqa: B009
                self.kept.append(x)
            return super().forward(x, h)

    tries = []
    monkeypatch.setattr(reads, "_RARELY", 32)
    changed = Snapshot.restore
    monkeypatch.setattr(Snapshot, "restore", lambda of, *only: tries.append(of) or changed(of, *only))
    cell, (x, h) = Counts(), inputs()
    for _ in range(40):
        recurrent(cell, x, h)
    assert cell.n == len(cell.kept) == 3 * 40
    assert len(tries) <= 16  # twice as many, where other threads run
    cell.counts = False
    recurrent(cell, x, h, backend="eager")
    cell.counts = True
    recurrent(cell, x, h)
    cell.more = 0
    for _ in range(40):
        recurrent(cell, x, h)
    recurrent(cell, x, h, backend="eager")


def test_a_step_that_is_recorded_makes_no_other_be_walked_anew():
    """A record swaps what `torch.autograd.Function` has; that is nothing replaced."""
    cell, (x, h) = Cell(), inputs()

    def opens(x, h):
        return getattr(cell, "forward")(x, h)  # noqa: B009

    recurrent(opens, x, h, backend="eager")
    before = [ctypes.c_int64.from_address(place).value for place in places()]
    recurrent(opens, x, h, backend="eager")
    assert [ctypes.c_int64.from_address(place).value for place in places()] == before


def test_what_changes_at_every_call_stops_being_compiled():
    """What is a constant of torch's, and another one at each call, would be compiled at each: told once, then
    the plain loop."""

    class Annealed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x, h):
            return x * torch.tensor([self.scale], dtype=x.dtype), h + x

    step = Annealed()
    x, h = inputs()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SlowPathWarning)
        for _ in range(20):
            step.scale *= 0.9
            y, _ = recurrent(step, x, h)
            torch.testing.assert_close(y.values, x.values * step.scale)
    assert len(told) == 1
    assert "read something else at the next call each time" in str(told[0].message)
    step.scale *= 0.9
    assert entry_of(step, x, h, backend="auto").ready is None
    assert entry_of(step, x, h, backend="auto").ready is not None, "it has come to rest"


LETS_GO = {
    "compiled": lambda x, h: (x + h, torch.tanh(x + h)),
    "by values": lambda x, h: (x * float(x.max()), h + x),
    "mixes rows": lambda x, h: (x - x.mean(0), h + x),
    "changes objects": lambda x, h: (KEPT.append(1) or x, h + x),
    "open": lambda x, h: (getattr(torch, "ta" + "nh")(x), h + x),
    "not tried": lambda x, h: (x * random.random(), h + x),
}


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", LETS_GO)
def test_what_a_call_was_given_is_let_go(name, backend):
    """Neither a plan nor the reason why there is none holds the rows of any call."""
    given = []
    for _ in range(3):
        x, h = torch.randn(4, 2, D), torch.zeros(2, D)
        given += [weakref.ref(x), weakref.ref(h)]
        with warnings.catch_warnings(), contextlib.suppress(Unsupported):
            warnings.simplefilter("ignore", SlowPathWarning)
            recurrent(LETS_GO[name], x, h, backend=backend)
        del x, h
    gc.collect()
    assert [ref() for ref in given] == [None] * len(given)
