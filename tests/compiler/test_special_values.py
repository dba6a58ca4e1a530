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

from covering import few
from stepnet.api import recurrent

PLANS_ON_DISK = True  # what is recorded once runs in both executors
OPTIMISED = True  # vectors are told from what is left over

# Lambdas throughout: a plan is found again by their code, which torch's own functions lack.
UNARY = {
    "relu": lambda a: torch.relu(a),
    "relu6": lambda a: F.relu6(a),
    "elu": lambda a: F.elu(a),
    "selu": lambda a: F.selu(a),
    "celu": lambda a: F.celu(a, 0.7),
    "gelu": lambda a: F.gelu(a),
    "gelu tanh": lambda a: F.gelu(a, approximate="tanh"),
    "silu": lambda a: F.silu(a),
    "softplus": lambda a: F.softplus(a),
    "softsign": lambda a: F.softsign(a),
    "hardtanh": lambda a: F.hardtanh(a),
    "hardsigmoid": lambda a: F.hardsigmoid(a),
    "hardswish": lambda a: F.hardswish(a),
    "hardtanh of bounds": lambda a: F.hardtanh(a, -0.3, 0.7),
    "leaky_relu": lambda a: F.leaky_relu(a),
    "logsigmoid": lambda a: F.logsigmoid(a),
    "softshrink": lambda a: F.softshrink(a),
    "hardshrink": lambda a: F.hardshrink(a),
    "shrink by name": lambda a: F.softshrink(input=a, lambd=0.2),
    "threshold": lambda a: F.threshold(a, 0.1, -0.2),
    "clamp at zero": lambda a: a.clamp(min=0),
    "clamp above": lambda a: a.clamp(max=0.2),
    "tanh": lambda a: torch.tanh(a),
    "sigmoid": lambda a: torch.sigmoid(a),
    "exp": lambda a: torch.exp(a),
    "expm1": lambda a: torch.expm1(a),
    "log": lambda a: torch.log(a),
    "log1p": lambda a: torch.log1p(a),
    "sqrt": lambda a: torch.sqrt(a),
    "rsqrt": lambda a: torch.rsqrt(a),
    "erf": lambda a: torch.erf(a),
    "abs": lambda a: torch.abs(a),
    "sign": lambda a: torch.sign(a),
    "sgn": lambda a: torch.sgn(a),
    "floor": lambda a: torch.floor(a),
    "round": lambda a: torch.round(a),
    "trunc": lambda a: torch.trunc(a),
    "reciprocal": lambda a: torch.reciprocal(a),
    "square": lambda a: torch.square(a),
    "pow -1": lambda a: a**-1,
    "pow -2": lambda a: a**-2,
    "pow 3": lambda a: a**3,
    "pow 0.5": lambda a: a**0.5,
    "masked": lambda a: a.masked_fill(a > 0, 0.3),
    "where": lambda a: torch.where(a > 0, a, -a),
    "double negative": lambda a: a.neg().neg(),
    "zero minus": lambda a: 0 - a,
    "times zero": lambda a: a * 0,
    "both zeros": lambda a: torch.where(a > 0, a * 0.0, a * -0.0) + torch.full_like(a, -0.0),
    "two zeros": lambda a: torch.where(a > 0, torch.full_like(a, 0.0), torch.full_like(a, -0.0)) + a * 0,
    "minus a number": lambda a: a + -torch.full_like(a, -2.0),
    "var": lambda a: torch.stack([a, a * 0.5, a * 0.1], -1).var(-1),
    "std": lambda a: torch.stack([a, a * 0.5, a * 0.1], -1).std(-1),
    "var of equals": lambda a: torch.stack([a, a, a], -1).var(-1),
}
# Recorded twice as slowly as all others together: its gradient writes into what it made.
WRITING = {"clamp": lambda a: a.clamp(-0.5, 0.5)}
BINARY = {
    "maximum": lambda a, b: torch.maximum(a, b),
    "minimum": lambda a, b: torch.minimum(a, b),
    "div": lambda a, b: torch.div(a, b),
    "mul": lambda a, b: torch.mul(a, b),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "smooth_l1 of 0.5": lambda a, b: F.smooth_l1_loss(a, b, reduction="none", beta=0.5),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "choice": lambda a, b: torch.where(a > b, a, b),
    "clamp": lambda a, b: torch.clamp(a, b - 1, b + 1),
}
WHOLE = {str(t): t for t in (torch.int64, torch.bool, torch.int32, torch.int16, torch.int8, torch.uint8)}
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
    """The new state of each function, its gradient by the old one, and by x if it reads that."""
    x = {name: t.clone().requires_grad_() for name, t in x.items()}
    state = {name: t.clone().requires_grad_() for name, t in state.items()}
    _, new = recurrent(step, x, state, backend=backend)
    seeds = [torch.linspace(0.5, 1.5, t.shape[-1], dtype=t.dtype).expand_as(t) for t in new.values()]
    inputs = [*state.values(), *x.values()]
    gradients = iter(torch.autograd.grad(list(new.values()), inputs, seeds, allow_unused=True))
    found = {"result": {name: t.detach() for name, t in new.items()}}
    found["gradient"] = dict(zip(state, gradients, strict=False))
    found["other gradient"] = {name: t for name, t in zip(x, gradients, strict=True) if t is not None}
    return found


