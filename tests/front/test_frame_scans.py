"""Loops that count up or down, however they say when they end, are scans."""

from __future__ import annotations

import contextlib

import pytest
import torch

import stepnet
from covering import every
from stepnet import TensorArray
from stepnet.errors import StepError
from stepnet.front.frame import WhileLoop
from stepnet.loops.recorded_frame import run_recorded

BUILDS = False
X = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
W = torch.randn(3, 3, dtype=torch.float64)
BOOT = torch.zeros(4, 3, dtype=torch.float64)
N = torch.tensor(5)

UP = {
    "n <= s": lambda s: 5 <= s,  # noqa: SIM300
    "tensor <= s": lambda s: s >= N,
    "torch.le": lambda s: torch.le(N, s),
    "~(s < n)": lambda s: ~(s < 5),
    "logical_not": lambda s: torch.logical_not(s < N),
    "(n > s).logical_not()": lambda s: (s < N).logical_not(),
    "s > n - 1": lambda s: s > 4,
    "n - 1 < s": lambda s: 4 < s,  # noqa: SIM300
    "s + 1 > n": lambda s: s + 1 > 5,
    "~(s != n)": lambda s: ~(s != 5),
    "torch.equal": lambda s: torch.equal(s, N),
    "~~": lambda s: ~~(s >= 5),
}
DOWN = {
    "s < 0": (4, 0, lambda s: s < 0),
    "0 > s": (4, 0, lambda s: 0 > s),  # noqa: SIM300
    "s == -1": (4, 0, lambda s: s == -1),
    "~(s >= 0)": (4, 0, lambda s: ~(s >= 0)),
    "s == 0": (5, -1, lambda s: s == 0),
    "s <= 0": (5, -1, lambda s: s <= 0),
    "~(s > 0)": (5, -1, lambda s: ~(s > 0)),
    "s < 1": (5, -1, lambda s: s < 1),
}


def plain(x: torch.Tensor) -> torch.Tensor:
    h, states = BOOT, []
    for row in x:
        h = torch.tanh(h @ W + row)
        states.append(h)
    return torch.stack(states)


def held(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.pow(2).sum(), X), torch.autograd.grad(expected.pow(2).sum(), X)
    )


@pytest.mark.parametrize("ends", every(2, UP.values()), ids=UP)
def test_counting_up(ends):
    x, h, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(ends(s))
        h.write(s, torch.tanh(h.read(s - 1, BOOT) @ W + x.read(s)))
        loop.update(s, s + 1)
    held(h.stack(), plain(X))
    assert "raised to a scan" in loop.explain()
    assert loop.results[0] == 5


@pytest.mark.parametrize(("start", "base", "ends"), DOWN.values(), ids=DOWN)
def test_counting_down(start, base, ends):
    x, h, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(start)])
    with loop.frame() as (s,):
        loop.break_if(ends(s))
        at, before = (s - 1, s) if base else (s, s + 1)
        h.write(at, torch.tanh(h.read(before, BOOT) @ W + x.read(at)))
        loop.update(s, s - 1)
    held(h.stack(), plain(X.flip(0)).flip(0))
    assert "raised to a scan" in loop.explain()
    assert loop.results[0] == start - 5


def test_the_size_of_an_array_ends_a_scan():
    x, h, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == x.size())
        h.write(s, torch.tanh(h.read(s - 1, BOOT) @ W + x.read(s)))
        loop.update(s, s + 1)
    held(h.stack(), plain(X))
    assert "raised to a scan" in loop.explain()


def test_rows_are_not_taken_for_alike_because_their_numbers_are():
    """A step on one value each is tried as a row of a batch: on numbers of its own, not on those at hand."""
    for x in (torch.ones(4, 3), torch.arange(12.0).reshape(4, 3)):
        rows, sums = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s >= 4)
            sums.write(s, sums.read(s - 1, torch.zeros(3)) + rows.read(s).flip(0))
            loop.update(s, s + 1)
        torch.testing.assert_close(sums.stack(), x.flip(1).cumsum(0))


