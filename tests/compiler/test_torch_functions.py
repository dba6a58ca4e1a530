"""Torch functions on rows, each inside a recurrence: h' = f(h, x). Compiled some at a time, side by side."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from covering import few
from plans import entry_of
from stepnet.data.lod import LoDTensor
from stepnet.errors import SlowPathWarning
from stepnet.testing import check_step

PLANS_ON_DISK = True  # what is recorded once runs in both executors
DTYPE = torch.float64
D = 6
SIZES = [2, 0, 5, 1]
MATRIX = (torch.randn(D, D, generator=torch.Generator().manual_seed(6), dtype=DTYPE) / 2).requires_grad_()
ROW = torch.randn(D, generator=torch.Generator().manual_seed(7), dtype=DTYPE).requires_grad_()
EYE = torch.eye(2, dtype=DTYPE)

# Functions of (h, x), both [n, 6]; smooth where the samples are.
IN_C = {
    "argmax, argmin": lambda h, x: h + 0.1 * ((h + x).argmax(-1, True) - x.argmin(-1, True)).to(DTYPE),
    "embedding": lambda h, x: F.embedding((h + x).argmax(-1), MATRIX[:, :D]) + x,
    "add, sub, mul, div": lambda h, x: (h + x) * 0.5 - x * h / (2 + x * x),
    "operators with numbers": lambda h, x: 2 - h / 3 + 1.5 * (1 / (2 + x**2)) - (-x),
    "rsub, add with alpha": lambda h, x: torch.rsub(h, x, alpha=0.5) + torch.add(h, x, alpha=-0.25),
    "exp, expm1": lambda h, x: torch.exp(-(h**2)) + torch.expm1(0.1 * x),
    "log, log1p": lambda h, x: torch.log(1 + h**2) + torch.log1p(x**2),
    "sqrt, rsqrt": lambda h, x: torch.sqrt(1 + h * h) * torch.rsqrt(2 + x * x),
    "reciprocal, square": lambda h, x: (3 + h.square()).reciprocal() * x,
    "sin, cos": lambda h, x: torch.sin(h) * torch.cos(x),
    "tanh, sigmoid, erf": lambda h, x: torch.tanh(h) + torch.sigmoid(x) * torch.erf(h),
    "pow of a number": lambda h, x: 0.1 * h**3 + (1 + x * x) ** 0.5 + (2 + h * h) ** -1.5 + h**0 + h**1,
    "pow of a tensor": lambda h, x: (1.2 + x.sigmoid()) ** h.sigmoid() + 2.0**x.sigmoid(),
    "abs, sign, neg": lambda h, x: h.abs() * x.sign() - torch.neg(x) * 0.1,
    "floor, ceil": lambda h, x: h - (3 * h).floor() / 9 + x.ceil() * 0.1,
    "round, trunc": lambda h, x: h - x.round() * 0.1 + x.trunc() * 0.1,
    "relu, leaky, prelu": lambda h, x: F.relu(h + x) - F.leaky_relu(x, 0.2) + F.prelu(h, ROW[:1]),
    "relu6, hardtanh, hardswish": lambda h, x: F.relu6(5 * x) + F.hardtanh(2 * h) - F.hardswish(h + x) * 0.2,
    "gelu": lambda h, x: F.gelu(h + x) - F.gelu(x),
    "silu, mish": lambda h, x: F.silu(h) + F.mish(x),
    "softplus, elu": lambda h, x: F.softplus(h) - F.elu(x, 0.5),
    "celu, selu": lambda h, x: F.celu(h) * 0.1 + F.selu(x) * 0.1,
    "logsigmoid, softsign, tanhshrink": lambda h, x: F.logsigmoid(h) + F.softsign(x) - F.tanhshrink(h),
    "threshold, softshrink": lambda h, x: F.threshold(h + x, 0.3, -0.2) + F.softshrink(x, 0.4),
    "maximum, minimum": lambda h, x: torch.maximum(h, x) - 0.5 * torch.minimum(h, x),
    "clamp": lambda h, x: h.clamp(-0.7, 0.9) + x.clamp(min=0.1) - x.clamp_max(0.5),
    "clamp between rows": lambda h, x: torch.clamp(h, min=x - 1, max=x + 1),
    "where": lambda h, x: torch.where(h > x, h * 0.5, x - 1),
    "comparisons": lambda h, x: (h > x).double() - (h <= 0) * x + (x != h).to(h) - (x == x) * h * (h < 1),
    "logic": lambda h, x: torch.where((h > 0) & ~(x > 0.5) | (x < -1) ^ (h < -1), h, -x),
    "masked_fill": lambda h, x: h.masked_fill(x > 0, 0.3) + x.masked_fill(h < 0, 0),
    "lerp, addcmul": lambda h, x: torch.lerp(h, x, 0.3) + torch.addcmul(x, h, x, value=0.1),
    "addcdiv": lambda h, x: torch.addcdiv(h, x, 2 + h * h),
    "logaddexp": lambda h, x: torch.logaddexp(h, x),
    "nan_to_num, isnan": lambda h, x: torch.nan_to_num(h / x) * 0.1 + torch.isnan(x).double(),
    "matmul": lambda h, x: h @ MATRIX + x @ MATRIX.T,
    "linear": lambda h, x: F.linear(h, MATRIX, ROW) + F.linear(x, MATRIX),
    "hardsigmoid": lambda h, x: F.hardsigmoid(h + x),
    "linear of parts": lambda h, x: F.linear(torch.cat([h[:, :3], x[:, 3:]], 1), MATRIX),
    "einsum": lambda h, x: torch.einsum("nd,ed->ne", h, MATRIX) + x,
    "matmul of a shared product": lambda h, x: h @ (MATRIX @ MATRIX) + x * (ROW @ MATRIX),
    "outer product of weights": lambda h, x: h @ torch.outer(ROW, ROW) * 0.2 + x,
    "row dot row": lambda h, x: (h * x).sum(-1, keepdim=True) * x,
    "sum, mean": lambda h, x: h.sum(1, keepdim=True) * 0.2 + x - h.mean(-1)[:, None],
    "amax, amin": lambda h, x: h.amax(1, keepdim=True) * x - x.amin(-1, keepdim=True) * 0.3,
    "var, std": lambda h, x: h / (1 + x.var(-1, keepdim=True)) + x * h.std(-1, keepdim=True, unbiased=False),
    "logsumexp": lambda h, x: h - torch.logsumexp(h + x, -1, keepdim=True),
    "softmax, log_softmax": lambda h, x: torch.softmax(h + x, -1) + 0.1 * torch.log_softmax(x - h, 1),
    "softmin": lambda h, x: F.softmin(h * x, -1),
    "layer_norm": lambda h, x: F.layer_norm(h + x, (D,), ROW, ROW.flip(0)) - F.layer_norm(x, (D,)),
    "rms_norm": lambda h, x: F.rms_norm(h + x, (D,), ROW),
    "normalize": lambda h, x: F.normalize(h + x, dim=-1) * x,
    "cat, chunk": lambda h, x: torch.cat([h.chunk(2, -1)[1], x.chunk(3, -1)[0], h[:, 1:2]], -1),
    "stack, unbind": lambda h, x: torch.stack([h, x], 1).unbind(1)[0] + torch.stack([x, h], -1)[..., 1],
    "unbind of a weight, of which a part is used": lambda h, x: MATRIX.unbind(1)[2] * h + [*MATRIX][1] * x,
    "split": lambda h, x: torch.cat(x.split([2, 4], 1)[::-1], 1) * h,
    "slices": lambda h, x: torch.cat([h[:, 2:5], x[:, -1:], h[:, :2]], 1),
    "flip": lambda h, x: h.flip(1) + x,
    "reshape, transpose": lambda h, x: h.reshape(-1, 2, 3).transpose(1, 2).reshape(-1, D) + x,
    "view, permute": lambda h, x: h.view(-1, 3, 2).permute(0, 2, 1).contiguous().view(x.shape) * x,
    "unsqueeze, squeeze": lambda h, x: h.unsqueeze(1).expand(-1, 1, -1).squeeze(1) + x[:, None][:, 0],
    "select, narrow": lambda h, x: h.select(1, 2)[:, None] * x + h.narrow(1, 1, 1),
    "flatten, unflatten": lambda h, x: h.unflatten(1, (3, 2)).flatten(1) - x,
    "pad": lambda h, x: F.pad(h[:, :-1], (1, 0)) + F.pad(x, (-2, 2)),
    "broadcast_to": lambda h, x: torch.broadcast_to(h[:, :1], h.shape) * x,
    "ones, zeros, full": lambda h, x: h * torch.ones_like(x) + torch.zeros_like(h) - torch.full_like(x, 0.2),
    "new tensors": lambda h, x: h + x.new_zeros(x.shape) + x.new_full((x.shape[0], 1), 0.5) + h.new_ones(D),
    "tensors of numbers": lambda h, x: h * torch.tensor(0.5, dtype=DTYPE) + x * torch.arange(D) * 0.1,
    "type promotion": lambda h, x: h + x * torch.tensor([1, 0, 2, 1, 0, 1]) + 1,
    "glu": lambda h, x: F.glu(torch.cat([h, x], -1), -1),
    "losses of a row": lambda h, x: h - F.mse_loss(h, x, reduction="none") * 0.1 - F.smooth_l1_loss(
        h, x, reduction="none"
    ),
    "cosine of two rows": lambda h, x: h + ((h * x).sum(1) / ((h * h).sum(1) + 1).sqrt())[:, None],
    "triu": lambda h, x: torch.triu(h.view(-1, 2, 3)).view(-1, D) + x,
}  # fmt: skip


def picks(x):
    """Two features of each row, several to a row."""
    return torch.arange(len(x))[:, None].expand(-1, 2).reshape(-1), x.topk(2, 1).indices.view(-1)


def merged(h, x):
    """Two parts of each row as rows of their own, as a codebook takes them."""
    z, edges = (h + x).view(-1, 3), torch.tensor([-0.5, 0.5], dtype=DTYPE)
    near = torch.cdist(z, MATRIX[:, :3]).argmin(-1)
    turned = torch.tensor([[2, 0, 1]]).expand(len(z), -1)
    y = z[:, [1, 2, 0]] * z.gather(1, turned) + torch.bucketize(z, edges) * z
    return ((y + F.embedding(near, MATRIX[:, 3:])) / z.std(-1, keepdim=True).add(1)).view(-1, D)


def ways(h, x):
    """Values side by side in front of the rows, picked from by places of all rows and by each row's own."""
    stacked, own, rows = torch.stack([h * x, h, x]), x[:, :3].argmax(1), torch.arange(len(x))
    stacked[[2, 0], :, [1, 3]] += x[:, :2].T
    stacked[own, rows, 4] = 2 * h[:, 0]
    first, second = stacked[[0, 2]]
    return first * second + stacked[own, rows] + stacked[[0, 1], :, [1, 1]].sum(0)[:, None]


