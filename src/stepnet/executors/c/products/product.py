"""How rows are multiplied by a matrix, for each type of their elements."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .cpu import has_tiles

_HERE = Path(__file__).parent
_LANES_BYTES = 64  # of the widest vectors; narrower ones need no more


@dataclass(frozen=True)
class Product:
    """One element type: what its functions in C are called, and what they are given.

    Attributes:
        suffix: of `sn_pack_*`, `sn_matmul_*` and `sn_rows_*`.
        element: the C type of rows and of the matrix.
        bytes: of an element.
        sums: the suffix of the type that results have.
        sum_bytes: of such a number.
        depth: the rows of a packed matrix are filled up to a multiple of it.
    """

    suffix: str
    element: str
    bytes: int
    sums: str
    sum_bytes: int
    depth: int = 1

    def deep(self, k: int) -> int:
        """The rows of a packed matrix of k rows.

        >>> BY_DTYPE["bfloat16"].deep(33), BY_DTYPE["float32"].deep(33)
        (64, 33)
        """
        return -(-k // self.depth) * self.depth

    def packed_bytes(self, k: int, n: int) -> int:
        """What a packed matrix [k, n] takes, on any machine."""
        lanes = _LANES_BYTES // self.sum_bytes
        return self.deep(k) * -(-n // lanes) * lanes * self.bytes

    @property
    def text(self) -> str:
        """The C of it, behind `common` and that of its sums."""
        if self.suffix == self.sums:
            head = f"#define SN_REAL {self.element}\n#define SN_(name) name##_{self.suffix}"
            return f"{head}\n{_file('sn_matmul.h', _HERE.parent)}"
        return paired(tiles=1 if has_tiles() else 0)

    @property
    def object_text(self) -> str:
        """The source of an object file that holds its larger functions."""
        if self.suffix == self.sums:
            return f"#define SN_BUILT_ONCE\n{self.text}"
        sums = _BY_SUFFIX[self.sums].text
        return f"{common()}\n#define SN_LINKED\n{sums}\n#undef SN_LINKED\n#define SN_BUILT_ONCE\n{self.text}"


def paired(tiles: int) -> str:
    """The C of products of bfloat16. `tiles`: 0 without, 1 by the tile instructions of AMX, 2 by a twin."""
    instructions = _file("sn_tiles.h") if tiles else ""
    pairs = _file("sn_pairs.h").replace('#include "sn_tiles.h"\n', instructions)
    return f"#define SN_TILES {tiles}\n{pairs}"


def common() -> str:
    """The C that all of it, and generated code, stands on: functions of numbers, and numbers of 16 bits."""
    return f"{_file('sn_math.h', _HERE.parent)}\n{_file('sn_half.h')}"


BY_DTYPE = {
    "float32": Product("f32", "float", 4, "f32", 4),
    "float64": Product("f64", "double", 8, "f64", 8),
    "bfloat16": Product("bf16", "uint16_t", 2, "f32", 4, depth=32),
}


_BY_SUFFIX = {product.suffix: product for product in BY_DTYPE.values()}


def with_sums(suffixes: Iterable[str]) -> list[Product]:
    """The products of these suffixes, behind those whose sums they need."""
    wanted = [_BY_SUFFIX[suffix] for suffix in suffixes]
    return list(dict.fromkeys(p for product in wanted for p in (_BY_SUFFIX[product.sums], product)))


@functools.cache
def _file(name: str, folder: Path = _HERE) -> str:
    return folder.joinpath(name).read_text()