def test_calls_that_fail_on_other_numbers_run_as_recorded():
    """Whether values may be rows of a batch is tried on numbers that are no positive-definite matrices."""
    a = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = (a @ a.mT + torch.eye(2, dtype=torch.float64)).requires_grad_()
    x, roots, loop = TensorArray(unstack_from=a), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 3)
        before = roots.read(s - 1, torch.zeros(2, 2, dtype=torch.float64))
        roots.write(s, torch.linalg.cholesky(x.read(s)) + 0.5 * before)
        loop.update(s, s + 1)
    first, second, third = torch.linalg.cholesky(a)
    second = second + 0.5 * first
    torch.testing.assert_close(roots.stack(), torch.stack([first, second, third + 0.5 * second]))
    assert "step by step" in loop.explain()


def test_a_scan_from_one_on_stands_behind_what_was_written_before():
    """As the paper has it: `step = 1`, and the first state is in its place."""
    x, h, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(1)])
    h.write(0, BOOT)
    with loop.frame() as (s,):
        loop.break_if(s == 5)
        h.write(s, torch.tanh(h.read(s - 1) @ W + x.read(s)))
        loop.update(s, s + 1)
    assert "raised to a scan" in loop.explain()
    states = h.stack()
    held(states, torch.cat([BOOT[None], plain(X[1:])]))
    states.zero_()
    torch.testing.assert_close(h.stack(), torch.stack(list(h)))
    assert h.stack().any()
    h.write(0, BOOT[:2])
    with pytest.raises(stepnet.errors.ArrayError, match="do not fit together"):
        h.stack()


def test_values_of_a_scan_may_be_changed_in_place():
    """Each is a tensor by itself, as in a loop by hand, and what the array holds."""
    x, out, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 5)
        out.write(s, x.read(s) * 2)
        loop.update(s, s + 1)
    with torch.no_grad():
        out.read(0)[0] = 0.0
    out.read(1).mul_(3.0)
    expected = [2 * row for row in X]
    with torch.no_grad():
        expected[0][0] = 0.0
    expected[1].mul_(3.0)
    assert "raised to a scan" in loop.explain()
    held(out.stack(), torch.stack(expected))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values_of_a_scan_are_concatenated_as_others_are(axis):
    x, out, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 5)
        out.write(s, x.read(s) * 2)
        loop.update(s, s + 1)
    held(out.concat(axis), torch.cat([2 * row for row in X], axis))
    with torch.no_grad():
        x.concat(axis).zero_()  # the caller's own
    assert X.any()
    with pytest.raises(stepnet.errors.ArrayError, match="no axis 2"):
        out.concat(2)


def test_values_without_numbers():
    x, out = TensorArray(unstack_from=X.to("meta")), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 5)
        out.write(s, torch.tanh(out.read(s - 1, BOOT.to("meta")) @ W.to("meta") + x.read(s)))
        loop.update(s, s + 1)
    assert out.stack().shape == X.shape
    assert out.stack().is_meta


@pytest.mark.parametrize(
    ("kind", "start", "by", "end"),
    [(torch.int8, 0, 1, 135), (torch.uint8, 4, -1, -1), (torch.uint8, 0, 1, 256), (torch.int8, 3, 1, 5)],
    ids=str,
)
def test_a_counter_counts_as_its_dtype_does(kind, start, by, end):
    def ended(s):
        return s >= end if by > 0 else s <= end

    s, turns = torch.tensor(start, dtype=kind), 0
    while not bool(ended(s)) and turns < 300:
        s, turns = s + by, turns + 1
    x, out = TensorArray(unstack_from=torch.randn(300, 1, 3)), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(start, dtype=kind), torch.tensor(0)], max_steps=299)
    with pytest.raises(StepError, match="did not end") if turns == 300 else contextlib.nullcontext():
        with loop.frame() as (counter, count):
            loop.break_if(ended(counter))
            out.write(counter, x.read(counter) * 2)
            loop.update(counter, counter + by)
            loop.update(count, count + 1)
        assert [int(v) for v in loop.results] == [int(s), turns]