def side_by_side(functions, dtype, backend, a, b):
    def step(x, h):
        new = {n: f(h[n]) if b is None else f(h[n], x[n]) for n, f in functions.items()}
        return x, new

    generator = torch.Generator().manual_seed(1)
    usual, other = torch.rand(2, 1, len(a), generator=generator, dtype=torch.float64).add(0.1).to(dtype)
    xs = functions if b is not None else ["x"]
    run(step, dict.fromkeys(functions, usual), dict.fromkeys(xs, other[None]), backend)
    given = dict.fromkeys(functions, a[None]), dict.fromkeys(xs, (a if b is None else b)[None, None])
    ours, plain = run(step, *given, backend), run(step, *given, "naive")
    # torch's vector forms differ from its scalar ones
    exact = run(step, *({n: t.double() for n, t in part.items()} for part in given), "naive")
    loose = 2e-5 if dtype == torch.float32 else 1e-9
    smallest = 64 * torch.finfo(dtype).smallest_normal  # near it torch's own kernels flush or keep
    assert len(a) % 64 == 0
    wrong = []
    for what, of_each in ours.items():
        assert of_each.keys() == plain[what].keys()
        for name, mine in of_each.items():
            theirs, double = plain[what][name], exact[what][name]
            right = torch.isclose(mine, theirs, rtol=loose, atol=smallest, equal_nan=True)
            if what == "result" and name not in ROUGH:
                right &= (torch.signbit(mine) == torch.signbit(theirs)) | (mine != 0) | (theirs != 0)
            if name in ROUGH and dtype == torch.float32:
                right |= (mine - theirs).abs() < ROUGH[name]
                right |= torch.isclose(mine, double.float(), rtol=loose, equal_nan=True)
            for k in (~right).flatten().nonzero().flatten().tolist():
                at = f"{a[k].item()}" + (f", {b[k].item()}" if b is not None else "")
                got, wanted = (t.flatten()[k].item() for t in (mine, theirs))
                wrong.append(f"{what} of {name} at {at}: {got}, not {wanted}")
    return wrong


HALVES = {
    "one half": dict(list(UNARY.items())[::2]),
    "other half": dict(list(UNARY.items())[1::2]),
    "writing": WRITING,
}
KINDS = [(half, dtype) for half in HALVES for dtype in (torch.float64, torch.float32)]


@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize(("half", "dtype"), few(KINDS, [KINDS[0], KINDS[4]]))
def test_unary(half, dtype, backend):
    assert not side_by_side(HALVES[half], dtype, backend, numbers(dtype), None)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", few(["eager", "c"], ["eager"]))
def test_binary(dtype, backend):
    some = numbers(dtype)[[0, 1, 2, 12, 13, 17, 18, 20, 30, 35, 36]]
    a, b = (t.flatten() for t in torch.meshgrid(some, some, indexing="ij"))
    a, b = (torch.cat([t, t.new_ones(128 - len(t))]) for t in (a, b))
    assert not side_by_side(BINARY, dtype, backend, a, b)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_casts_to_integers(dtype, backend):
    """And back at once, which a compiler would like to take for no cast at all: -0.5 gives no -0.0, in whole
    vectors as in what is left over."""

    def step(x, h):
        found = {name: h[name].to(whole) for name, whole in WHOLE.items()}
        back = {name: value.to(dtype) for name, value in found.items()}
        return (found, back), {name: torch.where(found[name] != 0, h[name], -h[name]) for name in WHOLE}

    x, some = torch.zeros(1, 1, 1, dtype=dtype), torch.cat([numbers(dtype), numbers(dtype)[-7:]])
    given = dict.fromkeys(WHOLE, some[None])
    mine, new = recurrent(step, x, given, backend=backend)
    theirs, plain = recurrent(step, x, given, backend="naive")
    for name in WHOLE:
        assert torch.equal(mine[0][name], theirs[0][name]), name
        assert torch.equal(mine[1][name], theirs[1][name]), name
        assert not mine[1][name][mine[1][name] == 0].signbit().any(), name
        assert torch.equal(new[name].nan_to_num(7.0), plain[name].nan_to_num(7.0)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_numbers_beside_sixteen_bits(dtype, backend):
    """A number of Python's is no number of 16 bits; nor is what an op makes on the way to its result."""

    def step(x, h):
        parts = [x * 0.1, x / 0.3, 1e-3 * x, torch.fmod(x, 0.3), x % 0.3, x.round(decimals=2)]
        parts += [(100 * x).round(decimals=-1), torch.div(x, 0.3, rounding_mode="floor")]
        return parts, h

    x = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(2)).mul(20).to(dtype)
    mine, theirs = (recurrent(step, x, x[0], backend=by)[0] for by in (backend, "naive"))
    for place, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert torch.equal(a, b), place


