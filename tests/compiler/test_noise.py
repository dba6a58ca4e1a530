"""Steps that draw noise: the right law, drawn anew at every step and row, and the same on the way back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from covering import few
from plans import BACKENDS, ops, plan_of
from stepnet import cells
from stepnet.api import recurrent
from stepnet.compiler.reads.reach import reach
from stepnet.testing import check_step

DTYPE = torch.float64
COMPILED = [b for b in BACKENDS if b != "naive"]
T, B, D = 50, 20, 8
GAIN = torch.nn.Parameter(torch.ones(D, dtype=DTYPE))


def ones(grad=False):
    return torch.ones(T, B, D, dtype=DTYPE, requires_grad=grad)


def zeros(grad=False):
    return torch.zeros(B, D, dtype=DTYPE, requires_grad=grad)


def dropped(x, h):
    return F.dropout(x, 0.25), h + x


def dropped_state(x, h):
    h = F.dropout(0.5 * h + x, 0.25)
    return h, h


def jittered(x, h):
    noise = torch.randn_like(h)
    return noise, h * 0.9 + noise


def uniform(x, h):
    return torch.rand_like(x), h


def uniform_of_the_batch(x, h):
    return torch.rand(x.shape[0], 3, dtype=DTYPE), h


def coins(x, h):
    return torch.bernoulli(torch.sigmoid(h)), h


def zoned_out(x, h):
    return torch.where(torch.rand_like(h) < 0.25, h, x), h


NOISY = [dropped, dropped_state, jittered, uniform, uniform_of_the_batch, coins, zoned_out]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_its_share_and_scale(backend):
    y, _ = recurrent(dropped, ones(), zeros(), backend=backend)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    share = (y == 0).double()
    assert abs(share.mean() - 0.25) < 0.02  # 8,000 draws: 4 standard deviations
    for dims in ((1, 2), (0, 2), (0, 1)):  # at every step, of every sequence, of every feature
        assert (share.mean(dims) - 0.25).abs().max() < 0.16
    assert len({tuple(rows) for rows in y.flatten(1).tolist()}) == T, "a mask was used twice"


@pytest.mark.parametrize("backend", BACKENDS)
def test_normal_and_uniform_noise(backend):
    y, _ = recurrent(jittered, ones(), zeros(), backend=backend)
    assert abs(y.mean()) < 0.05
    assert abs(y.std() - 1) < 0.05
    assert len(y.unique()) == y.numel()
    for step in (uniform, uniform_of_the_batch):
        y, _ = recurrent(step, ones(), zeros(), backend=backend)
        assert 0 <= y.min() < 0.01
        assert 0.99 < y.max() < 1
        assert abs(y.mean() - 0.5) < 0.03
        assert len(y.unique()) == y.numel()


@pytest.mark.parametrize("backend", BACKENDS)
def test_coins_follow_their_odds(backend):
    state = torch.linspace(-4, 4, B * D, dtype=DTYPE).reshape(B, D)
    y, _ = recurrent(coins, torch.ones(200, B, D, dtype=DTYPE), state, backend=backend)
    assert (y.mean(0) - torch.sigmoid(state)).abs().max() < 0.16
    assert set(y.unique().tolist()) == {0.0, 1.0}


LAWS = {
    "normal": lambda like: torch.normal(1.0, 2.0, like.shape, dtype=DTYPE),
    "log_normal": lambda like: torch.empty_like(like).log_normal_(0.5, 0.7),
    "cauchy": lambda like: torch.empty_like(like).cauchy_(1, 0.3),
    "geometric": lambda like: torch.empty_like(like).geometric_(0.3),
    "exponential": lambda like: torch.empty_like(like).exponential_(2.0),
    "whole numbers": lambda like: torch.empty_like(like).random_(2, 6),
}


@pytest.mark.parametrize("law", LAWS)
def test_laws_are_those_of_torch(law):
    step, quantiles = (lambda x, h: (LAWS[law](x), h)), torch.linspace(0.05, 0.95, 19, dtype=DTYPE)
    wanted = LAWS[law](torch.empty(200_000, dtype=DTYPE)).quantile(quantiles)
    for backend in COMPILED:
        drawn = recurrent(step, ones(), zeros(), backend=backend)[0].flatten()
        below, at_most = drawn < wanted[:, None], drawn <= wanted[:, None]  # whole numbers are hit
        assert (below.double().mean(1) - quantiles).max() < 0.025
        assert (quantiles - at_most.double().mean(1)).max() < 0.025


def test_noise_of_rows_that_stand_several_to_a_row():
    """`h.view(n * 2, 4)` and noise like it: a number for each, of one law, that the state carries on."""

    def particles(x, h):
        h = h.reshape(-1, 4) * 0.5
        normal, odds = torch.randn_like(h), torch.bernoulli(torch.full_like(h, 0.25))
        waited, whole = torch.empty_like(h).exponential_(2.0), torch.randint_like(h, 3)
        h = (h + normal).view(-1, 2, 4)
        return [h, *(t.view(-1, 2, 4) for t in (normal, odds, waited, whole))], h

    state = torch.ones(B, 2, 4, dtype=DTYPE)
    (y, normal, odds, waited, whole), final = recurrent(particles, ones(), state, backend="eager")
    h = state
    for now, noise in zip(y, normal, strict=True):
        h = h * 0.5 + noise
        torch.testing.assert_close(now, h, rtol=0, atol=1e-12)
    torch.testing.assert_close(final, h, rtol=0, atol=1e-12)
    for drawn, mean in ((normal, 0), (odds, 0.25), (waited, 0.5), (whole, 1)):
        assert (
            drawn.mean((0, 1)) - mean
        ).abs().max() < 0.13  # 4 of its standard deviations, 1,000 draws each
    for drawn in (normal, waited):
        assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_carries_the_noise(backend):
    noise, final = recurrent(jittered, ones(), zeros(), backend=backend)
    h = zeros()
    for step in noise:
        h = h * 0.9 + step
    torch.testing.assert_close(final, h, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_way_back_sees_the_same_mask(backend):
    x = ones(True)
    y, _ = recurrent(dropped, x, zeros(), backend=backend)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())

    x, h0 = ones(True), zeros(True)
    y, h = recurrent(dropped_state, x, h0, backend=backend)
    found = torch.autograd.grad(h.sum(), (x, h0))
    kept = (y != 0).to(DTYPE) / 0.75  # by hand, with the masks that were drawn
    grad = torch.ones(B, D, dtype=DTYPE)
    expected = []
    for mask in reversed(kept):
        grad = grad * mask
        expected.append(grad)
        grad = grad * 0.5
    torch.testing.assert_close(found, (torch.stack(expected[::-1]), grad), rtol=1e-12, atol=1e-15)


@pytest.mark.covering(1)
@pytest.mark.parametrize("step", NOISY, ids=lambda s: s.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_repeats_and_calls_differ(backend, step):
    recurrent(step, ones(), zeros(), backend=backend)  # capture draws no noise that a later call misses

    def once(seed):
        torch.manual_seed(seed)
        first, _ = recurrent(step, ones(), zeros(), backend=backend)
        second, _ = recurrent(step, ones(), zeros(), backend=backend)
        return first, second

    first, second = once(1)
    assert not torch.equal(first, second)
    again = once(1)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, once(2)[0])


@pytest.mark.parametrize("backend", COMPILED)
def test_the_first_call_leaves_the_generator_as_every_call_does(backend):
    def fresh(x, h):
        return F.dropout(x, 0.25), h

    torch.manual_seed(3)
    first, _ = recurrent(fresh, ones(), zeros(), backend=backend)
    after_first = torch.rand(3)
    torch.manual_seed(3)
    second, _ = recurrent(fresh, ones(), zeros(), backend=backend)
    assert torch.equal(first, second)
    assert torch.equal(after_first, torch.rand(3))


@pytest.mark.parametrize("step", [dropped_state, jittered, zoned_out], ids=lambda s: s.__name__)
def test_noise_is_drawn_once_for_all_steps(step):
    plan = plan_of(step, ones(), zeros())
    assert set(ops(plan.forward, "map")) & {"rand", "randn"}
    assert not set(ops(plan.forward, "scan")) & {"rand", "randn"}
    assert plan.random


def test_noise_that_the_way_back_needs_is_kept():
    x = ones(True)
    plan = plan_of(dropped_state, x, zeros())
    made = {name for node in plan.forward.body.nodes for name in node.outputs}
    assert "rand" not in ops(plan.backward)
    assert set(plan.kept) & made


@pytest.mark.parametrize("backend", few(COMPILED, ["eager"]))
def test_evaluation_is_exact(backend):
    cell = cells.Zoneout(cells.VariationalDropout(cells.GRU(3, 5, dtype=DTYPE), 0.5, 0.5), 0.2).eval()
    x = torch.randn(3, 2, 3, dtype=DTYPE, requires_grad=True)
    check_step(cell, x, backend=backend)

    def off(x, h):
        h = F.dropout(torch.tanh(x + h), 0.5, training=False)
        return F.dropout(h, 0.0), h

    check_step(off, x, torch.zeros(2, 3, dtype=DTYPE, requires_grad=True), backend=backend)


def idle(x, h):
    """Draws numbers on which nothing depends."""
    h = torch.tanh(x + h) + 0 * torch.rand_like(h)
    return h, h


@pytest.mark.covering(1)
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("step", [dropped_state, idle])
@pytest.mark.parametrize("backend", COMPILED)
def test_many_gradients_at_once_are_those_one_by_one(backend, step, order, create_graph):
    """Of one noise; and to be differentiated again, where torch's own draws fail in a batch."""
    x = ones(True)
    y = recurrent(step, x, zeros(), backend=backend)[0].square()
    for _ in range(order - 1):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        y = y * x
    many = torch.linspace(-1, 1, 2 * y.numel(), dtype=DTYPE).reshape(2, *y.shape)
    how = {"create_graph": create_graph, "retain_graph": True}
    (found,) = torch.autograd.grad(y, x, many, is_grads_batched=True, **how)
    expected = torch.stack([torch.autograd.grad(y, x, one, **how)[0] for one in many])
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == expected.requires_grad
    if create_graph:
        again = (torch.autograd.grad(g.pow(3).sum(), x, retain_graph=True)[0] for g in (found, expected))
        torch.testing.assert_close(*again)


