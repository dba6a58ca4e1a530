"""Gradients of weights over few rows are made beside the loop, over more by torch: the same ones."""

from __future__ import annotations

import ctypes

import pytest
import torch

from covering import few
from outcomes import as_the_plain_loop
from stepnet import LoDTensor
from stepnet.cells import GRU, LSTM
from stepnet.executors.c.few_rows import served
from stepnet.executors.layout import Layout

BACKEND = "c"


@pytest.mark.parametrize("steps", [1, 20, 129, 130])
@pytest.mark.parametrize("cell", few([LSTM, GRU], [LSTM]))
def test_as_the_plain_loop(cell, steps):
    x = torch.randn(steps, 2, 3, requires_grad=True)
    cell = cell(3, 4)
    as_the_plain_loop(cell, x, cell.initial_state(2), rtol=2e-4, atol=2e-5)


def _what_is_read_waits(x, h, w):
    return torch.tanh(x @ w[0] + h[1] @ w[1]), (torch.tanh(h[0] @ w[0] + h[1] @ w[1]), h[1])


def _what_is_read_is_there(x, h, w):
    return h[1] @ w[1], (torch.tanh(x + h[0] @ w[0]), h[1])


@pytest.mark.parametrize("way", [_what_is_read_waits, _what_is_read_is_there])
def test_a_state_that_no_step_changes_has_no_rows_of_steps(way):
    w = [(torch.randn(8, 8) / 3).requires_grad_() for _ in range(2)]
    x = LoDTensor.from_lengths(torch.randn(12, 8, requires_grad=True), [[5, 0, 7]])
    state = tuple(torch.randn(3, 8, requires_grad=True) for _ in range(2))
    as_the_plain_loop(lambda x, h: way(x, h, w), x, state, weights=w, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 6])
def test_products_of_any_width(rows):
    sizes = [(k, n) for k in (1, 8, 19) for n in (1, 4, 13, 16, 47)]
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda pool, arguments: None)
    layout = Layout.dense(rows, 1, True, False)
    given = [(torch.randn(rows, k), torch.randn(rows, n)) for k, n in sizes]
    made = [torch.full((k * n + 2,), torch.nan) for k, n in sizes]
    address = ctypes.cast(run, ctypes.c_void_p).value
    products = [
        (out[1:].data_ptr(), a.data_ptr(), b.data_ptr(), a.shape[1], b.shape[1])
        for out, (a, b) in zip(made, given, strict=True)
    ]
    assert address is not None
    served(address, 0, 0, layout, [], products)
    for out, (a, b) in zip(made, given, strict=True):
        assert out[[0, -1]].isnan().all()  # nothing beside it is written
        want = a.double().T @ b.double()
        torch.testing.assert_close(out[1:-1].double().view(want.shape), want, rtol=1e-6, atol=1e-5)
