"""Frames, while loops and the RNN ops in a module or on a tape are saved as loops, at any length."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from covering import every, few
from file_formats import run_onnx, run_openvino
from saved_modules import plain_loops
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, TensorArray, dynamic_recurrent, layers
from stepnet.errors import IRError
from stepnet.openvino import load, save
from stepnet.tape import Tape
from torch_since import torch_since


class Model(nn.Module):
    """A function with weights, so that a loop of it is traced as that of a module."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.W, self.cell = nn.Parameter(torch.randn(3, 3) / 2), nn.GRUCell(3, 3)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def up(self: Any, x: Tensor) -> Any:
    n = x.shape[0]
    xs, h = TensorArray(unstack_from=x), TensorArray(size=n)
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(n <= s)
        h.write(s, self.cell(xs.read(s), h.read(s - 1, x.new_zeros(x.shape[1:]))))
        loop.update(s, s + 1)
    return {"h": h.stack(), "n": loop.results[0]}


def asked(self: Any, x: Tensor) -> Any:
    """Single values of an array whose size stays open."""
    zero, h = x.new_zeros(x.shape[1:]), TensorArray(unstack_from=stepnet.recurrent(self.cell, x)[0])
    n = h.size()
    return h[n - 1] + h.read(0), h[n // 2], h.read(n, zero), h.read(-1, zero), h.read(n - n - 1, zero + 1)


def down(self: Any, x: Tensor) -> Any:
    n = x.shape[0]
    xs, h = TensorArray(unstack_from=x), TensorArray(size=n)
    loop = stepnet.create_whileloop([torch.tensor(n)])
    with loop.frame() as (s,):
        loop.break_if(s == 0)
        h.write(s - 1, torch.tanh(xs.read(s - 1) @ self.W + h.read(s, x.new_zeros(x.shape[1:]))))
        loop.update(s, s - 1)
    return h.stack()


def ended_by_the_data(self: Any, x: Tensor) -> Any:
    xs = TensorArray(unstack_from=x)
    loop = stepnet.create_whileloop([torch.tensor(0), x.new_zeros(x.shape[1:])])
    with loop.frame() as (s, total):
        loop.break_if((total.sum() > 5) | (s >= x.shape[0]))
        loop.update(s, s + 1)
        loop.update(total, total + xs.read(s).abs() @ self.W.abs() / total.shape[0] / total.numel())
    return loop.results


def counted(self: Any, x: Tensor) -> Any:
    n = x.shape[0]
    i, h = stepnet.while_loop(
        lambda i, h: i < n, lambda i, h: (i + 1, torch.tanh(h @ self.W + x[i])), (0, x.new_zeros(x.shape[1:]))
    )
    return {"i": torch.as_tensor(i), "h": h}


def until(self: Any, x: Tensor) -> Any:
    return stepnet.while_loop(lambda v: (v * v).sum() > 1, lambda v: (v * 0.9,), (x,))[0]


def rnn_op(self: Any, x: Tensor) -> Any:
    def stepnet_(scope: Any) -> None:
        scope["h"] = torch.tanh(scope["x"] @ scope["W"] + scope["before"])

    op = RecurrentOp(stepnet_, ["x"], ["h"], [Memory("h", "before", shape=(3,))])
    scope = Scope({"x": x, "W": self.W})
    op.run(scope)
    return {"h": scope["h"], "last": op.last["h"]}


LOOPS = {f.__name__: f for f in (up, asked, down, ended_by_the_data, counted, until, rnn_op)}


def tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return list(results.values() if isinstance(results, dict) else results)


@functools.lru_cache(maxsize=1)
def read(path: Path, written: int) -> Any:
    return load(path)


def check(path: Path, given: tuple[Tensor, ...], expected: list[Tensor], loops: int = 1) -> None:
    text = path.read_text()
    assert text.count('type="TensorIterator"') + text.count('type="Loop"') == loops
    ours = read(path, path.stat().st_mtime_ns)(*given)
    for i, value in enumerate(expected):
        torch.testing.assert_close(ours[i], value, rtol=1e-4, atol=1e-5)
    theirs = run_openvino(path, [v.numpy() for v in given])
    for i, value in enumerate(expected):
        torch.testing.assert_close(torch.as_tensor(theirs[i]).to(value.dtype), value, rtol=1e-4, atol=1e-5)


def check_at_other_sizes(run: Any, path: Path, sizes: Any = ((7, 4), (2, 1)), loops: int = 1) -> None:
    model = Model(run).eval()
    save(model, path, torch.randn(5, 2, 3))
    for steps, batch in sizes:
        x = torch.randn(steps, batch, 3)
        with torch.no_grad(), plain_loops():
            check(path, (x,), tensors(model(x)), loops)


since = torch_since("2.10", "its export fixes sizes that frames use as numbers")
NEWER = (asked, down, ended_by_the_data)


TABLE = [pytest.param(run, marks=since) if run in NEWER else run for run in LOOPS.values()]


@pytest.mark.parametrize("run", few(TABLE, TABLE[::3]), ids=LOOPS)
def test_a_loop_in_a_module(run, tmp_path):
    check_at_other_sizes(run, tmp_path / "model.xml", ((7, 4), (2, 1), (1, 2)))


def from_one(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray(unstack_from=x), TensorArray()
    h.write(0, x.new_zeros(x.shape[1:]))
    loop = stepnet.create_whileloop([torch.tensor(1)])
    with loop.frame() as (s,):
        loop.break_if(s == xs.size())
        h.write(s, self.cell(xs.read(s), h.read(s - 1)) + torch.zeros(xs.read(s).shape[0], 1))
        loop.update(s, s + 1)
    return h.stack()


def but_the_last(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s >= xs.size() - 1)
        h.write(s, self.cell(xs.read(s + 1), h.read(s - 1, x.new_zeros(x.shape[1:]))))
        loop.update(s, s + 1)
    return h.concat(0)


def along_another_axis(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray.unstack(x.transpose(0, 1), axis=1), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == xs.size())
        h.write(s, self.cell(xs.read(s), h.read(s - 1, x.new_zeros(x.shape[1:]))))
        loop.update(s, s + 1)
    return h.stack(axis=1)


@since
@pytest.mark.parametrize("run", few([from_one, but_the_last, along_another_axis], [from_one]))
def test_a_frame_over_a_part_of_its_array(run, tmp_path):
    check_at_other_sizes(run, tmp_path / "model.xml")


def test_a_frame_over_values_without_a_batch(tmp_path):
    def run(self: Any, x: Tensor) -> Any:
        xs, h = TensorArray(unstack_from=x), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == xs.size())
            h.write(s, torch.tanh(h.read(s - 1, torch.zeros(3)) + xs.read(s) @ self.W))
            loop.update(s, s + 1)
        return h.stack()

    model, path = Model(run).eval(), tmp_path / "model.xml"
    save(model, path, torch.randn(5, 3))
    for steps in (7, 2):
        x = torch.randn(steps, 3)
        with torch.no_grad():
            check(path, (x,), [model(x)])


def the_step_as_a_number(self: Any, x: Tensor) -> Any:
    xs, h, mixed = TensorArray(unstack_from=x), TensorArray(), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == xs.size())
        v = xs.read(s) * torch.sin(s / torch.arange(1.0, 4.0)) + self.W[s % 3]
        h.write(s, torch.tanh(h.read(s - 1, x.new_zeros(x.shape[1:])) @ self.W + v))
        loop.update(s, s + 1)
    back = stepnet.create_whileloop([torch.tensor(x.shape[0])])
    with back.frame() as (s,):
        back.break_if(s <= 0)
        v = h.read(s - 1)
        mixed.write(s - 1, torch.where(s % 2 == 0, v, v - v.mean(0)) / s)
        back.update(s, s - 1)
    return mixed.stack()


