"""Outlines: shapes, strides and dtypes are those of the tensors they stand for, for any number of rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import examples
from stepnet import LoDTensor, recurrent
from stepnet.compiler.trace.row_count import RowCount, Unusual
from stepnet.compiler.trace.symbolic_rows import Outline, blank, outline_of, outlined
from stepnet.compiler.trace.symbolic_rules import made_by
from stepnet.errors import Unsupported

aten = torch.ops.aten
ROWS = 5


def number(size, rows=ROWS):
    return size if isinstance(size, int) else size.node.at(rows)


def real(outline):
    shape, strides = ([*map(number, n)] for n in (outline.shape, outline.stride()))
    room = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    return torch.ones(room, dtype=outline.dtype).as_strided(shape, strides)


TERMS = st.builds(RowCount, st.integers(-4, 4), st.integers(-6, 6))
QUESTIONS = {
    "add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "floordiv": int.__floordiv__,
    "mod": int.__mod__, "sym_max": max, "sym_min": min,
    "gt": int.__gt__, "lt": int.__lt__, "ge": int.__ge__, "le": int.__le__, "eq": int.__eq__,
    "ne": int.__ne__,
}  # fmt: skip


@settings(max_examples=examples(100))
@given(TERMS, TERMS, st.sampled_from(sorted(QUESTIONS)))
def test_an_answer_holds_for_any_number_of_rows(a, b, question):
    try:
        answer = getattr(a, question)(b)
        truth = None if isinstance(answer, RowCount) else answer.bool_()
    except Unusual:
        return
    for rows in (2, 3, 4, 7, 64, 1001):
        wanted = QUESTIONS[question](a.at(rows), b.at(rows))
        assert (answer.at(rows) if truth is None else truth) == wanted


COMPARISONS = st.builds(
    lambda a, b, ask: (getattr(a, ask)(b), [QUESTIONS[ask](a.at(n), b.at(n)) for n in range(2, 40)]),
    TERMS, TERMS, st.sampled_from(["gt", "lt", "ge", "le", "eq", "ne"]),
)  # fmt: skip


@settings(max_examples=examples(100))
@given(COMPARISONS, COMPARISONS)
def test_who_asks_what_is_known_is_told_no_more(one, other):
    (a, of_a), (b, of_b) = one, other
    for truth, wanted in (
        (a, of_a),
        (a.sym_not(), [not w for w in of_a]),
        (a.and_(b), [v and w for v, w in zip(of_a, of_b, strict=True)]),
        (a.or_(b), [v or w for v, w in zip(of_a, of_b, strict=True)]),
    ):
        assert all(wanted) or not truth.guard_or_false()
        assert not any(wanted) if not truth.guard_or_true() else True


@pytest.mark.parametrize(
    "ask",
    [
        int, float, range, lambda n: n == 7, lambda n: n > 100, lambda n: n // 2, lambda n: n * n,
        lambda n: n % 2, lambda n: n**2, lambda n: n / 2, lambda n: n and n < 9,
    ],
    ids=["int", "float", "range", "equal", "larger", "half", "square", "odd", "power", "part", "and"],
)  # fmt: skip
def test_what_depends_on_the_number_of_rows_is_not_answered(ask):
    with pytest.raises((Unusual, TypeError)):
        ask(blank((4,), torch.float32, rows=True).shape[0])


def test_a_term_is_printed():
    rows = blank((4,), torch.float32, rows=True).shape[0]
    assert [str(n) for n in (rows, 2 * rows, rows - 1, -(3 * rows) + 2)] == [
        "rows", "2*rows", "rows - 1", "-3*rows + 2",
    ]  # fmt: skip


def tables(dtype=torch.float64):
    """Rows of a kind each: as they are, of one feature, turned, cut, repeated, shared, a number."""
    x, shared = blank((4, 6), dtype, rows=True), blank((4, 6), dtype, rows=False)
    turned = outlined(aten.transpose.int, (x, 1, 2), {})
    return {
        "rows": x,
        "cut": outlined(aten.slice.Tensor, (blank((4, 12), dtype, rows=True), 2, 3, 9), {}),
        "one": blank((4, 1), dtype, rows=True),
        "of a row": blank((1, 6), dtype, rows=True),
        "repeated": outlined(aten.expand.default, (blank((4, 1), dtype, rows=True), [-1, -1, 6]), {}),
        "turned twice": outlined(aten.transpose.int, (turned, 1, 2), {}),
        "columns": outlined(aten.transpose.int, (blank((6, 4), dtype, rows=True), 1, 2), {}),
        "shared": shared,
        "small": blank((6,), torch.float32, rows=False),
        "whole": blank((6,), torch.int64, rows=False),
        "number": outline_of(torch.tensor(2, dtype=torch.int64)),
    }


KINDS = [*tables()]


def same(made, wanted):
    assert isinstance(made, Outline)
    assert [*map(number, made.shape)] == [*wanted.shape]
    assert made.dtype == wanted.dtype
    assert [*map(number, made.stride())] == [*wanted.stride()]


@pytest.mark.parametrize("a", KINDS)
def test_pointwise_calls(a):
    known = tables()
    for func, b in itertools.product(
        (aten.add.Tensor, aten.div.Tensor, aten.gt.Tensor, aten.pow.Tensor_Tensor), KINDS
    ):
        args = known[a], known[b]
        same(outlined(func, args, {}), func(*map(real, args)))
    for func, *numbers in (
        (aten.tanh.default,),
        (aten.mul.Scalar, 2),
        (aten.pow.Tensor_Scalar, 2.5),
        (aten.eq.Scalar, 1),
    ):
        same(outlined(func, (known[a], *numbers), {}), func(real(known[a]), *numbers))


def test_rows_of_other_numbers_do_not_meet():
    x, y = blank((4,), torch.float32, rows=True), blank((3, 4), torch.float32, rows=False)
    with pytest.raises((Unusual, RuntimeError)):  # on three rows they would
        outlined(aten.add.Tensor, (x, y), {})
    with pytest.raises((Unusual, RuntimeError)):
        outlined(aten.mm.default, (blank((5, 3), torch.float32, rows=False), x), {})
    with pytest.raises((Unusual, RuntimeError)):
        outlined(aten.cat.default, ([x, y], 1), {})


REDUCTIONS = [
    aten.mean.dim, aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.amax.default,
    aten.sum.dim_IntList,
]  # fmt: skip
_WIDE = blank((4, 12), torch.float32, rows=True)
CUT = [  # parts of larger tables, as `chunk` gives, and what is spread
    outlined(aten.slice.Tensor, (_WIDE, 2, 3, 9), {}),
    outlined(aten.slice.Tensor, (_WIDE, 1, 1, 3), {}),
    outlined(aten.expand.default, (blank((4, 1), torch.float32, rows=True), [-1, -1, 6]), {}),
]


@pytest.mark.parametrize("rows", [True, False])
def test_other_calls(rows):
    x = blank((4,), torch.float32, rows=rows) if rows else blank((3, 4), torch.float32, rows=False)
    cube = blank((4, 6), torch.float32, rows=True)
    w, bias, table = (blank(s, torch.float32, rows=False) for s in ((4, 7), (7,), (9, 2)))
    index = outlined(aten.argmax.default, (x, 1), {})
    calls = [
        (aten.mm.default, x, w),
        (aten.mm.default, outlined(aten.t.default, (x,), {}), x),
        (aten.addmm.default, bias, x, w),
        (aten.bmm.default, cube, outlined(aten.transpose.int, (cube, 1, 2), {})),
        (aten.sum.dim_IntList, cube, [1], True),
        (aten.sum.dim_IntList, cube, [0, -1]),
        (aten.sum.dim_IntList, cube, None),
        (aten.sum.dim_IntList, index, [0]),
        (aten.amax.default, cube, [-1]),
        (aten.cat.default, [x, x, outlined(aten.slice.Tensor, (x, 1, 1, 3), {})], -1),
        (aten.cat.default, [x, x]),
        (aten.embedding.default, table, index),
        (aten.zeros_like.default, cube),
        (aten.cumsum.default, cube, 1),
        (aten.cumprod.default, cube, -1),
        (aten.mean.dim, cube, [2]),
        (aten.mean.dim, cube, [-1, 1], True),
        (aten.var.correction, cube, [1]),
        (aten.std.correction, cube, [-1]),
        (aten.var_mean.correction, cube, [2]),
        (aten.var_mean.correction, x),
        *((func, part, dims) for func in REDUCTIONS for part in CUT for dims in ([1], [0, -1])),
        (aten.exponential.default, cube),
        (aten.uniform.default, x, 0.0, 2.0),
        (aten.normal_functional.default, cube),
        (aten.bernoulli.p, cube, 0.5),
        (aten.multinomial.default, outlined(aten.select.int, (cube, 1, 0), {}), 3),
        (aten.normal.Tensor_float, cube, 0.5),
        (aten.rand_like.default, cube),
        (aten.randn_like.default, x),
    ]
    for func, *args in calls:
        concrete = [[*map(real, a)] if isinstance(a, list) and isinstance(a[0], Outline) else a for a in args]
        concrete = [real(a) if isinstance(a, Outline) else a for a in concrete]
        made, wanted = outlined(func, args, {}), func(*concrete)
        for one, expected in zip(made, wanted, strict=True) if isinstance(made, tuple) else [(made, wanted)]:
            same(one, expected)


def test_what_torch_would_import_its_compiler_for_has_a_rule():
    cube = blank((4, 6), torch.float32, rows=True)
    assert all(made_by(func, (x, [1]), {}) for func in REDUCTIONS for x in (cube, *CUT))
    assert all(made_by(func, (cube, 1), {}) for func in (aten.cumsum.default, aten.cumprod.default))
    draws = aten.exponential.default, aten.uniform.default, aten.randn_like.default, aten.normal.Tensor_float
    assert all(made_by(func, (cube,), {}) for func in draws)


def test_a_step_cannot_catch_what_ends_the_recording():
    def step(x, h):
        try:
            n = int(x.shape[0])
        except Exception:
            n = 0
        h = h + n * x
        return h, h

    x = LoDTensor.from_lengths(torch.randn(9, 3), [[4, 0, 5]])
    with pytest.raises(Unsupported):
        recurrent(step, x, torch.zeros(3, 3), backend="eager")


def write_a_number(x, h):
    v = (x * 2).clone()
    v[:, 0] = 0.3
    return v, h


def write_into_a_view(x, h):
    v = (x * 2).clone()
    v[:, 1:].mul_(h[:, 1:] + 1)
    v[:, 0].fill_(2.0)
    return v, torch.tanh(h + v)


def print_a_tensor(x, h):
    repr(x), str(h), f"{x[0, 0]}"
    return x * 2, torch.tanh(x + h)


@pytest.mark.parametrize("step", [write_a_number, write_into_a_view, print_a_tensor])
def test_what_ends_a_recording_leaves_nothing_of_torch_switched_off(step):
    """Torch shows its tensors in errors, with guards in force that are put back when the error is freed."""

    def switched():
        torch_c = torch._C
        return str(torch_c._dispatch_tls_local_include_set()), str(torch_c._dispatch_tls_local_exclude_set())

    before, results = switched(), []
    for backend in ("naive", "eager"):
        x, h = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_(), torch.ones(2, 3, requires_grad=True)
        y, last = recurrent(step, LoDTensor.from_lengths(x, [[3, 1]]), h, backend=backend)
        grads = torch.autograd.grad(y.values.square().sum() + last.sum(), [x, h])
        results.append([y.values, last, *grads])
    torch.testing.assert_close(*results)
    assert switched() == before
    made = torch.ones(3, requires_grad=True) * 2
    made[0] = 1.0
    assert made.requires_grad
