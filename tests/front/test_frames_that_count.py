"""However a loop counts, and wherever it reads and writes by that, it is a scan: what Python does by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from covering import every
from stepnet import TensorArray
from stepnet.errors import ArrayError, StepError
from stepnet.front import scan_form, while_to_scan

BUILDS = False
ONE, N = torch.tensor(1), torch.tensor(6)


class Ended(Exception):
    pass


class Hand:
    """A frame run by Python, turn after turn."""

    def __init__(self, body: Any, first: list[torch.Tensor]) -> None:
        self.results = first
        while True:
            self.new: dict[int, torch.Tensor] = {}
            variables = [v.clone() for v in self.results]
            try:
                body(self, *variables)
            except Ended:
                return
            self.results = [self.new.get(id(v), v) for v in variables]

    def break_if(self, condition: Any) -> None:
        if bool(condition):
            raise Ended

    def update(self, variable: torch.Tensor, value: torch.Tensor) -> None:
        self.new[id(variable)] = value


def framed(body: Any, first: list[torch.Tensor], max_steps: int | None = None) -> Any:
    loop = stepnet.create_whileloop(first, max_steps=max_steps)
    with loop.frame() as variables:
        body(loop, *variables)
    return loop


def given() -> list[torch.Tensor]:
    torch.manual_seed(0)
    sizes = ((4, 4), (6, 2, 4), (2, 4))
    return [torch.randn(size, dtype=torch.float64).mul(0.5).requires_grad_() for size in sizes]


def held(run: Any, first: list[Any]) -> None:
    """A frame against Python by hand: values, sizes, first and second derivatives."""
    found = []
    for make in (framed, Hand):
        w, x, boot = given()
        a, b, o, p = (
            TensorArray(unstack_from=x),
            TensorArray(unstack_from=x * 2),
            TensorArray(),
            TensorArray(),
        )
        start = [boot if v is None else v for v in first]

        def cell(value: Any, h: Any, w: Any = w) -> Any:
            return torch.tanh(value + h @ w)

        def body(loop: Any, *variables: Any, more: Any = (cell, x, boot, a, b, o, p)) -> None:
            run(loop, *more, *variables)

        loop: Any = make(body, start)
        if make is framed:
            assert "raised to a scan" in loop.explain(), loop.explain()
        written = [array.read(i, x[0] * 0) for array in (o, p) for i in range(array.size())]
        values = [*loop.results, *written, torch.tensor([o.size(), p.size()])]
        total: Any = sum((v.sin() * (i + 1)).sum() for i, v in enumerate(values) if v.requires_grad)
        grads = torch.autograd.grad(total, (w, x, boot), create_graph=True, allow_unused=True)
        again: Any = sum(g.pow(2).sum() for g in grads if g is not None)
        more = torch.autograd.grad(again, (w, x, boot), allow_unused=True, materialize_grads=True)
        found.append((values, [torch.zeros(()) if g is None else g for g in grads], more))
    torch.testing.assert_close(*found)


def states(ends: Any, at: Any = lambda s: s, by: Any = lambda s: s + 1, x_at: Any = lambda s: s) -> Any:
    """A loop over `o`, of what is read of `a`."""

    def run(loop, cell, x, boot, a, b, o, p, s):
        loop.break_if(ends(s))
        o.write(at(s), cell(a.read(x_at(s)), o.read(at(s) - 1, boot)))
        loop.update(s, by(s))

    return run


def carried(ends: Any, value: Any, by: Any = lambda s: s + 1, write: Any = lambda o, s, h: o.write(h)) -> Any:
    """A loop that carries `h`, of a value of its own."""

    def run(loop, cell, x, boot, a, b, o, p, s, h):
        loop.break_if(ends(s))
        new = cell(value(x, a, b, s), h)
        write(o, s, new)
        loop.update(h, new)
        loop.update(s, by(s))

    return run


def two_counters(loop, cell, x, boot, a, b, o, p, s, t, h):
    loop.break_if(s > t)
    new = cell(a.read(s) * b.read(t), h)
    o.write(s, new)
    p.write(t, new * s)
    loop.update(h, new)
    loop.update(s, s + 1)
    loop.update(t, t - 1)


def both_are_numbers(loop, cell, x, boot, a, b, o, p, s, t, h):
    loop.break_if(s == 6)
    new = cell(a.read(s) / (s + 1), h) * (t + 2)
    o.write(s, new)
    p.write(t + 1, new)
    loop.update(h, new)
    loop.update(s, s + 1)
    loop.update(t, t + ONE)


def states_one_on(loop, cell, x, boot, a, b, o, p, s):
    loop.break_if(s == 6)
    h = cell(a.read(s), o.read(s, boot))
    o.write(s + 1, h)
    p.write(s, h * 2)
    loop.update(s, s + 1)


def three_back(loop, cell, x, boot, a, b, o, p, s):
    loop.break_if(s == 6)
    o.write(s, cell(a.read(s) + o.read(s - 3, boot * 3), o.read(s - 1, boot)) - o.read(s - 2, boot * 2))
    loop.update(s, s + 1)


def until_so_many(loop, cell, x, boot, a, b, o, p, s):
    loop.break_if(o.size() == 4)
    o.write(cell(a.read(s), o.read(o.size() - 1, boot)))
    loop.update(s, s + 1)


def one_place(loop, cell, x, boot, a, b, o, p, s, n, h):
    loop.break_if(s == n)
    new = cell(a.read(s) + b.read(2), h)
    o.write(s, new)
    loop.update(h, new)
    loop.update(s, s + 1)
    loop.update(n, n)


def nothing_read(loop, cell, x, boot, a, b, o, p, s):
    loop.break_if(s == 5)
    o.write(s, cell(1.0, o.read(s - 1, boot)))
    loop.update(s, s + 1)


def down(s):
    return s - 1


def up_2(s):
    return s + 2


def past_4(s):
    return s > 4


ZERO, SIX = torch.tensor(0), torch.tensor(6)
AT = {
    "n - s == 0": (states(lambda s: N - s == 0), [ZERO]),
    "s - n >= 0": (states(lambda s: s - N >= 0), [ZERO]),
    "(s == n).all()": (states(lambda s: (s == N).all()), [ZERO]),
    "s + tensor": (states(lambda s: s == N, by=lambda s: s + ONE), [ZERO]),
    "alpha": (states(lambda s: s == N, by=lambda s: torch.add(s, 1, alpha=1)), [ZERO]),
    "written at s - 1": (states(lambda s: s > 6, lambda s: s - 1, x_at=lambda s: s - 1), [ONE]),
    "read from the end": (states(lambda s: s == 6, x_at=lambda s: 5 - s), [ZERO]),
    "read at 2 s": (states(lambda s: s == 3, x_at=lambda s: 2 * s), [ZERO]),
    "written up, counted down": (states(lambda s: s == 0, lambda s: 6 - s, down, lambda s: 6 - s), [SIX]),
    "of 8 bits": (states(lambda s: s == 6), [torch.tensor(0, dtype=torch.int8)]),
    "append, down": (carried(lambda s: s < 0, lambda x, a, b, s: a.read(s), down), [SIX - 1, None]),
    "append, from 1": (carried(lambda s: s == 7, lambda x, a, b, s: a.read(s - 1)), [ONE, None]),
    "steps of 2": (carried(past_4, lambda x, a, b, s: a.read(s) * b.read(s + 1), up_2), [ZERO, None]),
    "steps of -2": (carried(lambda s: s < 0, lambda x, a, b, s: a.read(s), lambda s: s - 2), [SIX - 1, None]),
    "x[s]": (carried(lambda s: s == 6, lambda x, a, b, s: x[s]), [ZERO, None]),
    "x[5 - s], x[-s - 1]": (carried(lambda s: s == 6, lambda x, a, b, s: x[5 - s] * x[-s - 1]), [ZERO, None]),
    "x[:, s]": (carried(lambda s: s == 2, lambda x, a, b, s: x[:, s][:2] * 2), [ZERO, None]),
    "two ways": (carried(lambda s: s == 6, lambda x, a, b, s: a.read(s) + b.read(5 - s)), [ZERO, None]),
    "two counters": (two_counters, [ZERO, SIX - 1, None]),
    "both are numbers": (both_are_numbers, [ZERO, ONE - 2, None]),
    "states at s + 1": (states_one_on, [ZERO]),
    "three steps back": (three_back, [ZERO]),
    "until there are so many": (until_so_many, [ONE]),
    "one place, and a bound that is carried": (one_place, [ZERO, SIX, None]),
    "nothing is read": (nothing_read, [ZERO]),
}  # fmt: skip


@pytest.mark.parametrize("name", every(2, AT))
def test_a_scan_that_is_what_python_does(name):
    run, first = AT[name]
    held(run, first)


def test_columns_of_a_tensor_are_read_at_the_step():
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)

    def body(loop, s, h):
        loop.break_if(s == x.shape[1])
        loop.update(h, torch.tanh(x[:, s] + h))
        loop.update(s, s + 1)

    first = [torch.tensor(0), torch.zeros(2, 4, dtype=torch.float64)]
    loop, expected = framed(body, first), Hand(body, first)
    assert "raised to a scan" in loop.explain()
    torch.testing.assert_close(loop.results[1], expected.results[1])
    grads = [torch.autograd.grad(r.results[1].sin().sum(), x) for r in (loop, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("by", [1, 2, -1])
def test_the_same_frame_with_other_numbers(by):
    """What a form was found with is asked again: a tensor that is counted by, the size of an array."""
    x = torch.arange(8.0).reshape(8, 1)
    for start, step, count in ((0, 1, 0), (1, by, 1), (0, 1, 2)):
        found = []
        for make in (framed, Hand):
            a, o, one = TensorArray(unstack_from=x), TensorArray(), torch.tensor(step)
            for _ in range(count):
                o.write(torch.full((1,), 9.0))

            def body(loop, s, o=o, a=a, one=one):
                loop.break_if((s >= 7) | (s < 0) if by < 0 else s >= 7)
                o.write(a.read(s) + o.read(s - 1, torch.ones(1)))
                loop.update(s, s + one)

            loop = make(body, [torch.tensor(start)])
            found.append([*loop.results, *o])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("read", "words"),
    [(lambda x, s: x[s + 1], "index 6 is out of bounds"), (lambda x, s: x[2 * s], "out of bounds")],
)
def test_a_tensor_is_not_read_behind_its_end(read, words):
    x = torch.randn(6, 2, 4)

    def body(loop, s, h):
        loop.break_if(s == 6)
        loop.update(h, torch.tanh(read(x, s) + h))
        loop.update(s, s + 1)

    with pytest.raises((StepError, IndexError), match=words):
        framed(body, [torch.tensor(0), torch.zeros(2, 4)])


def test_what_jumps_over_its_end_does_not_end():
    x = TensorArray(unstack_from=torch.randn(6, 2, 4))

    def body(loop, s, h):
        loop.break_if(s == 5)
        loop.update(h, torch.tanh(x.read(s, torch.zeros(2, 4)) + h))
        loop.update(s, s + 2)

    with pytest.raises(StepError, match="did not end within max_steps=9"):
        framed(body, [torch.tensor(0), torch.zeros(2, 4)], max_steps=9)


BELOW = {
    "up": (-2, lambda s: s == 2, lambda s: s, 1),
    "one lower": (0, lambda s: s == 3, lambda s: s - 1, 1),
    "down": (3, lambda s: s < -1, lambda s: s, -1),
    "from the end": (0, lambda s: s == 6, lambda s: 4 - s, 1),
}


@pytest.mark.parametrize("name", BELOW)
def test_nothing_is_written_below_an_array(name):
    start, ends, at, by = BELOW[name]
    x, boot = torch.randn(6, 2, 4), torch.zeros(2, 4)
    for make in (framed, Hand):
        a, o = TensorArray(unstack_from=x), TensorArray()

        def body(loop, s, a=a, o=o):
            loop.break_if(ends(s))
            o.write(at(s), a.read(s, boot) + o.read(at(s) - 1, boot))
            loop.update(s, s + by)

        with pytest.raises(ArrayError, match=r"index -[12] is negative"):
            make(body, [torch.tensor(start)])


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_numbers_of_few_bits_are_computed_in_these(kind):
    most, x = torch.iinfo(kind).max, torch.randn(6, 2, 4)
    for back in (10 - most - 20, 10 - most):  # what is read: `s + 20` is no such number, or is one
        found = []
        for make in (framed, Hand):
            a, o, n = TensorArray(unstack_from=x), TensorArray(), torch.tensor(back)

            def body(loop, s, a=a, o=o, n=n, more=10 - most - back):
                loop.break_if(s == most - 4)
                o.write(torch.tanh(a.read(s + more + n, x[0] * 2) + o.read(o.size() - 1, x[0])))
                loop.update(s, s + 1)

            make(body, [torch.tensor(most - 10, dtype=kind)])
            found.append([*o])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("read", [lambda s: s, lambda s: s < 9], ids=["uint8", "bool"])
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_an_index_that_is_a_mask(read):
    v = torch.randn(4)

    def body(loop, s, h):
        loop.break_if(s == 3)
        loop.update(h, torch.tanh(v[read(s)] + h))
        loop.update(s, s + 1)

    first = [torch.tensor(1, dtype=torch.uint8), torch.zeros(2, 4)]
    torch.testing.assert_close(list(framed(body, first).results), Hand(body, first).results)


@pytest.mark.parametrize("read", [lambda x, o: x[o.size()], lambda x, o: x[1:, o.size() - 1]])
def test_tensors_are_read_at_the_size_of_an_array(read):
    x = torch.randn(6, 6, 4, requires_grad=True)
    found = []
    for make in (framed, Hand):
        o = TensorArray()
        o.write(x[0])

        def body(loop, s, o=o):
            loop.break_if(s == 4)
            o.write(read(x, o))
            loop.update(s, s + 1)

        make(body, [torch.tensor(0)])
        found.append([*o, *torch.autograd.grad(torch.cat([v.flatten() for v in o]).sin().sum(), x)])
    torch.testing.assert_close(*found)


def _without_gradients(x, s):
    with torch.no_grad():
        return x[s]


def _with_gradients(x, s):
    with torch.enable_grad():
        return x[s]


@pytest.mark.parametrize("read", [_without_gradients, _with_gradients, lambda x, s: x.detach()[s]])
@pytest.mark.parametrize("around", [True, False])
def test_a_tensor_is_read_with_the_gradients_of_its_line(read, around):
    x = torch.randn(6, 2, 4, requires_grad=True)
    found = []
    for make in (framed, Hand):
        o = TensorArray()

        def body(loop, s, h, o=o):
            loop.break_if(s == 6)
            new = torch.tanh(read(x, s) + h)
            o.write(s, new * x[s])
            loop.update(h, new)
            loop.update(s, s + 1)

        with torch.set_grad_enabled(around):
            h = make(body, [torch.tensor(0), torch.zeros(2, 4)]).results[1]
        found.append([h.detach(), *(v.detach() for v in o)])
        if around:
            found[-1] += torch.autograd.grad(torch.stack([*o]).sum(), x)
    torch.testing.assert_close(*found)


def test_a_form_of_other_numbers_is_found_once(monkeypatch):
    found = []

    def counted(loop: Any) -> Any:
        found.append(loop)
        return scan_form.scan_form(loop)

    monkeypatch.setattr(while_to_scan, "scan_form", counted)
    x = torch.randn(8, 2, 3)
    for by in (1, 1, 2, 2, 4, 4):
        xs, out, each = TensorArray(unstack_from=x), TensorArray(), torch.tensor(by)
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s >= 8)
            out.write(torch.tanh(xs.read(s)))
            loop.update(s, s + each)
        torch.testing.assert_close(out.stack(), x[::by].tanh())
    assert len(found) == 3
