"""Steps that are one tensor: taken apart when one of them is asked for, given away when all of them are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepnet.errors import ArrayError


class Steps:
    """Values of consecutive places, as one tensor [steps, ...].

    What `joined` gives is the caller's, to write to, as what torch.stack gives. Yet most often nobody needs
    the values again, and then no copy is made: one is made where they are asked for after that.

    Args:
        tensor: the steps.
        own: nobody else holds the tensor.
    """

    def __init__(self, tensor: Tensor, own: bool = False) -> None:
        self._tensor = tensor
        self._grad = torch.is_grad_enabled()
        # With a gradient, backward may need the tensor as it is; without versions, writes are not seen.
        self._free = own and not tensor.requires_grad and not tensor.is_inference()
        self._given: int | None = None  # the version of the tensor that was given away

    def whole(self) -> Tensor:
        """The tensor, to be read.

        Raises:
            ArrayError: it was given away, and then changed in place.
        """
        if self._given is not None and self._tensor._version != self._given:
            raise ArrayError(
                "TensorArray: what stack() gave was changed in place, and the array's values with it",
                remedy="write to a copy, stack().clone(), where the array is used again",
            )
        return self._tensor

    def apart(self) -> Sequence[Tensor]:
        """The steps, which stay as they are whatever happens to what was given away."""
        tensor = self.whole()
        if self._given is not None:
            tensor = self._tensor = tensor.clone()
            self._given = None
        self._free = False
        with torch.set_grad_enabled(self._grad):
            return tensor.unbind(0)

    def joined(self) -> Tensor:
        """The steps as a tensor of the caller's own."""
        tensor = self.whole()
        if not self._free:
            return tensor.clone(memory_format=torch.contiguous_format)
        self._free, self._given = False, tensor._version
        return tensor
