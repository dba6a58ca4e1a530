"""Arrays of numpy and sparse matrices that a step reads are constants of its plan, and part of its key."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from outcomes import as_the_plain_loop
from stepnet import LoDTensor, explain, recurrent
from stepnet.compiler.trace.untraced_constants import constant_of, unseen_are_constants
from stepnet.errors import Unsupported

D = torch.float64
ARRAY = np.random.default_rng(0).normal(size=(40, 40))  # more than a key holds
MATRIX = torch.tensor(ARRAY[:4, :4] * (ARRAY[4:8, :4] > 0))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that they are new
    CSR = MATRIX.to_sparse_csr()
SPARSE = {
    "coo": MATRIX.to_sparse_coo(),
    "csr": CSR,
    "some twice": torch.sparse_coo_tensor(
        [[0, 0, 3], [1, 1, 2]], torch.tensor([0.5, 1, 2], dtype=D), (4, 4), check_invariants=True
    ),
}


def given():
    torch.manual_seed(1)
    x, h = torch.randn(8, 4, dtype=D, requires_grad=True), torch.randn(4, 4, dtype=D, requires_grad=True)
    return LoDTensor.from_lengths(x, [[3, 0, 1, 4]]), h


def by_arrays(x, h):
    h = h @ torch.from_numpy(ARRAY)[:4, :4].to(x) + torch.as_tensor(ARRAY[0, :4]) + torch.tensor(ARRAY[1, :4])
    return h * ARRAY[0, 0], torch.tanh(h + x)


def by_sparse_matrices(x, h):
    coo, csr, twice = SPARSE.values()
    y = (
        torch.sparse.mm(coo, h.t()).t()
        + (csr @ x.mT).mT
        + torch.nn.functional.linear(x, csr, torch.ones(4, dtype=D))
        + torch.mm(twice, x.mT).T
    )
    return y, torch.tanh(h @ CSR + (coo.to_dense() @ h.unsqueeze(-1)).squeeze(-1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", [by_arrays, by_sparse_matrices], ids=lambda f: f.__name__)
def test_they_are_constants_of_a_plan_until_they_change(step):
    for change in (lambda: None, lambda: ARRAY.__imul__(1.1), lambda: SPARSE["coo"].values().mul_(1.1)):
        change()
        assert explain(step, *given()).executor == "c"
        as_the_plain_loop(step, *given(), atol=1e-9)


def test_a_write_into_one_is_left_to_the_plain_loop():
    def step(x, h):
        weight = torch.from_numpy(ARRAY)[:4, :4]
        weight += 0.5
        return h, torch.tanh(x + h @ weight)

    before = ARRAY.copy()
    with pytest.warns(UserWarning, match="plain loop"):
        recurrent(step, *given())
    np.testing.assert_allclose(ARRAY[:4, :4], before[:4, :4] + 4 * 0.5)


def test_what_is_no_product_is_left_to_the_plain_loop():
    def step(x, h):
        return h, torch.tanh(x + torch.hspmm(SPARSE["coo"], h.detach().mT).to_dense().mT)

    with pytest.warns(UserWarning, match="of a sparse matrix"):
        recurrent(step, *given())


def test_what_was_there_before_is_no_constant() -> None:
    """A tensor that the walk over what a step reads did not find, and that the step does not make."""
    there, made = torch.ones(2), torch.ones(2)
    with unseen_are_constants(True, [there]):
        with pytest.raises(Unsupported, match="could not be found again"):
            constant_of(there)
        assert torch.equal(constant_of(made), made)
        assert constant_of(made) is not made
    assert constant_of(there) is there
