"""A reentrant checkpoint takes and gives the gradients of tensors alone: LoDTensors are told so, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from stepnet import LoDTensor, Recurrent
from stepnet.errors import LoDError

BACKEND = "eager"
MESSAGE = r"(?s)use_reentrant=True gives no gradients to LoDTensors.*remedy: +use_reentrant=False; or"


def given() -> tuple[nn.Module, Callable[..., LoDTensor], Tensor]:
    torch.manual_seed(0)
    values = torch.randn(6, 3, requires_grad=True)

    def x(scale: float = 2.0) -> LoDTensor:
        return LoDTensor.from_lengths(values * scale, [[2, 0, 4]])

    return Recurrent(nn.GRUCell(3, 3)), x, torch.zeros(3, 3, requires_grad=True)


CALLS: dict[str, Callable[[nn.Module, LoDTensor, Tensor], Any]] = {
    "x": lambda rnn, x, _: checkpoint(lambda x: rnn(x)[0], x, use_reentrant=True),
    "x and a state": lambda rnn, x, h: checkpoint(rnn, x, h, use_reentrant=True),
    "x without gradients, a state": lambda rnn, x, h: checkpoint(rnn, x.detach(), h, use_reentrant=True),
    "in a tuple": lambda rnn, x, h: checkpoint(lambda x, h: rnn(x[0], h)[1], (x,), h, use_reentrant=True),
    "a wrapped module": lambda rnn, x, h: checkpoint_wrapper(rnn, CheckpointImpl.REENTRANT)(x, h),
}


@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:Please specify CheckpointImpl:FutureWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_lod_tensor_is_no_argument_of_one(call: Callable[..., Any]) -> None:
    rnn, x, h = given()
    with pytest.raises(LoDError, match=MESSAGE):
        call(rnn, x(), h)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_without_gradients_it_is() -> None:
    rnn, x, h = given()
    with torch.no_grad():
        found = checkpoint(rnn, x(), h.detach(), use_reentrant=True)
    assert isinstance(found, tuple)
    torch.testing.assert_close(found[0].values, rnn(x(), h)[0].values)


def test_trees_inside_of_one_may_hold_them() -> None:
    """Those that the checkpointed code makes itself pass gradients as ever."""
    rnn, x, h = given()

    def inside(values: Tensor, h: Tensor) -> Tensor:
        scaled = tree_map(lambda t: t * 2, [x(1.0).with_values(values)])
        return tree_map(lambda t: t + 1, rnn(scaled[0], h)[0]).values

    rows = x().values.detach().requires_grad_()
    y, expected = checkpoint(inside, rows, h, use_reentrant=True), inside(rows, h)
    assert isinstance(y, Tensor)
    y.sin().sum().backward()
    found = [rows.grad, h.grad, *(p.grad for p in rnn.parameters())]
    expected = torch.autograd.grad(expected.sin().sum(), [rows, h, *rnn.parameters()])
    torch.testing.assert_close(found, [*expected])
