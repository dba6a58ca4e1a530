"""Values, nodes and regions as text."""

from __future__ import annotations

import re
from urllib.parse import quote

from .graph import Graph, Node, Value
from .plan import LoopPlan, Region


def print_name(name: str) -> str:
    """A name without what the text itself is made of: `state['a b']` is printed `state['a%20b']`."""
    return re.sub(r"[^\w\[\]'\".-]", lambda found: quote(found[0], safe=""), name)


def print_value(value: Value) -> str:
    """'h: row[64] float32'."""
    return f"{print_name(value.name)}: {value.kind}[{', '.join(map(str, value.shape))}] {value.dtype}"


def print_node(node: Node, graph: Graph) -> str:
    """One line: 'v3: row[64] float32 = tanh(v2) {}  # step.py:7'."""
    outs = "; ".join(print_value(graph.values[n]) if n else "_" for n in node.outputs)
    attrs = "{" + ", ".join(f"{k!r}: {v!r}" for k, v in node.attrs) + "}"
    line = f"  # {node.line}" if node.line else ""
    return f"{outs} = {node.op}({', '.join(map(print_name, node.inputs))}) {attrs}{line}"


def print_region(loop: LoopPlan, region: Region) -> str:
    """A region as text: carries, nodes, and what is read after it."""
    lines = [f"{region.kind} of {loop.body.name}"]
    lines += [f"  carry {print_name(c.parameter)} <- {print_name(c.result)}" for c in region.carries]
    lines += [f"  {print_node(node, loop.body)}" for node in region.nodes]
    lines.append("  out " + ", ".join(map(print_name, loop.outputs(region))))
    return "\n".join(lines)
