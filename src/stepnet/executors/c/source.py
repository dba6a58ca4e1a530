"""C for one scan: a function that runs all steps of a share of the sequences.

The text is written to be read: it is headed by the IR it came from, names are those of the IR, and each
stage says which nodes it computes. What is the same for all scans is in `scan.c.in`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.executors.schedule.abreast import Abreast, abreast
from stepnet.executors.schedule.features import Features
from stepnet.executors.schedule.loops import RowFunction, row_function
from stepnet.executors.schedule.over_steps import OverSteps
from stepnet.executors.schedule.program import Program, program
from stepnet.executors.schedule.turns import by_turns, waits_for_memory
from stepnet.executors.schedule.views import Access
from stepnet.ir.graph import Node
from stepnet.ir.plan import LoopPlan, Region
from stepnet.ir.text import print_name, print_region

from .expr import loop_text
from .library_calls import spare_bytes
from .limits import check
from .places import Places, padded
from .products import ROOM
from .template import fill
from .text import comment

# Bytes on the stack, of which threads may have little: of rows between the loops of a row function, and of
# sums. Bytes of such rows at all.
_MOST_STACK, _MOST_LINES = 1 << 14, 1 << 20


@dataclass(frozen=True)
class Field:
    """One member of the argument struct: what it is, and of which value."""

    role: str
    value: str
    text: str


@dataclass
class Source:
    """Generated C and how to call it.

    `fields` are the members of the argument struct after the fixed ones; `space` is the bytes of
    workspace a slot needs for n sequences: space[0] + n * space[1], and for each row of a chunk
    chunk_bytes, and index_bytes for each thread (both for each, where they take turns); `packed` are the
    matrices: name, heads, K, N. `late_bytes` of a row of a chunk are written by its steps and read by the
    products after them; `ahead_bytes` wait in a cache; `own_bytes` are for each thread, whatever it works on.
    """

    text: str
    program: Program
    fields: list[Field]
    space: tuple[int, int]
    packed: list[tuple[str, int, int, int]]
    chunk_bytes: int
    index_bytes: int
    late_bytes: int
    ahead_bytes: int
    own_bytes: int


FIXED = (
    "sequences", "shares", "steps", "stride", "slots", "chunk", "together", "split", "few", "start",
    "length", "order", "space", "space_bytes",
)  # fmt: skip
# Of a file, in `scan.c.in` and SN_RUN.
NAMES = ("arguments", "run_share", "pack", "run")
PACKED_ALONE = 1 << 18  # bytes of matrices that one thread packs faster than another one wakes


def write(
    loop: LoopPlan, region: Region, name: str, features: Features | None = None, turns: bool = False
) -> Source:
    """Generate C for a scan; with `features`, which threads split them; with `turns`, which they take.

    Raises:
        Unsupported: the scan holds what generated C does not do.
    """
    p = program(loop, region, check(loop, region))
    if not turns:
        return _Writer(loop, region, p, name, features, turns=False).write()
    taken, beside = by_turns(p)
    return _Writer(loop, region, taken, name, None, turns=True, ahead=waits_for_memory(p, beside)).write()


def text_of_part(text: str, number: int) -> str:
    """The text of a scan as it may stand in one file with others: its names end in a number."""
    names = "".join(f"#undef {name}\n#define {name} {name}_{number}\n" for name in NAMES)
    return names + text


class _Writer:
    def __init__(
        self, loop: LoopPlan, region: Region, p: Program, name: str, features: Features | None, turns: bool,
        ahead: bool = False,
    ) -> None:  # fmt: skip
        self.loop, self.region, self.p, self.name, self.features = loop, region, p, name, features
        self.ahead = ahead
        self.turns, self.alone = turns, turns or features is not None  # alone: no other has rows of a step
        self.w = Places(loop, p, features and features.count, turns)
        self.lying = {name for name in p.matrices if self._may_lie(name)}
        self.abreast: dict[str, int] = {}  # sums of rows that go abreast, and of how many
        self.line_bytes = self.spare_bytes = 0  # of a thread, for what is too large for its stack

    def write(self) -> Source:
        p, w = self.p, self.w
        carries = [self._own(self._rows(carry.parameter)) for carry in p.carries]
        held = [self._rows(name) for name in p.held]
        early = [self._rows(node.output) for node in p.early]
        stages, after = self._stages()
        with_slots = any("chunk_slot" in line for line in after)
        scratch = [self._rows(name) for name, homes in w.homes.items() if homes == ["scratch"]]
        sums, sum_bytes = self._parts()
        for rows, node in zip(early, p.early, strict=True):
            rows["product"] = self._matmul_of_chunk(node)
        for rows in (*early, *scratch):
            rows["rows"] = "count * a->chunk" if self.turns or rows in early else "count"
            rows["copies"] = " * members" if self.turns else ""
            rows["mine"] = f" + member * count * a->chunk * {rows['n']}" if self.turns else ""
        late = [{"product": self._matmul_of_chunk(node)} for node in p.late]
        alike = [self._rows(name) | {"lines": lines} for name, (lines, _) in w.alike.items()]
        own = {"sn_lines": self.line_bytes, "sn_spare": self.spare_bytes, "sn_parts": sum_bytes}
        own = {name: padded(size) for name, size in own.items()}
        if any(w.product(name).has_room for name in p.matrices if name not in p.by_row):
            own["sn_room"] = ROOM
        fields = self._fields()
        ahead = self._moved() if self.ahead else []
        packed = [(name, *self._matrix(name)) for name in p.matrices]
        text = fill(
            _template(),
            {
                "region": comment(print_region(self.loop, self.region)),
                "name": self.name,
                "members": [{"text": entry.text} for entry in fields],
                "faults": p.faults,
                "carries": carries,
                "held": held,
                "chunks": bool(early or late or self.turns),
                "slots": with_slots,
                "turns": self.turns,
                "alone": self.alone,
                "meet": "SN_MEET;" if early and not self.turns else "",
                "early": early,
                "chunk_slot": "chunk_slot" if with_slots else "0",
                "scratch": scratch,
                "alike": alike,
                "own": [{"c": name, "bytes": size} for name, size in own.items() if size],
                "sums": sums,
                "by_step": [] if after else sums,
                "by_turn": sums if self.turns else [],
                "stages": "\n".join(stages),
                "after": "\n".join(after),
                "ahead": ahead,
                "late": late,
                "over": [{"sum": self._over_steps(each)} for each in p.over],
                "matrices": [{"pack": self._pack(number, *matrix)} for number, matrix in enumerate(packed)],
                "matrix_count": len(packed),
                "features": self.features and self.features.count,
                "unit": self.features and self.features.unit,
                "packed_by_all": int(sum(p.value(name).bytes for name in p.matrices) > PACKED_ALONE),
            },
        )
        # each begins a line of the cache
        buffers = 2 * len(p.carries) + len(p.held) + len(w.homes) + len(alike) + 6
        by_chunk = (*early, *scratch) if self.turns else early
        by_step = () if self.turns else scratch
        return Source(
            text=text + "\n",
            program=p,
            fields=fields,
            space=(
                64 * buffers,
                sum(rows["bytes"] for rows in (*carries, *carries, *held, *by_step)) + 8 * len(alike),
            ),
            packed=packed,
            chunk_bytes=sum(rows["bytes"] for rows in by_chunk),
            index_bytes=8 * (with_slots + bool(early or late or self.turns)),
            late_bytes=self._late_bytes(),
            ahead_bytes=sum(rows["bytes"] for rows in ahead),
            own_bytes=sum(own.values()),
        )

    def _late_bytes(self) -> int:
        read = {self.p.seen(node.inputs[0]).base for node in self.p.late}
        return sum(self._rows(name)["bytes"] for name in (*read, *(node.output for node in self.p.late)))

    def _parts(self) -> tuple[list[dict[str, Any]], int]:
        """Where a share adds up its sums, and the bytes beside its stack that they take if they are many."""
        p, w, kind, at = self.p, self.w, self.w.real, 0
        size = dtype_of(p.real).itemsize
        lanes = self.abreast
        heap = size * sum(p.value(name).size * (1 + lanes.get(name, 0)) for name in p.sums) > _MOST_STACK
        found: list[dict[str, Any]] = []
        for name in p.sums:
            c, n, parts = w.c(name), p.value(name).size, []
            for part, count in ("part", n), ("side", n * lanes.get(name, 0)):
                if count and heap:
                    room = f"({kind} *)memset(sn_parts + {at}, 0, {count * size})"
                    parts.append(f"*restrict const {c}_{part} = {room}")
                    at += padded(count * size)
                elif count or part == "part":
                    parts.append(f"{c}_{part}[{count}] = {{0}}")
            found.append({"c": c, "type": kind, "part": ", ".join(parts), "n": n, "add": self._add_up(name)})
        return found, at

    def _add_up(self, name: str) -> str:
        """What adds the parts of a sum to it."""
        c, n, lanes = self.w.c(name), self.p.value(name).size, self.abreast.get(name)
        sides = f"SN_ADD_SIDES({c}_part, {c}_side, {n}, {lanes}) " if lanes else ""
        return f"{sides}SN_ADD_UP({c}_sum, {c}_part, {n})"

    def _rows(self, value: str) -> dict[str, Any]:
        """A buffer of rows: the name of its value in C, elements and bytes of a row, and their type."""
        w, size = self.w, self.w.apart(value)
        return {"c": w.c(value), "n": size, "type": w.ctype(value), "bytes": size * w.size_of(value)}

    def _moved(self) -> list[dict[str, Any]]:
        """The tables whose rows steps read, and those that they write."""
        read = [self._rows(name) | {"to": ""} for name in self.p.row_inputs]
        return read + [self._rows(name) | {"to": "_to_write"} for name in self.p.outputs]

    def _own(self, rows: dict[str, Any]) -> dict[str, Any]:
        """What a thread hands on of such a row."""
        if self.features is None:
            return rows | {"shift": "", "own": rows["n"], "who": "0, 1" if self.turns else "member, members"}
        each = rows["n"] // self.features.count
        return rows | {"shift": f" + f0 * {each}", "own": f"(f1 - f0) * {each}", "who": "0, 1"}

    def _fields(self) -> list[Field]:
        """The members of the argument struct after the fixed ones."""
        p, w = self.p, self.w
        rows = (
            ("row", p.row_inputs, lambda n: f"const {w.ctype(n)} *{w.c(n)}"),
            ("sequence", p.whole, lambda n: f"const {w.ctype(n)} *{w.c(n)}"),
            ("shared", p.shared, lambda n: f"const {w.ctype(n)} *{w.shared(n)}"),
            ("matrix", p.matrices, lambda n: f"sn_matrix {w.c(n)}"),
            ("state", [c.parameter for c in p.carries], lambda n: f"SN_STATE({w.ctype(n)}, {w.c(n)})"),
            ("held", p.held, lambda n: f"const {w.ctype(n)} *{w.c(n)}_boot"),
            ("out", p.outputs, lambda n: f"{w.ctype(n)} *{w.c(n)}"),
            ("sum", p.sums, lambda n: f"{w.real} *{w.c(n)}"),
            ("total", p.totals, lambda n: f"{w.real} *{w.c(n)}"),
            ("wrong", [""] if p.faults else [], lambda _: "int64_t *wrong"),
        )
        return [Field(role, name, text(name)) for role, names, text in rows for name in names]

    def _matrix(self, name: str) -> tuple[int, int, int]:
        """(heads, K, N) of a matmul's second operand."""
        *heads, k, n = self.p.value(name).shape
        return math.prod(heads), k, n

    def _may_lie(self, name: str) -> bool:
        """Whether each product with a matrix, of some of its columns, can read it as it lies."""
        product, p = self.w.product(name), self.p
        if name in p.by_row:
            return False
        nodes = [node for node in (*p.nodes, *p.early, *p.late) if node.op == "matmul"]
        alone = all(len(p.value(node.inputs[0]).shape) == 1 for node in nodes if node.inputs[1] == name)
        return alone and not self.alone and product.rows == product.sums

    def _product(self, name: str, to: str, rows: str, count: str) -> str:
        """A product of some rows with a matrix."""
        _, k, n = self._matrix(name)
        product, none = self.w.product(name), f"(sn_rows_{self.w.suffix}){{0, 0, 0}}"
        packed = f"a->{self.w.c(name)}.packed"
        last = product.last_of_product
        return f"sn_matmul_{product.suffix}({to}, {none}, {rows}, {packed}, {count}, {k}, {n}{last})"

    def _columns(self, name: str, to: str, rows: str, count: str) -> str:
        """The same, of which each member does its own columns."""
        _, k, n = self._matrix(name)
        product, few = self.w.product(name), f"{'a->few' if name in self.lying else 0}, "
        few = few if product.rows == product.sums else ""
        return (
            f"sn_columns_{product.suffix}({to}, {rows}, &a->{self.w.c(name)}, {few}{count}, {k}, {n}, "
            f"member, members{product.last_of_product});"
        )

    def _pack(self, number: int, name: str, heads: int, k: int, n: int) -> str:
        """Pack a matrix, the `number`th; one with heads, head by head."""
        c, product = self.w.c(name), self.w.product(name)
        if name in self.p.by_row:
            return f"if (index == {number}) sn_lines_{self.w.suffix}(&a->{c}, {heads}, {k}, {n});"

        def pack(to: str, source: str) -> str:
            return (
                f"sn_pack_{product.suffix}({to}, {source}, a->{c}.stride_k, a->{c}.stride_n, "
                f"{k}, {n}{product.last});"
            )

        if heads == 1:
            lies = f" && !sn_lies(&a->{c}, a->few)" if name in self.lying else ""
            return f"if (index == {number}{lies}) {pack(f'a->{c}.packed', f'a->{c}.lying')}"
        kind, size = product.element, product.packed(k, n)
        to, source = f"({kind} *)a->{c}.packed + h * {size}", f"(const {kind} *)a->{c}.lying"
        return (
            f"for (int64_t h = 0; index == {number} && h < {heads}; ++h)\n"
            f"    {pack(to, f'{source} + h * a->{c}.stride_h')}"
        )

    def _matmul_of_chunk(self, node: Node) -> str:
        """A product of the rows of some steps: ahead of these one after the other, else where rows stand."""
        p, w = self.p, self.w
        _, k, n = self._matrix(node.inputs[1])
        seen = p.seen(node.inputs[0])
        operand, offset = seen.base, seen.offset
        shift = f" + {offset}" if offset else ""
        wide, made = p.value(operand).size, w.apart(node.output)
        product = w.product(node.inputs[1])
        kind = f"sn_rows_{product.rows}"
        inputs = ", ".join(map(_shown, node.inputs))

        def to(first: str) -> str:
            if node.output not in w.ahead:
                return f"a->{w.c(node.output)}, {made}, chunk_row{first}"
            return f"{w.c(node.output)}_rows{first and f'{first} * {made}'}, {made}, 0"

        def call(made_by: Callable[..., str], first: str, count: str) -> str:
            return made_by(
                node.inputs[1],
                f"(sn_rows_{w.suffix}){{{to(first)}}}",
                f"({kind}){{({product.element} *)a->{w.c(operand)}{shift}, {wide}, chunk_row{first}}}",
                count,
            )

        text = f"/* {_shown(node.output)} = matmul({inputs})  [{k}] x [{k}, {n}], rows of these steps */\n"
        if self.turns:
            return f"{text}{call(self._product, '', 'rows')};"
        if self.features is None:
            return text + call(self._columns, "", "rows")
        return f"{text}SN_SOME_ROWS({call(self._product, ' + r0', 'r1 - r0')});"

    def _over_steps(self, each: OverSteps) -> str:
        """A sum over the steps of a sequence, as a product of two matrices."""
        p, w, (m, n, heads) = self.p, self.w, each.sizes
        (to_m, _, to_h), (left_m, _, left_h), (_, _, right_h) = each.strides

        def rows(seen: Access) -> tuple[str, str]:
            wide = p.value(seen.base).size
            return f"a->{w.c(seen.base)} + first * {wide} + {seen.offset}", f"of.stride * {wide}"

        (left, left_next), (right, right_next) = map(rows, (each.left, each.right))
        names = ", ".join(map(_shown, (each.left.base, each.right.base)))
        to = f"a->{w.c(each.total)} + b * {p.value(each.total).size}"
        shift = [f" + h * {step}" if heads > 1 else "" for step in (to_h, left_h, right_h)]
        text = f"/* {_shown(each.total)} = {names}: [steps, {m}]' x [steps, {n}] */\n"
        text += f"for (int64_t h = 0; h < {heads}; ++h)\n    " if heads > 1 else ""
        return (
            f"{text}sn_over_steps_{w.suffix}({to}{shift[0]}, {to_m}, "
            f"{left}{shift[1]}, {left_next}, {left_m}, {right}{shift[2]}, {right_next}, steps, {m}, {n});"
        )

    def _stages(self) -> tuple[list[str], list[str]]:
        """What is done at each step; and after the steps of a chunk, where threads take turns."""
        out: list[str] = []
        stages, after = self.p.stages, list[Node]()
        if self.turns:
            (looped, _), *more = stages
            stages, after = [(looped, [])], [node for nodes, _ in more for node in nodes]
        for looped, products in stages:
            if looped:
                out += self._row_function(looped)
            if products:
                out.append("        SN_MEET;")
                for node in products:
                    out += self._matmul(node)
                out.append("        SN_MEET;")
        if not after:
            return out, []
        self.w.after = True
        added: list[str] = []
        if self.p.sums:
            added.append("            if (r % 64 == 63) {")
            for name in self.p.sums:
                added.append(f"                {self._add_up(name)}")
            added.append("            }")
        return out, self._row_function(after, added)

    def _matmul(self, node: Node) -> list[str]:
        p, w = self.p, self.w
        seen = p.seen(node.inputs[0])
        operand, offset = seen.base, seen.offset
        heads, k, n = self._matrix(node.inputs[1])
        wide, size = p.value(operand).size, p.value(node.output).size
        shape = p.value(node.inputs[0]).shape
        times = math.prod(shape[:-1])
        inputs = ", ".join(map(_shown, node.inputs))
        note = f"/* {_shown(node.output)} = matmul({inputs})  [{k}] x [{k}, {n}] */"
        out = ["        " + note]

        product = w.product(node.inputs[1])

        def rows(base: str, width: int, shift: str) -> str:
            place, element = w.place(base), w.ctype(base)
            index = "row" if w.by_table(base) else "0"
            suffix = product.rows if base == operand else w.suffix
            return f"(sn_rows_{suffix}){{({element} *){place}{shift}, {width}, {index}}}"

        shift = f" + {offset}" if offset else ""
        indexed = w.by_table(operand) or w.by_table(node.output)
        if times == 1 or (heads == 1 and not indexed and wide == times * k):  # all leading indices are rows
            count = "active" if times == 1 else f"active * {times}"
            made = w.apart(node.output) if times == 1 else size // times
            to, of = rows(node.output, made, ""), rows(operand, wide // times, shift)
            return [*out, f"        {self._columns(node.inputs[1], to, of, count)}"]
        # one product for each leading index: of its own matrix, or all of the same
        block, packed = product.packed(k, n), f"a->{w.c(node.inputs[1])}.packed"
        last = product.last_of_product
        out.append(f"        for (int64_t h = member; h < {times}; h += members)")
        matrix = f"({product.element} *){packed} + h * {block}" if heads > 1 else packed
        out.append(
            f"            sn_matmul_{product.suffix}({rows(node.output, size, f' + h * {n}')}, "
            f"(sn_rows_{w.suffix}){{0, 0, 0}}, "
            f"{rows(operand, wide, f'{shift} + h * {k}')}, {matrix}, active, {k}, {n}{last});"
        )
        return out

    def _row_function(self, nodes: list[Node], last: Sequence[str] = ()) -> list[str]:
        """The loop over rows; `last`: what it does at the end of each."""
        w = self.w
        made = ", ".join(_shown(name) for node in nodes for name in node.outputs)
        plan = row_function(self.p, nodes, w.homes)
        size = sum(self.p.value(base).bytes for base in plan.lines)
        if size > _MOST_LINES:
            raise Unsupported(
                f"the values of one row take {size:,} bytes; generated C holds {_MOST_LINES:,}",
                line=nodes[0].line,
            )
        side = self._abreast(nodes, plan)
        before = [] if side is None else self._rows_abreast(nodes, plan, side)
        w.enter(nodes, plan.lines)
        body = [text for loop in plan.loops for text in loop_text(w, loop)]
        first = "member" if side is None else f"member + {_abreast_rows(side)} * members"
        head = f"for (int64_t i = {first}; i < active; i += members) {{"
        if w.after:
            head = "for (int64_t r = 0; r < rows; ++r) {"
        elif self.alone:
            head = "for (int64_t i = 0; i < active; ++i) {"
        heap = size > _MOST_STACK
        room = size + 64 * len(plan.lines)
        self.line_bytes = max(self.line_bytes, room if heap else 0)
        self.spare_bytes = max(self.spare_bytes, *(spare_bytes(self.p, node) for node in nodes))
        out = [f"        /* row by row: {made} */", *before, f"        {head}"]
        read = {self.p.base(name) for node in nodes for name in node.inputs}
        if w.after and not read.isdisjoint((*self.p.whole, *self.p.held)):
            out.append("            const int64_t i = chunk_slot[r] % count;")
        out += self._line_arrays(plan.lines, heap)
        out += [f"            {text}" for text in w.pointers.values()]
        return [*out, *self._brought(), *body, *last, "        }"]

    def _line_arrays(self, lines: Sequence[str], heap: bool, lanes: int = 1) -> list[str]:
        """The arrays of a row function."""
        w, at, out = self.w, 0, list[str]()
        for base in lines:
            value, kind, line = self.p.value(base), w.ctype(base), f"{w.c(base)}_line"
            if heap:
                out.append(f"            {kind} *restrict const {line} = ({kind} *)(sn_lines + {at});")
                at += padded(value.bytes * lanes)
            else:
                out.append(f"            {kind} {line}[{value.size * lanes}] __attribute__((aligned(64)));")
        return out

    def _abreast(self, nodes: list[Node], plan: RowFunction) -> Abreast | None:
        """How rows go abreast; not those of a chunk, nor where threads have some features each."""
        if self.alone:
            return None
        read = dict.fromkeys(self.p.base(name) for node in nodes for name in node.inputs)
        inputs = [base for base in read if not self.w.is_shared(base)]
        return abreast(self.p, plan, nodes, self.w.homes, inputs, self.w.parts)

    def _rows_abreast(self, nodes: list[Node], plan: RowFunction, side: Abreast) -> list[str]:
        """The loop over as many rows at a time as there are lanes: turned, computed, turned back."""
        w, p, lanes = self.w, self.p, side.lanes
        self.abreast.update((node.output, lanes) for node in nodes if node.op == "sum_rows")
        w.enter(nodes, ())
        turned = [(base, w.pointer(base, None)) for base in side.read]
        read = [*w.pointers.values(), *self._brought()]
        w.enter(nodes, ())
        back = [(base, w.pointer(base, home)) for base in side.written for home in w.homes[base]]
        written = [*w.pointers.values(), *self._brought()]

        def each(head: str, row: str, before: list[str], moves: list[str]) -> list[str]:
            lines = [
                f"const int64_t i = i0 + {row} * members;",
                *(text.removeprefix(" " * 12) for text in before),
                *moves,
            ]
            return [
                f"            for (int64_t l = 0; l < {head}; ++l) {{",
                *(f"                {text}" for text in lines),
                "            }",
            ]

        def move(base: str, text: str) -> str:
            return f"for (int64_t j = 0; j < {p.value(base).size}; ++j) {text}"

        to = [move(base, f"{w.c(base)}_line[j * {lanes} + l] = {at}[j];") for base, at in turned]
        fro = [move(base, f"{at}[j] = {w.c(base)}_line[j * {lanes} + l];") for base, at in back]
        w.enter(nodes, side.lines, lanes)
        body = [text for loop in plan.loops for text in loop_text(w, loop)]
        size = sum(p.value(base).bytes for base in side.lines) * lanes
        heap = size + sum(p.value(base).bytes for base in plan.lines) > _MOST_STACK
        self.line_bytes = max(self.line_bytes, size + 64 * len(side.lines) if heap else 0)
        rows = _abreast_rows(side)
        return [
            f"        for (int64_t i0 = member, r = {rows}; r > 0; i0 += {lanes} * members, r -= {lanes}) {{",
            f"            const int64_t lanes = r < {lanes} ? r : {lanes};",
            *self._line_arrays(side.lines, heap, lanes),
            *(f"            {text}" for text in w.pointers.values()),
            *each(str(lanes), "(l < lanes ? l : lanes - 1)", read, to),
            *body,
            *each("lanes", "l", written, fro),
            "        }",
        ]

    def _brought(self) -> list[str]:
        """The same row of the next step is brought to the cache as this one is computed."""
        w, found = self.w, list[str]()
        if self.alone:
            return found
        size = sum(self._rows(base)["bytes"] for base in w.tables)
        for base in w.tables:
            how = "_to_write" if base in w.made else ""
            found.append(f"sn_bring{how}(a->{w.c(base)}, row[i] + of.stride, {self._rows(base)['bytes']});")
        if found:
            head = f"if (sn_is_far(&of, a->steps, active, {size})) {{"
            found = [head, *(f"    {text}" for text in found), "}"]
        return [f"            {text}" for text in found]


def _abreast_rows(side: Abreast) -> str:
    """How many of a member's rows go abreast, from the first on."""
    return f"sn_abreast(active, member, members, {side.lanes}, {side.least})"


def _shown(name: str) -> str:
    """A value's name in a comment."""
    return comment(print_name(name))


@functools.cache
def _template() -> str:
    return resources.files("stepnet.executors.c").joinpath("scan.c.in").read_text("utf-8")
