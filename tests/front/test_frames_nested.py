"""In a frame: steps that are LoDTensors, recurrences, while loops, and frames."""

from __future__ import annotations

import types
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stepnet
from covering import few
from front.frame_laws import as_frame, same
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, TensorArray, dynamic_recurrent, sequence_pool
from stepnet.data.recording import RECORDER
from stepnet.errors import StepError
from stepnet.export.captured_state import AsCalled
from stepnet.loops.recorded_frame import LoopCall
from threads import at_once

W = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
ZERO = torch.zeros(9, 2, dtype=torch.float64)


BACKEND = "eager"  # what a frame holds is the same whatever runs it


def cell(x: Any, h: Any) -> Any:
    h = torch.tanh(x @ W + h)
    return h, h


def recurrence(x: Any) -> Any:
    y, last = stepnet.recurrent(cell, x, ZERO[: x.lengths().shape[0]])
    return torch.cat([y.values, last])


def weight_of_the_step(x: Any) -> Any:
    """Functions refer to what is symbolic."""
    mine = x.values.T @ x.values
    return stepnet.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(h @ mine) + 1), (0, W))[1]


def inner(x: Any, frame: bool) -> Any:
    steps, indices = TensorArray.unpack(x, 0)
    states = TensorArray()
    if not frame:
        for t in range(len(steps)):
            u = steps.read(t)
            states.write(t, torch.tanh(u @ W + states.read(t - 1, ZERO)[: u.shape[0]]))
        return states.pack(0, indices)
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (t,):
        loop.break_if(t >= steps.size())
        u = steps.read(t)
        states.write(t, torch.tanh(u @ W + states.read(t - 1, ZERO)[: u.shape[0]]))
        loop.update(t, t + 1)
    return states.pack(0, indices)


def over_sequences(x: Any) -> Any:
    return sum(sequence.sum(0) for sequence in x)


LODS: dict[str, Any] = {
    "values": lambda x: x.values.sum(0),
    "functions of rows": lambda x: torch.tanh(x) * 2,
    "pool": lambda x: sequence_pool(x, "mean"),
    "recurrent": recurrence,
    "Recurrent": lambda x: stepnet.Recurrent(cell)(x, ZERO[: x.lengths().shape[0]])[0],
    "while_loop": lambda x: stepnet.while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, v * 1.5 + i), (0, x.values)
    )[1],
    "while_loop over what is symbolic": weight_of_the_step,
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("body", LODS.values(), ids=LODS)
@pytest.mark.parametrize("lengths", [[[2, 0, 3], [1, 4, 2, 0, 2]], [[1], [3]], [[1, 1], [1, 1]]], ids=str)
def test_steps_that_are_lod_tensors(body, lengths):
    rows = torch.randn(sum(lengths[-1]), 2, dtype=torch.float64, requires_grad=True)
    array, _ = TensorArray.unpack(LoDTensor.from_lengths(rows, lengths), 0)
    same(lambda x, s, out: body(x[0]), [array], len(array), (rows, W))


def test_sequences_of_a_step_one_by_one():
    rows = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    array, _ = TensorArray.unpack(LoDTensor.from_lengths(rows, [[2, 2], [1, 4, 2, 2]]), 0)
    same(lambda x, s, out: over_sequences(x[0]), [array], len(array), (rows,))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3))
def test_a_frame_in_a_frame_over_nested_sequences(groups):
    lengths = [[len(group) for group in groups], [n for group in groups for n in group]]
    rows = torch.randn(sum(lengths[-1]), 2, dtype=torch.float64, requires_grad=True)
    array, _ = TensorArray.unpack(LoDTensor.from_lengths(rows, lengths), 0)
    found = as_frame(lambda x, s, out: inner(x[0], True), [array], len(array))
    for t in range(len(array)):
        expected = inner(array.read(t), False)
        torch.testing.assert_close(found.read(t).values, expected.values)
        torch.testing.assert_close(
            torch.autograd.grad(found.read(t).values.sum(), (rows, W), retain_graph=True),
            torch.autograd.grad(expected.values.sum(), (rows, W), retain_graph=True),
        )