def test_a_default_that_is_no_tensor_is_handed_through():
    x, out, loop = TensorArray(unstack_from=X), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 5)
        out.write(s, x.read(s - 1, 0.5) * x.read(s))
        loop.update(s, s + 1)
    torch.testing.assert_close(out.stack(), torch.cat([0.5 * X[:1], X[:-1] * X[1:]]))


KINDS = (torch.float8_e5m2, torch.float16, torch.complex64, torch.uint8, torch.int64, torch.bool)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3)], ids=str)
def test_values_of_any_dtype_are_handed_through(shape, kind):
    x = torch.randint(2, shape).to(kind)
    steps, out, loop = TensorArray(unstack_from=x), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 4)
        out.write(s, steps.read(s).clone())
        loop.update(s, s + 1)
    assert out.stack().dtype == kind
    assert torch.equal(out.stack().to(torch.complex64), x.to(torch.complex64))


class Seven(torch.autograd.Function):
    """A gradient that is not that of its forward."""

    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] * 7


def over(call, x):
    steps, out, loop = TensorArray(unstack_from=x), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 4)
        out.write(s, call(steps.read(s)) + out.read(s - 1, torch.zeros(2, 3)))
        loop.update(s, s + 1)
    return out.stack()


def test_a_function_with_a_gradient_of_its_own_keeps_it():
    x = torch.randn(4, 2, 3, requires_grad=True)
    with pytest.raises(StepError, match="it would lose its gradient") as caught:
        over(Seven.apply, x)
    assert "test_frame_scans.py:" in str(caught.value)
    y = over(lambda v: stepnet.map_fn(Seven.apply, v), x)
    torch.testing.assert_close(y, (x * 2).cumsum(0))
    torch.testing.assert_close(torch.autograd.grad(y[-1].sum(), x)[0], torch.full_like(x, 7.0))
    with torch.no_grad():
        torch.testing.assert_close(over(Seven.apply, x), y)


@pytest.mark.parametrize("name", ["requires_grad", "grad_fn", "grad", "is_leaf", "_version"])
def test_what_autograd_knows_is_not_known_in_a_frame(name):
    with pytest.raises((StepError, AttributeError), match=name):
        over(lambda v: v * 2 if getattr(v, name) else v, torch.randn(4, 2, 3, requires_grad=True))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_whole_recurrence_of_torch_is_not_tried_on_other_batches(kind):
    """Its kernels do not check that the state has as many rows."""
    net, x = getattr(torch.nn, kind)(3, 3, batch_first=True), torch.randn(4, 2, 5, 3)
    steps, out, loop = TensorArray(unstack_from=x), TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 4)
        out.write(s, net(steps.read(s))[0])
        loop.update(s, s + 1)
    torch.testing.assert_close(out.stack(), torch.stack([net(v)[0] for v in x]))
    assert "so it is not tried (" in loop.explain()


@pytest.mark.parametrize("what", ["read", "written"])
def test_results_are_no_values_of_arrays(what):
    x = torch.ones(3, 2)
    inputs, outputs = TensorArray(unstack_from=x), TensorArray()
    loop = WhileLoop([torch.tensor(0), torch.zeros(2)], None, run_recorded)
    with loop.frame() as (s, h):
        loop.break_if(s == 3)
        outputs.write(s, new := inputs.read(s) + h)
        loop.update(h, inputs.read(s) if what == "read" else new)
        loop.update(s, s + 1)
    before = outputs.read(2).clone()
    loop.results[1].zero_()
    assert x.all()
    assert torch.equal(outputs.read(2), before)


@pytest.mark.parametrize("known", [True, False], ids=["known", "computed"])
def test_a_loop_that_ends_below_its_updates_gives_what_its_last_step_came_with(known):
    x, sums = TensorArray(unstack_from=torch.ones(4, 2)), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0), torch.zeros(2)])
    with loop.frame() as (s, h):
        new = h + x.read(s)
        sums.write(s, new)
        loop.update(h, new)
        loop.update(s, s + 1)
        loop.break_if(s == 3 if known else new.sum() > 7)
    last, h = loop.results
    assert (last, h.tolist()) == (3, [3.0, 3.0])
    assert sums.stack()[:, 0].tolist() == [1, 2, 3, 4]
