"""What does not fit a node of a file; whoever runs the node names it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name, typed_shape
from stepnet.errors import IRError, StepnetError

from .file_errors import Misfitting
from .model import shorten


class Misfit(Exception):
    """An attribute or an input does not fit.

    `dims` are the sizes in conflict: they tell whether the conflict holds for every size of the dynamic
    dimensions or only for the one that was tried; `gives`, the shapes of what it gives of inputs that fit,
    where these do not hang on the sizes in conflict.
    """

    def __init__(
        self, what: str, got: object = None, expected: object = None, *, dims: object = None,
        gives: Sequence[Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.what = what
        self.got = got
        self.expected = expected
        self.dims = dims
        self.gives = gives


def error(where: str, problem: BaseException, got: object, expected: object) -> IRError:
    """An IRError that says where; and what was given and wanted, where the problem does not say it."""
    if isinstance(problem, StepnetError):
        got = got if problem.got is None else problem.got
        expected = expected if problem.expected is None else problem.expected
        return Misfitting(f"{where}: {problem.where}", got=got, expected=expected, remedy=problem.remedy)
    if "DataDependent" in type(problem).__name__ or "data-dependent expression" in str(problem):
        return Misfitting(
            f"{where}: numbers of its inputs decide what it gives, and what is saved keeps them open",
            got=got,
            expected="sizes, counts and places that are constants, or follow from the shapes of inputs",
            remedy="make what holds these numbers a constant of the model, and save that",
        )
    if isinstance(problem, Misfit):
        what = problem.what
        got = got if problem.got is None else problem.got
        got = got if str(got).isprintable() else shorten(str(got))
        expected = expected if problem.expected is None else problem.expected
    else:
        text = str(problem).strip().splitlines()
        what = text[0][:300] if text else type(problem).__name__
    return Misfitting(f"{where}: {what}", got=got, expected=expected)


def given(values: Sequence[Any]) -> str:
    """What a node was given, as errors show it."""
    return ", ".join(map(_shown, values)) or "no inputs"


def attributes_text(attributes: Collection[str]) -> str:
    """What a node says of itself, as errors show it."""
    return f"attributes {', '.join(map(shorten, attributes))}" if attributes else "no attributes"


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, Tensor) for part in value):
        return f"a sequence of {len(value)}: [{', '.join(map(typed_shape, value[:4]))}]"
    return typed_shape(value) if isinstance(value, Tensor) else shorten(str(value))


def same_types(tensors: Sequence[Tensor]) -> None:
    """Refuse inputs of different element types; autocast makes floating-point ones differ.

    Raises:
        Misfit: they differ.
    """
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1 and not (
        torch.is_autocast_enabled("cpu") and all(kind.is_floating_point for kind in kinds)
    ):
        shown = ", ".join(dtype_name(t.dtype) for t in tensors)
        raise Misfit(
            "inputs have different element types", got=shown, expected="one element type", dims=shown
        )


def axis_in(axis: int, rank: int, name: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        Misfit: it lies outside the tensor.
    """
    if not -rank <= axis < rank:
        raise Misfit(
            f"{name} {axis} lies outside a tensor of {rank} dimensions",
            got=axis,
            expected=f"{-rank} to {rank - 1}" if rank else "a tensor with axes",
            dims=(axis, rank),
        )
    return axis % rank


def axes_in(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, in order, each once."""
    return sorted({axis_in(a, rank, "axes:") for a in axes})


def shape_text(x: Tensor) -> str:
    """`[2, 3]`, for messages."""
    return str(list(x.shape))


def laid_out(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """A tensor in these sizes, of which one may be -1: what is left.

    Raises:
        Misfit: it has another number of elements.
    """
    try:
        return x.reshape(sizes)
    except RuntimeError as problem:
        if not all(isinstance(size, int) for size in (*sizes, *x.shape)):  # a size that stays open
            raise
        known = math.prod(size for size in sizes if size != -1)
        expected = f"a multiple of {known} numbers" if -1 in sizes else f"{known} numbers"
        if [*sizes].count(-1) > 1:
            expected = "one size of -1 at most"
        raise Misfit(
            f"{shape_text(x)} cannot be reshaped to {[*sizes]}",
            got=f"{x.numel()} numbers",
            expected=expected,
            dims=(str(x.shape), str(sizes)),
        ) from problem


MOST = 2**28  # numbers in a tensor whose size a file, or what it is given, says


def check_size(shape: Sequence[Any]) -> list[Any]:
    """The shape of a tensor that is to be made; sizes that are left open pass.

    Raises:
        Misfit: no tensor of it is made.
    """
    known = [size for size in shape if isinstance(size, int)]
    if min(known, default=0) < 0:
        raise Misfit("a size is negative", list(shape), "sizes >= 0", dims=str(shape))
    if math.prod(known) > MOST:
        raise Misfit("the result would be too large", list(shape), f"at most {MOST} numbers", dims=str(shape))
    return list(shape)


def check_turns(count: int) -> None:
    """Refuse so many turns of a loop that nothing else ends.

    Raises:
        Misfit: no table of its steps is made.
    """
    if count > MOST:
        what = "nothing but the trip count ends the loop, and it is too large"
        raise Misfit(what, count, f"at most {MOST} turns", dims=count)


def together(one: Sequence[Any], two: Sequence[Any]) -> list[Any]:
    """The sizes that both broadcast to. Where they do not fit, `expand` says so.

    >>> together([3, 1, 4], [2, 1]), together([], [5])
    ([3, 2, 4], [5])
    """
    short, long = sorted((list(one), list(two)), key=len)
    lead = len(long) - len(short)
    return [*long[:lead], *map(_of_two, short, long[lead:])]


def _of_two(a: Any, b: Any) -> Any:
    """One is 1, or both are alike. Where data decide one, either may be 1."""
    if isinstance(a, int) or isinstance(b, int):
        known, other = (a, b) if isinstance(a, int) else (b, a)
        return other if known == 1 else known
    # a record of ours writes sizes as text, and knows which are alike
    symbols = {symbol for size in (a, b) for symbol in getattr(size.node.expr, "free_symbols", ())}
    if not any(map(a.node.shape_env.is_unbacked_symint, symbols)):
        return a
    return torch.sym_max(a, b) * torch.sym_min(torch.sym_min(a, b), 1)


UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}  # with which torch hardly computes


def widened(values: Sequence[Any]) -> list[Any]:
    """Values with int64 in the place of the unsigned types that torch does not compute with."""
    return [v.long() if isinstance(v, Tensor) and v.dtype in UNSIGNED else v for v in values]


def sign(x: Tensor) -> Tensor:
    """The sign of each number; of what is no number that, for which torch has 0."""
    return torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)
