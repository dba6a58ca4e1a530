"""Numeric proofs for torch calls that no rule knows.

on rows    op(rows[perm]) == op(rows)[perm], and one row alone gives its row
on sums    op(2 a) == 2 op(a) and op(a + b) == op(a) + op(b): it may then wait for the sum of all steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.errors import Unsupported
from stepnet.ir.graph import Graph, Node

ROWS = 5
_ORDER = [3, 0, 4, 1, 2]


def check_opaque(
    graph: Graph, bind: Callable[[Graph, Node], Callable[..., Any]], inputs: Mapping[str, Tensor]
) -> None:
    """Run a graph on a few rows, and every opaque node of it again in another order and on one row.

    Args:
        graph: the joint graph.
        bind: makes a node callable.
        inputs: a tensor for each parameter, row values with `ROWS` rows.

    Raises:
        Unsupported: rows are mixed, or the call cannot be tried.
    """
    if not any(node.op == "opaque" and _kind(graph, node) != "shared" for node in graph.nodes):
        return
    values = dict(inputs)
    for node in graph.nodes:
        run = bind(graph, node)
        given = [values[name] for name in node.inputs]
        try:
            out = _outputs(run(*given, rows=ROWS), node)
            if node.op == "opaque" and _kind(graph, node) == "sum":
                _check_linear(graph, node, run, given, out)
            if node.op == "opaque" and _kind(graph, node) == "row":
                _check_apart(graph, node, run, given, out)
        except RuntimeError as error:
            raise Unsupported(
                f"'{node.op}' could not be tried on sample rows: {error}", line=node.line
            ) from error
        values.update((n, o) for n, o in zip(node.outputs, out, strict=True) if n)


def _check_apart(
    graph: Graph, node: Node, run: Callable[..., Any], given: Sequence[Any], out: Sequence[Any]
) -> None:
    """Rows in another order must give the results in that order, and the first row alone its own."""
    order = torch.tensor(_ORDER)
    is_row = [graph.values[name].kind == "row" for name in node.inputs]
    mixed = [g[order] if row else g for g, row in zip(given, is_row, strict=True)]
    first = [g[:1] if row else g for g, row in zip(given, is_row, strict=True)]
    permuted, alone = _outputs(run(*mixed, rows=ROWS), node), _outputs(run(*first, rows=1), node)
    for name, a, b, c in zip(node.outputs, out, permuted, alone, strict=True):
        if name and not (_equal(a[order], b) and _equal(a[:1], c)):
            raise Unsupported(f"{node.attr('target')} mixes rows", line=node.line)


def _kind(graph: Graph, node: Node) -> str:
    return next(graph.values[name].kind for name in node.outputs if name)


def _check_linear(
    graph: Graph, node: Node, run: Callable[..., Any], given: list[Tensor], out: list[Any]
) -> None:
    sums = [graph.values[name].kind == "sum" for name in node.inputs]
    other = [g.flip(0) if s else g for g, s in zip(given, sums, strict=True)]
    both = [2 * a + b if s else a for a, b, s in zip(given, other, sums, strict=True)]
    second, third = _outputs(run(*other, rows=ROWS), node), _outputs(run(*both, rows=ROWS), node)
    for name, a, b, c in zip(node.outputs, out, second, third, strict=True):
        if name and not _equal(2 * a + b, c):
            raise Unsupported(
                f"{node.attr('target')} is applied to a sum over rows of each step", line=node.line
            )


def _outputs(out: Any, node: Node) -> list[Any]:
    return [out] if len(node.outputs) == 1 else list(out)


def _equal(a: Tensor, b: Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
