"""What random steps are made of: lines of torch with places for values, `|` between them."""

from __future__ import annotations

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

D, E = torch.{main}, torch.{other}
g = torch.Generator().manual_seed({seed})


def rand(*shape, dtype=D):
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return -0.5 * grad * b, None


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        hit = a > 0
        ctx.mark_non_differentiable(hit)
        ctx.save_for_backward(hit)
        return 2 * a, hit

    @staticmethod
    def backward(ctx, grad, _):
        (hit,) = ctx.saved_tensors
        return grad * hit


never, casts = torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False)


@casts
def once(a):
    return torch.sin(a) * 2


def scaled_once(a):
    with never:
        most = a.abs() + 1
    return a / most
"""

# {0}: a float value; every line gives a float of the same shape
UNARY = """
torch.tanh({0}) | torch.sigmoid({0}) | torch.relu({0}) | torch.exp(-{0}.abs()) | torch.sin({0})
torch.cos({0}) | -{0} | {0}.abs() | {0}.square() | ({0}.abs() + 0.5).sqrt() | ({0}.abs() + 0.5).log()
({0}.abs() + 0.5).rsqrt() | torch.log1p({0}.abs()) | torch.expm1(-{0}.abs()) | torch.erf({0})
({0}.abs() + 0.5).reciprocal() | {0}.sign() | {0}.floor() | {0}.ceil() | {0}.round() | {0}.trunc()
{0}.frac() | torch.tan(0.5 * torch.tanh({0})) | {0}.atan() | torch.asin(0.9 * torch.tanh({0}))
torch.sinh(torch.tanh({0})) | torch.cosh(torch.tanh({0})) | {0}.asinh() | torch.acosh(1.5 + {0}.abs())
torch.atanh(0.9 * torch.tanh({0})) | torch.erfc({0}) | torch.exp2(-{0}.abs()) | ({0}.abs() + 0.5).log2()
({0}.abs() + 0.5).log10() | torch.lgamma({0}.abs() + 1) | torch.sinc({0}) | {0}.sgn()
torch.logit(0.8 * torch.sigmoid({0}) + 0.1) | torch.nan_to_num({0}) | torch.deg2rad({0})
torch.hypot({0}, {0} + 1) | F.relu6({0}) | F.elu({0}) | F.selu({0}) | F.celu({0}, 0.7) | F.gelu({0})
F.gelu({0}, approximate='tanh') | F.silu({0}) | F.mish({0}) | F.softplus({0})
F.softplus({0}, beta=2, threshold=1) | F.softsign({0}) | F.tanhshrink({0}) | F.hardtanh({0})
F.hardtanh({0}, -0.3, 0.7) | F.hardsigmoid({0}) | F.hardswish({0}) | F.leaky_relu({0}, 0.2)
F.logsigmoid({0}) | F.softshrink({0}, 0.3) | F.hardshrink({0}, 0.3) | F.threshold({0}, 0.1, -0.2)
F.rrelu({0}, training=False) | F.dropout({0}, 0.5, training=False) | F.elu({0}, 0.5) | F.relu({0}) ** 2
{0} ** 2 | {0} ** 3 | ({0}.abs() + 0.1) ** 1.5 | 2 ** torch.tanh({0}) | ({0}.abs() + 0.5) ** -0.5
{0}.clone() | {0}.clamp(-0.5, 0.5) | {0}.clamp(min=0) | {0}.clamp(max=0.2) | {0} * 0.5 + 1 | 1 - {0}
{0} / 2 | 1 / (1 + {0}.abs()) | {0} // 0.7 | {0} % 0.7 | torch.fmod({0}, 0.7)
{0}.masked_fill({0} > 0, 0.3) | torch.where({0} > 0, {0}, 0.1 * {0}) | {0}.detach() | {0} * 1 | {0} + 0
{0}.contiguous() | torch.zeros_like({0}) | torch.ones_like({0}) + {0} | {0}.detach() * {0}
torch.full_like({0}, 0.5) | {0}.new_zeros({0}.shape) | {0} - {0}.detach() | {0}.float().to(D)
{0}.double().to(D) | {0}.to(E).to(D) | ({0} > 0).to(D) | ({0} * 2).long().to(D) | ({0} > 0) * {0}
{0}.mul(2).sub(1) | torch.addcmul({0}, {0}, {0}) | torch.addcdiv({0}, {0}, {0}.abs() + 1)
torch.lerp({0}, {0}.tanh(), 0.3) | F.dropout({0}, 0.0) | torch.square({0}) + 1e-3 | Straight.apply({0})
Reversed.apply({0}, {0}.cos()) | Pair.apply({0})[0] | Pair.apply({0})[1] * {0}
torch.xlogy({0}, {0}.abs() + 0.5) | F.normalize({0}.unsqueeze(-1), dim=-1).squeeze(-1)
torch.copysign({0}, -{0}.abs()) | torch.heaviside({0}.detach(), {0}.detach())
torch.sigmoid({0}) * torch.tanh({0}) | torch.special.entr({0}.abs() + 0.1)
torch.erfinv(0.9 * torch.tanh({0})) | torch.digamma({0}.abs() + 1) | torch.special.i0e({0})
torch.special.ndtr({0}) | torch.special.erfcx({0}) | torch.special.xlog1py({0}, {0}.abs())
{0}.round(decimals=1) | torch.ldexp({0}, torch.tensor(1)) | torch.float_power({0}.abs() + 0.5, 1.5).to(D)
torch.frexp({0})[0] | {0}.rad2deg().deg2rad() | torch.div({0}, 0.7, rounding_mode='trunc')
torch.isclose({0}, {0}.round()) * {0} | {0}.nan_to_num(posinf=1.0).clip(-3) | torch.rsub({0}, 1)
{0}.to(torch.complex128).abs().to(D) | torch.logaddexp2({0}, {0}.neg())
F.prelu({0}, torch.tensor(0.3, dtype=D)) | torch.bucketize({0}, torch.tensor([-1.0, 0.0, 1.0], dtype=D)) * {0}
F.logsigmoid(-{0}) - F.softplus({0})
once({0}) | scaled_once({0}) | {0}.masked_fill(torch.logical_xor({0} > 0, {0} > 1), 0.5)
"""
# of features: a float [rows, ..., n] of the same shape
ALONG = """
F.softmax({0}, -1) | F.log_softmax({0}, -1) | F.softmin({0}, dim=-1) | F.layer_norm({0}, {0}.shape[-1:])
F.normalize({0}, dim=-1) | {0}.flip(-1) | {0}.cumsum(-1) | {0} - {0}.mean(-1, keepdim=True)
{0} / (1 + {0}.abs().sum(-1, keepdim=True)) | {0}.sort(-1).values | {0}.roll(1, -1)
{0} - {0}.amax(-1, keepdim=True) | {0} * {0}.var(-1, keepdim=True, unbiased=False)
{0} - {0}.logsumexp(-1, keepdim=True) | torch.cumprod({0}.tanh(), -1) | F.rms_norm({0}, {0}.shape[-1:])
{0}.gather(-1, {0}.argsort(-1)) | F.gumbel_softmax({0}, hard=False) * 0
{0}.scatter(-1, {0}.argmax(-1, keepdim=True), 0.5)
{0}.index_select(-1, torch.arange({0}.shape[-1] - 1, -1, -1))
{0} * F.one_hot({0}.argmax(-1), {0}.shape[-1]) | {0}.masked_fill({0} == {0}.amax(-1, keepdim=True), -1.0)
{0}.cummax(-1).values | {0}.logcumsumexp(-1) | {0}.cummin(-1).values | {0} - {0}.nanmean(-1, keepdim=True)
{0} - {0}.kthvalue(1, -1, keepdim=True).values | {0}.topk({0}.shape[-1], -1).values
{0} * {0}.softmax(-1).std(-1, keepdim=True, unbiased=False)
{0}.argsort(dim=-1, descending=True, stable=True).to(D) * {0}
{0} - torch.aminmax({0}, dim=-1, keepdim=True)[0]
F.pad({0}, (1, 1)).unfold(-1, 3, 1).sum(-1) | torch.diff({0}, prepend={0}[..., :1])
{0} - {0}.median(-1, keepdim=True)[0]
F.avg_pool1d({0}.flatten(1)[:, None], 3, 1, 1).reshape({0}.shape)
F.max_pool1d({0}.flatten(1)[:, None], 3, 1, 1).reshape({0}.shape)
F.conv1d({0}.flatten(1)[:, None], torch.full((1, 1, 3), 0.3, dtype=D), padding=1).reshape({0}.shape)
F.interpolate({0}.flatten(1)[:, None], scale_factor=2)[..., ::2].reshape({0}.shape)
F.pad({0}.flatten(1)[:, None], (1, 0), mode='replicate')[..., 1:].reshape({0}.shape)
{0}.scatter_add(-1, {0}.argsort(-1), {0}) | {0} * torch.searchsorted(torch.tensor([-1.0, 1.0], dtype=D), {0})
torch.zeros_like({0}).index_add(-1, torch.arange({0}.shape[-1]) // 2, {0})
torch.view_as_real(torch.complex({0}, {0}.cos()) * (1 - 2j)).sum(-1).to(D)
torch.complex({0}, {0}.square() + 1).angle() | torch.complex({0}, {0} + 1).exp().conj().real
{0}.index_fill(-1, torch.tensor([0]), 0.5) | {0}.slice_scatter({0}[..., :1].tanh(), -1, 0, 1)
{0}.select_scatter({0}[..., 0].sin(), -1, 0) | torch.polygamma(1, {0}.abs() + 1)
"""
# square matrices [rows, n, n] of the same shape
MATRIX = """
torch.linalg.inv(0.1 * {0}.tanh() + torch.eye({0}.shape[-1], dtype=D)) | {0}.tril() | {0}.triu(1)
torch.linalg.solve(0.1 * {0}.tanh() + torch.eye({0}.shape[-1], dtype=D), {0}) | {0} @ {0}.mT
torch.matrix_exp(0.3 * {0}.tanh())
torch.linalg.cholesky({0}.tanh() @ {0}.tanh().mT + torch.eye({0}.shape[-1], dtype=D))
{0} * {0}.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] | torch.diag_embed({0}.diagonal(dim1=1, dim2=2))
{0} * torch.linalg.det(0.1 * {0}.tanh() + torch.eye({0}.shape[-1], dtype=D))[:, None, None]
{0}.diagonal_scatter({0}[..., 0].cos(), dim1=-2, dim2=-1) | torch.linalg.matrix_power({0}.tanh(), 2)
"""
# of a mask {1} of the same shape, in place; {2} is another float of that shape
MASKED = """
{0}[{1}] = {2}[{1}] | {0}[{1}] *= 0.5 | {0}[{1}] = {0}[{1}].tanh() + 1 | {0}[~{1}] = 0.2
{0}.masked_fill_({1}, 0.1) | {0}.masked_scatter_({1}, {2}[{1}])
"""
# of features: the last dimension goes
DOWN = """
{0}.sum(-1) | {0}.mean(-1) | {0}.amax(-1) | {0}.amin(-1) | {0}.max(-1).values | {0}.min(-1)[0]
{0}.logsumexp(-1) | {0}.norm(dim=-1) | {0}.prod(-1) | {0}[..., 0] | {0}[..., -1] | {0}.square().mean(-1)
{0}.median(-1).values | {0}.select(-1, 0) | {0}.std(-1, unbiased=False) | {0}.var(-1, correction=0)
{0}.narrow(-1, 0, 1).squeeze(-1) | torch.linalg.vector_norm({0}, dim=-1) | {0}.unbind(-1)[0]
torch.einsum('b...i,b...i->b...', {0}, {0}) | {0}.nansum(-1) | {0}.kthvalue(1, -1).values
torch.linalg.vector_norm({0}, torch.inf, -1) | torch.linalg.vector_norm({0}, 3, -1) | {0}.aminmax(dim=-1).max
torch.trapezoid({0}, dim=-1) | F.cosine_similarity({0}, {0}.flip(-1), -1)
{0}.mode(-1).values | {0}.count_nonzero(-1) * {0}[..., 0]
"""
# {1} broadcasts to {0}
BINARY = """
{0} + {1} | {0} - {1} | {0} * {1} | {0} / ({1}.abs() + 1) | torch.maximum({0}, {1})
torch.minimum({0}, {1}) | torch.where({0} > {1}, {0}, {1}) | torch.atan2({0}, {1}.abs() + 0.5)
torch.lerp({0}, {1}, 0.25) | {0}.masked_fill({1} > 0, 0.0) | torch.logaddexp({0}, {1})
{0} * torch.sigmoid({1}) | torch.add({0}, {1}, alpha=2) | torch.sub({0}, {1}, alpha=0.5)
torch.where({0} < 0, {1}, 0.0) | ({0}.abs() + 0.5) ** torch.tanh({1}) | torch.hypot({0}, {1}.abs() + 1)
{0} * ({1} > 0) | F.mse_loss({0}, {1}.expand_as({0}), reduction='none')
F.smooth_l1_loss({0}, {1}.expand_as({0}), reduction='none')
F.huber_loss({0}, {1}.expand_as({0}), reduction='none')
F.l1_loss({0}, {1}.expand_as({0}), reduction='none') | F.prelu({0}, torch.tensor([0.2], dtype=D)) + {1}
torch.clamp({0}, {1} - 1, {1} + 1)
F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1}).expand_as({0}), reduction='none')
Reversed.apply({0}, {1}) | {0} + {1}.detach() | {0} + ({1} - {1}.detach())
torch.addcmul({0}, {0}, {1}, value=0.5) | torch.fmax({0}, {1}) | {0} - {1} * {0}.detach()
torch.lerp({0}, {1}, torch.sigmoid({0})) | torch.logaddexp2({0}, {1}) | torch.fmin({0}, {1})
torch.addcdiv({0}, {0}, {1}.abs() + 1, value=0.3) | torch.copysign({0}, {1})
torch.fmod({0}, {1}.abs() + 0.5) | torch.div({0}, {1}.abs() + 0.5, rounding_mode='floor')
torch.isclose({0}, {1}) * {0}
F.binary_cross_entropy(torch.sigmoid({0}), torch.sigmoid({1}).expand_as({0}), reduction='none')
F.kl_div({0}, torch.sigmoid({1}).expand_as({0}), reduction='none')
torch.remainder({0}, {1}.abs() + 0.5) | torch.xlogy({0}, {1}.abs() + 0.5) | {0} * {1}.sign()
"""
# float to bool
TRUTH = """
{0} > 0 | {0} <= 0.2 | {0} == 0 | {0} != 0 | {0}.isnan() | ~({0} > 0) | {0}.isfinite() | {0}.bool()
{0}.signbit() | torch.isin({0}, torch.tensor([0.0, 1.0], dtype=D)) | {0}.isinf() | torch.logical_not({0})
torch.lt({0}, -{0})
"""
# float to int64
WHOLE = """
({0} * 2).int().long() // 2 | ({0} * 3).to(torch.int8).long()
({0} * 2).long() | {0}.round().to(torch.int64) | ({0} > 0).long() | {0}.int().long() | ({0} > 0) + 1
"""
# int64 to int64
OF_WHOLE = """
{0} + 1 | {0} * 2 | -{0} | {0} % 3 | {0} // 2 | {0}.abs() | {0}.clamp(-3, 3) | {0}.sign() | {0} & 3
{0} - {0} | {0} ** 2 | torch.bitwise_or({0}, 1) | {0} << 1 | ~{0}
({0}.to(torch.int8) * 50).long() | {0} >> 1 | {0} % -3 | {0} // -2 | torch.div({0}, 3, rounding_mode='trunc')
({0}.to(torch.int16) << 7).long() | {0}.bitwise_xor(2) | torch.fmod({0}, 3) | {0}.clamp(min=0)
"""
# bool to bool
OF_TRUTH = """
~{0} | {0} & True | {0} ^ True | {0}.logical_not() | {0}.clone() | {0}.float() > 0 | {0}.long().bool()
"""


def lines(text: str) -> list[str]:
    """The lines of a table."""
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]
