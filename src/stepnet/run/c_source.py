"""C for one scan: a function that runs all steps of a share of the sequences.

The text is written to be read: it is headed by the IR it came from, names are those of the IR, and each
stage says which nodes it computes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from stepnet.ir.graph import ITEM_SIZE, Node
from stepnet.ir.plan import LoopPlan, Region
from stepnet.ir.text import print_name, print_region

from .c_expr import loop_text
from .c_loops import row_function
from .c_program import Program, program
from .c_text import COLUMNS, LOOKUP, TEAM, comment, identifier
from .c_views import Access, broadcast


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
    workspace a share needs for n sequences: space[0] + n * space[1], and for each row of a chunk
    chunk_bytes, and index_bytes for each thread; `packed` are the matrices: name, heads, K, N.
    """

    text: str
    program: Program
    fields: list[Field] = field(default_factory=list)
    space: tuple[int, int] = (0, 0)
    packed: list[tuple[str, int, int, int]] = field(default_factory=list)
    chunk_bytes: int = 0
    index_bytes: int = 0


FIXED = (
    "sequences", "shares", "steps", "stride", "chunk", "together", "start", "length", "order", "space",
    "space_bytes",
)  # fmt: skip


def write(loop: LoopPlan, region: Region, name: str) -> Source:
    """Generate C for a scan.

    Raises:
        Unsupported: the scan holds what generated C does not do.
    """
    return _Writer(loop, region, program(loop, region), name).write()


PACKED_ALONE = 1 << 18  # bytes of matrices that one thread packs faster than another one wakes

# What the writer appends to the name of a value.
_DERIVED = re.compile(r"_(at|best|boot|final|line|new|next|now|packed|part|row|rows|stride_[knh]|sum|whole)$")


