"""Calls of torch that were noted, as operations on numbers whose places are known (`executors.line`)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.executors.line import Line, Memory, Op, Place, in_one_piece, places_in

from .calls import Slot
from .put_together import PUT_TOGETHER, Part, columns_of

_DTYPES = torch.float32, torch.int64, torch.bool
_MOST_NUMBERS = 2**15  # that one call makes: of more, torch's own are as fast
MOST_ROWS, _MOST_PRODUCT = 64, 2**25  # of rows and a matrix; multiplications: torch packs the matrix anew
_MOST_PARTS = 2**20  # numbers that are put together, which products read where they stand
_LEAST_COLUMNS = 16  # of a part, of fewer a product with each takes longer than to put them together
_MOST_MATRICES = 64  # of one call, each a product in the text of a line
Take = Callable[..., None]


class Unfit(Exception):
    """A call is not one that a line may hold."""


def place_of(tensor: Tensor, memory: Memory, begin: int = 0) -> Place | None:
    """Where the numbers of a tensor stand in a memory; None: no line may hold it."""
    if tensor.dtype not in _DTYPES or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    return Place(memory, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), begin)


class Lowering:
    """The operations of calls.

    Args:
        places: where the tensors of slots stand.
    """

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._new = itertools.count()
        self.ops: list[Op] = []
        self.counts: dict[Memory, int] = {}
        self.held: dict[Memory, Tensor] = {}
        self._of_held: dict[int, Place] = {}
        self._parts: dict[Memory, list[Part]] = {}  # of memories that are put together of others

    def take_steps(self, steps: Any, arguments: Sequence[Any], to: Sequence[Any]) -> bool:
        """Add a cell over a few steps (`short_cells.FewSteps`); whether a line may hold it."""
        before = len(self.ops)
        try:
            steps.lower(self, [self._made(slot) for slot in to], [self._given(value) for value in arguments])
        except Unfit:
            del self.ops[before:]
            return False
        return True

    def take(self, name: str, positional: Sequence[Any], named: Mapping[str, Any], to: Sequence[Any]) -> bool:
        """Add a call; whether it is one that a line may hold."""
        known, before = TABLE.get(name), len(self.ops)
        if known is None:
            return False
        try:
            made = [self._made(slot, _MOST_PARTS if name in PUT_TOGETHER else _MOST_NUMBERS) for slot in to]
            known(self, made[0] if len(made) == 1 else made, *map(self._given, positional),
                  **{key: self._given(value) for key, value in named.items()})  # fmt: skip
        except (Unfit, TypeError, AttributeError, ValueError, IndexError):  # of other ways to call it, too
            del self.ops[before:]
            return False
        return True

    def expect(self, slot: int, number: Any) -> bool:
        """Add that a value is a number."""
        place = self._places.get(slot)
        if place is None or place.kind == "float32" or math.prod(place.shape) != 1:
            return False
        self.ops.append(Op("expect", None, (place,), int(number)))
        return True

    def alone(self, slots: Collection[int], views: Sequence[int]) -> dict[int, int]:
        """Of slots, the only one of the views of it, where that shows all its numbers: it is made as that."""
        memories = [self._places[view].memory for view in views]
        found = dict[int, int]()
        for view, slot in zip(views, memories, strict=True):
            place = self._places[view]
            whole = not place.begin and math.prod(place.shape) == self.counts.get(slot)
            alone = slot in slots and memories.count(slot) == 1
            if isinstance(slot, int) and alone and whole and _in_one_piece(place):
                found[slot] = view
        return found

    def line(self, given: Sequence[Memory], made: Sequence[int]) -> Line:
        """The line, of memories that it is given, and slots that it makes: each all numbers of a memory."""
        written = {op.to.memory for op in self.ops if op.to is not None}
        whole = [self._places[slot] for slot in made]
        assert written.issuperset(place.memory for place in whole)
        used = {place.memory for op in self.ops for place in places_in(op)}
        held = {memory: tensor for memory, tensor in self.held.items() if memory in used}
        return Line(tuple(self.ops), tuple(given), tuple(whole), held, self.counts)

    def without_idle(self, made: Collection[int]) -> None:
        """Leave out what puts parts together that are read where they stand alone.

        Args:
            made: slots that are results.
        """
        while True:
            used = {place.memory for op in self.ops for place in places_in(op)} | {*made}
            idle = self._parts.keys() - used
            left = [op for op in self.ops if op.to is None or op.to.memory not in idle]
            if len(left) == len(self.ops):
                return
            self.ops = left

    def put(self, to: Place, part: Place) -> None:
        """Copy a part of what is put together."""
        self.copy(to, part)
        if to.kind == part.kind == "float32":
            self._parts.setdefault(to.memory, []).append(Part(to, part))

    def columns(self, matrix: Place) -> list[tuple[int, Place]]:
        """Where the columns of a matrix [K, N] stand, and at which of them each part begins."""
        parts = self._parts.get(matrix.memory)
        found = None if parts is None else columns_of(matrix, parts)
        if found is None or any(1 not in place.strides for _, place in found):
            return [(0, matrix)]
        if len(found) > 1 and any(place.shape[1] < _LEAST_COLUMNS for _, place in found):
            return [(0, matrix)]
        return [(at + k, column) for at, place in found for k, column in self.columns(place)]

    def _made(self, slot: int, most: int = _MOST_NUMBERS) -> Place:
        place = self._places.get(slot)
        if place is None or place.memory != slot or math.prod(place.shape) > most or not _in_one_piece(place):
            raise Unfit
        self.counts[place.memory] = math.prod(place.shape)
        return place

    def _given(self, value: Any) -> Any:
        if isinstance(value, Slot):
            place = self._places.get(value.number)
            if place is None:
                raise Unfit
            return place
        if isinstance(value, Tensor):
            if id(value) not in self._of_held:
                memory = ("held", len(self.held))
                place = place_of(value, memory)
                if place is None or type(value) is not Tensor or value.requires_grad:
                    raise Unfit
                self.held[memory] = value
                self._of_held[id(value)] = place
            return self._of_held[id(value)]
        if type(value) in (tuple, list):
            return [self._given(part) for part in value]
        return value

    # What rows of the table ask for.

    def new(self, shape: Sequence[int], kind: str = "float32") -> Place:
        """Memory of its own."""
        memory = ("new", next(self._new))
        self.counts[memory] = math.prod(shape)
        return Place(memory, kind, tuple(shape), in_one_piece(shape))

    def each(self, name: str, to: Place, *given: Any, of: str = "float32", gives: str = "float32") -> None:
        """A function of each number."""
        if to.kind != gives:
            raise Unfit
        for value in given:
            if isinstance(value, Place):
                if value.kind != of or not _spreads(value.shape, to.shape):
                    raise Unfit
            elif type(value) not in ((int, float) if of == "float32" else (int,)):
                raise Unfit
        self.ops.append(Op(name, to, given))

    def copy(self, to: Place, x: Place) -> None:
        """Numbers as they are; truth values and whole ones as fractions."""
        if x.kind != to.kind and (x.kind, to.kind) not in _WIDER:
            raise Unfit
        if not _spreads(x.shape, to.shape):
            raise Unfit
        self.ops.append(Op("copy", to, (x,)))

    def copy_or_zeros(self, to: Place, x: Place | None) -> None:
        """Numbers as they are, zeros where there are none."""
        if x is None:
            self.ops.append(Op("copy", to, (0.0,)))
        else:
            self.copy(to, x)

    def straight(self, x: Place) -> Place:
        """The same numbers, those of the last axis side by side, rows in one step."""
        lead, last = x.shape[:-1], x.shape[-1:]
        strides = [(n, s) for n, s in zip(lead, x.strides[:-1], strict=True) if n != 1]
        even = all(a == n * b for (_, a), (n, b) in itertools.pairwise(strides))
        if (x.strides[-1] != 1 and last[0] != 1) or not even:
            made = self.new(x.shape)
            self.copy(made, x)
            return Place(made.memory, made.kind, (math.prod(lead), *last), (last[0], 1))
        step = strides[-1][1] if strides else last[0]
        return Place(x.memory, x.kind, (math.prod(lead), *last), (step, 1), x.begin)

    def product(self, to: Place, x: Place, matrix: Place) -> None:
        """Rows [..., K] times a matrix [K, N]."""
        rows, (depth, columns) = math.prod(x.shape[:-1]), matrix.shape
        if {to.kind, x.kind, matrix.kind} != {"float32"} or 0 in x.shape or 0 in matrix.shape:
            raise Unfit
        if rows > MOST_ROWS or rows * depth * columns > _MOST_PRODUCT or x.shape[-1] != depth:
            raise Unfit
        if to.shape != (*x.shape[:-1], columns) or not _whole(to):
            raise Unfit
        if 1 not in matrix.strides:
            laid = self.new(matrix.shape)  # in each call: what it is made of may be written to
            self.copy(laid, matrix)
            matrix = laid
        made = to._replace(shape=(rows, columns), strides=(columns, 1))
        self.rows_by(made, self.straight(x), matrix)

    def rows_by(self, to: Place, rows: Place, matrix: Place) -> None:
        """Rows [N, K] times a matrix, as one or by its columns."""
        for at, part in self.columns(matrix):
            shape = rows.shape[0], part.shape[1]
            self.ops.append(Op("product", to._replace(shape=shape, begin=to.begin + at), (rows, part)))

    def linear(self, to: Place, x: Place, w: Place, b: Place | None) -> None:
        """torch's linear."""
        if len(w.shape) != 2:
            raise Unfit
        self.product(to, x, w._replace(shape=w.shape[::-1], strides=w.strides[::-1]))
        if b is not None:
            self.each("add", to, to, b)


