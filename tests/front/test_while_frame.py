"""The graph form of the while loop: recorded, raised to a scan where it is one, refused where it is wrong."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from covering import every
from stepnet.data.array import TensorArray
from stepnet.errors import ArrayError, StepError
from stepnet.front.frame import WhileLoop
from stepnet.loops.recorded_frame import run_recorded

BUILDS = False


def recorded(loop_vars: Any, max_steps: int | None = None) -> WhileLoop:
    """A loop that is never raised: the meaning that raised ones are held against."""
    return WhileLoop(loop_vars, max_steps, run_recorded)


def f64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def the_paper(x: Tensor, U: Tensor, W: Tensor, default_state: Tensor, n: Any, make: Any) -> Any:
    states = TensorArray(size=n)
    outputs = TensorArray(size=n)
    inputs = TensorArray(unstack_from=x)
    step = torch.tensor(0)
    loop = make(loop_vars=[step])
    with loop.frame() as (s,):
        loop.break_if(s == n)
        pre_state = states.read(s - 1, default_state)
        state = torch.sigmoid(pre_state @ U + inputs.read(s) @ W)
        states.write(s, state)
        outputs.write(s, state)
        loop.update(s, s + 1)
    return outputs.stack(), loop


@pytest.mark.covering(2)
@pytest.mark.parametrize("make", [stepnet.create_whileloop, recorded], ids=["raised", "recorded"])
@pytest.mark.parametrize(
    "n", [9, torch.tensor(9), torch.tensor([9])], ids=["int", "tensor", "one in a tensor"]
)
@pytest.mark.parametrize("batch", [(), (2,), (1,), (4,)], ids=str)
def test_the_loop_of_the_paper_is_the_plain_loop(make, n, batch):
    x, U, W, boot = f64(9, *batch, 3), f64(4, 4), f64(3, 4), f64(*batch, 4)
    y, loop = the_paper(x, U, W, boot, n, make)
    h, states = boot, []
    for row in x.unbind(0):
        h = torch.sigmoid(h @ U + row @ W)
        states.append(h)
    expected = torch.stack(states)
    torch.testing.assert_close(y, expected)
    weights = torch.randn_like(y)
    wanted = (x, U, W, boot)
    torch.testing.assert_close(
        torch.autograd.grad((y * weights).sum(), wanted),
        torch.autograd.grad((expected * weights).sum(), wanted),
    )
    assert loop.results[0].item() == 9
    if make is not recorded:
        assert loop.reason is None
        assert "raised to a scan" in loop.explain()


def test_the_loop_trains():
    x, U, W, target = torch.randn(12, 5, 3), f64(4, 4), f64(3, 4), torch.rand(12, 5, 4)
    optimizer = torch.optim.Adam([U, W], lr=0.05)
    losses = []
    for _ in range(30):
        y, loop = the_paper(x.double(), U, W, torch.zeros(5, 4).double(), 12, stepnet.create_whileloop)
        loss = (y - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert loop.reason is None
    assert losses[-1] < 0.95 * losses[0]


# Loops that are scans, and loops that are not; each is run raised and as recorded.

X = torch.randn(6, 4, 3, dtype=torch.float64)
W = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
ZERO = torch.zeros(4, 3, dtype=torch.float64)
gru = nn.GRUCell(3, 3).double()
Frame = Callable[[Any], tuple[Any, list[Any]]]  # (a maker of loops) -> (the loop, its results)


def a_gru_cell(make: Any) -> Any:
    x, h, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 6)
        h.write(s, gru(x[s], h.read(s - 1, ZERO)))
        loop.update(s, s + 1)
    return loop, [h.stack()]


def two_states_and_a_carried_tensor(make: Any) -> Any:
    x, a, b = TensorArray(unstack_from=X), TensorArray(), TensorArray()
    loop = make([torch.tensor(0), ZERO])
    with loop.frame() as (s, total):
        loop.break_if(torch.eq(s, torch.tensor(6)))
        new = torch.tanh(a.read(s - 1, ZERO) @ W) + x.read(s)
        a.write(s, new)
        b.write(s, (new * b.read(s + -1, ZERO + 1)).chunk(3, dim=1)[0].expand_as(new))
        loop.update(s, 1 + s)
        loop.update(total, total + new)
    return loop, [a.stack(), b.stack(), loop.results[1]]


def read_back_what_was_written(make: Any) -> Any:
    x, a, b, loop = TensorArray(unstack_from=X), TensorArray(), TensorArray(), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        a.write(s, torch.sin(x.read(s)) + a.read(s - 1, ZERO))
        b.write(s, a.read(s) * 2)
        loop.update(s, s + 1)
    return loop, [a.stack(), b.stack()]


def from_the_middle(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(size=6), make([torch.tensor(2)])
    a.write(1, ZERO + 3)
    with loop.frame() as (s,):
        loop.break_if(s == 5)
        a.write(s, torch.tanh(a.read(s - 1) @ W) + x.read(s) - x.read(s - 1))
        loop.update(s, s + 1)
    return loop, [a.read(i) for i in range(1, 5)]


def largest_of_each_row(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        best = (x.read(s) @ W).max(dim=1)
        a.write(s, best.values.unsqueeze(1) + a.read(s - 1, ZERO))
        loop.update(s, s + 1)
    return loop, [a.stack()]


def the_step_as_a_number(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0), ZERO])
    with loop.frame() as (s, h):
        loop.break_if(s == 6)
        new = torch.tanh(h @ W) + x.read(s) @ W * s / (s + 1) + W[s % 3]
        a.write(s, torch.where(s % 2 == 0, new, a.read(s - 1, ZERO)))
        loop.update(s, s + 1)
        loop.update(h, new)
    return loop, [a.stack(), *loop.results]


def two_steps_back(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        a.write(s, x.read(s) @ W + a.read(s - 2, ZERO))
        loop.update(s, s + 1)
    return loop, [a.stack()]


def written_at_the_next_step(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    a.write(0, ZERO)
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        a.write(s + 1, torch.tanh(a.read(s)) + x.read(s) @ W)
        loop.update(s, s + 1)
    return loop, [a.stack()]


def rows_that_mix(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        new = torch.tanh(x.read(s) @ W) + a.read(s - 1, ZERO)
        a.write(s, new - new.mean(0, keepdim=True))
        loop.update(s, s + 1)
    return loop, [a.stack()]


SCANS = [
    a_gru_cell, two_states_and_a_carried_tensor, read_back_what_was_written, from_the_middle,
    largest_of_each_row, the_step_as_a_number, two_steps_back, written_at_the_next_step, rows_that_mix,
]  # fmt: skip


def every_second_step(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(size=6), make([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 6)
        a.write(s, x.read(s) @ W)
        loop.update(s, s + 2)
    return loop, [a.read(i) for i in (0, 2, 4)]


def ended_by_the_data(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0), ZERO])
    with loop.frame() as (s, total):
        loop.break_if(total.abs().sum() > 9)
        new = total + x.read(s) @ W
        a.write(s, new)
        loop.update(s, s + 1)
        loop.update(total, new)
    return loop, [a.stack(), *loop.results]


def no_steps(make: Any) -> Any:
    x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(6)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        a.write(s, x.read(s) @ W)
        loop.update(s, s + 1)
    return loop, [torch.tensor(float(len(a))) + 0 * W]


def values_of_other_shapes(make: Any) -> Any:
    x, a, loop = TensorArray(), TensorArray(), make([torch.tensor(0)])
    x.write(0, X[0])
    x.write(1, X[1, :2])
    with loop.frame() as (s,):
        loop.break_if(s == 2)
        a.write(s, x.read(s) @ W)
        loop.update(s, s + 1)
    return loop, [a.concat()]


OTHERS = {
    every_second_step: "written elsewhere than at the step",
    ended_by_the_data: "fixed number",
    no_steps: "no steps",
    values_of_other_shapes: "differ in shape",
}


@pytest.mark.parametrize("frame", every(2, [*SCANS, *OTHERS]), ids=lambda frame: frame.__name__)
def test_a_loop_means_what_was_recorded(frame):
    loop, found = frame(stepnet.create_whileloop)
    _, expected = frame(recorded)
    torch.testing.assert_close(found, expected)
    if any(b.requires_grad for b in expected):
        ours = torch.autograd.grad(
            sum(a.pow(2).sum() for a in found), (W, *gru.parameters()), allow_unused=True
        )
        theirs = torch.autograd.grad(
            sum(b.pow(2).sum() for b in expected), (W, *gru.parameters()), allow_unused=True
        )
        torch.testing.assert_close(ours, theirs)
    if frame in OTHERS:
        assert OTHERS[frame] in (loop.reason or "")
        assert loop.explain().startswith("run step by step, as recorded: ")
    else:
        assert loop.reason is None, loop.reason


def test_a_raised_loop_calls_each_function_once_not_once_a_step():
    stepnet.set_backend("c")
    x = torch.randn(50, 4, 3).double()
    args = x, torch.eye(4).double(), torch.ones(3, 4).double(), torch.zeros(4, 4).double(), 50
    the_paper(*args, stepnet.create_whileloop)  # compiles
    called = []
    for make in (stepnet.create_whileloop, recorded):
        with torch.autograd.profiler.profile() as seen:
            the_paper(*args, make)
        called.append([event.name for event in seen.function_events].count("aten::sigmoid"))
    assert called[0] <= 4  # two gates: recorded, and checked
    assert called[1] >= 50


def test_a_backend_asked_for_is_kept():
    stepnet.set_backend("naive")
    loop, _ = a_gru_cell(stepnet.create_whileloop)
    assert "naive" in loop.explain()


# inside the frame


def test_symbolic_values_know_their_shape_and_print_it():
    x = TensorArray(unstack_from=X)
    loop = recorded([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 0)
        value = x.read(s)
        assert value.shape == (4, 3)
        assert value.dtype == torch.float64
        assert value.device == X.device
        assert value.dim() == 2
        assert value.T.shape == (3, 4)
        low, high = value.split([1, 2], dim=1)
        assert (low.shape, high.shape) == ((4, 1), (4, 2))
        assert "float64[4, 3]" in repr(value)
        assert (1 - value)[:, None].shape == (4, 1, 3)
        assert len(list(value)) == 4
        loop.update(s, s + 1)


def test_recurrences_may_run_inside_a_frame_on_what_is_not_symbolic():
    x, a = TensorArray(unstack_from=X), TensorArray()
    loop = recorded([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        constant = TensorArray(unstack_from=torch.ones(2, 3).double()).stack().sum()
        _, last = stepnet.recurrent(lambda x, h: (h, h + x), X, ZERO, backend="naive")
        a.write(s, x.read(s) * constant + last)
        loop.update(s, s + 1)
    torch.testing.assert_close(a.stack(), 6 * X + X.sum(0))


def outside(kind: str) -> None:
    leaked: list[Any] = []
    a = TensorArray(unstack_from=torch.arange(3.0))
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    if kind == "break_if outside":
        loop.break_if(torch.tensor(True))
    if kind == "results too early":
        _ = loop.results
    with loop.frame() as (s,):
        if kind == "update of another frame's variable":
            other = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
            with other.frame() as (t,):
                other.break_if(t == 3)
                other.update(s, t + 1)
        if kind == "no name":
            loop.break_if(loop.loop_vars[0] == 3)
        if kind == "condition of two":
            loop.break_if(torch.stack([s, s]) == 3)
        if kind == "condition of no boolean":
            loop.break_if(s + 1)
        if kind == "condition that cannot change":
            loop.break_if(torch.tensor(3) == 3)
        if kind == "python if" and s > 3:
            leaked.append(s)
        if kind == "item":
            s.item()
        if kind == "in place":
            a.read(s).add_(1)
        if kind == "item assignment":
            a.read(s)[0] = 1
        if kind == "transformed":
            torch.func.grad(torch.sin)(a.read(s))
        if kind == "batched":
            torch.vmap(torch.sin)(a.read(s))
        if kind == "singledispatch":
            functools.singledispatch(lambda value: value)(a.read(s))
        if kind == "what torch branches on":
            torch.cond(s > 1, torch.sin, torch.cos, (a.read(s),))
        if kind == "shapes that do not fit":
            torch.stack([a.read(s)]) @ torch.ones(3, 3)
        if kind == "stack inside":
            a.stack()
        if kind == "write of a list":
            a.write(s, [a.read(s)])
        if kind == "wrong shape in update":
            loop.update(s, torch.stack([s, s]))
        if kind == "update of another value":
            loop.update(s + 1, s)
        if kind == "array made from a symbolic size":
            TensorArray(size=s)
        if kind == "array made inside":
            TensorArray().write(s, torch.ones(1))
        if kind != "no break_if":
            loop.break_if(s == 3)
        leaked.append(s)
        if kind != "never updated":
            loop.update(s, s + 1)
        if kind == "updated twice":
            loop.update(s, s + 2)
    if kind == "used after":
        leaked[0] + 1
    if kind == "written after":
        a.write(leaked[0], torch.ones(1))
    if kind == "torch function after":
        torch.sigmoid(leaked[0])
    if kind == "entered twice":
        loop.frame()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("break_if outside", "break_if belongs inside the loop's frame"),
        ("results too early", "has not run yet"),
        ("update of another frame's variable", "must be a loop variable"),
        ("no name", "with loop.frame() as (step,): names the loop variables"),
        ("condition of two", "one boolean"),
        ("condition of no boolean", "one boolean"),
        ("condition that cannot change", "would never change"),
        ("python if", "Python needs the number in a symbolic value (bool)"),
        ("item", "Python needs the number in a symbolic value (item)"),
        ("in place", "'add_' would change a value in place"),
        ("item assignment", "not changed in place"),
        ("transformed", "a symbolic value is no tensor"),
        ("batched", "stepnet.map_fn(function, value) calls a function with tensors"),
        ("singledispatch", "functools.singledispatch cannot choose by a value that is not there yet"),
        ("what torch branches on", "a symbolic value is no tensor"),
        ("shapes that do not fit", "test_while_frame.py:"),
        ("stack inside", "TensorArray.stack belongs after the frame"),
        ("write of a list", "TensorArray.write: the value is no tensor"),
        ("wrong shape in update", "changed its shape or dtype"),
        ("update of another value", "must be a loop variable"),
        ("array made from a symbolic size", "made outside the frame"),
        ("array made inside", "made outside the frame"),
        ("no break_if", "would never end"),
        ("never updated", "loop variable(s) 0 of the while loop were never updated"),
        ("updated twice", "was updated before"),
        ("used after", "used outside its frame"),
        ("written after", "used outside its frame"),
        ("torch function after", "used outside its frame"),
        ("entered twice", "entered before"),
    ],
)
def test_errors(kind, words):
    with pytest.raises((StepError, ArrayError)) as caught:
        outside(kind)
    assert words in str(caught.value)
    TensorArray(unstack_from=torch.ones(1)).stack()  # nothing is recorded after an error


@pytest.mark.parametrize(
    ("base", "words"),
    [(0, "index 6 is out of range at step 6"), (-1, "index -1 is out of range at step 0")],
    ids=["behind", "before"],
)
@pytest.mark.parametrize("make", [stepnet.create_whileloop, recorded], ids=["raised", "recorded"])
def test_a_place_that_is_not_there_is_told_with_the_step_and_the_line(make, base, words):
    rows, doubled, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
    with pytest.raises(ArrayError) as caught, loop.frame() as (s,):  # noqa: PT012
        loop.break_if(s == 8)
        doubled.write(s, rows.read(s + base) * 2)
        loop.update(s, s + 1)
    assert f"{words} (test_while_frame.py:" in str(caught.value)
    assert len(doubled) == (0 if base else 6)


def test_a_frame_is_entered_once():
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    frame = loop.frame()
    with frame as (s,):
        loop.break_if(s == 1)
        loop.update(s, s + 1)
    with pytest.raises(StepError, match="entered once, and this one was entered before"), frame:
        pass


def test_constants_made_inside_are_read_at_the_step():
    a, loop = TensorArray(), stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 6)
        a.write(s, TensorArray(unstack_from=X).read(s) + 1)
        loop.update(s, s + 1)
    torch.testing.assert_close(a.stack(), X + 1)


def test_a_frame_inside_a_while_loop_runs_at_each_step_with_its_gradients():
    start = f64(4, 3)

    def run(weight: Tensor, make: Any) -> Tensor:
        def body(i: int, h: Tensor) -> tuple[int, Tensor]:
            x, a, loop = TensorArray(unstack_from=X), TensorArray(), make([torch.tensor(0)])
            with loop.frame() as (s,):
                loop.break_if(s == 6)
                a.write(s, torch.tanh(a.read(s - 1, h) @ weight + x.read(s)))
                loop.update(s, s + 1)
            return i + 1, a.stack().mean(0)

        return stepnet.while_loop(lambda i, h: i < 3, body, (0, start))[1]

    def plain(weight: Tensor) -> Tensor:
        h = start
        for _ in range(3):
            states = []
            for x in X:
                h = torch.tanh(h @ weight + x)
                states.append(h)
            h = torch.stack(states).mean(0)
        return h

    expected = plain(W)
    theirs = torch.autograd.grad(expected.pow(2).sum(), (W, start))
    for make in (stepnet.create_whileloop, recorded):
        found = run(W, make)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        ours = torch.autograd.grad(found.pow(2).sum(), (W, start))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_explain_of_a_model_tells_of_its_frames():
    def model(x: Tensor) -> Tensor:
        inputs, sums, loop = (
            TensorArray(unstack_from=x),
            TensorArray(),
            stepnet.create_whileloop([torch.tensor(0)]),
        )
        with loop.frame() as (s,):
            loop.break_if(s == len(x))
            sums.write(s, torch.tanh(sums.read(s - 1, ZERO) @ W) + inputs.read(s))
            loop.update(s, s + 1)
        return every_second_step(stepnet.create_whileloop)[1][0] + sums.stack()

    told = stepnet.explain(model, X)
    scan, other = told.recurrences
    assert (scan.name, scan.steps, scan.sequences) == ("the while loop", 6, 4)
    assert scan.executor in ("c", "eager")
    assert other.executor == "naive"
    assert "every_second_step" not in str(other)
    assert OTHERS[every_second_step] in str(other)


def test_frames_of_one_form_are_one_step_whatever_the_numbers_are():
    """The same frame with other tensors, lengths and bounds; and one that differs in a constant alone."""
    stepnet.set_backend("eager")

    def run(x: Tensor, weight: Tensor, factor: Any, make: Any) -> Tensor:
        inputs, a, loop = TensorArray(unstack_from=x), TensorArray(), make([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == len(x))
            a.write(s, torch.tanh(a.read(s - 1, ZERO) @ weight) * factor + inputs.read(s))
            loop.update(s, s + 1)
        return a.stack()

    for steps, factor in [(6, 1), (4, 1), (6, 1.5), (6, True), (5, f64(3))]:
        x, weight = f64(steps, 4, 3), f64(3, 3)
        torch.testing.assert_close(
            torch.autograd.grad(run(x, weight, factor, stepnet.create_whileloop).pow(2).sum(), (x, weight)),
            torch.autograd.grad(run(x, weight, factor, recorded).pow(2).sum(), (x, weight)),
        )


@pytest.mark.parametrize("frame", [a_gru_cell, every_second_step], ids=["raised", "recorded"])
def test_what_a_frame_holds_goes_with_the_last_reference(frame):
    """No cycle is left for the garbage collector, so a training loop does not pile up states."""
    gc.disable()
    try:
        for _ in range(2):  # the second is remembered
            loop, results = frame(stepnet.create_whileloop)
            held = [weakref.ref(loop), *(weakref.ref(array) for array in loop.program.arrays)]
            del loop, results
            assert [kept() for kept in held] == [None] * len(held)
    finally:
        gc.enable()


def test_a_loop_that_does_not_end_is_stopped():
    def run() -> None:
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)], max_steps=5)
        with loop.frame() as (s,):
            loop.break_if(s == -1)
            loop.update(s, s + 1)

    with pytest.raises(StepError, match="did not end within max_steps=5"):
        run()


@pytest.mark.parametrize("loop_vars", [[1], torch.tensor(0), [TensorArray()]], ids=["int", "tensor", "array"])
def test_loop_variables_are_tensors_in_a_list(loop_vars):
    with pytest.raises(StepError, match="a list of tensors"):
        stepnet.create_whileloop(loop_vars=loop_vars)


def test_an_array_read_where_nothing_is_fails_as_it_does_outside():
    def run() -> None:
        x, a = TensorArray(unstack_from=X), TensorArray()
        loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == 9)
            a.write(s, x.read(s))
            loop.update(s, s + 1)

    with pytest.raises(ArrayError, match="index 6 is out of range"):
        run()


@pytest.mark.parametrize("steps", [0, 4])
def test_results_are_nobody_elses(steps):
    """Whoever writes to one changes neither what was given nor another one; also where no step runs."""
    boot = torch.ones(2)
    loop = stepnet.create_whileloop([torch.tensor(0), boot, boot])
    with loop.frame() as (s, a, b):
        loop.break_if(s >= steps)
        loop.update(s, s + 2)
        loop.update(a, a + b)
        loop.update(b, boot)
    _, a, b = loop.results
    a.zero_()
    assert b.tolist() == boot.tolist() == [1.0, 1.0]
    b.zero_()
    assert boot.tolist() == [1.0, 1.0]
