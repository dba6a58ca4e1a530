"""The text of one loop of a row function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from stepnet.data.dtypes import dtype_of
from stepnet.errors import Unsupported
from stepnet.executors.schedule.buffers import is_stored
from stepnet.executors.schedule.features import outer
from stepnet.executors.schedule.loops import LoopNest
from stepnet.executors.schedule.row_products import PLACES
from stepnet.executors.schedule.views import Access, broadcast, collapse, contiguous
from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, Stage

from .library_calls import call_text
from .numbers import CALLS, ENDS, KINDS, START, TEXTS, WHOLE, WHOLE_NUMBERS, literal
from .places import HALVES, Places
from .value_ranges import is_below_the_largest
from .zero_tails import Pass, ends_early

_JOINED = {"sum": "+", "amax": "max", "amin": "min", **dict.fromkeys(PLACES, "min")}  # by OpenMP's names
_EXTREMES = "amax", "amin"
_SHORT = 16  # elements, of fewer of which an extreme is found sooner one after the other
_DEPTH = 3  # of a loop in its function
_TOGETHER = 4  # lines of a matrix that are multiplied by a vector side by side


def loop_text(w: Places, loop: LoopNest) -> list[str]:
    """The lines of one loop, its reductions' variables included."""
    if OPS[loop.nodes[0].op].stage is Stage.WHOLE:
        return _indented(call_text(w, loop.nodes[0]), _DEPTH)
    return _indented(_LoopText(w, loop).lines(), _DEPTH)


def _indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    return ["    " * depth + text for text in lines]


