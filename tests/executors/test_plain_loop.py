"""The plain loop on records of every form: conditions, limits, numbers, invariants, slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import examples
from stepnet import engine
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoopError, Unsupported
from stepnet.executors import naive
from stepnet.executors.naive import PlainRun
from stepnet.ir.loop import BackEdge, Concat, Invariant, Iteration, Last, Loop, Merged, Slice

OPTIMISED = False


class Body:
    """Adds what it is given; goes on while the sum is small."""

    name = "sum"

    def __init__(self, *parameters, most=100.0):
        self.parameters = parameters
        self.results: tuple[str, ...] = ("s", "go", "twice")
        self.most = most

    def __call__(self, *values):
        given = dict(zip(self.parameters, values, strict=True))
        s = given["s"]
        for name in ("x", "w", "i"):
            if name in given:
                s = s + given[name]
        return s, (s < self.most).all(), 2 * s


def loop_of(*, cut=True, condition=False, limit=False, number=None, joined=True, reverse=False, most=100.0):
    way = {"start": -1, "end": 0, "stride": -1} if reverse else {}
    inputs = [Merged("s0", "s"), Invariant("w", "w")]
    edges = [BackEdge("s", "s")]
    if cut:
        inputs.append(Slice("x", "x", **way))
    if number is not None:
        inputs.append(Iteration("i", *number))
    if condition:
        inputs.append(Merged("go0", "go"))
        edges.append(BackEdge("go", "go"))
    outputs = [Last("s", "last"), *([Concat("twice", "y", **way)] if joined else [])]
    return Loop(
        Body(*(port.parameter for port in inputs), most=most), inputs, outputs, edges,
        condition="go" if condition else None, limit="limit" if limit else None,
    )  # fmt: skip


def by_definition(loop, feeds, reverse):
    """What the docstring of the record says, in numbers."""
    s, go, ys, steps = feeds["s0"], feeds["go0"], [], feeds["x"].shape[0]
    cut = any(isinstance(port, Slice) for port in loop.inputs)
    number = any(isinstance(port, Iteration) for port in loop.inputs)
    most = steps if cut else 10**6 if loop.condition or loop.limit else 1
    if loop.limit and feeds["limit"] >= 0:
        most = min(most, feeds["limit"])
    for i in range(most):
        if loop.condition and not go:
            break
        x = feeds["x"][steps - 1 - i if reverse else i] if cut else 0
        s = s + x + feeds["w"] + (i if number else 0)
        go = bool((s < loop.body.most).all())
        ys.append(2 * s)
    ys = ys[::-1] if reverse else ys
    return s, torch.stack(ys) if ys else s.new_zeros(0, *s.shape)


@settings(deadline=None, max_examples=examples(150))
@given(
    steps=st.integers(0, 5),
    limit=st.none() | st.integers(-1, 7),
    condition=st.booleans(),
    go=st.booleans(),
    cut=st.booleans(),
    number=st.sampled_from([None, (None, 0), ("int64", 0), ("float64", 2)]),
    reverse=st.booleans(),
    most=st.sampled_from([0.0, 3.0, 9.0]),
)
def test_it_means_what_the_record_says(steps, limit, condition, go, cut, number, reverse, most):
    has_end = cut or condition or (limit is not None and limit >= 0)
    loop = loop_of(cut=cut, condition=condition, limit=limit is not None and has_end, number=number,
                   reverse=reverse and cut, most=most)  # fmt: skip
    feeds = {
        "x": torch.arange(steps * 2, dtype=torch.float64).reshape(steps, 2, 1) - 3,
        "s0": torch.tensor([[0.5], [-1.0]], dtype=torch.float64), "w": torch.full((2, 1), 2.0).double(),
        "go0": go, "limit": limit,
    }  # fmt: skip
    out = naive.run(loop, feeds)
    last, y = by_definition(loop, feeds, reverse and cut)
    assert torch.equal(out["last"], last)
    assert torch.equal(out["y"], y)


def test_a_run_goes_on_from_any_state_and_as_often_as_is_asked():
    loop = loop_of(condition=True)
    feeds = {"x": torch.randn(6, 2, 1), "s0": torch.zeros(2, 1), "w": torch.ones(2, 1), "go0": True}
    whole = naive.run(loop, feeds)
    run = PlainRun(loop, feeds)
    middle = run.advance(run.begin(), 2)
    assert middle.step == 2
    for _ in range(2):  # the state in the middle is what it was
        out = run.outputs(run.advance(run.advance(middle, 3)))
        assert torch.equal(out["y"], whole["y"])
        assert torch.equal(out["last"], whole["last"])


class Halve:
    """Halves each row while it is above one."""

    name, parameters, results = "halve", ("go", "s", "count"), ("go", "s", "count")

    def __call__(self, *values):
        _, s, count = values
        s = s / 2
        return (s > 1).flatten(), s, count + 1


HALVE = Loop(
    Halve(),
    [Merged("go", "go"), Merged("s", "s"), Merged("count", "count")],
    [Last("s", "s"), Last("count", "count")],
    [BackEdge(name, name) for name in ("go", "s", "count")],
    condition="go",
)


def test_under_a_condition_for_each_row_a_row_runs_as_it_would_alone():
    s = torch.tensor([[9.0], [0.5], [100.0], [1.5], [float("nan")]], requires_grad=True)
    count = torch.zeros(5, dtype=torch.int64)
    out = naive.run(HALVE, {"go": (s > 1).flatten(), "s": s, "count": count})
    expected, times = [], []
    for row in s.detach().flatten().tolist():
        n = 0
        while row > 1:
            row, n = row / 2, n + 1
        expected.append(row)
        times.append(n)
    torch.testing.assert_close(out["s"].flatten(), torch.tensor(expected), equal_nan=True)
    assert out["count"].tolist() == times
    (gradient,) = torch.autograd.grad(out["s"].nansum(), s)
    assert gradient.flatten()[:4].tolist() == [2.0**-n for n in times[:4]]


@pytest.mark.parametrize("joined", [True, False])
def test_a_condition_for_each_row_is_for_loops_that_only_carry(joined):
    loop = loop_of(cut=not joined, condition=True, joined=joined)
    feeds = {"x": torch.ones(3, 2, 1), "s0": torch.zeros(2, 1), "w": torch.ones(2, 1)}
    with pytest.raises(LoopError, match="one condition is for all rows"):
        naive.run(loop, feeds | {"go0": torch.tensor([True, False])})


def test_lengths_end_a_ragged_loop_and_nothing_else():
    x = LoDTensor.from_lengths(torch.ones(3, 1), [[2, 1]])
    loop = loop_of(limit=True)
    with pytest.raises(LoopError, match="its lengths say how many steps"):
        naive.run(loop, {"x": x, "s0": torch.zeros(2, 1), "w": torch.ones(1), "limit": 1})


def test_a_condition_is_carried():
    with pytest.raises(LoopError, match="the condition is 'w', which is no carried parameter"):
        Loop(
            Body("s", "w"), [Merged("s0", "s"), Invariant("w", "w")], [], [BackEdge("s", "s")], condition="w"
        )


@pytest.mark.parametrize(
    ("changes", "sweeps"),
    [
        ({}, True),
        ({"reverse": True}, True),
        ({"condition": True}, False),
        ({"limit": True}, False),
        ({"number": (None, 0)}, False),
        ({"cut": False}, False),
    ],
)
def test_the_engine_takes_sweeps(changes, sweeps):
    loop = loop_of(**changes)
    assert (loop.sweep is not None) == sweeps
    if not sweeps:
        feeds = {"x": torch.ones(3, 2, 1), "s0": torch.zeros(2, 1), "w": torch.ones(2, 1), "go0": True}
        with pytest.raises(Unsupported, match="not one pass over rows"):
            engine.run(loop, feeds | {"limit": 1}, backend="eager")


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_invariants_of_a_sweep_are_inputs_with_gradients(backend):
    """A record made by hand, compiled as it is: forward, final state and every gradient."""

    class Step:
        name, parameters, results = "step", ("w", "x", "h"), ("y", "h")
        form = "by hand"
        function = staticmethod(lambda w, x, h: torch.tanh(x @ w + h))

        def fresh(self):
            return self

        def __call__(self, *values):
            h = self.function(*values)
            return h * 2, h

    loop = Loop(
        Step(),
        [Slice("xs", "x"), Merged("h0", "h"), Invariant("weight", "w")],
        [Concat("y", "ys"), Last("h", "last")],
        [BackEdge("h", "h")],
    )

    def feeds(n=3):
        torch.manual_seed(n)
        values = {"xs": torch.randn(4, n, 2), "h0": torch.randn(n, 2), "weight": torch.randn(2, 2)}
        return {name: value.double().requires_grad_() for name, value in values.items()}

    for fed in (feeds(), feeds(), feeds(1)):  # other values of the same shape; another batch
        seeds = torch.randn_like(fed["xs"]), torch.randn_like(fed["h0"])
        results = []
        for out in (engine.run(loop, fed, backend=backend), naive.run(loop, fed)):
            y, last = out["ys"], out["last"]
            grads = torch.autograd.grad((y * seeds[0]).sum() + (last * seeds[1]).sum(), list(fed.values()))
            results.append((y, last, *grads))
        torch.testing.assert_close(*results)
