"""What generated C does not do."""

from __future__ import annotations

from stepnet.errors import Unsupported
from stepnet.executors.base import floating_types
from stepnet.executors.schedule.views import VIEWS
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import LoopPlan, Region

DTYPES = ("float32", "float64")
STORED = ("bfloat16", "float16")  # beside float32: what numbers are rounded to, and read from
_MOST_PRODUCTS = 1 << 15  # of the numbers of two matrices of one row
UNSUPPORTED = {
    "gather": "a gather by index",
    "shift": "a value carried outside the scan",
}
# Every op that no loop of generated C holds, and why. Outside of loops torch runs it.
REFUSED = {
    "atan2": "`sn_math.h` has no function for it",
    "gather": "each row reads other features",
    **dict.fromkeys(("shift", "spread"), "it moves values between steps, so it never stands inside a loop"),
    **dict.fromkeys(("matmul_tn", "embed_grad"), "it runs once for all steps, by torch"),
    **dict.fromkeys(("rand", "randn"), "noise is torch's, drawn for all steps before the loop"),
    "iota": "it is made once, before the loop",
    "opaque": "it is a call of torch",
}
# What generated C does with whole numbers. Products and quotients of them are torch's to define.
INTEGER_OPS = VIEWS | {
    "copy", "add", "sub", "neg", "eq", "ne", "lt", "le", "gt", "ge", "where", "cast", "full", "cat", "embed",
    "argmax", "argmin",
}  # fmt: skip

_MOVES = VIEWS | {"copy", "cast", "cat", "embed", "full"}


def check(loop: LoopPlan, region: Region) -> str:
    """The type of the numbers of a scan that generated C does.

    Raises:
        Unsupported: it holds an op, or types, that generated C does not do.
    """
    values = loop.body.values
    for node in region.nodes:
        stage = OPS[node.op].stage
        if node.op in UNSUPPORTED or stage is Stage.OPAQUE:
            what = UNSUPPORTED.get(node.op) or f"the torch call {node.attr('target')}"
            raise Unsupported(f"the loop holds {what}, which generated C does not do", line=node.line)
        if stage is Stage.MATMUL and values[node.inputs[1]].kind == "row":
            _check_product(values[node.inputs[0]].shape, values[node.inputs[1]].shape, node)
        if stage is Stage.SOURCE and node.op != "full":
            raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
        if node.op in ("matmul_tn", "embed_grad"):
            raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
        _check_integers(loop.body, node)
        _check_stored(loop.body, node)
    found = floating_types(loop, region)
    stored = found.intersection(STORED)
    dtypes = found - stored
    if len(dtypes) > 1 or not dtypes <= set(DTYPES) or (stored and dtypes == {"float64"}):
        raise Unsupported(
            f"the loop computes in {', '.join(sorted(found))}; generated C does one of {', '.join(DTYPES)}"
        )
    return dtypes.pop() if dtypes else "float32"


def _check_product(a: tuple[int, ...], b: tuple[int, ...], node: Node) -> None:
    """A matrix and a vector are read once; of two larger matrices torch's product is the faster."""
    m, k, n = (a[-2] if len(a) > 1 else 1), b[-2], b[-1]
    if min(m, k, n) > 1 and m * k * n > _MOST_PRODUCTS:
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
    whole = any(body.values[n].dtype == "int64" for n in (*node.inputs, *node.outputs))
    if whole and node.op not in INTEGER_OPS:
        raise Unsupported(f"the loop does '{node.op}' with whole numbers", line=node.line)
    if node.op in ("argmax", "argmin", "embed"):
        source = body.values[node.inputs[0]]
        if source.dtype in ("int64", "bool") or not source.size:
            what = source.dtype if source.size else "nothing"
            raise Unsupported(f"the loop holds an {node.op} of {what}", line=node.line)