ODDS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DTYPE)


def drawn(x, h):
    """Every kind of noise; the state makes the odds, so that what is drawn stands in the loop."""
    odds = ODDS * h[:, :1]
    parts = torch.stack([odds, 2 * odds], 1)
    y = {
        "one": torch.multinomial(odds, 1),
        "two": torch.multinomial(odds, 2),
        "again": torch.multinomial(odds, 3, replacement=True),
        "category": torch.distributions.Categorical(probs=odds, validate_args=False).sample(),
        "categories": torch.distributions.Categorical(probs=parts, validate_args=False).sample(),
        "parts": torch.multinomial(parts.flatten(0, 1), 3, replacement=True).view(-1, 2, 3),
        "two of parts": torch.multinomial(parts.view(-1, 4), 2).view(-1, 2, 2),
        "gumbel": F.gumbel_softmax(odds.log(), tau=0.5, hard=True),
        "exponential": torch.empty_like(h).exponential_(2.0),
        "uniform": torch.empty_like(h).uniform_(-1, 3),
        "normal": torch.normal(3 * h, 0.5),
        "filled": torch.empty_like(h).normal_(1.0, 2.0),
        "whole": torch.randint(-2, 4, (x.shape[0], 5)),
    }
    return y, h.clamp(max=1 + (y["one"].to(h.dtype) < -5))


