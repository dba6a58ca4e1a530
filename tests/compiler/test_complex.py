"""Complex states, inputs and weights: pairs of real numbers in the graph, complex numbers outside."""

from __future__ import annotations

import operator

import pytest
import torch

from covering import few
from plans import ops, plan_of
from stepnet import LoDTensor, recurrent
from stepnet.errors import Unsupported
from stepnet.testing import check_step

C = torch.complex128
W = torch.randn(4, 4, dtype=C, generator=torch.Generator().manual_seed(2)).requires_grad_()
PAIRS = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
TURN = torch.polar(torch.ones(4, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64))


def everything(x, h):
    z = 0.3 * (h * TURN + x)
    arithmetic = (
        z * x + z.conj() + z.real * 1j - z / (x + 2) + 1 / (z + 3) + z**2 + z**3 + z**0.3 - 2 * z.imag
    )
    functions = (
        z.exp() + z.sin() + z.cos() + z.sqrt() + z.log() + z.tanh() + torch.sigmoid(z) + z.sgn() + z.sinh()
    )
    products = z @ W + torch.einsum("bi,ij->bj", x, W.conj()) + torch.einsum("bi,bj->bij", z, x).sum(-1)
    moved = torch.cat([z, x], 1).flip(1)[:, ::2] + torch.stack([z, x], 1).mean(1) + z[:, :1].expand(-1, 4)
    chosen = torch.where(z.real > 0, z, x) + torch.polar(z.abs(), x.angle()) + torch.view_as_complex(PAIRS)
    real = torch.view_as_real(z).sum(-1) + (z * x.conj()).real
    parts = arithmetic + functions + products + moved + chosen
    return (parts, real, z.abs()), 0.1 * parts + z


@pytest.mark.parametrize("backend", few(["c", "eager"], ["c"]))
def test_as_the_plain_loop(backend):
    torch.manual_seed(1)
    x = LoDTensor.from_lengths(torch.randn(8, 4, dtype=C, requires_grad=True), [[3, 0, 1, 4]])
    h = torch.randn(4, 4, dtype=C, requires_grad=True)
    (y, real, size), final = recurrent(everything, x, h, backend=backend)
    expected = recurrent(everything, x, h, backend="naive")
    ours = [y.values, real.values, size.values, final]
    plain = [*(t.values for t in expected[0]), expected[1]]
    assert [t.dtype for t in ours] == [t.dtype for t in plain]
    torch.testing.assert_close(ours, plain, rtol=1e-09, atol=1e-10)
    wanted = [x.values, h, W, PAIRS]
    losses = [sum(t.abs().square().sum() for t in some) for some in (ours, plain)]
    for a, b in zip(*(torch.autograd.grad(loss, wanted) for loss in losses), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def rotated(x, h):
    h = h * TURN + x @ W
    return h.real, h


def test_results_are_the_callers_own():
    x, h = torch.randn(5, 2, 4, dtype=C), torch.zeros(2, 4, dtype=C)
    check_step(rotated, x, h, weights={"W": W}, backend="c")
    y, final = recurrent(rotated, x, h, backend="c")
    before = final.clone()
    y.zero_()
    final += 1
    assert torch.equal(final, before + 1)
    again, other = recurrent(rotated, x, h.conj(), backend="c")
    assert other.dtype == C
    assert torch.equal(other, before)
    assert again.any()


def test_a_gradient_of_a_gradient():
    x, h = torch.randn(3, 2, 4, dtype=C, requires_grad=True), torch.zeros(2, 4, dtype=C)

    def penalty(backend):
        y, _ = recurrent(rotated, x, h, backend=backend)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.abs().square().sum(), x)[0]

    torch.testing.assert_close(penalty("c"), penalty("naive"))


def s5(x, h):
    """Real rows times a complex matrix, of whose product with another one the real part comes out."""
    h = h * TURN + x.to(W.dtype) @ W
    return (h @ W.T).real, h


def test_parts_that_nobody_reads_and_products_with_zeros_are_not_made():
    loop = plan_of(s5, torch.randn(3, 2, 4).double(), torch.zeros(2, 4, dtype=C))
    made = [op for half in (loop.forward, loop.backward) for op in ops(half)]
    assert (made.count("matmul"), made.count("matmul_tn")) == (6, 4)