PICKS = {
    "fmax": lambda a: torch.fmax(a, a.flip(-1)),
    "fmin": lambda a: torch.fmin(a, a.flip(-1)),
    "maximum": lambda a: torch.maximum(a, a.flip(-1)),
    "amax": lambda a: a.amax(-1),
    "amax of many": lambda a: a.repeat(1, 3).amax(-1),  # by vectors
    "amin of many": lambda a: a.flip(-1).repeat(1, 3).amin(-1),
    "argmin": lambda a: a.argmin(-1),
    "median": lambda a: a.median(-1).values,
    "median at": lambda a: a.median(-1).indices,
    "sorted": lambda a: torch.sort(a, stable=True, dim=-1).values,
    "isinf": lambda a: a.isinf(),
    "copysign": lambda a: torch.copysign(a.abs() + 1, a.flip(-1)),
    "nan_to_num": lambda a: a.nan_to_num(2.0, 3.0, -3.0),
    "any": lambda a: a.isnan().any(-1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["eager", "c"])
def test_picks_among_what_is_none(dtype, backend):
    """Of any float type: exactly torch's."""

    def step(x, h):
        return {name: pick(x) for name, pick in PICKS.items()}, h

    nan, inf = math.nan, math.inf
    rows = [[nan, 1, 2, 3, 4, 5, 6], [1, 2, nan, -inf, inf, 4, nan], [nan] * 7, [inf, 1, 2, -inf, 3, 5, -4]]
    x = torch.tensor([*rows, [1, 2, 3, 4, 5, 6, 7]], dtype=dtype)[None]
    mine, theirs = (recurrent(step, x, x[0], backend=by)[0] for by in (backend, "naive"))
    for name in PICKS:
        torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("backend", ["eager", "c"])
def test_places_of_images_that_are_none(backend):
    """Forward: torch's own gradient of such places at the border writes where nothing is."""

    def step(x, h):
        seen = [F.grid_sample(h, x, padding_mode=edge, align_corners=False) for edge in ("zeros", "border")]
        return seen, h

    places = torch.randn(2, 1, 4, 4, 2, dtype=torch.float64)
    places[1, 0, 0, :, 0] = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    image = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    mine, theirs = (recurrent(step, places, image, backend=by)[0] for by in (backend, "naive"))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12, equal_nan=True)


CONVOLUTIONS = {
    "conv1d": lambda a, w: F.conv1d(a, w, padding=1, stride=2),
    "conv_transpose1d": lambda a, w: F.conv_transpose1d(a, w),
    "conv_transpose1d apart": lambda a, w: F.conv_transpose1d(a, w, None, 2, 1, 1, dilation=2),
    "conv_transpose1d of groups": lambda a, w: F.conv_transpose1d(a, w, None, 3, groups=2),
    "conv_transpose2d": lambda a, w: F.conv_transpose2d(
        a.unflatten(-1, (2, 4)), w.unsqueeze(2), None, (2, 1), (0, 1)
    ),
}


@pytest.mark.parametrize("name", few(CONVOLUTIONS, [*CONVOLUTIONS][::2]))
def test_convolutions(name):
    """Zeros that stand between elements, or around them, meet no weight: it may be infinite."""
    function, weight = CONVOLUTIONS[name], torch.randn(4, 4, 3, dtype=torch.float64)
    x = torch.randn(2, 1, 4, 8, dtype=torch.float64)

    def run(backend):
        given = x.clone().requires_grad_()
        y, new = recurrent(step, given, torch.zeros(1, 4, dtype=torch.float64), backend=backend)
        ones = [torch.ones_like(y), torch.ones_like(new)]
        return y, new, *torch.autograd.grad([y, new], [given, weight], ones)

    def step(x, h):
        return function(x, weight), torch.tanh(h + x.sum(-1))

    weight.requires_grad_()
    run("eager")  # the plan is made on ordinary numbers
    for of, number in ((weight, math.inf), (x, -math.inf), (x, math.nan), (weight, math.nan)):
        with torch.no_grad():
            of[1, 0, 1] = number
        torch.testing.assert_close(run("eager"), run("naive"), equal_nan=True)
