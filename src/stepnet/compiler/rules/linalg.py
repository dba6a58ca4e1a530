"""Aten calls that factor and solve with the small matrices of a row."""

from __future__ import annotations

from typing import Any

from .builder import Builder, Ref, rule
from .known_parts import slice_feature
from .shape import swapped


def _matrices(b: Builder, *refs: Ref) -> bool:
    """Whether each value holds matrices whose rows, if it has any, come first."""
    return all(
        r.bdim in (None, 0)
        and len(b.values[r.name].shape) - r.fold >= 2
        and b.values[r.name].dtype in ("float32", "float64")
        and b.values[r.name].kind != "sum"
        for r in refs
    )


def _unit(b: Builder, n: int, dtype: str) -> str:
    """The unit matrix."""
    count = b.emit("iota", (), (n,), "int64", "shared", start=0, step=1)
    same = b.emit("eq", (b.reshape(count, (n, 1)), b.reshape(count, (1, n))), (n, n), "bool")
    return b.emit("cast", (same,), (n, n), dtype)


def _units(b: Builder, a: Ref) -> str:
    """A unit matrix for each of these matrices."""
    value = b.values[a.name]
    return _as_wide(b, _unit(b, value.shape[-1], value.dtype), value.shape[:-2], value.kind)


def _as_wide(b: Builder, name: str, lead: tuple[int, ...], kind: Any) -> str:
    """A matrix, or matrices, for each of the leading features, of rows if `kind` says so."""
    value = b.values[name]
    shape = (*lead, *value.shape[-2:])
    if value.shape == shape and (value.kind == kind or kind == "shared"):
        return name
    return b.emit("expand", (name,), shape, value.dtype, kind)


def _solved(b: Builder, op: str, a: str, right: str, **how: Any) -> str:
    """The solution of matrices `a` for right sides; both with the same leading features."""
    av, rv = b.values[a], b.values[right]
    lead = max(av.shape[:-2], rv.shape[:-2], key=len)
    if av.kind == "row":
        right = _as_wide(b, right, lead, "sum" if rv.kind == "sum" else "row")
    right = _as_wide(b, right, lead, b.values[right].kind)
    a = _as_wide(b, a, lead, b.values[a].kind)
    return b.emit(op, (a, right), b.values[right].shape, rv.dtype, **how)


def _lu(b: Builder, a: Ref, check: bool) -> str:
    value = b.values[a.name]
    *lead, n, m = value.shape
    return b.emit("lu", (a.name,), (*lead, n + 1, m), value.dtype, check=check)


def _parts(b: Builder, packed: str, a: Ref) -> tuple[Ref, Ref]:
    """The factors, and what the rows were swapped with: in the dtype of the factors."""
    shape = b.values[packed].shape
    at, n = len(shape) - 2, shape[-1]
    swaps = b.reshape(slice_feature(b, packed, at, n, n + 1), (*shape[:-2], n))
    return Ref(slice_feature(b, packed, at, 0, n), a.bdim, a.fold), Ref(swaps, a.bdim, a.fold)


def _packed(b: Builder, factors: Ref, swaps: Ref) -> str | None:
    """Factors and swaps in one, as `lu` gives them."""
    value, given = b.values[factors.name], b.values[swaps.name]
    if given.dtype != value.dtype:
        return None  # of a torch call
    n, at = value.shape[-1], len(value.shape) - 2
    made = b.maker(factors.name)
    whole = made.inputs[0] if made is not None and made.op == "slice" else ""
    source = b.maker(whole)
    if source is not None and source.op == "lu":
        parts = [r.name for r in _parts(b, whole, factors)]
        if parts == [factors.name, swaps.name]:
            return whole
    last = b.reshape(swaps.name, (*value.shape[:-2], 1, n))
    return b.emit("cat", (factors.name, last), (*value.shape[:-2], n + 1, n), value.dtype, dim=at)


def _nothing_wrong(b: Builder, a: Ref) -> Ref:
    """What torch says of each matrix: the loop itself fails where one has no factor."""
    shape = b.values[a.name].shape[:-2]
    return Ref(b.full(0, shape, "int32", "shared" if a.bdim is None else "row"), a.bdim, a.fold)


@rule("linalg_lu_factor_ex")
def _lu_factor(b: Builder, a: Ref, *, pivot: bool = True, check_errors: bool = False) -> Any:
    value = b.values[a.name]
    if not pivot or not _matrices(b, a) or value.shape[-1] != value.shape[-2]:
        return NotImplemented
    return [*_parts(b, _lu(b, a, check_errors or b.checked), a), _nothing_wrong(b, a)]


