"""Which gradients are made, for whom, and that nobody pays for one that is not wanted."""

from __future__ import annotations

import pytest
import torch

from covering import few
from plans import BACKENDS, ops, plan_of
from stepnet import cells
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.executors import autograd, loop
from stepnet.testing import FLOAT64, check_step, oracle

pytestmark = pytest.mark.usefixtures("verified_plans")

OPTIMISED = False
DTYPE = torch.float64
FEATURES, HIDDEN = 2, 3
SIZES = [2, 0, 3, 1]


def rows(grad=True, sizes=SIZES):
    values = torch.randn(sum(sizes), FEATURES, dtype=DTYPE, requires_grad=grad)
    return LoDTensor.from_lengths(values, [sizes])


def boot(grad=True):
    return torch.randn(len(SIZES), HIDDEN, dtype=DTYPE, requires_grad=grad)


def gru(frozen=()):
    torch.manual_seed(2)
    cell = cells.GRU(FEATURES, HIDDEN, dtype=DTYPE)
    for name, parameter in cell.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return cell


EVERY = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


WANTED = {  # what is frozen, and whether x and h0 want gradients
    "h0 without grad": ((), True, False),
    "x without grad": ((), False, True),
    "weights alone": ((), False, False),
    "frozen weights": (EVERY, True, True),
    "x alone": (EVERY, True, False),
    "h0 alone": (EVERY, False, True),
    "recurrent weights alone": (("weight_ih", "bias_ih"), False, False),
    "input weights, x and h0": (("weight_hh", "bias_hh"), True, True),
    "one bias alone": (("weight_ih", "weight_hh", "bias_hh"), False, False),
}
ASKED = [(backend, name) for backend in BACKENDS for name in WANTED]


@pytest.mark.parametrize(("backend", "name"), few(ASKED, ASKED[-len(WANTED) :: 2]))
def test_the_wanted_gradients_are_right(backend, name):
    frozen, x_grad, h_grad = WANTED[name]
    check_step(gru(frozen), rows(x_grad), boot(h_grad), backend=backend)
    check_step(gru(frozen), rows(x_grad), backend=backend)


def test_h0_without_grad_gets_none():
    for backend in BACKENDS:
        h0 = boot(False)
        y, h = recurrent(gru(), rows(), h0, backend=backend)
        (y.values.sum() + h.sum()).backward()
        assert h0.grad is None


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_no_work_for_frozen_weights(backend):
    cell = gru(EVERY)
    x, h0 = rows(), boot()
    plan = plan_of(cell, x, h0, backend=backend)
    assert [g is not None for g in plan.gradients] == [True, True, *[False] * len(plan.weights)]
    made = ops(plan.backward)
    assert not {"matmul_tn", "sum_rows"} & set(made)
    assert made.count("matmul") == 2  # back to h, and back to x
    y, h = recurrent(cell, x, h0, backend=backend)
    (y.values.sum() + h.sum()).backward()
    assert all(parameter.grad is None for parameter in cell.parameters())
    assert x.values.grad is not None
    assert h0.grad is not None


@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
def test_no_work_for_gradients_that_are_not_asked_for(backend, monkeypatch):
    """`autograd.grad` by some of the inputs is that by all, and makes no products for the others."""
    monkeypatch.setattr(autograd, "WORTH_ASKING", 0)
    cell, x, h0 = gru(), rows(), boot()
    own = [x.values, h0, *cell.parameters()]
    ran = []

    def watched(nodes, *args):
        ran.extend(node.op for node in nodes)
        run_nodes(nodes, *args)

    run_nodes = loop.run_nodes
    monkeypatch.setattr(loop, "run_nodes", watched)

    def gradients(asked, create_graph=False):
        y, h = recurrent(cell, x, h0, backend=backend)
        ran.clear()
        results = (y.values * y.values).sum() + h.sin().sum()
        return torch.autograd.grad(results, asked, create_graph=create_graph)

    every = gradients(own)
    assert ran.count("matmul_tn") == 2
    for k, one in enumerate(own):
        (found,) = gradients([one])
        assert torch.equal(found, every[k])
        assert ran.count("matmul_tn") == (one.dim() == 2 and k >= 2)
    (g,) = gradients([x.values], create_graph=True)
    assert ran.count("matmul_tn") == 0
    cell.weight_hh.grad = None
    g.square().sum().backward(inputs=[cell.weight_hh])
    y, h = recurrent(cell, x, h0, backend="naive")
    (expected,) = torch.autograd.grad((y.values**2).sum() + h.sin().sum(), x.values, create_graph=True)
    (expected,) = torch.autograd.grad(expected.square().sum(), cell.weight_hh)
    torch.testing.assert_close(cell.weight_hh.grad, expected)


