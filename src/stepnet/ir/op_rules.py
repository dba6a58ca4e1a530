"""What each op of the closed list demands of its inputs and its result: kinds, shapes, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .agreement import INTEGERS as _INTEGERS
from .agreement import Inputs
from .agreement import has_shape as _shape
from .agreement import same_dtype as _same_dtype
from .graph import Node, Value
from .ops import OPS, Stage
from .whole_rules import WHOLE_CHECKS

_TO_BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan"})
_NO_INT64 = 1 << 63
_LOGIC = frozenset({"and", "or", "xor", "not"})
_LINEAR = frozenset(
    {"add", "sub", "mul", "div", "neg", "copy", "cast", "sum", "reshape", "permute", "expand", "slice",
     "flip", "cat", "matmul", "where", "cumsum", "gather", "scatter", "scatter_add", "lu_solve",
     "solve_triangular", "matrix_exp_grad"}
)  # fmt: skip

Check = Callable[[Node, Inputs, Value], Iterator[str]]


def broken_op(node: Node, inputs: Inputs, outputs: Sequence[Value]) -> Iterator[str]:
    """What a node breaks, a sentence each; its op is known and its arity right."""
    if node.op == "opaque":
        yield from _opaque(node, inputs, outputs)
        return
    (out,) = outputs
    yield from _kinds(node, inputs, out)
    if OPS[node.op].stage in (Stage.MATMUL, Stage.ROWS) and out.dtype == "bool":
        yield "adds up truth values"
    try:
        yield from _CHECKS[node.op](node, inputs, out)
    except KeyError as missing:
        yield f"attribute {missing} is missing"


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of an element by element result; None if the shapes do not go together.

    >>> broadcast([(3, 1), (5,), ()])
    (3, 5)
    """
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for at in range(-rank, 0):
        sizes = {s[at] for s in shapes if -at <= len(s)} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def _kinds(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    kinds = {value.kind for value in inputs}
    stage = OPS[node.op].stage
    if node.op in ("rand", "randn", "shift", "spread"):
        expected = {"row"}
    elif node.op == "sum_steps":
        expected = {"sequence"}
        if kinds != {"row"}:
            yield f"adds up over steps, but reads {_list(kinds)} values"
    elif node.op == "iota":
        expected = {"shared"}
    elif node.op == "full":
        expected = {"row", "sequence", "shared"}
    elif stage is Stage.ROWS:
        expected = {"sum"}
        if kinds not in ({"row"}, {"sequence"}):
            yield f"adds up over rows, but reads {_list(kinds)} values"
    elif {"row", "sum"} <= kinds:
        expected = {out.kind}
        yield "reads a row and a sum over rows"
    elif "sum" in kinds:
        expected = {"sum"}
        yield from _of_sums(node, inputs, kinds)
    else:
        expected = {_joined(kinds)}
        if node.op in ("expand", "copy") and "row" not in kinds:
            expected.add("row")
    if out.kind not in expected:
        yield f"gives a {out.kind} value, expected {_list(expected)}"


def _of_sums(node: Node, inputs: Inputs, kinds: set[str]) -> Iterator[str]:
    """What is not linear in a sum over rows differs from the sum of what it gives for each row."""
    if node.op not in _LINEAR:
        yield "is not linear, but reads a sum over rows"
    elif node.op in ("mul", "matmul") and kinds == {"sum"}:
        yield "multiplies two sums over rows"
    elif node.op == "where" and inputs[0].kind == "sum":
        yield "chooses by a sum over rows"
    elif node.op == "div" and inputs[1].kind == "sum":
        yield "divides by a sum over rows"
    elif node.op in ("add", "sub") and kinds != {"sum"}:
        yield "adds a value of every step to a sum over rows"


def _joined(kinds: set[str]) -> str:
    """The kind of what is made from others."""
    return next((kind for kind in ("row", "sum", "sequence") if kind in kinds), "shared")


def _list(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds)) or "no"


def _product_dtype(values: Inputs, out: Value) -> Iterator[str]:
    """A product of numbers of 16 bits may be summed in float32."""
    wide = out.dtype == "float32" and {v.dtype for v in values} in ({"bfloat16"}, {"float16"})
    if not wide:
        yield from _same_dtype(values, out)


