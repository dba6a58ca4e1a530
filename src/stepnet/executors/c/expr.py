"""The text of one loop of a row function."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf, isnan, prod
from typing import Any

from stepnet.errors import Unsupported
from stepnet.executors.schedule.loops import Loop
from stepnet.executors.schedule.views import Access, broadcast, collapse, contiguous
from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, Stage

from .places import HALVES, Places

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_CALLS = frozenset(
    {
        "exp",
        "expm1",
        "tanh",
        "sigmoid",
        "log",
        "log1p",
        "erf",
        "sqrt",
        "rsqrt",
        "abs",
        "floor",
        "ceil",
        "trunc",
        "round",
        "relu",
        "sign",
        "maximum",
        "minimum",
        "sin",
        "cos",
        "pow",
        "remainder",
    }
)
_START = {"sum": "0", "amax": "-INFINITY", "amin": "INFINITY", "argmax": "-INFINITY", "argmin": "INFINITY"}
_KINDS = {"bool": "int", "int64": "int64_t"}  # of a value in a register; else real


def literal(number: float, real: str) -> str:
    """A number as C writes it.

    >>> literal(0.05, "float"), literal(1, "double")
    ('0.05f', '1.0')
    """
    tail = "f" if real == "float" else ""
    if isnan(number):
        return "NAN"
    if isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(float(number)) + tail


def loop_text(w: Places, loop: Loop, depth: int = 3) -> list[str]:
    """The lines of one loop, its reductions' variables included."""
    text = _LoopText(w, loop, depth)
    return text.lines()


