"""Whether what is computed again for its gradient gives what it gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from stepnet.data.lod import LoDTensor
from stepnet.data.modes import outside_modes
from stepnet.data.tree import flatten
from stepnet.errors import StepError

_R = TypeVar("_R")


def checkpointed(
    what: str, run: Callable[..., _R], *inputs: Any, results: Callable[[_R], Any] = lambda out: out
) -> _R:
    """What a run gives, which autograd records in backward, in a second run.

    Args:
        what: who runs, for the error.
        run: called twice, or more often, with the inputs.
        results: what is to be the same each time, of what it gives.

    Raises:
        StepError: it calls a transform of torch.func; or in backward: it gives other numbers then.
    """
    first: list[Tensor] | None = None

    def held(*inputs: Any) -> _R:
        nonlocal first
        out = run(*inputs)
        numbers = _numbers_of(results(out))
        if first is None:
            first = numbers
        elif len(first) != len(numbers) or not all(map(_about, first, numbers)):
            raise StepError(
                f"{what} gives other numbers when it is computed again for its gradient",
                remedy="carry as state what it keeps from call to call, in an attribute or a list; go "
                "backward where its weights are those of the call (torch.func.functional_call puts others "
                "in their place while it runs); or leave out checkpoint=",
            )
        return out

    with set_checkpoint_early_stop(False):  # each run is held against the first at its end
        try:
            made: Any = checkpoint(held, *inputs, use_reentrant=False)
        except RuntimeError as error:
            if "support saved tensor hooks" not in str(error):
                raise
            raise StepError(
                f"{what} calls a transform of torch.func, which torch does not run under a checkpoint",
                got=str(error).splitlines()[0],
                remedy="leave out checkpoint=",
            ) from error
    return made


def _numbers_of(results: Any) -> list[Tensor]:
    """Of each tensor the sum, and that of sizes: enough to tell results apart, without keeping them."""
    leaves = (leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(results)[0])
    return [_sums(leaf) for leaf in leaves if type(leaf) is Tensor and not leaf.is_meta]


@outside_modes
def _sums(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        wide = tensor.detach().double()
        return torch.stack([wide.sum(), wide.abs().sum()])


@outside_modes
def _about(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(a[1].nan_to_num()), equal_nan=True)
