"""Steps that are one tensor: taken apart when one of them is asked for, copied when all of them are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepnet.data.on_meshes import whole_along


class Steps:
    """Values of consecutive places, as one tensor [steps, ...]. `computed`: by a loop, one by one as far
    as its caller knows, who may change each of them in place."""

    def __init__(self, tensor: Tensor, *, computed: bool = False) -> None:
        self._tensor, self.computed = tensor, computed
        self._grad = torch.is_grad_enabled()

    def whole(self) -> Tensor:
        """The tensor, to be read."""
        return self._tensor

    def apart(self) -> Sequence[Tensor]:
        """The steps, one by one."""
        with torch.set_grad_enabled(self._grad):
            return whole_along(self._tensor, 0).unbind(0)

    def by_itself(self, step: Tensor) -> Tensor:
        """One of the steps as a tensor that autograd lets be changed in place."""
        with torch.set_grad_enabled(self._grad):
            return step.clone()

    def joined(self) -> Tensor:
        """The steps as a tensor of the caller's own, to write to, by numpy, too."""
        return self._tensor.clone(memory_format=torch.contiguous_format)
