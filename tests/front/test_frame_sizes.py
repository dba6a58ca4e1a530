"""Sizes in frames are those of each step: as numbers that are recorded, or checked; never those of step 0."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepnet
from covering import every, examples, few
from front.frame_laws import as_frame, by_hand, same
from stepnet import LoDTensor, TensorArray, layers
from stepnet.errors import StepError
from stepnet.front.scan_form import scan_form
from stepnet.front.template import literals
from stepnet.tape import Tape
from torch_since import torch_since

BACKEND = "eager"  # sizes are the same whatever runs the scans

W = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
BOOT = torch.randn(9, 2, dtype=torch.float64)
LENGTHS = [[2, 0, 3, 1], [3], [0, 0], [], [1, 1], [4, 4, 1]]


def ragged(lengths: list[int]) -> tuple[TensorArray, torch.Tensor]:
    rows = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    array, _ = TensorArray.unpack(LoDTensor.from_lengths(rows, [lengths]))
    return array, rows


# What a step may do with the sizes of what it read, `x`, and of what was written before.
SIZES: dict[str, Any] = {
    "shape": lambda x, s, out: x.sum() / x.shape[0],
    "size": lambda x, s, out: x.sum(0) / x.size(0) - x.size(-1),
    "size()": lambda x, s, out: x * x.size()[0],
    "numel": lambda x, s, out: x / x.numel() + x.shape.numel(),
    "arithmetic": lambda x, s, out: x * (2 * x.shape[0] - 1) / (x.shape[0] + 1) ** 0.5 + x.shape[0] // 2,
    "divmod": lambda x, s, out: x * sum(divmod(x.shape[0], 2)) + sum(divmod(7, x.shape[0] + 1)),
    "reshape": lambda x, s, out: x.reshape(x.shape[0] * 2, 1),
    "view": lambda x, s, out: x.view(x.shape[0], 1, -1),
    "new_zeros": lambda x, s, out: x.new_zeros(x.shape[0], 3) + x.sum(),
    "zeros": lambda x, s, out: torch.zeros(x.shape[0], 2, dtype=torch.float64) + x,
    "full": lambda x, s, out: torch.full((x.shape[0], 2), 0.5, dtype=torch.float64) * x,
    "a torch.Size": lambda x, s, out: torch.zeros(torch.Size([x.shape[0], 2]), dtype=torch.float64) + x,
    "zeros of the shape": lambda x, s, out: torch.zeros(x.shape, dtype=torch.float64) + x,
    "expand": lambda x, s, out: BOOT[:1].expand(x.shape[0], 2) * x,
    "expand of what was read": lambda x, s, out: x[:, :1].expand(x.shape[0], 3),
    "repeat": lambda x, s, out: BOOT[:1].repeat(x.shape[0], 1) * x,
    "arange": lambda x, s, out: torch.arange(x.shape[0]).unsqueeze(1) * x,
    "narrow": lambda x, s, out: BOOT.narrow(0, 0, x.shape[0]) * x,
    "split": lambda x, s, out: BOOT.split([x.shape[0], 9 - x.shape[0]])[0] * x,
    "a slice of a tensor outside": lambda x, s, out: BOOT[: x.shape[0]] * x,
    "the state shrinks": lambda x, s, out: torch.tanh(out.read(s - 1, BOOT)[: x.shape[0]] @ W + x),
    "the state shrinks, counted from the end": lambda x, s, out: out.read(s - 1, BOOT)[-x.shape[0] :] + x,
    "the state grows": lambda x, s, out: torch.cat([out.read(s - 1, BOOT[:1]), x]),
    "the state grows, and is counted": lambda x, s, out: torch.cat([
        out.read(s - 1, BOOT[:1]) / out.read(s - 1, BOOT[:1]).shape[0], x]),
    "features are the same": lambda x, s, out: sum(x[:, i] * i for i in range(x.shape[1])),
    "unbind of features": lambda x, s, out: sum(x.unbind(1)),
    "layer_norm": lambda x, s, out: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "dim": lambda x, s, out: x * x.dim() + x.stride(0),
    "a condition that holds at every step": lambda x, s, out: x if x.shape[0] > 0 else x * 2,
    "max": lambda x, s, out: x / max(x.shape[0], 1),
    "tensor": lambda x, s, out: x * torch.tensor(x.shape[0]),
    "float": lambda x, s, out: x / math.sqrt(x.shape[1]),
    "the size of an array": lambda x, s, out: x * out.size(),
    "a number more than the size of an array": lambda x, s, out: x * (2 * out.size() + 1),
}  # fmt: skip


@pytest.mark.parametrize("body", few(SIZES.values(), [*SIZES.values()][::2]), ids=SIZES)
def test_sizes_are_those_of_the_step(body):
    for lengths in LENGTHS:
        array, rows = ragged(lengths)
        same(lambda x, s, out: body(x[0], s, out), [array], len(array), (rows, W))


def test_the_size_of_an_array_that_a_scan_fills():
    steps = torch.ones(4, 2)
    for size, expected in ((4, [5, 5, 5, 5]), (6, [7, 7, 7, 7]), (2, [3, 3, 3, 4]), (0, [1, 2, 3, 4])):
        x, out = TensorArray(unstack_from=steps), TensorArray(size=size)
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == x.size())
            out.write(s, x.read(s) * (out.size() + 1))
            loop.update(s, s + 1)
        assert [int(out[t][0]) for t in range(4)] == expected
        assert ("raised to a scan" in loop.explain()) == (size >= 4)
    x, out = TensorArray(unstack_from=torch.ones(9, 2)), TensorArray(size=3)
    loop = stepnet.create_whileloop([torch.tensor(5)])
    with loop.frame() as (s,):
        loop.break_if(s < out.size())  # of 6 places after the first step
        out.write(s, x.read(s))
        loop.update(s, s - 1)
    assert (loop.results[0].item(), out.size()) == (4, 6)


def test_a_loop_without_steps_reads_nothing():
    rows = TensorArray()
    for length in (2, 0, 3):
        rows.write(torch.ones(length, 2))
    ends = TensorArray()
    outer = stepnet.create_whileloop([torch.tensor(0)])
    with outer.frame() as (s,):
        outer.break_if(s == rows.size())
        x = rows.read(s)
        inner = stepnet.create_whileloop([torch.tensor(0), torch.zeros(2)])
        with inner.frame() as (t, h):
            inner.break_if(t == x.shape[0])
            inner.update(h, h * 2 + x[t])
            inner.update(t, t + 1)
        ends.write(s, inner.results[1])
        outer.update(s, s + 1)
    assert ends.stack()[:, 0].tolist() == [3, 0, 7]


TOLD: dict[str, Any] = {
    "len": lambda x, s, out: x.sum() / len(x),
    "len of what follows": lambda x, s, out: x.sum() / len(torch.tanh(x)),
    "int": lambda x, s, out: x / int(x.shape[0]),
    "float": lambda x, s, out: x / float(x.shape[0]),
    "range": lambda x, s, out: sum(x[i] for i in range(x.shape[0])),
    "iteration": lambda x, s, out: sum(x),
    "unbind": lambda x, s, out: sum(x.unbind(0)),
    "if": lambda x, s, out: x if x.shape[0] > 2 else x * 2,
    "two shapes": lambda x, s, out: x * 2 if x.shape == (3, 2) else x,
    "len of an array": lambda x, s, out: x * len(out),
    "a set": lambda x, s, out: x if x.shape[0] in {3, 2} else x * 2,
    "a dict": lambda x, s, out: x * {2: 1.5}.get(x.shape[0], 3.0),
    "round": lambda x, s, out: x * round(x.shape[0] / 3),
    "a list": lambda x, s, out: sum([x] * x.shape[0]),
    "the number of parts": lambda x, s, out: sum(x.split(1)),
}


@pytest.mark.parametrize("body", every(2, TOLD.values()), ids=TOLD)
def test_a_number_for_python_must_be_the_same_at_every_step(body):
    array, rows = ragged([3, 1, 2])
    with pytest.raises(StepError, match="changes from step to step") as caught:
        as_frame(lambda x, s, out: body(x[0], s, out), [array], len(array))
    assert "value.shape[0] and array.size() in place of len()" in str(caught.value)
    assert "test_frame_sizes.py:" in str(caught.value)
    # where it is the same at every step, it is the number
    array, rows = ragged([2, 2, 2])
    if body is not TOLD["len of an array"]:
        same(lambda x, s, out: body(x[0], s, out), [array], len(array), (rows,))


def test_sizes_of_dense_arrays_are_plain_integers():
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)

    def body(values: Any, s: Any, out: Any) -> Any:
        (v,) = values
        assert type(v.shape[0]) is type(v.size(1)) is type(v.numel()) is type(len(torch.relu(v))) is int
        pre = out.read(s - 1, BOOT[:3])
        assert len(pre) == 3
        return torch.tanh(pre @ W + v) / pre.shape[0]

    same(body, [TensorArray(unstack_from=x)], 4, (x, W))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=4), st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=2)
)
def test_frames_equal_loops_by_hand(lengths, names):
    array, rows = ragged(lengths)

    def body(values: Any, s: Any, out: Any) -> Any:
        (x,) = values
        for name in names:
            x = x * 0.5 + SIZES[name](x, s, TensorArray() if "state" in name else out).sum()
        return x

    same(body, [array], len(array), (rows, W))


# What a loop variable may become whose sizes change from step to step, from x [2] and itself [n, 2].
CHANGING: dict[str, Any] = {
    "cat": lambda h, x: torch.cat([h, x[None]]),
    "cat, and its sizes": lambda h, x: torch.cat([h / h.shape[0] * h.numel(), x[None] / h.size(0)]),
    "cut": lambda h, x: h[1:] + x,
    "cut to a size": lambda h, x: h[: h.shape[0] - 1] * x,
    "repeat": lambda h, x: (h * x).repeat(2, 1),
    "as it broadcasts": lambda h, x: h[:1] + x + W[:, :1] @ W[:1],
    "chosen by its numbers": lambda h, x: torch.cat([h, x[None]])[torch.cat([h, x[None]]).sum(1) > 0],
    "a recurrence over it": lambda h, x: torch.cat([
        h, stepnet.recurrent(lambda v, s: (v @ W + s,) * 2, h[:, None], x[None])[1]]),
    "while_loop": lambda h, x: stepnet.while_loop(
        lambda i, v: i < 2, lambda i, v: (i + 1, v * v.shape[0]), (0, torch.cat([x[None], h])))[1],
    "of one size after all": lambda h, x: h * h.shape[0] + x / h.numel(),
}  # fmt: skip


def turns(body: Any, x: torch.Tensor, h: Any, frame: bool) -> Any:
    """The last value of a loop variable that starts as `h`: of a frame, or of the loop by hand."""
    if not frame:
        for row in x:
            h = body(h, row)
        return h
    steps, loop = TensorArray(unstack_from=x), stepnet.create_whileloop([torch.tensor(0), h])
    with loop.frame() as (s, v):
        loop.break_if(s == steps.size())
        loop.update(s, s + 1)
        loop.update(v, body(v, steps.read(s)))
    return loop.results[1]


@pytest.mark.covering(1)
@pytest.mark.parametrize("body", CHANGING.values(), ids=CHANGING)
@pytest.mark.parametrize("count", [0, 3])
def test_sizes_of_a_loop_variable_change_from_step_to_step(body, count):
    x = torch.randn(count, 2, dtype=torch.float64, requires_grad=True)
    h = torch.rand(4, 2, dtype=torch.float64).requires_grad_()
    first, second = [], []
    for frame in (True, False):
        y = turns(body, x, h, frame)
        first.append(
            [y, *torch.autograd.grad(y.pow(3).sum(), (x, h, W), create_graph=True, allow_unused=True)]
        )
        total = sum(g.pow(2).sum() for g in first[-1][1:] if g is not None)
        second.append(torch.autograd.grad(total, (x, h), allow_unused=True))
    for a, b in (*zip(*first, strict=True), *zip(*second, strict=True)):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_loop_variable_that_grows_in_a_frame_in_a_frame():
    blocks = torch.randn(3, 4, 2, dtype=torch.float64)
    array, means = TensorArray(unstack_from=blocks), TensorArray()
    outer = stepnet.create_whileloop([torch.tensor(0), BOOT[:1]])
    with outer.frame() as (s, h):
        outer.break_if(s == 3)
        grown = turns(CHANGING["cat, and its sizes"], array.read(s), h, True)
        means.write(s, grown.sum(0) / grown.shape[0])
        outer.update(s, s + 1)
        outer.update(h, grown[: h.shape[0] + 1])
    h, expected = BOOT[:1], []
    for block in blocks:
        grown = turns(CHANGING["cat, and its sizes"], block, h, False)
        expected.append(grown.mean(0))
        h = grown[: h.shape[0] + 1]
    torch.testing.assert_close(means.stack(), torch.stack(expected))
    torch.testing.assert_close(outer.results[1], h)


def test_an_array_of_a_step_is_that_of_each_step_in_a_scan():
    blocks, ends = torch.randn(3, 4, 2, dtype=torch.float64), TensorArray()
    array, outer = TensorArray(unstack_from=blocks), stepnet.create_whileloop([torch.tensor(0)])
    with outer.frame() as (s,):
        outer.break_if(s == 3)
        ends.write(s, turns(lambda h, x: torch.tanh(h + x), array.read(s), ends.read(s - 1, BOOT[:2]), True))
        outer.update(s, s + 1)
    step = scan_form(outer).step
    assert not any(isinstance(leaf, TensorArray) for call in step.calls for leaf in literals(call.args))
    h = BOOT[:2]
    for block in blocks:
        h = turns(lambda h, x: torch.tanh(h + x), block, h, False)
    torch.testing.assert_close(ends.read(2), h)


def test_what_does_not_fit_at_a_later_step_is_told_with_its_line():
    x = torch.randn(3, 2, dtype=torch.float64)
    with pytest.raises(StepError, match="'add' fails at step 1") as caught:
        turns(lambda h, row: torch.cat([h, row[None]]) + BOOT[:2], x, BOOT[:1], True)
    assert "test_frame_sizes.py:" in str(caught.value)
    for told in (len, lambda h: sum(1 for _ in range(h.shape[0]))):
        with pytest.raises(StepError, match="changes from step to step"):
            turns(lambda h, row, told=told: torch.cat([h * told(h), row[None]]), x, BOOT[:1], True)


def test_a_frame_may_begin_where_what_it_reads_is_of_other_sizes():
    array, rows = ragged([3, 1, 2])  # 3 rows at step 0, where no step begins
    loop = stepnet.create_whileloop([torch.tensor(2), BOOT[:1]])
    with loop.frame() as (s, h):
        loop.break_if(s < 1)
        x = array.read(s)
        loop.update(s, s - 1)
        loop.update(h, torch.cat([h, BOOT[:1]])[: x.shape[0]] + x)
    expected = torch.cat([BOOT[:1] + array.read(2), BOOT[:1]]) + array.read(1)
    torch.testing.assert_close(loop.results[1], expected)
    both = torch.zeros(2, 2, dtype=torch.float64)
    same(lambda x, s, out: both[: x[0].shape[0]] + x[0], [TensorArray(unstack_from=rows)], 2, (rows,))
    loop = stepnet.create_whileloop([torch.tensor(1), both])
    with loop.frame() as (s, h):
        loop.break_if(s > 1)
        loop.update(s, s + 1)
        loop.update(h, h + array.read(s))
    torch.testing.assert_close(loop.results[1], array.read(1))


def test_the_second_run_of_a_frame_sees_the_sizes_of_its_own():
    """What a frame records is remembered: not the sizes."""
    for lengths in ([3, 1], [1, 1, 1], [3, 2], [2, 2], [3, 1]):
        array, rows = ragged(lengths)
        same(
            lambda x, s, out: x[0].sum() / x[0].shape[0] + BOOT[: x[0].size(0)], [array], len(array), (rows,)
        )


def test_a_frame_keeps_the_modes_of_its_lines():
    x = torch.randn(3, 2, 2, requires_grad=True)
    w = torch.randn(2, 2, requires_grad=True)

    def body(values: Any, s: Any, out: Any) -> Any:
        (v,) = values
        with torch.no_grad():
            scale = (v @ w).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = v @ w
        return v @ w * scale + low.float()

    arrays = [TensorArray(unstack_from=x)]
    found, expected = (torch.stack(list(run(body, arrays, 3))) for run in (as_frame, by_hand))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), (x, w)), torch.autograd.grad(expected.sum(), (x, w))
    )
    with torch.inference_mode():
        torch.testing.assert_close(torch.stack(list(as_frame(body, arrays, 3))), expected)


def test_what_is_changed_in_place_from_outside_is_refused():
    buffer = torch.zeros(3, 2)
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with pytest.raises(StepError, match="in place"), loop.frame() as (s,):
        buffer[s] = 1.0
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with pytest.raises(StepError, match="in place"), loop.frame() as (s,):
        buffer += s
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with pytest.raises(StepError, match="from outside the frame once") as caught, loop.frame():
        buffer.view(-1).add_(1)
    assert "test_frame_sizes.py:" in str(caught.value)
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with pytest.raises(StepError, match="from outside the frame once"), loop.frame():
        torch.add(buffer, 1, out=buffer)
    assert float(buffer.sum()) == 0


def test_what_is_made_in_a_frame_may_be_changed_in_place():
    out, loop = TensorArray(), stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 2)
        mask = torch.zeros(3)
        mask[1:].add_(1)
        mask.view(3).mul_(2)
        own = torch.nn.Linear(3, 3).requires_grad_(False).weight.zero_()
        out.write(s, mask * s + own.sum())
        loop.update(s, s + 1)
    assert out.stack().tolist() == [[0, 0, 0], [0, 2, 2]]


NORMS: dict[str, Any] = {
    "of a call": lambda norm, v: torch.nn.functional.batch_norm(
        v, norm.running_mean, norm.running_var, training=True
    ),
    "of a recurrence": lambda norm, v: stepnet.recurrent(lambda x, h: (norm(x), h), v, (), backend="naive")[
        0
    ],
    "of a loop": lambda norm, v: stepnet.while_loop(
        lambda i, z: i < 2, lambda i, z: (i + 1, norm(v[i])), (0, v[0])
    )[1],
}


@pytest.mark.parametrize("call", NORMS.values(), ids=NORMS)
def test_statistics_are_counted_once_for_each_step(call):
    """Trying whether values may be rows of a batch must not count."""
    x, found, expected = torch.randn(3, 2, 4, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    found.num_batches_tracked = expected.num_batches_tracked = None
    steps, loop = TensorArray(unstack_from=x), stepnet.create_whileloop([torch.tensor(0)])
    out = TensorArray()
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        out.write(s, call(found, steps.read(s)))
        loop.update(s, s + 1)
    torch.testing.assert_close(out.stack(), torch.stack([call(expected, v) for v in x]))
    torch.testing.assert_close(found.state_dict(), expected.state_dict())


# What takes the number of rows of a value of which nothing is known, among other arguments or alone.
OF_UNKNOWN: dict[str, Any] = {
    "expand": lambda n, a: BOOT[:1].expand(n, 2) + BOOT[:1].expand(n, -1) + BOOT[:1].expand(a.shape),
    "reshape and view": lambda n, a: a.reshape(n * 2, 1).view(n, 2) + a.t().reshape(2, n).T,
    "unflatten": lambda n, a: a.reshape(-1).unflatten(0, (n, 2)),
    "repeat and tile": lambda n, a: BOOT[:1].repeat(n, 1) + BOOT[:1].tile(n, 1),
    "permute": lambda n, a: BOOT[:2].permute(n // n, n * 0) + (n + 1) - 2 % n,
    "new tensors": lambda n, a: a.new_zeros(n, 2) + BOOT.new_ones(n, 2) + BOOT.new_full((n, 2), 3.0),
    "made": lambda n, a: torch.zeros(n, 2) + torch.ones(n + 1, 2)[1:] + torch.arange(n)[:, None],
    "of shapes": lambda n, a: torch.zeros(a.shape[:1] + (2,)) + torch.zeros(a.size()) + a.shape.numel(),  # noqa: RUF005
    "of other sizes": lambda n, a: torch.zeros(a.numel() // 2, a.size(-1)) + torch.zeros(n, a.dim()),
    "in parts": lambda n, a: BOOT.split([n, 9 - n])[0] + BOOT.narrow(0, 0, n) + BOOT[:n],
    "an array": lambda n, a: torch.zeros(TensorArray(unstack_from=a).size(), 2) + n**0.5 + 1 / n,
}  # fmt: skip


@torch_since("2.10", "its operators take no open size among numbers")
@pytest.mark.parametrize("on_tape", [False, True])
def test_sizes_of_what_nothing_is_known_of_are_sizes(on_tape):
    x = torch.randn(3, 2, dtype=torch.float64)
    h = torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]], dtype=torch.float64)

    def body(s: Any, x: Any, h: Any) -> list[Any]:
        rows = h[h[:, 0] >= s * h[0, 0]]
        return [function(rows.shape[0], rows) + x for function in OF_UNKNOWN.values()]

    def run(x: Any, h: Any) -> Any:
        array, outs = TensorArray(unstack_from=x), [TensorArray() for _ in OF_UNKNOWN]
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == 3)
            for out, value in zip(outs, body(s, array.read(s), h), strict=True):
                out.write(s, value)
            loop.update(s, s + 1)
        return [out.read(i) for i in range(3) for out in outs]

    if on_tape:
        with Tape() as tape:
            found = run(layers.data("x", layers.Dense(2)), layers.data("h", layers.Dense(2)))
        (found,), _ = tape.topology([found])(x=x, h=h)
    else:
        found = run(x, h)
    torch.testing.assert_close(found, [v for s in range(3) for v in body(s, x[s], h)])


def test_python_is_told_that_it_needs_a_size_of_which_nothing_is_known():
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with (
        pytest.raises(StepError, match="here it has none yet") as caught,
        loop.frame() as (s,),
    ):
        range(BOOT[BOOT[:, 0] > s].shape[0])
    assert "test_frame_sizes.py:" in str(caught.value)
