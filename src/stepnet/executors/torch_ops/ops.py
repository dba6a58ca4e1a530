"""What each op of the closed list means in torch, on rows [n, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import GraphError
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, ROUNDED, Stage

from .whole import bind_whole

_OTHERWISE_CALLED: dict[str, Callable[..., Tensor]] = {
    "not": torch.logical_not, "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor,
    "copy": torch.clone, "trigamma": lambda x: torch.polygamma(1, x),
}  # fmt: skip
_POINTWISE: dict[str, Callable[..., Tensor]] = {
    name: _OTHERWISE_CALLED.get(name) or getattr(torch, name)
    for name, op in OPS.items()
    if op.stage is Stage.POINTWISE and name != "cast"
}

# Every op without a function of torch, and why.
REFUSED = {
    **dict.fromkeys(("shift", "spread"), "the loop itself moves values between steps"),
    "sum_steps": "the loop itself knows which rows are of one sequence",
}

Run = Callable[..., Any]


def bind(graph: Graph, node: Node) -> Run:
    """A function of (inputs..., rows=n) that computes a node; n is the number of rows at hand."""
    if node.op in REFUSED:
        raise GraphError(f"no torch meaning for op '{node.op}'")
    makers: dict[Stage, Callable[[Graph, Node], Run]] = {
        Stage.POINTWISE: _pointwise, Stage.REDUCE: _reduce, Stage.SHAPE: _shape, Stage.MATMUL: _matmul,
        Stage.WHOLE: bind_whole, Stage.ROWS: _rows, Stage.SOURCE: _source, Stage.OPAQUE: _opaque,
    }  # fmt: skip
    return makers[OPS[node.op].stage](graph, node)


def _values(graph: Graph, node: Node) -> tuple[list[Value], Value]:
    return [graph.values[n] for n in node.inputs], graph.values[node.outputs[0]]


def _is_row(value: Value) -> bool:
    """Whether a value has a leading dimension: of rows, or of sequences."""
    return value.kind in ("row", "sequence")


def _pointwise(graph: Graph, node: Node) -> Run:
    ins, out = _values(graph, node)
    if node.op == "cast":
        dtype = dtype_of(out.dtype)
        return lambda a, rows: a.to(dtype)
    function = _POINTWISE[node.op]
    if node.op in ("mul", "div", "floor_divide") and out.dtype in ROUNDED:
        function = _by_number(graph, node) or function
    rank = len(out.shape)
    # rows of fewer dimensions than the result: their row dimension must stay first
    lifted = [
        (-1, *(1,) * (rank - len(v.shape)), *v.shape)
        if _is_row(v) and 0 < len(v.shape) + 1 < rank + 1
        else None
        for v in ins
    ]
    if any(lifted):

        def lift(*args: Tensor, rows: int) -> Tensor:
            return function(
                *(a if s is None else a.reshape(rows, *s[1:]) for a, s in zip(args, lifted, strict=True))
            )

        return lift
    return lambda *args, rows: function(*args)


def _by_number(graph: Graph, node: Node) -> Callable[..., Tensor] | None:
    """A product or quotient of 16 bits and a number: torch rounds only what comes out."""
    function, made = _POINTWISE[node.op], graph.producers.get(node.inputs[1])
    if made is None or made.op != "full" or graph.values[node.inputs[0]].dtype not in ROUNDED:
        return None
    number = made.attr("value")
    return lambda a, _: function(a, number)


def _reduce(graph: Graph, node: Node) -> Run:
    (value,), _ = _values(graph, node)
    if node.op in ("argmax", "argmin"):
        function, dim, out = getattr(torch, node.op), node.attr("dim"), graph.values[node.output].shape
        if dim is None:  # of all features
            lead = (-1,) * _is_row(value)
            return lambda a, rows: function(a.reshape(*lead, value.size), -1).reshape(*lead, *out)
        at = dim + _is_row(value)
        return lambda a, rows: function(a, at, keepdim=True)
    dims = [d + _is_row(value) for d in node.attr("dims")]
    if node.op == "sum":
        return lambda a, rows: a.sum(dims, keepdim=True)
    function = {"amax": torch.amax, "amin": torch.amin}[node.op]
    return lambda a, rows: function(a, dims, keepdim=True)


def _shape(graph: Graph, node: Node) -> Run:
    ins, out = _values(graph, node)
    lead = int(_is_row(out))
    op, shape = node.op, out.shape
    if op == "reshape":
        return (lambda a, rows: a.reshape(rows, *shape)) if lead else (lambda a, rows: a.reshape(shape))
    if op == "permute":
        dims = (*range(lead), *(d + lead for d in node.attr("dims")))
        return lambda a, rows: a.permute(dims)
    if op == "expand":
        if not lead:
            return lambda a, rows: a.expand(shape)
        own = _is_row(ins[0])
        middle = (1,) * (len(shape) - len(ins[0].shape))
        inner = ins[0].shape

        def expand(a: Tensor, rows: int) -> Tensor:
            if own:
                a = a.reshape(rows, *middle, *inner)
            return a.expand(rows, *shape)

        return expand
    if op == "slice":
        dim, start, end, step = (node.attr(k) for k in ("dim", "start", "end", "step"))
        if step == 1:
            return lambda a, rows: a.narrow(dim + lead, start, end - start)
        index = (slice(None),) * (dim + lead) + (slice(start, end, step),)
        return lambda a, rows: a[index]
    if op == "flip":
        dims = [d + lead for d in node.attr("dims")]
        return lambda a, rows: a.flip(dims)
    if op == "cat":
        dim = node.attr("dim") + lead
        if lead and not all(_is_row(v) for v in ins):
            return lambda *args, rows: torch.cat(
                [a if _is_row(v) else a.expand(rows, *v.shape) for a, v in zip(args, ins, strict=True)],
                dim,
            )
        return lambda *args, rows: torch.cat(args, dim)
    return lambda table, index, rows: torch.nn.functional.embedding(index, table)


def _matmul(graph: Graph, node: Node) -> Run:
    (a, b), out = _values(graph, node)
    if out.dtype != a.dtype:  # torch sums such products in float32, and rounds the sum
        dtype = dtype_of(out.dtype)
        return lambda x, w, rows: torch.matmul(x, w).to(dtype)
    if _is_row(a) and not _is_row(b) and len(a.shape) == 1:
        return lambda x, w, rows: torch.mm(x, w)
    together = len(a.shape) == len(b.shape) or not _is_row(b)
    if _is_row(a) and len(a.shape) > 1 and together and a.dtype in ("float32", "float64"):
        (m, k), n = a.shape[-2:], b.shape[-1]
        if k == 1:
            return lambda x, w, rows: x * w
        if (n == 1 or (m == 1 and _is_row(b))) and k * m * n <= _SMALL:
            return _of_vectors(n == 1)
        if not _is_row(b) and len(b.shape) > 2 and a.shape[:-2] == b.shape[:-2]:
            return _by_heads(a, b)
    return lambda x, w, rows: torch.matmul(x, w)


def _by_heads(a: Value, b: Value) -> Run:
    """Rows times matrices that all rows share, one of each head: torch would copy them for each row."""
    (*lead, m, k), n = a.shape, b.shape[-1]
    heads = prod(lead)

    def product(x: Tensor, w: Tensor, rows: int) -> Tensor:
        count = x.shape[0]
        by_head = x.reshape(count, heads, m, k).transpose(0, 1).reshape(heads, count * m, k)
        out = torch.bmm(by_head, w.reshape(heads, k, n)).view(heads, count, m, n)
        return out.transpose(0, 1).reshape(count, *lead, m, n)

    return product


_SMALL = 1024  # numbers of a matrix


def _of_vectors(column: bool) -> Run:
    """A matrix and a vector of each row: torch's product takes a microsecond for each, however small."""
    if column:
        return lambda x, w, rows: (x * w.transpose(-1, -2)).sum(-1, keepdim=True)
    return lambda x, w, rows: (x.transpose(-1, -2) * w).sum(-2, keepdim=True)