@pytest.mark.parametrize("backend", few(BACKENDS, ["eager"]))
def test_draws_follow_their_odds(backend):
    torch.manual_seed(4)
    y, _ = recurrent(drawn, ones(), torch.ones(B, D, dtype=DTYPE), backend=backend)
    count = T * B

    def close(share, expected, spread, number=count):
        assert (share - expected).abs().max() < 5 * spread / number**0.5

    for name in ("one", "again", "category", "categories", "parts", "gumbel"):
        given = y[name].argmax(-1) if name == "gumbel" else y[name]
        close(torch.bincount(given.flatten(), minlength=4) / given.numel(), ODDS, 0.5, given.numel())
    assert set(y["gumbel"].unique().tolist()) == {0.0, 1.0}
    for name in ("two", "two of parts"):
        assert (y[name][..., 0] != y[name][..., 1]).all()
    close(torch.bincount(y["two"][..., 0].flatten(), minlength=4) / count, ODDS, 0.5)
    close(y["exponential"].mean(), torch.tensor(0.5), 0.5, count * D)
    close(y["uniform"].mean(), torch.tensor(1.0), 1.2, count * D)
    assert y["uniform"].min() >= -1
    assert y["uniform"].max() < 3
    close(y["normal"].mean(), torch.tensor(3.0), 0.5, count * D)
    close(y["filled"].std(), torch.tensor(2.0), 2.0, count * D)
    close(torch.bincount(y["whole"].flatten() + 2) / y["whole"].numel(), torch.tensor(1 / 6), 0.4, count * 5)
    assert y["whole"].dtype == torch.int64