IN_C |= {
    "ways": ways,
    "remainder": lambda h, x: torch.remainder(h, 2.5) + x,
    "tile": lambda h, x: h[:, :2].tile(1, 3) + x,
    "matmul of rows": lambda h, x: torch.bmm(h.view(-1, 2, 3), x.view(-1, 3, 2)).sum(-1).repeat(1, 3),
    "roll": lambda h, x: h.roll(2, 1) + x,
    "group_norm": lambda h, x: F.group_norm(h + x, 2, ROW, ROW),
    "log2, log10": lambda h, x: torch.log2(h**2 + 2) - torch.log10(x**2 + 1),
    "tan, sinh, cosh": lambda h, x: torch.tan(h.sigmoid()) * 0.1 + torch.sinh(0.1 * x) + torch.cosh(0.1 * h),
    "asinh, atan": lambda h, x: torch.asinh(h) + torch.atan(h + x),
    "atan2": lambda h, x: torch.atan2(h, 2 + x * x),
    "erfinv, lgamma": lambda h, x: torch.erfinv(0.5 * torch.tanh(h)) + torch.lgamma(1.5 + x.sigmoid()),
    "every third feature": lambda h, x: torch.cat([h[:, ::3], x[:, 2:]], 1),
    "cumsum, cumprod": lambda h, x: torch.cumsum(h, -1) * 0.3 + torch.cumprod(x.sigmoid(), -1),
    "sort, topk": lambda h, x: torch.sort(h, -1).values + torch.topk(x, 2, -1).values[:, :1],
    "max with its index": lambda h, x: h.max(-1, keepdim=True).values + x,
    "gather": lambda h, x: torch.gather(h, 1, (x > 0).long()) + x,
    "index_select of features": lambda h, x: h.index_select(1, torch.tensor([3, 0, 1, 5, 4, 2])) + x,
    "features by a list": lambda h, x: h[:, [3, 0, 1, 5, 4, 2]] + x,
    "prod": lambda h, x: h.sigmoid().prod(-1, keepdim=True) * x,
    "inverse": lambda h, x: torch.linalg.inv(EYE * 4 + h[:, :4].view(-1, 2, 2)).sum((1, 2))[:, None] * x,
    "take_along_dim": lambda h, x: torch.take_along_dim(h, (x > 0).long(), 1) + x,
    "len": lambda h, x: torch.cat([h.view(len(h), -1), x.new_ones(len(x), 1)], 1)[:, 1:] * x,
    "grid_sample": lambda h, x: (
        F.grid_sample(h.view(-1, 2, 1, 3), x.view(-1, 1, 3, 2), align_corners=True)
        + F.grid_sample(x.view(-1, 2, 3, 1), h.view(-1, 1, 3, 2), "bilinear", "border", False)
    ).flatten(1),
    "affine_grid": lambda h, x: (
        F.affine_grid(x.view(-1, 2, 3), (h.size(0), 1, 2, 3), align_corners=False)
        + F.affine_grid(h.view(-1, 2, 3), [x.shape[0], 1, 2, 3], align_corners=True)
    ).flatten(1)[:, ::2],
    "weight_norm of a turned matrix": lambda h, x: x @ torch._weight_norm(MATRIX.T, ROW[:, None], 0) + h,
    "fake_quantize": lambda h, x: torch.fake_quantize_per_tensor_affine(h + x, 0.1, 1, -4, 7) * x,
    "several picks of a row by its number": lambda h, x: (
        h.index_put(picks(x), ROW[0]) * 0.5 + (h * x)[picks(x)].view(-1, 2).repeat(1, 3)
    ),
    "parts of rows, merged with them": merged,
    "numbers of each row; captured tensors taken apart": lambda h, x: (
        torch.func.vmap(lambda v, w: v.mean() * 0.5 + w * 2.5)(h, x)
        + torch.vmap(lambda row: torch.tanh(h * row + x))(MATRIX).mean(0)
        + torch.vmap(
            lambda v, w: torch.func.grad(lambda m: (v @ m * w).square().sum())(MATRIX),
        )(h, x).mean(1)
    ),
    "gradients of each row": lambda h, x: torch.func.vmap(
        torch.func.grad(lambda v, w: F.gelu(F.layer_norm(v, (D,)) @ MATRIX + MATRIX @ w).sum())
    )(h, x),
    "Hessians of rows": lambda h, x: (
        torch.vmap(torch.func.hessian(lambda v, w: (torch.tanh(v @ MATRIX[:2] - w) ** 3).sum()))(h[:, :2], x)
        .sum(1)
        .repeat(1, 3)
    ),
}
# What generated C leaves to torch: in the loop it is refused.
NOT_IN_C = {
    "cdist": lambda h, x: h + torch.cdist(h.view(-1, 3, 2), x.view(-1, 3, 2), p=3.0).sum(-1).repeat(1, 2),
    "i0": lambda h, x: torch.special.i0(0.1 * h) * x,
    "qr": lambda h, x: torch.linalg.qr(EYE * 4 + h[:, :4].view(-1, 2, 2)).R.sum((1, 2))[:, None] * x,
}
# What mixes rows, as far as the trace can tell.
PLAIN_LOOP_ONLY = {
    "an index of rows": lambda h, x: h[torch.arange(h.shape[0])] + x,
}