def test_a_gradient_depends_on_weights_that_nobody_asked_for(monkeypatch):
    """Of a linear step the gradient of x depends on nothing but the weights, whose own is not made."""
    monkeypatch.setattr(autograd, "WORTH_ASKING", 0)
    w = torch.tensor(0.5, dtype=DTYPE, requires_grad=True)

    def linear(x, h):
        h = (x.sum(-1, keepdim=True) + h) * w
        return h, h

    x, found = rows(), []
    for backend in ("naive", "eager"):
        y, _ = recurrent(linear, x, boot(), backend=backend)
        (g,) = torch.autograd.grad(y.values.sum(), x.values, create_graph=True)
        found.append([g, *torch.autograd.grad(g.square().sum(), w)])
    torch.testing.assert_close(found[1], found[0])


def test_no_work_for_a_gradient_of_x():
    for_all, for_weights = (plan_of(gru(), rows(grad), boot(), backend="eager") for grad in (True, False))
    assert for_weights.gradients[0] is None
    assert ops(for_all.backward).count("matmul") - ops(for_weights.backward).count("matmul") == 1


def test_one_bias_alone():
    """The way back through h is needed for it, and no matmul over all rows is."""
    plan = plan_of(gru(("weight_ih", "weight_hh", "bias_hh")), rows(False), boot(False))
    assert not {"matmul_tn"} & set(ops(plan.backward))
    assert "sum_rows" in ops(plan.backward)
    assert sum(g is not None for g in plan.gradients) == 1


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_a_trained_readout_needs_no_way_back_through_time(backend):
    w, u, v = (torch.randn(s, dtype=DTYPE) for s in ((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)))
    v.requires_grad_()

    def step(x, h):
        h = torch.tanh(x @ w + h @ u)
        return h @ v, h

    plan = plan_of(step, rows(False), boot(False), backend=backend)
    assert ops(plan.backward, "scan") == []
    assert ops(plan.backward) == ["matmul_tn"]
    check_step(step, rows(False), boot(False), backend=backend)


def test_no_backward_scan_without_recurrent_gradients():
    """minGRU's input weights reach y through no cycle but that of its gates: h alone turns."""
    plan = plan_of(cells.MinGRU(FEATURES, HIDDEN, dtype=DTYPE), rows(), boot())
    assert "matmul" not in ops(plan.backward, "scan")
    assert "matmul_tn" in ops(plan.backward, "map")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad(backend, mode):
    cell, x, h0 = gru(), rows(), boot()
    expected = oracle(cell, x, h0)
    with mode():
        y, h = recurrent(cell, x, h0, backend=backend)
    assert not y.values.requires_grad
    assert not h.requires_grad
    torch.testing.assert_close(y.values, torch.cat([p[0] for p in expected.y]), rtol=0, atol=1e-12)
    torch.testing.assert_close(h, torch.cat([p[0] for p in expected.final]), rtol=0, atol=1e-12)


def test_without_grad_there_is_no_backward_plan():
    cell, x, h0 = gru(), rows(), boot()
    with torch.no_grad():
        plan = plan_of(cell, x, h0, backend="eager")
    assert plan.backward is None
    assert plan.kept == ()
    assert plan_of(gru(EVERY), rows(False), boot(False), backend="eager").backward is None