def ends_in_two_places(self: Any, x: Tensor) -> Any:
    xs, last = TensorArray(unstack_from=x), torch.tensor(x.shape[0]) - 1
    loop = stepnet.create_whileloop([last - torch.zeros((), dtype=torch.long), x[0]])
    with loop.frame() as (s, total):
        loop.break_if(s < 0)
        new = total + xs.read(s).abs()
        loop.break_if((new > 1).any(1).all())
        loop.update(s, s - 1)
        loop.update(total, new)
    return loop.results


def a_size_as_a_number(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == x.shape[0])
        v = xs.read(s)
        mean = v.sum() / v.numel() / x.shape[0] + (v / xs.size()).clamp(max=0.01 * x.shape[0])
        h.write(s, h.read(s - 1, x.new_zeros(x.shape[1:])) + v / v.shape[0] + mean)
        loop.update(s, s + 1)
    return h.stack()


def sizes_that_a_step_refers_to(self: Any, x: Tensor) -> Any:
    n, held, named = x.shape[0], [x.shape[1]], {"n": x.shape[0]}

    def step(by: int, x: Tensor, h: Tensor, times: int = n) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h / by + x * times / n - held[0] / named["n"])
        return h, h

    y, last = stepnet.recurrent(functools.partial(step, n), x, x[0])
    return y + last