class _Writer:
    def __init__(self, loop: LoopPlan, region: Region, p: Program, name: str) -> None:
        self.loop, self.region, self.p, self.name = loop, region, p, name
        self.real = {"float32": "float", "float64": "double"}[p.real]
        self.suffix = {"float32": "f32", "float64": "f64"}[p.real]
        self.lines: set[str] = set()
        self.here: set[str] = set()
        self.pointers: dict[str, str] = {}
        self.parts: dict[str, list[tuple[str, Access]]] = {}
        self.outer = loop.body.producers
        self.fields: list[Field] = []
        self.names: dict[str, str] = {}
        self.row_bytes = 0
        self.early = {node.output for node in p.early}
        self.chunk_bytes = 0  # of one row while it waits in the cache
        self.made = {n: node for node in (*p.nodes, *p.late) for n in node.outputs}
        self.homes = self._homes()

    # -- names and places ----------------------------------------------------------------------------

    def c(self, value: str) -> str:
        """The C name of a value."""
        if value not in self.names:
            wanted = identifier(value)
            if _DERIVED.search(wanted):  # a state 'h_next' beside the next value of a state 'h'
                wanted += "_"
            taken = set(self.names.values())
            while wanted in taken:
                wanted += "_"
            self.names[value] = wanted
        return self.names[value]

    def ctype(self, value: str) -> str:
        """The C type a value is stored as."""
        return {"bool": "uint8_t", "int64": "int64_t"}.get(self.p.value(value).dtype, self.real)

    def shared(self, value: str) -> str:
        """The member that an element of a shared value is read from; a matrix's own member has strides."""
        return f"{self.c(value)}_whole" if value in self.p.matrices else self.c(value)

    def size_of(self, value: str) -> int:
        """Bytes of one stored element."""
        return ITEM_SIZE[self.p.value(value).dtype]

    def _homes(self) -> dict[str, list[str]]:
        """Where each made value is stored: 'out', 'next', 'scratch' or (only inside a row) 'line'."""
        p = self.p
        homes: dict[str, list[str]] = {n: [] for n in self.made}
        homes |= {n: ["chunk"] for n in self.early}
        for name in p.outputs:
            homes[name].append("out")
        for carry in p.carries:
            homes[carry.result].append(f"next:{carry.parameter}")
        for node in p.nodes:
            at = p.level[id(node)]
            for operand in node.inputs[:1] if node.op == "matmul" else node.inputs:
                base = p.access[operand].base if operand in p.access else operand
                maker = self.made.get(base)
                if maker is None or maker.op == "sum_rows":
                    continue
                crosses = p.level[id(maker)] != at or node.op == "matmul" or maker.op in ("matmul", "cat")
                if crosses and not homes[base] and node.op != "cat":
                    homes[base].append("scratch")
        for node in p.nodes:
            if node.op in ("cat", "matmul") and not homes[node.output]:
                homes[node.output].append("scratch")
        return homes

    def place(self, base: str) -> str:
        """The C name of the buffer a value is read from, before the row is chosen."""
        if base in self.made:
            home = self.homes[base][0]
            if home == "out":
                return f"a->{self.c(base)}"
            if home.startswith("next:"):
                return f"{self.c(home[5:])}_next"
            return f"{self.c(base)}_rows"
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
        if base in self.lines and home is None:
            return f"{c}_line"
        if home is None and base in self.made:
            home = self.homes[base][0]
        const = "" if base in self.made else "const "
        if base in self.p.shared:
            name, at = f"{c}_at", f"a->{self.shared(base)}"
        elif home == "out" or base in self.p.row_inputs:
            name, at = f"{c}_at", f"a->{c} + row[i] * {size}"
        elif home is not None and home.startswith("next:"):
            name, at = f"{self.c(home[5:])}_new", f"{self.c(home[5:])}_next + i * {size}"
        elif base in self.early:
            name, at = f"{c}_at", f"{c}_rows + ((t - t0) * count + i) * {size}"
        elif home == "scratch":
            name, at = f"{c}_at", f"{c}_rows + i * {size}"
        else:
            name, at = f"{c}_at", f"{c} + i * {size}"
        self.pointers[name] = f"{const}{kind} *restrict {name} = {at};"
        return name

    def constant(self, base: str) -> float | None:
        """The number a value holds everywhere, if it is made by `full` outside the scan."""
        node = self.outer.get(base)
        return node.attr("value") if node is not None and node.op == "full" else None

    # -- text ----------------------------------------------------------------------------------------

    def write(self) -> Source:
        p = self.p
        body = self._share()
        head: list[str] = []
        head.append(f"/* {comment(print_region(self.loop, self.region))}\n */")
        head.append(self._struct())
        head.append(body)
        head.append(self._entry())
        packed = [(m, *self._matrix(m)) for m in p.matrices]
        return Source(
            "\n".join(head) + "\n",
            p,
            self.fields,
            (64 * (2 * len(p.carries) + len(p.held) + len(self.homes) + 4), self.row_bytes),
            packed,
            self.chunk_bytes,
            8 * (bool(p.early) + bool(p.early or p.late)),
        )

    def _struct(self) -> str:
        p = self.p
        out = ["typedef struct {"]
        for text, note in (
            (
                "int64_t sequences, shares, steps, stride;",
                "row of sequence b at step t: start[b] + t * stride",
            ),
            ("int64_t chunk;", "steps at a time"),
            ("int64_t together;", "1: all threads on one share"),
            ("const int64_t *start, *length, *order;", "order: longest first"),
            ("char *space;", "workspace, space_bytes for each share"),
            ("int64_t space_bytes;", ""),
        ):
            out.append(f"    {text}" + (f" /* {note} */" if note else ""))

        def member(role: str, value: str, text: str) -> None:
            self.fields.append(Field(role, value, text))
            out.append(f"    {text};")

        for name in p.row_inputs:
            member("row", name, f"const {self.ctype(name)} *{self.c(name)}")
        for name in p.shared:
            member("shared", name, f"const {self.ctype(name)} *{self.shared(name)}")
        for name in p.matrices:
            c = self.c(name)
            member("matrix", name, f"const {self.real} *{c}")
            member("stride_k", name, f"int64_t {c}_stride_k")
            member("stride_n", name, f"int64_t {c}_stride_n")
            member("stride_h", name, f"int64_t {c}_stride_h")
            member("packed", name, f"{self.real} *{c}_packed")
        for carry in p.carries:
            c = self.c(carry.parameter)
            member("boot", carry.parameter, f"const {self.ctype(carry.parameter)} *{c}_boot")
            member("final", carry.parameter, f"{self.ctype(carry.parameter)} *{c}_final")
        for name in p.held:
            member("boot", name, f"const {self.ctype(name)} *{self.c(name)}_boot")
        for name in p.outputs:
            member("out", name, f"{self.ctype(name)} *{self.c(name)}")
        for name in p.sums:
            member("sum", name, f"{self.real} *{self.c(name)}")
        if p.lookups:
            member("wrong", "", "int64_t *wrong")
        out.append("} arguments;")
        return "\n".join(out) + "\n"

    def _matrix(self, name: str) -> tuple[int, int, int]:
        """(heads, K, N) of a matmul's second operand."""
        shape = self.p.value(name).shape
        heads = 1
        for size in shape[:-2]:
            heads *= size
        return heads, shape[-2], shape[-1]

    def _pack(self) -> list[str]:
        out = ["/* Matrices are packed anew at every call: they may have changed. */"]
        out.append("static void pack(void *data, int64_t index, int64_t count) {")
        out.append("    const arguments *a = (const arguments *)data;")
        out.append("    (void)count;")
        for number, name in enumerate(self.p.matrices):
            heads, k, n = self._matrix(name)
            c = self.c(name)
            size = f"sn_packed_{self.suffix}({k}, {n}, 1)"
            pack = (
                f"sn_pack_{self.suffix}(a->{c}_packed{{h1}}, a->{c}{{h2}}, a->{c}_stride_k, a->{c}_stride_n, "
                f"{k}, {n}, 1, SN_WIDTH);"
            )
            if heads == 1:
                out.append(f"    if (index == {number}) " + pack.format(h1="", h2=""))
            else:
                out.append(f"    for (int64_t h = 0; index == {number} && h < {heads}; ++h)")
                out.append("        " + pack.format(h1=f" + h * {size}", h2=f" + h * a->{c}_stride_h"))
        return [*out, "}", ""]

    def _entry(self) -> str:
        out = self._pack() if self.p.matrices else []
        out.append(TEAM)
        out.append(f"void {self.name}(const sn_pool *pool, const arguments *a) {{")
        count = len(self.p.matrices)
        item = 4 if self.p.real == "float32" else 8
        if item * sum(math.prod(self._matrix(name)) for name in self.p.matrices) > PACKED_ALONE:
            out.append(f"    sn_parallel(pool, {count}, pack, (void *)a);")
        elif count:
            out.append(f"    for (int64_t i = 0; i < {count}; ++i) pack((void *)a, i, {count});")
        out += [
            "    team everyone = {a, {0, 0}};",
            "    if (a->together) sn_together(pool, member_of, &everyone);",
            "    else sn_parallel(pool, a->shares, share, &everyone);",
            "}",
        ]
        return "\n".join(out)

    # -- the share -----------------------------------------------------------------------------------

    def _share(self) -> str:
        p, out = self.p, []

        def line(text: str, depth: int = 1) -> None:
            out.append("    " * depth + text)

        line(COLUMNS, 0)
        if p.lookups:
            line(LOOKUP, 0)
        line(
            "/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that", 0
        )
        line(" * split the rows of a step and the columns of its products, and meet in between. */", 0)
        line("static void run_share(const arguments *a, int64_t index, int64_t shares, int64_t member,", 0)
        line("                      int64_t members, sn_barrier *barrier) {", 0)
        line("#define MEET if (members > 1) sn_meet(barrier, &sense, members)", 0)
        line("int64_t sense = 0;")
        line("const int64_t count = (a->sequences - index + shares - 1) / shares;")
        line("char *space = a->space + index * a->space_bytes;")
        line("#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64", 0)
        line("int64_t *row = TAKE(int64_t, count * members);")
        line("row += member * count;")
        for carry in p.carries:
            size, c, kind = (
                p.value(carry.parameter).size,
                self.c(carry.parameter),
                self.ctype(carry.parameter),
            )
            for which in ("", "_next"):
                line(f"{kind} *{c}{which} = TAKE({kind}, count * {size});")
                self.row_bytes += size * self.size_of(carry.parameter)
        for name in p.held:
            size, c, kind = p.value(name).size, self.c(name), self.ctype(name)
            line(f"{kind} *{c} = TAKE({kind}, count * {size});")
            self.row_bytes += size * self.size_of(name)
        chunked = bool(p.early or p.late)
        if chunked:
            line("int64_t *chunk_row = TAKE(int64_t, count * a->chunk * members);")
            line("chunk_row += member * count * a->chunk;")
        if p.early:
            line("int64_t *chunk_slot = TAKE(int64_t, count * a->chunk * members);")
            line("chunk_slot += member * count * a->chunk;")
        for node in p.early:
            size = p.value(node.output).size
            line(f"{self.real} *{self.c(node.output)}_rows = TAKE({self.real}, count * a->chunk * {size});")
            self.chunk_bytes += size * self.size_of(node.output)
        stages = self._stages()
        for name, homes in self.homes.items():
            if homes == ["scratch"]:
                size, kind = p.value(name).size, self.ctype(name)
                line(f"{kind} *{self.c(name)}_rows = TAKE({kind}, count * {size});")
                self.row_bytes += size * self.size_of(name)
        line("#undef TAKE", 0)
        for name in p.sums:
            size, c = p.value(name).size, self.c(name)
            line(f"{self.real} {c}_part[{size}], *{c}_sum = a->{c} + (index * members + member) * {size};")
            line(f"memset({c}_part, 0, sizeof {c}_part);")
            line(f"memset({c}_sum, 0, sizeof {c}_part);")
        line("for (int64_t i = member; i < count; i += members) {")
        line("const int64_t b = a->order[index + i * shares];", 2)
        for carry in p.carries:
            self._copy_state(line, carry.parameter, "{c} + i * {n}", "{c}_boot + b * {n}", 2)
        for name in p.held:
            self._copy_state(line, name, "{c} + i * {n}", "{c}_boot + b * {n}", 2)
        if p.carries:
            line("if (a->length[b] > 0) continue;", 2)
            for carry in p.carries:
                self._copy_state(line, carry.parameter, "{c}_final + b * {n}", "{c} + i * {n}", 2)
        line("}")
        if p.lookups:
            line("int64_t wrong = 0;")
        line("int64_t active = count;")
        if chunked:
            self._open_chunk(line)
        else:
            line("for (int64_t t = 0; t < a->steps; ++t) {")
        line("while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;", 2)
        line("if (active == 0) break;", 2)
        line("for (int64_t i = 0; i < active; ++i)", 2)
        line("row[i] = a->start[a->order[index + i * shares]] + t * a->stride;", 3)
        out += stages
        if p.carries:
            line("for (int64_t i = active; i-- > 0;) { /* sequences that end here */", 2)
            line("const int64_t b = a->order[index + i * shares];", 3)
            line("if (a->length[b] > t + 1) break;", 3)
            line("if (i % members != member) continue;", 3)
            for carry in p.carries:
                self._copy_state(line, carry.parameter, "{c}_final + b * {n}", "{c}_next + i * {n}", 3)
            line("}", 2)
            for carry in p.carries:
                c, kind = self.c(carry.parameter), self.ctype(carry.parameter)
                line(f"{{ {kind} *now = {c}; {c} = {c}_next; {c}_next = now; }}", 2)
        if p.sums:
            line("if (t % 64 == 63) { /* short sums of short sums lose fewer digits */", 2)
            self._flush(line, 3)
            line("}", 2)
        line("}")
        if chunked:
            if p.late:
                line("MEET;")
            for node in p.late:
                self._matmul_of_chunk(line, node, "chunk_row", "chunk_row")
            line("}")
        if p.sums:
            self._flush(line, 1)
        if p.lookups:
            line("if (wrong) __atomic_store_n(a->wrong, 1, __ATOMIC_RELAXED);")
        line("#undef MEET", 0)
        line("}", 0)
        return "\n".join(out) + "\n"

    def _open_chunk(self, line: Any) -> None:
        """Some steps at a time: their rows listed, products of rows from outside made for all of them."""
        p = self.p
        line("for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {")
        line("const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;")
        line("int64_t rows = 0;")
        line("for (int64_t t = t0, left = active; t < t1; ++t) {")
        line("while (left > 0 && a->length[a->order[index + (left - 1) * shares]] <= t) --left;", 2)
        line("for (int64_t i = 0; i < left; ++i) {", 2)
        if p.early:
            line("chunk_slot[rows] = (t - t0) * count + i;", 3)
        line("chunk_row[rows++] = a->start[a->order[index + i * shares]] + t * a->stride;", 3)
        line("}", 2)
        line("}")
        if p.early:
            line("MEET;")
        for node in p.early:
            self._matmul_of_chunk(line, node, "chunk_row", "chunk_slot")
        if p.early:
            line("MEET;")
        line("for (int64_t t = t0; t < t1; ++t) {")

    def _matmul_of_chunk(self, line: Any, node: Node, source: str, target: str) -> None:
        p = self.p
        _, k, n = self._matrix(node.inputs[1])
        seen = p.access.get(node.inputs[0])
        operand, offset = (node.inputs[0], 0) if seen is None else (seen.base, seen.offset)
        shift = f" + {offset}" if offset else ""
        to = f"{self.c(node.output)}_rows" if node.output in self.early else f"a->{self.c(node.output)}"
        rows, wide = f"sn_rows_{self.suffix}", p.value(operand).size
        line(
            f"/* {_shown(node.output)} = matmul({', '.join(map(_shown, node.inputs))})  "
            f"[{k}] x [{k}, {n}], rows of these steps */"
        )
        made = p.value(node.output).size
        line("{")
        line(self._columns(n), 2)
        line(
            f"if (c1 > c0) sn_matmul_{self.suffix}("
            f"({rows}){{{to} + c0, {made}, {target}}}, ({rows}){{0, 0, 0}}, "
            f"({rows}){{({self.real} *)a->{self.c(operand)}{shift}, {wide}, {source}}}, "
            f"a->{self.c(node.inputs[1])}_packed + c0 * {k}, rows, {k}, c1 - c0);",
            2,
        )
        line("}")

    def _columns(self, n: int) -> str:
        panel = f"SN_WIDTH * sn_lanes_{self.suffix}"
        return (
            f"const int64_t c0 = first_column({n}, member, members, {panel}), "
            f"c1 = first_column({n}, member + 1, members, {panel});"
        )

    def _copy_state(self, line: Any, name: str, to: str, source: str, depth: int) -> None:
        size = self.p.value(name).size

        def place(text: str) -> str:
            argument = "_boot" in text or "_final" in text
            return ("a->" if argument else "") + text.format(c=self.c(name), n=size)

        line(f"memcpy({place(to)}, {place(source)}, {size} * sizeof({self.ctype(name)}));", depth)

    def _flush(self, line: Any, depth: int) -> None:
        for name in self.p.sums:
            size, c = self.p.value(name).size, self.c(name)
            line(
                f"for (int64_t j = 0; j < {size}; ++j) {{ {c}_sum[j] += {c}_part[j]; {c}_part[j] = 0; }}",
                depth,
            )

    def _stages(self) -> list[str]:
        p = self.p
        out: list[str] = []
        deepest = max(p.level.values(), default=0)
        for level in range(deepest + 1):
            here = [n for n in p.nodes if p.level[id(n)] == level]
            looped = [n for n in here if n.op not in ("matmul",)]
            if looped:
                out += self._row_function(looped)
            products = [node for node in here if node.op == "matmul"]
            if products:
                out.append("        MEET;")
            for node in products:
                out += self._matmul(node)
            if products:
                out.append("        MEET;")
        return out

    def _matmul(self, node: Node) -> list[str]:
        p = self.p
        seen = p.access.get(node.inputs[0])
        operand = node.inputs[0] if seen is None else seen.base
        offset = 0 if seen is None else seen.offset
        heads, k, n = self._matrix(node.inputs[1])
        wide, size = p.value(operand).size, p.value(node.output).size
        packed = f"a->{self.c(node.inputs[1])}_packed"
        shape = p.value(node.inputs[0]).shape
        times = 1
        for length in shape[:-1]:
            times *= length
        inputs = ", ".join(map(_shown, node.inputs))
        note = f"/* {_shown(node.output)} = matmul({inputs})  [{k}] x [{k}, {n}] */"
        out = ["        " + note]

        def rows(base: str, width: int, shift: str) -> str:
            place = self.place(base)
            index = "row" if self.by_table(base) else "0"
            return f"(sn_rows_{self.suffix}){{({self.real} *){place}{shift}, {width}, {index}}}"

        none = f"(sn_rows_{self.suffix}){{0, 0, 0}}"
        shift = f" + {offset}" if offset else ""
        if times == 1:
            out += [
                "        {",
                f"            {self._columns(n)}",
                f"            if (c1 > c0) sn_matmul_{self.suffix}("
                f"{rows(node.output, size, ' + c0')}, {none}, "
                f"{rows(operand, wide, shift)}, {packed} + c0 * {k}, active, {k}, c1 - c0);",
                "        }",
            ]
            return out
        # one product for each leading index: of its own matrix, or all of the same
        block = f"sn_packed_{self.suffix}({k}, {n}, 1)"
        out.append(f"        for (int64_t h = member; h < {times}; h += members)")
        matrix = f"{packed} + h * {block}" if heads > 1 else packed
        out.append(
            f"            sn_matmul_{self.suffix}({rows(node.output, size, f' + h * {n}')}, {none}, "
            f"{rows(operand, wide, f'{shift} + h * {k}')}, {matrix}, active, {k}, {n});"
        )
        return out

    def _row_function(self, nodes: list[Node]) -> list[str]:
        made = ", ".join(_shown(name) for node in nodes for name in node.outputs)
        plan = row_function(self.p, nodes, self.homes)
        self.here = {name for node in nodes for name in node.outputs}
        self.lines, self.pointers = set(plan.lines), {}
        self.parts = self._parts()
        body = [text for loop in plan.loops for text in loop_text(self, loop)]
        out = [
            f"        /* row by row: {made} */",
            "        for (int64_t i = member; i < active; i += members) {",
        ]
        for base in plan.lines:
            size, kind = self.p.value(base).size, self.ctype(base)
            out.append(f"            {kind} {self.c(base)}_line[{size}] __attribute__((aligned(64)));")
        out += [f"            {text}" for text in self.pointers.values()]
        return [*out, *body, "        }"]

    def _parts(self) -> dict[str, list[tuple[str, Access]]]:
        """For each value that is joined into others: into which, and where in them."""
        found: dict[str, list[tuple[str, Access]]] = {}
        for node in self.p.nodes:
            if node.op != "cat":
                continue
            steps = _dense(self.p.value(node.output).shape)
            dim, at = node.attr("dim"), 0
            for name in node.inputs:
                shape = self.p.value(name).shape
                strides = tuple(0 if n == 1 else s for n, s in zip(shape, steps, strict=True))
                access = Access(node.output, at * steps[dim], shape, strides)
                found.setdefault(name, []).append((node.output, broadcast(access, shape)))
                at += shape[dim]
        return found


def _shown(name: str) -> str:
    """A value's name in a comment."""
    return comment(print_name(name))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= size
    return tuple(reversed(out))
