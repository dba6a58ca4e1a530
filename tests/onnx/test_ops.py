"""Calls of torch in ONNX files: every op of a graph has a rule, and computes what torch computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stepnet
from saved_modules import Beside
from stepnet import LoDTensor
from stepnet.export.graph import OPS

BACKEND = "naive"


class Calls(nn.Module):
    def __init__(self, run, *modules):
        super().__init__()
        self.run, self.modules_ = run, nn.ModuleList(modules)

    def forward(self, x):
        return self.run(x, *self.modules_)


CALLS = {
    "conv1d": (lambda x, m: m(x.transpose(1, 2)), nn.Conv1d(4, 6, 3, padding=1, groups=2)),
    "conv2d": (lambda x, m: m(x.unsqueeze(1)), nn.Conv2d(1, 2, 3, padding="same", dilation=2)),
    "pools": (
        lambda x: (
            F.max_pool1d(x, 2), F.max_pool2d(x.unsqueeze(1), (1, 3), 1, padding=(0, 1), dilation=(1, 2)),
            F.avg_pool1d(x, 3, 1, 1), F.avg_pool2d(x.unsqueeze(1), (1, 2), count_include_pad=False),
            F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), F.adaptive_avg_pool1d(x, 1),
        ),
    ),
    "grid sample": (
        lambda x: (
            F.grid_sample(x.unsqueeze(1), x[:, None, :, :2].tanh() * 1.3, align_corners=False),
            F.grid_sample(x.unsqueeze(1), x[:, None, :, :2].tanh(), "bicubic", "border", align_corners=True),
            F.grid_sample(x.unsqueeze(1), x[:, None, :, :2], "nearest", "reflection", align_corners=False),
        ),
    ),
    "layer norm": (lambda x, m: m(x), nn.LayerNorm(4)),
    "linear": (lambda x, m: m(x), nn.Linear(4, 3)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1),),
    "embedding": (lambda x, m: m(x.abs().long()), nn.Embedding(19, 3)),
    "batch norm": (lambda x, m: m(x.transpose(1, 2)), nn.BatchNorm1d(4)),
    "reductions": (
        lambda x: (
            x.sum(), x.mean(1), x.amax((0, 1)), x.amin(-1, keepdim=True), x.prod(1), x.max(), x.min(),
            *x.max(1), *x.min(1, keepdim=True), x.argmax(1), x.argmin(-1), *x.topk(2), (x > 0).sum(1),
            x.int().sum(),
        ),
    ),
    "element by element": (
        lambda x: (
            x.sin(), x.cos(), x.tan(), x.sinh(), x.cosh(), x.atan(), x.clamp(-1, 1).asin(), x.tanh().acos(),
            x.erf(), x.abs().log(), x.abs().sqrt(), F.gelu(x), F.gelu(x, approximate="tanh"), F.elu(x, 0.5),
            F.silu(x), F.mish(x), F.hardswish(x), F.hardsigmoid(x), F.softplus(x), F.leaky_relu(x),
            F.logsigmoid(x), F.relu6(x), x.clamp(min=0), F.hardtanh(x), x.expm1(), x.abs().log1p(),
            (x.abs() + 1).rsqrt(), x.reciprocal(), x.trunc(), x.round(), x.ceil(), x.sign(), x.relu(),
            x.isnan(), -x, x.exp(), x.floor(), x.sigmoid(),
        ),
    ),
    "arithmetic": (
        lambda x: (
            1 - x, torch.sub(x, x, alpha=2), torch.add(x, x, alpha=0.5), x / 3, 3 / x, x.pow(2), x % 2,
            x % -2, torch.div(x, 2, rounding_mode="floor"), torch.div(x, 2, rounding_mode="trunc"),
            x.square(),
            torch.rsub(x, x.exp(), alpha=2), torch.maximum(x, -x), torch.minimum(x, x * 2), x.int() % 3,
            x.int() + x, x.double() * 2,
        ),
    ),
    "truth": (
        lambda x: (
            x != x, x == x, x >= 0, x <= 0, x > 1, x < 1, (x > 0) | (x < -1), ~(x > 0), (x > 0) * (x > 1),
            torch.logical_xor(x > 0, x > 1), (x > 0) == (x > 1), torch.where(x > 0, x > 1, x < 1),
            torch.where(x > 0, x, 0.0), x.masked_fill(x > 0, 1.0), x.bool(),
        ),
    ),
    "shapes": (
        lambda x: (
            x.flatten(1), x.unsqueeze(1), x.transpose(1, 2), x.movedim(0, 2), x.expand(2, *x.shape), x[:, 1:],
            x[..., ::2], x.narrow(2, 1, 2), x.select(1, 0), x.flip(0, 2), x.repeat(2, 1, 3),
            F.pad(x, (1, 2, 0, 1)), torch.cat([x, x], 1), torch.stack([x, x], 1), *x.chunk(2, 2),
            *x.unbind(2), *x.split([1, 3], 2), x.index_select(1, torch.tensor([0, 0])),
            x.unflatten(2, (2, 2)),
            x.reshape(-1, 2), x.gather(2, (x > 0).long()), x.cumsum(1), x.softmax(1), x.log_softmax(-1),
        ),
    ),
    "new tensors": (
        lambda x: (
            torch.zeros(x.shape[0], 3), torch.full_like(x, 2), x.new_ones(2, x.shape[1]), x.int(), x.half(),
            torch.arange(x.shape[0]), torch.arange(1, x.shape[1], 2), x.long().float(),
            torch.ones(x.shape[0] * x.shape[1] // 2),
        ),
    ),
}  # fmt: skip


def test_every_op_has_one_rule():
    pytest.importorskip("onnx_ir")
    from stepnet.onnx import from_graph

    tables = (from_graph.OPS, from_graph.REDUCTIONS, from_graph.ALONG_AN_AXIS, from_graph.RULES)
    by_hand = {"parameter", "constant", "result", "loop", "cell"}
    assert sorted([op for table in tables for op in table] + [*by_hand]) == sorted(OPS)


def test_calls_of_torch(check):
    check(Beside(Calls(*call) for call in CALLS.values()), lambda t, b: (torch.randn(b, t, 4),))


def test_a_bias_is_added_with_the_product(check):
    written = check(Calls(lambda x, m: m(x), nn.Linear(4, 3)), lambda t, b: (torch.randn(b, t, 4),))
    assert "Gemm" in written.types
    assert not {"MatMul", "Add"} & set(written.types)
    weight, bias = torch.randn(4, 3), torch.randn(3)

    def both(x):
        y = x @ weight
        return y, y + bias, x.sum(-1, keepdim=True) + bias

    assert "Gemm" not in check(Calls(both), lambda t, b: (torch.randn(b, t, 4),)).types


def test_rows_of_each_sequence_together(check_ragged):
    def together(x):
        pooled = [stepnet.sequence_pool(x, how) for how in ("sum", "mean", "sqrt", "max", "first", "last")]
        return pooled, stepnet.sequence_softmax(x), stepnet.sequence_reverse(x)

    def make(lengths):
        return (LoDTensor.from_lengths(torch.randn(sum(lengths), 1), [lengths]),)

    check_ragged(Calls(together), make)