_WIDER = {("bool", "float32"), ("int64", "float32"), ("bool", "int64")}


def _in_one_piece(place: Place) -> bool:
    """Whether its numbers fill a memory, in whatever order of its axes."""
    step = 1
    for stride, size in sorted(zip(place.strides, place.shape, strict=True)):
        if size != 1 and stride != step and 0 not in place.shape:
            return False
        step *= size
    return True


def _whole(place: Place) -> bool:
    """Whether its numbers stand one after the other."""
    dims = zip(place.shape, place.strides, in_one_piece(place.shape), strict=True)
    return all(size == 1 or a == b for size, a, b in dims)


def _spreads(shape: Sequence[int], over: Sequence[int]) -> bool:
    """Whether a shape fits another one, where what is missing or 1 is the same all along."""
    pairs = zip(reversed(shape), reversed(over), strict=False)
    return len(shape) <= len(over) and all(n in (1, m) for n, m in pairs)


TABLE: dict[str, Take] = {}


def _takes(*names: str) -> Callable[[Take], Take]:
    def register(take: Take) -> Take:
        TABLE.update(dict.fromkeys(names, take))
        return take

    return register


for _name in ("sigmoid", "tanh", "sqrt", "rsqrt", "exp", "expm1", "log", "abs", "relu", "erf", "floor",
              "ceil", "round", "neg", "reciprocal"):  # fmt: skip
    TABLE[_name] = lambda lo, to, x, _name=_name: lo.each(_name, to, x)