@pytest.mark.parametrize("lost", few([torch.inf, torch.nan], [torch.inf]))
@pytest.mark.parametrize("place", ["x", "W", "y"])
def test_zeros_times_what_is_not_finite_are_no_zeros(place, lost):
    x = torch.randn(3, 2, 4, requires_grad=True, dtype=torch.double)
    weight, seed = W.detach().clone(), torch.ones(3, 2, 4).double()

    def step(x, h):
        h = 0.5 * h + x.to(weight.dtype) @ weight
        return (h @ weight.mT).real, h

    def found(backend):
        y, _ = recurrent(step, x, torch.zeros(2, 4, dtype=C), backend=backend)
        return [y, *torch.autograd.grad(y, [x, weight], seed)]

    weight.requires_grad_()
    found("c")  # holds its plan against the plain loop on these
    {"x": x.data[0, 0], "W": torch.view_as_real(weight.data)[0, :, 1], "y": seed[1, 0]}[place][1] = lost
    for ours, plain in zip(found("c"), found("naive"), strict=True):
        assert torch.equal(torch.view_as_real(ours + 0j).isnan(), torch.view_as_real(plain + 0j).isnan())
        torch.testing.assert_close(ours, plain, equal_nan=True)


def test_what_is_not_written_out_is_named():
    with pytest.raises(
        Unsupported, match=r"'linalg_inv_ex' of complex numbers is not compiled \(test_complex"
    ):
        recurrent(
            lambda x, h: (h, torch.linalg.inv(h + x)),
            torch.randn(3, 2, 2, 2, dtype=C),
            torch.eye(2, dtype=C).expand(2, 2, 2).clone(),
            backend="c",
        )


OPERANDS = {
    "rows": lambda x: torch.complex(x, x + 1),
    "real rows": lambda x: x.abs() + 0.5,
    "shared": lambda x: W[:3],
    "real and shared": lambda x: W[:3].abs() + 0.5,
    "real number": lambda x: 1.5,
    "number": lambda x: -0.5 + 0.25j,
}


@pytest.mark.parametrize("op", few(["add", "sub", "mul", "truediv", "pow"], ["truediv"]))
def test_operands_of_any_kind(op):
    """What rows share and numbers, too, on either side."""

    def step(x, s):
        given = {name: make(x) for name, make in OPERANDS.items()}
        pairs = [(a, b) for a in given for b in given if "rows" in a + b]
        out = [getattr(operator, op)(given[a], given[b]) for a, b in pairs]
        return [torch.view_as_real(torch.complex(v, v) if v.is_floating_point() else v) for v in out], s + x

    x, s = torch.randn(3, 2, 3, 4, dtype=torch.double, requires_grad=True), torch.zeros(2, 3, 4).double()
    ours, plain = (recurrent(step, x, s, backend=backend)[0] for backend in ("c", "naive"))
    torch.testing.assert_close(ours, plain)
    found = [torch.autograd.grad(sum(y.cos().sum() for y in part), [x, W]) for part in (ours, plain)]
    torch.testing.assert_close(*found)


def test_powers_and_exponentials_of_special_values():
    some = torch.tensor([0.0, -0.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan], dtype=torch.double)
    z = torch.complex(*torch.meshgrid(some, some, indexing="ij"))[None, None]
    s = torch.full((1, 7, 7), 0.5 + 2j, dtype=C)

    def step(z, s):
        y = z.exp(), z**0.0, z ** (1 + 1j), (1.5 + 1j) ** z, s**z, z**s
        return torch.stack([torch.view_as_real(v) for v in y]).movedim(0, 1), s * 1

    recurrent(step, torch.randn_like(z), s, backend="c")  # holds its plan against the plain loop on these
    ours, plain = (recurrent(step, z, s, backend=backend)[0][0, 0] for backend in ("c", "naive"))
    torch.testing.assert_close(ours[:2], plain[:2], equal_nan=True)
    there = plain.isfinite() & z[0, 0, ..., None].isfinite()  # of others it depends on how products are made
    torch.testing.assert_close(ours[there], plain[there])


PICKS = {
    "table[i]": lambda table, i: table[i],
    "table[i, j]": lambda table, i: table[i, i % 4],
    "table[:, j]": lambda table, i: table[:, i % 4].sum(0),
    "index_select": lambda table, i: table.index_select(0, i),
    "conjugate": lambda table, i: table.conj()[i],
}


@pytest.mark.parametrize("pick", PICKS)
def test_a_table_by_an_index_of_each_row(pick):
    """As of the angles of rotary embeddings, by the position that a state counts."""
    table = torch.randn(6, 4, dtype=C, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def step(x, state):
        h, at = state
        turned = torch.view_as_complex(x) * PICKS[pick](table, at).reshape(at.shape[0], -1) + 0.3 * h
        return torch.view_as_real(turned), (turned, (at + 1) % 6)

    generator = torch.Generator().manual_seed(4)
    x = torch.randn(7, 3, 4, 2, dtype=torch.float64, generator=generator).requires_grad_()
    state = torch.zeros(3, 4, dtype=C), torch.tensor([0, 5, 2])
    check_step(step, x, state, weights={"table": table}, backend="c")