def _bounded(f):
    def step(x, h):
        h = torch.tanh(0.5 * f(h, x) + 0.1 * x)
        return h, h

    return step


# Their gradients write into what they made: recording takes twice the time, also of what stands beside them.
WRITING = {"clamp", "addcdiv", "rms_norm", "cumsum, cumprod"}
STEPS = {name: _bounded(f) for name, f in {**IN_C, **NOT_IN_C, **PLAIN_LOOP_ONLY}.items()}


def side_by_side(names):
    steps = {name: STEPS[name] for name in names}

    def step(x, states):
        new = {name: step(x, states[name])[1] for name, step in steps.items()}
        return {name: h * 2 for name, h in new.items()}, new

    return step


def rows():
    values = torch.randn(sum(SIZES), D, dtype=DTYPE, requires_grad=True)
    return LoDTensor.from_lengths(values, [SIZES])


def boot():
    return torch.randn(len(SIZES), D, dtype=DTYPE, requires_grad=True)


# By generated C with gradients in test_special_values.py, test_whole_rows.py or test_simpler.py, too.
ELSEWHERE = [
    "exp, expm1", "log, log1p", "sqrt, rsqrt", "reciprocal, square", "tanh, sigmoid, erf", "abs, sign, neg",
    "relu6, hardtanh, hardswish", "gelu", "celu, selu", "threshold, softshrink", "maximum, minimum",
    "hardsigmoid", "remainder", "roll", "group_norm", "log2, log10", "tan, sinh, cosh", "asinh, atan",
    "atan2", "erfinv, lgamma", "sort, topk", "max with its index", "gather", "index_select of features",
    "inverse", "take_along_dim", "features by a list",
]  # fmt: skip