def _rows(graph: Graph, node: Node) -> Run:
    ins, out = _values(graph, node)
    if node.op == "sum_rows":
        return lambda a, rows: a.sum(0)
    if node.op == "matmul_tn":
        product, dtype = _product_over_rows(node, ins), dtype_of(out.dtype)
        return product if out.dtype == ins[0].dtype else lambda a, b, rows: product(a, b, rows).to(dtype)
    padding, count, dtype = node.attr("padding"), out.shape, dtype_of(out.dtype)

    def embed_grad(grad: Tensor, index: Tensor, rows: int) -> Tensor:
        flat = index.reshape(-1)
        grad = grad.reshape(-1, grad.shape[-1])
        if padding >= 0:
            grad = grad * (flat != padding).unsqueeze(1)
        return torch.zeros(count, dtype=dtype, device=grad.device).index_add_(0, flat, grad)

    return embed_grad


_NARROW = 16
_FEW = 16  # rows of which that takes longer than a copy


def _product_over_rows(node: Node, ins: Sequence[Value]) -> Run:
    k, n = ins[0].shape[-1], ins[1].shape[-1]
    narrow = n < min(k, _NARROW)  # BLAS takes ten times as long with the narrow one last
    if node.attr("batch"):
        by_head = lambda a, b: torch.matmul(a.permute(1, 2, 0), b.transpose(0, 1))  # noqa: E731
        if narrow:
            return lambda a, b, rows: contiguous(by_head(b, a).transpose(1, 2))
        return lambda a, b, rows: by_head(a, b)
    flat = len(ins[0].shape) == len(ins[1].shape) == 1

    def product(a: Tensor, b: Tensor, rows: int) -> Tensor:
        if narrow and rows > _FEW:
            return contiguous(torch.mm(b.reshape(-1, n).t(), a.reshape(-1, k)).t())
        return torch.mm(a.t(), b) if flat else torch.mm(a.reshape(-1, k).t(), b.reshape(-1, n))

    return product


