"""What changes between two calls of a step is seen; what does not change compiles once."""

from __future__ import annotations

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from covering import few
from plans import BACKENDS, verify_new_entries
from stepnet import cells
from stepnet.api import Recurrent, recurrent
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.engine import make, plans, unsteady_steps, warm_calls
from stepnet.errors import SlowPathWarning, Unsupported
from stepnet.testing import check_step

DTYPE = torch.float64
D = 3
PLANS_ON_DISK = False  # what is captured is counted
FACTOR, TABLE = 0.5, {"scale": 2.0}


@pytest.fixture
def captures(monkeypatch):
    """The names of the steps that are captured, with no plan known before."""
    made = []
    inner = make.compile_loop
    monkeypatch.setattr(plans, "_entries", Bounded(plans._entries.most))
    monkeypatch.setattr(warm_calls, "_known", Bounded(warm_calls._known.most))
    monkeypatch.setattr(unsteady_steps, "_misses", {})

    def counted(*args, **kwargs):
        made.append(args[1].name)
        return inner(*args, **kwargs)

    monkeypatch.setattr(make, "compile_loop", counted)
    yield made
    verify_new_entries()


def rows(sizes=(2, 0, 3)):
    return LoDTensor.from_lengths(torch.randn(sum(sizes), D, dtype=DTYPE, requires_grad=True), [list(sizes)])


def boot(n=3):
    return torch.randn(n, D, dtype=DTYPE, requires_grad=True)


