"""Shape ops as ways to read: a slice, permutation or expansion of a value costs nothing in generated code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stepnet.ir.graph import Node
from stepnet.ir.ops import VIEWS as VIEWS


@dataclass(frozen=True)
class Access:
    """Elements of `base`, flat: element (i, j, ..) of the view is at offset + i * strides[0] + ..."""

    base: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(name: str, shape: tuple[int, ...]) -> Access:
        """Of a value that is stored: all of it, element after element."""
        return Access(name, 0, shape, contiguous(shape))

    @property
    def is_whole(self) -> bool:
        """True if the elements stand one after the other."""
        return self.strides == contiguous(self.shape)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides; those of dimensions of size 1 are 0, so that equal layouts compare equal.

    >>> contiguous((2, 1, 5))
    (5, 0, 1)
    """
    return tuple(0 if size == 1 else prod(shape[i + 1 :]) for i, size in enumerate(shape))


def view(node: Node, shape: tuple[int, ...], source: Access) -> Access | None:
    """The access of a shape op over that of its input, its result of this shape; None if elements would
    have to move."""
    strides = list(source.strides)
    offset = source.offset
    if node.op == "slice":
        dim, start, step = node.attr("dim"), node.attr("start"), node.attr("step")
        offset += start * strides[dim]
        strides[dim] *= step
    elif node.op == "permute":
        strides = [strides[d] for d in node.attr("dims")]
    elif node.op == "expand":
        return broadcast(source, shape)
    elif node.op == "flip":
        for dim in node.attr("dims"):
            offset += (source.shape[dim] - 1) * strides[dim]
            strides[dim] = -strides[dim]
    else:  # reshape
        if not source.is_whole:
            dense = [(n, s) for n, s in zip(source.shape, source.strides, strict=True) if n != 1]
            if [n for n in shape if n != 1] != [n for n, _ in dense]:
                return None
            left = iter([s for _, s in dense])
            return Access(source.base, offset, shape, tuple(0 if n == 1 else next(left) for n in shape))
        return Access(source.base, offset, shape, contiguous(shape))
    fixed = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return Access(source.base, offset, shape, fixed)


def broadcast(source: Access, shape: tuple[int, ...]) -> Access:
    """The access as an operand of a result of `shape`."""
    lead = len(shape) - len(source.shape)
    strides = (0,) * lead + tuple(
        0 if n == 1 else s for n, s in zip(source.shape, source.strides, strict=True)
    )
    return Access(source.base, source.offset, shape, strides)


def collapse(
    shape: tuple[int, ...], all_strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge neighbouring dimensions that every access walks as one.

    >>> collapse((2, 3), [(3, 1), (3, 1)])
    ((6,), [(1,), (1,)])
    """
    dims: list[int] = []
    columns: list[list[int]] = []
    for d, size in enumerate(shape):
        column = [s[d] for s in all_strides]
        if size == 1:
            continue
        if dims and all(a == b * size for a, b in zip(columns[-1], column, strict=True)):
            dims[-1] *= size
            columns[-1] = column
        else:
            dims.append(size)
            columns.append(column)
    rows = [tuple(column[i] for column in columns) for i in range(len(all_strides))]
    return tuple(dims), rows
