"""What algorithms on whole features demand: picks, running totals, sorts, factors of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .agreement import INTEGERS, Inputs, has_shape, same_dtype
from .graph import Node, Value
from .ops import SCATTERS

Check = Callable[[Node, Inputs, Value], Iterator[str]]


def _along(node: Node, inputs: Inputs) -> Iterator[str]:
    rank = len(inputs[0].shape)
    if not 0 <= node.attr("dim") < rank:
        yield f"works along dimension {node.attr('dim')} of {rank}"


def _one_kind(inputs: Inputs) -> Iterator[str]:
    kinds = [v.kind for v in inputs]
    if len({"row" if kind == "sequence" else kind for kind in kinds} - {"sum"}) > 1:
        yield f"reads {' and '.join(kinds)} values"


def _gather(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    value, index = inputs
    if len(value.shape) != len(index.shape) or not 0 <= node.attr("dim") < len(value.shape):
        yield f"gathers along dimension {node.attr('dim')} of {list(value.shape)} by {list(index.shape)}"
    if index.dtype not in INTEGERS:
        yield f"has an index of {index.dtype}"
    kinds = (value.kind, index.kind)
    if "shared" in kinds and value.kind != index.kind and kinds != ("sum", "shared"):
        yield f"gathers from a {value.kind} value by a {index.kind} index"
    yield from _inside(node, value, index)
    yield from has_shape(out, index.shape, inputs)
    yield from same_dtype([value], out)


def _inside(node: Node, value: Value, index: Value) -> Iterator[str]:
    """An index is as large as what it goes into, or smaller, but along the dimension."""
    sizes = zip(index.shape, value.shape, strict=False)
    if any(i > n for d, (i, n) in enumerate(sizes) if d != node.attr("dim")):
        yield f"goes into {list(value.shape)} at {list(index.shape)}"


def _scatter(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    value, index, source = inputs
    if index.dtype not in INTEGERS:
        yield f"has an index of {index.dtype}"
    if index.shape != source.shape or len(index.shape) != len(value.shape):
        yield f"puts {list(source.shape)} into {list(value.shape)} at {list(index.shape)}"
    else:
        yield from _along(node, inputs)
    yield from _inside(node, value, index)
    yield from _one_kind(inputs)
    yield from has_shape(out, value.shape, inputs)
    yield from same_dtype([value, source], out)


def _running(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    yield from _along(node, inputs)
    yield from has_shape(out, inputs[0].shape, inputs)
    yield from same_dtype(inputs, out)


def _places(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    yield from _along(node, inputs)
    shape, dim = inputs[0].shape, node.attr("dim")
    if node.op == "topk":
        size = min(out.shape[dim], shape[dim]) if len(out.shape) == len(shape) > dim >= 0 else 0
        shape = (*shape[:dim], size, *shape[dim + 1 :])
        _ = node.attr("largest"), node.attr("sorted")  # it has to say both
    if node.op == "argsort":
        _ = node.attr("descending"), node.attr("stable")
    yield from has_shape(out, shape, inputs)
    if out.dtype != "int64":
        yield f"gives {out.dtype}, expected int64"


def _square(inputs: Inputs) -> Iterator[str]:
    shape = inputs[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        yield f"takes matrices {list(shape)}, which are not square"


def _factor(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    yield from _square(inputs)
    *lead, n, m = (0, 0, *inputs[0].shape)[-max(len(inputs[0].shape), 2) :]
    if node.op != "matrix_exp":
        node.attr("check")
    yield from has_shape(out, (*lead, n + (node.op == "lu"), m), inputs)
    yield from same_dtype(inputs, out)


def _solve(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    a, b = inputs
    n = a.shape[-1] if a.shape else 0
    rows = n + (node.op == "lu_solve")
    if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-2] != rows or b.shape[-2:-1] != (n,):
        yield f"solves {list(b.shape)} by {list(a.shape)}"
    names = {"lu_solve": ("transposed",), "solve_triangular": ("upper", "unit")}.get(node.op, ())
    for name in names:
        node.attr(name)
    yield from _one_kind(inputs)
    yield from has_shape(out, b.shape, inputs)
    yield from same_dtype(inputs, out)


WHOLE_CHECKS: dict[str, Check] = {
    "gather": _gather,
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _running),
    **dict.fromkeys(("argsort", "topk", "cumargmax", "cumargmin"), _places),
    **dict.fromkeys(("lu", "cholesky", "matrix_exp"), _factor),
    **dict.fromkeys(("lu_solve", "solve_triangular", "matrix_exp_grad"), _solve),
}
