"""Python's `if` on what is asked of all rows: both ways are compiled where rows agree."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch

from outcomes import as_the_plain_loop, gradients, outcome, same
from plans import entry_of
from stepnet import LoDTensor, explain, recurrent, while_loop
from stepnet.errors import SlowPathWarning, StepIndexError, Unsupported
from tables import holds

D = 3
W = (torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 2).requires_grad_()


def stabilised(x, state):
    """As the reference code of xLSTM begins, and what nobody wants to see."""
    h, n, m = state
    if torch.isnan(h.view(-1)).any():
        raise ValueError("the state is lost")
    i, f = h @ W + x, m + torch.sigmoid(x)
    if torch.all(n == 0.0):
        m = i
    else:
        m = torch.maximum(i, f)
        if not (n < 4.0).all():
            n = n * 0.5
    n = torch.exp(f - m).clamp(max=1.0) * n + torch.exp(i - m).clamp(max=1.0)
    h = torch.tanh(h + i / n)
    return h, (h, n, m)


def given(lengths, n: float):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(lengths), D, dtype=torch.float64, generator=generator).requires_grad_()
    h = torch.randn(len(lengths), D, dtype=torch.float64, generator=generator).requires_grad_()
    state = (h, torch.full_like(h, n).requires_grad_(), torch.zeros_like(h).requires_grad_())
    return LoDTensor.from_lengths(x, [lengths]), state


@pytest.mark.parametrize("n", [0.0, 1.0])
def test_both_ways_are_compiled(n):
    for lengths in ([3, 0, 1, 4], [2], [0, 0]):
        as_the_plain_loop(stabilised, *given(lengths, n), weights=[W])
    x, state = given([4, 4], n)
    dense = x.values.detach().view(4, 2, D).requires_grad_()
    as_the_plain_loop(stabilised, dense, state, weights=[W])
    assert entry_of(stabilised, x, state, backend="c").ready is not None


def test_rows_that_disagree_are_left_to_the_plain_loop():
    x, (h, n, m) = given([3, 2, 4], 0.0)
    for backend in ("c", None):
        recurrent(stabilised, x, (h, n, m), backend=backend)
    apart = (n.detach() + torch.tensor([[0.0], [1.0], [1.0]])).requires_grad_()
    ours, plain = (outcome(stabilised, x, (h, apart, m), b, weights=[W]) for b in (None, "naive"))
    for mine, other in zip(ours, plain, strict=True):
        same(mine, other)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SlowPathWarning)
        for _ in range(20):
            recurrent(stabilised, x, (h, apart, m))
    assert ["rows disagree" in str(one.message) for one in told] == [True]
    with pytest.raises(Unsupported, match="rows disagree"):
        recurrent(stabilised, x, (h, apart, m), backend="c")
    as_the_plain_loop(stabilised, x, (h, n, m), None, weights=[W])  # another call may agree


def test_a_choice_by_a_tensor_asks_as_if_does():
    def step(x, state):
        h, n = state
        first = torch.all(n.view(-1) == 0.0)
        h = torch.tanh(torch.where(first, x @ W, torch.maximum(h @ W, x)) + h.where(first, -x))
        return torch.where(first, h, 2 * h), (h, n + 1.0)

    x, (h, n, _) = given([3, 0, 4], 0.0)
    as_the_plain_loop(step, x, (h, n), weights=[W])
    assert entry_of(step, x, (h, n), backend="c").ready is not None
    apart = (n.detach() + torch.tensor([[0.0], [0.0], [1.0]])).requires_grad_()
    with pytest.warns(SlowPathWarning, match="something holds for all rows"):
        as_the_plain_loop(step, x, (h, apart), None, weights=[W])


def test_a_choice_by_a_tensor_is_one_way_among_those_of_if():
    """Behind a question, before it, and not compiled twice on its own."""

    def choice(x, state):
        h, n = state
        h = torch.exp(-torch.tanh(torch.where(torch.all(n == 0.0), x @ W, torch.maximum(h @ W, x))))
        return h, (h, n + 1.0)

    def both(x, state):
        h, n = state
        h = torch.where((n > 1.0).any(), x @ W, h + x)
        if torch.all(n == 0.0):
            h = torch.where(torch.all(h.flatten() > 9.0), h, torch.tanh(h))
        elif (n > 2.0).any():
            h = torch.where(torch.all(n < 9.0), 0.5 * h, x)
        return h, (h, n + 1.0)

    x, (h, n, _) = given([3, 0, 4], 0.0)
    for step in (choice, both):
        as_the_plain_loop(step, x, (h, n), weights=[W])
        assert entry_of(step, x, (h, n), backend="c").ready is not None
    with torch.no_grad():
        source = explain(choice, x, (h, n), source=True).source
    assert source is not None
    assert source.count("= tanh(") == 1


def test_a_way_that_raises_is_raised_by_the_plain_loop():
    x, (h, n, m) = given([3, 2], 0.0)
    recurrent(stabilised, x, (h, n, m))
    for backend in ("c", None):
        with pytest.raises(ValueError, match="the state is lost"):
            recurrent(stabilised, x, (h * torch.nan, n, m), backend=backend)


def of_signs(x, h):
    """Each way has no numbers for what takes the other one."""
    if torch.all(x > 0):
        z = torch.sqrt(x)
    elif not (x > 0).any():
        z = torch.log(-x)
    else:
        z = x
    h = torch.tanh(z + h @ W)
    return h, h


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_a_way_that_is_not_taken_has_no_part_in_second_derivatives(backend):
    x, (h, _, _) = given([3, 0, 4], 0.0)
    for sign in (1.0, -1.0):
        rows = (sign * x.values.abs()).detach().requires_grad_()
        found = []
        for each in (backend, "naive"):
            y, last = recurrent(of_signs, x.with_values(rows), h, backend=each)
            first = gradients([y.values, last], [rows, h, W], create_graph=True)
            found.append(gradients(first, [rows, h, W]))
        same(*found)


def _often(x, h):
    while (h > 0.001).any():
        h = h * 0.9
    return h + x, h


OTHERWISE = {
    "nested otherwise": lambda x, h: (((2 * h,) if torch.all(x > 0) else h + x), h),
    "another type": lambda x, h: ((h.float() if torch.all(x > 0) else h + x), h),
    "without a gradient": lambda x, h: ((h.detach() if torch.all(x > 0) else h + x), h),
    "of all rows": lambda x, h: (h, torch.tanh(h + x + (W.sum(0) if torch.all(x > 0) else W.sum(1)))),
    "asked often": _often,
}


def test_ways_that_give_other_things():
    def check(step):
        x, (h, _, _) = given([3, 0, 4], 0.0)
        for sign in (1.0, -1.0):
            rows = x.with_values((sign * x.values.abs()).detach().requires_grad_())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SlowPathWarning)
                as_the_plain_loop(step, rows, h, None, weights=[W], rtol=1e-6)

    holds(check, {name: (step,) for name, step in OTHERWISE.items()})


def test_a_transform_is_left_to_the_plain_loop():
    x, (h, _, _) = given([3, 0, 4], 0.0)
    rows = x.values.detach()

    def along(backend):
        run = functools.partial(recurrent, of_signs, backend=backend)
        return torch.func.jvp(lambda rows: run(x.with_values(rows), h.detach())[0].values, (rows,), (rows,))

    with pytest.raises(Unsupported, match="asks something of all rows"):
        along("c")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        torch.testing.assert_close(along("naive"), along(None))


def test_a_way_that_raises_and_is_not_taken():
    def step(x, state):
        h, place = state
        h = W[place] + h if torch.all(place < D) else h @ W
        return torch.tanh(h + x), (h, place)

    x, (h, _, _) = given([3, 2], 0.0)
    within, beyond = torch.tensor([0, D - 1]), torch.tensor([9**9, 9**8])
    for backend, place in (("c", within), (None, within), (None, beyond)):
        as_the_plain_loop(step, x, (h, place), backend, weights=[W])
    with pytest.raises(Unsupported, match="does not hold for all rows"):
        recurrent(step, x, (h, beyond), backend="c")
    with pytest.raises(StepIndexError, match="out of bounds"):
        recurrent(step, x, (h, -beyond), backend="c")


def test_a_loop_that_some_rows_do_not_run_at_all():
    """The others' steps are unrolled, and have no numbers or no row for them."""
    following = torch.tensor([1, 2, D])

    def step(x, state):
        h, place, left = state
        h, *_ = while_loop(
            lambda h, place, left: place < D,
            lambda h, place, left: (torch.tanh(h @ W + W[place] + left.sqrt()), following[place], left - 1),
            (h + x, place, left),
            max_steps=D,
        )
        return h, (h, place, left)

    x, (h, _, _) = given([3, 0, 2], 0.0)
    within, beyond = torch.tensor([0, 2, 1]), torch.tensor([D, 0, 1])
    left = torch.tensor([[-1.0], [5.0], [5.0]], dtype=torch.float64)
    for backend, place, more in (
        ("c", within, 6.0),
        (None, within, 6.0),
        (None, beyond, 6.0),
        (None, beyond, 0.0),
    ):
        as_the_plain_loop(step, x, (h, place, left + more), backend, weights=[W])


@pytest.mark.parametrize("asks", [lambda h: not (h > 9.0).any(), lambda h: (h.max() < 9.0).item()])
def test_a_while_that_sample_rows_do_not_end(asks):
    """The last of the rows does; on the first ones, on which a step is tried, it would go on for ever."""

    def step(x, h):
        while asks(h):
            h = h * 2.0 + x
        h = torch.tanh(h)
        return h, h

    x, h = -torch.ones(2, 20, D), torch.zeros(20, D)
    x[:, -1] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        torch.testing.assert_close(recurrent(step, x, h), recurrent(step, x, h, backend="naive"))


def test_a_while_that_no_number_ends():
    def step(x, state):
        h, n = state
        while (n < 2.0).any():
            h, n = torch.tanh(h @ W + x), n + 1.0
        return h, (h, n - 2.0)

    x, (h, n, _) = given([2, 0, 3], 0.0)
    as_the_plain_loop(step, x, (h, n), weights=[W])
    apart = (n.detach() + torch.tensor([[0.0], [1.0], [-90.0]])).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        as_the_plain_loop(step, x, (h, apart), None, weights=[W])
