"""Where the values of a scan are stored while it runs.

out             a table of all rows, which is read after the scan
next:NAME       the next value of the carry NAME, a row for each sequence
scratch         a row for each sequence, from one stage to the next
chunk           rows of some steps, made before those steps
"""

from __future__ import annotations

from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, TOTALS, Stage

from .program import Program, operands
from .views import Access, broadcast, contiguous


def makers(p: Program) -> dict[str, Node]:
    """The node that makes each value, those that are made some steps ahead left out."""
    return {n: node for node in (*p.nodes, *p.late) for n in node.outputs}


def is_stored(node: Node) -> bool:
    """True for what is never a variable of C."""
    return node.op in ("cat", "matmul") or OPS[node.op].stage is Stage.WHOLE


def homes(p: Program) -> dict[str, list[str]]:
    """Where each value is stored, its readers' place first; nowhere: it stays in its row function."""
    made = makers(p)
    homes: dict[str, list[str]] = {n: [] for n in made}
    homes |= {node.output: ["chunk"] for node in p.early}
    for name in p.outputs:
        homes[name].append("out")
    for carry in p.carries:
        homes[carry.result].append(f"next:{carry.parameter}")
    for node in p.nodes:
        at = p.level[id(node)]
        for operand in operands(node):
            base = p.base(operand)
            maker = made.get(base)
            if maker is None or maker.op in TOTALS:
                continue
            whole = OPS[node.op].stage is Stage.WHOLE and p.value(base).size == 1  # no variable: its address
            crosses = p.level[id(maker)] != at or node.op == "matmul" or is_stored(maker) or whole
            if crosses and not homes[base] and node.op != "cat":
                homes[base].append("scratch")
    return homes


def parts(p: Program) -> dict[str, list[tuple[str, Access]]]:
    """For each value that is joined into others: into which, and where in them."""
    found: dict[str, list[tuple[str, Access]]] = {}
    for node in p.nodes:
        if node.op != "cat":
            continue
        steps = contiguous(p.value(node.output).shape)
        dim, at = node.attr("dim"), 0
        for name in node.inputs:
            shape = p.value(name).shape
            access = broadcast(Access(node.output, at * steps[dim], shape, steps), shape)
            found.setdefault(name, []).append((node.output, access))
            at += shape[dim]
    return found