class _LoopText:
    def __init__(self, w: Places, loop: Loop, depth: int) -> None:
        self.w, self.loop, self.depth = w, loop, depth
        self.registers: set[str] = set()
        self.used: list[Access] = []
        self.before: list[str] = []
        self.body: list[str] = []

    def lines(self) -> list[str]:
        w, loop = self.w, self.loop
        accesses: list[Access] = [self._whole()]
        for node in loop.nodes:
            if node.op == "embed" and loop.shape:
                accesses += self._looked_up(node)
            for operand in node.inputs if node.op != "embed" else ():
                accesses.append(self._read(operand))
            for name in node.outputs:
                for _, seen in w.parts.get(name, []):
                    accesses.append(seen)
                if OPS[node.op].stage is Stage.REDUCE and loop.shape:
                    accesses.append(self._reduced(node))
        dims, strides = collapse(loop.shape, [a.strides for a in accesses], loop.keep)
        self.dims = dims
        self.by_access = {(a.base, a.offset, a.strides): s for a, s in zip(accesses, strides, strict=True)}
        self.kept = kept = self._kept_dims(dims)
        self.variables = [f"j{k}" for k in range(len(dims))] if len(dims) > 1 else ["j"][: len(dims)]
        reductions = [n for n in loop.nodes if OPS[n.op].stage is Stage.REDUCE]
        for node in loop.nodes:
            self._node(node)
        out: list[str] = []

        def line(text: str, extra: int) -> None:
            out.append("    " * (self.depth + extra) + text)

        if not dims:
            return ["    " * self.depth + text for text in self.body]
        for text in self.before:
            line(text, 0)
        for node in reductions:
            if kept == 0:
                line(self._open(node), 0)
        for k, (size, variable) in enumerate(zip(dims, self.variables, strict=True)):
            if k == kept and kept > 0:
                for node in reductions:
                    line(self._open(node), k)
            if k == len(dims) - 1:
                sums = [w.c(n.output) for n in reductions if n.op == "sum"]
                clause = f" reduction(+ : {', '.join(sums)})" if sums else ""
                if all(n.op == "sum" for n in reductions):
                    line(f"#pragma omp simd{clause}", k)
            line(f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable}) {{", k)
        for text in self.body:
            line(text, len(dims))
        for k in reversed(range(len(dims))):
            line("}", k)
            if k == kept and kept > 0:
                for node in reductions:
                    self._store(node, w.c(node.output), lambda t, k=k: line(t, k), self._reduced(node))
        if kept == 0:
            for node in reductions:
                self._store(node, w.c(node.output), lambda t: line(t, 0), None)
        return out

    def _open(self, node: Node) -> str:
        """The variables of a reduction."""
        name, start = self.w.c(node.output), _START[node.op]
        if node.op in ("argmax", "argmin"):
            return f"{self.w.real} {name}_best = {start}; int64_t {name} = 0;"
        return f"{self.w.real} {name} = {start};"

    def _looked_up(self, node: Node) -> list[Access]:
        """How a lookup walks its index, and the elements of a row of the table."""
        table, index = node.inputs
        row = self.w.p.value(table).shape[1:]
        lead = len(self.loop.shape) - len(row)
        shape = self.w.p.value(index).shape
        seen = self.w.p.access.get(index) or Access(index, 0, shape, contiguous(shape))
        strides = [0 if n == 1 else s for n, s in zip(seen.shape, seen.strides, strict=True)]
        strides += [0] * len(row)
        return [
            Access(seen.base, seen.offset, self.loop.shape, tuple(strides)),
            Access(f"row of {node.output}", 0, self.loop.shape, ((0,) * lead + contiguous(row))),
        ]

    def _kept_dims(self, dims: tuple[int, ...]) -> int:
        """How many of the merged dimensions lie before the reduced ones."""
        wanted, kept, size = prod(self.loop.shape[: self.loop.keep]), 0, 1
        while size < wanted:
            size *= dims[kept]
            kept += 1
        return kept

    def _whole(self) -> Access:
        return Access("", 0, self.loop.shape, contiguous(self.loop.shape))

    def _reduced(self, node: Node) -> Access:
        shape = self.w.p.value(node.output).shape
        return broadcast(Access(node.output, 0, shape, contiguous(shape)), self.loop.shape)

    def _read(self, operand: str) -> Access:
        p = self.w.p
        seen = p.access.get(operand)
        if seen is None:
            shape = p.value(operand).shape
            seen = Access(operand, 0, shape, contiguous(shape))
        if not self.loop.shape:
            return Access(seen.base, seen.offset, (), ())
        return broadcast(seen, self.loop.shape)

    def _index(self, seen: Access) -> str:
        strides = self.by_access[(seen.base, seen.offset, seen.strides)] if self.dims else ()
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
            if w.p.value(seen.base).dtype in _KINDS:
                return str(int(number))
            return literal(number, w.real)
        if seen.base in self.registers:
            return w.c(seen.base)
        if seen.base in w.here and w.p.value(seen.base).size == 1 and w.made[seen.base].op != "cat":
            return w.c(seen.base)
        return w.loaded(seen.base, f"{w.pointer(seen.base, None)}[{self._index(seen)}]")

    def _node(self, node: Node) -> None:
        w, p = self.w, self.w.p
        given = [self._operand(n) for n in node.inputs] if node.op != "embed" else [self._lookup(node)]
        if node.op == "sum_rows":
            index = self._index(self._whole()) if self.dims else "0"
            self.body.append(f"{w.c(node.output)}_part[{index}] += {given[0]};")
            return
        name = w.c(node.output)
        if OPS[node.op].stage is Stage.REDUCE:
            if node.op in ("argmax", "argmin"):
                self._arg(node, name, given[0])
            elif not self.loop.shape:
                self.body.append(f"const {w.real} {name} = {given[0]};")
                self._store(node, name, self.body.append, None)
            elif node.op == "sum":
                self.body.append(f"{name} += {given[0]};")
            else:
                call = {"amax": "maximum", "amin": "minimum"}[node.op]
                self.body.append(f"{name} = sn_{call}_{w.suffix}({name}, {given[0]});")
            return
        kind = _KINDS.get(p.value(node.output).dtype, w.real)
        self.body.append(f"const {kind} {name} = {self._expression(node, given)};")
        self.registers.add(node.output)
        self._store(node, name, self.body.append, self._whole() if self.dims else None)

    def _arg(self, node: Node, name: str, given: str) -> None:
        """As torch has it: the first of equals, and a NaN before all numbers."""
        if not self.loop.shape:
            self.body.append(f"const int64_t {name} = 0;")
            self._store(node, name, self.body.append, None)
            return
        sizes, names = self.dims[self.kept :], self.variables[self.kept :]
        steps = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
        at = " + ".join(v if step == 1 else f"{v} * {step}" for v, step in zip(names, steps, strict=True))
        best, worse = f"{name}_best", "<=" if node.op == "argmax" else ">="
        self.body.append(f"const {self.w.real} {name}_now = {given};")
        self.body.append(f"if (!({name}_now {worse} {best}) && {best} == {best}) {{")
        self.body.append(f"    {best} = {name}_now;")
        self.body.append(f"    {name} = {at};")
        self.body.append("}")

    def _lookup(self, node: Node) -> str:
        """An element of the row of a table that an index names; the row is found once where it can be."""
        w, (table, index) = self.w, node.inputs
        rows, *row = w.p.value(table).shape
        walk, column = self._looked_up(node) if self.loop.shape else (None, None)
        at = f"{w.c(node.output)}_row"
        alone = w.p.value(index).size == 1
        text = f"const int64_t {at} = sn_lookup({self._operand(index, walk)}, {rows}, &wrong);"
        (self.before if alone and self.dims else self.body).append(text)
        inside = "0" if column is None else self._index(column)
        return w.loaded(table, f"{w.pointer(table, None)}[{at} * {prod(row)} + {inside}]")

    def _expression(self, node: Node, given: list[str]) -> str:
        op, w = node.op, self.w
        if op in _INFIX:
            return f"{given[0]} {_INFIX[op]} {given[1]}"
        if op in _CALLS:
            return f"sn_{op}_{w.suffix}({', '.join(given)})"
        if op == "neg":
            return f"-({given[0]})" if given[0].startswith("-") else f"-{given[0]}"
        if op == "reciprocal":
            return f"{literal(1, w.real)} / {given[0]}"
        if op in ("copy", "embed"):
            return given[0]
        if op == "not":
            return f"!{given[0]}"
        if op == "isnan":
            return f"{given[0]} != {given[0]}"
        if op == "where":
            return f"{given[0]} ? {given[1]} : {given[2]}"
        if op == "cast":
            to = w.p.value(node.output).dtype
            if to == "bool":
                return f"{given[0]} != 0"
            if to in HALVES:
                return f"sn_round_{HALVES[to]}({given[0]})"
            source = w.p.value(node.inputs[0]).dtype
            return f"({_KINDS.get(to, w.real)}){given[0]}" if source != to else given[0]
        if op == "full":
            number = node.attr("value")
            return str(int(number)) if w.p.value(node.output).dtype in _KINDS else literal(number, w.real)
        raise Unsupported(f"the loop holds '{op}', which generated C does not do", line=node.line)

    def _store(self, node: Node, text: str, add: Callable[[str], Any], seen: Access | None) -> None:
        w = self.w
        text = w.stored(node.output, text)
        index = "0" if seen is None else self._index(seen)
        for home in w.homes.get(node.output, []):
            add(f"{w.pointer(node.output, home)}[{index}] = {text};")
        if node.output in w.lines:
            add(f"{w.c(node.output)}_line[{index}] = {text};")
        for cat, part in w.parts.get(node.output, []):
            at = self._index(part) if seen is not None else str(part.offset)
            for home in w.homes[cat]:
                add(f"{w.pointer(cat, home)}[{at}] = {text};")