class Scaled(nn.Module):
    """A step with a number, a flag, a weight and a list of layers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D, dtype=DTYPE)
        self.scale = 0.5
        self.act = "tanh"
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.zeros(D, dtype=DTYPE))

    def forward(self, x, h):
        h = getattr(torch, self.act)(self.linear(x) + self.scale * h + self.shift)
        return self.drop(h), h


def compare(step, backend):
    check_step(step, rows(), boot(), backend=backend)


@pytest.mark.exhaustive  # each by itself: test_reads.py
@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_numbers_in_closures_globals_attributes_and_defaults(backend, monkeypatch):
    factor = 0.25

    def step(x, h, gain=[1.0]):  # noqa: B006
        h = torch.tanh(x * FACTOR * TABLE["scale"] + h * factor * gain[0])
        return h, h

    module = Scaled().eval()
    compare(step, backend)
    compare(module, backend)
    factor = 4.0
    compare(step, backend)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    compare(step, backend)
    monkeypatch.setitem(TABLE, "scale", -1.0)
    compare(step, backend)
    step.__defaults__[0][0] = 0.0
    compare(step, backend)
    module.scale = -2.0
    compare(module, backend)
    module.act = "sin"
    compare(module, backend)


@pytest.mark.exhaustive  # as functions in closures: test_reads.py
def test_a_step_that_picks_another_function():
    gate, choice = torch.sigmoid, ["tanh"]

    def step(x, h):
        h = getattr(torch, choice[0])(x + h) * gate(h)
        return h, h

    compare(step, "eager")
    gate = torch.tanh
    compare(step, "eager")
    choice[0] = "cos"
    compare(step, "eager")
    gate = (lambda k: lambda v: v * k)(2.0)
    compare(step, "eager")
    gate = (lambda k: lambda v: v * k)(3.0)
    compare(step, "eager")
    gate = (lambda k: lambda v: v / k)(3.0)
    compare(step, "eager")


@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_weights_replaced_between_calls(backend, captures):
    module = Scaled().eval()
    compare(module, backend)
    count = len(captures)
    with torch.no_grad():
        module.linear.weight.mul_(-1.5)
    compare(module, backend)
    module.linear.weight.data = torch.randn(D, D, dtype=DTYPE)
    compare(module, backend)
    module.linear.weight = nn.Parameter(torch.randn(D, D, dtype=DTYPE))
    compare(module, backend)
    module.shift = torch.ones(D, dtype=DTYPE)
    compare(module, backend)
    module.load_state_dict(Scaled().state_dict())
    compare(module, backend)
    assert len(captures) == count, "new values of weights compile nothing"
    module.linear.bias = None
    compare(module, backend)
    module.linear = nn.Sequential(nn.Linear(D, 2, dtype=DTYPE), nn.Linear(2, D, dtype=DTYPE))
    compare(module, backend)
    module.shift = nn.Parameter(torch.randn(D, dtype=DTYPE))
    compare(module, backend)


@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
@pytest.mark.parametrize("optimizer", few([torch.optim.SGD, torch.optim.Adam], [torch.optim.Adam]))
def test_training_follows_the_plain_loop(backend, optimizer):
    results = []
    for chosen in ("naive", backend):
        torch.manual_seed(5)
        cell, x, target = cells.GRU(D, D, dtype=DTYPE), rows(), torch.randn(5, D, dtype=DTYPE)
        steps = optimizer(cell.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            steps.zero_grad()
            loss = (recurrent(cell, x, backend=chosen)[0].values - target).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        results.append(torch.stack(losses))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)
    assert results[0][-1] < results[0][0]


def test_one_capture_for_all_lengths_batches_and_directions(captures):
    cell = cells.GRU(D, D, dtype=DTYPE)
    for sizes in ((2, 1), (5,), (1, 1, 1, 1), (0, 0), ()):
        for reverse in (False, True):
            recurrent(cell, rows(sizes), boot(len(sizes)), reverse=reverse, backend="eager")
    for axis in (0, 1):
        x = torch.randn(4, 2, D, dtype=DTYPE, requires_grad=True)
        recurrent(cell, x, boot(x.shape[1 - axis]), axis=axis, backend="eager")
    assert captures == ["GRU"]


def test_a_lambda_made_at_every_call_compiles_once(captures):
    w = torch.randn(D, D, dtype=DTYPE)
    scale = 0.5
    for _ in range(3):
        recurrent(lambda x, h: (h + x @ w * scale, h + x), rows(), boot(), backend="eager")

    def outer(x, h):
        return functools.partial(cell, h=h)(x)

    def cell(x, h):
        return h, torch.tanh(x @ w + h)

    for _ in range(3):
        recurrent(functools.partial(outer), rows(), boot(), backend="eager")
    assert captures == ["<lambda>", "outer"]


def test_two_modules_of_one_class_share_a_plan_and_not_their_weights(captures):
    one, two = cells.GRU(D, D, dtype=DTYPE), cells.GRU(D, D, dtype=DTYPE)
    for _ in range(2):
        for cell in (one, two, copy.deepcopy(one)):
            compare(cell, "eager")
    wider = cells.GRU(D, D + 1, dtype=DTYPE)
    check_step(wider, rows(), torch.randn(3, D + 1, dtype=DTYPE, requires_grad=True), backend="eager")
    assert captures == ["GRU", "GRU"]


def test_tied_and_untied_weights_are_not_confused(captures):
    """One tensor in two places is another step than two tensors."""

    class Two(nn.Module):
        def __init__(self, tied):
            super().__init__()
            self.a = nn.Parameter(torch.randn(D, D, dtype=DTYPE))
            self.b = self.a if tied else nn.Parameter(torch.randn(D, D, dtype=DTYPE))

        def forward(self, x, h):
            h = torch.tanh(x @ self.a + h @ self.b)
            return h, h

    for tied in (True, False, True):
        compare(Two(tied), "eager")
    assert len(captures) == 2


def test_requires_grad_is_seen(captures):
    cell = cells.GRU(D, D, dtype=DTYPE)
    compare(cell, "eager")
    cell.weight_hh.requires_grad_(False)
    compare(cell, "eager")
    assert len(captures) == 2
    cell.weight_hh.requires_grad_(True)
    compare(cell, "eager")
    with torch.no_grad():
        recurrent(cell, rows(), boot(), backend="eager")
    assert len(captures) == 3


def test_training_and_evaluation_switch():
    module = Scaled()
    torch.manual_seed(0)
    y, _ = recurrent(module, rows(), boot(), backend="eager")
    assert (y.values == 0).any()
    module.eval()
    compare(module, "eager")
    module.train()
    y, _ = recurrent(module, rows((40, 30)), boot(2), backend="eager")
    assert 0.3 < (y.values == 0).double().mean() < 0.7
    module.drop.p = 0.0
    compare(module, "eager")


def test_autocast_grad_mode_and_default_dtype_are_seen(captures):
    def step(x, h):
        h = torch.tanh(h + x @ torch.eye(D)) * torch.tensor(0.5)
        return h, h

    x = LoDTensor.from_lengths(torch.randn(4, D), [[3, 1]])
    plain, _ = recurrent(step, x, torch.zeros(2, D), backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        low, _ = recurrent(step, x, torch.zeros(2, D), backend="naive")
    assert not torch.equal(low.values.float(), plain.values)
    torch.set_default_dtype(torch.float64)
    y, _ = recurrent(step, x.double(), torch.zeros(2, D), backend="eager")
    assert y.values.dtype is torch.float64
    torch.testing.assert_close(y.values.float(), plain.values)


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_a_step_that_counts_itself(backend):
    """A step with a memory of its own besides the state is run as it is written."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = 0

        def forward(self, x, h):
            self.t += 1
            h = h + x * self.t
            return h, h

    module, x = Counter(), torch.ones(3, 1, D, dtype=DTYPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        y, _ = recurrent(module, x, torch.zeros(1, D, dtype=DTYPE), backend=backend)
        first = module.t
        again, _ = recurrent(module, x, torch.zeros(1, D, dtype=DTYPE), backend=backend)
    assert (y[1] - y[0]).unique() - y[0].unique() == 1
    assert (again[2] - again[1]).unique() - (again[1] - again[0]).unique() == 1
    assert module.t == first + 3


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_a_step_that_appends_to_a_list(backend):
    seen = []

    def step(x, h):
        h = torch.tanh(h + x)
        seen.append(h)
        return h, h

    x, h0 = torch.ones(3, 1, D, dtype=DTYPE), torch.zeros(1, D, dtype=DTYPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        recurrent(step, x, h0, backend=backend)
        seen.clear()
        y, _ = recurrent(step, x, h0, backend=backend)
    assert len(seen) == 3
    torch.testing.assert_close(torch.stack(seen), y)


def test_a_list_of_weights_that_grows(captures):
    weights = [torch.randn(D, D, dtype=DTYPE) for _ in range(2)]

    def step(x, h):
        for w in weights:
            h = torch.tanh(h @ w + x)
        return h, h

    compare(step, "eager")
    weights.append(torch.randn(D, D, dtype=DTYPE))
    compare(step, "eager")
    weights[0] = torch.randn(D, D, dtype=DTYPE)
    compare(step, "eager")
    assert len(captures) == 2


def test_objects_of_the_users_own_are_walked(captures):
    class Config:
        __slots__ = ("gain", "inner")

        def __init__(self):
            self.gain = 2.0
            self.inner = {"w": torch.randn(D, D, dtype=DTYPE)}

    class Step:
        def __init__(self):
            self.config = Config()

        def __call__(self, x, h):
            h = torch.tanh(h * self.config.gain + x @ self.config.inner["w"])
            return h, h

    step = Step()
    compare(step, "eager")
    step.config.inner["w"] = torch.randn(D, D, dtype=DTYPE)
    compare(step, "eager")
    assert len(captures) == 1
    step.config.gain = -1.0
    compare(step, "eager")
    assert len(captures) == 2


def test_hooks_on_modules_run():
    """A forward hook changes what a module gives."""
    module = Scaled().eval()
    compare(module, "eager")
    handle = module.linear.register_forward_hook(lambda _, __, out: out * 2)
    compare(module, "eager")
    handle.remove()
    compare(module, "eager")


@pytest.mark.parametrize("which", ["weight_norm", "spectral_norm"])
def test_parametrized_weights(which):
    module = Scaled()
    getattr(nn.utils.parametrizations, which)(module.linear)
    module.eval()
    compare(module, "eager")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    compare(module, "eager")


def test_orthogonal_weights():
    """Their gradient is the derivative of an exponential in a direction that is a sum over rows."""
    module = Scaled().eval()
    nn.utils.parametrizations.orthogonal(module.linear)
    compare(module, "c")


def test_many_signatures_do_not_pile_up(captures, monkeypatch):
    monkeypatch.setattr(plans._entries, "most", 3)
    for scale in range(6):
        recurrent(lambda x, h, k=scale: (h * k + x, h), rows(), boot(), backend="eager")
    assert len(plans._entries) == 3
    for scale in (0, 5, 3):
        y, _ = recurrent(lambda x, h, k=scale: (h * k + x, h), rows((1,)), boot(1), backend="eager")
        assert y.values.shape == (1, D)


def test_recurrent_modules_see_changes_too():
    rnn = Recurrent(Scaled().eval(), backend="eager")
    x, h = rows(), boot()
    first, _ = rnn(x, h)
    rnn.step.scale = 0.0
    second, _ = rnn(x, h)
    expected, _ = recurrent(rnn.step, x, h, backend="naive")
    assert not torch.equal(first.values, second.values)
    torch.testing.assert_close(second.values, expected.values, rtol=0, atol=1e-12)


def test_a_partial_that_changes_objects_leaves_other_partials_compiled():
    kept = []

    def collects(x, h, scale):
        kept.append(scale)
        return x * scale, h + x

    def plain(x, h, scale):
        return x * scale, h + x

    x, h = torch.randn(4, 2, D, dtype=DTYPE), torch.zeros(2, D, dtype=DTYPE)
    with pytest.warns(SlowPathWarning, match="collects"):
        recurrent(functools.partial(collects, scale=2.0), x, h)
    y, _ = recurrent(functools.partial(plain, scale=2.0), x, h, backend="c")
    torch.testing.assert_close(y, x * 2.0)


@pytest.mark.parametrize("who", few(["it", "another"], ["another"]))
def test_a_step_that_was_unsteady_is_compiled_when_it_is_steady(who, captures, monkeypatch):
    monkeypatch.setattr(unsteady_steps, "MOST_MISSES", 2)
    module = Scaled().eval()
    for k in range(2):
        module.scale = np.float32(k)  # which is no input of a plan
        recurrent(module, rows(), boot(), backend="eager")
    for k in range(2, 5):
        module.scale = np.float32(k)
        with pytest.raises(Unsupported, match="in a row"):
            recurrent(module, rows(), boot(), backend="eager")
    assert len(captures) == 2
    if who == "another":
        module = Scaled().eval()
        with pytest.raises(Unsupported, match="in a row"):
            recurrent(module, rows(), boot(), backend="eager")
    compare(module, "eager")
    assert len(captures) == 3


@pytest.mark.exhaustive  # as signatures, below
@pytest.mark.filterwarnings("error:step 'Scaled' runs by the plain loop")
def test_modules_of_a_class_in_turn(captures, monkeypatch):
    """Each is compiled at its first call."""
    monkeypatch.setattr(unsteady_steps, "MOST_MISSES", 2)
    modules = [Scaled().eval() for _ in range(4)]
    for k, module in enumerate(modules):
        module.scale = np.float32(k)
        recurrent(module, rows(), boot())
    assert len(captures) == len(modules)


def test_a_weight_of_a_class_of_the_users_own():
    """Whatever it is registered as, it is dispatched by rules of its own."""

    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result + result if func is torch.Tensor.mul else result

    def step(x, h, weight):
        h = torch.tanh(x * weight + h)
        return h, h

    for own in (False, True):
        numbers = torch.full((D,), 0.5, dtype=DTYPE)
        weight = nn.Parameter(numbers.as_subclass(Doubled) if own else numbers)
        x, h = rows(), boot()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowPathWarning)
            found, expected = (
                recurrent(functools.partial(step, weight=weight), x, h, backend=backend)[1]
                for backend in ("auto", "naive")
            )
        torch.testing.assert_close(found, expected)