def sizes_that_a_body_refers_to(self: Any, x: Tensor) -> Any:
    n, named = x.shape[0], {"n": x.shape[0]}
    return stepnet.while_loop(lambda i, v: i < named["n"], lambda i, v: (i + 1, v / n), (0, x[0]))[1]


def numbers_changed_in_place(self: Any, x: Tensor) -> Any:
    xs, last, first = TensorArray(unstack_from=x), torch.tensor(x.shape[0]), torch.zeros((), dtype=torch.long)
    last -= 1
    first.add_(1)
    total = stepnet.while_loop(lambda i, v: i < last, lambda i, v: (i + 1, torch.tanh(v) + 1), (0, x[0]))[1]
    return total + xs.read(last) * xs.read(first)


NUMBERS = [
    the_step_as_a_number, ends_in_two_places, a_size_as_a_number, sizes_that_a_step_refers_to,
    sizes_that_a_body_refers_to, numbers_changed_in_place,
]  # fmt: skip


@since
@pytest.mark.parametrize("run", few(NUMBERS, [sizes_that_a_body_refers_to]))
def test_numbers_are_those_of_what_the_file_is_given(run, tmp_path):
    """And not those of the example, which Python knows."""
    path, sizes = tmp_path / "model.xml", ((7, 4), (2, 1))
    check_at_other_sizes(run, path, sizes, loops=2 if run is the_step_as_a_number else 1)


@since
@pytest.mark.parametrize(
    "change", every(3, [lambda n: n.view(1).sub_(2), lambda n: n.mul_(0), lambda n: n.neg_()])
)
def test_a_number_that_is_not_known_any_more_is_told(change, tmp_path):
    """And not what it was before it was changed in place."""

    def run(self: Any, x: Tensor) -> Any:
        n = torch.tensor(x.shape[0])
        change(n)
        return TensorArray(unstack_from=x).read(n, x[0])

    with pytest.raises(IRError, match="could not be traced with sizes left open"):
        save(Model(run).eval(), tmp_path / "model.xml", torch.randn(5, 2, 3))


def each_row_by_itself(self: Any, x: Tensor) -> Any:
    """With a number for each row, and one that all rows share."""

    def going(h: Tensor, n: Tensor, i: Any) -> Tensor:
        return (h.abs().amax(1) > 0.1 * (i + 1)) & (n < 9)

    first = (3 * x[0], torch.zeros(x.shape[1], dtype=torch.long), 0)
    h, n, i = stepnet.while_loop(going, lambda h, n, i: (torch.tanh(h @ self.W) * 0.9, n + 1, i + 1), first)
    return h, n, torch.as_tensor(i)


def test_a_condition_for_each_row(tmp_path):
    check_at_other_sizes(each_row_by_itself, tmp_path / "model.xml", ((3, 7), (2, 1), (1, 4)))


def each_row_of_a_step(self: Any, x: Tensor) -> Any:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        loop = (lambda h, x: h.abs().amax(1) > 0.5), (lambda h, x: (h * 0.7 + 0.01 * x, x))
        h, _ = stepnet.while_loop(*loop, (h + x @ self.W, x))
        return h, h

    return stepnet.recurrent(step, x, x[0])


