"""What algorithms on whole features mean in torch, on rows [n, ...] or on one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import GraphError
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import SCATTERS

Run = Callable[..., Any]


def bind_whole(graph: Graph, node: Node) -> Run:
    """A function of (inputs..., rows=n) that computes a node."""
    op = node.op
    if op in _MATRICES:
        matrix, settings = _MATRICES[op], dict(node.attrs)
        return lambda *args, rows: matrix(*args, **settings)
    dim = node.attr("dim") + (graph.values[node.output].kind in ("row", "sequence"))
    if op == "gather":
        return lambda a, index, rows: a.gather(dim, index)
    if op == "scatter":
        return lambda a, index, source, rows: a.scatter(dim, index, source)
    if op in SCATTERS:
        how = SCATTERS[op]
        return lambda a, index, source, rows: a.scatter_reduce(dim, index, source, how)
    if op == "argsort":
        down, stable = node.attr("descending"), node.attr("stable")
        return lambda a, rows: torch.sort(a, dim=dim, descending=down, stable=stable)[1]
    if op == "topk":
        k, largest, ordered = graph.values[node.output].shape, node.attr("largest"), node.attr("sorted")
        return lambda a, rows: torch.topk(a, k[node.attr("dim")], dim, largest, ordered)[1]
    if op in ("cumargmax", "cumargmin"):
        most = torch.cummax if op == "cumargmax" else torch.cummin
        return lambda a, rows: most(a, dim)[1]
    total: dict[str, Run] = {
        "cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp
    }  # fmt: skip
    if op not in total:
        raise GraphError(f"no torch meaning for op '{op}'")
    return lambda a, rows: total[op](a, dim).to(a.dtype)  # which sums whole numbers as int64


def _lu(a: Tensor, check: bool) -> Tensor:
    factors, swaps, wrong = torch.linalg.lu_factor_ex(a)
    if check:
        torch.ops.aten._linalg_check_errors(wrong, "linalg.solve", is_matrix=a.dim() == 2)
    return torch.cat([factors, swaps.to(a.dtype).unsqueeze(-2)], -2)


def _lu_solve(packed: Tensor, b: Tensor, transposed: bool) -> Tensor:
    factors, swaps = contiguous(packed[..., :-1, :]), packed[..., -1, :].to(torch.int32)
    return torch.linalg.lu_solve(factors, swaps.clamp(1, packed.shape[-1]), b, adjoint=transposed)


def _matrix_exp_grad(a: Tensor, b: Tensor) -> Tensor:
    """The derivative of the exponential of a in the direction b."""
    n = a.shape[-1]
    both = torch.cat([torch.cat([a, b], -1), torch.cat([torch.zeros_like(a), a], -1)], -2)
    return torch.matrix_exp(both)[..., :n, n:]


_MATRICES: dict[str, Run] = {
    "lu": _lu, "lu_solve": _lu_solve,
    "cholesky": lambda a, check: torch.linalg.cholesky(a) if check else torch.linalg.cholesky_ex(a)[0],
    "solve_triangular": lambda a, b, upper, unit: torch.linalg.solve_triangular(
        a, b, upper=upper, unitriangular=unit
    ),
    "matrix_exp": torch.matrix_exp, "matrix_exp_grad": _matrix_exp_grad,
}  # fmt: skip
