"""Einsums, attention and convolutions of rows, in generated C: torch's numbers and gradients."""

from __future__ import annotations

import string
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from outcomes import as_the_plain_loop
from stepnet import LoDTensor, recurrent
from stepnet.compiler.rewritten.contractions import contracted
from stepnet.errors import SlowPathWarning

DTYPE = torch.float64
LENGTHS = [2, 0, 1]
SIZES = dict(zip("hijkl", (2, 3, 2, 4, 3), strict=True))

# each with b for the rows: what torch's einsum merges them with stands before them
SPELLINGS = "bij,jk->bik ij,bjk->ibk bhij,hjk->bhik ij,bjk,lk->bil bi,ijk,bj->bk hb,bhi,ij->bj"


def shape_of(term: str) -> list[int]:
    return [SIZES[label] for label in term if label != "b"]


def einsums(equations: str) -> tuple[Callable[..., Tensor], int, list[Tensor]]:
    """All of them of parts of x: [rows, features]; how many features, and the weights."""
    weights: dict[str, Tensor] = {}
    count = 0
    for equation in equations.split():
        for term in equation.partition("->")[0].split(","):
            if "b" in term:
                count += torch.Size(shape_of(term)).numel()
            else:
                weights.setdefault(term, torch.randn(shape_of(term), dtype=DTYPE, requires_grad=True))

    def run(x: Tensor) -> Tensor:
        parts, at = [], 0
        for equation in equations.split():
            inner, _, out = equation.partition("->")
            operands = []
            for term in inner.split(","):
                if "b" not in term:
                    operands.append(weights[term])
                    continue
                size = torch.Size(shape_of(term)).numel()
                part = x[:, at : at + size].reshape(-1, *shape_of(term)).movedim(0, term.index("b"))
                operands.append(part)
                at += size
            found = torch.einsum(equation, *operands).movedim(out.index("b"), 0)
            parts.append(found.reshape(x.shape[0], -1))
        return torch.cat(parts, 1)

    return run, count, [*weights.values()]


def same(function: Callable[..., Tensor], features: tuple[int, ...], weights: list[Tensor]) -> None:
    """The function in a loop by generated C, against the plain loop."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = function(x * (1 + h.reshape(-1, *(1,) * (x.dim() - 1))))
        return y, torch.tanh(h + y.flatten(1).mean(1, keepdim=True))

    generator = torch.Generator().manual_seed(2)
    x = torch.randn(sum(LENGTHS), *features, dtype=DTYPE, generator=generator, requires_grad=True)
    h = torch.zeros(len(LENGTHS), 1, dtype=DTYPE, requires_grad=True)
    as_the_plain_loop(step, LoDTensor.from_lengths(x, [LENGTHS]), h, weights=weights, atol=1e-11)


def test_einsum_in_the_order_in_which_people_write_it():
    run, count, weights = einsums(SPELLINGS)
    same(run, (count,), weights)


def test_dots_of_an_einsum():
    weight = torch.randn(3, 4, dtype=DTYPE, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        wide = torch.einsum("...i,ij,...i->...j", x, weight, x)
        return (
            wide
            + torch.einsum("...i,...i", x, x).unsqueeze(-1)
            + torch.einsum("b...,...->b...", wide, weight[0])
        )

    same(run, (2, 3), [weight])


@st.composite
def equations(draw: st.DrawFn) -> tuple[list[str], str]:
    """Terms and a result: rows r in one of them at least, and in the result."""
    letters = string.ascii_lowercase[:4]
    one = st.lists(st.sampled_from(letters), unique=True, max_size=3)
    terms = [[*draw(one)] for _ in range(draw(st.integers(2, 3)))]
    for i in draw(st.sets(st.integers(0, len(terms) - 1), min_size=1)):
        terms[i].insert(draw(st.integers(0, len(terms[i]))), "r")
    every = sorted({label for term in terms for label in term} - {"r"})
    left = draw(st.sets(st.sampled_from(every))) if every else set()
    out = draw(st.permutations(["r", *sorted(left)]))
    return ["".join(term) for term in terms], "".join(out)


@given(equations())
def test_any_einsum(equation):
    terms, out = equation
    sizes = {"r": 3, "a": 2, "b": 4, "c": 1, "d": 3}
    generator = torch.Generator().manual_seed(1)
    operands = [
        torch.randn([sizes[label] for label in term], dtype=DTYPE, generator=generator) for term in terms
    ]
    found = contracted(terms, out, "r", operands)
    assert found is not None
    torch.testing.assert_close(found, torch.einsum(f"{','.join(terms)}->{out}", *operands))


OWN = nn.MultiheadAttention(4, 2, batch_first=True, dtype=DTYPE)
OTHER = nn.MultiheadAttention(4, 1, bias=False, kdim=3, vdim=2, batch_first=True, dtype=DTYPE)


def attended(x: Tensor) -> Tensor:
    """Of places to themselves; to others with sizes of their own, masked, with weights."""
    first, _ = OWN(x, x, x, need_weights=False)
    padding = torch.tensor([False, True, False]).expand(x.shape[0], -1)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(2)
    second, weights = OTHER(x, first[..., :3], x[..., :2], key_padding_mask=padding, attn_mask=mask)
    return torch.cat([first, second, weights], 2)


def test_multi_head_attention():
    same(attended, (3, 4), [*OWN.parameters(), *OTHER.parameters()])


CAUSAL = nn.TransformerEncoderLayer(4, 2, 3, dropout=0.0, batch_first=True, dtype=DTYPE)
LATER = torch.ones(3, 3, dtype=torch.bool).triu(1)
NOT_OF_ONE = torch.tensor([[0.0, 0.5, 0.0], [-torch.inf] * 3, [0.2, -torch.inf, 0.0]], dtype=DTYPE)


def attended_in_part(x: Tensor) -> Tensor:
    """Of what came before, by a hint; of nothing; of keys that several heads share; of no key at all."""
    x = CAUSAL(x, src_mask=LATER, is_causal=True) + F.scaled_dot_product_attention(x, x, x, NOT_OF_ONE)
    pairs = x.unflatten(2, (2, 2)).transpose(1, 2)
    shared = F.scaled_dot_product_attention(pairs, pairs[:, :1], pairs[:, 1:], enable_gqa=True)
    nothing = torch.ones(3, dtype=torch.bool).expand(x.shape[0], -1)
    return x + shared.transpose(1, 2).flatten(2) + OWN(x, x, x, nothing, need_weights=False)[0]


def test_attention_to_some():
    same(attended_in_part, (3, 4), [*CAUSAL.parameters()])


def test_attention_that_is_left_to_torch():
    """Not forward alone by something else than torch's kernel, whose backward takes what it gives."""
    beside = nn.MultiheadAttention(4, 2, add_zero_attn=True, batch_first=True, dtype=DTYPE)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = beside(x, x, x, need_weights=False)[0]
        return y, h + y.mean((1, 2))[:, None] * torch.rand_like(h)  # no plan of it is checked

    def gradient(backend: Any) -> Tensor:
        x = torch.linspace(-1, 1, 36, dtype=DTYPE).reshape(3, 1, 3, 4).requires_grad_()
        y, _ = recurrent(step, x, torch.zeros(1, 1, dtype=DTYPE), backend=backend)
        return torch.autograd.grad(y.square().sum(), x)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        torch.testing.assert_close(gradient("auto"), gradient("naive"))


