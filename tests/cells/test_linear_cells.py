"""Cells that are linear in their state, most with a matrix as the state: against their papers' equations
written out in numpy for one row, and over sequences by every executor."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.func import functional_call

from cells.laws import CLOSE, DTYPE, LENGTHS, by_hand, check_autocast
from covering import every, few
from outcomes import gradients, tensors
from plans import entry_of
from stepnet import LoDTensor, cells, recurrent
from stepnet import nn as modules
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import StepError

FEATURES = 4
CELLS = {
    "RGLRU": lambda **how: cells.RGLRU(FEATURES, **how),
    "RWKVTimeMix": lambda **how: cells.RWKVTimeMix(FEATURES, 0.5, **how),
    "MLSTM": lambda **how: cells.MLSTM(FEATURES, 3, **how),
    "MLSTM of heads": lambda **how: cells.MLSTM(FEATURES, 6, 2, **how),
    "SelectiveSSM": lambda **how: cells.SelectiveSSM(FEATURES, 3, 2, **how),
    "DeltaNet": lambda **how: cells.DeltaNet(FEATURES, 3, **how),
    "DeltaNet of heads": lambda **how: cells.DeltaNet(FEATURES, 6, 2, 4, **how),
    "GatedDeltaNet": lambda **how: cells.GatedDeltaNet(FEATURES, 6, 2, 4, **how),
    "GLA": lambda **how: cells.GLA(FEATURES, 6, 2, 4, 3, **how),
}


def made(name):
    """A cell whose every parameter matters: none is zero or one."""
    torch.manual_seed(0)
    cell = CELLS[name](dtype=DTYPE)
    with torch.no_grad():
        for values in cell.parameters():
            values.add_(0.3 * torch.randn_like(values))
    return cell


def some_state(cell, n, grad=False):
    leaves, spec = flatten(cell.initial_state(n))
    leaves = [torch.randn_like(leaf) for leaf in leaves]
    if isinstance(cell, cells.RWKVTimeMix):
        leaves[2] = leaves[2].abs() + 0.5  # a sum of exponentials
    return unflatten(spec, [leaf.requires_grad_(grad) for leaf in leaves])


# --- the equations


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def softplus(v):
    return np.log1p(np.exp(v))


def silu(v):
    return v * sigmoid(v)


def unit(v):
    return v / np.sqrt((v**2).sum())


def linear(p, name, x):
    return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0)


def by_head(cell, *projected):
    """The share of each head of each vector."""
    return zip(*(v.reshape(cell.heads, -1) for v in projected), strict=True)


def rg_lru(cell, p, x, h):
    r, i = sigmoid(linear(p, "recurrence_gate", x)), sigmoid(linear(p, "input_gate", x))
    a = sigmoid(p["decay"]) ** (8 * r)
    h = a * h + np.sqrt(1 - a**2) * (i * x)
    return h, [h]


def rwkv(cell, p, x, last, a, b, m):
    """Without the stabiliser: A and B as they are, not divided by exp(p)."""

    def projected(name, mix):
        return p[f"{name}.weight"] @ (p[mix] * x + (1 - p[mix]) * last)

    r, k, v = projected("receptance", "mix_r"), projected("key", "mix_k"), projected("value", "mix_v")
    a, b, now = a * np.exp(m), b * np.exp(m), np.exp(p["bonus"] + k)
    y = p["output.weight"] @ (sigmoid(r) * (a + now * v) / (b + now))
    kept = np.exp(-np.exp(p["decay"]))
    return y, [x, kept * a + np.exp(k) * v, kept * b + np.exp(k)]


def mlstm(cell, p, x, c, n, m):
    """Without the stabiliser: C and n as they are, not divided by exp(m)."""
    f, i = sigmoid(linear(p, "forget_gate", x)), np.exp(linear(p, "input_gate", x))
    parts = by_head(cell, *(linear(p, name, x) for name in ("query", "key", "value")))
    hs, cs, ns = [], [], []
    for k, (query, key, value) in enumerate(parts):
        key = key / np.sqrt(len(key))
        cs.append(f[k] * c[k] * np.exp(m[k]) + i[k] * np.outer(key, value))
        ns.append(f[k] * n[k] * np.exp(m[k]) + i[k] * key)
        hs.append(query @ cs[-1] / max(abs(query @ ns[-1]), 1))
    y = sigmoid(linear(p, "output_gate", x)) * np.concatenate(hs)
    return y, [np.stack(cs), np.stack(ns)]


def selective_ssm(cell, p, x, h):
    t, b, c = np.split(p["x_proj.weight"] @ x, [2, 5])
    dt = softplus(linear(p, "dt_proj", t))
    y, new = np.zeros_like(x), np.zeros_like(h)
    for feature in range(FEATURES):
        a = np.diag(-np.exp(p["A_log"][feature]))
        decay = np.diag(np.exp(np.diag(dt[feature] * a)))
        new[feature] = decay @ h[feature] + dt[feature] * b * x[feature]
        y[feature] = c @ new[feature] + p["D"][feature] * x[feature]
    return y, [new]


def delta_net(cell, p, x, s, decay=None):
    q, k, v = (linear(p, name, x) for name in ("query", "key", "value"))
    share = sigmoid(p["write_share.weight"] @ x)
    ys, new = [], []
    for h, (query, key, value) in enumerate(by_head(cell, silu(q), silu(k), v)):
        query, key = unit(query), unit(key)
        old = s[h].T if decay is None else decay[h] * s[h].T  # the papers' S, from keys to values by S k
        old = old @ (np.eye(len(key)) - share[h] * np.outer(key, key)) + share[h] * np.outer(value, key)
        ys.append(old @ query)
        new.append(old.T)
    return np.concatenate(ys), [np.stack(new)]


def gated_delta_net(cell, p, x, s):
    decay = np.exp(-np.exp(p["decay_rate"]) * softplus(linear(p, "decay_time", x)))
    return delta_net(cell, p, x, s, decay)


def gla(cell, p, x, s):
    decay = sigmoid(linear(p, "decay.1", linear(p, "decay.0", x))) ** (1 / 16)
    parts = by_head(cell, *(linear(p, name, x) for name in ("query", "key", "value")), decay)
    ys, new = [], []
    for h, (query, key, value, kept) in enumerate(parts):
        new.append(np.diag(kept) @ s[h] + np.outer(key, value))
        ys.append(query @ new[-1])
    return np.concatenate(ys), [np.stack(new)]


FORMULAS = {
    "RGLRU": rg_lru,
    "RWKVTimeMix": rwkv,
    "MLSTM": mlstm,
    "MLSTM of heads": mlstm,
    "SelectiveSSM": selective_ssm,
    "DeltaNet": delta_net,
    "DeltaNet of heads": delta_net,
    "GatedDeltaNet": gated_delta_net,
    "GLA": gla,
}


@pytest.mark.parametrize("name", CELLS)
def test_equals_the_formula(name):
    cell, rows = made(name), 5
    x, state = torch.randn(rows, FEATURES, dtype=DTYPE), some_state(cell, rows)
    y, new = cell(x, state)
    found = flatten(new)[0]
    if isinstance(cell, cells.MLSTM):
        c, n, m = found
        found = [c * m.exp()[..., None, None], n * m.exp()[..., None]]
        assert (m >= 0).all()
    if isinstance(cell, cells.RWKVTimeMix):
        last, a, b, m = found
        found = [last, a * m.exp(), b * m.exp()]
    p = {key: values.numpy() for key, values in cell.state_dict().items()}
    by_row = [
        FORMULAS[name](cell, p, x[b].numpy(), *(leaf[b].numpy() for leaf in flatten(state)[0]))
        for b in range(rows)
    ]
    expected = torch.tensor(np.stack([y for y, _ in by_row]))
    torch.testing.assert_close(y.detach(), expected, rtol=1e-12, atol=1e-12)
    states = [torch.tensor(np.stack(column)) for column in zip(*(new for _, new in by_row), strict=True)]
    torch.testing.assert_close([leaf.detach() for leaf in found], states, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", every(2, CELLS))
def test_gradcheck(name):
    cell = made(name)
    parameters = dict(cell.named_parameters())
    leaves, spec = flatten(some_state(cell, 2))

    def step(x, *values):
        named = dict(zip(parameters, values[len(leaves) :], strict=True))
        y, new = functional_call(cell, named, (x, unflatten(spec, list(values[: len(leaves)]))))
        return (y, *flatten(new)[0])

    inputs = [torch.randn(2, FEATURES, dtype=DTYPE), *leaves, *parameters.values()]
    assert torch.autograd.gradcheck(step, [v.detach().requires_grad_() for v in inputs], fast_mode=True)


def test_mlstm_stays_finite_however_large_or_small_the_gates():
    cell = cells.MLSTM(1, 2)
    with torch.no_grad():
        cell.input_gate.weight.fill_(1)
        cell.forget_gate.weight.fill_(-1)
    x = torch.tensor([300.0, -300.0, -300.0, 200.0, -1000.0]).view(5, 1, 1).requires_grad_()
    y, final = recurrent(cell, x)
    assert all(torch.isfinite(leaf).all() for leaf in (y, *final))
    grads = torch.autograd.grad(y.sum(), [x, *cell.parameters()])
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_rg_lru_has_a_gradient_where_its_gate_is_zero():
    cell = cells.RGLRU(2)
    with torch.no_grad():
        cell.recurrence_gate.bias.fill_(-500)
    x, h = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
    y, _ = cell(x, h)
    torch.testing.assert_close(y, h)
    grads = torch.autograd.grad(y.sum(), [x, *cell.parameters()])
    assert all(torch.isfinite(grad).all() for grad in grads)


# --- over sequences


BY_HAND = [
    (name, executor)
    for name, executor in itertools.product(CELLS, ("naive", "eager", "c"))
    if executor == "c" or f"{name} of heads" not in CELLS
]
# With heads they do more than without.
IN_C = [(name, "c") for name in CELLS if f"{name} of heads" not in CELLS]


@pytest.mark.parametrize(("name", "executor"), few(BY_HAND, [*IN_C[::4], ("GLA", "eager")]))
def test_equals_a_loop_by_hand(name, executor, request):
    """Whatever runs it: generated C takes each of them, in training too. An ordinary run gives each batch one
    kind of state, another one to another cell."""
    cell, at = made(name), list(CELLS).index(name) % 3
    kinds = ("no h0", "h0", "h0 without grad")
    every = itertools.product(LENGTHS.values(), kinds)
    in_turn = zip(LENGTHS.values(), itertools.cycle(kinds[at:] + kinds[:at]), strict=False)
    for lengths, given in every if request.config.getoption("exhaustive") else in_turn:
        rows = torch.randn(sum(lengths), FEATURES, dtype=DTYPE, requires_grad=True)
        state = None if given == "no h0" else some_state(cell, len(lengths), grad=given == "h0")
        inputs = [rows, *cell.parameters(), *(flatten(state)[0] if given == "h0" else [])]
        y, final = recurrent(cell, LoDTensor.from_lengths(rows, [lengths]), state, backend=executor)
        start = cell.initial_state(len(lengths)) if state is None else state
        ys, expected = by_hand(cell, rows.split(lengths) if lengths else (), start)
        joined = torch.cat(ys) if ys else y.values.detach()
        found = [y.values, *tensors(final)]
        torch.testing.assert_close(found, [joined, *expected], **CLOSE)
        if any(v.requires_grad for v in found):
            torch.testing.assert_close(
                gradients(found, inputs), gradients([joined, *expected], inputs), **CLOSE
            )


@pytest.mark.parametrize("name", CELLS)
def test_a_stream_hands_its_state_on(name):
    cell, x = made(name), torch.randn(7, 3, FEATURES, dtype=DTYPE)
    whole, last = recurrent(cell, x)
    state, parts = None, []
    for part in x.split([2, 1, 4]):
        y, state = recurrent(cell, part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)
    torch.testing.assert_close(flatten(state)[0], flatten(last)[0], **CLOSE)


@pytest.mark.parametrize("name", CELLS)
def test_initial_state_fits_its_cell(name):
    cell = made(name)
    for n in (0, 1, 4):
        state, spec = flatten(cell.initial_state(n))
        y, new = cell(torch.zeros(n, FEATURES, dtype=DTYPE), unflatten(spec, state))
        new_leaves, new_spec = flatten(new)
        assert spec == new_spec
        assert [(v.shape, v.dtype) for v in new_leaves] == [(v.shape, v.dtype) for v in state]
        assert y.shape == (n, cell.hidden_size)
        assert not any(v.requires_grad for v in state)
        assert all(v.eq(-1e4 if k == 3 else 0).all() for k, v in enumerate(state))  # p of RWKV is the fourth


@pytest.mark.parametrize("name", CELLS)
def test_under_autocast_the_state_keeps_its_dtype(name):
    check_autocast(made(name).float(), FEATURES, 0.1)


# --- parameters


@pytest.mark.parametrize("name", CELLS)
def test_the_device_and_dtype_are_taken_and_all_parameters_drawn(name):
    cell = CELLS[name](device="meta", dtype=DTYPE)
    assert {(v.device.type, v.dtype) for v in cell.parameters()} == {("meta", DTYPE)}
    cell = CELLS[name]()
    with torch.no_grad():
        for values in cell.parameters():
            values.fill_(7.0)
    cell.reset_parameters()
    for key, values in cell.state_dict().items():
        assert not (values == 7).any(), key
        assert torch.isfinite(values).all(), key


def test_decays_of_rg_lru_start_between_0_9_and_0_999():
    cell = cells.RGLRU(2000)
    decay = torch.sigmoid(cell.decay) ** 8
    assert 0.9 <= decay.min() < 0.91
    assert 0.99 < decay.max() <= 0.9991
    assert abs(decay.mean() - 0.9495) < 0.003
    assert abs(cell.input_gate.weight.std() - 2000**-0.5) < 1e-3
    assert not cell.recurrence_gate.bias.any()


def test_gates_of_mlstm_start_open():
    cell = cells.MLSTM(3, 8, heads=4)
    torch.testing.assert_close(cell.forget_gate.bias.detach(), torch.tensor([3.0, 4.0, 5.0, 6.0]))
    assert not cell.forget_gate.weight.any()
    assert not cell.input_gate.weight.any()
    assert 0 < cell.input_gate.bias.abs().max() < 0.6


def test_selective_ssm_starts_as_mamba():
    cell = cells.SelectiveSSM(1600)
    assert list(cell.state_dict()) == ["A_log", "D", "x_proj.weight", "dt_proj.weight", "dt_proj.bias"]
    assert cell.x_proj.weight.shape == (100 + 32, 1600)
    torch.testing.assert_close(cell.A_log.exp()[7], torch.arange(1.0, 17))
    dt = torch.nn.functional.softplus(cell.dt_proj.bias)
    assert 0.0009 < dt.min() < 0.0012
    assert 0.08 < dt.max() < 0.101
    assert abs(dt.log().mean() - np.log(0.01)) < 0.15
    assert cell.dt_proj.weight.abs().max() <= 0.1


def test_decays_of_gated_delta_net_start_as_mamba2():
    cell = cells.GatedDeltaNet(2, 4000, heads=1000)
    rate, time = cell.decay_rate.exp(), torch.nn.functional.softplus(cell.decay_time.bias)
    assert rate.max() <= 16
    assert abs(rate.mean() - 8) < 0.6
    assert time.min() > 0.0009
    assert time.max() < 0.101


@pytest.mark.parametrize("name", [n for n in CELLS if n not in ("SelectiveSSM", "RWKVTimeMix")])
def test_without_bias_fewer_parameters(name):
    with_bias, without = CELLS[name](), CELLS[name](bias=False)
    kept = {
        "MLSTM": {"forget_gate.bias", "input_gate.bias"},
        "GatedDeltaNet": {"decay_time.bias"},
        "GLA": {"decay.1.bias"},
    }
    biases = {key for key in without.state_dict() if "bias" in key}
    assert biases == kept.get(name.split()[0], set())
    assert len(without.state_dict()) < len(with_bias.state_dict())
    x = torch.randn(2, FEATURES)
    assert without(x, without.initial_state(2))[0].shape == with_bias(x, with_bias.initial_state(2))[0].shape


def test_in_a_stack():
    stack = modules.Stack(
        [cells.MinLSTM(4, 6), cells.RGLRU(6), cells.DeltaNet(6, 6, 2), cells.SelectiveSSM(6)],
        residual=(False,) + (True,) * 3,
    )
    y, states = stack(LoDTensor.from_lengths(torch.randn(5, 4), [[2, 3]]))
    assert y.values.shape == (5, 6)
    assert len(states) == 4


def test_rwkv_starts_as_its_authors_have_it():
    first, last = cells.RWKVTimeMix(4), cells.RWKVTimeMix(4, depth=1.0)
    torch.testing.assert_close(first.mix_k.detach(), torch.tensor([0, 0.25, 0.5, 0.75]))
    torch.testing.assert_close(last.mix_v.detach(), torch.full((4,), 1.3))
    torch.testing.assert_close(first.mix_r.detach(), torch.tensor([0, 0.25, 0.5, 0.75]).sqrt())
    torch.testing.assert_close(last.decay.detach(), 8 * torch.tensor([0, 1 / 9, 4 / 9, 1]) - 5)
    bonus = np.log(0.3) + torch.tensor([0, 0.5, -0.5, 0])
    torch.testing.assert_close(first.bonus.detach(), bonus.float())


def test_rwkv_of_the_first_step_is_its_value():
    cell = cells.RWKVTimeMix(4)
    with torch.no_grad():
        cell.key.weight.fill_(-100)  # exp(k) is no float32
    x = torch.rand(2, 4) + 1
    y, _ = cell(x, cell.initial_state(2))
    wkv = cell.value(x * cell.mix_v)
    torch.testing.assert_close(y, cell.output(torch.sigmoid(cell.receptance(x * cell.mix_r)) * wkv))


ERRORS = {
    "depth": (lambda: cells.RWKVTimeMix(3, 2), "'depth' must be a share of the network"),
    "size": (lambda: cells.RGLRU(0), "RGLRU 'size' must be a positive whole number"),
    "state_size": (lambda: cells.SelectiveSSM(3, 0), "SelectiveSSM 'state_size' must be a positive"),
    "dt_rank": (lambda: cells.SelectiveSSM(3, 2, 0.5), "SelectiveSSM 'dt_rank' must be a positive"),
    "heads": (lambda: cells.MLSTM(3, 4, 0), "MLSTM 'heads' must be a positive"),
    "heads of hidden": (
        lambda: cells.GLA(3, 5, 2),
        "GLA 'hidden_size' must divide by its heads\n.*5 for 2 heads\n.*hidden_size=6",
    ),
    "heads of keys": (lambda: cells.DeltaNet(3, 4, 2, 3), "DeltaNet 'key_size' must divide by its heads"),
    "rank": (lambda: cells.GLA(3, 4, decay_rank=-1), "GLA 'decay_rank' must be a positive"),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, text):
    with pytest.raises(StepError, match=text):
        call()


def test_no_matrix_of_a_row_goes_through_memory_but_the_state():
    """What a matrix is made of is far less than the matrix, and so is what its sums give."""
    ready = entry_of(cells.MLSTM(32, 32), torch.randn(3, 2, 32, requires_grad=True), backend="c").ready
    assert ready is not None
    assert ready.backward is not None
    for loop in (ready.forward.plan, ready.backward.plan):
        values = loop.body.values
        rows = {name for name, value in values.items() if value.kind == "row" and value.size >= 32 * 32}
        scans = [region for region in loop.regions if region.kind == "scan"]
        made = {name for region in scans for name in loop.outputs(region)}
        maps = [node for region in loop.regions if region.kind == "map" for node in region.nodes]
        made |= {name for node in maps for name in node.outputs if node.op != "expand"}
        assert rows & made <= {name for c in loop.carries for name in (c.parameter, c.result)}