def groups(functions, size):
    names = [name for name in functions if name not in (*WRITING, *ELSEWHERE)]
    writing = [name for name in functions if name in WRITING]
    return [*(names[i : i + size] for i in range(0, len(names), size)), writing]


GROUPS_IN_C = groups(IN_C, 8)
ALL_IN_C = [*GROUPS_IN_C, *(ELSEWHERE[first : first + 9] for first in range(0, len(ELSEWHERE), 9))]


@pytest.mark.parametrize(
    "names",
    few([*ALL_IN_C, list(NOT_IN_C)], [list(NOT_IN_C)]),
    ids="; ".join,
)
def test_by_torch_ops(names):
    state = {name: boot() for name in names}
    check_step(side_by_side(names), rows(), state, weights={"MATRIX": MATRIX, "ROW": ROW}, backend="eager")


@pytest.mark.parametrize("names", few(ALL_IN_C, GROUPS_IN_C[::2]), ids="; ".join)
def test_by_generated_c(names):
    state = {name: boot() for name in names}
    check_step(side_by_side(names), rows(), state, weights={"MATRIX": MATRIX, "ROW": ROW}, backend="c")


def unchanged(names):
    """The functions of a state that no step changes, beside the rows and by itself."""
    functions = {name: (IN_C | NOT_IN_C)[name] for name in names}

    def step(x, states):
        y = {
            name: (torch.tanh(0.5 * f(states[name], x)), f(states[name], 0.5 * states[name].flip(1)))
            for name, f in functions.items()
        }
        return y, states

    return step


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
@pytest.mark.parametrize("names", few(ALL_IN_C, GROUPS_IN_C[:1]), ids="; ".join)
def test_of_a_state_that_stays(names, backend):
    state = {name: boot() for name in names}
    check_step(unchanged(names), rows(), state, weights={"MATRIX": MATRIX, "ROW": ROW}, backend=backend)


@pytest.mark.parametrize("name", few(NOT_IN_C, ["i0"]))
def test_left_to_torch_with_the_line(name):
    assert entry_of(STEPS[name], rows(), boot(), backend="auto").ready.executor.name == "eager"
    entry = entry_of(STEPS[name], rows(), boot(), backend="c")
    assert entry.ready is None
    assert "test_torch_functions.py:" in str(entry.refusals[-1][1])


@pytest.mark.parametrize("name", PLAIN_LOOP_ONLY)
def test_right_by_the_plain_loop(name):
    with pytest.warns(SlowPathWarning, match="test_torch_functions.py:|self-check"):
        check_step(STEPS[name], rows(), boot(), weights={"ROW": ROW}, backend="auto")
