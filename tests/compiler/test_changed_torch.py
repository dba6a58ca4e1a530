"""What belongs to torch and Python may be changed between two calls, too: the second gives what the plain
loop gives."""

from __future__ import annotations

import gc
import operator
import types
import warnings

import pytest
import torch
from torch import nn

from covering import few
from outcomes import of_sequences
from stepnet import cells
from stepnet.compiler.reads.reach import reach
from stepnet.errors import SlowPathWarning
from ways_to_read import DTYPE, UNDO, D, patch

PLANS_ON_DISK = False  # each change is seen with nothing known before


@pytest.fixture(autouse=True)
def _as_before():
    yield
    while UNDO:
        UNDO.pop()()


class OfTorch:
    """Each gives a step, and changes."""

    def method_of_a_layer():
        linear = nn.Linear(D, D, dtype=DTYPE)

        def change():
            patch(nn.Linear, "forward", lambda self, x: x * 2)

        return lambda x, h: (linear(x), torch.tanh(h)), [change]

    def method_of_all_modules():
        linear = nn.Linear(D, D, dtype=DTYPE)

        def change():
            before = nn.Module.__call__
            patch(nn.Module, "__call__", lambda self, x: before(self, x) * 2)

        return lambda x, h: (linear(x), torch.tanh(h)), [change]

    def method_of_tensors():
        def change():
            patch(torch.Tensor, "tanh", lambda self: torch.sin(self))

        return lambda x, h: (x * 1, h.tanh()), [change]

    def own_method_of_tensors():
        torch.Tensor.own_of_the_test = lambda self: self * 2
        UNDO.append(lambda: delattr(torch.Tensor, "own_of_the_test"))

        def change():
            torch.Tensor.own_of_the_test = lambda self: self * 3

        return lambda x, h: (x.own_of_the_test(), torch.tanh(h)), [change]

    def method_of_a_cell():
        cell = cells.GRU(D, D, dtype=DTYPE)

        def change():
            before = cells.GRU.forward
            patch(cells.GRU, "forward", lambda self, x, h: before(self, x * 2, h))

        return cell, [change]

    def attribute_by_a_getter():
        config = types.SimpleNamespace(inner=types.SimpleNamespace(gain=2.0))
        get = operator.attrgetter("inner.gain")
        return lambda x, h: (x * get(config), torch.tanh(h)), [lambda: setattr(config.inner, "gain", 3.0)]

    def attribute_in_a_format():
        class Config:
            def __init__(self):
                self.gain = 2.0

        config, form = Config(), "{0.gain}"

        def step(x, h):
            return x * float(form.format(config)), torch.tanh(h)

        return step, [lambda: setattr(config, "gain", 3.0)]

    def gradient_of_a_weight():
        weight = torch.ones(D, dtype=DTYPE, requires_grad=True)

        def step(x, h):
            return x * weight * (1.0 if weight.grad is None else 2.0), torch.tanh(h)

        return step, [lambda: weight.sum().backward()]

    def version_of_a_weight():
        weight = torch.ones(D, dtype=DTYPE)
        return lambda x, h: (x * float(weight._version), torch.tanh(h)), [lambda: weight.mul_(1)]

    def memory_of_a_weight():
        weight = torch.ones(D, dtype=DTYPE)

        def step(x, h):
            return x * weight.untyped_storage().nbytes(), torch.tanh(h)

        return step, [lambda: weight.set_(torch.ones(2 * D, dtype=DTYPE)[:D])]

    def method_of_a_distribution():
        """No code of the step names what it is of."""
        held = torch.distributions.HalfNormal(torch.ones(D, dtype=DTYPE))
        own = type(held).log_prob

        def turn():
            type(held).log_prob = lambda self, value: own(self, value) * 2
            UNDO.append(lambda: setattr(type(held), "log_prob", own))

        return lambda x, h: (held.log_prob(x.abs()), torch.tanh(h)), [turn]

    def function_of_distributions():
        from torch.distributions import utils as of

        own = of.clamp_probs

        def turn():
            of.clamp_probs = lambda probs: own(probs) * 0.5
            UNDO.append(lambda: setattr(of, "clamp_probs", own))

        to_logits = of.probs_to_logits
        return lambda x, h: (to_logits(x.sigmoid()), torch.tanh(h)), [turn]

    def operator_of_a_library():
        library, gain = torch.library.Library("stepnet_of_the_test", "DEF"), [2.0]
        library.define("scaled(Tensor a) -> Tensor")
        library.impl("scaled", lambda a: a * gain[0], "CompositeImplicitAutograd")
        UNDO.append(library._destroy)
        scaled = torch.ops.stepnet_of_the_test.scaled
        return lambda x, h: (scaled(x), torch.tanh(h)), [lambda: gain.__setitem__(0, 3.0)]

    def builtins_of_ones_own():
        own = {"max": max}
        space = {"torch": torch, "__builtins__": own}
        exec("def step(x, h):\n    return x * max(1.0, 2.0), torch.tanh(h)", space)
        return space["step"], [lambda: own.__setitem__("max", min)]


OF_TORCH = {k: v for k, v in vars(OfTorch).items() if isinstance(v, types.FunctionType)}


@pytest.mark.parametrize("name", few(OF_TORCH, [*OF_TORCH][::3]))
def test_torch_itself_may_be_changed(name):
    """By a plan or by the plain loop: right in any case."""
    step, changes = OF_TORCH[name]()
    x, h = torch.randn(5, D, dtype=DTYPE), torch.randn(3, D, dtype=DTYPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        before = None
        for change in (lambda: None, *changes):
            change()
            expected = of_sequences(step, x, h, "naive")
            for _ in range(2):
                torch.testing.assert_close(of_sequences(step, x, h, "auto"), expected, rtol=0, atol=1e-12)
            assert before is None or not all(map(torch.equal, before, expected))
            before = expected


def test_what_others_changed_in_torch_concerns_who_comes_by_it(monkeypatch):
    """Pyro gives transforms another way to be copied: no step does that, and most know of none."""
    monkeypatch.setattr(torch.distributions.transforms.Transform, "__getstate__", lambda self: vars(self))
    monkeypatch.setattr(torch.distributions.HalfNormal, "log_prob", lambda self, value: globals())

    def copies(x, h):
        return x * len(torch.distributions.transforms.ExpTransform().__getstate__()), h

    assert reach(lambda x, h: (x.log(), h)).refused is None
    assert reach(lambda x, h: (torch.distributions.Normal(x, 1.0), h)).refused is not None  # of HalfNormal's
    monkeypatch.setattr(torch.distributions.HalfNormal, "log_prob", lambda self, value: value * 2)
    assert reach(lambda x, h: (torch.distributions.Normal(x, 1.0), h)).refused is None
    assert reach(copies).open is not None
    monkeypatch.setattr(torch, "index_select", lambda *given: globals())  # as PyTorch Geometric does
    gc.unfreeze()
    try:
        assert reach(lambda x, h: (x.log(), h)).refused is None
    finally:
        gc.freeze()
    assert reach(lambda x, h: (torch.index_select(x, 1, h), h)).refused is not None
    monkeypatch.setattr(torch, "tanh", lambda value: globals())
    assert "put in the place" in str(reach(lambda x, h: (x.log(), h)).refused)  # modules call it
