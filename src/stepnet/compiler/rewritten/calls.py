"""Functions that keep rows apart, though torch's own trace of them does not show it, in simpler ones.

Each takes what torch's function takes, and gives NotImplemented for what it does not know: then torch's own
is traced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data.modes import autocast_dtype, is_wrapped, outside_modes
from stepnet.data.tree import map_leaves

from .attention import attention, heads_attention
from .contractions import bilinear, cdist, einsum
from .convolutions import CONVOLUTIONS
from .fourier import TRANSFORMS
from .inner_loops import inner
from .pooling import POOLING
from .sampling import SAMPLING
from .torch_cells import TORCH_CELLS, TORCH_LAYERS

_MOST_COPIES = 128  # that are joined
_INDICES = (torch.int64, torch.int32)


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """By statistics that are kept: a scale and a shift of each channel."""
    if training or running_mean is None or running_var is None:
        return NotImplemented  # it mixes rows

    def channels(value: Tensor) -> Tensor:
        return value.reshape(-1, *(1,) * (input.dim() - 2))

    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    result = (input - channels(running_mean)) * channels(scale)
    return (result if bias is None else result + channels(bias)).to(input.dtype)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """A layer norm of each group."""
    channels = input.shape[1]
    if channels % num_groups:
        return NotImplemented
    size = channels // num_groups
    for n in input.shape[2:]:
        size *= n
    groups = F.layer_norm(input.reshape(input.shape[0], num_groups, size), [size], eps=eps)
    result = groups.reshape(input.shape)
    wide = (-1, *(1,) * (input.dim() - 2))
    result = result if weight is None else result * weight.reshape(wide)
    return (result if bias is None else result + bias.reshape(wide)).to(input.dtype)


def _instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """A group norm of each channel; by statistics that are kept, a batch norm."""
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    own = [n for n in input.shape[2:] if n != 1]
    if running_mean is not None or running_var is not None or not own:
        return NotImplemented  # it notes the statistics of all rows; torch wants more than one element
    return _group_norm(input, input.shape[1], weight, bias, eps)


def _vector_by_matrix(input: Tensor, other: Tensor) -> Any:
    """torch's own takes a dimension away in place."""
    if input.dim() != 1 or other.dim() != 2:
        return NotImplemented
    return torch.mm(input.unsqueeze(0), other).squeeze(0)


