"""Products of two values of a row, and sums over its dimensions, as passes that walk memory as it lies.

Before: `sum(x, dims=0)` and `matmul(a, b)` with a matrix of each row; after: products of elements over
[.., M, K] or [.., K, N], in the order of the larger operand, and sums of them over whichever dimensions.
Views cost nothing in generated code, and a product is made in the pass that sums it: no memory holds it, and
it is made where the matrix is made or read anyway.

So are products of a state and a small weight, or one of each head: to call what multiplies many rows at a
time takes longer than to multiply, and threads take turns where no step needs such a call.

Before: `argmax(x)`; after: `argmax(x, amax(x))`, the first place where x is its largest: a search for the
largest alone can go through many elements at a time, and so can one for a number that is known.

Before: `gather(x, at)`, `scatter(x, at, v)`, `scatter_add(x, at, v)` with one place along a short dimension,
which is known to be there; after: a choice by `at == 0, 1, ..` among all elements, which is made where these
are made or read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from stepnet.ir.graph import Graph, Kind, Node, Value
from stepnet.ir.op_rules import broadcast
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import Region

from .views import VIEWS, Access, view

PLACES = {"argmax": "amax", "argmin": "amin"}
_REDUCTIONS = ("sum", "amax", "amin", *PLACES)
# Of a weight that is multiplied row by row: its lines, columns, numbers, those of all its heads (measured).
_LINES, _COLUMNS, _SMALL, _SMALL_HEADS = 8, 12, 64, 1 << 10
_SHORT = 8  # elements that are not worth a pass over vectors of them
_FEW = 16  # elements among which one is chosen sooner by looking at all


def in_memory_order(
    region: Region, values: dict[str, Value], tables: Collection[str]
) -> tuple[list[Node], dict[str, str], set[str]]:
    """The nodes of a scan with other nodes for such; the weights that these read, by the names they have
    there; and the values that are the places of elements along a dimension. `values` takes on what is new.
    `tables`: the values that are given for all rows."""
    made = _Rewriter(values, _in_steps(region, tables))
    return made.run(region.nodes), made.by_row, {*made.places.values()}


def _in_steps(region: Region, tables: Collection[str]) -> set[int]:
    """The nodes that wait for a state; not those that make rows for outside of rows for outside, which may
    be done for many rows at a time."""
    late = {carry.parameter for carry in region.carries if carry.parameter != carry.result}
    found: set[int] = set()
    for node in region.nodes:
        if not late.isdisjoint(node.inputs):
            late.update(node.outputs)
            if not set(tables).issuperset((node.inputs[0], node.output)):
                found.add(id(node))
    return found


def over_last(node: Node, values: Mapping[str, Value]) -> bool:
    """False for a reduction that ends with dimensions it leaves: its results are summed side by side."""
    if OPS[node.op].stage is not Stage.REDUCE:
        return True
    shape, dims = values[node.inputs[0]].shape, node.attr("dims")
    reduced = [d for d, size in enumerate(shape) if size != 1 and d in dims]
    left = [d for d, size in enumerate(shape) if size != 1 and d not in dims]
    return not reduced or not left or max(left) < min(reduced)


class _Rewriter:
    def __init__(self, values: dict[str, Value], in_steps: set[int]) -> None:
        self.values, self.in_steps = values, in_steps
        self.by_row: dict[str, str] = {}
        self.access: dict[str, Access] = {}
        self.out: list[Node] = []
        self.known: dict[tuple[str, str, frozenset[int]], str] = {}  # extremes
        self.places: dict[tuple[int, ...], str] = {}

    def run(self, nodes: Iterable[Node]) -> list[Node]:
        for node in nodes:
            if node.op in _REDUCTIONS:
                self._reduction(node)
            elif node.op == "matmul" and self._by_row(node):
                self._product(node)
            elif node.op in ("gather", "scatter", "scatter_add") and self._is_choice(node):
                self._choice(node)
            else:
                self._add(node)
        return self.out

    def _is_choice(self, node: Node) -> bool:
        """Whether a pick is of one place along a short dimension, and of each other, and surely there."""
        value, index = (self.values[name] for name in node.inputs[:2])
        dim, real = node.attr("dim"), value.dtype in ("float32", "float64")
        one = index.shape == (*value.shape[:dim], 1, *value.shape[dim + 1 :]) and value.shape[dim] <= _FEW
        return ("inside", True) in node.attrs and one and real

    def _choice(self, node: Node) -> None:
        """The same by a comparison: exact, for nothing is less than -inf, and a NaN stays one."""
        value, index = (self.values[name] for name in node.inputs[:2])
        dim, shape, line = node.attr("dim"), value.shape, node.line
        along = tuple(n if d == dim else 1 for d, n in enumerate(shape))
        if along not in self.places:
            self.places[along] = self._named(node.output, along, "int32", "shared")
        at = self._new("cast", (index.name,), node.output, index.shape, line, "int32")
        here = self._new("eq", (at, self.places[along]), node.output, shape, line, "bool")
        if node.op != "gather":
            put = node.inputs[2]
            if node.op == "scatter_add":
                put = self._new("add", (value.name, put), node.output, shape, line)
            self._add(Node("where", (here, put, value.name), node.outputs, (), line))
            return
        other = self._new("full", (), value.name, shape, line, value=float("-inf"))
        chosen = self._new("where", (here, value.name, other), value.name, shape, line)
        self._reduction(Node("amax", (chosen,), node.outputs, (("dims", (dim,)),), line))

    def _by_row(self, node: Node) -> bool:
        """Whether a product is made row by row: of two values of a row, or of a state and a weight so small
        that to call what multiplies many rows takes longer than to multiply."""
        weight = self.values[node.inputs[1]]
        if weight.kind != "shared":
            return True
        types = {self.values[name].dtype for name in (*node.inputs, node.output)}
        k, n = weight.shape[-2:]
        small = k <= _LINES and n <= _COLUMNS and k * n <= _SMALL and 0 < weight.size <= _SMALL_HEADS
        small = small and len(weight.shape) < 4
        return small and id(node) in self.in_steps and types in ({"float32"}, {"float64"})

    def _packed(self, name: str) -> Value:
        """A weight as it lies in memory line after line, whatever it is a view of."""
        if name not in self.by_row.values():
            shape, dtype = self.values[name].shape, self.values[name].dtype
            self.by_row[self._named(name, shape, dtype, "shared")] = name
        return next(self.values[packed] for packed, of in self.by_row.items() if of == name)

    def _add(self, node: Node) -> None:
        if node.op in VIEWS:
            seen = view(node, self.values[node.output].shape, self._seen(node.inputs[0]))
            if seen is not None:
                self.access[node.output] = seen
        self.out.append(node)

    def _seen(self, name: str) -> Access:
        """How the elements of a value lie in memory."""
        return self.access.get(name) or Access.of(name, self.values[name].shape)

    def _new(self, op: str, inputs: tuple[str, ...], like: str, shape: tuple[int, ...], line: str | None,
             dtype: str = "", **attrs: object) -> str:  # fmt: skip
        name = self._named(like, shape, dtype or self.values[like].dtype)
        self._add(Node(op, inputs, (name,), tuple(sorted(attrs.items())), line))
        return name

    def _named(self, like: str, shape: tuple[int, ...], dtype: str, kind: Kind = "row") -> str:
        """A name for a new value."""
        number = 0
        while (name := f"{like}_p{number}") in self.values:  # a user's name may look like one of these
            number += 1
        self.values[name] = Value(name, kind, shape, dtype)
        return name

    def _reduction(self, node: Node) -> None:
        source, shape = node.inputs[0], self.values[node.inputs[0]].shape
        place, dims = node.op in PLACES, self._dims(node)
        extreme = (PLACES.get(node.op, node.op), source, dims)
        if all(shape[d] == 1 for d in dims):
            if place:
                self._add(Node("full", (), node.outputs, (("value", 0),), node.line))
            else:
                self._reshaped(source, node)
            return
        if not place and extreme in self.known:
            self._reshaped(self.known[extreme], node)
            return
        steps = self._seen(source).strides
        order = sorted(range(len(shape)), key=lambda d: (steps[d] != 0, -abs(steps[d])))
        wide = [d for d in order if shape[d] != 1]
        if wide[-1] not in dims and shape[wide[-1]] < _SHORT:
            order.sort(key=lambda d: d in dims)  # an inner loop over what is summed
        counted = place and len(dims.intersection(wide)) > 1  # in the order of the dimensions
        if counted or [d for d in order if shape[d] != 1] == sorted(wide):
            order = list(range(len(shape)))
        last = tuple(at for at, d in enumerate(order) if d in dims)
        operands = [source, self._extreme(extreme, node)] if place else [source]
        operands = tuple(self._turned(name, order, node) for name in operands)
        self._turned_back(Node(node.op, operands, node.outputs, (("dims", last),), node.line), order)
        if node.op in PLACES.values():
            self.known[extreme] = node.output

    def _dims(self, node: Node) -> frozenset[int]:
        """The dimensions that a reduction goes over."""
        if node.op not in PLACES:
            return frozenset(node.attr("dims"))
        dim = node.attr("dim")
        return frozenset(range(len(self.values[node.inputs[0]].shape)) if dim is None else (dim,))

    def _extreme(self, of: tuple[str, str, frozenset[int]], node: Node) -> str:
        """The largest or smallest of a value over dimensions, found once."""
        if of not in self.known:
            op, source, dims = of
            shape = tuple(1 if d in dims else n for d, n in enumerate(self.values[source].shape))
            name = self._named(node.output, shape, self.values[source].dtype)
            self._reduction(Node(op, (source,), (name,), (("dims", tuple(sorted(dims))),), node.line))
        return self.known[of]

    def _turned(self, name: str, order: list[int], node: Node) -> str:
        """A value with its dimensions in another order."""
        shape, dtype = self.values[name].shape, self.values[name].dtype
        if order == sorted(order):
            return name
        turned = tuple(shape[d] for d in order)
        return self._new("permute", (name,), node.output, turned, node.line, dtype, dims=tuple(order))

    def _turned_back(self, node: Node, order: list[int]) -> None:
        """Add a reduction of turned values, and what turns its result back."""
        if order == sorted(order):
            self._add(node)
            return
        shape, dims = self.values[node.inputs[0]].shape, node.attr("dims")
        small = tuple(1 if d in dims else n for d, n in enumerate(shape))
        total = self._new(node.op, node.inputs, node.output, small, node.line, dims=dims)
        back = tuple(order.index(d) for d in range(len(order)))
        self._add(Node("permute", (total,), node.outputs, (("dims", back),), node.line))

    def _product(self, node: Node) -> None:
        a, b = (self.values[name] for name in node.inputs)
        if b.kind == "shared":
            b = self._packed(b.name)
        m, k, n = sizes(self.values, node)
        lead = broadcast([a.shape[:-2], b.shape[:-2]]) or ()
        axes = _walk(m, k, n, _last_steps(self._seen(a.name)), _last_steps(self._seen(b.name)))
        if b.kind == "shared" and axes == "nk":
            axes = "kn"
        if axes == "mkn" and _by_columns(self._seen(b.name)):
            b = self.values[self._new("copy", (b.name,), node.output, b.shape, node.line)]
        size_of = {"m": m, "k": k, "n": n}

        def factor(value: Value, own: str) -> str:
            """An operand with a dimension for each axis: its size where it has the axis, else 1."""
            shape = (1,) * (2 - len(value.shape)) + value.shape
            name, head = value.name, shape[:-2]
            if [axis for axis in axes if axis in own] == [*reversed(own)]:
                name = self._new("reshape", (name,), node.output, shape, node.line)
                turn = (*range(len(head)), len(head) + 1, len(head))
                shape = (*head, shape[-1], shape[-2])
                name = self._new("permute", (name,), node.output, shape, node.line, dims=turn)
            full = (*head, *(size_of[axis] if axis in own else 1 for axis in axes))
            return self._new("reshape", (name,), node.output, full, node.line)

        whole = (*lead, *(size_of[axis] for axis in axes))
        parts = self._new("mul", (factor(a, "mk"), factor(b, "kn")), node.output, whole, node.line)
        if "k" in axes:
            at = len(lead) + axes.index("k")
            small = (*whole[:at], 1, *whole[at + 1 :])
            parts = self._new("sum", (parts,), node.output, small, node.line, dims=(at,))
        if "n" in axes and "m" in axes and axes.index("n") < axes.index("m"):
            flat = self._new("reshape", (parts,), node.output, (*lead, n, m), node.line)
            turn = (*range(len(lead)), len(lead) + 1, len(lead))
            parts = self._new("permute", (flat,), node.output, (*lead, m, n), node.line, dims=turn)
        self._reshaped(parts, node)

    def _reshaped(self, total: str, node: Node) -> None:
        self._add(Node("reshape", (total,), node.outputs, (), node.line))


def sizes(values: Mapping[str, Value], node: Node) -> tuple[int, int, int]:
    """Of a product [.., M, K] x [.., K, N]: M, K and N."""
    a, b = (values[name].shape for name in node.inputs)
    return (a[-2] if len(a) > 1 else 1), b[-2], b[-1]


def walk(body: Graph, node: Node) -> str:
    """The axes m, k and n of a product of two matrices of a row, as a pass goes over them."""

    def seen(name: str) -> Access:
        maker, shape = body.producers.get(name), body.values[name].shape
        found = view(maker, shape, seen(maker.inputs[0])) if maker is not None and maker.op in VIEWS else None
        return found or Access.of(name, shape)

    a, b = (_last_steps(seen(name)) for name in node.inputs)
    return _walk(*sizes(body.values, node), a, b)


def _by_columns(seen: Access) -> bool:
    """Whether a matrix lies in memory column after column."""
    down, across = _last_steps(seen)
    return down < across


def _last_steps(seen: Access) -> tuple[int, int]:
    """How far apart the elements of a matrix are in memory, down and across."""
    down, across = (0, *seen.strides)[-2:]
    return abs(down), abs(across)


def _walk(m: int, k: int, n: int, a: Sequence[int], b: Sequence[int]) -> str:
    """The order in which a product goes over rows m of the first matrix, columns n of the second, and k.

    The last axis is one of neighbours in memory, of the larger matrix if not of both; or many short sums go
    side by side over a copy of the second matrix, for to add up each takes longer than its products. Axes of
    one are left out.

    >>> _walk(1, 64, 32, (0, 1), (32, 1)), _walk(1, 64, 32, (0, 1), (1, 64)), _walk(8, 8, 8, (8, 1), (8, 1))
    ('kn', 'nk', 'mkn')
    >>> _walk(32, 8, 32, (8, 1), (1, 8)), _walk(4, 128, 8, (128, 1), (1, 128))
    ('mkn', 'mnk')
    """
    by_rows, by_columns = b[0] < b[1], a[0] < a[1]  # does the matrix lie in memory column after column?
    across, down = not by_rows and n >= _SHORT, by_columns and m >= _SHORT
    copied = n >= _SHORT and k <= min(2 * n, 4 * m)  # measured
    if m == 1:
        order = "kn" if across else "nk"
    elif n == 1:
        order = "km" if down else "mk"
    else:
        order = "mkn" if across else "nkm" if down else "mkn" if copied else "mnk"
    return "".join(axis for axis in order if {"m": m, "k": k, "n": n}[axis] != 1)