def _pointwise(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    yield from _shape(out, broadcast([v.shape for v in inputs]), inputs)
    if node.op in _TO_BOOL:
        if out.dtype != "bool":
            yield f"gives {out.dtype}, expected bool"
        if len({v.dtype for v in inputs}) > 1:
            yield f"compares {' with '.join(v.dtype for v in inputs)}"
    elif node.op == "where":
        if inputs[0].dtype != "bool":
            yield f"has a condition of {inputs[0].dtype}"
        yield from _same_dtype(inputs[1:], out)
    elif node.op != "cast":
        yield from _same_dtype(inputs, out)
        if node.op in _LOGIC and out.dtype != "bool":
            yield f"gives {out.dtype}, expected bool"
        if node.op.startswith("bitwise") and out.dtype not in _INTEGERS:
            yield f"gives {out.dtype}, expected whole numbers"


def _reduce(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    (value,) = inputs
    dims = node.attr("dims")
    if any(not 0 <= d < len(value.shape) for d in dims) or len(set(dims)) != len(dims):
        yield f"reduces dimensions {list(dims)} of {len(value.shape)}"
        return
    yield from _shape(out, tuple(1 if i in dims else s for i, s in enumerate(value.shape)), inputs)
    yield from _same_dtype(inputs, out)


def _arg(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    dim = node.attr("dim")
    shape = inputs[0].shape
    if dim is not None and not 0 <= dim < len(shape):
        yield f"reduces dimension {dim} of {len(shape)}"
    yield from _shape(out, tuple(1 if dim is None or i == dim else s for i, s in enumerate(shape)), inputs)
    if out.dtype not in _INTEGERS:
        yield f"gives {out.dtype}, expected whole numbers"


def _reshape(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    if inputs[0].size != out.size:
        yield from _shape(out, inputs[0].shape, inputs)
    yield from _same_dtype(inputs, out)


def _permute(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    shape, dims = inputs[0].shape, node.attr("dims")
    if sorted(dims) != list(range(len(shape))):
        yield f"permutes dimensions {list(dims)} of {len(shape)}"
        return
    yield from _shape(out, tuple(shape[d] for d in dims), inputs)
    yield from _same_dtype(inputs, out)


def _expand(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    if broadcast([inputs[0].shape, out.shape]) != out.shape:
        yield from _shape(out, None, inputs)
    yield from _same_dtype(inputs, out)


def _slice(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    shape = inputs[0].shape
    dim, start, end, step = (node.attr(k) for k in ("dim", "start", "end", "step"))
    if not 0 <= dim < len(shape) or not 0 <= start <= end <= shape[dim] or step < 1:
        yield f"takes [{start}:{end}:{step}] of dimension {dim} of {list(shape)}"
        return
    size = -(-(end - start) // step)
    yield from _shape(out, (*shape[:dim], size, *shape[dim + 1 :]), inputs)
    yield from _same_dtype(inputs, out)


def _flip(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    if any(not 0 <= d < len(inputs[0].shape) for d in node.attr("dims")):
        yield f"flips dimensions {list(node.attr('dims'))} of {len(inputs[0].shape)}"
    yield from _like(node, inputs, out)


def _like(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    yield from _shape(out, inputs[0].shape, inputs)
    yield from _same_dtype(inputs[:1], out)


def _cat(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    dim, first = node.attr("dim"), inputs[0].shape if inputs else ()
    rest = {(*v.shape[:dim], *v.shape[dim + 1 :]) for v in inputs}
    if not 0 <= dim < len(first) or len(rest) != 1 or any(len(v.shape) != len(first) for v in inputs):
        yield f"joins {', '.join(str(list(v.shape)) for v in inputs)} along dimension {dim}"
        return
    total = sum(v.shape[dim] for v in inputs)
    yield from _shape(out, (*first[:dim], total, *first[dim + 1 :]), inputs)
    yield from _same_dtype(inputs, out)


def _embed(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    table, index = inputs
    if table.kind != "shared":
        yield f"looks up in a {table.kind} value"
    if index.dtype not in _INTEGERS:
        yield f"has an index of {index.dtype}"
    yield from _shape(out, (*index.shape, *table.shape[1:]), inputs)
    yield from _same_dtype([table], out)


def _matmul(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    a, b = inputs
    each = ("row", "sequence")
    rows_meet_features = a.kind in each and b.kind not in each and max(2, len(b.shape)) > max(2, len(a.shape))
    if len(b.shape) < 2 or not a.shape or a.shape[-1] != b.shape[-2] or rows_meet_features:
        yield f"multiplies {list(a.shape)} by {list(b.shape)}"
        return
    if a.kind in each and b.kind in each and len(a.shape) < 2:
        yield "multiplies a vector of each row by a matrix of each row"
        return
    lead = broadcast([a.shape[:-2], b.shape[:-2]])
    expected = None if lead is None else (*lead, *a.shape[-2:-1], b.shape[-1])
    yield from _shape(out, expected, inputs)
    yield from _product_dtype(inputs, out)


def _matmul_tn(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    a, b = inputs
    if not a.shape or not b.shape or a.shape[:-1] != b.shape[:-1]:
        yield f"multiplies {list(a.shape)} by {list(b.shape)} over rows"
        return
    heads = a.shape[:1] if node.attr("batch") else ()
    yield from _shape(out, (*heads, a.shape[-1], b.shape[-1]), inputs)
    yield from _product_dtype(inputs, out)


def _embed_grad(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    grad, index = inputs
    if not isinstance(node.attr("padding"), int):
        yield f"has padding {node.attr('padding')!r}"
    if index.dtype not in _INTEGERS:
        yield f"has an index of {index.dtype}"
    if grad.shape[:-1] != index.shape or len(out.shape) != 2 or grad.shape[-1:] != out.shape[-1:]:
        yield f"adds up {list(grad.shape)} by {list(index.shape)} to {list(out.shape)}"
    yield from _same_dtype([grad], out)


def _full(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    value = node.attr("value")
    if not isinstance(value, (bool, int, float, complex)):
        yield f"is full of {value!r}"
    elif out.dtype in _INTEGERS and (isinstance(value, complex) or not -_NO_INT64 <= value < _NO_INT64):
        yield f"is full of {value!r}, which is no whole number of 64 bits"


def _iota(node: Node, inputs: Inputs, out: Value) -> Iterator[str]:
    if not all(isinstance(node.attr(key), (int, float)) for key in ("start", "step")):
        yield "counts by something that is no number"
    if len(out.shape) != 1:
        yield f"counts along {len(out.shape)} dimensions"


def _opaque(node: Node, inputs: Inputs, outputs: Sequence[Value]) -> Iterator[str]:
    read: list[int] = []

    def walk(template: object) -> None:
        if isinstance(template, tuple) and len(template) == 2 and template[0] == "input":
            read.append(template[1])
        elif isinstance(template, tuple):
            for part in template:
                walk(part)

    try:
        node.attr("target")
        walk(node.attr("args"))
        walk(node.attr("kwargs"))
    except KeyError as missing:
        yield f"attribute {missing} is missing"
        return
    if sorted(read) != list(range(len(inputs))):
        yield f"has {len(inputs)} inputs, but its arguments name {sorted(read)}"
    kinds = {v.kind for v in inputs}
    if {"row", "sum"} <= kinds:
        yield "reads a row and a sum over rows"
    made = {v.kind for v in outputs}
    if len(made) > 1:
        yield f"gives {' and '.join(sorted(made))} values"
    expected = _joined(kinds)
    if inputs and made - {expected}:
        yield f"gives a {made.pop()} value, expected {expected}"


_CHECKS: dict[str, Check] = {
    **{name: _pointwise for name, op in OPS.items() if op.stage is Stage.POINTWISE},
    **dict.fromkeys(("sum", "amax", "amin"), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _arg),
    **dict.fromkeys(("rand", "randn", "spread"), lambda *_: iter(())),
    **dict.fromkeys(("shift", "sum_rows", "sum_steps"), _like),
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "flip": _flip, "cat": _cat,
    "embed": _embed, "matmul": _matmul, "matmul_tn": _matmul_tn, "embed_grad": _embed_grad,
    "full": _full, "iota": _iota, **WHOLE_CHECKS,
}  # fmt: skip
