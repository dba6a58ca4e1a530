"""What values are called in C, and where the row at hand of each stands."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepnet.executors.schedule import buffers
from stepnet.executors.schedule.program import Program
from stepnet.ir.agreement import INTEGERS
from stepnet.ir.graph import ITEM_SIZE, Node
from stepnet.ir.plan import LoopPlan

from .products import BY_DTYPE, Product
from .text import identifier

_LINE = 64  # bytes of a line of the cache
_MEET = 1024  # bytes: rows so far apart share a sixteenth of the places of the first cache, or fewer
# What is appended to the name of a value.
_DERIVED = re.compile(
    r"_(alike|at|boot|by\d|end|end_least|final|first|line|new|next|now|packed|part|place|row|rows|side|stride_[knh]|sum"
    r"|whole)$"
)

_STORED_AS = {"bool": "uint8_t", "bfloat16": "uint16_t", "float16": "uint16_t"}
HALVES = {"bfloat16": "bf16", "float16": "f16"}


class Places:
    """Names and buffers of a scan; `lines`, `here`, `pointers` and the `tables` that it reads or writes are
    those of the row function at hand, of which `lanes` rows go abreast.
    `features`: of a row, where a thread has those from f0 to f1; `turns`: whether threads take turns, and
    what steps hand on stands in rows of a chunk; `after`: whether the row function comes after a chunk."""

    def __init__(self, loop: LoopPlan, p: Program, features: int | None, turns: bool) -> None:
        self.p = p
        self.features, self.turns, self.after = features, turns, False
        self.real = {"float32": "float", "float64": "double"}[p.real]
        self.suffix = {"float32": "f32", "float64": "f64"}[p.real]
        self.outer = loop.body.producers
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.ahead = {node.output for node in p.early}
        self.made = buffers.makers(p)
        self.homes = buffers.homes(p)
        self.parts = buffers.parts(p)
        self.alone = self._alone()
        self.alike: dict[str, tuple[int, ...]] = {}  # memories of which the last lines may be alike
        self.lanes = 0
        self.lines: set[str] = set()
        self.here: set[str] = set()
        self.pointers: dict[str, str] = {}
        self.tables: dict[str, None] = {}

    def enter(self, nodes: Iterable[Node], lines: Iterable[str], lanes: int = 0) -> None:
        """Begin a row function: of one row, or of one in each of so many lanes."""
        self.here = {name for node in nodes for name in node.outputs}
        self.lines, self.lanes, self.pointers, self.tables = set(lines), lanes, {}, {}

    def c(self, value: str) -> str:
        """The C name of a value."""
        if value not in self.names:
            wanted = identifier(value)
            if _DERIVED.search(wanted):  # a state 'h_next' beside the next value of a state 'h'
                wanted += "_"
            while wanted in self.taken:
                wanted += "_"
            self.names[value] = wanted
            self.taken.add(wanted)
        return self.names[value]

    def ctype(self, value: str) -> str:
        """The C type a value is stored as."""
        dtype = self.p.value(value).dtype
        return f"{dtype}_t" if dtype in INTEGERS else _STORED_AS.get(dtype, self.real)

    def loaded(self, value: str, text: str) -> str:
        """A stored element as what C computes with."""
        suffix = HALVES.get(self.p.value(value).dtype)
        return text if suffix is None else f"sn_load_{suffix}({text})"

    def stored(self, value: str, text: str) -> str:
        """The way back; a number of 16 bits is rounded already."""
        suffix = HALVES.get(self.p.value(value).dtype)
        return text if suffix is None else f"sn_store_{suffix}({text})"

    def _alone(self) -> set[str]:
        """Products of single rows that nothing but row functions reads, in buffers."""
        p, nodes = self.p, (*self.p.nodes, *self.p.early, *self.p.late)
        read = {p.base(node.inputs[0]) for node in nodes if node.op == "matmul"}
        return {
            node.output
            for node in (*p.nodes, *p.early)
            if node.op == "matmul"
            and len(p.value(node.inputs[0]).shape) == 1
            and node.output not in read
            and self.homes[node.output] in (["scratch"], ["chunk"])
        }

    def apart(self, base: str) -> int:
        """Elements from one row of a buffer to the next. A product writes some columns of many rows at once:
        where these would meet in few places of the first cache, rows are a line further apart."""
        size = self.p.value(base).size
        far = size * self.size_of(base) % _MEET == 0 and size > 0
        return size + _LINE // self.size_of(base) if base in self.alone and far else size

    def product(self, matrix: str) -> Product:
        """How rows are multiplied by a matrix."""
        return BY_DTYPE[self.p.value(matrix).dtype]

    def shared(self, value: str) -> str:
        """The member that an element of a shared value is read from; a matrix's own member has strides."""
        return f"{self.c(value)}_whole" if value in self.p.matrices else self.c(value)

    def size_of(self, value: str) -> int:
        """Bytes of one stored element."""
        return ITEM_SIZE[self.p.value(value).dtype]

    def place(self, base: str) -> str:
        """The C name of the buffer a value is read from, before the row is chosen."""
        if base in self.made:
            home = self.homes[base][0]
            if home == "out":
                return f"a->{self.c(base)}"
            if home.startswith("next:"):
                return f"{self.c(home[5:])}_next"
            return f"{self.c(base)}_rows"
        if base in self.ahead:
            return f"{self.c(base)}_rows + before * {self.apart(base)}"
        if base in self.p.row_inputs:
            return f"a->{self.c(base)}"
        return self.c(base)  # a carried parameter

    def by_table(self, base: str) -> bool:
        """True if a value's rows stand in a table of all rows, not of the share's sequences."""
        if base in self.made:
            return self.homes[base][0] == "out"
        return base in self.p.row_inputs

    def pointer(self, base: str, home: str | None) -> str:
        """The C name of a pointer to the current row of a stored value; declared where it is first used."""
        c, size, kind = self.c(base), self.p.value(base).size, self.ctype(base)
        row, slot = ("chunk_row[r]", "r") if self.after else ("row[i]", "(before + i)")
        if base in self.lines and home is None:
            return f"{c}_line"
        if home is None and self.homes.get(base):
            home = self.homes[base][0]
        const = "" if base in self.made else "const "
        if base in self.p.shared:
            name, at = f"{c}_at", f"a->{self.shared(base)}"
        elif base in self.p.by_row:
            name, at = f"{c}_at", f"({const}{kind} *)a->{c}.packed"
        elif base in self.p.whole or base in self.p.totals:
            name, at = f"{c}_at", f"a->{c} + sn_number(&of, i) * {size}"
        elif home == "out" or base in self.p.row_inputs:
            name, at = f"{c}_at", f"a->{c} + {row} * {size}"
            self.tables[base] = None
        elif home is not None and home.startswith("next:"):
            name, at = f"{self.c(home[5:])}_new", f"{self.c(home[5:])}_next + i * {size}"
        elif base in self.ahead:
            name, at = f"{c}_at", f"{c}_rows + {slot} * {self.apart(base)}"
        elif home == "scratch":
            name, at = f"{c}_at", f"{c}_rows + {slot if self.turns else 'i'} * {self.apart(base)}"
        else:
            name, at = f"{c}_at", f"{c} + i * {size}"
        self.pointers[name] = f"{const}{kind} *restrict {name} = {at};"
        return name

    def is_shared(self, base: str) -> bool:
        """Whether a value is the same in all rows."""
        p = self.p
        return base in p.shared or base in p.by_row or base in p.places or self.constant(base) is not None

    def constant(self, base: str) -> float | None:
        """The number a value holds everywhere, if it is made by `full`."""
        if base in self.p.constants:
            return self.p.constants[base]
        node = self.outer.get(base)
        return node.attr("value") if node is not None and node.op == "full" else None


def padded(size: int) -> int:
    """A size or an address moved up to the next line of the cache."""
    return (size + 63) // 64 * 64
