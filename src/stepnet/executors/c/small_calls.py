"""A line of small calls as one function in C: torch takes longer to call each than it takes to compute."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.unpatched_torch import data_ptr, empty, empty_on_cpu
from stepnet.errors import BuildError, Unsupported
from stepnet.executors.line import Line, Op, Otherwise, Place, Run, places_in

from .build import build, preamble
from .cells import steps_text
from .numbers import OF_LIBM, TEXTS, literal
from .places import padded
from .weight_memory import worth_packing, worth_panels, worth_turning

_KINDS = {"float32": ("float", 4), "int64": ("int64_t", 8), "bool": ("uint8_t", 1)}
_AT_ONCE = 96  # columns whose products are turned together: sn_some of sn_matmul.h
_OVER = {  # numbers along axes: what is found before the first, and what each does to it
    "sum": ("double found = 0;", "found += {0};"),
    "most": ("float found = -INFINITY;", "{{ float x = {0}; found = x > found || x != x ? x : found; }}"),
}
_TEXTS = {  # others are functions
    **TEXTS, "neg": "-{0}", "leaky": "{0} > 0 ? {0} : {0} * {1}", "and": "{0} && {1}", "or": "{0} || {1}",
    "square": "{0} * {0}", "reciprocal": "1.0f / {0}",
}  # fmt: skip


def line_in_c(line: Line) -> Run:
    """A function of the tensors that a line is given.

    Raises:
        Unsupported: it cannot be built.
    """
    writer = _Writer(line)
    text, size = writer.text()
    libm = any(op.name in OF_LIBM for op in line.ops)
    try:
        library = build(preamble("f32", linked=True) + text, "f32", libm=libm)
        function = library.function("run", ctypes.c_void_p)
    except BuildError as problem:
        raise Unsupported("a line of calls cannot be built", remedy="see the compiler's message") from problem
    shapes = [(place.shape, place.strides, dtype_of(place.kind)) for place in line.made]
    held = [*line.held.values()]
    count, first = len(line.given), 2 + len(line.held)
    last = first + count + len(shapes)
    idle: list[tuple[array[int], Tensor]] = []  # list.pop and append are atomic

    def desk() -> tuple[array[int], Tensor]:
        space = empty(size + 64, dtype=torch.uint8, device="cpu")
        numbers = array("q", bytes(8 * last))
        numbers[1] = padded(data_ptr(space))
        numbers[2:first] = array("q", map(data_ptr, held))
        return numbers, space

    def run(*given: Tensor) -> Sequence[Tensor]:
        made = [empty_on_cpu(*each) for each in shapes]
        try:
            numbers, space = idle.pop()
        except IndexError:
            numbers, space = desk()
        numbers[first:last] = array("q", [*map(data_ptr, given), *map(data_ptr, made)])
        function(numbers.buffer_info()[0])
        ended = numbers[0]
        idle.append((numbers, space))
        if ended:
            raise Otherwise
        return made

    return run


class _Writer:
    """Writes the C of a line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.size = self.panel = self.turned = 0

    def text(self) -> tuple[str, int]:
        """The source, and the bytes of its workspace."""
        kinds: dict[Any, str] = {}
        for op in self.line.ops:
            for place in (*places_in(op), *([op.to] if op.to is not None else [])):
                kinds.setdefault(place.memory, place.kind)
        outside = [*self.line.held, *self.line.given, *(place.memory for place in self.line.made)]
        head = ["void run(int64_t *restrict a) {", "    a[0] = 0;"]
        for at, memory in enumerate(outside):
            self._name(memory)
            if memory in kinds:
                kind = _KINDS[kinds[memory]][0]
                head.append(f"    {kind} *{self.names[memory]} = ({kind} *)a[{2 + at}];")
        for memory, kind in kinds.items():
            if memory not in self.names:
                name, (real, bytes_of) = self._name(memory), _KINDS[kind]
                head.append(f"    {real} *{name} = ({real} *)(a[1] + {self.size});")
                self.size = padded(self.size + bytes_of * self.line.counts[memory])
        for op in self.line.ops:
            self._op(op)
        if self.panel:  # of a matrix, in vectors of 64 bytes
            head.append(f"    float *panel = {self._room(4 * 64 * self.panel)};")
        if self.turned:
            head.append(f"    float *turned = {self._room(4 * self.turned)};")
        return "\n".join([*head, *self.lines, "}"]), self.size

    def _room(self, size: int) -> str:
        """Memory for so many bytes of the workspace."""
        at, self.size = self.size, padded(self.size + size)
        return f"(float *)(a[1] + {at})"

    def _name(self, memory: Any) -> str:
        return self.names.setdefault(memory, f"m{len(self.names)}")

    def _op(self, op: Op) -> None:
        if op.name == "expect":
            (place,) = op.given
            self.lines.append(f"    if ({self._at(place)} != {int(op.number)}) {{ a[0] = 1; return; }}")
            return
        assert op.to is not None
        if 0 in op.to.shape:
            return
        if op.name == "product":
            self.lines.append(f"    {self._product(self._rows(op.to), self._rows(op.given[0]), *op.given)}")
        elif op.name in ("lstm", "gru", "rnn"):
            self._steps(op.name, op.to, *op.given, backwards=bool(op.number))
        elif op.name in _OVER:
            self._over(op.name, op.to, *op.given)
        elif op.name == "pick":
            self._pick(op.to, *op.given, axis=op.number)
        elif op.name == "pow" and isinstance(op.given[1], Place):
            # one exponent, which is mostly 2
            self.lines.append(f"    if ({self._at(op.given[1])} == 2.0f) {{")
            self._each("square", op.to, op.given[:1])
            self.lines.append("    } else {")
            self._each("pow", op.to, op.given)
            self.lines.append("    }")
        else:
            self._each(op.name, op.to, op.given)

    def _at(self, place: Place, steps: str = "") -> str:
        where = f"{place.begin}{steps}" if place.begin else steps.removeprefix(" + ") or "0"
        return f"{self.names[place.memory]}[{where}]"

    def _each(self, name: str, to: Place, given: Sequence[Any]) -> None:
        places = [place for place in given if isinstance(place, Place)]
        strides = [_over(place, to.shape) for place in places]
        dims = _merged(sorted(zip(to.shape, to.strides, *strides, strict=True), key=lambda dim: -dim[1]))
        steps = ["".join(f" + i{d} * {dim[k]}" for d, dim in enumerate(dims) if dim[k]) for k in
                 range(1, 2 + len(places))]  # fmt: skip
        texts = iter([self._at(place, step) for place, step in zip(places, steps[1:], strict=True)])
        real = next((place.kind for place in places if place.kind != "bool"), to.kind)
        operands = [next(texts) if isinstance(v, Place) else _number(v, real) for v in given]
        said = _TEXTS.get(name)
        value = said.format(*operands) if said else f"sn_{name}_f32({', '.join(operands)})"
        self._loops([dim[0] for dim in dims], [f"{self._at(to, steps[0])} = {value};"])

    def _loops(self, sizes: Sequence[int], body: Sequence[str]) -> None:
        lines = []
        for d, size in enumerate(sizes):
            if d == len(sizes) - 1:
                lines.append('    _Pragma("omp simd")')
            lines.append(f"    for (int64_t i{d} = 0; i{d} < {size}; ++i{d})")
        self.lines += [*lines, "    {", *(f"        {line}" for line in body), "    }"]

    def _start(self, place: Place) -> str:
        return f"{self.names[place.memory]} + {place.begin}"

    def _rows(self, place: Place) -> str:
        return f"(sn_rows_f32){{{self._start(place)}, {place.strides[0]}, 0}}"

    def _product(self, to: str, rows: str, of: Place, matrix: Place) -> str:
        (count, depth), columns = of.shape, matrix.shape[1]
        lies = f"{self._start(matrix)}, {matrix.strides[0]}, {matrix.strides[1]}"
        if worth_turning(count, matrix.shape, matrix.strides):
            self.turned = max(self.turned, (depth + _AT_ONCE) * count)
            lies = f"{self._start(matrix)}, {matrix.strides[1]}"
            return f"sn_by_turned_f32({to}, {rows}, {lies}, {count}, {depth}, {columns}, turned);"
        if count >= worth_panels(matrix.shape, matrix.strides):
            self.panel = max(self.panel, depth)
            return f"sn_by_panels_f32({to}, {rows}, {lies}, {count}, {depth}, {columns}, panel);"
        return f"sn_few_f32({to}, {rows}, {lies}, {count}, {depth}, {columns});"

    def _steps(
        self, kind: str, to: Place, of_x: Place, first: Place, parts: Sequence[Place], room: Place,
        order: Sequence[int], *more: Place, backwards: bool,
    ) -> None:  # fmt: skip
        (count, depth), columns, matrix = first.shape, room.shape[1], parts[0]
        names = [self._start(place) for place in (to, of_x, first, room, *more)]
        if len(parts) > 1:
            product = ""
            for part in parts:
                product += self._product(self._rows(room), "before", first, part) + " "
                room = room._replace(begin=room.begin + part.shape[1])
        # of one step, each panel of the matrix is used once
        elif to.shape[0] > 1 and to.shape[0] * count >= worth_packing(4 * depth * columns):
            packed = self._room(4 * depth * padded(columns))
            lies = f"{self._start(matrix)}, {matrix.strides[0]}, {matrix.strides[1]}"
            self.lines.append(f"    sn_pack_f32({packed}, {lies}, {depth}, {columns});")
            none, made = "(sn_rows_f32){0, 0, 0}", self._rows(room)
            product = f"sn_matmul_f32({made}, {none}, before, {packed}, {count}, {depth}, {columns});"
        else:
            product = self._product(self._rows(room), "before", first, matrix)
        steps, batch, hidden = to.shape
        self.lines += steps_text(kind, names, order, (steps, batch, hidden), product, backwards=backwards)

    def _over(self, name: str, to: Place, x: Place) -> None:
        first, turn = _OVER[name]
        axes = [k for k, (n, m) in enumerate(zip(x.shape, to.shape, strict=True)) if n != m]
        kept = [k for k in range(len(x.shape)) if k not in axes and to.shape[k] > 1]
        lines = [f"    for (int64_t i{k} = 0; i{k} < {to.shape[k]}; ++i{k}) {{" for k in kept]
        lines.append(f"    {first}")
        lines += [f"    for (int64_t i{k} = 0; i{k} < {x.shape[k]}; ++i{k})" for k in axes]
        if name == "sum" and axes and x.strides[axes[-1]] == 1:  # one by one each waits for the one before
            lines.insert(-1, '    _Pragma("omp simd reduction(+:found)")')
        from_there = "".join(f" + i{k} * {x.strides[k]}" for k in (*kept, *axes))
        there = "".join(f" + i{k} * {to.strides[k]}" for k in kept)
        turn = turn.format(self._at(x, from_there))
        lines += [f"        {turn}", f"    {self._at(to, there)} = (float)found;"]
        self.lines += [*(["    {"] if not kept else []), *lines, "    " + "}" * max(len(kept), 1)]

    def _pick(self, to: Place, x: Place, index: Place, axis: int) -> None:
        sizes = range(len(to.shape))
        there = "".join(f" + i{k} * {to.strides[k]}" for k in sizes)
        at = self._at(index, f" + i{axis} * {index.strides[0]}")
        from_there = "".join(f" + {at if k == axis else f'i{k}'} * {x.strides[k]}" for k in sizes)
        self._loops(to.shape, [f"{self._at(to, there)} = {self._at(x, from_there)};"])


def _number(value: float, kind: str) -> str:
    return literal(value, "float") if kind == "float32" else str(int(value))


def _over(place: Place, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a place for all numbers of a shape; those of what is the same along an axis are 0."""
    missing = len(shape) - len(place.shape)
    own = zip(place.shape, place.strides, strict=True)
    return (*[0] * missing, *(0 if size == 1 else stride for size, stride in own))


def _merged(dims: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Axes that are walked as one in all places."""
    found: list[tuple[int, ...]] = []
    for dim in dims:
        if dim[0] == 1:
            continue
        if found and all(a == b * dim[0] for a, b in zip(found[-1][1:], dim[1:], strict=True)):
            found[-1] = (found[-1][0] * dim[0], *dim[1:])
        else:
            found.append(dim)
    return found