for _name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    TABLE[_name] = lambda lo, to, a, b, _name=_name: lo.each(_name, to, a, b)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    def _compare(lo: Lowering, to: Place, a: Place, b: Any, _name: str = _name) -> None:
        if a.kind == "bool":
            raise Unfit
        lo.each(_name, to, a, b, of=a.kind, gives="bool")

    TABLE[_name] = _compare
for _name, _of in (("logical_and", "and"), ("logical_or", "or"), ("logical_not", "not")):
    TABLE[_name] = lambda lo, to, *given, _of=_of: lo.each(_of, to, *given, of="bool", gives="bool")


@_takes("pow")
def _pow(lo: Lowering, to: Place, x: Place, by: Place) -> None:
    if math.prod(by.shape) != 1:
        raise Unfit
    lo.each("pow", to, x, by)


@_takes("clamp", "clip")
def _clamp(lo: Lowering, to: Place, x: Place, min: Any = None, max: Any = None) -> None:
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            if isinstance(bound, float) and not math.isfinite(bound):
                raise Unfit
            lo.each(name, to, x, bound)
            x = to


@_takes("leaky_relu")
def _leaky(lo: Lowering, to: Place, x: Place, negative_slope: float = 0.01, inplace: bool = False) -> None:
    lo.each("leaky", to, x, negative_slope)


