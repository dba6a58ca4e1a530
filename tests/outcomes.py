"""What a recurrence gives, and the gradients of all that it is given, beside those of the plain loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, recurrent
from stepnet.data.tree import by_leaf, flatten


def tensors(tree: Any) -> list[Tensor]:
    """The leaves of a nesting, LoDTensors as their rows."""
    return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(tree)[0]]


def wanting(tree: Any) -> Any:
    """A nesting of the same numbers, which want gradients."""

    def own(leaf: Any) -> Any:
        if isinstance(leaf, LoDTensor):
            return leaf.with_values(own(leaf.values))
        return leaf.detach().clone().requires_grad_(leaf.is_floating_point() or leaf.is_complex())

    return by_leaf(own, tree)


def weighed(outputs: Iterable[Tensor]) -> Tensor:
    """A sum of all numbers, each times a number of its own, the same for the same shapes."""
    draw, total = torch.Generator().manual_seed(3), torch.zeros((), dtype=torch.float64)
    for t in outputs:
        weight = torch.randn(t.shape, generator=draw, dtype=torch.float64)
        if t.requires_grad:
            total = total + ((t.abs().square() if t.is_complex() else t) * weight).sum()
    return total


def gradients(outputs: Iterable[Tensor], inputs: Sequence[Tensor], **how: Any) -> list[Tensor]:
    """Of such a sum; zeros where nothing depends on an input."""
    total = weighed(outputs)
    if not total.requires_grad:
        return [torch.zeros_like(v) for v in inputs]
    return list(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True, **how))


def outcome(
    step: Any, x: Any, state: Any, backend: Any = None, *, weights: Sequence[Tensor] = (), **how: Any
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The leaves of y and of the final state, and the gradients of x, of the state, of what is static and of
    the weights, to which those of a module belong. None where nothing depends on an input."""
    y, final = recurrent(step, x, state, backend=backend, **how)
    results = tensors((y, final))
    own = list(step.parameters()) if isinstance(step, nn.Module) else []
    given = (*tensors((x, state, how.get("static"))), *own, *weights)
    wanted = [t for t in given if t.requires_grad]
    total = weighed(results)
    found = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else ()
    return [t.detach() for t in results], list(found)


def same(
    ours: Sequence[Tensor | None], plain: Sequence[Tensor | None], rtol: float = 1e-9, atol: float = 1e-10
) -> None:
    """Both have the same numbers, and None in the same places."""
    for a, b in zip(ours, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def as_the_plain_loop(
    step: Any, x: Any, state: Any, backend: str = "c", *, rtol: float = 1e-9, atol: float = 1e-10, **how: Any
) -> None:
    """A recurrence gives the results and gradients of the plain loop."""
    ours, plain = (outcome(step, x, state, name, **how) for name in (backend, "naive"))
    for mine, other in zip(ours, plain, strict=True):
        same(mine, other, rtol, atol)


def of_sequences(step: Any, x: Any, state: Any, backend: Any = None) -> list[Any]:
    """Values, and gradients of all that a step may be given, over sequences of 2, of no and of 3 rows."""
    rows, state = wanting((LoDTensor.from_lengths(x, [[2, 0, 3]]), state))
    values, grads = outcome(step, rows, state, backend)
    return [*values, *grads]
