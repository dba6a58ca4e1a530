"""Linear algebra of small matrices as plain calls, one for each row or column: no file format has its own.

A matrix that has no inverse gives infinities or nan, where torch raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST = 16  # rows of a matrix: what is written grows with them
aten = torch.ops.aten


def _rows(a: Tensor) -> int:
    """How many rows a matrix has; 0 for one that is too large to be taken apart."""
    size = a.shape[-1]
    return size if isinstance(size, int) and size <= MOST else 0


def _eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The solution of a x = b by Gauss and Jordan, and the determinant of a: the largest entry of a column
    that is left divides."""
    n = a.shape[-1]
    table = torch.cat([a, b], -1)
    determinant = torch.ones_like(a[..., 0, 0])
    place = torch.arange(n, device=a.device)
    for j in range(n):
        column = torch.where(place < j, -1.0, table[..., j].abs())
        best = column.argmax(-1, keepdim=True)
        at = (place == best).unsqueeze(-1)
        row = torch.gather(table, -2, best.unsqueeze(-1).expand(*best.shape, table.shape[-1]))
        table = torch.where(at, table[..., j : j + 1, :], table)  # the two change places
        pivot = row[..., j : j + 1]
        determinant = determinant * torch.where(best[..., 0] == j, 1.0, -1.0) * pivot[..., 0, 0]
        row = row / pivot
        table = table - table[..., j : j + 1] * row
        table = torch.where((place == j).unsqueeze(-1), row, table)
    return table[..., n:], determinant


def _solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    if not _rows(a):
        return NotImplemented
    if not left:
        a, b = a.mT, b.mT
    one = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    x, _ = _eliminated(a, b.unsqueeze(-1) if one else b)
    x = x.squeeze(-1) if one else x if left else x.mT
    return x, a, _whole(a), _flags(a)


def _inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    if not _rows(a):
        return NotImplemented
    x, _ = _eliminated(a, _identity(a))
    return x, _flags(a)


def _det(a: Tensor) -> Any:
    if not _rows(a):
        return NotImplemented
    return _eliminated(a, a[..., :0])[1], a, _whole(a)


def _slogdet(a: Tensor) -> Any:
    if not _rows(a):
        return NotImplemented
    det = _eliminated(a, a[..., :0])[1]
    return det.sign(), det.abs().log(), a, _whole(a)


def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    n = _rows(a)
    if not n:
        return NotImplemented
    lower = a.mT if upper else a
    columns: list[Tensor] = []
    place = torch.arange(n, device=a.device)
    for j in range(n):
        column = lower[..., j]
        for made in columns:
            column = column - made * made[..., j : j + 1]
        columns.append(torch.where(place < j, 0.0, column / column[..., j : j + 1].sqrt()))
    out = torch.stack(columns, -2 if upper else -1)
    return out, _flags(a)


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    n = _rows(a)
    if not n:
        return NotImplemented
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    known: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        row = b[..., i, :]
        for k, x in known.items():
            row = row - a[..., i, k, None] * x
        known[i] = row if unitriangular else row / a[..., i, i, None]
    return torch.stack([known[i] for i in range(n)], -2)


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    if transpose:
        a, upper = a.mT, not upper
    x = _solve_triangular(a, b, upper=upper, unitriangular=unitriangular)
    return x if x is NotImplemented else (x, a)


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Any:
    if not _rows(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _solve_triangular(lower, b, upper=False), upper=True)


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)


def _whole(a: Tensor) -> Tensor:
    """In place of pivots, which nobody reads beside the solution."""
    return torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _flags(a: Tensor) -> Tensor:
    """Of each matrix, that it went well."""
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._linalg_solve_ex.default: _solve,
    aten.linalg_inv_ex.default: _inverse,
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.linalg_cholesky_ex.default: _cholesky,
    aten.linalg_solve_triangular.default: _solve_triangular,
    aten.triangular_solve.default: _triangular_solve,
    aten.cholesky_solve.default: _cholesky_solve,
}
