"""Steps that no plan can run: each is refused with a reason and its line, and runs right by the plain loop.

The reference is a loop by hand over the whole batch: these steps see more than one row.
"""

from __future__ import annotations

import decimal
import functools
import inspect
import itertools
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Variable

from covering import every, few
from stepnet import explain
from stepnet.api import Recurrent, recurrent
from stepnet.errors import SlowPathWarning, Unsupported

DTYPE = torch.float64
D = 4
W = (torch.randn(D, D, generator=torch.Generator().manual_seed(3), dtype=DTYPE) / 2).requires_grad_()
PLACES = torch.tensor([0, 1, 1, 3])
COUNTS = torch.zeros(D, dtype=DTYPE)
NORM = nn.BatchNorm1d(D, dtype=DTYPE, track_running_stats=False)


class ByType:
    @functools.singledispatchmethod
    def of(self, value):
        return value

    @of.register
    def _(self, value: torch.Tensor):
        return torch.tanh(value)


BY_TYPE = ByType()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    SCRIPTED = torch.jit.trace(torch.tanh, torch.zeros(1, D, dtype=DTYPE))


class Steps:
    """Each on x [n, 4] and h [n, 4]; # marks the line that is to blame."""

    def mean_of_the_batch(x, h):
        h = torch.tanh(x @ W + h - h.mean(0, keepdim=True))  #
        return h, h

    def sum_of_everything(x, h):
        h = torch.tanh(h + x / (1 + x.abs().sum()))  #
        return h, h

    def hook_on_the_state(x, h):
        _ = h.requires_grad and h.register_hook(lambda g: g / 2)  #
        h = torch.tanh(x @ W + h)
        return h, h

    def largest_of_the_batch(x, h):
        h = torch.tanh(h + x - x.amax(0))  #
        return h, h

    def spread_of_the_batch(x, h):
        h = torch.tanh(h + x) / (1 + x.var(0, unbiased=False))  #
        return h, h

    def sums_of_the_batch_for_all_rows(x, h):
        h = torch.tanh(x @ W + h.sum(0, keepdim=True).expand(x.shape))  #
        return h, h

    def softmax_over_the_batch(x, h):
        h = torch.softmax(h + x, 0)  #
        return h, h

    def cumulated_over_the_batch(x, h):
        h = torch.tanh(torch.cumsum(x, 0) + h)  #
        return h, h

    def sorted_over_the_batch(x, h):
        h = torch.tanh(torch.sort(x, 0).values + h)  #
        return h, h

    def batch_norm(x, h):
        h = torch.tanh(NORM(x @ W + h))  #
        return h, h

    def permuted_rows(x, h):
        order = torch.arange(x.shape[0] - 1, -1, -1)  #
        h = torch.tanh(x[order] + h)
        return h, h

    def flipped_rows(x, h):
        h = torch.tanh(x.flip(0) + h)  #
        return h, h

    def rolled_rows(x, h):
        h = torch.tanh(torch.roll(x, 1, 0) + h)  #
        return h, h

    def first_row_for_all(x, h):
        h = torch.tanh(x + h[0])  #
        return h, h

    def all_but_the_first_row(x, h):
        h = torch.cat([h[:1], torch.tanh(h[1:] + x[1:])])
        return h, h

    def rows_times_rows(x, h):
        h = torch.tanh((x @ x.T) @ h)  #
        return h, h

    def a_sum_over_rows_back(x, h):
        h = torch.tanh(h + x @ (x.T @ h))  #
        return h, h

    def numbered_rows(x, h):
        h = torch.tanh(h + x * torch.arange(x.shape[0])[:, None])  #
        return h, h

    def by_the_number_of_rows(x, h):
        h = torch.tanh(h + x / x.shape[0])  #
        return h, h

    def by_numpy_of_the_rows(x, h):
        return h + x / np.sqrt(x.shape[0]), h  #

    def by_int_of_the_rows(x, h):
        pairs = torch.stack([x, h], 1).reshape(-1, x.shape[1])
        h = torch.tanh(pairs.view(int(pairs.shape[0] / 2), 2, -1).sum(1))
        return h, h

    def by_len(x, h):
        h = torch.tanh(h + x / len(x))  #
        return h, h

    def branch_on_the_number_of_rows(x, h):
        h = torch.tanh(h + x) if x.shape[0] > 2 else h - x
        return h, h

    def loop_over_rows(x, h):
        h = torch.stack([torch.tanh(a + b) for a, b in zip(x, h)])  # noqa: B905
        return h, h

    def numbers_rows_by_range(x, h):
        z, h = torch.tanh(x + h), torch.zeros_like(h)
        for i in range(z.shape[0]):  #
            h[i] = z[i].flip(0)
        return h, h

    def branch_on_a_value(x, h):
        if h.sum() > 0:
            h = h - 1
        return h + x, torch.tanh(h + x)

    def item(x, h):
        h = torch.tanh(h * float(x.max().item()))  #
        return h, h

    def to_list(x, h):
        h = torch.tanh(h + torch.tensor(x.tolist(), dtype=DTYPE))  #
        return h, h

    def numpy(x, h):
        h = torch.tanh(h + torch.as_tensor(np.tanh(x.detach().numpy())))  #
        return h, h

    def boolean_mask(x, h):
        h = torch.tanh(h + x)
        return h, torch.cat([h, h[h[:, 0] > 2]])[: x.shape[0]]  #

    def counts_of_a_table(x, h):
        often = torch.bincount(PLACES, minlength=D)  #
        h = torch.tanh(x @ W + h * often)
        return h, h

    def nonzero(x, h):
        at = torch.nonzero(x[:, 0] > 0)
        h = torch.tanh(h + x + at.shape[0])  #
        return h, h

    def changes_a_captured_tensor(x, h):
        COUNTS.add_(1)
        h = torch.tanh(h + x + COUNTS)
        return h, h

    def other_memory_by_data(x, h):
        m = torch.tanh(x @ W)
        m.data = m.data * 2  #
        h = torch.tanh(m + h)
        return h, h

    def other_memory_by_set(x, h):
        m = x.detach() + 0
        m.set_(m * 2)  #
        h = torch.tanh(m @ W + h)
        return h, h

    def scripted(x, h):
        h = torch.tanh(SCRIPTED(x) + h)
        return h, h

    def gradients_of_a_weight(x, h):
        (W[0] * x.detach()).sum().backward()  #
        h = torch.tanh(x @ W + h)
        return h, h

    def modules_of_python(x, h):
        h = torch.tanh(x * sys.modules["math"].pi + h)
        return h, h

    def by_the_type_of_an_argument(x, h):
        h = BY_TYPE.of(x + h)
        return h, h

    def one_noise_for_all_rows(x, h):
        h = torch.tanh(h + x + 0 * torch.rand(D, dtype=DTYPE))  #
        return h, h


