"""Numbers of Python's that follow from sizes or tensors, where steps refer to them: those of each call."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from covering import few
from file_formats import FORMATS, Applied
from stepnet import (
    BackEdge,
    InputPort,
    LoDTensor,
    Memory,
    OutputPort,
    RecurrentOp,
    Scope,
    TensorArray,
    TensorIterator,
    create_whileloop,
    recurrent,
    sequence_pool,
    while_loop,
)
from stepnet.errors import IRError
from torch_since import torch_since

BACKEND = "naive"

since = torch_since("2.13", "its export fixes sizes that are computed with")


class Held:
    def __init__(self, number):
        self.number = number

    def __call__(self, x, h):
        return h * self.number, x + h


class Slots(Held):
    __slots__ = ("number",)


class Cell(nn.Module):
    def forward(self, x, h):
        return h * self.rate, x + h


class Caller(Cell):
    def run(self, x):
        self.rate = x.shape[0] ** 0.5
        return steps(x, super().forward)


def scaled(number, x, h):
    return h * number, x + h


def steps(x, step):
    return recurrent(step, x, x[0], backend="naive")


def turns(x):
    n, rate = x.shape[0] // 2, 1 / x.shape[0]
    first = torch.tensor(0), x[0]
    return while_loop(lambda i, h: i < n, lambda i, h: (i + 1, h + x[i] * rate), first)[1:]


def in_a_module(x):
    cell = Cell()
    cell.rate = 1 / x.shape[0]
    return steps(x, cell)


def in_a_scope(x):
    def net(scope):
        scope["h"] = torch.tanh(scope["before"] * scope["n"] + scope["x"])

    op = RecurrentOp(
        net, inputs=["x"], outputs=["h"], memories=[Memory("h", pre_name="before", init="first")]
    )
    scope = Scope({"x": x, "first": x[0], "n": x.shape[0]})
    op.run(scope, keep_scopes=False)
    return (scope["h"],)


def by_ports(x):
    n = x.shape[0]
    loop = TensorIterator(
        lambda a, s: (a + s / n,) * 2,
        [InputPort("a", "a", axis=0), InputPort("s", "s"), OutputPort("y", 0, axis=0)],
        [BackEdge(1, "s")],
    )
    return loop(a=x, s=x[:1]).tuple()


def decoded(x):
    return recurrent(lambda _, h: (h, torch.tanh(h + x[-1])), None, x[0], steps=x.shape[0], backend="naive")


FOLLOWS = {
    "a quotient": lambda x: steps(x, functools.partial(scaled, 1 / x.shape[0])),
    "a root": lambda x: steps(x, lambda a, h, root=x.shape[1] ** 0.5: (h / root, a + h)),
    "a slice": lambda x: steps(x, lambda a, h, s=slice(0, x.shape[0] // 2): (h + x[s].sum(0), a + h)),
    "an index": lambda x: steps(x, lambda a, h, k=x.shape[0] // 2: (h + x[k], a + h)),
    "of a tensor": lambda x: (steps(x, Held(2.0))[0] * x.mean().item(), x[: (x > 0).sum().item() % 2 + 1][0]),
    "of an object": lambda x: steps(x, Held(1 / x.shape[0])),
    "of a module": in_a_module,
    "of a method": lambda x: Caller().run(x),
    "of a scope": in_a_scope,
    "of a shape": lambda x: steps(x, functools.partial(lambda s, *a: scaled(s[0], *a), x.shape)),
    "turns": turns,
    "ports": by_ports,
    "steps": decoded,
}  # fmt: skip


@since
@pytest.mark.covering(1)
@pytest.mark.parametrize("what", few(FOLLOWS, [*FOLLOWS][::3]))
@pytest.mark.parametrize("format", FORMATS)
def test_it_is_that_of_each_call(format, what, tmp_path):
    package, run, name = FORMATS[format]
    package.save(Applied(FOLLOWS[what]), tmp_path / name, torch.randn(5, 2, 4))
    x = torch.randn(8, 3, 4)
    for theirs, ours in zip(run(tmp_path / name, [x.numpy()]), FOLLOWS[what](x), strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-5, atol=1e-5)


def inner_steps(x):
    n = 1 / x.shape[0]

    def step(a, h):
        _, h = recurrent(lambda b, h: (h, torch.tanh(b + h) * n), x, h, backend="naive")
        return h, h + a

    return steps(x, step)


def inner_turns(x):
    k = x.shape[0] // 2

    def step(a, h):
        return (
            while_loop(lambda i, h: i < k, lambda i, h: (i + 1, torch.tanh(h + a)), (torch.tensor(0), h))[1:]
            * 2
        )

    return steps(x, step)


def steps_in_turns(x):
    k, rate = x.shape[0] // 2, 1 / x.shape[0]

    def turn(i, h):
        return i + 1, recurrent(lambda a, h: (h, torch.tanh(a * rate + h)), x, h, backend="naive")[1]

    return while_loop(lambda i, h: i < k, turn, (torch.tensor(0), x[0]))[1:]


@since
@pytest.mark.parametrize("function", few([inner_steps, inner_turns, steps_in_turns], [steps_in_turns]))
def test_so_it_is_in_loops_inside_loops(function, tmp_path):
    package, run, name = FORMATS["onnx"]
    package.save(Applied(function), tmp_path / name, torch.randn(5, 2, 4))
    x = torch.randn(8, 3, 4)
    for theirs, ours in zip(run(tmp_path / name, [x.numpy()]), function(x), strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-5, atol=1e-5)


@since
def test_it_is_as_exact_as_what_it_is_of(tmp_path):
    def function(x):
        k, rate = x.shape[0], 1 / x.shape[0]
        return steps(x, lambda a, h: (h * (1 / k) * k**0.5, a + h * torch.tensor(1 / k) * rate))

    package, run, name = FORMATS["onnx"]
    package.save(Applied(function), tmp_path / name, torch.randn(5, 2, 4).double())
    x = torch.randn(7, 3, 4).double()
    found = run(tmp_path / name, [x.numpy()])[0]
    np.testing.assert_allclose(found, function(x)[0].numpy(), rtol=1e-12)


REFUSED = {
    "reads a size that is left open": lambda x: steps(x, Slots(1 / x.shape[0])),
    "any number of steps": lambda x: steps(x, functools.partial(scaled, x.shape[0] > 3)),
    "draws random numbers": lambda x: steps(x + torch.poisson(HALF), Held(2.0)),
    "randn.*draws random": lambda x: steps(x + torch.randn(x.shape, generator=torch.Generator()), Held(2.0)),
}
HALF = torch.full((4,), 0.5)


@since
@pytest.mark.parametrize("why", REFUSED)
def test_what_would_be_the_examples_is_refused(why, tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match=why):
        package.save(Applied(REFUSED[why]), tmp_path / name, torch.randn(5, 2, 4))


def ones(x):
    return torch.ones_like(x.lengths()).sum()


def of_many(x, h):
    if len(x) > 1:
        h = h - h.mean(0)
    return h


def picked(which, a, b):
    return a if which else b


def in_a_step(number, x, h):
    return recurrent(functools.partial(scaled, number), x, h, backend="naive")[0]


def doubled(h, turns, by):
    begin = torch.tensor(0), h
    return while_loop(lambda k, h: k < turns, lambda k, h: (k + 1, h * by), begin)[1]


def framed(rows, by):
    given, made = TensorArray.unstack(rows), TensorArray()
    loop = create_whileloop(loop_vars=[torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == len(rows))
        made.write(s, torch.tanh(made.read(s - 1, rows[0]) + given.read(s)) * by)
        loop.update(s, s + 1)
    return made.stack()[-1]


def by_text(text, x, h):
    return h * float(text), x + h


COUNTS = {
    "a threshold": lambda x, h: h if len(x) > 3 else sequence_pool(x, "max"),
    "whether it is one": of_many,
    "which of two functions": lambda x, h: (h.sum if len(x) > 1 else h.mean)(1),
    "what is made or not": lambda x, h: h.exp() if len(x) > 1 else h,
    "which of two tensors": lambda x, h: picked(len(x) > 1, h.exp(), h.sin()),
    "a large threshold": lambda x, h: h if len(x) <= 256 else sequence_pool(x, "max"),
    "the least": lambda x, h: h * min(len(x), 8),
    "a small rest": lambda x, h: h * (len(x) % 2),
    "what it decides": lambda x, h: h if len(x) % 2 else sequence_pool(x, "max"),
    "rows of a shape": lambda x, h: h[: h.shape[0] // 2],
    "range": lambda x, h: h + torch.arange(h.shape[0])[:, None],
    "step": lambda x, h: in_a_step(len(x), x, h),
    "half of it in a step": lambda x, h: in_a_step(len(x) / 2, x, h),
    "array in a step": lambda x, h: in_a_step(np.float64(len(x)), x, h),
    "text in a step": lambda x, h: recurrent(functools.partial(by_text, f"{len(x)}"), x, h)[0],
    "tensor in a step": lambda x, h: in_a_step(torch.tensor(float(len(x))), x, h),
    "frame": lambda x, h: framed(torch.stack([h, h * 2]), len(x)),
    "while loop": lambda x, h: doubled(h, 3, len(x)),
    "turns of a while loop": lambda x, h: doubled(h, len(x), 1.5),
    "tensor": lambda x, h: h / torch.tensor(len(x)),
    "list": lambda x, h: h + torch.tensor([1.0, 2.0, len(x), 4.0]),
    "array": lambda x, h: h * torch.from_numpy(np.array([len(x)], np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("what", few(COUNTS, [*[*COUNTS][:-11:4], *[*COUNTS][-11:]]))
def test_the_number_of_sequences_as_a_number_is_refused(what, tmp_path):
    package, _, name = FORMATS["onnx"]
    rows = LoDTensor.from_lengths(torch.randn(5, 4), [[2, 3]])
    module = Applied(lambda x: COUNTS[what](x, sequence_pool(x, "mean")))
    with pytest.raises(IRError, match="number of sequences"):
        package.save(module, tmp_path / name, rows)


def test_the_number_of_sequences_as_a_tensor(tmp_path):
    package, run, name = FORMATS["onnx"]
    module = Applied(lambda x: sequence_pool(x, "mean") / ones(x) + torch.zeros(len(x), 4))
    package.save(module, tmp_path / name, LoDTensor.from_lengths(torch.randn(5, 4), [[2, 3]]))
    rows = torch.randn(6, 4)
    expected = module(LoDTensor.from_lengths(rows, [[2, 2, 2]]))
    (found,) = run(tmp_path / name, [rows.reshape(3, 2, 4).numpy(), np.array([2, 2, 2])])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
