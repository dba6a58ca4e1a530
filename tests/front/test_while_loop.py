"""while_loop against plain Python loops: values, every gradient, memory, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from front.live_memory import LiveMemory
from outcomes import gradients
from stepnet.data.array import TensorArray
from stepnet.data.lod import LoDTensor
from stepnet.errors import StepError
from stepnet.repeat import while_loop

CHECKPOINTS = [None, 1, 3, 100, True]


def f64(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def closed_over_weight(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The carry starts without a gradient and gets one from the weight."""
    weight = f64(3, 3)
    start = f64(2, 3, grad=False)
    _, h = loop(lambda i, h: i < 5, lambda i, h: (i + 1, torch.tanh(h @ weight)), (torch.tensor(0), start))
    return [h], [weight]


def zero_trips(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    weight, start = f64(3, 3), f64(2, 3)
    _, h = loop(lambda i, h: i < 0, lambda i, h: (i + 1, h @ weight), (torch.tensor(0), start))
    return [h * weight.sum()], [weight, start]


def trips_by_data(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    rate, start = torch.tensor(1.7, dtype=torch.float64, requires_grad=True), f64(4)
    _, x = loop(lambda n, x: x.abs().sum() < 1000, lambda n, x: (n + 1, x * rate), (torch.tensor(0), start))
    return [x], [rate, start]


def loop_in_a_loop(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    a, b, start = f64(3, 3), f64(3, 3), f64(2, 3)

    def outer(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        inner = loop(lambda j, h: j < i, lambda j, h: (j + 1, torch.tanh(h @ b)), (torch.tensor(0), h))
        return i + 1, torch.sin(inner[1] @ a)

    _, h = loop(lambda i, h: i < 4, outer, (torch.tensor(0), start))
    return [h], [a, b, start]


def growing_arrays(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Each step reads the two before it, and writes two arrays."""
    weight, start = f64(3, 3), f64(2, 3)

    def body(i: Tensor, sums: TensorArray, steps: TensorArray) -> tuple[Tensor, TensorArray, TensorArray]:
        h = torch.tanh(sums.read(i - 1, start) @ weight) + 0.5 * sums.read(i - 2, start)
        sums.write(i, h)
        steps.write(i, h * i)
        return i + 1, sums, steps

    _, sums, steps = loop(lambda i, *arrays: i < 9, body, (torch.tensor(0), TensorArray(), TensorArray()))
    return [sums.stack(), steps.stack()], [weight, start]


def nested_variables(loop: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
    weight, h, c = f64(3, 3), f64(2, 3), f64(2, 3)

    def body(i: int, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        h, (c, _) = state["h"], state["rest"]
        return i + 1, {"h": torch.tanh(c @ weight), "rest": (h + c, i)}

    _, state = loop(lambda i, state: i < 6, body, (0, {"h": h, "rest": (c, 0)}))
    return [state["h"], state["rest"][0]], [weight, h, c]


CASES = [
    closed_over_weight, zero_trips, trips_by_data, loop_in_a_loop, growing_arrays, nested_variables
]  # fmt: skip


def plain_python(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any, **_: Any) -> Any:
    while cond(*loop_vars):
        loop_vars = body(*loop_vars)
    return loop_vars


@pytest.mark.covering(1)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_values_and_gradients_are_those_of_a_python_loop(case, checkpoint):
    def loop(cond: Any, body: Any, loop_vars: Any) -> Any:
        return while_loop(cond, body, loop_vars, checkpoint=checkpoint)

    torch.manual_seed(3)
    expected, wanted = case(plain_python)
    theirs = gradients(expected, wanted)
    torch.manual_seed(3)
    found, wanted = case(loop)
    ours = gradients(found, wanted)
    torch.testing.assert_close([*found, *ours], [*expected, *theirs], rtol=1e-12, atol=1e-12)


def test_gradients_agree_with_finite_differences():
    def loss(weight: Tensor, start: Tensor) -> Tensor:
        body = lambda i, h: (i + 1, torch.tanh(h @ weight))  # noqa: E731
        return while_loop(lambda i, h: i < 4, body, (0, start), checkpoint=True)[1]

    assert torch.autograd.gradcheck(loss, (f64(2, 2), f64(1, 2)))


def test_where_nothing_is_computed_again_all_is_kept():
    def loss(weight: Tensor) -> Tensor:
        body = lambda i, h: (i + 1, torch.tanh(h * weight))  # noqa: E731
        return while_loop(lambda i, h: i < 4, body, (0, torch.ones(2)), checkpoint=2)[1].sum()

    weight = torch.tensor(0.5)
    expected = torch.autograd.grad(loss(weight.requires_grad_()), weight)[0]
    torch.testing.assert_close(torch.func.grad(loss)(weight.detach()), expected)


def test_a_body_that_gives_other_numbers_when_computed_again_is_told():
    kept, weight = [torch.zeros(2)], torch.ones(2, requires_grad=True)

    def body(i: Any, h: Tensor) -> tuple[Any, Tensor]:
        kept.append(kept[-1] + 1)
        return i + 1, torch.tanh(h * weight * kept[-1])

    _, h = while_loop(lambda i, h: i < 6, body, (0, torch.ones(2)), checkpoint=2)
    with pytest.raises(StepError, match="body 'body' gives other numbers"):
        h.sum().backward()


def test_dropout_is_the_same_when_computed_again():
    start = f64(50)

    def run(checkpoint: int | None) -> Tensor:
        torch.manual_seed(7)
        body = lambda i, h: (i + 1, torch.dropout(h, 0.3, True) * 1.1)  # noqa: E731
        h = while_loop(lambda i, h: i < 6, body, (0, start), checkpoint=checkpoint)[1]
        return torch.autograd.grad(h.sum(), start)[0]

    assert torch.equal(run(None), run(2))


def test_a_given_array_stays_as_it_is():
    array = TensorArray(unstack_from=torch.zeros(1, 2))

    def body(i: Tensor, array: TensorArray) -> tuple[Tensor, TensorArray]:
        array.write(i, array.read(i - 1) + 1)
        return i + 1, array

    _, grown = while_loop(lambda i, array: i < 3, body, (torch.tensor(1), array))
    assert (len(array), len(grown)) == (1, 3)
    assert grown.stack()[:, 0].tolist() == [0, 1, 2]


def test_loop_variables_come_back_as_list_or_tuple():
    assert while_loop(lambda x: x < 3, lambda x: [x + 1], [0]) == [3]
    assert while_loop(lambda x: x < 3, lambda x: [x + 1], (0,)) == (3,)


# memory


def peak_of_training(steps: int, checkpoint: int | bool | None) -> tuple[int, int]:
    """Peak bytes above one state, in states, and the number of steps that were computed."""
    weight = torch.eye(16).requires_grad_()
    computed = 0

    def body(i: int, h: Tensor) -> tuple[int, Tensor]:
        nonlocal computed
        computed += 1
        return i + 1, torch.sin(torch.cos(torch.tanh(h @ weight)))

    start = torch.randn(16, 16)
    with LiveMemory() as memory:
        h = while_loop(lambda i, h: i < steps, body, (0, start), checkpoint=checkpoint)[1]
        h.sum().backward()
    return memory.peak // (16 * 16 * 4), computed


def test_checkpoints_keep_memory_at_the_root_of_the_steps():
    whole, computed = peak_of_training(60, None)
    assert computed == 60
    assert whole > 3 * 60  # tanh, cos and sin keep a tensor each
    few, computed = peak_of_training(60, 8)
    assert 60 < computed <= 120
    assert few < whole / 3
    root, computed = peak_of_training(60, True)
    assert 60 < computed <= 120
    assert root < whole / 3
    four_times, _ = peak_of_training(240, True)
    assert four_times < 2.6 * root


# a condition per row


def rows_alone(x: Tensor, rate: Tensor, bound: Tensor) -> tuple[Tensor, list[int]]:
    ends, trips = [], []
    for row in range(len(x)):
        one, count = x[row], 0
        while bool(one.sum() < bound[row]):
            one, count = one * rate + 1, count + 1
        ends.append(one)
        trips.append(count)
    return torch.stack(ends) if ends else x, trips


@pytest.mark.parametrize("checkpoint", [None, 2, True])
@pytest.mark.parametrize(
    "bounds", [[9, 300, -50, 40], [-50, -50], [7, 7, 7], []], ids=["mixed", "none runs", "same", "no rows"]
)
def test_rows_stop_for_themselves(bounds, checkpoint):
    x, rate = f64(len(bounds), 3), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    bound = torch.tensor(bounds, dtype=torch.float64)
    sizes: list[int] = []

    def body(steps: Tensor, x: Tensor, bound: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        sizes.append(len(x))
        return steps + 1, x * rate + 1, bound, count + 1

    start = (torch.tensor(0), x, bound, torch.zeros(len(bounds), dtype=torch.int64))
    found = while_loop(lambda s, x, bound, count: x.sum(1) < bound, body, start, checkpoint=checkpoint)
    expected, trips = rows_alone(x, rate, bound)
    torch.testing.assert_close(found[1], expected)
    assert found[3].tolist() == trips
    assert int(found[0]) == max(trips, default=0)
    assert torch.equal(found[2], bound)
    assert sum(sizes) == sum(trips)  # no row was computed after its end
    if sum(trips):
        torch.testing.assert_close(gradients([found[1]], [x, rate]), gradients([expected], [x, rate]))


def test_arrays_in_a_loop_by_rows_are_read_at_the_rows_that_run():
    start = torch.tensor([1.0, 6.0, 3.0])

    def body(i: Tensor, x: Tensor, seen: TensorArray) -> tuple[Tensor, Tensor, TensorArray]:
        before = seen.read(i - 1, default=torch.zeros_like(x))
        seen.write(i, x)
        return i + 1, x + 1 + 0 * before, seen

    array = TensorArray()
    _, x, seen = while_loop(lambda i, x, seen: x < 5, body, (torch.tensor(0), start, array))
    assert x.tolist() == [5, 6, 5]
    assert seen.stack().tolist() == [[1, 0, 3], [2, 0, 4], [3, 0, 0], [4, 0, 0]]
    assert len(array) == 0


def test_lod_tensors_are_cut_by_sequence():
    x = LoDTensor.from_lengths(torch.arange(6.0), [[1, 3, 2]])
    count = torch.tensor([0, 2, 1])
    body = lambda n, x: (n - 1, x.map(lambda rows: rows + 10))  # noqa: E731
    n, y = while_loop(lambda n, x: n > 0, body, (count, x))
    assert n.tolist() == [0, 0, 0]
    assert [part.tolist() for part in y] == [[0], [21, 22, 23], [14, 15]]


# errors


def grows(x: Tensor) -> tuple[Tensor]:
    return (torch.cat([x, x]),)


@pytest.mark.parametrize(
    ("cond", "body", "loop_vars", "options", "words"),
    [
        (lambda x: x > 0, grows, (torch.ones(1),), {}, ["body 'grows'", "x was float32[1], became float"]),
        (lambda x: x > 0, lambda x: (x.long(),), (torch.tensor(1.0),), {}, ["became int64[]"]),
        (lambda h: True, lambda h: ({"a": h["a"]},), ({"a": 1, "b": 2},), {}, ["structure", "'b': *"]),
        (lambda x: x > 0, lambda x: x, (torch.tensor(1.0),), {}, ["structure", "(x,) for one"]),
        (lambda x: x, lambda x: (x,), (torch.tensor(1.0),), {}, ["one boolean", "float32[] at step 0"]),
        (lambda x: 1, lambda x: (x,), (torch.tensor(1.0),), {}, ["one boolean", "int at step 0"]),
        (lambda x: x > 0, lambda x: (x,), (torch.ones(2, 2),), {}, ["one boolean", "bool[2, 2]"]),
        (lambda x, y: x > 0, lambda x, y: (x, y), (torch.ones(3), torch.ones(2)), {}, ["y Tensor float"]),
        (lambda x: x >= 0, lambda x: (x + 1,), (0,), {"max_steps": 4}, ["still holds after max_steps=4"]),
        (lambda x: True, lambda x: (x,), torch.ones(2), {}, ["loop_vars must be a tuple or a list"]),
        (lambda x: True, lambda x: (x,), ("text",), {}, ["loop variable 'x'", "got:      str"]),
        (lambda x: True, lambda x: (x,), (1,), {"max_steps": -1}, ["'max_steps' must be a whole number"]),
        (lambda x: True, lambda x: (x,), (1,), {"checkpoint": 0}, ["checkpoint must be"]),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong_in_the_users_words(cond, body, loop_vars, options, words):
    with pytest.raises(StepError) as caught:
        while_loop(cond, body, loop_vars, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("cond", "body", "words"),
    [
        (lambda i, h: i < 3, lambda i: (i + 1,), r"body '<lambda>' .*got:      <lambda>\(i\)"),
        (lambda i: i < 3, lambda i, h: (i + 1, h), r"condition '<lambda>' .*got:      <lambda>\(i\)"),
        (lambda i, h, k: i < 3, lambda i, h: (i + 1, h), r"condition .*'k'.* each of the 2 loop variables"),
    ],
)
def test_a_function_that_does_not_take_the_loop_variables_is_told(cond, body, words):
    with pytest.raises(StepError, match="(?s)while_loop: " + words):
        while_loop(cond, body, (0, torch.ones(2)))


def test_a_type_error_of_the_body_stays_what_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        while_loop(lambda i: i < 3, lambda i: (i + "one",), (0,))


def test_a_transform_in_a_body_is_run_but_under_a_checkpoint():
    def descend(i: Any, h: Tensor) -> tuple[Any, Tensor]:
        return i + 1, h - torch.func.grad(lambda x: (x**4).sum())(h)

    def run(h: Tensor, **options: Any) -> Tensor:
        return while_loop(lambda i, h: i < 2, descend, (0, h), **options)[1]

    h = f64(3)
    once = h - 4 * h**3
    torch.testing.assert_close(gradients([run(h)], [h]), gradients([once - 4 * once**3], [h]))
    with pytest.raises(StepError, match=r"(?s)body 'descend' calls a transform .*leave out checkpoint="):
        run(h, checkpoint=True)


def test_max_steps_may_be_just_enough():
    assert while_loop(lambda x: x < 4, lambda x: (x + 1,), (0,), max_steps=4) == (4,)


def test_copying_an_array_parts_it_from_the_first():
    array = TensorArray(unstack_from=torch.zeros(2))
    twin = copy.copy(array)
    twin.write(0, torch.tensor(5.0))
    assert math.isclose(float(array.read(0)), 0)
    assert array.stack().tolist() == [0, 0]
    assert twin.stack().tolist() == [5, 0]


def looped(w: Tensor, h: Tensor) -> Tensor:
    return stepnet.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, torch.tanh(h @ w)), (0, h))[1]


def framed(w: Tensor, h: Tensor) -> Tensor:
    loop = stepnet.create_whileloop([torch.tensor(0), h])
    with loop.frame() as (i, h):
        loop.break_if(i >= 4)
        loop.update(i, i + 2)
        loop.update(h, torch.tanh(h @ w))
    return loop.results[1]


def scoped(w: Tensor, h: Tensor) -> Tensor:
    def stepnet_(scope: Any) -> None:
        scope["h"] = torch.tanh(scope["before"] @ w) + scope["x"]

    op = stepnet.RecurrentOp(stepnet_, ["x"], ["h"], [stepnet.Memory("h", "before", "boot")])
    op.run(stepnet.Scope({"x": h.new_zeros(2, *h.shape), "boot": h}))
    return op.last["h"]


@pytest.mark.parametrize("run", [looped, framed, scoped])
def test_what_is_carried_keeps_its_dtype_under_autocast(run):
    """As the state of a recurrence does."""
    w, h = torch.randn(3, 3), torch.randn(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(w, h)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tanh(torch.tanh(h @ w) @ w), rtol=5e-2, atol=5e-2)


def apart(*tensors: Any) -> bool:
    """Whether none shares memory with another one."""
    return len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_results_share_no_memory_with_the_first_variables_nor_with_each_other(steps, checkpoint):
    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    first = torch.tensor(0), a, b
    out = while_loop(lambda i, a, b: i < steps, lambda i, a, b: (i + 1, b, b), first, checkpoint=checkpoint)
    assert apart(*first, *out)


@pytest.mark.parametrize("trained", [False, True])
def test_results_share_no_memory_with_what_a_body_or_step_refers_to(trained):
    a = torch.ones(3, 2, requires_grad=trained)
    ragged = LoDTensor.from_lengths(torch.ones(3, 2), [[1, 2]])
    first = torch.tensor(0), torch.zeros(3, 2), torch.zeros(1, 2), ragged, ragged.with_values(a * 2)
    out = while_loop(lambda i, *_: i < 2, lambda i, b, c, d, e: (i + 1, a, a[1:2], d, ragged), first)
    assert apart(a, ragged.values, *out[:3], out[3].values, out[4].values)
    y, last = stepnet.recurrent(
        lambda x, h: (x, a.detach()), torch.ones(2, 3, 2), torch.zeros(3, 2), backend="naive"
    )
    assert apart(a, y, last)
