"""Steps of 16 bits by generated C: as near to exact numbers as the plain loop, whatever the step and mode."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from covering import few
from stepnet import LoDTensor, cells, explain, recurrent
from stepnet.data.tree import flatten
from threads import at_once

LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CELLS = ["LSTM", "GRU", "RNN", "PeepholeLSTM", "MinGRU", "SLSTM", "LayerNormLSTM"]
LENGTHS = [3, 0, 1, 5]
F_IN, H = 5, 7


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def around(dtype, modules):
    return contextlib.nullcontext() if modules else torch.autocast("cpu", dtype)


def outcome(step, weights, x, dtype, *, modules, backend, lengths=LENGTHS, state=None):
    """Results and every gradient of a loss that reads all of them."""
    x = x.detach().clone().requires_grad_()
    with around(dtype, modules):
        y, final = recurrent(step, LoDTensor.from_lengths(x, [lengths]), state, backend=backend)
    results = [y.values, *flatten(final)[0]]
    loss = torch.zeros(()).double().requires_grad_()
    for i, t in enumerate(results):
        loss = loss + (t.double() * (i + 1 + torch.arange(t.numel()).reshape(t.shape) % 3)).sum()
    inputs = [x, *weights]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [*results, *(torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True))]


def distances(found, exact):
    """How far each tensor is from the exact one, relative to its largest number."""
    out = []
    for a, b in zip(found, exact, strict=True):
        a, b = a.detach().double(), b.detach().double()
        out.append(float(((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) if b.numel() else 0.0))
    return out


def as_near_as_the_plain_loop(ours, plain, exact, dtype):
    for a, b in zip(ours, plain, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    unit = torch.finfo(dtype).eps
    worst = max(distances(plain, exact))  # of one tensor it is a matter of luck
    for found in distances(ours, exact):
        assert found <= 2 * worst + 2 * unit


@pytest.mark.covering(1)
@pytest.mark.parametrize("modules", [False, True], ids=["autocast", "modules"])
@pytest.mark.parametrize("lower", LOWER)
@pytest.mark.parametrize("name", few(CELLS, ["LSTM", "MinGRU"]))
def test_cells(name, lower, modules):
    dtype = LOWER[lower]
    cell = getattr(cells, name)(F_IN, H)
    x = torch.randn(sum(LENGTHS), F_IN)
    if modules:
        cell, x = cell.to(dtype), x.to(dtype)
    exact_cell = copy.deepcopy(cell).double()
    exact = outcome(
        exact_cell, list(exact_cell.parameters()), x.double(), dtype, modules=True, backend="naive"
    )
    how = {"dtype": dtype, "modules": modules}
    plain = outcome(cell, list(cell.parameters()), x, backend="naive", **how)
    ours = outcome(cell, list(cell.parameters()), x, backend="c", **how)
    if name == "LayerNormLSTM":  # a norm of nearly equal numbers magnifies what is rounded
        assert [a.dtype for a in ours] == [b.dtype for b in plain]
        assert max(distances(ours, exact)) <= 4 * max(distances(plain, exact)) + 0.02
    else:
        as_near_as_the_plain_loop(ours, plain, exact, dtype)
    again = outcome(cell, list(cell.parameters()), x, backend="c", **how)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


# --- steps that show one thing each


def lookup(x, h, w):
    rows = F.embedding((x[:, :1] > 0).long().squeeze(1), w)
    h = torch.tanh(h + rows @ w[:4])
    return h, h


def compared(x, h, w):
    z = x @ w
    return torch.where(z > 0, z, z * 0.1), torch.maximum(h, z)


def per_row_matrices(x, h, w):
    a = (x @ w).reshape(-1, 1, 4)
    b = (h @ w.t()[:4, :]).unsqueeze(-1)[:, :4] if w.shape[0] == 4 else h.reshape(-1, 4, 1)
    return (a @ b).reshape(-1, 1), torch.tanh(h + a.reshape(-1, 4))


def heads(x, h, w):
    q = torch.einsum("bk,hkn->bhn", x, torch.stack([w, w.flip(0)]))
    h = torch.tanh(h + q.sum(1))
    return q.reshape(-1, 8), h


def softmax_of_products(x, h, w):
    p = torch.softmax(x @ w + h, -1)
    return torch.log_softmax(h @ w[:4], -1), p


def island(x, h, w):
    with torch.autocast("cpu", enabled=False):
        z = x.float() @ w.float() + h.float() @ w[:4].float()
    z = torch.tanh(z).to(w.dtype)
    return z @ w[:4], z.to(h.dtype)


def nested(x, h, w):
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        z = x.float() @ w.float()
    with torch.autocast("cpu", torch.bfloat16):
        return z @ w[:4], torch.tanh(z + h @ w[:4]).to(h.dtype)


def state_not_read(x, h, w):
    return x @ w, h


def cut(x, h, w):
    h = torch.tanh(x @ w + h.detach() @ w[:4])
    return h, h


STEPS = [
    lookup, compared, per_row_matrices, heads, softmax_of_products, island, nested, state_not_read, cut,
]  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("modules", [False, True], ids=["autocast", "modules"])
@pytest.mark.parametrize("step", few(STEPS, STEPS[::3]), ids=lambda step: step.__name__)
def test_steps(step, modules):
    dtype = torch.bfloat16
    w, x, h0 = torch.randn(F_IN, 4) / 2, torch.randn(sum(LENGTHS), F_IN), torch.randn(len(LENGTHS), 4)
    if modules:
        w, x, h0 = w.to(dtype), x.to(dtype), h0.to(dtype)

    def run(backend, real=None, off=False):
        u, h = ((t if real is None else t.to(real)).clone().requires_grad_() for t in (w, h0))
        how = {"modules": modules or off, "backend": backend, "state": h}
        return outcome(lambda x, s: step(x, s, u), [u, h], x if real is None else x.to(real), dtype, **how)

    plain, ours = run("naive"), run("c")
    if step in (island, nested):  # they round in float32, too
        exact = plain
    else:
        exact = run("naive", torch.float32, off=True)
    as_near_as_the_plain_loop(ours, plain, exact, dtype)


def test_a_cast_that_is_written_rounds():
    """Bit for bit what the plain loop loses: nothing else is rounded in the step."""

    def step(x, h):
        total = h + x
        low = total.to(torch.bfloat16).float()
        return total - low, low

    x, h = torch.randn(6, 2, H), torch.randn(2, H)
    for state in (h, h.bfloat16().float()):
        plain, ours = (recurrent(step, x, state, backend=backend) for backend in ("naive", "c"))
        for a, b in zip(plain, ours, strict=True):
            assert torch.equal(a, b)


def test_the_check_knows_when_the_plain_loop_is_the_one_that_is_far_off():
    """A difference of nearly equal numbers: what is left is what the plain loop rounds."""
    w = torch.randn(F_IN, H) / 64

    def step(x, h):
        z = x @ w
        return (z - torch.tanh(z)) * 8, h + z

    x, h = torch.randn(6, 2, F_IN), torch.randn(2, H)
    exact, _ = recurrent(step, x, h, backend="naive")
    with torch.autocast("cpu", torch.bfloat16):
        plain, ours = (recurrent(step, x, h, backend=backend)[0] for backend in ("naive", "c"))
    (far,), (near,) = distances([plain], [exact]), distances([ours], [exact])
    assert far > 0.05
    assert near < far


# --- modes, calls, threads


@pytest.mark.exhaustive
def test_modes():
    cell = cells.LSTM(F_IN, H)
    x = LoDTensor.from_lengths(torch.randn(sum(LENGTHS), F_IN), [LENGTHS])
    with torch.autocast("cpu", torch.bfloat16):
        trained, _ = recurrent(cell, x, backend="c")
        with torch.no_grad():
            plain, _ = recurrent(cell, x, backend="c")
        with torch.inference_mode():
            inferred, (h, _) = recurrent(cell, x, backend="c")
        assert h.is_inference()
    outside, _ = recurrent(cell, x, backend="c")
    torch.testing.assert_close(trained.values, plain.values, rtol=0, atol=1e-5)  # sums in other orders
    torch.testing.assert_close(plain.values, inferred.values, rtol=0, atol=0)
    assert not torch.equal(trained.values, outside.values)
    torch.testing.assert_close(trained.values, outside.values, rtol=0, atol=0.02)


@pytest.mark.exhaustive  # as any weight: test_changes.py
def test_a_weight_that_changes_is_read_anew():
    cell = cells.GRU(F_IN, H)
    x = torch.randn(4, 2, F_IN)
    with torch.autocast("cpu", torch.bfloat16):
        before, _ = recurrent(cell, x, backend="c")
        cell.weight_hh.data.mul_(-1)
        after, _ = recurrent(cell, x, backend="c")
        expected, _ = recurrent(cell, x, backend="naive")
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected, rtol=0, atol=0.02)


def test_looking_at_a_step_leaves_no_cast_of_its_weights():
    odd = {"weight": nn.Parameter(torch.randn(H, F_IN))}

    def step(x, h):
        h = h + F.linear(x, eval("odd['weight']", {"odd": odd}))  # names that a walk over code does not find
        return h, h

    with torch.autocast("cpu", torch.bfloat16):
        recurrent(step, torch.randn(4, 2, F_IN), torch.zeros(2, H), backend="c")
        odd["weight"].data.mul_(-1)
        found = F.linear(torch.ones(1, F_IN), odd["weight"])
    torch.testing.assert_close(found[0].float(), odd["weight"].sum(1), rtol=0, atol=0.1)


def test_backward_under_and_outside_of_autocast_twice_and_from_a_thread():
    cell = cells.LSTM(F_IN, H)
    x = torch.randn(4, 2, F_IN)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = recurrent(cell, x, backend="c")
        inside = torch.autograd.grad(y.sum(), list(cell.parameters()), retain_graph=True)
    outside = torch.autograd.grad(y.sum(), list(cell.parameters()), retain_graph=True)
    (found,) = at_once(lambda _: torch.autograd.grad(y.sum(), list(cell.parameters())), 1)
    for a, b, c in zip(inside, outside, found, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert len({g.untyped_storage().data_ptr() for g in inside}) == len(inside)


def test_gradients_of_gradients():
    w = torch.randn(H, H, requires_grad=True)
    x = torch.randn(3, 2, H)
    firsts = {}
    for backend in ("naive", "c"):
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = recurrent(lambda x, h: (torch.tanh(x + h @ w),) * 2, x, torch.zeros(2, H), backend=backend)
        (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        firsts[backend] = torch.autograd.grad(first.square().sum(), w)[0]
    torch.testing.assert_close(firsts["c"], firsts["naive"], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [4]], ids=str)
def test_few_rows(lengths):
    cell = cells.LSTM(F_IN, H).bfloat16()
    x = torch.randn(sum(lengths), F_IN).bfloat16()
    how = {"modules": True, "lengths": lengths}
    weights = list(cell.parameters())
    ours, plain = (outcome(cell, weights, x, torch.bfloat16, backend=b, **how) for b in ("c", "naive"))
    for a, b in zip(ours, plain, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_nan_and_infinities_stay_in_their_sequence():
    cell = cells.LSTM(F_IN, H)
    x = torch.randn(sum(LENGTHS), F_IN)
    x[1, 0] = float("nan")
    x[4, 1] = float("inf")
    with torch.autocast("cpu", torch.bfloat16):
        ours, plain = (
            recurrent(cell, LoDTensor.from_lengths(x, [LENGTHS]), backend=backend)[0].values
            for backend in ("c", "naive")
        )
    torch.testing.assert_close(ours, plain, rtol=0, atol=0.02, equal_nan=True)


def test_float16_overflows_where_it_is_rounded():
    def step(x, h):
        z = x * 60000.0
        return z.half(), h + z.half().float()

    x = torch.tensor([[[1.0, 1.2, -2.0, float("nan")]]])
    y, h = recurrent(step, x, torch.zeros(1, 4), backend="c")
    expected = x[0] * 60000.0
    torch.testing.assert_close(y[0], expected.half(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(h, expected.half().float(), rtol=0, atol=0, equal_nan=True)


def test_states_are_carried_in_float32():
    """1 + 1/512 is no bfloat16: a state that is rounded at every step never grows."""

    def step(x, h):
        h = h + x
        return h, h

    x, h0 = torch.full((512, 1, 1), 2.0**-9).bfloat16(), torch.ones(1, 1).bfloat16()
    y, h = recurrent(step, x, h0, backend="c")
    assert (y.dtype, h.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (float(y[-1]), float(h)) == (2.0, 2.0)


def test_explain_says_generated_c():
    cell = cells.GRU(F_IN, H)
    x = torch.randn(4, 2, F_IN)
    with torch.autocast("cpu", torch.bfloat16):
        text = str(explain(cell, x))
    assert "generated C" in text
    source = explain(cell.bfloat16(), x.bfloat16())
    assert "generated C" in str(source)


def test_kept_for_backward_is_half():
    """Gates take 2 bytes each, as many as under torch's own autocast."""
    cell = cells.LSTM(F_IN, 32)
    x = LoDTensor.from_lengths(torch.randn(sum(LENGTHS), F_IN), [LENGTHS])
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = recurrent(cell, x, backend="c")
    rows = [t for t in y.values.grad_fn.saved_tensors if t is not None and t.shape == (sum(LENGTHS), 32)]
    assert sum(t.dtype == torch.bfloat16 for t in rows) == 4
    assert sum(t.dtype == torch.float32 for t in rows) <= 3  # h, c, tanh(c)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = cells.GRU(3, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(recurrent(self.cell, x)[0])


