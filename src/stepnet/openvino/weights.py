"""The .bin file: constants as tensors that share its memory map."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import Broken, CutOff, TooLarge, opened

from .element_types import ElementType
from .reader import declared_type
from .records import Layer, Shape

# More bytes than any machine has: a shape that asks for it is wrong, and is refused before anything is made.
MOST_BYTES = 2**40


class Weights:
    """Constants by their place in the file. Equal places give the same tensor.

    A constant is a view of a private, copy-on-write map of the file, so nothing is read before it is used.
    Only one that is not aligned, or holds truth values, is copied.
    """

    def __init__(self, path: Path | None) -> None:
        self.name = "(no .bin file)" if path is None else path.name
        self.length = 0
        self._map: mmap.mmap | None = None
        self._made: dict[tuple[ElementType, Shape, int], Tensor] = {}
        self._converted: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        if path is None:
            return
        with opened(path, "the .bin file") as file:
            self.length = file.seek(0, 2)
            if self.length:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled and copied with the constants that were read, without the file."""
        return {**vars(self), "_map": None, "_converted": {}}

    def constant(self, layer: Layer) -> Tensor:
        """The tensor of a Const layer.

        Raises:
            IRError: offset, size, shape and type do not fit together or do not lie in the file.
        """
        if layer.value is not None:
            return layer.value
        if len(layer.outputs) != 1:
            raise Broken(f"{layer.where}: must have one output", got=len(layer.outputs), expected=1)
        attributes = layer.said
        offset, size = attributes.size("offset"), attributes.size("size")
        element_type, shape = _declared(layer)
        if any(d < 0 for d in shape):
            raise Broken(
                f"{layer.where}: a constant has no dynamic dimension", got=_text(shape), expected="sizes >= 0"
            )
        needed = element_type.bytes(math.prod(shape))
        if size != needed and (needed, size) != (0, 1):  # OpenVINO writes one byte for none
            raise CutOff(
                f"{layer.where}: size {size} does not match element_type x shape",
                got=f"size={size}",
                expected=f"{_amount(needed)} bytes for {element_type.name} [{_text(shape)}]",
            )
        if offset + size > self.length:
            raise CutOff(
                f"{layer.where}: offset + size {offset + size} exceeds the .bin length {self.length}",
                got=f"{self.name} has {self.length} bytes",
                expected=f"at least {offset + size} bytes (offset {offset} + size {size})",
            )
        key = (element_type, shape, offset)
        if key not in self._made:
            self._made[key] = self._view(element_type, shape, offset)
        return self._made[key]

    def converted(
        self, source: Tensor, dtype: torch.dtype, convert: Callable[[Tensor, torch.dtype], Tensor]
    ) -> Tensor:
        """A constant in another element type; the same tensor for the same source."""
        key = (id(source), dtype)
        if key not in self._converted:
            self._converted[key] = (source, convert(source, dtype))
        return self._converted[key][1]

    def _view(self, element_type: ElementType, shape: Shape, offset: int) -> Tensor:
        count = math.prod(shape)
        if count == 0 or self._map is None:
            return torch.empty(shape, dtype=element_type.dtype)
        size = element_type.bytes(count)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)
        if element_type.of_constants:
            return _unpacked(flat, element_type)[:count].reshape(shape)
        if element_type.dtype is torch.bool:
            return (flat != 0).reshape(shape)
        if offset % element_type.dtype.itemsize:
            flat = flat.clone()
        return flat.view(element_type.dtype).reshape(shape)


def _unpacked(packed: Tensor, element_type: ElementType) -> Tensor:
    """Numbers of a byte or less: the first in the lowest bits, single bits the other way round."""
    bits = element_type.bits
    places = torch.arange(0, 8, bits, dtype=torch.uint8)
    parts = (packed.unsqueeze(1) >> (places.flip(0) if bits == 1 else places)) & (2**bits - 1)
    if element_type.table:
        return torch.tensor(element_type.table, dtype=element_type.dtype)[parts.reshape(-1).int()]
    flat = parts.reshape(-1).view(element_type.dtype)
    return flat if element_type.dtype is torch.uint8 else torch.where(flat < 8, flat, flat - 16)


def _declared(layer: Layer) -> tuple[ElementType, Shape]:
    """Type and shape, from the attributes or from the port."""
    element_type, attributes = declared_type(layer), layer.said
    shape = tuple(attributes.ints("shape")) if "shape" in attributes else layer.outputs[0].shape or ()
    check_rank(shape, layer.where)
    return element_type, shape


def _text(shape: Shape) -> str:
    return "x".join("?" if d == -1 else str(d) for d in shape[:12]) + ("..." if len(shape) > 12 else "")


def _amount(number: int) -> str:
    return str(number) if number < 10**30 else f"about 10^{len(str(number)[:4000]) - 1}"


def check_rank(shape: Shape, where: str) -> None:
    """Refuse more dimensions than torch has.

    Raises:
        IRError: there are more than 64.
    """
    if len(shape) > 64:
        raise TooLarge(f"{where}: has {len(shape)} dimensions", got=len(shape), expected="at most 64")


def check_bytes(shape: Shape | torch.Size, size: int, where: str) -> None:
    """Refuse a tensor that no machine can hold.

    Raises:
        IRError: its static dimensions ask for more than `MOST_BYTES`.
    """
    count = math.prod(d for d in shape if d >= 0)
    if count * size > MOST_BYTES:
        raise TooLarge(
            f"{where}: shape {_text(tuple(shape))} is too large, {_amount(count)} elements",
            got=f"{_amount(count * size)} bytes",
            expected=f"at most {MOST_BYTES} bytes",
        )
