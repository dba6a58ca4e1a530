"""Shapes that torch's kernels tell are those of calls on any number of rows."""

from __future__ import annotations

import pytest
import torch

from compiler.test_symbolic_rows import number, tables
from stepnet.compiler.trace import kernel_shapes
from stepnet.compiler.trace.kernel_shapes import told_by_kernel
from stepnet.compiler.trace.row_count import Unusual
from stepnet.compiler.trace.symbolic_rows import Outline, blank, outlined

aten = torch.ops.aten


ROWS = 11  # none of those that kernels are run on


def same(made, wanted):
    """An outline is that of what a call gives on so many rows."""
    assert isinstance(made, Outline)
    assert [number(n, ROWS) for n in made.shape] == [*wanted.shape]
    assert [number(n, ROWS) for n in made.stride()] == [*wanted.stride()]
    assert made.dtype == wanted.dtype


def on(rows, arg):
    """An argument for so many rows, of numbers that all calls take."""
    if isinstance(arg, Outline):
        shape, strides = (
            [n if isinstance(n, int) else n.node.at(rows) for n in of] for of in (arg.shape, arg.stride())
        )
        room = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        numbers = torch.rand(room).to(arg.dtype)
        return (numbers + 1 if arg.dtype == torch.int32 else numbers).as_strided(shape, strides)
    if isinstance(arg, (list, tuple)):
        return type(arg)([on(rows, a) for a in arg])
    return arg.node.at(rows) if isinstance(arg, torch.SymInt) else arg


def forms():
    """Tables (rows, 4, 6) as they lie, turned, cut, repeated; and one without rows."""
    known = tables()
    return [known[name] for name in ("rows", "cut", "repeated", "turned twice", "columns")]


def calls():
    """Each call of the table: its name, and arguments for each form of the first."""
    index = blank((4, 1), torch.int64, rows=True)
    last = blank((4, 6), torch.float64, rows=True)
    square = outlined(aten.transpose.int, (blank((6, 6), torch.float64, rows=True), 1, 2), {})
    wide = blank((6, 2), torch.float64, rows=True)
    pivots = blank((6,), torch.int32, rows=True)
    part = blank((4,), torch.float64, rows=True)
    small = blank((2,), torch.int64, rows=False)
    norms = blank((1, 1), torch.float64, rows=True)
    small_floats = blank((6,), torch.float64, rows=False)
    rows = last.shape[0]
    of_x = {
        "clone.default": [()], "flip.default": [([-1],), ([0, 1],)],
        "constant_pad_nd.default": [([1, 2], 0.5)],
        "full_like.default": [(2.0,)], "zeros_like.default": [()], "ones_like.default": [()],
        "empty_like.default": [()],
        "slice_scatter.default": [(blank((4, 2), torch.float64, rows=True), 2, 1, 3)],
        "select_scatter.default": [(part, 2, 3)], "gather.default": [(2, index)],
        "diagonal_scatter.default": [(part, 0, 1, 2)],
        "scatter.src": [(2, index, last)], "scatter.value": [(2, index, 1.0)],
        "scatter_add.default": [(2, index, last)], "scatter_reduce.two": [(2, index, last, "amax")],
        "index.Tensor": [([None, small],), ([None, None, small],)],
        "index_put.default": [([None, small], blank((2, 6), torch.float64, rows=True))],
        "index_select.default": [(1, small)],
        "index_add.default": [(1, small, blank((2, 6), torch.float64, rows=True))],
        "sort.default": [(), (1, True)], "topk.default": [(2,), (3, 1)], "kthvalue.default": [(2,)],
        "argmax.default": [(-1,), (1, True)], "argmin.default": [(-1,)],
        "any.default": [()], "any.dim": [(1,)], "any.dims": [([1, 2],)],
        "all.default": [()], "all.dim": [(1, True)], "all.dims": [([0, 2],)],
        "sum.default": [()], "sum.dim_IntList": [([1],)], "mean.default": [()], "mean.dim": [([2], True)],
        "prod.default": [()], "prod.dim_int": [(1,)], "amax.default": [([1],)], "amin.default": [([1],)],
        "var.correction": [([1],)], "std.correction": [([2],)], "var_mean.correction": [([1, 2],)],
        "cumsum.default": [(1,)], "cumprod.default": [(2,)], "logcumsumexp.default": [(1,)],
        "complex.default": [(last,)], "polar.default": [(last,)],
    }  # fmt: skip
    for name, several in of_x.items():
        for x in forms():
            yield from ((name, (x, *rest), {}) for rest in several)
    for x in forms():
        yield "cat.default", ([x, last], 1), {}
        yield "sort.stable", (x,), {"stable": True, "dim": 1}
        yield "searchsorted.Tensor", (small_floats, x), {}
        yield "_weight_norm_interface.default", (x, norms), {}
    yield "_weight_norm_interface_backward.default", (last, last, norms, norms, 0), {}
    turned = outlined(aten.t.default, (blank((6, 4), torch.float64, rows=False),), {})
    yield "embedding.default", (turned, index), {}
    yield "arange.start_step", (0, 7, 2), {}
    yield "arange.start_step", (0, rows, 1), {}
    yield "linalg_lu_solve.default", (square, pivots, wide), {}
    yield "linalg_solve_triangular.default", (square, wide), {"upper": True}
    yield "cholesky_solve.default", (wide, square), {}
    yield "_linalg_solve_ex.default", (square, wide), {"check_errors": True}
    for name in (
        "linalg_cholesky_ex",
        "linalg_inv_ex",
        "_linalg_slogdet",
        "_linalg_det",
        "linalg_matrix_exp",
    ):
        yield f"{name}.default", (square,), {}


def overload(name):
    packet, _, of = name.partition(".")
    return getattr(getattr(aten, packet), of)


CALLS = [*calls()]


@pytest.mark.parametrize("name", sorted({name for name, *_ in CALLS}))
def test_a_call_of_the_table(name):
    func = overload(name)
    for _, args, kwargs in (call for call in CALLS if call[0] == name):
        at = {"device": torch.device("cpu")} if name.startswith("arange") else {}
        made, wanted = outlined(func, args, kwargs), func(*on(ROWS, args), **kwargs, **at)
        parts = zip(made, wanted, strict=True) if isinstance(made, tuple) else [(made, wanted)]
        for one, expected in parts:
            same(one, expected)
        assert told_by_kernel(func, on, args, kwargs | at) is not None


def test_all_calls_of_the_table_are_held_to_their_kernels():
    assert {name for name, *_ in CALLS} == {*kernel_shapes._FILLED}


def test_what_does_not_grow_with_the_rows_is_not_told():
    x = blank((4, 6), torch.float32, rows=True)
    rows = x.shape[0]
    assert told_by_kernel(aten.arange.start_step, on, (0, rows, 2), {}) is None
    with pytest.raises((Unusual, RuntimeError)):
        outlined(aten.topk.default, (x, 5, 0), {})  # three rows have no five largest


def test_a_kernel_is_not_run_on_large_tables():
    x = outlined(aten.transpose.int, (blank((1024, 1025), torch.float32, rows=False), 0, 1), {})
    assert told_by_kernel(aten.tanh.default, on, (x,), {}) is None


def test_nothing_is_drawn():
    before = torch.get_rng_state()
    assert told_by_kernel(aten.bernoulli.p, on, (forms()[1], 0.5), {}) is None
    assert torch.equal(torch.get_rng_state(), before)