@pytest.mark.exhaustive
def test_training_gets_as_far_as_in_float32():
    losses = {}
    for lower in (False, True):
        torch.manual_seed(1)
        net = Net()
        x = torch.randn(12, 16, 3)
        target = x.cumsum(0)[..., :1].tanh()
        optimizer = torch.optim.Adam(net.parameters(), 0.02)
        loss = torch.zeros(())
        for _ in range(60):
            with torch.autocast("cpu", torch.bfloat16, enabled=lower):
                loss = F.mse_loss(net(x).float(), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[lower] = loss.item()
    assert losses[False] < 0.1
    assert losses[True] < 1.2 * losses[False] + 0.01


OPS = ["tanh", "linear", "mul", "norm", "cast", "gate", "relu"]


@pytest.mark.exhaustive
@settings(max_examples=5, deadline=None)
@given(
    ops=st.lists(
        st.sampled_from(["tanh", "linear", "mul", "norm", "cast", "gate", "relu"]), min_size=1, max_size=4
    ),
    lower=st.sampled_from(sorted(LOWER)),
    modules=st.booleans(),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_any_chain_of_ops(ops, lower, modules, sizes):
    dtype = LOWER[lower]
    torch.manual_seed(3)
    w, h0 = torch.randn(6, 6) / 3, torch.randn(len(sizes), 6)
    x = torch.randn(sum(sizes), 6)
    if modules:
        w, h0, x = w.to(dtype), h0.to(dtype), x.to(dtype)

    def step_of(u):
        def step(x, h):
            z = x + h
            for op in ops:
                if op == "tanh":
                    z = torch.tanh(z)
                elif op == "linear":
                    z = F.linear(z.to(u.dtype), u)
                elif op == "mul":
                    z = z * h + 0.5
                elif op == "norm":
                    z = z / (1 + z.square().mean(-1, keepdim=True))
                elif op == "cast":
                    z = z.to(u.dtype)
                elif op == "gate":
                    z = torch.sigmoid(F.linear(h, u)) * z
                else:
                    z = torch.relu(z)
            return z, torch.tanh(z).to(h.dtype)

        return step

    def run(backend, real=None):
        u, h = ((t if real is None else t.to(real)).clone().requires_grad_() for t in (w, h0))
        how = {"modules": modules or real is not None, "backend": backend, "state": h, "lengths": sizes}
        return outcome(step_of(u), [u, h], x if real is None else x.to(real), dtype, **how)

    as_near_as_the_plain_loop(run("c"), run("naive"), run("naive", torch.float64), dtype)
