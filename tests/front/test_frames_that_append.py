"""Frames that write at the end of their arrays, as the papers do, and count in tensors of one element."""

from __future__ import annotations

import itertools

import pytest
import torch

import stepnet
from covering import few
from stepnet import TensorArray, ops
from stepnet.errors import StepError

BUILDS = False
WRITES = {
    "write(v)": lambda array, s, v: array.write(v),
    "write(v, True)": lambda array, s, v: array.write(v, True),
    "write(v, False)": lambda array, s, v: array.write(v, data_shared=False),
    "write(size, v)": lambda array, s, v: array.write(array.size(), v),
    "[size] = v": lambda array, s, v: array.__setitem__(array.size(), v),
    "ops": lambda array, s, v: ops.tensor_array_write(array, ops.tensor_array_size(array), v),
    "write(s, v)": lambda array, s, v: array.write(s, v),
}
READS = {
    "read(s - 1)": lambda array, s, boot: array.read(s - 1, boot),
    "read(size - 1)": lambda array, s, boot: array.read(array.size() - 1, boot),
}
COUNTERS = {
    "int64[]": lambda start: torch.tensor(start),
    "int64[1]": lambda start: torch.tensor([start]),
    "int32[1]": lambda start: torch.tensor([start], dtype=torch.int32),
}
ALL = [*itertools.product(WRITES, READS, COUNTERS)]


def given():
    torch.manual_seed(0)
    x, boot, w = torch.randn(5, 2, 3), torch.randn(2, 3), torch.randn(3, 3)
    return [v.double().requires_grad_() for v in (x, boot, w)]


def by_hand(x, boot, w):
    rows = []
    for row in x:
        boot = torch.tanh(boot @ w + row)
        rows.append(boot)
    return torch.stack(rows)


def framed(x, boot, w, write, read, start, states=None, more=lambda array, s, v: v):
    steps, states = TensorArray(unstack_from=x), TensorArray() if states is None else states
    sums = TensorArray()
    loop = stepnet.create_whileloop([start])
    with loop.frame() as (s,):
        loop.break_if(s == steps.size())
        v = more(states, s, torch.tanh(read(states, s, boot) @ w + steps.read(s)))
        write(states, s, v)
        sums.write(s, v.sum(-1))
        loop.update(s, s + 1)
    assert loop.results[0].shape == start.shape
    return loop, states, sums


def gradients(y, wanted):
    first = torch.autograd.grad(y.sin().sum(), wanted, create_graph=True)
    return *first, *torch.autograd.grad(sum(g.sin().sum() for g in first), wanted)


@pytest.mark.parametrize(("write", "read", "count"), few(ALL, ALL[::5]))
def test_they_are_scans(write, read, count):
    values = given()
    for _ in range(2):
        loop, states, sums = framed(*values, WRITES[write], READS[read], COUNTERS[count](0))
        assert "raised to a scan" in loop.explain()
        expected = by_hand(*values)
        torch.testing.assert_close(states.stack(), expected)
        torch.testing.assert_close(sums.stack(), expected.sum(-1))
        torch.testing.assert_close(gradients(states.stack(), values), gradients(expected, values))


@pytest.mark.parametrize("held", [1, 2])
@pytest.mark.parametrize("read", READS.values(), ids=[*READS])
def test_an_array_that_holds_values(held, read):
    """At the step they are those before it; elsewhere what is read was written some turns before."""
    x, boot, w = given()
    for start in (held, 0):
        states = TensorArray()
        for _ in range(held):
            states.write(boot)
        loop, states, _ = framed(x, boot, w, WRITES["write(v)"], read, torch.tensor(start), states)
        assert "raised" in loop.explain()
        if start == held or read is READS["read(size - 1)"]:
            expected = by_hand(x[start:], boot, w)
        else:  # the step counts from the first place
            rows = [boot] * held
            for s in range(5):
                rows.append(torch.tanh((rows[s - 1] if s else boot) @ w + x[s]))
            expected = torch.stack(rows[held:])
        torch.testing.assert_close(torch.stack(list(states)[held:]), expected)


OTHERS = {
    "its size is a number": lambda states, s, v: v * (states.size() + 1),
    "its size chooses": lambda states, s, v: torch.where(s < states.size(), v, v * 2),
}


@pytest.mark.parametrize("more", OTHERS.values(), ids=[*OTHERS])
def test_a_size_that_is_used_as_a_number_is_that_of_the_step(more):
    x, boot, w = given()
    loop, states, _ = framed(x, boot, w, WRITES["write(v)"], READS["read(s - 1)"], torch.tensor(0), more=more)
    assert "raised" not in loop.explain()
    rows = []
    for s, row in enumerate(x):
        v = torch.tanh((rows[-1] if s else boot) @ w + row)
        rows.append(v * (s + 1) if more is OTHERS["its size is a number"] else v * 2)
    torch.testing.assert_close(states.stack(), torch.stack(rows))


def test_counting_down_it_grows_upwards():
    x, boot, w = given()
    steps, states = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(4), boot])
    with loop.frame() as (s, h):
        loop.break_if(s < 0)
        h_new = torch.tanh(h @ w + steps.read(s))
        states.write(h_new)
        loop.update(s, s - 1)
        loop.update(h, h_new)
    torch.testing.assert_close(states.stack(), by_hand(x.flip(0), boot, w))
    torch.testing.assert_close(loop.results[1], states[4])


def test_a_counter_that_is_used_as_a_number_has_its_shape():
    x, boot, w = given()
    for start in (torch.tensor(0), torch.tensor([0])):
        _, states, _ = framed(
            x, boot, w, WRITES["write(v)"], READS["read(s - 1)"], start, more=lambda states, s, v: v * s
        )
        rows = []
        for s, row in enumerate(x):
            rows.append(torch.tanh((rows[-1] if s else boot) @ w + row) * s)
        torch.testing.assert_close(states.stack(), torch.stack(rows))


@pytest.mark.parametrize("start", [torch.tensor(0), torch.tensor([0])])
@pytest.mark.parametrize("end", [torch.tensor(3), torch.tensor([3])])
def test_torch_equal_of_two_shapes_is_never_true(start, end):
    array = TensorArray(unstack_from=torch.ones(9, 2))
    loop = stepnet.create_whileloop([start], max_steps=5)

    def run():
        with loop.frame() as (s,):
            loop.break_if(torch.equal(s, end))
            array.read(s)
            loop.update(s, s + 1)

    if start.shape == end.shape:
        run()
        assert loop.results[0] == 3
        assert "raised" in loop.explain()
    else:
        with pytest.raises(StepError, match="did not end within"):
            run()
