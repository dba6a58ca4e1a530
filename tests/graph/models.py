"""What tests of graphs share: batches, and a comparison of a compiled model with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stepnet import LoDTensor
from stepnet.data.tree import flatten

LENGTHS = ([2, 5], [3, 0, 1, 4], [4, 2, 7], [6, 2])


def leaves_of(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    leaves = flatten(result)[0]
    tables = [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves]
    return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in tables]


def ragged(lengths: Sequence[int], features: int = 3) -> LoDTensor:
    """Random rows, double, that want a gradient."""
    rows = torch.randn(sum(lengths), features, dtype=torch.float64, requires_grad=True)
    return LoDTensor.from_lengths(rows, [lengths])


def packed(lengths: Sequence[int], features: int = 3, sort: bool = False) -> PackedSequence:
    """The same as a PackedSequence, which has no empty sequences."""
    lengths = sorted((max(n, 1) for n in lengths), reverse=True) if sort else [max(n, 1) for n in lengths]
    rows = [torch.randn(n, features, dtype=torch.float64) for n in lengths]
    made = pack_sequence(rows, enforce_sorted=sort)
    return made._replace(data=made.data.requires_grad_())


def dense(steps: int, n: int, features: int = 3) -> Tensor:
    return torch.randn(steps, n, features, dtype=torch.float64, requires_grad=True)


def gradients(model: nn.Module, call: Callable[..., Any], args: Sequence[Any]) -> list[Tensor | None]:
    """Values, then the gradients of the arguments and of the parameters."""
    outs = leaves_of(call(*args))
    wanted = [t for t in (*leaves_of(list(args)), *model.parameters()) if t.requires_grad]
    weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view_as(t) for t in outs]
    loss = torch.stack([(t * w).sum() for t, w in zip(outs, weights, strict=True)]).sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True) if torch.is_grad_enabled() else ()
    return [*(t.detach() for t in outs), *grads]


def assert_alike(model: nn.Module, compiled: Any, args: Sequence[Any]) -> None:
    """Values and gradients of a compiled model are those of the model."""
    expected, found = gradients(model, model, args), gradients(model, compiled, args)
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def assert_same_gradients(model: nn.Module, module: Any, args: Sequence[Tensor]) -> None:
    """As `assert_alike`, of a model as torch's own operators."""
    for a, b in zip(gradients(model, model, args), gradients(model, module, args), strict=True):
        # torch's loop gives zeros where no gradient is
        torch.testing.assert_close(b, torch.zeros_like(b) if a is None and b is not None else a)


def state(n: int, *sizes: int) -> Tensor:
    """A random state that wants a gradient."""
    return torch.randn(n, *(sizes or (4,)), dtype=torch.float64, requires_grad=True)
