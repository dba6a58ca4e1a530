"""What generated C does not do."""

from __future__ import annotations

from stepnet.errors import Unsupported
from stepnet.executors.base import floating_types
from stepnet.executors.schedule.row_products import sizes, walk
from stepnet.executors.schedule.views import VIEWS
from stepnet.ir.agreement import INTEGERS
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, SCATTERS, Stage
from stepnet.ir.plan import LoopPlan, Region

from .numbers import WHOLE_NUMBERS

DTYPES = ("float32", "float64")
# Products of the numbers of two matrices of one row: of a pass over whole vectors, and of sums one by one.
_MOST_PRODUCTS, _MOST_DOTS = 1 << 19, 1 << 15
_MOST_DIMENSIONS = 16  # that the walks of `sn_picks.h` count along
STORED = ("bfloat16", "float16")  # beside float32: what numbers are rounded to, and read from
UNSUPPORTED = {
    "shift": "a value carried outside the scan",
}
# Every op that no loop of generated C holds, and why. Outside of loops torch runs it.
REFUSED = {
    **dict.fromkeys(("shift", "spread"), "it moves values between steps, so it never stands inside a loop"),
    **dict.fromkeys(("matmul_tn", "embed_grad"), "it runs once for all steps, by torch"),
    **dict.fromkeys(("rand", "randn"), "noise is torch's, drawn for all steps before the loop"),
    "iota": "it is made once, before the loop",
    "opaque": "it is a call of torch",
}
# What generated C does with whole numbers. Quotients and powers of them are torch's to define.
INTEGER_OPS = VIEWS | {
    "copy", "eq", "ne", "lt", "le", "gt", "ge", "where", "cast", "full", "cat", "embed",
    *WHOLE_NUMBERS, "sum",
    "amax", "amin", "argmax", "argmin", "gather", *SCATTERS, "cumsum", "cumprod", "argsort", "topk",
    "cumargmax", "cumargmin",
}  # fmt: skip

_MOVES = VIEWS | {"copy", "cast", "cat", "embed", "full"}


def check(loop: LoopPlan, region: Region) -> str:
    """The type of the numbers of a scan that generated C does.

    Raises:
        Unsupported: it holds an op, or types, that generated C does not do.
    """
    for node in region.nodes:
        _check_node(loop.body, node)
    found = floating_types(loop, region)
    stored = found.intersection(STORED)
    dtypes = found - stored
    if len(dtypes) > 1 or not dtypes <= set(DTYPES) or (stored and dtypes == {"float64"}):
        raise Unsupported(
            f"the loop computes in {', '.join(sorted(found))}; generated C does one of {', '.join(DTYPES)}"
        )
    return dtypes.pop() if dtypes else "float32"


def fits(loop: LoopPlan, region: Region, node: Node) -> bool:
    """Whether an op may stand in a scan of generated C."""
    try:
        _check_node(loop.body, node)
    except Unsupported:
        return False
    types = {loop.body.values[name].dtype for name in (*node.inputs, *node.outputs)}
    return types - {"bool", "int64"} <= floating_types(loop, region)


def _check_node(body: Graph, node: Node) -> None:
    stage, values = OPS[node.op].stage, body.values
    if node.op in UNSUPPORTED or stage is Stage.OPAQUE:
        what = UNSUPPORTED.get(node.op) or f"the torch call {node.attr('target')}"
        raise Unsupported(f"the loop holds {what}, which generated C does not do", line=node.line)
    if stage is Stage.MATMUL and values[node.inputs[1]].kind != "shared":
        _check_product(body, node)
    if stage is Stage.SOURCE and node.op != "full":
        raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
    if node.op in ("matmul_tn", "embed_grad"):
        raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
    rank = len(values[node.inputs[0]].shape) if node.op in ("gather", *SCATTERS) else 0
    if rank > _MOST_DIMENSIONS:
        raise Unsupported(f"the loop holds a {node.op} of {rank} dimensions", line=node.line)
    _check_integers(body, node)
    _check_stored(body, node)


def _check_product(body: Graph, node: Node) -> None:
    """A matrix and a vector are read once; of two larger matrices torch's product is the faster."""
    m, k, n = sizes(body.values, node)
    if min(m, k, n) == 1:
        return
    if m * k * n > (_MOST_DOTS if walk(body, node)[-1] == "k" else _MOST_PRODUCTS):
        raise Unsupported(
            f"the loop multiplies two matrices of each row, [{m}, {k}] by [{k}, {n}]: torch is faster",
            line=node.line,
        )


def _check_stored(body: Graph, node: Node) -> None:
    """Numbers of 16 bits are moved, rounded and multiplied; all else is done in float32."""
    dtypes = {body.values[n].dtype for n in (*node.inputs, *node.outputs)}.intersection(STORED)
    product = node.op == "matmul" and dtypes == {"bfloat16"} and body.values[node.output].dtype == "float32"
    if dtypes and not product and node.op not in _MOVES:
        raise Unsupported(f"the loop does '{node.op}' in {', '.join(sorted(dtypes))}", line=node.line)


def _check_integers(body: Graph, node: Node) -> None:
    whole = any(body.values[n].dtype in INTEGERS for n in (*node.inputs, *node.outputs))
    if whole and node.op not in INTEGER_OPS:
        raise Unsupported(f"the loop does '{node.op}' with whole numbers", line=node.line)
    if whole and node.op in ("remainder", "floor_divide"):
        maker = body.producers.get(node.inputs[1])
        if maker is None or maker.op != "full" or not maker.attr("value"):
            raise Unsupported("the loop divides whole numbers by one that may be 0", line=node.line)
    if node.op in ("argmax", "argmin", "embed"):
        source = body.values[node.inputs[0]]
        if (source.dtype == "bool" and node.op != "embed") or not source.size:
            what = source.dtype if source.size else "nothing"
            raise Unsupported(f"the loop holds an {node.op} of {what}", line=node.line)