def _linear_of_a_vector(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if input.dim() != 1 or weight.dim() != 2:
        return NotImplemented
    return F.linear(input.unsqueeze(0), weight, bias).squeeze(0)


def _rows_of_a_table(table: Tensor, index: Any) -> Any:
    """An embedding: `table[index]`, `table[:, i]`, `table[i, j]`, with an index of each row."""
    if not table.dim() or is_wrapped(table) or not all(type(n) is int for n in table.shape):
        return NotImplemented  # a row of values
    items = index if isinstance(index, tuple) else (index,)
    picks = [item for item in items if isinstance(item, Tensor)]
    if not any(is_wrapped(p) or (p.dim() and type(p.shape[0]) is not int) for p in picks):
        return NotImplemented  # the same for all rows
    known = (int, slice, type(...), type(None))
    if not all(p.dtype in _INDICES if isinstance(p, Tensor) else type(p) in known for p in items):
        return NotImplemented
    picks = [pick.long() for pick in picks]
    if table.is_complex():  # of which torch differentiates no embedding
        return torch.complex(*(_rows_of_a_table(part, index) for part in (table.real, table.imag)))
    table = table[tuple(slice(None) if isinstance(item, Tensor) else item for item in items)]
    at = _dimensions_picked(items, table.dim())
    together = at[-1] - at[0] == len(at) - 1
    first = at[0] if together else 0
    place: Any = 0
    for pick, size in zip(picks, (table.shape[d] for d in at), strict=True):
        place = place * size + torch.where(pick < 0, pick + size, pick)
    if len(picks) > 1:  # an index out of its dimension is an error, whatever the others are
        for pick, size in zip(picks, (table.shape[d] for d in at), strict=True):
            place = torch.where((pick < size) & (pick >= -size), place, table.numel())
    others = [d for d in range(table.dim()) if d not in at]
    flat = table.permute(*at, *others).reshape(math.prod(table.shape[d] for d in at), -1)
    rows = F.embedding(place, flat).reshape(*place.shape, *(table.shape[d] for d in others))
    return rows.movedim((*range(place.dim()),), (*range(first, first + place.dim()),)) if first else rows


def _dimensions_picked(items: Sequence[Any], dims: int) -> list[int]:
    """Which dimensions tensors pick from; what is picked by a number is gone by then."""
    front = [item for item in items if not isinstance(item, int)]
    if any(item is ... for item in front):
        hole = next(d for d, item in enumerate(front) if item is ...)
        front[hole : hole + 1] = [slice(None)] * (dims - len(front) + 1)
    return [d for d, item in enumerate(front) if isinstance(item, Tensor)]


def _index_select(input: Tensor, dim: int, index: Tensor) -> Any:
    if is_wrapped(index) and input.dim() and not is_wrapped(input):
        # vmap's own asks for the number of rows (torch 2.14)
        table = input.movedim(dim, 0)
        rows = F.embedding(index.reshape(-1), table.reshape(table.shape[0], -1))
        return rows.reshape(-1, *table.shape[1:]).movedim(0, dim)
    return _rows_of_a_table(input, (*[slice(None)] * (dim % max(input.dim(), 1)), index))


def one_hot(real: torch.dtype, input: Tensor, num_classes: int = -1) -> Any:
    """A row of the unit matrix in the step's numbers: an index that is none is an error, as for any table."""
    if num_classes <= 0:
        return NotImplemented  # as many as the largest index of all rows says
    return F.embedding(input, torch.eye(num_classes, dtype=real)).to(torch.int64)


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:  # fmt: skip
    """A bag for each row: rows of the table, their sum, mean or largest."""
    scales = max_norm is not None or scale_grad_by_freq or sparse
    if scales or input.dim() != 2 or offsets is not None or not input.shape[1] or input.is_floating_point():
        return NotImplemented
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        if mode != "sum" or per_sample_weights.dtype != weight.dtype:
            return NotImplemented
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.max(1)[0] if mode == "max" else rows.mean(1) if mode == "mean" else rows.sum(1)
    counted = (input != padding_idx % weight.shape[0]).unsqueeze(-1)
    if mode == "max":
        most = torch.where(counted, rows, -math.inf).max(1)[0]
        return torch.where(counted.any(1), most, 0.0)
    total = torch.where(counted, rows, 0.0).sum(1)
    return total / counted.sum(1).clamp(min=1) if mode == "mean" else total


def _repeat(input: Tensor, *sizes: Any, repeats: Any = ()) -> Any:
    """Copies side by side; of what has no rows, as many as there are rows."""
    sizes = sizes or (repeats,)
    counts = [*sizes[0]] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else [*sizes]
    if len(counts) < input.dim():
        return NotImplemented
    result = input[(None,) * (len(counts) - input.dim())]
    for dim, count in enumerate(counts):
        size = result.shape[dim]
        if type(count) is int and count == 1:
            continue
        if type(size) is int and size == 1:
            result = result.expand(*(count if d == dim else -1 for d in range(len(counts))))
        elif type(count) is int and 0 < count <= _MOST_COPIES:
            result = torch.cat([result] * count, dim)
        else:
            return NotImplemented
    return result.clone(memory_format=torch.contiguous_format)


def _tile(input: Tensor, *sizes: Any, dims: Any = ()) -> Any:
    sizes = sizes or (dims,)
    counts = [*sizes[0]] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else [*sizes]
    return _repeat(input, *[1] * (input.dim() - len(counts)), *counts)


def _repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None, **_: Any) -> Any:
    """Each element several times, one behind the other."""
    if dim is None or isinstance(repeats, Tensor) or not input.dim():
        return NotImplemented
    dim %= input.dim()
    size = input.shape[dim]
    if type(repeats) is not int and (type(size) is not int or size != 1):
        return NotImplemented
    wide = _repeat(input.unsqueeze(dim + 1), *[1] * (dim + 1), repeats, *[1] * (input.dim() - dim - 1))
    if wide is NotImplemented:
        return wide
    return wide.flatten(dim, dim + 1) if type(repeats) is int else wide.squeeze(dim)


