"""How rows are multiplied by a matrix, for each type of their elements."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .cpu import has_pairs, has_tiles

_HERE = Path(__file__).parent
_LANES_BYTES = 64  # of the widest vectors; narrower ones need no more
# Bytes of what a thread's products stand in, of which its stack may have too few: see `sn_pairs.h` and, over
# rows, `sn_over_rows.h`.
ROOM, OVER_ROOM = 425_984, 557_056


@dataclass(frozen=True)
class Product:
    """One element type: what its functions in C are called, and what they are given.

    Attributes:
        suffix: of `sn_pack_*`, `sn_packed_*` and `sn_matmul_*`.
        rows: of `sn_rows_*`.
        element: the C type of rows and of the matrix.
        bytes: of an element.
        sums: the suffix of the type that results have.
        sum_bytes: of such a number.
        depth: the rows of a packed matrix are filled up to a multiple of it.
        is_split: whether its functions are told into how many numbers of 16 bits to split an element.
    """

    suffix: str
    rows: str
    element: str
    bytes: int
    sums: str
    sum_bytes: int
    depth: int = 1
    is_split: bool = False

    def packed_bytes(self, k: int, n: int, split: int = 0) -> int:
        """The most that a packed matrix [k, n] takes, on any machine.

        >>> BY_DTYPE["bfloat16"].packed_bytes(33, 16), BY_DTYPE["float32"].packed_bytes(33, 16)
        (2048, 2112)
        """
        lanes = _LANES_BYTES // self.sum_bytes
        deep = -(-k // self.depth) * self.depth * self.bytes
        if self.is_split and split:
            deep += split * BY_DTYPE["bfloat16"].packed_bytes(k, 1) // lanes + self.bytes
        return deep * -(-n // lanes) * lanes

    # What generated code writes; a->split is the number of this call.

    @property
    def last(self) -> str:
        """The last argument of what packs."""
        return ", a->split" if self.is_split else ""

    @property
    def has_room(self) -> bool:
        """Whether what multiplies is given ROOM bytes of its thread."""
        return self.suffix != self.sums

    @property
    def last_of_product(self) -> str:
        """The last arguments of what multiplies."""
        return f"{self.last}, sn_room" if self.has_room else self.last

    def packed(self, k: int, n: int) -> str:
        """The elements of a packed matrix [k, n]."""
        return f"sn_packed_{self.suffix}({k}, {n}{self.last})"

    @property
    def needs(self) -> tuple[str, ...]:
        """The suffixes of those whose C it stands on, the first ones first."""
        if not self.is_split:
            return () if self.suffix == self.sums else (self.sums,)
        return ("f32", "bf16") if has_pairs() or has_tiles() else ("f32",)

    @property
    def text(self) -> str:
        """The C of it, behind `common` and that of what it needs."""
        if self.is_split:
            return split(is_fast="bf16" in self.needs)
        if self.suffix == self.sums:
            head = f"#define SN_REAL {self.element}\n#define SN_(name) name##_{self.suffix}"
            text = _file("sn_matmul.h", _HERE.parent)
            for name in ("sn_turn.h", "sn_over_steps.h"):
                text = text.replace(f'#include "{name}"\n', _file(name, _HERE.parent))
            return f"{head}\n{text}"
        return paired(tiles=1 if has_tiles() else 0)

    @property
    def object_text(self) -> str:
        """The source of an object file that holds its larger functions, and those of threads."""
        if not self.needs:
            names = ("sn_library.h", "sn_parallel.h", "sn_scan.h")
            needs = "\n".join(_file(name, _HERE.parent) for name in names)
            return f"#define SN_BUILT_ONCE\n{needs}\n{self.text}"
        others = "\n".join(BY_SUFFIX[suffix].text for suffix in self.needs)
        return (
            f"{common()}\n#define SN_LINKED\n{others}\n#undef SN_LINKED\n#define SN_BUILT_ONCE\n{self.text}"
        )


def paired(tiles: int) -> str:
    """The C of products of bfloat16. `tiles`: 0 without, 1 by the tile instructions of AMX, 2 by a twin."""
    pairs = _file("sn_pairs.h")
    pairs = pairs.replace('#include "sn_add_pairs.h"\n', _file("sn_add_pairs.h"))
    pairs = pairs.replace('#include "sn_widened.h"\n', "" if tiles else _file("sn_widened.h"))
    for name in ("sn_tiles.h", "sn_blocks.h"):
        pairs = pairs.replace(f'#include "{name}"\n', _file(name) if tiles else "")
    return f"#define SN_TILES {tiles}\n{pairs}"


def split(is_fast: bool) -> str:
    """The C of products of floats that may be split, behind that of floats, and of bfloat16 if `is_fast`."""
    return f"#define SN_SPLIT {int(is_fast)}\n{_file('sn_split.h')}"


def over_rows() -> str:
    """The C of products over rows by tiles, behind that of floats that are split."""
    return f"#define SN_OVER_ROOM {OVER_ROOM}\n{_file('sn_over_rows.h')}"


def over_vectors(dtype: str) -> str:
    """The C of products over rows by vectors, of float32 or bfloat16, behind that of floats."""
    if dtype == "float32":
        return f"#define SN_OVER_BF16 0\n{_file('sn_over_vectors.h')}"
    return f"#define SN_OVER_BF16 1\n{_file('sn_add_pairs.h')}\n{_file('sn_over_vectors.h')}"


def on_rows() -> str:
    """The C of all rows times a matrix in floats, behind that of floats."""
    return _file("sn_on_rows.h")


def common() -> str:
    """The C that all of it, and generated code, stands on: functions of numbers, and numbers of 16 bits."""
    files = _file("sn_library.h", _HERE.parent), _file("sn_math.h", _HERE.parent), _file("sn_half.h")
    return "\n".join((f"#define SN_ROOM {ROOM}", *files))


BY_DTYPE = {
    "float32": Product("split", "f32", "float", 4, "f32", 4, is_split=True),
    "float64": Product("f64", "f64", "double", 8, "f64", 8),
    "bfloat16": Product("bf16", "bf16", "uint16_t", 2, "f32", 4, depth=32),
}
_FLOATS = Product("f32", "f32", "float", 4, "f32", 4)
BY_SUFFIX = {product.suffix: product for product in (_FLOATS, *BY_DTYPE.values())}


def with_needs(suffixes: Iterable[str]) -> list[Product]:
    """The products of these suffixes, behind those they need."""
    wanted = [name for suffix in suffixes for name in (*BY_SUFFIX[suffix].needs, suffix)]
    return [BY_SUFFIX[suffix] for suffix in dict.fromkeys(wanted)]


@functools.cache
def _file(name: str, folder: Path = _HERE) -> str:
    return folder.joinpath(name).read_text("utf-8")
