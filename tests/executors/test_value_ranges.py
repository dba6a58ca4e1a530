"""Largest and smallest elements and where they are: many lanes at a time, and what torch says."""

import pytest
import torch

import stepnet
from covering import few
from stepnet.executors.c import build as c_build

pytestmark = pytest.mark.skipif(c_build.available() is not None, reason="no C compiler")
OPTIMISED = False
NAN, INF = float("nan"), float("inf")
SHAPE = (5, 3, 37)


def rows(dtype):
    """Rows of a few different numbers, so that there are equals; the last ones hold what is special."""
    if not dtype.is_floating_point:
        found = torch.randint(-3, 4, (13, 2, *SHAPE)).to(dtype)
        found[0] = torch.iinfo(dtype).min
        found[1] = torch.iinfo(dtype).max
        return found
    found = torch.randint(-3, 4, (13, 2, *SHAPE)).to(dtype)
    found[0] = torch.randn(2, *SHAPE)
    found[1], found[2], found[3] = -INF, INF, NAN
    found[4] = torch.where(torch.rand(2, *SHAPE) < 0.05, NAN, found[4])
    found[5] = torch.where(torch.rand(2, *SHAPE) < 0.5, INF, -INF)
    found[6, ..., 36], found[7, ..., 0], found[8, ..., 16] = NAN, NAN, NAN
    return found


def along(v, dim):
    """All that is asked of a value along a dimension."""
    largest = v.max(dim)
    least = v.amin(dim)
    return v.argmax(dim), v.argmin(dim, keepdim=True), least, largest.values, largest.indices


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "dtype",
    few([torch.float32, torch.float64, torch.int64, torch.int8], [torch.float32, torch.int64]),
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True], ids=["as they lie", "turned"])
def test_they_are_torchs(dtype, turned):
    def step(x, s):
        v = x + s
        parts = [v, v[..., :1], v[..., 2:18]]
        parts = [part.transpose(1, 3) for part in parts] if turned else parts
        y = [found for part in parts for dim in (1, 2, 3) for found in along(part, dim)]
        y += [found for part in parts for found in along(part.flatten(1), 1)]
        s = torch.where(y[0].reshape(len(v), -1).sum(1)[:, None, None, None] < 0, s + 1, s)
        return tuple(y), s

    x, start = rows(dtype), torch.zeros(2, *SHAPE, dtype=dtype)
    y, _ = stepnet.recurrent(step, x, start, backend="c")
    expected, _ = stepnet.recurrent(step, x, start, backend="naive")
    for a, b in zip(y, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_what_is_below_the_largest_beside_it_and_what_only_looks_so():
    def step(x, s):
        v = x + s
        most = v.amax(1, keepdim=True)
        parts = v - most, v.mT - most.mT, v - most.mT, v[:, :, 1:] - most[:, :, :-1]
        y = tuple(part.exp() for part in parts)
        return y, torch.where(y[0] > 0.5, -s, s + 1)

    x, start = torch.randn(13, 2, 5, 5), torch.zeros(2, 5, 5)
    x[1, 0], x[2, 0], x[3, 0, 1, 2], x[4], x[5, 0, 0] = -INF, 0.0, NAN, 20 * x[4], INF
    y, _ = stepnet.recurrent(step, x, start, backend="c")
    expected, _ = stepnet.recurrent(step, x, start, backend="naive")
    for at, (a, b) in enumerate(zip(y, expected, strict=True)):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert (b.nan_to_num(posinf=0).max() > 1) == (at > 1)