@pytest.mark.exhaustive  # not in a step: below
def test_a_condition_for_each_row_of_a_step(tmp_path):
    """In ONNX, which has loops inside loops."""
    model, path = Model(each_row_of_a_step).eval(), tmp_path / "model.onnx"
    stepnet.onnx.save(model, path, torch.randn(5, 2, 3))
    for steps, batch in ((7, 4), (1, 1)):
        x = 3 * torch.randn(steps, batch, 3)
        with torch.no_grad():
            found = [torch.as_tensor(value) for value in run_onnx(path, [x.numpy()])]
            torch.testing.assert_close(found, tensors(model(x)), rtol=1e-4, atol=1e-5)


def chosen(self: Any, x: Tensor) -> Any:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(x.sum() > 0, lambda x, h: (x + h, h.tanh()), lambda x, h: (h / 2, h * x), (x, h))

    x = torch.cond(x.sum() > 0, lambda x: x @ self.W, lambda x: x - 1, (x,))
    return stepnet.recurrent(step, x, x[0], backend="naive")


@torch_since("2.13", "its cond is compiled anew inside what traces it")
def test_torch_cond_is_a_choice(tmp_path):
    check_at_other_sizes(chosen, tmp_path / "model.xml", ((3, 4), (1, 2)))


def checked_sizes(self: Any, x: Tensor) -> Any:
    if x.shape[0] > 9:
        raise ValueError(f"{x.shape[0]} steps")
    assert x.shape[0] < 10, "too many"
    return x @ self.W * min(x.shape[0], 4)


def decided_by_a_size(self: Any, x: Tensor) -> Any:
    return x @ self.W + (1 if x.shape[0] > 4 else 0)


def one_step_otherwise(self: Any, x: Tensor) -> Any:
    return x @ self.W if x.shape[0] == 1 else x.relu()


@since
def test_a_size_that_python_decides_by_is_that_of_the_example(tmp_path):
    """Others would go its way in silence; what only raises an error leaves a size open."""
    path = tmp_path / "model.xml"
    check_at_other_sizes(checked_sizes, path, ((7, 2), (2, 2)), loops=0)
    for run in (decided_by_a_size, one_step_otherwise):
        check_at_other_sizes(run, path, ((5, 2),), loops=0)
        with pytest.raises(IRError, match="does not fit"):
            load(path)(torch.randn(2, 2, 3))


def one_row_otherwise(self: Any, x: Tensor) -> Any:
    return stepnet.recurrent(lambda x, h: (x, h * 2 if x.shape[0] == 1 else h + x), x, x[0])[1]


def rows_of_arrays(self: Any, x: Tensor) -> Any:
    return stepnet.map_fn(lambda v: torch.tanh(v @ self.W) - v.mean(), TensorArray(unstack_from=x)).stack()


