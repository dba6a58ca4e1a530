"""What works on whole features: picks, totals, orders, matrices. Held against the plain loop, many a step."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import examples, few
from outcomes import as_the_plain_loop
from stepnet import LoDTensor, recurrent
from stepnet.errors import StepIndexError, Unsupported

D = torch.float64
LENGTHS = [3, 0, 1, 4]
W = torch.randn(3, 3, dtype=D, generator=torch.Generator().manual_seed(3)).requires_grad_()
PLACES = torch.tensor([2, 0, 2])


def numbers(z):
    return torch.arange(z.shape[0])


def put(z, x):
    z = z.clone()
    z[numbers(z), 0, x[:, :, 0].argmax(1)] = 0.5
    z[:, 1, ::2] = x[:, 0, 1::2]
    z[z > 0.4] = -1.0
    return z


def positive(z):
    return z[:, :, :3] @ z[:, :, :3].mT + torch.eye(3, dtype=D)


def reduced(how, include_self):
    """Of all places at once: none, one or many numbers go to a place."""

    def made(z, x):
        of_rows = z.scatter_reduce(2, (x > 0.3).long() * 3, x * z, how, include_self=include_self)
        if how == "sum":
            return of_rows
        return of_rows + z.index_reduce(1, PLACES, x, how, include_self=include_self)

    return made


def lines(z, x, beside):
    """Rows of z as its largest elements say, and those beside where told."""
    at = x.argmax(2, keepdim=True).expand(-1, -1, 12)
    return z.repeat(1, 1, 3).gather(1, (at + beside) % 3)


# Of z and x, [rows, 3, 4] each.
PICKS = {
    "gather": lambda z, x: z.gather(2, x.argsort(2)) + z.gather(1, x.argsort(1)),
    "fewer than there are": lambda z, x: z.gather(1, x[:, :2, :3].argsort(1)).sum(2),
    "lines of one place, and of others": lambda z, x: (
        lines(z, x, 0) + lines(z, x, x.repeat(1, 1, 3).argsort(2) == 5)
    ),
    "take_along_dim": lambda z, x: torch.take_along_dim(z, x.argmax(2, keepdim=True), 2),
    "scatter": lambda z, x: x.scatter(2, (x > 0).long(), z) + z.scatter(1, x.argmax(1, keepdim=True), 0.5),
    "scatter_add": lambda z, x: x.scatter_add(1, (x > 0).long(), z).scatter_reduce(
        2, (z > 0).long(), x, "sum"
    ),
    "an element of each row": lambda z, x: z[numbers(z), x[:, :, 0].argmax(1), x[:, 0].argmax(1) - 4],
    "a line of each row": lambda z, x: z[numbers(z), x[:, :, 0].argmax(1)],
    "places for all": lambda z, x: z[:, PLACES] + z.index_select(1, PLACES) * z[:, [0, -1, 1]],
    "places of a weight": lambda z, x: (W.flip(0).roll(1, 1) + W.gather(1, W.argsort(1))) @ z,
    "added by index": lambda z, x: z.index_add(1, PLACES, x) + z.index_copy(1, PLACES[:2], x[:, :2]),
    "most and where": lambda z, x: z.max(1)[0] * z.min(1)[1] + z.max(1)[1],
    **{
        f"{how}, {'with' if itself else 'without'} what was there": reduced(how, itself)
        for how in ("sum", "mean", "prod", "amax", "amin")
        for itself in (True, False)
    },
    "counted": lambda z, x: x.long().scatter_reduce(2, (z > 0).long(), (z * 5).long(), "amax").to(D),
    "bins": lambda z, x: z * torch.bucketize(z.detach(), torch.linspace(-1, 1, 5, dtype=D)),
    "merged diagonals": lambda z, x: (
        torch.diag_embed(z.flatten(0, 1)).view(-1, 3, 4, 4)
        + torch.diag_embed(x.transpose(0, 1)).transpose(0, 1)
        + z.flatten(0, 1).view(-1, 2, 2).diagonal(0, 2, 1).view(-1, 3, 2).mean(2)[:, :, None, None]
    ),
    "windows": lambda z, x: z.unfold(2, 2, 1).prod(-1) + z.diagonal(dim1=1, dim2=2)[:, :, None],
}
ORDERS = {
    "topk": lambda z, x: z.topk(2, 2)[0] * torch.zeros_like(z).scatter(2, x.topk(2, 2)[1], 1.0)[:, :, :2],
    "sort": lambda z, x: z.sort(1, descending=True)[0] * x.sort(dim=2, stable=True)[0],
    "median": lambda z, x: z.median(2)[0] + z.kthvalue(2, 2)[0],
    "totals": lambda z, x: z.cumsum(1) * z.cumprod(2) + z.logcumsumexp(1) + z.cummax(2)[0] * z.cummin(1)[0],
    "whether": lambda z, x: torch.where((z > 0).any(2, keepdim=True), z, x) * (x > -1).all(1, keepdim=True),
    "orders of a weight": lambda z, x: (W.sort(0)[0] + W.topk(2, 1)[0].sum(1, keepdim=True) + W.msort()) @ z,
    "totals of a weight": lambda z, x: (W.cumprod(0) + W.cummax(1)[0] + W.max(1)[0]) @ z,
    "how many": lambda z, x: (z > 0).sum(2).to(D) * z.sum(2),
}
MATRICES = {
    "solve": lambda z, x: torch.linalg.solve(positive(z), x),
    "solve for a vector": lambda z, x: torch.linalg.solve(positive(z), x[:, :, 0]),
    "solve from the right": lambda z, x: torch.linalg.solve(positive(z), x.mT, left=False),
    "solve with a weight": lambda z, x: torch.linalg.solve(W + 3 * torch.eye(3, dtype=D), z),
    "lstsq of a weight": lambda z, x: torch.linalg.lstsq(W + 3 * torch.eye(3, dtype=D), W).solution @ z,
    "inverse": lambda z, x: torch.linalg.inv(positive(z)) @ z,
    "determinants": lambda z, x: torch.linalg.det(z[:, :, 1:]) + torch.linalg.slogdet(z[:, :, :3])[1],
    "cholesky": lambda z, x: torch.cholesky_solve(x, torch.linalg.cholesky(positive(z))),
    "triangles": lambda z, x: torch.linalg.solve_triangular(z[:, :, :3] + 2, x, upper=True),
    "exponentials": lambda z, x: torch.matrix_exp(z[:, :, :3]) @ torch.matrix_exp(W - W.T),
    "factors": lambda z, x: torch.linalg.lu_solve(*torch.linalg.lu_factor(positive(z)), x),
}
FUNCTIONS = {
    "of one": lambda z, x: (
        z.tan() + z.mul(0.9).asin() + z.mul(0.9).acos() + z.atan() + z.sinh() + z.cosh() + z.asinh()
        + (z.abs() + 1.1).acosh() + z.mul(0.9).atanh() + z.exp2() + z.abs().log2() + z.abs().log10()
        + z.erfc() + z.mul(0.9).erfinv() + z.mul(3).lgamma() + z.mul(3).digamma() + torch.polygamma(1, z)
        + z.sinc()
    ),
    "of two": lambda z, x: (
        torch.atan2(z, x) + torch.hypot(z, x) + torch.fmod(z * 5, x) + torch.copysign(z, x) + torch.fmax(z, x)
        + torch.logaddexp2(z, x) + torch.remainder(z * 5, x) + torch.floor_divide(z.detach() * 7, x.detach())
        + torch.div(z * 7, x, rounding_mode="trunc") + torch.round(z, decimals=2)
    ),
    "attention": lambda z, x: F.scaled_dot_product_attention(
        z, x, z, attn_mask=torch.tensor([[True, True, False], [False] * 3, [True] * 3])
    ),
}  # fmt: skip
# What writes into parts of what it made is recorded by torch's tracers, in ten times the time.
GROUPS = {"picks": PICKS, "writing": {"put": put}}
GROUPS |= {"orders": ORDERS, "matrices": MATRICES, "functions": FUNCTIONS}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    ("group", "backend"),
    few(itertools.product(GROUPS, ["c", "eager"]), [("picks", "eager"), ("orders", "eager")]),
)
def test_as_the_plain_loop(group, backend):
    functions = GROUPS[group]

    def step(x, h):
        z = torch.tanh(h + x)
        y = {name: function(z, x) for name, function in functions.items()}
        total = sum(t[:, None].flatten(1).mean(1) for t in y.values())
        return y, torch.tanh(z + 0.1 * total[:, None, None])

    for lengths in (LENGTHS, [2]):
        x, h = (torch.randn(n, 3, 4, dtype=D, requires_grad=True) for n in (sum(lengths), len(lengths)))
        as_the_plain_loop(step, LoDTensor.from_lengths(x, [lengths]), h, backend, weights=[W], atol=1e-9)


def test_bins_of_rows_of_one_number():
    edges = torch.linspace(-1, 1, 5, dtype=D)

    def step(x, h):
        return x * torch.bucketize(h, edges), torch.tanh(h + x)

    x, h = (torch.randn(n, dtype=D, requires_grad=True) for n in (sum(LENGTHS), len(LENGTHS)))
    as_the_plain_loop(step, LoDTensor.from_lengths(x, [LENGTHS]), h, "eager")


SIZES, SPECIAL = (5, 20, 150), [0.0, -0.0, 1.0, 2.0, float("nan"), float("inf"), -float("inf")]


def order(x, h):
    """Every order of rows of three lengths; the state only keeps it in the loop."""
    found, x = {}, x + 0 * h
    for part, size in zip(x.split(SIZES, 1), SIZES, strict=True):
        for down in (False, True):
            found[f"sort {size} {down}"] = part.argsort(1, descending=down)
            found[f"stable {size} {down}"] = part.argsort(dim=1, descending=down, stable=True)
            for k in (1, 3, min(size, 9)):
                found[f"top {k} of {size} {down}"] = part.topk(k, 1, largest=down)[1]
        found[f"all {size}"] = part.topk(size, 1)[1]
        found[f"first {size}"] = torch.stack(
            [part.argmax(1), part.argmin(1), part.max(1)[1], part.min(1)[1]], 1
        )
        found[f"so far {size}"] = torch.cat([part.cummax(1)[1], part.cummin(1)[1]], 1)
    return found, h + found["sort 5 False"].sum(1, keepdim=True) * 0


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=40), st.integers(0, 10**6))
def test_equal_numbers_come_out_as_torch_has_them(values, seed):
    picks = torch.randint(len(values), (2, 2, sum(SIZES)), generator=torch.Generator().manual_seed(seed))
    x = torch.tensor(values, dtype=torch.float32)[picks].nan_to_num(
        posinf=1e30, neginf=-1e30, nan=float("nan")
    )
    for rows in (x, torch.where(x.isnan(), x, torch.randn_like(x))):  # many equals, and all but none
        ours, _ = recurrent(order, rows, torch.zeros(2, 1), backend="c")
        plain, _ = recurrent(order, rows, torch.zeros(2, 1), backend="naive")
        for name, index in plain.items():
            assert torch.equal(ours[name], index), name


def test_an_index_that_names_nothing():
    def step(x, state):
        h, at, line = state
        wide = h[:, :, None].expand(-1, -1, 8) * 1
        picked = h.gather(1, at[:, None]) + wide.gather(1, line[:, None, None].expand(-1, 1, 8))[:, :, 0]
        return picked, (torch.tanh(h + x + picked), at + (h[:, 0] > 9), line + (h[:, 0] > 9))

    x, h, right = torch.randn(3, 2, 4), torch.zeros(2, 4), torch.tensor([0, 3])
    recurrent(step, x, (h, right, right), backend="c")
    for at in (-1, 4, 2**62):
        wrong = torch.tensor([0, at])
        for state in ((h, wrong, right), (h, right, wrong)):
            with pytest.raises(StepIndexError, match=r"outside one of 4 places \(test_whole_rows.py:"):
                recurrent(step, x, state, backend="c")
    recurrent(step, x, (h, right, right), backend="c")  # nothing is left of the error


def test_a_matrix_without_an_inverse():
    def step(x, h):
        h = torch.linalg.solve(h, x)
        return h, h

    x, whole = torch.randn(2, 2, 3, 3), torch.eye(3).expand(2, 3, 3)
    recurrent(step, x, whole, backend="c")
    for backend in ("naive", "c"):
        with pytest.raises(torch.linalg.LinAlgError):
            recurrent(step, x, torch.zeros(2, 3, 3), backend=backend)


def test_what_pairs_rows_is_refused():
    for step in (lambda x, h: (h[numbers(h) - 1], h), lambda x, h: (h, h.sort(0)[0])):
        with pytest.raises(Unsupported, match="rows"):
            recurrent(step, torch.randn(3, 2, 4), torch.zeros(2, 4), backend="c")