def _roll(input: Tensor, shifts: Any, dims: Any = None) -> Any:
    """Two slices, joined the other way round."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    dims = [d % input.dim() for d in dims]
    if not dims or 0 in dims or len(dims) != len(shifts):
        return NotImplemented
    result = input.clone()
    for shift, dim in zip(shifts, dims, strict=True):
        size = result.shape[dim]
        at = (-shift) % size if size else 0
        if at:
            parts = result.narrow(dim, at, size - at), result.narrow(dim, 0, at)
            result = torch.cat(parts, dim)
    return result


def _dropout(by_default: bool) -> Callable[..., Any]:
    def dropout(
        input: Tensor, p: float = 0.5, training: bool = by_default, inplace: bool = False, *,
        train: bool | None = None,
    ) -> Any:  # fmt: skip
        """What drops nothing gives its very input, of which torch's trace makes a copy."""
        drops = p and (training if train is None else train)
        return input if 0 <= p <= 1 and not drops else NotImplemented

    return dropout


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    """A gather of as many dimensions as both have."""
    if dim is None or input.dim() != indices.dim() or not input.dim():
        return NotImplemented
    dim %= input.dim()
    sizes: list[Any] = []
    for a, b in zip(input.shape, indices.shape, strict=True):  # of which one may be the number of rows
        sizes.append(b if type(a) is int and a == 1 else a)
    here, there = list(sizes), list(sizes)
    here[dim], there[dim] = input.shape[dim], indices.shape[dim]
    return input.expand(here).gather(dim, indices.remainder(input.shape[dim]).expand(there))


@functools.cache
@outside_modes
def _factors_are_swapped() -> bool:
    """Whether torch factorises the transpose of a matrix that lies row by row, and backward knows it, as it
    did up to torch 2.10 at least. The rules of the plan factorise the matrix itself."""
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
    with torch.no_grad():
        return torch.ops.aten._linalg_solve_ex(matrix, matrix)[1][0, 0].item() != 3.0


def _solve_ex(a: Tensor, b: Tensor, **how: Any) -> Any:
    if _factors_are_swapped():
        a = a.mT.contiguous().mT
    return torch.ops.aten._linalg_solve_ex(a, b, check_errors=True, **how)


def _solve(A: Tensor, B: Tensor, *, left: bool = True) -> Any:
    """With a vector as a matrix of one column; torch asks whether it is one by the number of rows."""
    if A.dim() < 2 or not all(type(n) is int for n in A.shape[-2:]):
        return NotImplemented
    if B.dim() == A.dim() - 1 and type(B.shape[0]) is type(A.shape[0]):
        if not left or B.shape[-1] != A.shape[-1]:
            return NotImplemented
        return _solve_ex(A, B.unsqueeze(-1))[0].squeeze(-1)
    if B.dim() != A.dim() or any(type(a) is not type(b) for a, b in zip(A.shape, B.shape, strict=True)):
        shape = (*(A if A.dim() > B.dim() else B).shape[:-2],)
        A, B = A.expand(*shape, *A.shape[-2:]), B.expand(*shape, *B.shape[-2:])
    return _solve_ex(A, B, left=left)[0]


class _MatrixExp(torch.autograd.Function):
    """The exponential of a matrix, and its derivative as an op that is linear in the direction."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return torch.linalg.matrix_exp(matrix)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (matrix,) = ctx.saved_tensors
        return torch.ops.stepnet_joint.matrix_exp_grad(matrix.mT, grad)


def _matrix_exp(input: Tensor) -> Any:
    return _MatrixExp.apply(input) if not input.is_complex() else NotImplemented


class _Determinant(torch.autograd.Function):
    """Its gradient as torch has it, in the matrix's own dtype: torch's trace mixes in the default one."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        found, factors, swaps = torch.ops.aten._linalg_det(matrix)
        ctx.save_for_backward(found, factors, swaps)
        ctx.adjoint = not matrix.is_contiguous()  # torch factors the transpose of what is
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        found, factors, swaps = ctx.saved_tensors
        diagonal = factors.diagonal(dim1=-2, dim2=-1)
        least = torch.full_like(diagonal, torch.finfo(factors.dtype).eps)
        lifted = torch.where(diagonal == 0, least, torch.zeros_like(diagonal))
        right = torch.diag_embed((grad * found).unsqueeze(-1).expand_as(diagonal))
        return torch.linalg.lu_solve(factors + torch.diag_embed(lifted), swaps, right, adjoint=ctx.adjoint)


