"""Matrices of rows: sums over any dimensions, products in every order of memory, what is made in the loop."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain
from stepnet.engine import plans
from stepnet.report.explanation import Explanation

OPTIMISED = False
LENGTHS = [3, 0, 1, 4]
PLANS_ON_DISK = False


def check(step, x, state, lengths=LENGTHS):
    as_the_plain_loop(step, *wanting((LoDTensor.from_lengths(x, [lengths]), state)))


def rows(*shape, lengths=LENGTHS):
    return torch.randn(sum(lengths), *shape, dtype=torch.float64)


def boots(*shape, lengths=LENGTHS):
    return torch.randn(len(lengths), *shape, dtype=torch.float64)


DIMS = [dims for n in (1, 2, 3) for dims in itertools.combinations((1, 2, 3), n)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(3, 4, 9), (9, 2, 3)], ids=str)
@pytest.mark.parametrize("kind", few(["sum", "amax", "amin"], ["sum", "amax"]))
def test_reductions_over_any_dimensions(shape, kind):
    def step(x, s):
        s = torch.sin(s + x)
        parts = [getattr(s, kind)(dims, keepdim=True) for dims in DIMS]
        s = s + sum(0.1 * part for part in parts)
        turned = getattr(s.permute(0, 3, 1, 2) * 2, kind)((1, 3))
        return torch.cat([s.flatten(1), turned], 1), s

    check(step, rows(*shape), boots(*shape))


def test_several_reductions_of_one_pass_leave_different_dimensions():
    def step(x, s):
        outer = s * x.unsqueeze(1)
        s = torch.tanh(
            s + outer.sum((1, 2), keepdim=True) + outer.sum(1, keepdim=True) + outer.sum(2)[:, :, None]
        )
        return torch.cat([s.amax(1), s.amin(2), s.sum((1, 2))[:, None]], 1), s

    check(step, rows(12), boots(10, 12))


SIZES = st.sampled_from([1, 2, 8, 11])
WAYS = ("nn", "nt", "tn", "tt")


@settings(max_examples=3, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES, heads=st.sampled_from([(), (1,), (2,)]), way=st.sampled_from(WAYS))
def test_products_of_matrices_that_lie_in_memory_either_way(m, k, n, heads, way):
    def step(x, s):
        a = s if way[0] == "n" else s.mT
        b = x if way[1] == "n" else x.mT
        y = a @ torch.tanh(b)
        turned = y if way[0] == "n" else y.mT
        s = torch.tanh(s * 0.5 + turned.mean((-1, -2), keepdim=True))
        return y.flatten(1), s

    plans.forget()
    left = (m, k) if way[0] == "n" else (k, m)
    right = (k, n) if way[1] == "n" else (n, k)
    check(step, rows(*heads, *right), boots(*heads, *left))


def linear_attention(x, s):
    """Products of all rows before and after the loop: the plan says that they run once."""
    q, k, v, decay = x[:, :16], x[:, 16:32], x[:, 32:48], torch.sigmoid(x[:, 48:])
    s = decay[:, :, None] * s + k[:, :, None] * v[:, None, :]
    return torch.einsum("bk,bkv->bv", q, s), s


SIZES = [*itertools.product((3, 4, 5, 8, 9), (15, 16, 17))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", few([SIZES, SIZES[::2]], [SIZES[::2]]), ids=["all", "every other one"])
def test_lines_of_matrices_that_are_multiplied_side_by_side(sizes):
    """Of as many lines as go together, more, fewer; as short as a vector, longer; down and across."""

    def step(x, h):
        found = []
        for m, k in sizes:
            matrix = x[:, : m * k].unflatten(1, (m, k)) * h[:, :1, None]
            down = torch.einsum("nmk,nk->nm", matrix, h[:, :k])
            across = torch.einsum("nmk,nm->nk", matrix, torch.tanh(down))
            heads = torch.einsum(
                "nhmk,nhk->nhm", torch.stack([matrix, matrix * 2], 1), across[:, None] * h[:, :2, None]
            )
            found += [down, across, heads.flatten(1)]
        return torch.cat(found, 1), torch.tanh(h + found[1][:, :1])

    check(step, rows(9 * 17), boots(17))


def test_no_table_of_matrices_is_made_but_that_of_states():
    x = torch.randn(5, 3, 64, requires_grad=True)
    told = explain(linear_attention, x, torch.zeros(3, 16, 16), backend="c")
    assert isinstance(told, Explanation)
    wide = [
        (region.kind, op.name)
        for region in told.regions
        for op in region.ops
        if len(op.shape) > 1 and min(op.shape) > 1 and not region.per_step
    ]
    assert wide == []
    (saved,) = [saved for saved in told.saved if saved.shape == (16, 16)]
    assert saved.label == "state before each step"
    check(linear_attention, rows(64), boots(16, 16))


def test_what_the_taps_of_a_convolution_see_is_joined_in_the_loop():
    taps = torch.randn(4, 7, 3, 3, dtype=torch.float64, requires_grad=True)

    def step(x, h):
        h = torch.tanh(torch.nn.functional.conv2d(torch.cat([x, h], 1), taps, padding=1))
        return h, h

    x = LoDTensor.from_lengths(rows(3, 6, 6).requires_grad_(), [LENGTHS])
    told = explain(step, x, boots(4, 6, 6), backend="c")
    assert isinstance(told, Explanation)
    assert not any(op.name == "cat" for region in told.regions if not region.per_step for op in region.ops)
    as_the_plain_loop(step, *wanting((x, boots(4, 6, 6))), weights=[taps])


def test_a_matrix_that_the_step_waits_for_stays_before_the_loop():
    weight = torch.randn(16, 4, dtype=torch.float64)

    def step(x, h):
        outer = x[:, :16, None] * x[:, None, :16]
        seen = outer.amax(2) @ weight  # a product with a weight, once on all rows, of what a matrix gave
        h = torch.tanh(h + seen)
        return torch.cat([h, (outer * h.sum(1)[:, None, None]).sum(1)], 1), h

    check(step, rows(16), boots(4))


def test_a_matrix_as_result_and_as_gradient():
    def step(x, s):
        outer = x[:, :, None] * x[:, None, :]
        s = 0.5 * s + outer
        return (s * outer).flatten(1), s

    check(step, rows(16), boots(16, 16))


@pytest.mark.parametrize("size", [12, 80])
@pytest.mark.parametrize("lengths", [[], [0, 0], [5], [2, 7, 0, 3, 1, 1, 4]], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_large_states_are_run_some_sequences_at_a_time(size, lengths, threads):
    def step(x, s):
        s = torch.tanh(s + x[:, :, None] * x[:, None, :])
        return s.sum(1), s

    torch.set_num_threads(threads)
    check(step, rows(size, lengths=lengths), boots(size, size, lengths=lengths), lengths)