def test_what_a_loop_reads_stays_where_the_recorded_loop_is_gone():
    """A call of an inner loop outlives the frame; it tells the loop how it ran, which no value depends on."""
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        loop.update(s, s + 1)
    call = LoopCall(loop, [])
    then = AsCalled(lambda: call)
    gone = weakref.ref(loop)
    del loop, s
    assert gone() is None
    then.check("the loop")


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_frame_in_a_frame_reads_and_writes_arrays_of_both(turns):
    x = torch.randn(turns, 4, 3, 2, dtype=torch.float64, requires_grad=True)

    def plain() -> Any:
        h, states, seen = ZERO[:3], [], []
        for block in x:
            for row in block:
                h = torch.tanh(h @ W + row)
                seen.append(h * 2)
            states.append(h)
        return states, seen

    def framed() -> Any:
        blocks, states, seen = TensorArray(unstack_from=x), TensorArray(), TensorArray()
        outer = stepnet.create_whileloop([torch.tensor(0)])
        with outer.frame() as (s,):
            outer.break_if(s >= turns)
            block, boot = blocks.read(s), states.read(s - 1, ZERO[:3])
            rows, own = TensorArray(unstack_from=block), TensorArray()
            loop = stepnet.create_whileloop([torch.tensor(0)])
            with loop.frame() as (t,):
                loop.break_if(t == block.shape[0])
                own.write(t, torch.tanh(own.read(t - 1, boot) @ W + rows.read(t)))
                seen.write(s * 4 + t, own.read(t) * 2)
                loop.update(t, t + 1)
            states.write(s, own.stack()[-1])
            outer.update(s, s + 1)
        return list(states), list(seen)

    found, expected = framed(), plain()
    torch.testing.assert_close((*found[0], *found[1]), (*expected[0], *expected[1]))
    if turns:
        totals = [sum(v.sum() for v in (*made[0], *made[1])) for made in (found, expected)]
        for a, b in zip(*(torch.autograd.grad(total, (x, W)) for total in totals), strict=True):
            torch.testing.assert_close(a, b)


AFTER: dict[str, Any] = {
    "read": lambda a: a.read(a.size() - 1),
    "item": lambda a: a[a.size() - 1],
    "stack": lambda a: a.stack()[-1],
    "concat": lambda a: a.concat(0)[-2:],
    "after a write": lambda a: (a.write(a.read(a.size() - 1) * 2), a.read(a.size() - 1) / a.size())[1],
}


@pytest.mark.parametrize("ask", AFTER.values(), ids=AFTER)
def test_an_array_that_a_frame_inside_filled(ask):
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def outer(of: Any) -> Any:
        loop, blocks, ends = (
            stepnet.create_whileloop([torch.tensor(0)]),
            TensorArray(unstack_from=x),
            TensorArray(),
        )
        with loop.frame() as (s,):
            loop.break_if(s == 3)
            ends.write(s, of(blocks.read(s), ends.read(s - 1, ZERO[0])))
            loop.update(s, s + 1)
        return ends.stack()

    def framed(block: Any, boot: Any) -> Any:
        rows, states, loop = (
            TensorArray(unstack_from=block),
            TensorArray(),
            stepnet.create_whileloop([torch.tensor(0)]),
        )
        with loop.frame() as (t,):
            loop.break_if(t == rows.size())
            states.write(t, torch.tanh(rows.read(t) @ W + states.read(t - 1, boot)))
            loop.update(t, t + 1)
        return ask(states)

    def plain(block: Any, boot: Any) -> Any:
        states = TensorArray()
        for t, row in enumerate(block):
            states.write(t, torch.tanh(row @ W + states.read(t - 1, boot)))
        return ask(states)

    expected = []
    for block in x:
        expected.append(plain(block, expected[-1] if expected else ZERO[0]))
    found = outer(framed)
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), (x, W)), torch.autograd.grad(torch.stack(expected).sum(), (x, W))
    )


