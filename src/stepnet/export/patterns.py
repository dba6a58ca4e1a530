"""Nodes of a body that are one op together: a value split in parts, a normalisation, a softplus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from stepnet.ir.graph import Graph, Node


def whole_splits(graph: Graph, nodes: Iterable[Node]) -> dict[tuple[str, int], list[Node]]:
    """The slices of a value along a dimension that are the whole of it, one after the other; by both."""
    found: dict[tuple[str, int], list[Node]] = {}
    for node in nodes:
        if node.op == "slice":
            found.setdefault((node.inputs[0], node.attr("dim")), []).append(node)
    whole = {}
    for key, parts in found.items():
        parts = sorted(set(parts), key=lambda n: n.attr("start"))
        joined = all(a.attr("end") == b.attr("start") for a, b in pairwise(parts))
        size = graph.values[key[0]].shape[key[1]]
        ends = parts[0].attr("start") == 0 and parts[-1].attr("end") == size
        if len(parts) > 1 and joined and ends and all(n.attr("step") == 1 for n in parts):
            whole[key] = parts
    return whole


def norms(graph: Graph, makers: Mapping[str, Node]) -> dict[str, tuple[str, tuple[int, ...], float]]:
    """Results of (x - mean) * rsqrt(variance + eps): x, the dimensions, eps."""
    found = {}

    def number(name: str) -> float | None:
        node = producers.get(name)
        return node.attr("value") if node is not None and node.op == "full" else None

    producers = graph.producers

    def average_of(name: str) -> tuple[str, tuple[int, ...]] | None:
        """sum(x) / n, or times 1 / n"""
        node = producers.get(name)
        if node is None or node.op not in ("mul", "div"):
            return None
        for total, scale in (node.inputs, node.inputs[::-1]) if node.op == "mul" else (node.inputs,):
            made, factor = producers.get(total), number(scale)
            if made is None or made.op != "sum" or factor is None:
                continue
            x, dims = made.inputs[0], made.attr("dims")
            count = 1
            for d in dims:
                count *= graph.values[x].shape[d]
            if graph.values[x].kind == "row" and factor == (count if node.op == "div" else 1.0 / count):
                return x, tuple(dims)
        return None

    def mean_of(name: str) -> tuple[str, tuple[int, ...]] | None:
        """The average of x, or a + the average of x - a for an a that has no such dimensions"""
        node = producers.get(name)
        if node is None or node.op != "add":
            return average_of(name)
        for base, rest in (node.inputs, node.inputs[::-1]):
            found = average_of(rest)
            shifted = None if found is None else producers.get(found[0])
            if found is None or shifted is None or shifted.op != "sub" or shifted.inputs[1] != base:
                continue
            (x, _), dims, shape = shifted.inputs, found[1], graph.values[base].shape
            if len(shape) == len(graph.values[x].shape) and all(shape[d] == 1 for d in dims):
                return x, dims
        return None

    for node in makers.values():
        if node.op != "mul":
            continue
        for centred, scale in (node.inputs, node.inputs[::-1]):
            minus, root = producers.get(centred), producers.get(scale)
            if minus is None or root is None or minus.op != "sub" or root.op != "rsqrt":
                continue
            mean = mean_of(minus.inputs[1])
            if mean is None or mean[0] != minus.inputs[0]:
                continue
            sum_eps = producers.get(root.inputs[0])
            if sum_eps is None or sum_eps.op != "add":
                continue
            for var, eps in (sum_eps.inputs, sum_eps.inputs[::-1]):
                small, variance = number(eps), average_of(var)
                if small is None or variance is None or variance[1] != mean[1]:
                    continue
                square = producers.get(variance[0])
                if square is not None and square.op == "mul" and square.inputs == (centred, centred):
                    found[node.output] = (mean[0], mean[1], small)
    return found


def softpluses(graph: Graph, makers: Mapping[str, Node]) -> dict[str, str]:
    """Results of log(1 + exp x) in float32 in which no exp overflows, by x: where(x > 20, x, log1p(exp(x))),
    as torch has its softplus, and log1p(exp(-|y|)) of its log_sigmoid."""
    found, producers = {}, graph.producers

    def made(name: str, op: str) -> tuple[str, ...]:
        node = producers.get(name)
        return node.inputs if node is not None and node.op == op else ()

    def exponent(name: str) -> str | None:
        """x of log1p(exp(x))"""
        return next((x for power in made(name, "log1p") for x in made(power, "exp")), None)

    for node in makers.values():
        if graph.values[node.outputs[0]].dtype != "float32":
            continue
        if node.op == "where":
            above, x, rest = node.inputs
            other, bound = made(above, "gt") or ("", "")
            number = producers.get(bound)
            known = number is not None and number.op == "full" and number.attr("value") == 20.0
            if known and other == x == exponent(rest):
                found[node.output] = x
        x = exponent(node.output) if node.op == "log1p" else None
        if x is not None and any(made(size, "abs") for size in made(x, "neg")):
            found[node.output] = x
    return found