@pytest.mark.filterwarnings("ignore:step 'step' runs by the plain loop")
def test_a_distribution_that_checks_its_arguments(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def step(x, h):
        chosen = torch.distributions.Categorical(probs=h)
        word = chosen.sample()
        return (word, chosen.log_prob(word), torch.distributions.Normal(x, h).log_prob(x)), h

    x, h = torch.ones(2, 2, 4, requires_grad=True), torch.full((2, 4), 0.25, requires_grad=True)
    (word, log_p, fit), _ = recurrent(step, x, h, backend="c")
    torch.testing.assert_close(log_p, torch.full((2, 2), 0.25).log())
    assert ((word >= 0) & (word < 4)).all()
    theirs = recurrent(step, x, h, backend="naive")[0][2]
    torch.testing.assert_close(fit, theirs)
    seeds = torch.randn(fit.shape)
    torch.testing.assert_close(
        torch.autograd.grad(fit, [x, h], seeds), torch.autograd.grad(theirs, [x, h], seeds)
    )
    for backend in ("c", "auto", "naive"):  # that no longer hold
        with pytest.raises(ValueError, match="to satisfy the constraint"):
            recurrent(step, x, torch.tensor([[0.25] * 4, [0.5, 0.5, -0.5, 0.5]]), backend=backend)


@pytest.mark.filterwarnings("ignore:step .* runs by the plain loop")
@pytest.mark.parametrize("named", [True, False])
def test_whether_distributions_check_may_change(named, monkeypatch):
    kind = torch.distributions.Normal

    def by_name(x, h):
        return torch.distributions.Normal(x, h).log_prob(x), h

    step = by_name if named else lambda x, h: (kind(x, h).log_prob(x), h)

    x, h = torch.ones(2, 2, 4), torch.full((2, 4), -1.0)
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    for _ in range(3):  # the third time a step is found again without a walk
        assert recurrent(step, x, h, backend="eager")[0].isnan().all()
    others = reach(without := lambda x, h: (x, h)).key
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        recurrent(step, x, h, backend="eager")
    assert reach(without).key == others  # of a step that has none


def test_odds_that_are_none():
    def step(x, h):
        return torch.multinomial(h * x, 1), h

    x = torch.stack([torch.ones(2, 4), torch.zeros(2, 4), -torch.ones(2, 4), torch.full((2, 4), torch.nan)])
    recurrent(step, torch.ones(4, 2, 4), torch.ones(2, 4), backend="c")  # such rows it is tried on
    y, _ = recurrent(step, x, torch.ones(2, 4), backend="c")
    assert (y[0] >= 0).all()
    assert (y[1:] == -1).all()


def of_draws(x, h, draw):
    kept = draw("dropout", lambda: F.dropout(torch.ones_like(x), 0.3))
    coin = draw("coin", lambda: torch.bernoulli(torch.sigmoid(h)))
    word = draw("word", lambda: torch.multinomial(torch.softmax(h, -1), 1))
    time = draw("time", lambda: torch.empty_like(h).exponential_(2.0))
    h = torch.tanh(h * coin + x * kept * GAIN + h.gather(-1, word) * time)
    return h, h


@pytest.mark.parametrize("how", [{}, {"reverse": True}, {"checkpoint": 2}], ids=str)
@pytest.mark.parametrize("backend", few(COMPILED, ["eager"]))
def test_it_is_the_plain_loop_of_what_was_drawn(backend, how):
    """Values and gradients, with other draws between forward and backward."""

    def by_chance(x, h):
        drawn = {}
        h, _ = of_draws(x, h, lambda name, make: drawn.setdefault(name, make()))
        return (h, drawn), h

    def by_noise(parts, h):
        return of_draws(parts["x"], h, lambda name, _: parts[name])

    x, h0 = torch.randn(5, 3, D, dtype=DTYPE, requires_grad=True), torch.randn(3, D, dtype=DTYPE)
    h0.requires_grad_()
    (y, drawn), final = recurrent(by_chance, x, h0, backend=backend, **how)
    torch.manual_seed(9)
    plainly = {name: value for name, value in how.items() if name != "checkpoint"}
    noise = {name: table.detach() for name, table in drawn.items()}
    plain, last = recurrent(by_noise, {"x": x, **noise}, h0, backend="naive", **plainly)
    torch.testing.assert_close((y, final), (plain, last))
    ours, theirs = (
        torch.autograd.grad((rows * rows).sum() + end.sum(), (x, h0, GAIN))
        for rows, end in ((y, final), (plain, last))
    )
    torch.testing.assert_close(ours, theirs)
