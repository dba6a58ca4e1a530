"""Shapes that torch tells of a call by functions in Python, which import what it compiles with: half a second
for the first. Its kernels tell them, too: the call is made on some small numbers of rows.

A size that lies on one line for all of these grows so with any. That holds for the calls of this table: they
give sizes of what they are given, never the smaller of two and never a part of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

ROWS = (3, 5, 67)
_MOST = 1 << 20  # elements; more take longer than what is to be saved

# filled with zeros, which are places that there are
_WITH_ZEROS = """
    clone.default cat.default flip.default constant_pad_nd.default arange.start_step
    full_like.default zeros_like.default ones_like.default empty_like.default
    slice_scatter.default select_scatter.default diagonal_scatter.default
    gather.default scatter.src scatter.value scatter_add.default scatter_reduce.two
    index.Tensor index_put.default index_select.default index_add.default
    embedding.default searchsorted.Tensor
    sort.default sort.stable topk.default kthvalue.default argmax.default argmin.default
    complex.default polar.default linalg_matrix_exp.default
    any.default any.dim any.dims all.default all.dim all.dims
    sum.default sum.dim_IntList mean.default mean.dim prod.default prod.dim_int amax.default amin.default
    var.correction std.correction var_mean.correction cumsum.default cumprod.default logcumsumexp.default
"""
# filled with ones and parts of one: pivots count from one, and what is divided by is not 0
_WITH_ONES = """
    _weight_norm_interface.default _weight_norm_interface_backward.default
    linalg_lu_solve.default linalg_solve_triangular.default cholesky_solve.default
    linalg_cholesky_ex.default linalg_inv_ex.default _linalg_solve_ex.default _linalg_slogdet.default
    _linalg_det.default
"""
_FILLED = {name: value for value, names in enumerate((_WITH_ZEROS, _WITH_ONES)) for name in names.split()}


class Line(NamedTuple):
    """Sizes, strides and dtype of a result, each a number on few rows and one for each row more."""

    sizes: Sequence[tuple[int, int]]
    strides: Sequence[tuple[int, int]]
    dtype: torch.dtype

    def on(self, rows: int) -> Tensor:
        """A tensor of torch's `meta`, for so many rows."""
        sizes, strides = ([plus + times * rows for plus, times in of] for of in (self.sizes, self.strides))
        return torch.empty_strided(sizes, strides, dtype=self.dtype, device="meta")


def told_by_kernel(
    func: OpOverload, on: Callable[[int, Any], Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Line] | Line | None:
    """What a call gives; None if it is none of those, or its kernel takes something else than this.

    Args:
        on: the arguments for so many rows, tensors as those of `meta`.
    """
    value = _filled(func)
    if value is None:
        return None
    found: list[list[Tensor]] = []
    several = False
    try:
        for rows in ROWS:
            given, named = (_real(on(rows, part), value) for part in (args, kwargs))
            result = func(*given, **named)
            several = not isinstance(result, Tensor)
            found.append([*result] if several else [result])
    except (RuntimeError, _TooLarge):  # torch's own function says what does not fit
        return None
    lines = [line for results in zip(*found, strict=True) if (line := _line(results)) is not None]
    if len(lines) != len(found[0]):
        return None
    return lines if several else lines[0]


class _TooLarge(Exception):
    """An argument that a kernel is not run on."""


@functools.cache
def _filled(func: OpOverload) -> int | None:
    """What arguments are filled with."""
    known = _FILLED.get(str(func).removeprefix("aten."))
    if known is not None:
        return known
    aside = func._schema.is_mutable or any(made.alias_info for made in func._schema.returns)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return None if torch.Tag.pointwise not in func.tags or draws or aside else 1


def _real(arg: Any, value: int) -> Any:
    if isinstance(arg, Tensor):
        reach = 1 + sum((size - 1) * step for size, step in zip(arg.shape, arg.stride(), strict=True))
        room = reach if arg.numel() else 0
        if max(room, arg.numel()) > _MOST:
            raise _TooLarge
        filled = torch.full((room,), value, dtype=arg.dtype, device="cpu")
        if value and (arg.is_floating_point() or arg.is_complex()):
            filled = filled / torch.arange(1, room + 1, device="cpu")  # matrices that have an inverse
            filled = filled.to(arg.dtype)
        return filled.as_strided(arg.shape, arg.stride())
    if isinstance(arg, (list, tuple)):
        return type(arg)([_real(a, value) for a in arg])
    if isinstance(arg, dict):
        return {name: _real(a, value) for name, a in arg.items()}
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


def _line(results: Sequence[Tensor]) -> Line | None:
    """What some results, of `ROWS` each, are for any number of rows."""
    first = results[0]
    if any(t.dim() != first.dim() or t.dtype != first.dtype for t in results):
        return None
    sizes = [_through(numbers) for numbers in zip(*(t.shape for t in results), strict=True)]
    strides = [_through(numbers) for numbers in zip(*(t.stride() for t in results), strict=True)]
    known = [*filter(None, sizes)], [*filter(None, strides)]
    return Line(*known, first.dtype) if len(known[0]) == len(known[1]) == first.dim() else None


def _through(numbers: Sequence[int]) -> tuple[int, int] | None:
    """The line through numbers of `ROWS`.

    >>> _through((7, 11, 135)), _through((3, 5, 64))
    ((1, 2), None)
    """
    times, rest = divmod(numbers[1] - numbers[0], ROWS[1] - ROWS[0])
    plus = numbers[0] - times * ROWS[0]
    right = not rest and all(plus + times * at == n for at, n in zip(ROWS, numbers, strict=True))
    return (plus, times) if right else None
