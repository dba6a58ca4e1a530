"""What generated C does not do."""

from __future__ import annotations

from stepnet.errors import Unsupported
from stepnet.executors.base import floating_types
from stepnet.executors.schedule.row_products import sizes, walk
from stepnet.executors.schedule.views import VIEWS
from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, Stage
from stepnet.ir.plan import LoopPlan, Region

DTYPES = ("float32", "float64")
# Products of the numbers of two matrices of one row: of a pass over whole vectors, and of sums one by one.
_MOST_PRODUCTS, _MOST_DOTS = 1 << 19, 1 << 15
UNSUPPORTED = {
    "gather": "a gather by index",
    "shift": "a value carried outside the scan",
}
# Of torch calls, by a part of their names: what compiles in their place.
REWRITES = {
    "cumsum": "x.cumsum(-1) of n features is x @ torch.ones(n, n).triu(), which compiles",
    "complex": "hold real and imaginary parts as two real values, whose arithmetic compiles",
    "fft": "torch.fft.fft(x) of n features is x @ f.real and x @ f.imag with f = torch.fft.fft(torch.eye(n)) "
    "made once; these compile",
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


def check(loop: LoopPlan, region: Region) -> str:
    """The type of the numbers of a scan that generated C does.

    Raises:
        Unsupported: it holds an op, or types, that generated C does not do.
    """
    for node in region.nodes:
        _check_node(loop.body, node)
    dtypes = floating_types(loop, region)
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise Unsupported(
            f"the loop computes in {', '.join(sorted(dtypes))}; generated C does one of {', '.join(DTYPES)}"
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
        target = str(node.attr("target")) if node.op not in UNSUPPORTED else ""
        what = UNSUPPORTED.get(node.op) or f"the torch call {target}"
        remedy = next((rewrite for part, rewrite in REWRITES.items() if part in target), None)
        raise Unsupported(
            f"the loop holds {what}, which generated C does not do", line=node.line, remedy=remedy
        )
    if stage is Stage.MATMUL and values[node.inputs[1]].kind == "row":
        _check_product(body, node)
    if stage is Stage.SOURCE and node.op != "full":
        raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
    if node.op in ("matmul_tn", "embed_grad"):
        raise Unsupported(f"the loop holds '{node.op}'", line=node.line)
    _check_integers(body, node)


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


def _check_integers(body: Graph, node: Node) -> None:
    whole = any(body.values[n].dtype == "int64" for n in (*node.inputs, *node.outputs))
    if whole and node.op not in INTEGER_OPS:
        raise Unsupported(f"the loop does '{node.op}' with whole numbers", line=node.line)
    if node.op in ("argmax", "argmin", "embed"):
        source = body.values[node.inputs[0]]
        if source.dtype in ("int64", "bool") or not source.size:
            what = source.dtype if source.size else "nothing"
            raise Unsupported(f"the loop holds an {node.op} of {what}", line=node.line)
