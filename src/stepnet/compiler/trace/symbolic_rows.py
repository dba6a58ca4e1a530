"""Tensors of which a trace knows all but the numbers, with a number of rows that is left open.

Each is a pair of torch's meta tensors, one of few rows and one of many. A call is made on both: what is the
same in both results is so for any number of rows, and what differs grows with it. That takes torch's C++
twenty microseconds; torch's own fake tensors with symbolic sizes take a millisecond.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from .kernel_shapes import Line, told_by_kernel
from .row_count import RowCount, Unusual, number_of, size_of
from .symbolic_rules import Made, made_by

AT = (3, (1 << 33) - 9)  # primes: no other size is near a multiple of the second
_aten: Any = torch.ops.aten
_KNOWN = frozenset({"aten", "prims", "stepnet_joint"})
_META, _CPU = torch.device("meta"), torch.device("cpu")


class Outline(Tensor):
    """A tensor without numbers; `few` and `many` are the same one, if it does not depend on the rows."""

    few: Tensor
    many: Tensor

    @staticmethod
    def __new__(cls, few: Tensor, many: Tensor) -> Outline:
        sizes: Sequence[Any] = few.shape
        strides: Sequence[Any] = few.stride()
        start: Any = few.storage_offset()
        if few is not many:
            if few.dtype != many.dtype or few.dim() != many.dim():
                raise Unusual("results of other kinds for more rows")
            sizes = [size_of(a, b, AT) for a, b in zip(sizes, many.shape, strict=True)]
            strides = [size_of(a, b, AT) for a, b in zip(strides, many.stride(), strict=True)]
            start = size_of(start, many.storage_offset(), AT)
        made = Tensor._make_wrapper_subclass(
            cls, sizes, strides=strides, storage_offset=start, dtype=few.dtype, layout=few.layout, device=_CPU
        )
        made.few, made.many = few, many
        return made

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # pyright: ignore

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Outline({list(self.shape)}, {self.dtype})"

    def untyped_storage(self) -> torch.UntypedStorage:
        """What views of one tensor have in common."""
        return self.few.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Unusual("a call outside of the recording")


def blank(shape: Sequence[int], dtype: torch.dtype, *, rows: bool) -> Outline:
    """An outline of an input; with `rows`, it has a first dimension of rows."""
    few = torch.empty((*(AT[:1] if rows else ()), *shape), dtype=dtype, device=_META)
    return Outline(few, torch.empty((AT[1], *shape), dtype=dtype, device=_META) if rows else few)


def outline_of(tensor: Tensor) -> Outline:
    """The outline of a tensor that does not depend on the rows."""
    if tensor.device != _CPU or tensor.layout != torch.strided:
        raise Unusual("another device or layout")
    few = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
    return Outline(few, few)


def numbers(func: OpOverload, outline: Outline) -> tuple[int, ...]:
    """The sizes or strides that torch's C++ wants as numbers: those of many rows, see `opened`."""
    return tuple(outline.many.shape if func is _aten.size.default else outline.many.stride())


NUMBERS = frozenset((_aten.size.default, _aten.stride.default))


def opened(arg: Any) -> Any:
    """Arguments in which numbers that come of `numbers` are open again.

    Raises:
        Unusual: one of them is no size.
    """
    if isinstance(arg, (list, tuple)):
        return type(arg)([opened(a) for a in arg])
    if isinstance(arg, dict):
        return {name: opened(a) for name, a in arg.items()}
    return number_of(arg, AT[1]) if type(arg) in (int, float) else arg


