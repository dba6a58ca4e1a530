"""Rows of more numbers than the stack of a thread holds."""

from __future__ import annotations

import threading

import pytest
import torch

from forks import in_a_fork
from stepnet import recurrent
from stepnet.errors import Unsupported

OPTIMISED = False


def step(x, h):
    a = torch.tanh(x + h)
    b = a.softmax(-1)
    d = torch.sigmoid(a) * (b * a).sum(-1, keepdim=True)
    return d.sum(-1, keepdim=True), (a - d).flip(-1)


def run(size, backend):
    x = torch.linspace(-1, 1, 4 * size).reshape(2, 2, size).requires_grad_()
    y, h = recurrent(step, x, torch.zeros(2, size), backend=backend)
    return y.detach(), h.detach(), torch.autograd.grad(y.sum() + h.sum(), x)[0]


def test_they_are_left_to_torch():
    with pytest.raises(Unsupported, match="the values of one row take"):
        run(300_000, "c")
    for ours, plain in zip(run(300_000, "auto"), run(300_000, "naive"), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-5)


def test_threads_with_small_stacks():
    """As those of macOS and musl are, beside the first."""
    first, found = run(60_000, "c"), []

    def in_a_thread():
        threading.stack_size(1 << 18)
        thread = threading.Thread(target=lambda: found.append(run(60_000, "c")))
        thread.start()
        thread.join()
        return all(map(torch.equal, *found, first))

    assert in_a_fork(in_a_thread)


@pytest.mark.parametrize(("size", "fits"), [(4, True), (40, True), (96, False)])
def test_a_product_of_two_matrices_of_a_row_is_left_to_torch_where_that_is_faster(size, fits):
    def square(x, s):
        s = torch.tanh(s @ s.mT + x[:, None])
        return s.sum((1, 2)), s

    x, s = torch.randn(2, 1, size), torch.randn(1, size, size)
    if fits:
        recurrent(square, x, s, backend="c")
    else:
        with pytest.raises(
            Unsupported, match=r"multiplies two matrices of each row, \[96, 96\] by \[96, 96\]"
        ):
            recurrent(square, x, s, backend="c")
    for ours, plain in zip(recurrent(square, x, s), recurrent(square, x, s, backend="naive"), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