def _source(graph: Graph, node: Node) -> Run:
    _, out = _values(graph, node)
    dtype, lead, shape = dtype_of(out.dtype), int(_is_row(out)), out.shape
    if node.op == "full":
        number = node.attr("value")
        return lambda rows: torch.full((rows,) * lead + shape, number, dtype=dtype)
    if node.op == "iota":
        start, step = node.attr("start"), node.attr("step")
        return lambda rows: torch.arange(shape[0], dtype=dtype) * step + start
    function = {"rand": torch.rand, "randn": torch.randn}[node.op]
    return lambda rows: function((rows, *shape), dtype=dtype)


def _opaque(graph: Graph, node: Node) -> Run:
    def fill(template: Any, inputs: Sequence[Tensor]) -> Any:
        kind, content = template
        if kind == "input":
            return inputs[content]
        if kind == "list":
            return [fill(item, inputs) for item in content]
        if kind == "torch":
            return getattr(torch, content)
        return torch.device(content) if kind == "device" else content

    args, kwargs = node.attr("args"), node.attr("kwargs")
    space, name, overload = node.attr("target").split(".")
    target = getattr(getattr(getattr(torch.ops, space), name), overload)
    many = len(node.outputs) > 1

    def call(*given: Tensor, rows: int) -> Any:
        # as in the trace, where a call that wants its operands so was made without asking for it
        inputs = [t.contiguous() for t in given]
        out = target(*(fill(a, inputs) for a in args), **{k: fill(a, inputs) for k, a in kwargs})
        if many:
            return tuple(out)
        return out[0] if isinstance(out, (tuple, list)) else out

    return call