def outlined(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call gives, outlined.

    Raises:
        Unusual: it is not told by two numbers of rows. Whatever torch raises comes through.
    """
    makes, parts = _facts(func)
    if makes:
        kwargs = {**kwargs, "device": _CPU if kwargs.get("device") is None else kwargs["device"]}
    if func.namespace not in _KNOWN:  # what of it does not hold for any number of rows is not known
        raise Unusual(str(func))
    if parts is not None:
        whole = args[0]
        dim = args[parts] if len(args) > parts else kwargs.get("dim", 0)
        if not isinstance(whole.shape[dim], int):
            raise Unusual("a tensor for each row")
    if func.namespace == "stepnet_joint":
        func, args = _aten.empty_like.default, args[-1:]
    made = made_by(func, args, kwargs)
    if made is not None:
        return _of_rule(made) if isinstance(made, Made) else tuple(map(_of_rule, made))
    lines = told_by_kernel(func, _on_rows, args, kwargs)
    if lines is not None:
        return _of_line(lines) if isinstance(lines, Line) else tuple(map(_of_line, lines))
    differ: list[bool] = []
    few = func(*_on(0, args, differ), **_on(0, kwargs, differ))
    many = func(*_on(1, args, differ), **_on(1, kwargs, differ)) if any(differ) else few
    return _outline(few, many, args)


def _of_rule(made: Made) -> Outline:
    few = torch.empty(made.few, dtype=made.dtype, device=_META)
    same = made.few == made.many
    return Outline(few, few if same else torch.empty(made.many, dtype=made.dtype, device=_META))


def _of_line(line: Line) -> Outline:
    few, many = map(line.on, AT)
    same = few.shape == many.shape and few.stride() == many.stride()
    return Outline(few, few if same else many)


def _on_rows(rows: int, arg: Any) -> Any:
    """An argument for so many rows."""

    def spread(outline: Outline) -> Tensor:
        sizes, strides = ([_on_rows(rows, n) for n in of] for of in (outline.shape, outline.stride()))
        return torch.empty_strided(sizes, strides, dtype=outline.dtype, device=_META)

    return _replaced(arg, spread, lambda count: count.at(rows))


def _on(at: int, arg: Any, differ: list[bool]) -> Any:
    """An argument for few rows (0) or many (1); notes whether it is another one for both."""

    def picked(outline: Outline) -> Tensor:
        differ.append(outline.few is not outline.many)
        return outline.many if at else outline.few

    def counted(count: RowCount) -> int:
        differ.append(True)
        return count.at(AT[at])

    return _replaced(arg, picked, counted)


def _replaced(arg: Any, outline: Callable[[Outline], Tensor], count: Callable[[RowCount], int]) -> Any:
    """An argument with tensors of `meta` in the place of its outlines, and numbers in that of its sizes."""
    if isinstance(arg, Outline):
        return outline(arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)([_replaced(a, outline, count) for a in arg])
    if isinstance(arg, dict):
        return {name: _replaced(a, outline, count) for name, a in arg.items()}
    if isinstance(arg, torch.SymInt):
        node: Any = arg.node
        if not isinstance(node, RowCount):
            raise Unusual("a size of another trace")
        return count(node)
    if isinstance(arg, torch.device):
        if arg.type != "cpu":
            raise Unusual("another device")
        return _META
    if isinstance(arg, (Tensor, torch.SymFloat, torch.SymBool, torch.Generator)):
        raise Unusual("an argument that is not outlined")
    return arg


def _outline(few: Any, many: Any, args: Sequence[Any]) -> Any:
    if isinstance(few, Tensor):
        if args and isinstance(args[0], Outline) and few is args[0].few:
            return args[0]  # what was written into
        return Outline(few, many)
    if isinstance(few, (list, tuple)):
        return type(few)([_outline(a, b, ()) for a, b in zip(few, many, strict=True)])
    if few != many:
        raise Unusual("a number that depends on the rows")
    return few


@functools.cache
def _facts(func: OpOverload) -> tuple[bool, int | None]:
    """Whether a call makes a tensor on a device that it is told; and, of one that gives a tensor for each
    place of a dimension, which argument that is."""
    names = [argument.name for argument in func._schema.arguments]
    makes = "device" in names and not any("Tensor" in str(a.type) for a in func._schema.arguments)
    gives_many = any("[]" in str(result.type) for result in func._schema.returns)
    return makes, names.index("dim") if gives_many and "dim" in names else None
