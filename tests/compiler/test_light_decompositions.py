"""Decompositions without what torch compiles with: bit for bit what its own give. Steps do not ask for it."""

from __future__ import annotations

import builtins

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import decomposition_table

from covering import few
from stepnet import LoDTensor, cells, recurrent
from stepnet.compiler.rewritten.light_decompositions import _LIGHT, lighter
from stepnet.data.tree import flatten
from stepnet.engine.executor_choice import go_back

aten = torch.ops.aten


def special(*shape, dtype=torch.float32):
    """Random numbers, some zeros, infinities and NaN among them."""
    x = torch.randn(shape, dtype=dtype) * 3
    flat = x.view(-1)
    flat[:4] = torch.tensor([0.0, float("inf"), float("-inf"), float("nan")])
    return x


def arguments(dtype):
    x, y, w = special(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype), torch.rand(6, dtype=dtype)
    turned, cube = torch.randn(6, 4, dtype=dtype).t(), special(3, 4, 4, dtype=dtype)
    none, wide = torch.randn(4, 0, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    complex_ = torch.complex(y, x)
    of_pairs = [complex_, complex_.t(), complex_[:, 1::2], torch.zeros_like(complex_)]
    at = torch.tensor([1, 3, 1])
    same_kinds = [(x,), (y,), (turned,), (x.to(torch.bfloat16),)]
    return {
        aten._softmax.default: [(t, d, False) for t in (x, y, turned, none, y.bfloat16()) for d in (0, -1)],
        aten._log_softmax.default: [(t, d, False) for t in (x, y, turned, none, y.half()) for d in (0, 1)],
        aten.linalg_vector_norm.default: [
            *((t, order, dims, keep) for t in (x, y, turned, cube, y[:, :1]) for dims in (None, [-1], [0, 1])
              for order in (2, 1, 3.0, 0.5, 0, float("inf"), float("-inf")) for keep in (True, False)),
        ],
        aten.lerp.Scalar: [(t, y, share) for t in (x, turned, w) for share in (0.1, 0.5, 0.7, 2, -0.3)],
        aten.lerp.Tensor: [(x, y, w), (turned, y, w), (w, y, y), (x, y, turned),
                           (x[:, ::2], wide[:, 1:4], w[:3])],
        aten.unbind.int: [(x, 0), (turned, 1), (cube, -1), (none, 1)],
        aten.sgn.default: [*same_kinds, (torch.tensor([1, 0, -3]),), *((z,) for z in of_pairs)],
        aten.eye.default: [(3,), (0,)],
        aten.eye.m: [(3, 5), (4, 2)],
        aten.tril.default: [(t, k) for t in (cube, x, y > 0, turned) for k in (0, 1, -2)],
        aten.triu.default: [(t, k) for t in (cube, x, y > 0, turned) for k in (0, 1, -2)],
        aten.diag_embed.default: [(x,), (y > 0,), (turned,), (x, 1), (x, 0, 0, 2), (cube, 0, 1, 2)],
        aten.elu.default: [(x,), (y, 0.5, 1.3, 2.0)],
        aten.glu.default: [(x,), (turned, 0), (cube, 1)],
        aten.mv.default: [(x, w), (y, w), (turned, w), (x.t(), w[:4]), (complex_, complex_[0])],
        aten.linspace.default: [(*ends, n) for ends in ((0, 1), (-0.3, 2.7), (5, 5)) for n in (0, 1, 2, 10)],
        aten.index_add.default: [
            (x, 0, at, y[:3]), (turned, 1, at, y[:, :3]), (cube, -1, at, cube[..., :3]), (w, 0, at[:1], w[0]),
        ],
        aten.huber_loss.default: [(*both, n, 0.7) for both in ((x, y), (turned, x)) for n in range(3)],
        aten.dot.default: [(w, w), (w, w[:1].expand(6))],
        aten.addcmul.default: [(x, y, w), (w, x, y)],
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("overload", _LIGHT, ids=str)
def test_it_gives_what_torchs_own_gives(overload, dtype):
    theirs = decomposition_table[overload]
    for args in arguments(dtype)[overload]:
        made, wanted = lighter(overload, theirs)(*args), theirs(*args)
        pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else [(made, wanted)]
        for one, expected in pairs:
            torch.testing.assert_close(one, expected, rtol=0, atol=0, equal_nan=True)
            assert one.stride() == expected.stride()


D = 4
CELLS = ["DeltaNet", "GLA", "GatedDeltaNet", "LSTM", "LayerNormLSTM", "MLSTM", "MinLSTM", "SLSTM",
         "SelectiveSSM"]  # fmt: skip


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, 4, groups=D)

    def forward(self, x, h):
        window = torch.cat([h, x[:, :, None]], 2)
        a, b, c = window[:, :, 1:].unbind(2)
        return F.silu(self.conv(window).squeeze(-1)), torch.stack([a, b, c], 2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True, dropout=0.1)

    def forward(self, x, h):
        h = torch.cat([h[:, 1:], x[:, None]], 1)
        return self.layer(h)[:, -1], h


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.weight = nn.Linear(D, 3), nn.Parameter(torch.randn(3, D, D))

    def forward(self, x, h):
        shares, chosen = self.gate(x).topk(2, -1)
        gates = torch.zeros(x.shape[0], 3).scatter(1, chosen, shares.softmax(-1))
        h = torch.lerp(h, torch.tanh(torch.einsum("bd,edf,be->bf", x, self.weight, gates)), 0.3)
        return F.normalize(h, dim=-1), h


class Spins(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn, self.w = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(D, dtype=torch.complex64))

    def forward(self, x, h):
        h = torch.polar(torch.ones_like(x), self.turn * x) * h
        return h.abs() + h.mv(self.w).real[:, None], h / (1 + h.abs())


class OnEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(D))
        self.names = nn.Parameter(torch.randn(D, 5))

    def forward(self, x, h):
        edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        parts = h[:, edges[0], None] * self.w
        spread = torch.zeros(x.shape[0], D, D).index_add(1, edges[1], parts)
        near = F.embedding(torch.searchsorted(torch.linspace(-1, 1, 4), x), self.names.t())
        return F.huber_loss(h, x, reduction="none"), torch.tanh(spread.matmul(self.w) + near.sum(1))


