"""NaN, infinities, huge and tiny numbers and zeros give what torch gives, forward and backward.

Whole vectors: what is left over at the end of a tensor torch computes by other code, which treats NaN in
its own way (the gradient of elu at NaN is NaN in a vector and 1 after the last one).

The functions of a table stand side by side in one step, so that one library is built for all. The state
holds the values, so that they pass through the scan; a plan is made on ordinary numbers first.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from stepnet.api import recurrent

UNARY = {
    "relu": torch.relu, "relu6": F.relu6, "elu": F.elu, "selu": F.selu, "celu": lambda a: F.celu(a, 0.7),
    "gelu": F.gelu, "gelu tanh": lambda a: F.gelu(a, approximate="tanh"), "silu": F.silu,
    "softplus": F.softplus, "softsign": F.softsign, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
    "hardtanh of bounds": lambda a: F.hardtanh(a, -0.3, 0.7), "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu, "logsigmoid": F.logsigmoid, "softshrink": F.softshrink,
    "hardshrink": F.hardshrink, "shrink by name": lambda a: F.softshrink(input=a, lambd=0.2),
    "threshold": lambda a: F.threshold(a, 0.1, -0.2), "clamp": lambda a: a.clamp(-0.5, 0.5),
    "clamp at zero": lambda a: a.clamp(min=0), "clamp above": lambda a: a.clamp(max=0.2),
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "erf": torch.erf, "abs": torch.abs,
    "sign": torch.sign, "sgn": torch.sgn, "floor": torch.floor, "round": torch.round, "trunc": torch.trunc,
    "reciprocal": torch.reciprocal, "square": torch.square, "pow -1": lambda a: a**-1,
    "pow -2": lambda a: a**-2, "pow 3": lambda a: a**3, "pow 0.5": lambda a: a**0.5,
    "masked": lambda a: a.masked_fill(a > 0, 0.3), "where": lambda a: torch.where(a > 0, a, -a),
    "double negative": lambda a: a.neg().neg(), "zero minus": lambda a: 0 - a, "times zero": lambda a: a * 0,
    "both zeros": lambda a: torch.where(a > 0, a * 0.0, a * -0.0) + torch.full_like(a, -0.0),
    "two zeros": lambda a: torch.where(a > 0, torch.full_like(a, 0.0), torch.full_like(a, -0.0)) + a * 0,
    "minus a number": lambda a: a + -torch.full_like(a, -2.0),
    "var": lambda a: torch.stack([a, a * 0.5, a * 0.1], -1).var(-1),
    "std": lambda a: torch.stack([a, a * 0.5, a * 0.1], -1).std(-1),
    "var of equals": lambda a: torch.stack([a, a, a], -1).var(-1),
}  # fmt: skip
BINARY = {
    "maximum": torch.maximum, "minimum": torch.minimum, "div": torch.div, "mul": torch.mul,
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "smooth_l1 of 0.5": lambda a, b: F.smooth_l1_loss(a, b, reduction="none", beta=0.5),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "choice": lambda a, b: torch.where(a > b, a, b), "clamp": lambda a, b: torch.clamp(a, b - 1, b + 1),
}  # fmt: skip
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
# torch's float32 kernel has a formula of its own far from zero: other zeros, and 1 + erf loses digits
ROUGH = {"gelu": 1e-6, "gelu tanh": 1e-6}


def numbers(dtype):
    info = torch.finfo(dtype)
    root = math.sqrt(info.max)
    listed = [0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 50.0, 88.0, 1e-5, 100.0, 1e9, info.max]
    listed += [info.tiny, info.tiny / 8, 4 * root, root / 8, math.inf]
    found = torch.tensor([*listed, *(-n for n in listed), math.nan], dtype=torch.float64).to(dtype)
    return torch.cat([found, torch.linspace(-2, 2, 64 - len(found), dtype=dtype)])


def run(step, state, x, backend):
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    y, new = recurrent(step, x, state, backend=backend)
    seed = torch.linspace(0.5, 1.5, new.shape[-1], dtype=new.dtype).expand_as(new)
    gradients = torch.autograd.grad(new, [state, x], seed, allow_unused=True)
    return [y.detach(), new.detach(), *(g for g in gradients if g is not None)]


def side_by_side(functions, dtype, backend, a, b):
    names = list(functions)

    def step(x, h):
        new = torch.stack([functions[n](*((h[:, i], x[:, i]) if b is not None else (h[:, i],)))
                           for i, n in enumerate(names)], 1)  # fmt: skip
        return new[:, 0] * 1, new

    shape = (1, len(names), len(a))
    generator = torch.Generator().manual_seed(1)
    usual = torch.rand(shape, generator=generator, dtype=torch.float64).add(0.1).to(dtype)
    run(step, usual, usual.flip(-1)[None], backend)
    other = torch.zeros_like(a) if b is None else b
    given = (a.expand(shape), other.expand(1, *shape))
    ours, plain = run(step, *given, backend), run(step, *given, "naive")
    exact = run(
        step, *(t.double() for t in given), "naive"
    )  # torch's vector forms differ from its scalar ones
    loose = 2e-5 if dtype == torch.float32 else 1e-9
    smallest = 64 * torch.finfo(dtype).smallest_normal  # near it torch's own kernels flush or keep
    assert len(a) % 64 == 0
    wrong = []
    whats = ("y", "result", "gradient", "other gradient")
    for what, mine, theirs, double in zip(whats, ours, plain, exact, strict=False):
        close = torch.isclose(mine, theirs, rtol=loose, atol=smallest, equal_nan=True)
        signs = (torch.signbit(mine) == torch.signbit(theirs)) | (mine != 0) | (theirs != 0)
        if what == "y":
            continue
        for i, name in enumerate(names):
            right = close[..., i, :] & (signs[..., i, :] if what == "result" and name not in ROUGH else True)
            if name in ROUGH and dtype == torch.float32:
                right |= (mine[..., i, :] - theirs[..., i, :]).abs() < ROUGH[name]
                right |= torch.isclose(mine[..., i, :], double[..., i, :].float(), rtol=loose, equal_nan=True)
            for k in (~right).flatten().nonzero().flatten().tolist():
                at = f"{a[k].item()}" + (f", {b[k].item()}" if b is not None else "")
                wrong.append(
                    f"{what} of {name} at {at}: {mine[..., i, :].flatten()[k].item()}, "
                    f"not {theirs[..., i, :].flatten()[k].item()}"
                )
    return wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_unary(dtype, backend):
    assert not side_by_side(UNARY, dtype, backend, numbers(dtype), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_binary(dtype, backend):
    some = numbers(dtype)[[0, 1, 2, 12, 13, 17, 18, 20, 30, 35, 36]]
    a, b = (t.flatten() for t in torch.meshgrid(some, some, indexing="ij"))
    a, b = (torch.cat([t, t.new_ones(128 - len(t))]) for t in (a, b))
    assert not side_by_side(BINARY, dtype, backend, a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("whole", WHOLE, ids=str)
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_casts_to_integers(dtype, whole, backend):
    def step(x, h):
        found = h.to(whole)
        return found, torch.where(found != 0, h, -h)

    given = numbers(dtype)[None]
    mine, new = recurrent(step, torch.zeros(1, 1, 1, dtype=dtype), given, backend=backend)
    theirs, plain = recurrent(step, torch.zeros(1, 1, 1, dtype=dtype), given, backend="naive")
    assert torch.equal(mine, theirs)
    assert torch.equal(new.nan_to_num(7.0), plain.nan_to_num(7.0))
