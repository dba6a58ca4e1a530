"""Rows that go abreast, one in each lane of a vector: the numbers of rows that go one after the other."""

from dataclasses import replace

import pytest
import torch

from covering import few
from outcomes import as_the_plain_loop, wanting
from stepnet import LoDTensor, explain, recurrent
from stepnet.data.dtypes import dtype_of
from stepnet.engine import plans
from stepnet.executors.c import placement, source
from stepnet.executors.c.placement import Placements
from stepnet.executors.schedule import abreast

OPTIMISED = False
PLANS_ON_DISK = False
K = 5
TABLE = torch.randn(K, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def spread(x, s):
    return s[:, :, None] + TABLE.to(x.dtype) + x[:, None, :]


def log_sums(x, s):
    s = spread(x, s).logsumexp(1)
    return s, s


def best_paths(x, s):
    best, where = spread(x, s).max(1)
    return (best, where), best


def outer_sums(x, s):
    scores = torch.tanh(spread(x, s))
    whole = scores.sum((1, 2))[:, None]
    s = torch.tanh(s + scores.amin(2) - scores.sum(1) * whole)
    return torch.cat([whole, scores.amax(1), s.flip(1)[:, 1:], whole > 0], 1), s


def totals(x, s):
    s = torch.where(spread(x, s) > 0, x[:, None, :], s[:, :, None] * 0.5).mean(1)
    return s.cumsum(1).sin(), s


STEPS = {step.__name__: step for step in (log_sums, best_paths, outer_sums, totals)}
LENGTHS = {
    "a vector and some": [3, 1, 0, *[2] * 15, 4],
    "fewer than lanes": [2, 3, 0, 1],
    "two vectors and one left": [1] * 33,
}


@pytest.fixture
def found(monkeypatch):
    """How rows go abreast, which they do wherever they can, and however few are left."""
    seen = []

    def always(*given):
        how = abreast.abreast(*given)
        seen.append(how)
        return how and replace(how, least=1)

    monkeypatch.setattr(source, "abreast", always)
    monkeypatch.setattr(abreast, "_GAIN", 0)
    monkeypatch.setattr(abreast, "_LEAST", float("-inf"))
    plans.forget()
    yield seen
    plans.forget()


def given(lengths, dtype):
    torch.manual_seed(0)
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), K, dtype=dtype), [lengths])
    return wanting((x, torch.randn(len(lengths), K, dtype=dtype)))


@pytest.mark.covering(1)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", STEPS)
def test_numbers_are_those_of_the_plain_loop(name, dtype, lengths, found):
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {}
    as_the_plain_loop(STEPS[name], *given(LENGTHS[lengths], dtype_of(dtype)), **close)
    assert {how and how.lanes for how in found} == {16 if dtype == "float32" else 8}


@pytest.mark.parametrize("bad", few(["nan", "inf", "-inf"], ["nan"]))
def test_what_is_not_finite_stays_in_its_lane(bad, found):
    x, s = given([2] * 20, torch.float64)
    x.values.data[3] = float(bad)
    for step in (log_sums, outer_sums):
        by_c, plain = (recurrent(step, x, s, backend=by)[1] for by in ("c", "naive"))
        torch.testing.assert_close(by_c, plain, equal_nan=True)


@pytest.mark.parametrize("sharing", [None, "members"])
def test_rows_of_several_threads(sharing, found, monkeypatch):
    """Each has vectors of rows of its own; sums over rows have no row twice."""
    monkeypatch.setattr(
        Placements, "shared_out", lambda self, layout, threads: (sharing, threads if sharing else 1)
    )
    monkeypatch.setattr(placement, "ALONE", 0)
    torch.set_num_threads(3)
    table = TABLE.clone().requires_grad_()

    def step(x, s):
        s = (s[:, :, None] * table + x[:, None, :]).logsumexp(1)
        return s, s

    x, s = given([2] * 40 + [1] * 9, torch.float64)
    sums = [
        torch.autograd.grad(recurrent(step, x, s, backend=by)[1].sin().sum(), [table, s])
        for by in ("c", "naive")
    ]
    for ours, plain in zip(*sums, strict=True):
        torch.testing.assert_close(ours, plain)


def test_an_index_that_names_nothing_is_told_of(found):
    def step(x, s):
        s = s.gather(1, x.long()) + 1
        return s, s

    x = LoDTensor.from_lengths(torch.zeros(40, K), [[2] * 20])
    recurrent(step, x, torch.zeros(20, K), backend="c")
    x.values[7, 2] = K
    with pytest.raises(IndexError, match=f"{K} places"):
        recurrent(step, x, torch.zeros(20, K), backend="c")


@pytest.mark.parametrize("names", [("l", "lanes", "r"), ("i0", "h", "h_side")])
def test_states_may_be_called_as_what_c_counts_by(names, found):
    def step(x, state):
        state = {name: spread(x, s).logsumexp(1) for name, s in state.items()}
        return state, state

    x, s = given([1] * 18, torch.float64)
    as_the_plain_loop(step, x, wanting({name: s * at for at, name in enumerate(names)}))
    assert None not in found


def text_of(step, n):
    x = LoDTensor.from_lengths(torch.randn(4, n), [[1, 3]])
    return str(explain(step, x, torch.randn(2, n), source=True, backend="c").source)


@pytest.mark.parametrize(("n", "abreast"), [(7, True), (9, True), (16, False), (40, False)])
def test_short_features_go_abreast(n, abreast):
    """Functions of fewer than a vector has; of more, each row fills vectors of its own."""

    def step(x, s):
        s = (s[:, :, None] * x[:, None, :]).logsumexp(1)
        return s, s

    assert ("sn_abreast(" in text_of(step, n)) == abreast


def test_cheap_features_do_not():
    """To turn them would take longer than to compute them."""
    assert "sn_abreast(" not in text_of(lambda x, s: (s + x, s + x), 9)


CHOICES = {
    "largest": lambda t: t.max(1)[0],
    "smallest": lambda t: t.min(2)[0],
    "place": lambda t: t.gather(1, t.sin().argmax(1, keepdim=True)).squeeze(1),
    "put": lambda t: t.scatter(2, t.argmin(2, keepdim=True), t.sum(2, keepdim=True)).sum(1),
    "of more": lambda t: torch.cat([t, t.flip(2)], 1).gather(1, t.argmax(1, keepdim=True)).squeeze(1),
}


@pytest.mark.parametrize("name", CHOICES)
def test_one_of_few_is_chosen_by_looking_at_all(name):
    """No call of a pick is left where its index is an extreme's place; equals, -0.0 and NaN are torch's."""

    def step(x, s):
        s = CHOICES[name](s[:, :, None] * x[:, None, :])
        return s, s * 0.5

    x, s = given([2, 4, 0, 3], torch.float64)
    x.values.data[:3] = torch.tensor([0.0, -0.0, -1.0, 1.0, 1.0])
    s.data[1] = torch.tensor([-0.0, 0.0, 1.0, 1.0, -0.0])
    as_the_plain_loop(step, x, s)
    x.values.data[4, 2] = float("nan")
    ours, plain = (recurrent(step, x, s, backend=by)[0].values for by in ("c", "naive"))
    assert torch.equal(ours.isnan(), plain.isnan())
    assert torch.equal(ours.signbit() & ~ours.isnan(), plain.signbit() & ~plain.isnan())
    text = str(explain(step, x, s, source=True, backend="c").source)
    assert "sn_gather" not in text
    assert "sn_scatter" not in text