@pytest.mark.covering(2)
@pytest.mark.parametrize("through", [("y",), ("final",)], ids="-".join)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LayerNormLSTM", "MinGRU"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_of_one_result_alone(backend, name, through):
    cell = getattr(cells, name)(FEATURES, HIDDEN, dtype=DTYPE)
    state = tuple(boot() for _ in range(2)) if "LSTM" in name else boot()
    check_step(cell, rows(), state, backend=backend, through=through)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_of_the_cell_state_alone(backend):
    """The gradient of h is then missing in the first step of the way back."""
    cell = cells.LSTM(FEATURES, HIDDEN, dtype=DTYPE)
    x, state = rows(), (boot(), boot())
    _, (_, c) = recurrent(cell, x, state, backend=backend)
    inputs = [x.values, *state, *cell.parameters()]
    found = torch.autograd.grad(c.square().sum(), inputs)
    finals = torch.cat([leaves[1] for leaves in oracle(cell, x, state).final])
    expected = torch.autograd.grad(finals.square().sum(), inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT64.gradients)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_add_up_over_calls(backend):
    cell, x, h0 = gru(), rows(), boot()
    y, _ = recurrent(cell, x, h0, backend=backend)
    loss = y.values.sin().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in cell.parameters()]
    loss.backward()
    recurrent(cell, x, h0, backend=backend)[0].values.sin().sum().backward()
    for parameter, one in zip(cell.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 3 * one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_run_feeds_the_next(backend):
    """Two layers, and the final state of one run boots the next: gradients pass through all."""
    one, two = gru(), cells.LSTM(HIDDEN, HIDDEN, dtype=DTYPE)
    x, h0 = rows(), boot()

    def both(run):
        y, h = run(one, x, h0)
        z, (a, b) = run(two, y, (h, h))
        return z, (a + h, b)

    def plain(step, x, state):
        return recurrent(step, x, state, backend="naive")

    inputs = [x.values, h0, *one.parameters(), *two.parameters()]
    results = []
    for run in (plain, lambda *args: recurrent(*args, backend=backend)):
        z, (a, b) = both(run)
        loss = z.values.sin().sum() + (a * b).sum()
        results.append([z.values, a, b, *torch.autograd.grad(loss, inputs)])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_results_may_be_written_to(backend):
    """No result shares memory with an input or with another result."""

    def step(x, state):
        h, key = state
        h = h + x
        return (h, x, key), (h, key)

    x = torch.randn(3, 4, FEATURES, dtype=DTYPE)
    state = (torch.randn(4, FEATURES, dtype=DTYPE), torch.randn(4, FEATURES, dtype=DTYPE))
    before = [t.clone() for t in (x, *state)]
    y, final = recurrent(step, x, state, backend=backend)
    after = [t.clone() for t in (*y, *final)]
    results = [*y, *final]
    for i, tensor in enumerate(results):
        tensor.zero_()
        assert all(torch.equal(a, b) for a, b in zip((x, *state), before, strict=True)), "an input changed"
        for other, wanted in zip(results[i + 1 :], after[i + 1 :], strict=True):
            assert torch.equal(other, wanted), "another result changed"


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("what", ["x", "h0", "weight"])
def test_what_is_changed_before_the_way_back_is_an_error_not_a_wrong_gradient(backend, what):
    cell, x, h0 = gru(), rows(), boot()
    _, h = recurrent(cell, x, h0, backend=backend)
    with torch.no_grad():
        {"x": x.values, "h0": h0, "weight": cell.weight_hh}[what].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def leaf(*shape):
    return torch.randn(*shape, dtype=DTYPE, requires_grad=True)


LAYOUTS = {
    "every other column": lambda *s: leaf(*s[:-1], 2 * s[-1])[..., ::2],
    "transposed": lambda *s: leaf(*s[:-2], s[-1], s[-2]).mT,
    "a slice": lambda *s: leaf(*s[:-1], s[-1] + 3)[..., 2:-1],
    "one row for all": lambda *s: leaf(s[-1]).expand(*s),
    "flipped": lambda *s: leaf(*s).flip(-1),
    "an offset": lambda *s: leaf(s[0] + 1, *s[1:])[1:],
    "a result of something": lambda *s: leaf(*s).exp() * 0.3,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_any_layout(backend, layout):
    """x, state and weights as views of something larger, which the gradients must reach."""
    make = LAYOUTS[layout]
    w, u, b = make(FEATURES, HIDDEN), make(HIDDEN, HIDDEN), make(1, HIDDEN)

    def step(x, state):
        h = torch.tanh(x @ w + state @ u + b)
        return h, h

    weights = {"w": w, "u": u, "b": b}
    x = make(sum(SIZES), FEATURES)
    h0 = make(len(SIZES), HIDDEN)
    check_step(step, LoDTensor.from_lengths(x, [SIZES]), h0, weights=weights, backend=backend)
    dense = make(3, 2, FEATURES)
    check_step(step, dense, make(2, HIDDEN), weights=weights, backend=backend, reverse=True)
    check_step(step, dense, make(3, HIDDEN), weights=weights, backend=backend, axis=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_any_layout(backend):
    """What comes back from a loss may be expanded (a sum) or transposed."""
    cell, x, h0 = gru(), rows(), boot()
    y, h = recurrent(cell, x, h0, backend=backend)
    expected = oracle(cell, x, h0)
    theirs = torch.cat([p[0] for p in expected.y]), torch.cat([p[0] for p in expected.final])
    inputs = [x.values, h0, *cell.parameters()]
    seed = torch.randn(HIDDEN, len(SIZES), dtype=DTYPE).t()
    for weight in (
        torch.ones((), dtype=DTYPE).expand(sum(SIZES), HIDDEN),
        torch.randn(HIDDEN, 6, dtype=DTYPE).t(),
    ):
        found = torch.autograd.grad((y.values, h), inputs, (weight, seed), retain_graph=True)
        wanted = torch.autograd.grad(theirs, inputs, (weight, seed), retain_graph=True)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
