"""Entries put into tensors, sorted and divided, and algebra of small matrices: written, run and read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from covering import few
from file_formats import FORMATS, IN_PARTS, in_part
from stepnet import recurrent

N = 3
TABLE = torch.arange(float(N * N)).reshape(N, N)
nan = float("nan")


def put(x, index, number):
    x = x.clone()
    x[index] = number
    return x


def put_by_other_names(x):
    """`dropout` gives its argument itself where it leaves nothing out."""
    x = x.clone()
    torch.dropout(x, 0.5, False)[:, 0] = 2.0
    x.view(-1)[-1] = 3.0
    x.T[1].add_(x[:, 0])
    return x


def picks(x, k, a):
    """x float [n, N], k whole numbers [n, N] from 0 to N - 1, a float [n, N, N]."""
    rows = torch.arange(x.shape[0])
    some, half = torch.sigmoid(x), k // 2
    small = a[:, 1:, 1:]  # for what is made of the same
    return {
        "floor": lambda: torch.floor_divide(x, 0.7) + torch.div(x, -0.3, rounding_mode="floor"),
        "floor of nothing": lambda: torch.floor_divide(x, torch.zeros(1)),
        "floor of whole": lambda: torch.floor_divide(k - 2, 3) + (2 - k) // -3,
        "bit by bit": lambda: (k ^ (k << 2) | 8) & ~((k + 2) << k) - ((k - 2) >> 1) + ((3 - k) >> k),
        "towards zero": lambda: torch.div(k - 2, 3, rounding_mode="trunc"),
        "rests": lambda: torch.fmod(x, 0.7) + torch.fmod(k - 2, 3) + (k - 2) % 3,
        "scatter": lambda: torch.zeros_like(x).scatter(1, k[:, :1], x[:, :1]),
        "scatter a number": lambda: x.scatter(1, k[:, 1:2], 2.5),
        "scatter_add": lambda: x.scatter_add(1, k, some),
        "scatter the first": lambda: x.scatter(1, k[1:, :2], x) + x.scatter_add(0, k[:1].clamp(max=0), some),
        "gather of the first": lambda: x.gather(1, k[1:, :2]) + a[:, 0].gather(1, k)[1:, :1],
        "scatter onto": lambda: x.scatter(1, k[:, :1], 2.5, reduce="add"),
        **{
            f"scatter_reduce {how} {own}": lambda how=how, own=own: x.scatter_reduce(
                1, half, some, how, include_self=own
            )
            for how, own in (("sum", False), ("prod", True), ("mean", False), ("mean", True), ("amin", False))
        },
        "searched": lambda: (
            torch.searchsorted(TABLE[0], x) - torch.searchsorted(some.cumsum(-1), x, right=True)
        ),
        "searched a number": lambda: (
            torch.searchsorted(TABLE[2], 7.0) + torch.bucketize(k, k[0].sort()[0], right=True)
        ),
        "sort": lambda: torch.cat(x.sort(-1, descending=True), -1),
        "argsort": lambda: k.argsort(-1) + x.argsort(-1),
        "rows of a table": lambda: TABLE[k] + TABLE[k[:, 0] - N][:, None],
        "entries": lambda: torch.stack([x[rows, k[:, 0]], a[rows, 1, k[:, 1] - N], TABLE[k[:, 0], k[:, 1]]]),
        "columns": lambda: x[:, torch.tensor([2, -1])] + a[:, :, k[0]].sum(2)[:, :1],
        "median": lambda: torch.cat(
            [*x.median(-1, keepdim=True), put(x, (slice(1), 0), nan).median(1, True)[0]], 1
        ),
        "of numbers": lambda: (
            torch.fmax(put(x, (slice(1), 0), nan), x * 2) - torch.fmin(x, x / put(x, (slice(1), 1), nan))
        ),
        "cumprod": lambda: some.cumprod(-1),
        "logcumsumexp": lambda: (100 * x).logcumsumexp(-1),
        "index_put": lambda: x.index_put((rows, k[:, 0]), some[:, 0]),
        "put a number": lambda: x.index_put((rows[:, None], k[:, :2]), torch.tensor(0.5)),
        "put behind": lambda: put(x, (slice(None), torch.tensor([2, 0])), -1.0),
        "put between": lambda: put(a, (k[:, 0] > 1, 1), 0.5) + put(a, (rows, slice(None), k[:, 1]), 2.0),
        "put slices": lambda: put(put(x, (slice(None), slice(1, 3)), 0.5), (slice(None), -1), x[:, 0]),
        "put rows": lambda: put(put(x, slice(1, None), 0.5), -1, x[0]),
        "put where": lambda: x.index_put((x > 0,), torch.tensor(3.0)),
        "put by other names": lambda: put_by_other_names(x),
        "some of slices": lambda: x[:, :1] * x[:, 1:2],
        "norms": lambda: sum(torch.linalg.vector_norm(x, p, -1) for p in (2, 1, float("inf"), -float("inf"))),
        "solve": lambda: torch.linalg.solve(a, x),
        "solve of matrices": lambda: torch.linalg.solve(small, small.mT, left=False),
        "inv": lambda: torch.linalg.inv(small),
        "det": lambda: torch.linalg.det(a),
        "slogdet": lambda: torch.cat([t[:, None] for t in torch.linalg.slogdet(small)], -1),
        "cholesky": lambda: torch.linalg.cholesky(small @ small.mT + torch.eye(2)),
        "triangular": lambda: torch.linalg.solve_triangular(a.triu() + torch.eye(N), a, upper=True),
        "cholesky_solve": lambda: torch.cholesky_solve(x[:, :2, None], small.tril() + torch.eye(2)),
    }


def inputs(n):
    a = torch.randn(n, N, N) + 3 * torch.eye(N)
    a[:, 0, 0] = 0  # another row is to divide first
    return torch.randn(n, N), torch.stack([torch.randperm(N) for _ in range(n)]), a


class Picks(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, k, a):
        return tuple(in_part(picks(x, k, a), self.part).values())


@pytest.mark.parametrize(("name", "part"), IN_PARTS)
@pytest.mark.usefixtures("one_trace")
def test_written_and_read_back(name, part, tmp_path):
    form, runtime, file = FORMATS[name]
    path = tmp_path / file
    form.save(Picks(part), path, inputs(3))
    read = form.load(path)
    for n in (5, 1):
        given = inputs(n)
        expected = in_part(picks(*given), part)
        run = [torch.as_tensor(np.asarray(t)) for t in runtime(path, [t.numpy() for t in given])]
        for found in (run, read(*given)):
            found = list(found.values()) if isinstance(found, dict) else found
            for (what, want), got in zip(expected.items(), found, strict=True):
                torch.testing.assert_close(
                    got.to(want.dtype),
                    want,
                    rtol=1e-3,
                    atol=1e-3,
                    equal_nan=True,
                    msg=lambda m, w=what: f"{w}: {m}",
                )


@pytest.mark.parametrize("name", few(FORMATS, ["openvino"]))
def test_in_a_recurrence(name, tmp_path):
    """A filter, floor division, and bits, in a loop whose body is written by its plan or whole."""

    def step(x, p):
        p = p @ p.mT / 4 + torch.eye(N)
        gain = torch.linalg.solve(p, x[:, :, None])[..., 0]
        bits = (x * 8).long() ^ 5
        bits = (bits << 3) - (bits >> 2)
        return gain + torch.floor_divide(x, 0.7) + bits, p - gain[:, :, None] * x[:, None, :] / 9

    class Filter(nn.Module):
        def forward(self, x, p):
            return recurrent(step, x, p)

    form, runtime, file = FORMATS[name]
    path = tmp_path / file
    form.save(Filter(), path, (torch.randn(3, 2, N), torch.zeros(2, N, N)))
    given = torch.randn(4, 3, N), torch.randn(3, N, N)
    for got, want in zip(runtime(path, [t.numpy() for t in given]), Filter()(*given), strict=True):
        torch.testing.assert_close(torch.as_tensor(np.asarray(got)), want, rtol=1e-3, atol=1e-4)