def test_a_cell_of_torch_over_blocks_of_a_frame():
    """Torch has no vmap of it: it is written out."""
    cell, x = torch.nn.LSTMCell(2, 2).double(), torch.randn(3, 4, 5, 2, dtype=torch.float64)
    xs, out, zero = TensorArray(unstack_from=x), TensorArray(), ZERO[:5]
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        out.write(s, stepnet.recurrent(cell, xs.read(s), (out.read(s - 1, zero), zero))[1][0])
        loop.update(s, s + 1)
    h = zero
    for block, found in zip(x, out, strict=True):
        h = stepnet.recurrent(cell, block, (h, zero))[1][0]
        torch.testing.assert_close(found, h)
    assert "raised to a scan" in loop.explain()


def _of_three_rows(rows: Tensor) -> Tensor:
    assert len(rows) == 3
    return rows * 2


THREE: dict[str, Any] = {  # what takes three rows, and no others
    "recurrent": lambda x: stepnet.recurrent(cell, LoDTensor.from_lengths(x, [[2, 0, 1]]), ZERO[:3])[1],
    "a function of sequences": lambda x: sequence_pool(LoDTensor.from_lengths(x, [[1, 2]]), "sum").sum(0) + x,
    "a function of the user": lambda x: stepnet.map_fn(_of_three_rows, x[None])[0],
}


@pytest.mark.parametrize("call", THREE.values(), ids=THREE)
def test_what_fails_on_another_number_of_rows_runs_as_recorded(call):
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    before = lambda out, s: out.read(s - 1, ZERO[:3])  # noqa: E731
    stepnet.set_backend("auto")
    same(lambda v, s, out: torch.tanh(call(v[0]) + before(out, s)), [TensorArray(unstack_from=x)], 4, (x,))


NETS: dict[str, Any] = {
    "LSTM": (lambda: stepnet.nn.LSTM(2, 2), lambda y, state: y + state[0] + state[1]),
    "LSTM, apart": (lambda: stepnet.nn.LSTM(2, 2), lambda y, state: (lambda h, c: y + h + c)(*state)),
    "GRU": (lambda: stepnet.nn.GRU(2, 2), lambda y, state: y + state),
    "Stack of one": (lambda: stepnet.nn.Stack([stepnet.cells.GRU(2, 2)]), lambda y, state: y + state[0]),
    "Stack": (
        lambda: stepnet.nn.Stack([stepnet.cells.LSTM(2, 2), stepnet.cells.GRU(2, 2)]),
        lambda y, state: y + state[0][0] + state[0][1] + state[1],
    ),
}


@pytest.mark.parametrize(("make", "use"), few(NETS.values(), [NETS["LSTM"], NETS["Stack of one"]]), ids=NETS)
def test_a_module_gives_its_state_in_its_own_parts(make, use):
    x, net = torch.randn(4, 1, 3, 2, dtype=torch.float64, requires_grad=True), make().double()
    same(lambda v, s, out: use(*net(v[0])), [TensorArray(unstack_from=x)], 4, (x,))


FILL: dict[str, Any] = {
    "unstack": lambda a, x: a.unstack(x).stack(),
    "unstack along an axis": lambda a, x: (a.unstack(x, axis=1), a.stack(-1))[1],
    "unpack": lambda a, x: a.pack(0, a.unpack(LoDTensor.from_lengths(x, [[2, 1]]))[1]).values,
    "written over": lambda a, x: (a.unstack(x), a.write(1, x[0]), a.stack())[2],
}


@pytest.mark.parametrize("fill", FILL.values(), ids=FILL)
def test_an_array_that_is_made_and_filled_in_the_frame(fill):
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    same(lambda v, s, out: fill(TensorArray(), v[0]) * 2, [TensorArray(unstack_from=x)], 4, (x,))


def test_an_error_inside_leaves_nothing_behind():
    x = TensorArray(unstack_from=torch.ones(2, 2))

    def run(depth: int) -> None:
        with stepnet.create_whileloop([torch.tensor(0)]).frame() as (s,):
            kept.append(s)
            x.read(s)
            if depth:
                run(depth - 1)
            raise ZeroDivisionError

    kept: list[Any] = []
    for depth in (0, 1):
        with pytest.raises(ZeroDivisionError):
            run(depth)
        assert RECORDER.get() is None
        assert torch.overrides._get_current_function_mode() is None
        assert x.stack().sum() == 4
    with pytest.raises(StepError, match="outside its frame"):
        kept[0] + 1


