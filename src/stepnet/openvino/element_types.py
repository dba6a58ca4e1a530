"""Element types of OpenVINO IR: their names in attributes and on ports, and what torch calls them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepnet.errors import IRError
from stepnet.file_model import NotRead, shorten


@dataclass(frozen=True)
class ElementType:
    """One element type: `f32` in attributes, `FP32` on ports, torch.float32, 32 bits. Of less than a byte are
    constants alone; torch has them in a type of 8 bits, or as the numbers of `table` that they stand for, as
    it has powers of two of a byte."""

    name: str
    precision: str
    dtype: torch.dtype
    bits: int
    table: tuple[float, ...] = ()

    @property
    def of_constants(self) -> bool:
        """Whether constants alone are of it."""
        return self.bits < 8 or bool(self.table)

    def bytes(self, count: int) -> int:
        """The size of so many numbers in the .bin file."""
        return -(-count * self.bits // 8)


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)  # fmt: skip
_E8M0 = (*(2.0 ** (k - 127) for k in range(255)), float("nan"))
ELEMENT_TYPES = (
    ElementType("f64", "FP64", torch.float64, 64),
    ElementType("f32", "FP32", torch.float32, 32),
    ElementType("f16", "FP16", torch.float16, 16),
    ElementType("bf16", "BF16", torch.bfloat16, 16),
    ElementType("i64", "I64", torch.int64, 64),
    ElementType("i32", "I32", torch.int32, 32),
    ElementType("i16", "I16", torch.int16, 16),
    ElementType("i8", "I8", torch.int8, 8),
    ElementType("u8", "U8", torch.uint8, 8),
    ElementType("boolean", "BOOL", torch.bool, 8),
    ElementType("u16", "U16", torch.uint16, 16),
    ElementType("u32", "U32", torch.uint32, 32),
    ElementType("u64", "U64", torch.uint64, 64),
    ElementType("f8e4m3", "F8E4M3", torch.float8_e4m3fn, 8),
    ElementType("f8e5m2", "F8E5M2", torch.float8_e5m2, 8),
    ElementType("f8e8m0", "F8E8M0", torch.float32, 8, _E8M0),
    ElementType("i4", "I4", torch.int8, 4),
    ElementType("u4", "U4", torch.uint8, 4),
    ElementType("nf4", "NF4", torch.float32, 4, _NF4),
    ElementType("f4e2m1", "F4E2M1", torch.float32, 4, _E2M1 + tuple(-v for v in _E2M1)),
    ElementType("u2", "U2", torch.uint8, 2),
    ElementType("u1", "U1", torch.uint8, 1),
)
_BY_NAME = {t.name: t for t in ELEMENT_TYPES} | {"bool": ELEMENT_TYPES[9]}
_BY_PRECISION = {t.precision: t for t in ELEMENT_TYPES} | {"BIN": ELEMENT_TYPES[-1]}
_BY_DTYPE = {t.dtype: t for t in reversed(ELEMENT_TYPES)}
_NOT_READ = {"u6", "u3", "string", "dynamic", "undefined"}


def by_name(name: str, where: str, attribute: str = "element_type") -> ElementType:
    """The type that an attribute names.

    Raises:
        IRError: it is unknown, or one that is not read.

    >>> by_name("f16", "layer 3").dtype
    torch.float16
    """
    found = _BY_NAME.get(name.strip().lower())
    if found is None:
        raise _not_read(f"{where}: {attribute}", name, [t.name for t in ELEMENT_TYPES])
    return found


def by_precision(name: str, where: str) -> ElementType:
    """The type that a port's `precision` names, in its own words or those of attributes.

    Raises:
        IRError: it is unknown.
    """
    name = name.strip()
    found = _BY_PRECISION.get(name.upper(), _BY_NAME.get(name))
    if found is None:
        raise _not_read(f"{where}: precision", name, [t.precision for t in ELEMENT_TYPES])
    return found


def by_dtype(dtype: torch.dtype) -> ElementType | None:
    """The type that torch's dtype is, None if IR has no such type here."""
    return _BY_DTYPE.get(dtype)


def _not_read(what: str, name: str, read: list[str]) -> IRError:
    """The error of a type that is not one of those that are read."""
    known = name.lower() in _NOT_READ or name.lower().startswith(("f8", "f4"))
    text = f"{what} {shorten(name, 40)} is {'not supported' if known else 'unknown'}"
    return NotRead(text, got=shorten(name, 40), expected=", ".join(read))