def test_a_function_of_the_values_of_an_array(tmp_path):
    check_at_other_sizes(rows_of_arrays, tmp_path / "model.xml", ((7, 4), (2, 1)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("reverse", few([False, True], [True]))
def test_dynamic_recurrent_on_a_tape(reverse, tmp_path):
    W = nn.Parameter(torch.randn(3, 3) / 2)

    def run(x: LoDTensor) -> Any:
        def stepnet_(scope: Any) -> None:
            scope["h"] = torch.tanh(scope["x"] @ W + scope["before"])

        scope = Scope({"x": x})
        memory = Memory("h", "before", shape=(3,), value=0.5)
        dynamic_recurrent(stepnet_, scope, ["x"], ["h"], [memory], reverse=reverse)
        return scope["h"]

    with Tape() as tape:
        out = layers.pooling(layers.apply(run, layers.data("x", layers.Sequence(layers.Dense(3)))), "sum")
    topology, path = tape.topology(out), tmp_path / "tape.xml"
    topology.save(path)
    for lengths in ([2, 0, 6, 1], [1]):
        x = LoDTensor.from_lengths(torch.randn(sum(lengths), 3), [lengths])
        with torch.no_grad():
            expected = topology(x=x)[0]
            torch.testing.assert_close(stepnet.load(path)(x=x)[0], expected)
        openvino = pytest.importorskip("openvino")
        compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled({"x": x.to_padded()[0].numpy(), "x.lengths_0": x.lengths().numpy()})[0]
        torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-4, atol=1e-5)


def test_a_ragged_static_input_is_told(tmp_path):
    def run(self: Any, x: LoDTensor) -> Any:
        def stepnet_(scope: Any) -> None:
            scope["h"] = torch.tanh(stepnet.sequence_pool(scope["m"], "sum") + scope["before"])

        scope = Scope({"x": x, "m": x})
        memory = Memory("h", "before", shape=(3,))
        return dynamic_recurrent(stepnet_, scope, ["x"], ["h"], [memory], static_inputs=["m"])["h"]

    with pytest.raises(IRError, match="static input 'm' is ragged"):
        save(Model(run).eval(), tmp_path / "model.xml", LoDTensor.from_lengths(torch.randn(6, 3), [[4, 2]]))


def test_dynamic_recurrent(tmp_path):
    def run(self: Any, x: LoDTensor) -> Any:
        def stepnet_(scope: Any) -> None:
            scope["h"] = torch.tanh(scope["x"] @ self.W + scope["before"])

        scope = Scope({"x": x})
        last = dynamic_recurrent(stepnet_, scope, ["x"], ["h"], [Memory("h", "before", shape=(3,))])
        return {"h": scope["h"], "last": last["h"]}

    model, path = Model(run).eval(), tmp_path / "model.xml"
    save(model, path, LoDTensor.from_lengths(torch.randn(6, 3), [[4, 2]]))
    x = LoDTensor.from_lengths(torch.randn(9, 3), [[2, 0, 6, 1]])
    with torch.no_grad():
        expected = model(x)
    check(path, (x.to_padded()[0], x.lengths()), [expected["h"].to_padded()[0], expected["last"]])


def test_a_frame_on_a_tape(tmp_path):
    W = nn.Parameter(torch.randn(3, 4))
    with Tape() as tape:
        rows = layers.data("rows", layers.Dense(3))
        xs, h = TensorArray(unstack_from=rows), TensorArray()
        n = xs.size()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == n)
            h.write(s, torch.tanh(h.read(s - 1, torch.zeros(4)) + xs.read(s) @ W))
            loop.update(s, s + 1)
        out = layers.fc(h.stack(), 2)
    topology, path = tape.topology(out), tmp_path / "tape.xml"
    topology.save(path)
    for steps in (3, 8):
        x = torch.randn(steps, 3)
        with torch.no_grad():
            check(path, (x,), [topology(rows=x)[0]])


def where_the_data_ends(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0), x.new_zeros(3)])
    with loop.frame() as (s, total):
        loop.break_if((total.sum() > 3) | (s >= x.shape[0]))
        h.write(s, total + 1)
        loop.update(s, s + 1)
        loop.update(total, total + xs.read(s).abs().mean(0))
    return {"h": h.stack(), "n": loop.results[0]}


def before_from_the_array(self: Any, x: Tensor) -> Any:
    h, first = TensorArray(), x[0]
    loop = stepnet.create_whileloop([torch.tensor(0), torch.tensor(True)])
    with loop.frame() as (s, goes_on):
        loop.break_if(~goes_on)
        v = torch.tanh(h.read(s - 1, first) @ self.W * 0.8)
        h.write(s, v)
        loop.update(s, s + 1)
        loop.update(goes_on, v.abs().sum() > 0.5)
    return h.stack()


def appended(self: Any, x: Tensor) -> Any:
    a, b = TensorArray(), TensorArray()
    loop = stepnet.create_whileloop([x[0]])
    with loop.frame() as (h,):
        loop.break_if(h.abs().sum() < 0.5)
        a.write(h * 0.6)
        b.write((h * 0.6).sum(-1))
        loop.update(h, h * 0.6)
    return a.stack(), b.stack(), loop.results[0]


def arrays_of_a_while_loop(self: Any, x: Tensor) -> Any:
    def body(i: Any, h: Tensor, xs: TensorArray, out: TensorArray) -> Any:
        h = self.cell(xs.read(i), h)
        out.write(i, h)
        return i + 1, h, xs, out

    first = (0, x.new_zeros(x.shape[1:]), TensorArray(unstack_from=x), TensorArray(size=x.shape[0]))
    _, h, _, out = stepnet.while_loop(lambda i, *_: i < x.shape[0], body, first)
    return out.stack(), h


