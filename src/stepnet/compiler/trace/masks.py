"""What a mask of truth values picks of rows, in a trace, which does not know how many that are.

`z[mask]` is traced as all of z, with a number that torch takes everywhere in the place of what is not picked;
`z[mask] = v` puts back what the mask picks. What is made of such values belongs to their mask, and goes
nowhere else: no result, no other mask, no row that was not picked. That no row is mixed with another is
proved of all of them, so what is not picked reaches nothing, and no gradient reaches it.

A mask that is the same at every step is asked for the places that it picks (see `data_dependent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line

from .data_dependent import BY_VALUES, OF_ROWS, Answers
from .mask_counts import SHAPE, SHAPED, SIZES, Count, counts, is_asked_by_the_step, masks_in

_ALIKE = frozenset({
    "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "invert", "logical_and", "logical_or",
    "logical_xor", "logical_not", "bitwise_not", "bool", "isnan", "isinf", "isfinite", "detach", "getitem",
    "abs", "sum", "any", "all", "unsqueeze", "squeeze", "view", "reshape",
})  # fmt: skip
_NAMED = frozenset({"accumulate", "alpha", "as_tuple"})
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype)


class Masks:
    """The values of one trace that masks have picked."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._picked: dict[int, tuple[Tensor, Any]] = {}  # by id, with what tells their mask
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}  # what stands for numbers of rows, and their mask
        # what stands for numbers that a mask of rows and places picks; their mask; whether they are of rows
        self._pairs: dict[int, tuple[Tensor, Tensor, bool]] = {}
        self._whole: dict[int, Tensor] = {}  # values of rows that picked ones were put into
        self._by_mark: dict[Any, Tensor] = {}  # the masks that values were picked by
        self._made: dict[int, tuple[Tensor, int, int]] = {}  # tensors, their version, a number for how made
        self._ways: dict[Any, int] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call of torch gives, if it picks by a mask or puts back; else NotImplemented.

        Raises:
            Unsupported: it does with picked values what no trace can follow.
        """
        known = {id(mask): self._places(mask) for mask in masks_in(func, args)}
        if any(known.values()):
            z, index, *rest = args
            items = index if isinstance(index, (tuple, list)) else (index,)
            placed = [place for item in items for place in known.get(id(item)) or (item,)]
            return func(z, tuple(placed), *rest, **kwargs)
        meaning = _MEANINGS.get(func) if kwargs.keys() <= _NAMED else None
        if meaning is not None and (result := meaning(self, *args, **kwargs)) is not NotImplemented:
            return result
        marks = self._marks((args, kwargs))
        if marks:
            numbers = any(id(t) in self._rows or id(t) in self._pairs for t in leaves((args, kwargs), Tensor))
            if numbers and func not in SIZES:
                return self._moved(func, args, kwargs)
            if func in SIZES and (len(args) == 1 or args[1] == 0) and is_asked_by_the_step():
                return self._count(func, args[0])
            others = [t for t in leaves((args, kwargs), Tensor) if id(t) not in self._picked]
            if len(marks) > 1 or any(map(_has_rows, others)):
                raise _refused("values that a mask picks meet values that it does not pick")
        return NotImplemented

    def _count(self, func: Any, picked: Tensor) -> Any:
        """How many values a mask picks, of which Python may ask whether there are any."""
        mask = self._by_mark.get(self._picked[id(picked)][1])
        _, mask = self._rows.get(id(picked), (None, mask))
        _, mask, _ = self._pairs.get(id(picked), (None, mask, None))
        if mask is None or func is Tensor.__len__:  # Python wants a number of it
            raise counts()
        self._answers.of_rows.add([mask])
        some = self._answers.answer((mask,), {}, (mask, False))
        if some is OF_ROWS:
            raise counts()
        count = Count(some)
        return (count, *picked.shape[1:]) if func == SHAPE.__get__ else count

    def follow(self, args: Any, result: Any) -> None:
        """Note what was made of picked values."""
        for mark in self._marks(args):
            for t in leaves(result, Tensor):
                if _has_rows(t) and id(t) not in self._whole:
                    self._picked.setdefault(id(t), (t, mark))

    def name(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note how what may be a mask was made: two that were made alike are one."""
        if isinstance(result, Tensor) and getattr(func, "__name__", "").strip("_") in _ALIKE:
            parts = (*args, *kwargs, *kwargs.values())
            self._note(result, (func, *map(self._part, parts)))

    def refuse(self, results: Any) -> None:
        """Hold that no result is what a mask picked."""
        if self._marks(results):
            raise _refused("the step returns what a mask picks, which is not a row for each sequence")

    def _marks(self, values: Any) -> set[Any]:
        if not self._picked:
            return set()
        return {self._picked[id(t)][1] for t in leaves(values, Tensor) if id(t) in self._picked}

    def _part(self, arg: Any) -> Any:
        """What tells an argument of a call from others."""
        if isinstance(arg, Tensor):
            return self._mark(arg)
        if isinstance(arg, (tuple, list)):
            return tuple(map(self._part, arg))
        if isinstance(arg, slice):
            return slice, *map(self._part, (arg.start, arg.stop, arg.step))
        return (type(arg), arg) if isinstance(arg, _PLAIN) else object()

    def _mark(self, mask: Tensor) -> int:
        """What two masks have in common that were made alike."""
        _, version, made = self._made.get(id(mask), (mask, None, 0))
        return made if version == mask._version else self._note(mask, (id(mask), mask._version))

    def _note(self, tensor: Tensor, way: Any) -> int:
        number = self._ways.setdefault(way, len(self._ways))
        self._made[id(tensor)] = tensor, tensor._version, number
        return number

    # ---- picking

    def _places(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Which places a mask of no rows picks, an index for each of its dimensions; none of one of rows."""
        picked = self._answers.answer((mask,), {})
        if _has_rows(mask):
            return ()
        if picked is OF_ROWS:
            raise Unsupported(BY_VALUES, line=user_line().short)
        return tuple(torch.tensor(at.tolist(), dtype=torch.int64) for at in np.nonzero(np.array(picked)))

    def item(self, z: Tensor, index: Any) -> Any:
        """`z[mask]`, `z[mask, 2:]`."""
        if (pairs := self._pairs_of(index)) is not None:
            return pairs.pick(z)
        mask, rest = self._split(z, index)
        if mask is None:
            return NotImplemented
        return self._pick(_part(z, mask, rest), mask)

    def select(self, z: Tensor, mask: Tensor) -> Any:
        """`torch.masked_select`."""
        return self._pick(z, mask) if _is_mask(z, mask) and mask.dim() == z.dim() else NotImplemented

    def _pick(self, z: Tensor, mask: Tensor) -> Tensor:
        if self._marks(z) != self._marks(mask):
            raise _refused("values that a mask picks meet values that it does not pick")
        other = 0.5 if z.is_floating_point() or z.is_complex() else z.new_zeros(())
        picked = torch.where(_beside(mask, z), z, other)
        picked = picked.flatten(0, mask.dim() - 1) if mask.dim() > 1 else picked
        self._picked[id(picked)] = picked, self._mark(mask)
        self._by_mark[self._mark(mask)] = mask
        return picked

    def _split(self, z: Tensor, index: Any) -> tuple[Tensor | None, tuple[Any, ...]]:
        """The mask that an index begins with, and what else it says; None where it does not."""
        mask, *rest = index if isinstance(index, tuple) and index else (index,)
        mask = self._mask_of(mask)
        while rest and (rest[-1] is Ellipsis or (isinstance(rest[-1], slice) and rest[-1] == slice(None))):
            rest.pop()
        if not _is_mask(z, mask) or any(not isinstance(i, (int, slice, type(None))) for i in rest):
            return None, ()
        return mask, tuple(rest)

    # ---- by the numbers of rows

    def where(self, condition: Tensor, *others: Any) -> Any:
        """`torch.where(mask)`: the numbers of the rows that a mask picks."""
        return NotImplemented if others else self.nonzero(condition, as_tuple=True)

    def nonzero(self, mask: Tensor, *, as_tuple: bool = False) -> Any:
        """`mask.nonzero()`."""
        if mask.dim() == 2 and as_tuple and _has_rows(mask):
            return self._numbered(mask)
        if mask.dim() != 1 or not _has_rows(mask):
            return NotImplemented
        mask = mask if mask.dtype == torch.bool else mask != 0
        numbers = mask.to(torch.int64)
        numbers = numbers if as_tuple else numbers.unsqueeze(1)
        self._picked[id(numbers)] = numbers, self._mark(mask)
        self._rows[id(numbers)] = numbers, mask
        return (numbers,) if as_tuple else numbers

    def _mask_of(self, index: Any) -> Any:
        """The mask in the place of the numbers of the rows that it picks."""
        known = self._rows.get(id(index))
        return index if known is None or known[0].dim() != 1 else known[1]

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Numbers of rows in another shape."""
        _, mask = self._rows.get(id(args[0]), (None, None))
        if mask is None or getattr(func, "__name__", "").strip("_") not in SHAPED:
            raise _refused("the step computes with the numbers of the rows that a mask picks")
        result = func(*args, **kwargs)
        self._rows[id(result)] = result, mask
        return result

    def along(self, op: str, z: Tensor, dim: int, index: Tensor, value: Any, *, alpha: float = 1) -> Any:
        """`z.index_add(0, numbers, value)` and the like; those with a line behind change z."""
        if not dim % max(z.dim(), 1) and (pairs := self._pairs_of(index)) is not None:
            if not op.startswith("add"):
                return NotImplemented
            return self._given(z, pairs.put(z, value, alpha), op[-1] == "_")
        mask = self._mask_of(index)
        if dim % max(z.dim(), 1) or not _is_mask(z, mask):
            return NotImplemented
        value = _like(z, value)
        put = self._added(z, mask, value, alpha) if op.startswith("add") else self._put(z, mask, value)
        return self._given(z, put, op.endswith("_"))

    def select_rows(self, z: Tensor, dim: int, index: Tensor) -> Any:
        """`z.index_select(0, numbers)`."""
        if not dim % max(z.dim(), 1) and (pairs := self._pairs_of(index)) is not None:
            return pairs.pick(z)
        mask = self._mask_of(index)
        return NotImplemented if dim % max(z.dim(), 1) or not _is_mask(z, mask) else self._pick(z, mask)

    # ---- by the numbers of rows and of places in them

    def _numbered(self, mask: Tensor) -> Any:
        """`torch.where(mask)` of a mask of rows and places: which rows, and which place of each."""
        first = isinstance(mask.shape[0], torch.SymInt)
        if isinstance(mask.shape[first], torch.SymInt) or self._marks(mask):
            return NotImplemented
        bits = (mask if mask.dtype == torch.bool else mask != 0).transpose(0, 1 - first)
        numbers = [bits.flatten().to(torch.int64) for _ in range(2)]
        for k, t in enumerate(numbers):
            self._picked[id(t)] = t, self._mark(mask)
            self._pairs[id(t)] = t, bits, k == (not first)
        return tuple(numbers)

    def _pairs_of(self, index: Any) -> Pairs | None:
        """What an index says that begins with such numbers; None for others."""
        rest = list(index) if isinstance(index, tuple) else [index]
        ahead = bool(rest) and rest[0] is None
        rest = rest[ahead:]
        known = [self._pairs.get(id(part)) for part in rest[:2]]
        if not known or known[0] is None or not known[0][2]:
            return None
        numbers, bits, _ = known[0]
        both = len(known) > 1 and known[1] is not None and known[1][1] is bits and not known[1][2]
        rest = rest[1 + both :]
        if any(not (i is None or i is Ellipsis or isinstance(i, (int, slice))) for i in rest):
            return None
        return Pairs(self, numbers, bits, both, ahead, tuple(rest))

    # ---- putting back

    def set_item(self, z: Tensor, index: Any, value: Any) -> Any:
        """`z[mask] = value`."""
        if (pairs := self._pairs_of(index)) is not None:
            z.copy_(pairs.put(z, value))
            return None
        mask, rest = self._split(z, index)
        if mask is None:
            return NotImplemented
        value, part = _like(z, value), _part(z, mask, rest)
        part.copy_(self._put(part, mask, value))
        return None

    def index_put(
        self, z: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *, in_place: bool = False
    ) -> Any:
        """`z.index_put((mask,), values)`."""
        mask = self._mask_of(indices[0]) if len(indices) == 1 else None
        if mask is None or not _is_mask(z, mask):
            return NotImplemented
        put = self._added(z, mask, values) if accumulate else self._put(z, mask, values)
        return self._given(z, put, in_place)

    def scatter(self, z: Tensor, mask: Tensor, source: Tensor, *, in_place: bool = False) -> Any:
        """`z.masked_scatter(mask, source)`."""
        if not _is_mask(z, mask) or mask.dim() != z.dim() or not self._marks(source):
            return NotImplemented
        return self._given(z, self._put(z, mask, source), in_place)

    def _given(self, z: Tensor, put: Tensor, in_place: bool) -> Tensor:
        """What a function gives: it belongs to the mask that z does, if any."""
        put = z.copy_(put) if in_place else put
        if id(z) in self._picked:
            self._picked[id(put)] = put, self._picked[id(z)][1]
        else:
            self._whole[id(put)] = put
        return put

    def _added(self, z: Tensor, mask: Tensor, value: Tensor, alpha: float = 1) -> Tensor:
        put = self._put(torch.zeros_like(z), mask, value)
        return z + (put if alpha == 1 else alpha * put)

    def _put(self, z: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        inner = z.dim() - mask.dim()
        if id(value) in self._picked:
            if self._marks(value) != {self._mark(mask)}:
                raise _refused("what a mask picked is put back by another mask")
            right = value.dim() == inner + 1 and str(value.shape[0]) == str(math.prod(mask.shape))
            value = value.reshape(*mask.shape, *value.shape[1:]) if right and mask.dim() > 1 else value
        else:
            right = not _has_rows(value) and value.dim() <= inner
        if not right or value.dtype != z.dtype or self._marks(z) != self._marks(mask):
            raise _refused("what is put where a mask says does not have the shape or type of what it picks")
        return torch.where(_beside(mask, z), value, z)


class Pairs(NamedTuple):
    """An index by the numbers of rows and places that a mask picks, as experts are given the rows that chose
    them. All places of all rows are traced, as of any mask.

    Attributes:
        numbers: of the rows.
        bits: the mask, rows first.
        both: whether z has the places, too.
        ahead: whether the index begins with None.
        rest: what it says of what is behind.
    """

    masks: Masks
    numbers: Tensor
    bits: Tensor
    both: bool
    ahead: bool
    rest: tuple[Any, ...]

    def _fits(self, z: Tensor) -> bool:
        like = self.bits.shape[: 1 + self.both]
        return isinstance(z.shape[0], torch.SymInt) and str(z.shape[: len(like)]) == str(like)

    def pick(self, z: Tensor) -> Any:
        """`z[rows]`, `z[rows, places]`."""
        if not z.dim() or not self._fits(z):
            return NotImplemented
        if self.masks._marks(z):
            raise _refused("values that a mask picks meet values that it does not pick")
        whole = z if self.both else z.unsqueeze(1).expand(-1, self.bits.shape[1], *z.shape[1:])
        other = 0.5 if z.is_floating_point() or z.is_complex() else z.new_zeros(())
        picked = torch.where(_beside(self.bits, whole), whole, other).flatten(0, 1)
        picked = picked[(slice(None), *self.rest)] if self.rest else picked
        return picked[None] if self.ahead else picked

    def put(self, z: Tensor, value: Any, add: float | None = None) -> Tensor:
        """z with values put where `pick` takes them from, or so many times them added; of several for one row
        in their order."""
        value, own = _like(z, value), self.masks._marks(self.numbers)
        inner = z.shape[1 + self.both :]
        lined = id(value) in self.masks._picked
        if lined:
            wanted = (self.bits.shape[0] * self.bits.shape[1], *inner)
            right = self.masks._marks(value) == own and str(value.shape) == str(torch.Size(wanted))
        else:
            right = not _has_rows(value) and value.dim() <= len(inner)
        if not right or not self._fits(z) or value.dtype != z.dtype or self.rest or self.ahead:
            raise _refused("what is put where a mask says does not have the shape or type of what it picks")
        value = value.reshape(*self.bits.shape, *inner) if lined else value.expand(*self.bits.shape, *inner)
        if self.both:
            new = value if add is None else torch.add(z, value, alpha=add)
            return torch.where(_beside(self.bits, z), new, z)
        if add is None:
            return _Last.apply(z, value, self.bits)
        for bits, given in zip(self.bits.unbind(1), value.unbind(1), strict=True):
            z = torch.where(_beside(bits, z), torch.add(z, given, alpha=add), z)
        return z


class _Last(torch.autograd.Function):
    """`z[rows] = values`, where a row may be named more than once: the last value stays, and as with torch
    each of them gets the gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, values: Tensor, bits: Tensor) -> Tensor:
        ctx.save_for_backward(bits)
        for on, value in zip(bits.unbind(1), values.unbind(1), strict=True):
            z = torch.where(_beside(on, z), value, z)
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (bits,), (grad,) = ctx.saved_tensors, grads
        whole = grad.unsqueeze(1).expand(-1, bits.shape[1], *grad.shape[1:])
        of_z = torch.where(_beside(bits.any(1), grad), 0.0, grad)
        return of_z, torch.where(_beside(bits, whole), whole, 0.0), None


def _is_mask(z: Tensor, mask: Any) -> bool:
    """Whether a value says which rows, or which of the first places of each row, to pick."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not _has_rows(mask):
        return False
    return isinstance(mask.shape[0], torch.SymInt) and str(z.shape[: mask.dim()]) == str(mask.shape)


def _part(z: Tensor, mask: Tensor, rest: tuple[Any, ...]) -> Tensor:
    """What is said of z behind its mask."""
    return z[(*[slice(None)] * mask.dim(), *rest)] if rest else z


def _like(z: Tensor, value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=z.dtype)


def _beside(mask: Tensor, z: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (z.dim() - mask.dim()))


def _has_rows(tensor: Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)


def _refused(why: str) -> Unsupported:
    return Unsupported(why, line=user_line().short, remedy="torch.where(mask, a, b) on whole rows")


_MEANINGS: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: Masks.item,
    Tensor.__setitem__: Masks.set_item,
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), Masks.select),
    **dict.fromkeys((torch.index_put, Tensor.index_put), Masks.index_put),
    **dict.fromkeys((torch.masked_scatter, Tensor.masked_scatter), Masks.scatter),
    torch.where: Masks.where,
    **dict.fromkeys((torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere), Masks.nonzero),
    **dict.fromkeys((torch.index_select, Tensor.index_select), Masks.select_rows),
    **{
        getattr(space, f"index_{op}"): lambda masks, *args, op=op, **kwargs: masks.along(op, *args, **kwargs)
        for op in ("add", "add_", "copy", "copy_", "fill", "fill_")
        for space in (Tensor, torch)
        if hasattr(space, f"index_{op}")
    },
    Tensor.index_put_: lambda masks, *args, **kwargs: masks.index_put(*args, **kwargs, in_place=True),
    Tensor.masked_scatter_: lambda masks, *args, **kwargs: masks.scatter(*args, **kwargs, in_place=True),
}  # fmt: skip
