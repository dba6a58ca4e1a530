"""Graphs as text, and text back to graphs: what tests hold against each other."""

from __future__ import annotations

import ast
import re
from typing import Any
from urllib.parse import unquote

from stepnet.errors import GraphError
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.text import print_name, print_node, print_value

_VALUE = re.compile(r"(?P<name>\S+): (?P<kind>row|sequence|shared|sum)\[(?P<shape>[\d, ]*)\] (?P<dtype>\w+)")
_NODE = re.compile(r"  (?P<outs>.+?) = (?P<op>\w+)\((?P<ins>.*)\) (?P<attrs>\{.*\})(?:  # (?P<line>.*))?")


def print_graph(graph: Graph) -> str:
    """A graph as text that `parse_graph` reads back.

    >>> x, y = Value("x", "row", (3,), "float32"), Value("y", "row", (3,), "float32")
    >>> g = Graph("g", ("x",), (Node("tanh", ("x",), ("y",)),), ("y",), {"x": x, "y": y})
    >>> print(print_graph(g))
    graph g
      in x: row[3] float32
      y: row[3] float32 = tanh(x) {}
      out y
    >>> parse_graph(print_graph(g)) == g
    True
    """
    lines = [f"graph {graph.name}"]
    lines += [f"  in {print_value(graph.values[n])}" for n in graph.parameters]
    lines += [f"  {print_node(node, graph)}" for node in graph.nodes]
    lines.append("  out " + ", ".join(map(print_name, graph.results)))
    return "\n".join(lines)


def parse_graph(text: str) -> Graph:
    """Read a printed graph.

    Raises:
        GraphError: a line is not understood; names it.
    """
    name, parameters, nodes, results = "", [], [], ()
    values: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("graph "):
            name = line[6:]
        elif line.startswith("  in "):
            value = _parse_value(line[5:], number)
            values[value.name] = value
            parameters.append(value.name)
        elif line.startswith("  out "):
            results = tuple(unquote(n) for n in line[6:].split(", ") if n)
        elif match := _NODE.fullmatch(line):
            outs = [None if o == "_" else _parse_value(o, number) for o in match["outs"].split("; ")]
            values.update((v.name, v) for v in outs if v is not None)
            attrs = tuple(_attributes(match["attrs"], number).items())
            inputs = tuple(unquote(n) for n in match["ins"].split(", ") if n)
            nodes.append(
                Node(match["op"], inputs, tuple(v.name if v else "" for v in outs), attrs, match["line"])
            )
        else:
            raise GraphError(f"line {number} of a printed graph is not understood", got=line)
    return Graph(name, tuple(parameters), tuple(nodes), results, values)


class _Floats(ast.NodeTransformer):
    """The floats that Python prints as names."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _attributes(text: str, number: int) -> dict[str, Any]:
    try:
        found = ast.literal_eval(_Floats().visit(ast.parse(text, mode="eval")))
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise GraphError(f"line {number} of a printed graph has odd attributes: {error}", got=text) from error
    if not isinstance(found, dict):
        raise GraphError(f"line {number} of a printed graph has attributes without names", got=text)
    return found


def _parse_value(text: str, number: int) -> Value:
    match = _VALUE.fullmatch(text)
    if match is None:
        raise GraphError(f"line {number} of a printed graph declares no value", got=text)
    shape = tuple(int(s) for s in match["shape"].split(",") if s.strip())
    return Value(unquote(match["name"]), match["kind"], shape, match["dtype"])  # pyright: ignore[reportArgumentType]
