"""permute_rows is a gather whose every derivative is a gather."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.permute import invert, permute_rows

ORDER = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3), (4, 0)], ids=str)
def test_values_and_gradients_are_those_of_index_select(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(shape, dtype=torch.float64)
    results = []
    for permuted in (permute_rows(x, ORDER), x.index_select(0, ORDER)):
        results.append((permuted, *torch.autograd.grad((permuted * weights).sum(), x)))
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_invert_undoes(rows):
    x, order = torch.randn(rows, 2), torch.randperm(rows)
    assert torch.equal(permute_rows(permute_rows(x, order), invert(order)), x)


# torch 2.6 warns of what its own gradcheck calls
@pytest.mark.filterwarnings("ignore:Please use .torch.vmap:FutureWarning")
def test_second_order_forward_mode_and_vmap():
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def cubed(x):
        return permute_rows(x, ORDER) ** 3

    assert torch.autograd.gradcheck(cubed, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(cubed, (x,))
    batch = torch.randn(5, 4, 2)
    assert torch.equal(torch.func.vmap(lambda row: permute_rows(row, ORDER))(batch), batch[:, ORDER])


def test_backward_gathers_and_never_adds_row_by_row():
    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def ops_of(permute):
        x = torch.randn(4, 2, requires_grad=True)
        with Names() as names:
            permute(x).sum().backward()
        return names.seen

    ours = ops_of(lambda x: permute_rows(x, ORDER))
    assert "index_select" in ours
    assert "index_add" not in ours
    assert "index_add" in ops_of(lambda x: x.index_select(0, ORDER))


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_tangent_is_permuted_like_its_rows(requires_grad):
    x, tangent = torch.randn(4, 2).requires_grad_(requires_grad), torch.randn(4, 2)
    with forward_ad.dual_level():
        permuted = forward_ad.unpack_dual(permute_rows(forward_ad.make_dual(x, tangent), ORDER))
        assert torch.equal(permuted.primal, x[ORDER])
        assert torch.equal(permuted.tangent, tangent[ORDER])