WORDS = {
    "mean_of_the_batch": "mean over the rows",
    "sum_of_everything": "mixes rows",
    "sums_of_the_batch_for_all_rows": "mixes rows",
    "largest_of_the_batch": "over the rows",
    "spread_of_the_batch": "over the rows",
    "softmax_over_the_batch": "over the rows",
    "cumulated_over_the_batch": "rows by number",
    "sorted_over_the_batch": "rows by number",
    "batch_norm": "rows",
    "permuted_rows": "rows",
    "flipped_rows": "rows by number",
    "rolled_rows": "rows",
    "first_row_for_all": "rows by number",
    "all_but_the_first_row": "row",
    "rows_times_rows": "rows with rows",
    "a_sum_over_rows_back": "rows",
    "numbered_rows": "numbers its rows",
    "by_the_number_of_rows": "number of rows",
    "by_len": "number of rows",
    "by_int_of_the_rows": "makes a plain Python number out of the number of rows",
    "by_numpy_of_the_rows": "computes with the number of rows",
    "branch_on_the_number_of_rows": "depends on how many rows it is given",
    "loop_over_rows": "rows",
    "branch_on_a_value": "asks whether something holds for all rows, and at some step it does not",
    "numbers_rows_by_range": "out of the number of rows, as a loop over rows does",
    "item": "depends on the values of a tensor",
    "to_list": "values",
    "numpy": "numpy",
    "boolean_mask": "a mask picks",
    "counts_of_a_table": "whose shape depends on values",
    "nonzero": "how many values a mask picks",
    "hook_on_the_state": "registers a hook on the gradient of a tensor that it did not make",
    "changes_a_captured_tensor": "changes a tensor it did not make, in place",
    "other_memory_by_data": "gives a tensor other memory",
    "other_memory_by_set": "gives a tensor other memory",
    "scripted": "it calls what torch.jit compiled",
    "gradients_of_a_weight": "it calls backward(), which adds to gradients of others",
    "modules_of_python": "it reads sys.modules, which leads to everything",
    "by_the_type_of_an_argument": "by BY_TYPE it may ",
    "one_noise_for_all_rows": "noise that is shared by all rows",
}
STEPS = {k: v for k, v in vars(Steps).items() if inspect.isfunction(v)}


def by_hand(step, x, h):
    """The whole batch, step after step."""
    ys = []
    for t in range(len(x)):
        y, h = step(x[t], h)
        ys.append(y)
    return torch.stack(ys), h


def inputs():
    x = torch.randn(3, 5, D, dtype=DTYPE, requires_grad=True)
    return x, torch.randn(5, D, dtype=DTYPE, requires_grad=True)