def test_a_value_of_a_frame_is_of_its_thread():
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 2)
        loop.update(s, s + 1)

        def other(_: int) -> None:
            TensorArray(unstack_from=torch.ones(2)).stack()  # nothing is recorded here
            with pytest.raises(StepError, match="outside its frame"):
                s + 1

        at_once(other, 1)
    assert loop.results[0] == 2


def _stepnet(scope: Any) -> None:
    scope["h"] = torch.tanh(scope["x"] + scope["before"] @ WEIGHT)


WEIGHT = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)


def _rnn_op(x: Tensor) -> tuple[Tensor, Tensor]:
    op = RecurrentOp(_stepnet, ["x"], ["h"], [Memory("h", "before", shape=(4,))])
    scope = Scope({"x": x * 2})
    op.run(scope)
    return scope["h"], op.last["h"]


def _dynamic_rnn(x: Tensor) -> tuple[Tensor, Tensor]:
    scope = Scope({"x": LoDTensor.from_lengths(x.reshape(-1, 4), [[3, 0, 7]])})
    last = dynamic_recurrent(_stepnet, scope, ["x"], ["h"], [Memory("h", "before", shape=(4,))])
    return scope["h"].values, last["h"]


@pytest.mark.parametrize("run", [_rnn_op, _dynamic_rnn], ids=["RecurrentOp", "dynamic_recurrent"])
def test_an_rnn_op_in_a_frame(run):
    x = torch.randn(3, 5, 2, 4, dtype=torch.float64, requires_grad=True)

    def frame() -> tuple[Tensor, Tensor]:
        xs, out, last = TensorArray(unstack_from=x), TensorArray(size=3), TensorArray(size=3)
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s >= 3)
            h, final = run(xs.read(s))
            out.write(s, h)
            last.write(s, final)
            loop.update(s, s + 1)
        return out.stack(), last.stack()

    plain = [torch.stack(parts) for parts in zip(*map(run, x), strict=True)]
    found = frame()
    torch.testing.assert_close(found, plain)
    grads = [torch.autograd.grad(sum(t.square().sum() for t in r), [x, WEIGHT]) for r in (found, plain)]
    torch.testing.assert_close(*grads)


HELD: dict[str, Any] = {}


@pytest.mark.parametrize("held", ["a closure", "a global"])
def test_functions_see_an_array_that_the_loop_fills_as_it_is_at_the_step(held):
    x, out = TensorArray(unstack_from=torch.ones(4, 2, 3)), TensorArray()
    HELD["out"] = out
    array = (lambda: out) if held == "a closure" else (lambda: HELD["out"])
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == x.size())
        _, y = stepnet.while_loop(
            lambda k, v: k < 2, lambda k, v: (k + 1, v * (array().size() + 1)), (torch.tensor(0), x.read(s))
        )
        out.write(s, y)
        loop.update(s, s + 1)
    assert out.stack()[:, 0, 0].tolist() == [1, 4, 9, 16]
    assert "run step by step" in loop.explain()


def test_a_step_reads_what_the_frame_around_wrote_before():
    x, out = torch.randn(3, 2, 2), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= 3)
        y = stepnet.map_fn(lambda row: row + out.read(s - 1, torch.zeros(2, 2)).sum(), torch.ones(2, 2) * s)
        out.write(s, y + x[s])
        loop.update(s, s + 1)
    before, expected = torch.tensor(0.0), []
    for t in range(3):
        expected.append(t + before + x[t])
        before = expected[-1].sum()
    torch.testing.assert_close(out.stack(), torch.stack(expected))


def counted(rows: Tensor) -> Tensor:
    """The sum of the rows, by a frame."""
    steps, loop = TensorArray(unstack_from=rows), stepnet.create_whileloop([torch.tensor(0), rows[0] * 0])
    with loop.frame() as (t, total):
        loop.break_if(t == len(rows))
        loop.update(total, total + steps.read(t))
        loop.update(t, t + 1)
    return loop.results[1]