@_takes("where")
def _where(lo: Lowering, to: Place, which: Place, a: Any, b: Any) -> None:
    if which.kind != "bool" or not _spreads(which.shape, to.shape):
        raise Unfit
    lo.each("copy", to, a)
    lo.each("copy", to, b)
    lo.ops[-2:] = [Op("where", to, (which, a, b))]


@_takes("flatten", "reshape", "contiguous", "clone")
def _copied(lo: Lowering, to: Place, x: Place, *_: Any, **__: Any) -> None:
    if to.shape != x.shape:
        if not _whole(to) or math.prod(to.shape) != math.prod(x.shape):
            raise Unfit
        to = to._replace(shape=x.shape, strides=in_one_piece(x.shape))
    lo.put(to, x)


@_takes("to", "type", "float", "long")
def _cast(lo: Lowering, to: Place, x: Place, *_: Any) -> None:
    if to.shape != x.shape:
        raise Unfit
    lo.copy(to, x)


@_takes("linear")
def _linear(lo: Lowering, to: Place, x: Place, w: Place, b: Place | None = None) -> None:
    lo.linear(to, x, w, b)


@_takes("conv1d")
def _conv(
    lo: Lowering, to: Place, x: Place, w: Place, b: Place | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> None:  # fmt: skip
    (step,), (around,), (apart,) = (v if isinstance(v, list) else [v] for v in (stride, padding, dilation))
    if len(x.shape) != 3 or groups != 1 or not isinstance(around, int) or not _whole(w):
        raise Unfit
    batch, channels, size = x.shape
    count, _, wide = w.shape
    if around:
        padded = lo.new((batch, channels, size + 2 * around))
        _pad(lo, padded, x, [around, around])
        x = padded
    places = to.shape[2]
    of_batch, of_channel, of_place = x.strides
    seen = x._replace(
        shape=(batch, places, channels, wide),
        strides=(of_batch, of_place * step, of_channel, of_place * apart),
    )
    rows, made = lo.new(seen.shape), lo.new((batch, places, count))
    lo.copy(rows, seen)
    rows = rows._replace(
        shape=(batch, places, channels * wide), strides=in_one_piece((batch, places, channels * wide))
    )
    lo.linear(made, rows, Place(w.memory, w.kind, (count, channels * wide), (channels * wide, 1), w.begin), b)
    turned = made._replace(shape=to.shape, strides=(made.strides[0], made.strides[2], made.strides[1]))
    lo.copy(to, turned)


@_takes("matmul", "__matmul__")
def _matmul(lo: Lowering, to: Place, x: Place, w: Place) -> None:
    if len(w.shape) == 2 and len(x.shape) > 1:
        lo.product(to, x, w)
        return
    rank = len(to.shape)
    if not 3 <= rank == len(x.shape) == len(w.shape) or {p.shape[:-2] for p in (x, w, to)} != {to.shape[:-2]}:
        raise Unfit
    if math.prod(to.shape[:-2]) > _MOST_MATRICES:
        raise Unfit
    for at in itertools.product(*map(range, to.shape[:-2])):
        lo.product(*(_matrix(place, at) for place in (to, x, w)))


def _matrix(place: Place, at: Sequence[int]) -> Place:
    begin = place.begin + sum(map(operator.mul, at, place.strides))
    return place._replace(shape=place.shape[-2:], strides=place.strides[-2:], begin=begin)


@_takes("cat", "concat")
def _cat(lo: Lowering, to: Place, parts: Sequence[Place], dim: int = 0) -> None:
    axis, begin = dim % len(to.shape), to.begin
    for part in parts:
        if part.kind != to.kind or len(part.shape) != len(to.shape):
            raise Unfit
        lo.put(to._replace(shape=part.shape, begin=begin), part)
        begin += to.strides[axis] * part.shape[axis]


@_takes("stack")
def _stack(lo: Lowering, to: Place, parts: Sequence[Place], dim: int = 0) -> None:
    axis = dim % len(to.shape)
    shape, strides = [*to.shape], [*to.strides]
    del shape[axis], strides[axis]
    for k, part in enumerate(parts):
        if part.kind != to.kind:
            raise Unfit
        place = to._replace(shape=tuple(shape), strides=tuple(strides), begin=to.begin + k * to.strides[axis])
        lo.put(place, part)


@_takes("constant_pad_nd")
def _pad(lo: Lowering, to: Place, x: Place, pads: Sequence[int], value: float = 0) -> None:
    if to.kind != "float32" or x.kind != to.kind or not math.isfinite(value):
        raise Unfit
    lo.ops.append(Op("copy", to, (float(value),)))
    inner, outer = x, to
    for k in range(len(pads) // 2):
        axis, (before, after) = len(x.shape) - 1 - k, pads[2 * k : 2 * k + 2]
        inner = _narrow(inner, axis, max(-before, 0), max(-after, 0))
        outer = _narrow(outer, axis, max(before, 0), max(after, 0))
    if inner.shape != outer.shape:
        raise Unfit
    lo.copy(outer, inner)


def _narrow(place: Place, axis: int, before: int, after: int) -> Place:
    shape = [*place.shape]
    shape[axis] -= before + after
    return place._replace(shape=tuple(shape), begin=place.begin + before * place.strides[axis])


@_takes("index_select")
def _pick(lo: Lowering, to: Place, x: Place, dim: int, index: Place) -> None:
    axis = dim % len(x.shape)
    known = lo.held.get(index.memory)
    if known is None or x.kind != to.kind or len(index.shape) != 1:  # torch took its places
        raise Unfit
    lo.ops.append(Op("pick", to, (x, index), axis))


def _reduced(mean: bool) -> Take:
    def take(
        lo: Lowering, to: Place, x: Place, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> None:
        rank = len(x.shape)
        dims = range(rank) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        axes = {d % rank for d in dims} if rank else set()
        if {x.kind, to.kind} != {"float32"} or 0 in x.shape:
            raise Unfit
        strides = iter(to.strides)
        kept = [0 if k in axes and not keepdim else next(strides) for k in range(rank)]
        shape = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
        lo.ops.append(Op("sum", to._replace(shape=shape, strides=tuple(kept)), (x,)))
        if mean:
            lo.each("div", to, to, float(math.prod(x.shape[k] for k in axes)))

    return take


TABLE["sum"], TABLE["mean"] = _reduced(False), _reduced(True)


@_takes("softmax")
def _softmax(lo: Lowering, to: Place, x: Place, dim: int, *, dtype: Any = None) -> None:
    if {x.kind, to.kind} != {"float32"} or dtype not in (None, torch.float32) or 0 in x.shape or not x.shape:
        raise Unfit
    axis = dim % len(x.shape)
    among = lo.new(tuple(1 if k == axis else n for k, n in enumerate(x.shape)))
    lo.ops.append(Op("most", among, (x,)))
    lo.each("sub", to, x, among)
    lo.each("exp", to, to)
    lo.ops.append(Op("sum", among, (to,)))
    lo.each("div", to, to, among)


@_takes("layer_norm")
def _norm(
    lo: Lowering, to: Place, x: Place, sizes: Sequence[int], weight: Place | None = None,
    bias: Place | None = None, eps: float = 1e-5,
) -> None:  # fmt: skip
    rank, count = len(sizes), float(math.prod(sizes))
    if {x.kind, to.kind} != {"float32"} or 0 in x.shape or not rank or x.shape[-rank:] != tuple(sizes):
        raise Unfit
    each_one = (*x.shape[:-rank], *[1] * rank)
    mean, spread, squares = lo.new(each_one), lo.new(each_one), lo.new(x.shape)
    for made, of in ((mean, x), (spread, squares)):
        if made is spread:
            lo.each("sub", to, x, mean)
            lo.each("square", squares, to)
        lo.ops.append(Op("sum", made, (of,)))
        lo.each("div", made, made, count)
    lo.each("add", spread, spread, float(eps))
    lo.each("rsqrt", spread, spread)
    lo.each("mul", to, to, spread)
    for name, part in (("mul", weight), ("add", bias)):
        if part is not None:
            lo.each(name, to, to, part)
