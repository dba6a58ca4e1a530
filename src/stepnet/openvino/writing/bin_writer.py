"""The .bin file: where each constant goes, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

ALIGNMENT = 64  # of each constant: a multiple of every element's size, and a cache line
_SMALL = 4096  # bytes of whole numbers that are compared by value


class Constants:
    """Places for constants, in the order that they are asked for.

    Tensors that share their memory share their place, and so do small equal ones of whole numbers (axes and
    shapes). Floating-point tensors that merely are equal keep places of their own: a model that is read to
    be trained has one parameter for each place, and two layers that both start at zero are not tied.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[int, Tensor]] = []
        self._places: dict[object, int] = {}
        self._end = 0

    def place(self, tensor: Tensor) -> tuple[int, int]:
        """Offset and size of a tensor in bytes."""
        tensor = tensor.detach()
        size = tensor.numel() * tensor.element_size()
        if not size:
            return 0, 0
        key = _key(tensor, size)
        if key not in self._places:
            offset = -(-self._end // ALIGNMENT) * ALIGNMENT
            self._places[key] = offset
            self._tensors.append((offset, tensor))
            self._end = offset + size
        return self._places[key], size

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The file, piece by piece."""
        end = 0
        for offset, tensor in self._tensors:
            if offset > end:
                yield bytes(offset - end)
            piece = _bytes(tensor)
            yield piece
            end = offset + len(piece)


def _key(tensor: Tensor, size: int) -> object:
    if size <= _SMALL and not tensor.dtype.is_floating_point:
        return tensor.dtype, bytes(_bytes(tensor))
    return tensor.data_ptr(), tensor.dtype, tensor.numel(), _order(tensor)


def _order(tensor: Tensor) -> object:
    """What besides the address says which bytes are written: nothing if they lie in order."""
    return None if tensor.is_contiguous() else (tuple(tensor.shape), tensor.stride())


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in the order of its shape."""
    flat = tensor.cpu().contiguous().as_strided((tensor.numel(),), (1,))  # one number keeps any stride
    return flat.view(torch.uint8).numpy().data