DECIDE = {
    "a frame": counted,
    "a while loop": lambda x: stepnet.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, h @ W.detach()), (torch.tensor(0), x)
    )[1].sum(0),
    "a number": lambda x: (x * 2 if x.max().item() > 1 else x).sum(0),
}


@pytest.mark.parametrize("inside", DECIDE.values(), ids=DECIDE)
def test_steps_of_a_recurrence_in_a_frame_decide_by_numbers(inside):
    x = torch.randn(3, 4, 5, 2, dtype=torch.float64, requires_grad=True)
    arrays = [TensorArray(unstack_from=x)]
    same(lambda read, *_: stepnet.map_fn(inside, read[0], backend="naive").sum(0), arrays, 3, [x])


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_function_inside_reads_is_read_at_each_call(grad):
    kept = types.SimpleNamespace(gain=1.0)

    def low(x, h):
        h = torch.tanh(x @ kept.weight * kept.gain + h)
        return h, h

    def run(x, h):
        parts, out = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == parts.size())
            out.write(s, stepnet.recurrent(low, parts.read(s), out.read(s - 1, h), axis=1)[1])
            loop.update(s, s + 1)
        return out.stack()

    with torch.set_grad_enabled(grad):
        for gain in (1.0, 1.0, 3.0):
            x, h = torch.randn(3, 2, 2, 4), torch.randn(2, 4)
            kept.weight, kept.gain = torch.randn(4, 4), gain
            expected, state = [], h
            for part in x:
                for row in part.unbind(1):
                    state = torch.tanh(row @ kept.weight * gain + state)
                expected.append(state)
            torch.testing.assert_close(run(x, h), torch.stack(expected))


def met_first(around: str, run: Any, x: Tensor, h: Tensor) -> None:
    if around == "vmap":
        torch.vmap(run, in_dims=(0, -1))(torch.stack((x, x)), torch.stack((h, h), -1))
    elif around == "grad":
        torch.func.grad(lambda x, h: run(x, h).sum())(x, h)
    else:
        torch.func.jvp(run, (x, h), (x, h))


@pytest.mark.parametrize("size", [2, 3, 4])  # of which frames remember other things
def test_what_frames_remember_is_no_transforms(size):
    w, u = torch.randn(2, size, size)

    def run(x, h):
        parts, out = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == parts.size())
            x_t, first, states = parts.read(s), out.read(s - 1, h), TensorArray()
            inner = stepnet.create_whileloop([torch.tensor(0)])
            with inner.frame() as (t,):
                inner.break_if(t == 2)
                state = states.read(t - 1, first)
                states.write(t, torch.tanh(x_t @ w + state @ u))
                inner.update(t, t + 1)
            out.write(s, states.stack()[-1])
            loop.update(s, s + 1)
        return out.stack()

    x, h = torch.randn(3, 2, size), torch.randn(2, size)
    met_first({2: "vmap", 3: "grad", 4: "jvp"}[size], run, x, h)
    expected, state = [], h
    for part in x:
        for _ in range(2):
            state = torch.tanh(part @ w + state @ u)
        expected.append(state)
    torch.testing.assert_close(run(x, h), torch.stack(expected))


def test_a_frame_that_has_no_plan_under_vmap():
    w = torch.randn(3, 3)

    def run(x, h):
        parts, out = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == parts.size())
            x_t = parts.read(s)
            out.write(s, torch.tanh((x_t - x_t.mean(0)) @ w + out.read(s - 1, h)))
            loop.update(s, s + 1)
        return out.stack()

    x, h = torch.randn(2, 3, 2, 3), torch.randn(2, 2, 3)
    many = torch.vmap(run)(x, h)
    for rows, state, states in zip(x, h, many, strict=True):
        for row, after in zip(rows, states, strict=True):
            state = torch.tanh((row - row.mean(0)) @ w + state)
            torch.testing.assert_close(after, state)