def draws(x, h):
    chosen = torch.multinomial(h.softmax(-1), 2, replacement=True)
    return h.gather(1, chosen), torch.tanh(x + h)


def picks(x, h):
    at = h.argmax(-1, keepdim=True)
    h = torch.tanh((x + h).sort(-1).values.flip(-1).cumsum(-1)) + F.one_hot(at[:, 0], D)
    return h.gather(1, at), torch.stack([h, x], 1)[:, 0]


STEPS = {
    **{name: lambda name=name: (getattr(cells, name)(D, D), None) for name in CELLS},
    "RGLRU": lambda: (cells.RGLRU(D), None),
    "RWKVTimeMix": lambda: (cells.RWKVTimeMix(D), None),
    "convolution": lambda: (Convolution(), torch.randn(3, D, 3)),
    "transformer": lambda: (Layer(), torch.randn(3, 5, D)),
    "experts": lambda: (Experts(), torch.randn(3, D)),
    "picks": lambda: (picks, torch.randn(3, D)),
    "complex": lambda: (Spins(), torch.randn(3, D, dtype=torch.complex64)),
    "edges": lambda: (OnEdges(), torch.randn(3, D)),
    "draws": lambda: (draws, torch.randn(3, D)),
}


@pytest.fixture
def asked(monkeypatch):
    """What is imported of torch's compiler, whether it was before or not."""
    found, import_ = [], builtins.__import__

    def noted(module, *rest):
        heavy = ("sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")
        found.extend(part for part in heavy if module == part or module.startswith(part + "."))
        return import_(module, *rest)

    monkeypatch.setattr(builtins, "__import__", noted)
    yield found
    monkeypatch.undo()


@pytest.mark.parametrize(
    "name",
    few(STEPS, ["DeltaNet", "MLSTM", "RWKVTimeMix", "convolution", "experts", "complex", "edges", "draws"]),
)
def test_a_first_call_does_not_ask_for_torchs_compiler(name, asked):
    if name in ("experts", "edges") and torch.__version__ < "2.13":
        pytest.skip("torch before 2.13: its functions import its compiler, or its tracers record the step")
    step, state = STEPS[name]()
    x = LoDTensor.from_lengths(torch.randn(8, D, requires_grad=True), [[3, 1, 4]])
    results = flatten(recurrent(step, x, state, backend="eager"))[0]
    sums = [(r.values if isinstance(r, LoDTensor) else r).sum() for r in results]
    sum(torch.real(s) for s in sums if s.requires_grad).backward()
    assert not asked


def test_the_timing_of_executors_does_not_ask_for_it(asked):
    w = torch.randn(3, 3, requires_grad=True)
    go_back([torch.randn(2, 3) @ w, w.sum(), torch.ones(2)], [w, torch.ones(2)])
    assert not asked
    assert w.grad is None
