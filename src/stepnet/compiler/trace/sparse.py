"""Sparse matrices that a step reads and does not train: constants, of which products pick and add up."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.compiler.reads.contents import SPARSE, entries
from stepnet.data.modes import is_wrapped, outside_modes
from stepnet.data.tree import leaves
from stepnet.errors import Unsupported
from stepnet.user_line import user_line

_PRODUCTS = frozenset({
    torch.sparse.mm, torch.mm, Tensor.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mv, Tensor.mv,
    Tensor.__rmatmul__, torch.linalg.matmul,
})  # fmt: skip


def is_sparse(tensor: Tensor) -> bool:
    """True for the matrices that are known here."""
    return not is_wrapped(tensor) and tensor.layout in SPARSE


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call of torch gives that is given a sparse matrix; NotImplemented for one that is given none.

    Raises:
        Unsupported: it is no product with rows.
    """
    given = list(leaves((args, kwargs), Tensor))
    if not any(map(is_sparse, given)):
        return NotImplemented
    if not any(type(t) is not Tensor or is_wrapped(t) or t.is_meta for t in given):
        return outside_modes(func)(*args, **kwargs)
    if (
        func is F.linear
        and len(args) + len(kwargs) < 4
        and is_sparse(weight := _named(args, kwargs, 1, "weight"))
    ):
        bias = _named(args, kwargs, 2, "bias")
        made = _product(weight, _named(args, kwargs, 0, "input").mT).mT
        return made if bias is None else made + bias
    if func in _PRODUCTS and len(args) == 2 and not kwargs:
        left, right = reversed(args) if func is Tensor.__rmatmul__ else args
        if is_sparse(left) and left.dim() == 2 and not is_sparse(right) and right.dim() in (1, 2):
            made = _product(left, right if right.dim() == 2 else right.unsqueeze(1))
            return made if right.dim() == 2 else made.squeeze(1)
        if is_sparse(right) and right.dim() == 2 and not is_sparse(left) and left.dim() == 2:
            return _product(right, left.mT, turned=True).mT
    raise Unsupported(
        f"{getattr(func, '__name__', func)} of a sparse matrix is not compiled",
        line=user_line().short,
        remedy="torch.sparse.mm(w, x), or w.to_dense()",
    )


def _named(args: Any, kwargs: Any, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


@outside_modes
def _entries(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The line, the column and the number of each entry."""
    found = entries(matrix)
    assert found is not None  # it would not be in a key
    lines, columns = found[0].clone()
    return lines, columns, found[1].clone()


def _product(matrix: Tensor, x: Tensor, turned: bool = False) -> Tensor:
    """A sparse matrix, or what it is transposed, by a dense one."""
    lines, columns, numbers = _entries(matrix)
    if turned:
        lines, columns = columns, lines
    lines, columns, numbers = map(torch.ops.aten.lift_fresh.default, (lines, columns, numbers))
    rows = x.mT
    picked = rows.index_select(1, columns) * numbers
    into = rows.new_zeros((rows.shape[0], matrix.shape[turned]))
    return into.index_add(1, lines, picked).mT