def blamed(step):
    source, first = inspect.getsourcelines(step)
    lines = [first + i for i, line in enumerate(source) if line.rstrip().endswith(("#", "# noqa: B905"))]
    return f"(test_refused_steps.py:{lines[0]})" if lines else ""


def test_every_step_has_its_words():
    assert set(WORDS) == set(STEPS)


# It is the compiler that refuses, before any executor is asked, in the words of the warning below.
EACH = list(itertools.product(["eager", "c"], STEPS))
SOME = [("eager", "mean_of_the_batch"), ("c", "branch_on_a_value"), ("c", "changes_a_captured_tensor")]


@pytest.mark.parametrize(("backend", "name"), few(EACH, SOME[::4]))
def test_refused_with_reason_and_line(backend, name):
    step, (x, h) = STEPS[name], inputs()
    with pytest.raises(Unsupported) as caught:
        recurrent(step, x, h, backend=backend)
    assert WORDS[name] in str(caught.value)
    assert blamed(step) in str(caught.value)


OVER_ROWS = {
    "cumsum": lambda x: x.cumsum(0),
    "cumsum of a mask": lambda x: (x > 9).cumsum(-1),  # which the numbers of a self-check do not tell apart
    "cumprod": lambda x: x.cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "cummax": lambda x: x.cummax(0).values,
    "sort": lambda x: x.sort().values,
    "softmax": lambda x: x.softmax(-1),
    "flip": lambda x: x.flip(0),
}


@pytest.mark.parametrize("function", OVER_ROWS.values(), ids=OVER_ROWS)
def test_rows_of_one_number_have_no_dimension_but_that_of_rows(function):
    x = torch.randn(3, 5, dtype=DTYPE)
    with pytest.raises(Unsupported, match="row"):
        recurrent(lambda x, h: (function(x) + h, h), x, x[0], backend="eager")