def an_array_in_a_dict(self: Any, x: Tensor) -> Any:
    def body(now: Any) -> Any:
        h = torch.tanh(now["h"] @ self.W)
        now["out"].write(h)
        return ({"i": now["i"] + 1, "h": h, "out": now["out"]},)

    first = {"i": torch.tensor(0), "h": x[0], "out": TensorArray()}
    (last,) = stepnet.while_loop(lambda now: now["i"] < x.shape[0], body, (first,))
    return last["out"].stack()


IN_ONNX = (where_the_data_ends, an_array_in_a_dict)


@since
@pytest.mark.parametrize(
    "run",
    few(
        [where_the_data_ends, before_from_the_array, appended, arrays_of_a_while_loop, an_array_in_a_dict],
        [appended, arrays_of_a_while_loop],
    ),
)
def test_an_array_that_is_written_once_in_each_turn(run, tmp_path):
    """Where the data ends the loop, what is written is joined."""
    path = tmp_path / "model.xml"
    check_at_other_sizes(run, path, ((7, 4), (2, 1)))
    if run not in IN_ONNX:
        return
    model, x = Model(run).eval(), torch.randn(4, 3, 3)
    stepnet.onnx.save(model, path.with_suffix(".onnx"), torch.randn(5, 2, 3))
    for want, found in zip(tensors(model(x)), run_onnx(path.with_suffix(".onnx"), [x.numpy()]), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), want, rtol=1e-4, atol=1e-5)


def from_where_the_data_says(self: Any, x: Tensor) -> Any:
    h = TensorArray()
    loop = stepnet.create_whileloop([(x > 9).sum(), x[0]])
    with loop.frame() as (s, v):
        loop.break_if(v.abs().sum() < 0.5)
        h.write(s, v)
        loop.update(s, s + 1)
        loop.update(v, v * 0.5)
    return h.stack()


def grows(self: Any, x: Tensor) -> Any:
    xs = TensorArray(unstack_from=x)
    loop = stepnet.create_whileloop([torch.tensor(0), x[0]])
    with loop.frame() as (s, grown):
        loop.break_if(s == x.shape[0])
        loop.update(s, s + 1)
        loop.update(grown, torch.cat([grown, xs.read(s)]))
    return loop.results[1]


def rows_mixed(self: Any, x: Tensor) -> Any:
    return stepnet.while_loop(lambda v: (v > 1).any(1), lambda v: (v * 0.5 - v.mean(0),), (x[0],))[0]


def a_fixed_count(self: Any, x: Tensor) -> Any:
    xs, h = TensorArray(unstack_from=x), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 5)
        h.write(s, h.read(s - 1, x.new_zeros(x.shape[1:])) + xs.read(s))
        loop.update(s, s + 1)
    return h.stack()


def an_array_of_a_closure(self: Any, x: Tensor) -> Any:
    xs = TensorArray(unstack_from=x)
    _, total = stepnet.while_loop(
        lambda i, total: i < x.shape[0], lambda i, total: (i + 1, total + xs.read(i)), (torch.tensor(0), x[0])
    )
    return total


@pytest.mark.parametrize(
    ("run", "words"),
    every(
        2,
        [
            (from_where_the_data_says, "an array is written elsewhere than at the step"),
            (grows, "what a loop in a file carries has one shape"),
            (rows_mixed, "a row is computed otherwise among others"),
            (one_row_otherwise, "it became 2 in the trace"),
            (a_fixed_count, "it became 5 in the trace"),
            (an_array_of_a_closure, "reads a tensor that was not found again"),
        ],
    ),
)
def test_what_cannot_be_saved_as_a_loop_says_so(run, words, tmp_path):
    with pytest.raises(IRError) as caught:
        save(Model(run).eval(), tmp_path / "model.xml", torch.randn(5, 2, 3))
    assert words in str(caught.value)
    assert not (tmp_path / "model.xml").exists()