@rule("linalg_lu_solve")
def _lu_solve(
    b: Builder, factors: Ref, swaps: Ref, right: Ref, *, left: bool = True, adjoint: bool = False
) -> Any:
    if not _matrices(b, factors) or right.bdim not in (None, 0):
        return NotImplemented
    packed = _packed(b, factors, swaps)
    if packed is None:
        return NotImplemented
    side = right.name if left else swapped(b, right.name)
    out = _solved(b, "lu_solve", packed, side, transposed=adjoint == left)
    return b.result(out if left else swapped(b, out), _bdim(factors, right), right.fold)


@rule("lu_unpack")
def _lu_unpack(
    b: Builder, factors: Ref, swaps: Ref, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """The permutation, L and U."""
    if not _matrices(b, factors) or b.values[swaps.name].dtype != b.values[factors.name].dtype:
        return NotImplemented
    value = b.values[factors.name]
    *lead, n, _ = value.shape
    dtype, at = value.dtype, len(lead)
    unit = _units(b, factors)
    last = b.reshape(swaps.name, (*lead, 1, n))
    alone = b.emit("cat", (unit, last), (*lead, n + 1, n), dtype, dim=at)
    order = swapped(b, _solved(b, "lu_solve", alone, unit, transposed=False))
    count = b.emit("iota", (), (n,), "int64", "shared", start=0, step=1)
    below = b.emit("gt", (b.reshape(count, (n, 1)), b.reshape(count, (1, n))), (n, n), "bool")
    lower = b.like(factors.name, "where", below, factors.name, 0)
    lower = b.like(lower, "add", lower, unit)
    upper = b.like(factors.name, "where", below, 0, factors.name)
    return [Ref(name, factors.bdim, factors.fold) for name in (order, lower, upper)]


def _bdim(*refs: Ref) -> int | None:
    return 0 if any(r.bdim is not None for r in refs) else None


@rule("_linalg_solve_ex")
def _solve(b: Builder, a: Ref, right: Ref, *, left: bool = True, check_errors: bool = False) -> Any:
    if not _matrices(b, a, right) or a.fold != right.fold:
        return NotImplemented
    packed = _lu(b, a, check_errors or b.checked)
    side = right.name if left else swapped(b, right.name)
    out = _solved(b, "lu_solve", packed, side, transposed=not left)
    answer = Ref(out if left else swapped(b, out), _bdim(a, right), right.fold)
    return [answer, *_parts(b, packed, a), _nothing_wrong(b, a)]


@rule("linalg_inv_ex")
def _inverse(b: Builder, a: Ref, *, check_errors: bool = False) -> Any:
    if not _matrices(b, a):
        return NotImplemented
    out = _solved(b, "lu_solve", _lu(b, a, check_errors or b.checked), _units(b, a), transposed=False)
    return [Ref(out, a.bdim, a.fold), _nothing_wrong(b, a)]


def _diagonal(b: Builder, packed: str) -> str:
    """The diagonal of the factors, with the sign of the swaps in its first element."""
    *lead, rows, n = b.values[packed].shape
    flat = b.reshape(packed, (*lead, rows * n))
    at = len(lead)
    return slice_feature(b, flat, at, 0, (n - 1) * (n + 1) + 1, n + 1)


def _signs(b: Builder, packed: str) -> str:
    """-1 for each row that was swapped with another one, else 1."""
    *lead, rows, n = b.values[packed].shape
    dtype = b.values[packed].dtype
    swaps = b.reshape(slice_feature(b, packed, len(lead), rows - 1, rows), (*lead, n))
    own = b.emit("iota", (), (n,), dtype, "shared", start=1, step=1)
    return b.like(swaps, "where", b.like(swaps, "ne", swaps, own, dtype="bool"), -1, 1)


def _product(b: Builder, name: str) -> str:
    """The product over the last dimension."""
    *lead, n = b.values[name].shape
    dtype = b.values[name].dtype
    total = b.emit("cumprod", (name,), (*lead, n), dtype, dim=len(lead))
    return b.reshape(slice_feature(b, total, len(lead), n - 1, n), lead)


def _lu_as_torch(b: Builder, a: Ref) -> str:
    """The factors that gradients of a determinant read: torch factors the transpose of what is contiguous."""
    traced: Any = b.node.args[0] if b.node is not None else None
    if traced is not None and traced.meta["val"].is_contiguous():
        a = Ref(swapped(b, a.name), a.bdim, a.fold)
    return _lu(b, a, False)


@rule("_linalg_det")
def _det(b: Builder, a: Ref) -> Any:
    if not _matrices(b, a) or not b.values[a.name].size:
        return NotImplemented
    packed = _lu_as_torch(b, a)
    diagonal, signs = _diagonal(b, packed), _signs(b, packed)
    whole = _product(b, b.like(diagonal, "mul", diagonal, signs))
    return [Ref(whole, a.bdim, a.fold), *_parts(b, packed, a)]


@rule("_linalg_slogdet")
def _slogdet(b: Builder, a: Ref) -> Any:
    if not _matrices(b, a) or not b.values[a.name].size:
        return NotImplemented
    packed = _lu_as_torch(b, a)
    diagonal = _diagonal(b, packed)
    shape, dtype = b.values[diagonal].shape, b.values[diagonal].dtype
    own = b.like(diagonal, "sign", diagonal)
    sign = _product(b, b.like(own, "mul", own, _signs(b, packed)))
    logs = b.like(diagonal, "log", b.like(diagonal, "abs", diagonal))
    at = len(shape) - 1
    total = b.reshape(b.emit("sum", (logs,), (*shape[:-1], 1), dtype, dims=(at,)), shape[:-1])
    return [Ref(sign, a.bdim, a.fold), Ref(total, a.bdim, a.fold), *_parts(b, packed, a)]


@rule("linalg_cholesky_ex")
def _cholesky(b: Builder, a: Ref, *, upper: bool = False, check_errors: bool = False) -> Any:
    if not _matrices(b, a):
        return NotImplemented
    name = swapped(b, a.name) if upper else a.name
    out = b.like(name, "cholesky", name, check=check_errors or b.checked)
    return [Ref(swapped(b, out) if upper else out, a.bdim, a.fold), _nothing_wrong(b, a)]


def _triangle(b: Builder, a: str, right: str, upper: bool, unit: bool = False) -> str:
    return _solved(b, "solve_triangular", a, right, upper=upper, unit=unit)


@rule("linalg_solve_triangular")
def _solve_triangular(
    b: Builder, a: Ref, right: Ref, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    if not _matrices(b, a) or a.fold != right.fold or right.bdim not in (None, 0):
        return NotImplemented
    bdim = _bdim(a, right)
    if left:
        return b.result(_triangle(b, a.name, right.name, upper, unitriangular), bdim, right.fold)
    out = _triangle(b, swapped(b, a.name), swapped(b, right.name), not upper, unitriangular)
    return b.result(swapped(b, out), bdim, right.fold)


@rule("cholesky_solve")
def _cholesky_solve(b: Builder, right: Ref, a: Ref, upper: bool = False) -> Any:
    if not _matrices(b, a) or a.fold != right.fold or right.bdim not in (None, 0):
        return NotImplemented
    return b.result(_by_cholesky(b, a.name, right.name, upper), _bdim(a, right), right.fold)


def _by_cholesky(b: Builder, a: str, right: str, upper: bool) -> str:
    """The solution of a matrix whose Cholesky factor this is."""
    low, high = (swapped(b, a), a) if upper else (a, swapped(b, a))
    return _triangle(b, high, _triangle(b, low, right, False), True)


@rule("cholesky_inverse")
def _cholesky_inverse(b: Builder, a: Ref, upper: bool = False) -> Any:
    if not _matrices(b, a):
        return NotImplemented
    return b.result(_by_cholesky(b, a.name, _units(b, a), upper), a.bdim, a.fold)


@rule("linalg_matrix_exp")
def _matrix_exp(b: Builder, a: Ref) -> Any:
    if not _matrices(b, a):
        return NotImplemented
    return b.result(b.like(a.name, "matrix_exp", a.name), a.bdim, a.fold)


@rule("stepnet_joint.matrix_exp_grad.default")
def _matrix_exp_grad(b: Builder, a: Ref, grad: Ref) -> Any:
    """The derivative at a, in a direction that may be a sum over rows."""
    if a.bdim not in (None, 0) or a.fold != grad.fold or grad.bdim not in (None, 0):
        return NotImplemented
    out = _solved(b, "matrix_exp_grad", a.name, grad.name)
    return b.result(out, _bdim(a, grad), grad.fold)