def _determinant(input: Tensor) -> Any:
    return NotImplemented if input.is_complex() or input.dim() < 2 else _Determinant.apply(input)


class _Fitted(NamedTuple):
    """What torch.linalg.lstsq gives, of which only the solution has a shape that is known."""

    solution: Tensor
    residuals: None = None
    rank: None = None
    singular_values: None = None


def _lstsq(input: Tensor, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """By the pseudoinverse, as torch writes its gradient."""
    if driver not in (None, "gelsy") or not isinstance(b, Tensor) or b.dim() != input.dim():
        return NotImplemented
    return _Fitted(torch.linalg.pinv(input, rtol=rcond) @ b)


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Its check of the variance is one of each row; where that is lifted to eps, its gradient goes on."""
    loops = inner()
    if reduction != "none" or loops is None or not isinstance(var, Tensor):
        return NotImplemented
    if var.dim() != input.dim() or input.dim() != target.dim():
        return NotImplemented  # sizes that torch looks at more closely
    if any(type(n) is int and n not in (1, m) for n, m in zip(var.shape, input.shape, strict=True)):
        return NotImplemented
    loops.must_hold(var >= 0)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target).square() / var)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


# Their parameters have the names of torch's, as callers may write them.
SIMPLER: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _vector_by_matrix),
    F.linear: _linear_of_a_vector,
    Tensor.__getitem__: _rows_of_a_table,
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
    F.embedding_bag: _embedding_bag,
    Tensor.repeat: _repeat,
    **dict.fromkeys((torch.tile, Tensor.tile), _tile),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), _repeat_interleave),
    torch.roll: _roll,
    Tensor.roll: _roll,
    **dict.fromkeys((F.dropout, F.alpha_dropout, torch.dropout, torch.alpha_dropout), _dropout(True)),
    F.feature_alpha_dropout: _dropout(False),
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: heads_attention,
    torch.einsum: einsum,
    torch.functional.einsum: einsum,
    F.bilinear: bilinear,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    torch.cdist: cdist,
    torch.take_along_dim: _take_along_dim,
    Tensor.take_along_dim: _take_along_dim,
    torch.linalg.solve: _solve,
    torch.linalg.lstsq: _lstsq,
    torch.det: _determinant,
    torch.linalg.det: lambda A: _determinant(A),
    Tensor.det: _determinant,
    torch.matrix_exp: _matrix_exp,
    torch.linalg.matrix_exp: _matrix_exp,
    Tensor.matrix_exp: _matrix_exp,
    **CONVOLUTIONS,
    **POOLING,
    **SAMPLING,
    **TRANSFORMS,
    **TORCH_CELLS,
    **TORCH_LAYERS,
}

# Those on autocast's lists. What they are written with here is on none, so the casts are made first.
_LOW = {*CONVOLUTIONS, F.scaled_dot_product_attention}
_FLOAT32 = {
    torch.linalg.solve, torch.linalg.lstsq, torch.cdist, F.grid_sample, F.avg_pool3d, F.max_pool3d,
    F.adaptive_avg_pool3d, F.adaptive_max_pool3d, *TRANSFORMS,
}  # fmt: skip


def simpler_call(function: Callable[..., Any], replaced: Any, args: Any, kwargs: Any) -> Any:
    """A simpler function on what autocast would hand to the `replaced` one; not under autocast, as that."""
    low = autocast_dtype("cpu")
    if low is None or replaced not in _LOW | _FLOAT32:
        return function(*args, **kwargs)
    dtype = low if replaced in _LOW else torch.float32

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if eligible else tensor

    args, kwargs = map_leaves((args, kwargs), Tensor, cast)
    with torch.autocast("cpu", enabled=False):
        return function(*args, **kwargs)