@pytest.mark.parametrize("name", every(3, STEPS))
def test_right_by_the_plain_loop_with_one_warning(name):
    step, (x, h) = STEPS[name], inputs()
    COUNTS.zero_()
    expected = by_hand(step, x, h)
    COUNTS.zero_()
    with pytest.warns(SlowPathWarning) as warned:
        recurrent(step, x, h)
    assert len(warned) == 1
    assert f"step '{name}' runs by the plain loop" in str(warned[0].message)
    assert WORDS[name] in str(warned[0].message)
    assert blamed(step) in str(warned[0].message)
    COUNTS.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, final = recurrent(step, x, h)
    torch.testing.assert_close((y, final), expected, rtol=0, atol=1e-12)
    seeds = [torch.randn_like(v) for v in expected]
    wanted = [x, h, W]
    found = torch.autograd.grad((y, final), wanted, seeds, materialize_grads=True, allow_unused=True)
    theirs = torch.autograd.grad(expected, wanted, seeds, materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(found, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_naive_by_name_is_silent(backend):
    x, h = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if backend == "naive":
            recurrent(STEPS["mean_of_the_batch"], x, h, backend=backend)
        else:
            with torch.no_grad(), pytest.warns(SlowPathWarning, match="backend='naive'"):
                recurrent(lambda x, h: (h.mean(0) + x, h), x, h, backend=backend)


def test_a_step_that_torch_has_no_gradient_of():
    """The line whose gradient needs what was written into is named; without gradients it is compiled."""

    def step(x, state):
        h = state.clone()
        y = torch.tanh(x @ W) * h  # the gradient of x needs h
        h += y
        return y, h

    x, h = inputs()
    (told,) = explain(step, x, h).refusals
    assert "torch has no gradient of the step" in told.reason
    assert told.code == "y = torch.tanh(x @ W) * h  # the gradient of x needs h"
    assert "clone()" in told.remedy
    with torch.no_grad():
        assert explain(step, x, h).executor != "naive"


def test_code_that_is_not_run_is_no_reason_to_refuse():
    """A method that calls backward(), which the step does not; an iterator that has nothing left to give."""

    class Law:
        def __init__(self, mean):
            self.mean = mean

        def mode(self):
            guess = self.mean.detach().requires_grad_()
            (guess - 1).square().sum().backward()
            return guess

        def sample(self):
            return torch.tanh(self.mean)

    class Layers(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.sizes, self.left = sizes, iter(sizes)

        def rest(self):
            return sum(self.left)

        def forward(self, x, h):
            h = Law(x @ W + h).sample()
            return (h, h) if self.sizes[0] else (h, h + self.rest())

    (x, h), step = inputs(), Layers([1, 2])
    assert "used up" in explain(step, x, h).refusals[0].reason
    assert list(step.left) == [1, 2]
    assert explain(step, x, h).executor != "naive"
    step.left = iter(step.sizes)
    assert [*zip([0, 0], step.left)] == [(0, 1), (0, 2)]  # noqa: B905 - at its end, which it was not asked for
    assert explain(step, x, h).executor != "naive"
    step.sizes.append(3)
    assert "used up" in explain(step, x, h).refusals[0].reason


def test_what_stands_in_the_place_of_a_loop_over_rows_is_named():
    def by_zip(x, h):
        h = torch.stack([torch.tanh(a + b.flip(0)) for a, b in zip(x, h)])  # noqa: B905
        return h, h

    def at_once(x, h):
        h = torch.func.vmap(lambda a, b: torch.tanh(a + b.flip(0)))(x, h)
        return h, h

    x, h = inputs()
    (told,) = explain(by_zip, x, h).refusals
    assert "torch.func.vmap(f)(x, h)" in told.remedy
    assert explain(at_once, x, h).executor != "naive"
    torch.testing.assert_close(recurrent(at_once, x, h), recurrent(by_zip, x, h, backend="naive"))


class Inside(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.rnn = Recurrent(step)

    def forward(self, x, h):
        return self.rnn(x, h)


CALLERS = {
    "recurrent": lambda step: lambda x, h: recurrent(step, x, h),
    "Recurrent": Recurrent,
    "a module around it": Inside,
    "with a hook": lambda step: hooked(Inside(step)),
    "by functional_call": lambda step: lambda x, h: torch.func.functional_call(Recurrent(step), {}, (x, h)),
}


def hooked(module):
    module.rnn.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("name", CALLERS)
def test_the_warning_is_of_the_line_that_calls(name):
    (x, h), space = inputs(), {"torch": torch}
    exec(f"def step(x, h):\n    return x + {[*CALLERS].index(name)}.5 * h.mean(0), h", space)
    call = CALLERS[name](space["step"])
    with torch.no_grad(), pytest.warns(SlowPathWarning) as warned:
        call(x, h)
    assert [each.filename for each in warned] == [__file__]


def test_the_attribute_that_a_step_sets_is_named():
    """Where, and what to do: without it, the step is compiled."""

    class Neuron(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mem", torch.zeros(0))

        def charge(self, x):
            self.mem = torch.tanh(self.mem + x)

        def forward(self, x, mem):
            self.mem = mem
            self.charge(x)
            return self.mem, self.mem

    step, x, h = Neuron(), torch.randn(4, 2, D), torch.zeros(2, D)
    for _ in range(2):  # the second call is told without a trial
        told = explain(step, x, h).refusals[0]
        assert "it sets .mem" in told.reason
        assert "local names" in told.remedy
        assert told.code in ("self.mem = torch.tanh(self.mem + x)", "self.mem = mem")
    assert step.mem.numel() == 0
    assert explain(lambda x, mem: 2 * (torch.tanh(mem + x),), x, h).executor != "naive"


def test_aliases_that_torch_tells_no_mode_of():
    """`Variable(x)` is made where what it is an alias of is made. One of what is captured, or is given and
    may be captured, too, is refused by what was called, as are other such calls."""

    def step(x, h):
        one, kept = Variable(x.data.new(x.shape[0], 1).fill_(1)), Variable(torch.zeros(x.shape[0], D))
        kept += x
        h = torch.tanh(torch.cat([one, kept[:, 1:]], 1) * Variable(2 * h) + h)
        return h, h

    def captured(x, h):
        return x * Variable(SCALES), torch.tanh(h)

    x, h = torch.randn(4, 2, D, requires_grad=True), torch.randn(2, D, requires_grad=True)
    assert explain(step, x, h).executor != "naive"
    (y, last), (same, too) = recurrent(step, x, h), recurrent(step, x, h, backend="naive")
    torch.testing.assert_close((y, last), (same, too))
    got, wanted = (torch.autograd.grad(out.sum(), (x, h)) for out in (y, same))
    torch.testing.assert_close(got, wanted)
    for made in (Variable, nn.Parameter, lambda t: t.as_subclass(torch.Tensor)):
        told = explain(lambda x, h, made=made: (x, torch.tanh(made(h))), x, h).refusals[0]
        assert "by a call that torch does not report" in told.reason
        assert "leave out" in told.remedy
    assert "by a call that torch does not report" in explain(captured, x, h).refusals[0].reason


SCALES = torch.ones(D)


def test_a_step_that_changes_an_object_of_c_is_told():
    """What that holds cannot be put back; where other threads run, one of them may have changed it."""
    context = decimal.Context(prec=5)

    def step(x, h):
        context.prec += 1
        return x * context.prec, torch.tanh(x + h)

    x, h = inputs()
    with pytest.warns(SlowPathWarning, match="changes Python objects as it runs|another thread changed"):
        y, _ = recurrent(step, x, h)
    assert (y[1] / x[1]).max() > (y[0] / x[0]).max() + 0.5  # another number at each step