class _LoopText:
    def __init__(self, w: Places, loop: LoopNest) -> None:
        self.w, self.loop = w, loop
        self.shape = (*loop.shape, w.lanes) if w.lanes else loop.shape
        self.registers: set[str] = set()
        self.used: list[Access] = []
        self.before: dict[int, list[str]] = {}  # what is found before the loop over a merged dimension
        self.body: list[str] = []
        self.early: Pass | None = None
        self.beside_nan: set[str] = set()  # extremes found by vectors, NaN noted beside them

    def lines(self) -> list[str]:
        w, loop = self.w, self.loop
        accesses: list[Access] = [self._whole()]
        for node in loop.nodes:
            if node.op == "embed" and self.shape:
                accesses += self._looked_up(node)
            for operand in node.inputs if node.op != "embed" else ():
                accesses.append(self._read(operand))
            for name in node.outputs:
                for _, seen in w.parts.get(name, []):
                    accesses.append(self._in_lanes(seen))
                if OPS[node.op].stage is Stage.REDUCE and self.shape:
                    accesses.append(self._reduced(node))
            if node.op == "sum_rows" and w.lanes:
                accesses.append(self._lane())
        dims, strides = collapse(self.shape, [a.strides for a in accesses])
        self.dims = dims
        self.by_access = {(a.base, a.offset, a.strides): s for a, s in zip(accesses, strides, strict=True)}
        self.variables = [f"j{k}" for k in range(len(dims))] if len(dims) > 1 else ["j"][: len(dims)]
        reductions = [n for n in loop.nodes if OPS[n.op].stage is Stage.REDUCE]
        inside = [n for n in reductions if dims and self._open_at(n) < len(dims)]  # summed in a variable
        if not self._is_short(inside):
            self.beside_nan = {n.output for n in inside if n.op in _EXTREMES and self._is_real(n)}
        for node in loop.nodes:
            self._node(node)
        if not dims:
            return self.body
        if not w.lanes:
            self.early = ends_early(w, loop.nodes, dims, self._read, self._steps, self._reduced)
        out: list[str] = []
        for node in reductions:
            if self._in_line(node):
                size, name = w.p.value(node.output).size * max(w.lanes, 1), w.c(node.output)
                out += self._loops("j", size, w.p.value(node.output).shape)
                out.append(f"    {name}_line[j] = {self._start(node)};")
        out += self._nest(0, inside) if self.early is None else self._ended_early(self.early, inside)
        for node in reductions:
            if self._in_line(node):
                out += self._stored_line(node)
        return out

    def _nest(self, k: int, inside: list[Node]) -> list[str]:
        """The loops over merged dimensions from the kth on, with what is done before each and after it."""
        if k == len(self.dims):
            return self.body
        size, variable, last = self.dims[k], self.variables[k], len(self.dims) - 1
        before, after = self._opened(k, inside), self._closed(k, inside)
        if k == last - 1 and self._gains_side_by_side(inside):
            end = size if self.early is None else self._end()
            whole = (
                size // _TOGETHER * _TOGETHER if self.early is None else f"{end} / {_TOGETHER} * {_TOGETHER}"
            )
            inner = self._side_by_side(variable, inside)
            out = [f"for (int64_t {variable} = 0; {variable} < {whole}; {variable} += {_TOGETHER}) {{"]
            out += [*_indented(inner), "}"]
            if whole != end:
                out.append(f"for (int64_t {variable} = {whole}; {variable} < {end}; ++{variable}) {{")
                out += [*_indented(self._nest(last, inside)), "}"]
            return [*before, *out, *after]
        *blocks, own = self._loops(variable, size, self.loop.shape if k == 0 else ())
        if k == 0 and self.early is not None:
            start, end = ("from", "to") if self.early.totals else ("0", self._end())
            own = f"for (int64_t {variable} = {start}; {variable} < {end}; ++{variable})"
        pragma = [self._by_lanes(inside)] if k == last and not self._is_short(inside) else []
        return [*before, *blocks, *pragma, f"{own} {{", *_indented(self._nest(k + 1, inside)), "}", *after]

    def _end(self) -> str:
        """The variable that says where a pass ends early."""
        return f"{self.w.c(self.loop.nodes[-1].output)}_end"

    def _ended_early(self, early: Pass, inside: list[Node]) -> list[str]:
        """The loops over lines, the last of which are alike."""
        w, end, (lines, size) = self.w, self._end(), self.dims
        first, *others = [f"{w.c(name)}_alike[i] + 1" for name in early.memories]
        out = [f"int64_t {end} = {first};"]
        out += [f"{end} = {end} < {other} ? {other} : {end};" for other in others]
        if early.zeros:
            nothing = [
                f"{self._number(seen, f'{end} - {back}')} == 0" for seen in early.zeros for back in (1, 2)
            ]
            out += [f"const int64_t {end}_least = {end};", f"{end} = {lines};"]
            out.append(f"while ({end} > {end}_least && {' && '.join(nothing)}) --{end};")
        nest = self._nest(0, inside)
        if early.totals:
            last = [f"{w.pointer(node.output, None)} + (to - 1) * {size}" for node in early.totals]
            again = " || ".join(f"sn_any_nan_{w.suffix}({line}, {size})" for line in last)
            out.append(f"for (int64_t from = 0, to = {end};; from = to, to = {lines}) {{")
            nest = [*_indented([*nest, f"if (to == {lines} || !({again})) break;"]), "}"]
        out += nest
        for node in early.same:
            homes = [w.pointer(node.output, home) for home in w.homes.get(node.output, [])]
            for place in [*homes, *[f"{w.c(node.output)}_line"] * (node.output in w.lines)]:
                out.append(f"for (int64_t j = {end}; j < {lines}; ++j) {place}[j] = {place}[{end} - 1];")
        return out

    def _number(self, seen: Access, line: str) -> str:
        """What an access that goes by lines has at one of them."""
        step = self._steps(seen)[0]
        at = line if step == 1 else f"({line}) * {step}"
        at += f" + {seen.offset}" if seen.offset else ""
        return self.w.loaded(seen.base, f"{self.w.pointer(seen.base, None)}[{at}]")

    def _opened(self, k: int, inside: list[Node]) -> list[str]:
        """What stands before the loop over a merged dimension."""
        return [*self.before.get(k, ()), *(self._open(node) for node in inside if self._open_at(node) == k)]

    def _closed(self, k: int, inside: list[Node]) -> list[str]:
        """What stands behind it: where the results of reductions go."""
        w, out = self.w, list[str]()
        for node in inside:
            if self._open_at(node) != k:
                continue
            if node.output in self.beside_nan:
                name = self._reduced_in(node)
                out.append(f"if ({name}_nan) {name} = NAN;")
            if self._in_line(node):
                out.append(self._add_to_line(node, self._reduced_in(node)))
            else:
                if node.op in PLACES:
                    out.append(f"const int64_t {w.c(node.output)} = {self._reduced_in(node)};")
                self._store(node, w.c(node.output), out.append, self._reduced(node) if k else None)
        return out

    def _is_short(self, inside: list[Node]) -> bool:
        return bool(self.dims) and self.dims[-1] < _SHORT and any(node.op != "sum" for node in inside)

    def _gains_side_by_side(self, inside: list[Node]) -> bool:
        """Whether the loop is a product of a matrix and a vector: of several lines of it at once, each number
        of the vector is read once, or of the result written once, and sums do not wait for each other."""
        *_, lines, size = self.dims
        products = all(node.op in ("mul", "sum", "copy") for node in self.loop.nodes)
        sums = [node for node in self.loop.nodes if node.op == "sum"]
        alone = all(self._open_at(node) == len(self.dims) - 1 for node in inside)
        fits = lines >= _TOGETHER and size >= _SHORT and self.w.features is None
        return products and bool(sums) and alone and fits and len(self.dims) - 1 not in self.before

    def _side_by_side(self, variable: str, inside: list[Node]) -> list[str]:
        """The loop over the last dimension, for several numbers of the one before it."""
        own = [self.w.c(name) for node in self.loop.nodes for name in node.outputs]
        named = re.compile(rf"\b(?:({variable})|{'|'.join(map(re.escape, own))})\b")
        last = len(self.dims) - 1

        def copies(texts: list[str]) -> list[str]:
            def renamed(text: str, at: int) -> str:
                if at == 0:
                    return text
                return named.sub(lambda m: f"({variable} + {at})" if m[1] else f"{m[0]}_by{at}", text)

            return [renamed(text, at) for at in range(_TOGETHER) for text in texts]

        sums = [node for node in inside if self._open_at(node) == last]
        names = copies([self._reduced_in(node) for node in sums])
        reduction = f" reduction(+ : {', '.join(names)})" if names else ""
        head, body = self._loops(self.variables[-1], self.dims[-1], ())[-1], _indented(copies(self.body))
        loop = [f"#pragma omp simd{reduction}", f"{head} {{", *body, "}"]
        return [*copies(self._opened(last, inside)), *loop, *copies(self._closed(last, inside))]

    def _open(self, node: Node) -> str:
        """The variables of a reduction."""
        kind = "int32_t" if node.op in PLACES else self._kind(node.inputs[0])
        text = f"{kind} {self._reduced_in(node)} = {self._start(node)};"
        if node.output not in self.beside_nan:
            return text
        wide = (
            "int32_t" if self.w.real == "float" else "int64_t"
        )  # as the numbers: so many lanes has a vector
        return f"{text} {wide} {self._reduced_in(node)}_nan = 0;"

    def _reduced_in(self, node: Node) -> str:
        """The variable that a reduction goes on in. Places are counted in 32 bits, as wide as numbers."""
        name = self.w.c(node.output)
        return f"{name}_first" if node.op in PLACES else name

    def _by_lanes(self, inside: list[Node]) -> str:
        """What lets each lane of a vector have a result of its own until the loop is over."""
        groups: dict[str, list[str]] = {}
        for node in inside:
            groups.setdefault(_JOINED[node.op], []).append(self._reduced_in(node))
            if node.output in self.beside_nan:
                groups.setdefault("|", []).append(f"{self._reduced_in(node)}_nan")
        clauses = [f" reduction({how} : {', '.join(names)})" for how, names in groups.items()]
        return f"#pragma omp simd{''.join(clauses)}"

    def _start(self, node: Node) -> str:
        """What a reduction of nothing is."""
        ends = ENDS.get(self.w.p.value(node.inputs[0]).dtype) if node.op in PLACES.values() else None
        return START[node.op] if ends is None else ends[node.op == "amin"]

    def _is_real(self, node: Node) -> bool:
        return self.w.p.value(node.output).dtype not in KINDS

    def _kind(self, name: str) -> str:
        """The C type of a value in a register."""
        return KINDS.get(self.w.p.value(name).dtype, self.w.real)

    def _looked_up(self, node: Node) -> list[Access]:
        """How a lookup walks its index, and the elements of a row of the table."""
        table, index = node.inputs
        row = self.w.p.value(table).shape[1:]
        lead = len(self.loop.shape) - len(row)
        seen = self.w.p.seen(index)
        strides = [0 if n == 1 else s for n, s in zip(seen.shape, seen.strides, strict=True)]
        strides += [0] * len(row)
        return [
            Access(seen.base, seen.offset, self.loop.shape, tuple(strides)),
            Access(f"row of {node.output}", 0, self.loop.shape, ((0,) * lead + contiguous(row))),
        ]

    def _open_at(self, node: Node) -> int:
        """The first of the innermost merged dimensions that a reduction goes over."""
        return self._still(self._reduced(node))

    def _still(self, seen: Access) -> int:
        """The first of the innermost merged dimensions along which an access stays where it is."""
        steps, at = self._steps(seen), len(self.dims)
        while at and not steps[at - 1]:
            at -= 1
        return at

    def _in_line(self, node: Node) -> bool:
        """True for a reduction that goes over dimensions with others inside of them, which it leaves."""
        return bool(self.dims) and not all(self._steps(self._reduced(node))[: self._open_at(node)])

    def _add_to_line(self, node: Node, text: str) -> str:
        """Take a number up into the results of a reduction that stand side by side."""
        place = f"{self.w.c(node.output)}_line[{self._index(self._reduced(node))}]"
        if node.op == "sum":
            return f"{place} += {text};"
        return f"{place} = {self._extreme(node, place, text)};"

    def _stored_line(self, node: Node) -> list[str]:
        """Copy such results to where they are read; copies into a `cat` are ops of their own."""
        c, homes = self.w.c(node.output), [] if self.w.lanes else self.w.homes.get(node.output, [])
        places = [self.w.pointer(node.output, home) for home in homes]
        size = self.w.p.value(node.output).size
        loops = self._loops("j", size, self.w.p.value(node.output).shape)
        return [text for place in places for text in (*loops, f"    {place}[j] = {c}_line[j];")]

    def _loops(self, variable: str, size: int, shape: tuple[int, ...]) -> list[str]:
        """The heads of the loops over elements: all, or of each block those of a thread's features."""
        count, outermost = self.w.features, outer(shape)[1]
        if count is None or outermost < count or outermost % count:
            return [f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable})"]
        block = size // (outermost // count)
        of = f" * {block // count}" if block > count else ""
        if block == size:
            return [f"for (int64_t {variable} = f0{of}; {variable} < f1{of}; ++{variable})"]
        own = f"for (int64_t {variable} = s0 + f0{of}; {variable} < s0 + f1{of}; ++{variable})"
        return [f"for (int64_t s0 = 0; s0 < {size}; s0 += {block})", own]

    def _extreme(self, node: Node, a: str, b: str) -> str:
        how = _JOINED[node.op]
        if not self._is_real(node):
            return f"{a} {'>' if how == 'max' else '<'} {b} ? {a} : {b}"
        return f"sn_{how}imum_{self.w.suffix}({a}, {b})"

    def _whole(self) -> Access:
        return Access.of("", self.shape)

    def _reduced(self, node: Node) -> Access:
        seen = Access.of(node.output, self.w.p.value(node.output).shape)
        return self._in_lanes(broadcast(seen, self.loop.shape))

    def _read(self, operand: str) -> Access:
        seen = self.w.p.seen(operand)
        return self._in_lanes(broadcast(seen, self.loop.shape) if self.loop.shape else seen)

    def _in_lanes(self, seen: Access) -> Access:
        """An access of one row, of rows abreast: each element stands beside those of the others."""
        lanes = self.w.lanes
        if not self.loop.shape:
            seen = Access(seen.base, seen.offset, (), ())
        if not lanes:
            return seen
        if self.w.is_shared(seen.base):
            return Access(seen.base, seen.offset, self.shape, (*seen.strides, 0))
        strides = (*(step * lanes for step in seen.strides), 1)
        return Access(seen.base, seen.offset * lanes, self.shape, strides)

    def _lane(self) -> Access:
        """Which of the rows abreast is at hand."""
        return Access("lane", 0, self.shape, (*(0 for _ in self.loop.shape), 1))

    def _steps(self, seen: Access) -> tuple[int, ...]:
        """The strides of an access along the merged dimensions."""
        return self.by_access[(seen.base, seen.offset, seen.strides)] if self.dims else ()

    def _index(self, seen: Access) -> str:
        strides = self._steps(seen)
        terms = []
        for variable, stride in zip(self.variables if self.dims else [], strides, strict=True):
            if stride == 1:
                terms.append(variable)
            elif stride:
                terms.append(f"{variable} * {stride}")
        if seen.offset or not terms:
            terms.append(str(seen.offset))
        return " + ".join(terms)

    def _operand(self, operand: str, seen: Access | None = None) -> str:
        w = self.w
        seen = self._read(operand) if seen is None else seen
        number = w.constant(seen.base)
        if number is not None:
            if w.p.value(seen.base).dtype in KINDS:
                return str(int(number))
            return literal(number, w.real)
        if seen.base in w.p.places:
            return f"({self._index(seen)})"
        if seen.base in self.registers:
            return w.c(seen.base)
        alone = seen.base in w.here and w.p.value(seen.base).size == 1 and not w.lanes
        if alone and not is_stored(w.made[seen.base]):
            return w.c(seen.base)
        return w.loaded(seen.base, f"{w.pointer(seen.base, None)}[{self._index(seen)}]")

    def _held(self, node: Node, at: int) -> str:
        """An operand that some lanes of a vector need. One that stays where it is is read before the loop: a
        compiler that reads it for those lanes alone has no vectors."""
        text, k = self._operand(node.inputs[at]), self._still(self._read(node.inputs[at]))
        if k == len(self.dims) or "[" not in text:
            return text
        name = f"{self.w.c(node.output)}_held{at}"
        self.before.setdefault(k, []).append(f"const {self._kind(node.inputs[at])} {name} = {text};")
        return name

    def _node(self, node: Node) -> None:
        w, p = self.w, self.w.p
        if node.op == "embed":
            given = [self._lookup(node)]
        elif node.op == "where":
            given = [self._held(node, at) for at in range(3)]
        else:
            given = [self._operand(n) for n in node.inputs]
        if node.op == "sum_rows":
            index = self._index(self._whole()) if self.dims else "0"
            if w.lanes:
                number = f"{self._index(self._lane())} < lanes ? {given[0]} : 0"
                self.body.append(f"{w.c(node.output)}_side[{index}] += {number};")
            else:
                self.body.append(f"{w.c(node.output)}_part[{index}] += {given[0]};")
            return
        if node.op == "sum_steps":
            index = self._index(self._whole()) if self.dims else "0"
            self.body.append(f"{w.pointer(node.output, None)}[{index}] += {given[0]};")
            return
        name = w.c(node.output)
        if OPS[node.op].stage is Stage.REDUCE:
            if node.op in PLACES:
                given = [self._first(node, *given)]
            if not self.shape:
                self.body.append(f"const {self._kind(node.output)} {name} = {given[0]};")
                self._store(node, name, self.body.append, None)
            elif self._open_at(node) == len(self.dims):
                self.body.append(self._add_to_line(node, given[0]))
            elif node.op == "sum":
                self.body.append(f"{name} += {given[0]};")
            elif node.output in self.beside_nan:
                beyond = ">" if _JOINED[node.op] == "max" else "<"
                self.body.append(f"{name} = {given[0]} {beyond} {name} ? {given[0]} : {name};")
                self.body.append(f"{name}_nan |= {given[0]} != {given[0]};")
            else:
                name = self._reduced_in(node)
                self.body.append(f"{name} = {self._extreme(node, name, given[0])};")
            return
        kind = KINDS.get(p.value(node.output).dtype, w.real)
        self.body.append(f"const {kind} {name} = {self._expression(node, given)};")
        self.registers.add(node.output)
        self._store(node, name, self.body.append, self._whole() if self.dims else None)

    def _first(self, node: Node, given: str, extreme: str) -> str:
        """The place of an element that is the extreme, which is NaN if there is one."""
        over = [k for k, step in enumerate(self._steps(self._reduced(node))) if not step]
        steps = [prod(self.dims[k] for k in over[at + 1 :]) for at in range(len(over))]
        names = [self.variables[k] for k in over]
        at = " + ".join(v if step == 1 else f"{v} * {step}" for v, step in zip(names, steps, strict=True))
        now, place = f"{self.w.c(node.output)}_now", f"{self.w.c(node.output)}_place"
        self.body.append(f"const {self._kind(node.inputs[0])} {now} = {given};")
        found = f"({now} == {extreme}) | ({now} != {now})"
        self.body.append(f"const int32_t {place} = {found} ? (int32_t)({at or 0}) : INT32_MAX;")
        return place

    def _lookup(self, node: Node) -> str:
        """An element of the row of a table that an index names; the row is found once where it can be."""
        w, (table, index) = self.w, node.inputs
        rows, *row = w.p.value(table).shape
        walk, column = self._looked_up(node) if self.shape else (None, None)
        at = f"{w.c(node.output)}_row"
        text = f"const int64_t {at} = sn_lookup({self._operand(index, walk)}, {rows}, &wrong);"
        k = len(self.dims)
        if walk is not None and (w.p.value(index).size == 1 or walk.base not in self.registers):
            k = self._still(walk)
        (self.body if k == len(self.dims) else self.before.setdefault(k, [])).append(text)
        inside = "0" if column is None else self._index(column)
        return w.loaded(table, f"{w.pointer(table, None)}[{at} * {prod(row)} + {inside}]")

    def _expression(self, node: Node, given: list[str]) -> str:
        op, w = node.op, self.w
        dtype = w.p.value(node.output).dtype
        if dtype in ENDS and op in WHOLE_NUMBERS:
            bits = 8 * dtype_of(dtype).itemsize
            return WHOLE_NUMBERS[op].format(*given, bits=bits, magnitude=bits - (dtype != "uint8"))
        if op in TEXTS:
            return TEXTS[op].format(*given)
        if op == "embed":
            return given[0]
        if op in CALLS:
            op = "exp_below" if op == "exp" and is_below_the_largest(w, node.inputs[0]) else op
            return f"sn_{op}_{w.suffix}({', '.join(given)})"
        if op == "neg":
            return f"-({given[0]})" if given[0].startswith("-") else f"-{given[0]}"
        if op == "reciprocal":
            return f"{literal(1, w.real)} / {given[0]}"
        if op == "cast":
            return self._cast(w.p.value(node.inputs[0]).dtype, dtype, given[0])
        raise Unsupported(f"the loop holds '{op}', which generated C does not do", line=node.line)

    def _cast(self, source: str, to: str, text: str) -> str:
        if to == "bool":
            return f"{text} != 0"
        if to in HALVES:
            return f"sn_round_{HALVES[to]}({text})"
        if to in WHOLE and source not in KINDS:
            return f"({KINDS[to]}){WHOLE[to]}({text})"
        if source == to:
            return text
        number = f"({KINDS.get(to, self.w.real)}){text}"
        return f"sn_of_whole_{self.w.suffix}({number})" if source in WHOLE and to not in KINDS else number

    def _store(self, node: Node, text: str, add: Callable[[str], Any], seen: Access | None) -> None:
        w = self.w
        text = w.stored(node.output, text)
        index = "0" if seen is None else self._index(seen)
        for home in w.homes.get(node.output, []) if not w.lanes else ():
            add(f"{w.pointer(node.output, home)}[{index}] = {text};")
        if node.output in w.lines:
            add(f"{w.c(node.output)}_line[{index}] = {text};")
        for cat, part in w.parts.get(node.output, []):
            at = self._index(self._in_lanes(part)) if seen is not None else str(part.offset)
            for home in w.homes[cat] if not w.lanes else [None]:
                add(f"{w.pointer(cat, home)}[{at}] = {text};")