def test_a_mask_leaves_what_is_no_number():
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.scaled_dot_product_attention(h, x, h, torch.eye(3, dtype=torch.bool)), h + 0.0

    x, h = torch.randn(2, 1, 3, 4, dtype=DTYPE), torch.randn(1, 3, 4, dtype=DTYPE)
    x[0, 0, 1] = torch.nan
    ours, plain = (recurrent(step, x, h, backend=name)[0] for name in ("eager", "naive"))
    torch.testing.assert_close(ours, plain, equal_nan=True)


def test_convolutions_of_groups_and_of_the_same_size():
    one, each, few = (
        torch.randn(shape, dtype=DTYPE, requires_grad=True) for shape in ((4, 4, 3), (8, 1, 3), (2, 2, 3))
    )
    bias = torch.randn(8, dtype=DTYPE, requires_grad=True)

    def convolved(x: Tensor) -> Tensor:
        x = F.conv1d(x, one, padding="same", dilation=2)
        y = F.conv1d(x, each, bias, groups=4, padding=1)
        z = F.conv1d(x, few, bias[:2], groups=2, padding="valid")
        return torch.cat([y.flatten(1), z.flatten(1)], 1)

    same(convolved, (4, 5), [one, each, few, bias])


def test_distances_and_bilinear_forms():
    w = torch.randn(3, 2, 4, dtype=DTYPE, requires_grad=True)
    bias = torch.randn(3, dtype=DTYPE, requires_grad=True)
    points = torch.randn(2, 4, dtype=DTYPE, requires_grad=True)

    def apart(x: Tensor) -> Tensor:
        a, b = x.split([2, 4], 1)
        pairs = b.reshape(-1, 2, 2)
        among = torch.cdist(pairs, pairs)  # no distance, and no gradient, of a point to itself
        to = torch.cdist(b[:, None], points.expand(x.shape[0], -1, -1), p=1.0)
        return torch.cat([F.bilinear(a, b, w, bias), among.flatten(1), to.flatten(1)], 1)

    same(apart, (6,), [w, bias, points])
