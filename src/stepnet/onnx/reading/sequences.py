"""Operators on sequences, which are lists of tensors here, and on optional values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name
from stepnet.export.open_sizes import Sizes, plain
from stepnet.file_model import axis_in, by_data, same_types, slices
from stepnet.watchers import instead

from .info import Info, Misfit, Run, dtype_of, functions, given, of_inputs, op
from .tables import is_table


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Misfit("a sequence is needed", given([value]), "a sequence of tensors")
    return value


class Parts:
    """A sequence of what an axis that stays open is cut into: parts of one size, the last what is left."""

    def __init__(self, x: Tensor, size: Any, axis: int) -> None:
        if isinstance(size, int) and size < 1:
            raise Misfit("parts must have sizes", size, "a number above 0")
        self.whole, self.size, self.axis = x, size, axis_in(axis, x.dim())
        self.count = (x.shape[axis] + size - 1) // size

    def at(self, place: Any) -> Tensor:
        """One of them; from the end, where the place is less than 0."""
        if not isinstance(place, int):
            raise Misfit("a part of an axis that stays open by a place that is open", place, "a constant")
        first = (place if place >= 0 else self.count + place) * self.size
        return slices(self.whole, [first], [first + self.size], [1], [self.axis])


def _is_table(value: Any) -> bool:
    """Whether a sequence is a tensor of its elements."""
    return isinstance(value, Tensor) and value.dim() > 0


def listed(value: Any) -> list[Any]:
    """The elements of a sequence, be it a table of them."""
    if isinstance(value, Parts):
        _check_count(value.count)
    elif _is_table(value):
        _check_count(value.shape[0])
        return list(value.unbind(0))
    return _list(value)


def check_sequence(node: Info) -> None:
    """Refuse what the file declares to be a tensor."""
    value = node.node.inputs[0]
    if value is not None and isinstance(value.type, ir.TensorType):
        raise Misfit(f"'{value.name}' is no sequence", str(value.type), "a sequence of tensors")


def elements_of(value: ir.Value | None) -> torch.dtype | None:
    """The element type of the tensors in a sequence or an optional value, where the file says one that torch
    has."""
    maker = None if value is None else value.producer()
    if value is None or isinstance(value.type, ir.TensorType):
        return None
    try:
        if maker is not None and maker.op_type == "SequenceEmpty":
            said = maker.attributes.get("dtype")
            return dtype_of(1 if said is None else said.as_int())
        return None if value.dtype is None else dtype_of(value.dtype.value)
    except Misfit:
        return None


def _place(node: Info, index: int) -> Callable[..., int]:
    """A function from the inputs of a call to a place in a sequence of so many."""
    number = node.number(index)

    def place(inputs: Sequence[Any], size: int, default: int = -1, new: int = 0) -> int:
        at = default if (said := number(inputs)) is None else said
        if not -size <= at < size + new:
            places = f"{-size} to {size + new - 1}" if size + new else "a sequence that is not empty"
            raise Misfit("no such place in the sequence", at, places)
        return at

    return place


@op("SequenceEmpty", inputs=(0, 0))
def _empty(node: Info) -> Run:
    if node.get("dtype") is not None:
        dtype_of(node.get("dtype"))
    return list


@of_inputs("SequenceConstruct", inputs=(1, 2**16))
def _construct(*xs: Any) -> list[Any]:
    same_types([plain(x) for x in xs if not isinstance(x, list)])
    return list(xs)


@op("SequenceAt", inputs=(2, 2))
def _at(node: Info) -> Run:
    place, number = _place(node, 1), node.number(1)
    check_sequence(node)

    def at(*inputs: Any) -> Tensor:
        xs, position = inputs[:2]
        if isinstance(xs, Parts):
            return xs.at(number(inputs))
        if not _is_table(xs):
            return _list(xs)[place(inputs, len(xs))]
        rows, size = plain(position).reshape(1), xs.shape[0]
        try:
            return xs.index_select(0, torch.where(rows < 0, rows + size, rows)).squeeze(0)
        except IndexError:
            place(inputs, size)  # says what is wrong
            raise

    return at


@op("SequenceLength")
def _length(node: Info) -> Run:
    check_sequence(node)

    def length(xs: Any) -> Sizes:
        return Sizes(xs.count if isinstance(xs, Parts) else xs.shape[0] if _is_table(xs) else len(_list(xs)))

    return length


def _check_new(declared: torch.dtype | None, new: Any) -> None:
    """Refuse a tensor of another kind than the file declares a sequence to be of; of floating-point numbers a
    model may have been taken to others since."""
    if declared is None or not isinstance(new, Tensor) or new.dtype == declared:
        return
    if not (declared.is_floating_point and new.is_floating_point()):
        what = "puts a tensor of another element type into the sequence"
        raise Misfit(what, dtype_name(new.dtype), dtype_name(declared))


def _in_table(node: Info, index: int) -> Callable[..., Tensor]:
    """A function from the inputs of a call to a place in a table of so many rows, counted from the front."""
    place, number = _place(node, index), node.number(index)

    def at(inputs: Sequence[Any], rows: Any, default: Any, new: int = 0) -> Tensor:
        if not _is_open(rows):
            where = place(inputs, rows, default, new)
            return torch.tensor(where if where >= 0 else where + rows)
        if number(inputs) is None:
            return torch.scalar_tensor(default, dtype=torch.int64)
        where = plain(inputs[index]).reshape(()).long()
        return torch.where(where < 0, where + rows, where)

    return at


def _as_read(node: Info) -> Callable[[Tensor], Any]:
    """A table of elements as what reads the sequence takes it."""
    return (lambda rows: rows) if is_table(node.node.outputs[0]) else listed


@op("SequenceInsert", inputs=(2, 3))
def _insert(node: Info) -> Run:
    place, in_table, as_read = _place(node, 2), _in_table(node, 2), _as_read(node)
    declared = elements_of(node.node.inputs[0])

    def insert(*inputs: Any) -> Any:
        xs, new = inputs[0], inputs[1]
        _check_new(declared, new)
        if _is_table(xs) and [*map(str, plain(new).shape)] == [*map(str, xs.shape[1:])]:
            row, count = plain(new), xs.shape[0]
            same_types([xs, row])
            at, places = in_table(inputs, count, count, new=1), torch.arange(count + 1, device=xs.device)
            order = torch.where(places == at, count, places - (places > at).long())
            return as_read(torch.cat([xs, row.unsqueeze(0)]).index_select(0, order))
        new = list(listed(xs))
        same_types([x for x in (*new[:1], inputs[1]) if isinstance(x, Tensor)])
        new.insert(place(inputs, len(new), default=len(new), new=1), inputs[1])
        return new

    return insert


@op("SequenceErase", inputs=(1, 2))
def _erase(node: Info) -> Run:
    place, in_table, as_read = _place(node, 1), _in_table(node, 1), _as_read(node)

    def erase(*inputs: Any) -> Any:
        xs = inputs[0]
        if _is_table(xs):
            last = xs.shape[0] - 1
            at, places = in_table(inputs, xs.shape[0], last), torch.arange(last, device=xs.device)
            return as_read(xs.index_select(0, places + (places >= at).long()))
        new = list(listed(xs))
        del new[place(inputs, len(new))]
        return new

    return erase


@op("SplitToSequence", inputs=(1, 2))
def _split(node: Info) -> Run:
    axis, keep, sizes = node.get("axis", 0), node.get("keepdims", 1), node.numbers(1)
    table, as_read = is_table(node.node.outputs[0]), _as_read(node)

    def split(*inputs: Any) -> Any:
        x, wanted = inputs[0], sizes(inputs)
        axis_in(axis, x.dim())
        alone = isinstance(wanted, int) and wanted == 1
        if wanted is None or alone:  # without keepdims, too: so torch writes it, ONNX Runtime has it
            rows = x.movedim(axis, 0)
            rows = rows.unsqueeze(axis_in(axis, x.dim()) + 1) if keep else rows
            return as_read(rows)
        if by_data([wanted] if not isinstance(wanted, list) else wanted):
            raise Misfit(
                "the parts of a split that numbers of an input decide are in no file that is saved",
                "sizes that an input holds",
                "sizes that are a constant of the model",
            )
        listed = isinstance(wanted, list)
        if not listed and (_is_open(x.shape[axis]) or _is_open(wanted)):
            return Parts(x, wanted, axis) if table else _check_count(x.shape[axis], wanted)
        if any(not isinstance(size, int) for size in wanted) if listed else wanted < 1:
            raise Misfit("parts must have sizes", wanted, "a number above 0, or one for each part")
        return list(x.split(wanted, axis))

    return split


def _is_open(size: Any) -> bool:
    """Whether a model is written that takes any number in the place of a size."""
    return instead() is not None and isinstance(size, torch.SymInt)


def _check_count(*sizes: Any) -> None:
    """Refuse to write as many tensors as the example has where the model takes any number."""
    if any(map(_is_open, sizes)):
        raise Misfit(
            "splits along a dimension that stays open into a sequence that more is done with than to read it",
            "any number of tensors",
            "a known number of them, as where save(..., dynamic=...) leaves this dimension out",
        )


@op("ConcatFromSequence")
def _concat(node: Info) -> Run:
    axis, new = node.get("axis", 0), node.get("new_axis", 0)
    check_sequence(node)

    def concat(xs: Any) -> Tensor:
        if isinstance(xs, Parts):
            return _together(xs, axis, new)
        if not _is_table(xs):
            if not _list(xs):
                raise Misfit("joins no tensors", "an empty sequence", "one tensor at least")
            return torch.stack(xs, axis) if new else torch.cat(xs, axis)
        if new:
            return xs.movedim(0, axis)
        at = axis_in(axis, xs.dim() - 1)
        return xs.movedim(0, at).flatten(at, at + 1)

    return concat


def _together(xs: Parts, axis: int, new: int) -> Tensor:
    if new or axis_in(axis, xs.whole.dim()) != xs.axis:
        what = "joins the parts of an axis that stays open along another one"
        raise Misfit(what, f"axis={axis}", f"axis={xs.axis}, which was split")
    return xs.whole


functions(
    (0, 1),
    {"Optional": lambda x=None: x, "OptionalHasElement": lambda x=None: torch.tensor(x is not None)},
)


@of_inputs("OptionalGetElement")
def _get_element(x: Any) -> Any:
    if x is None:
        raise Misfit("the optional value is not there", "nothing", "a value")
    return x
