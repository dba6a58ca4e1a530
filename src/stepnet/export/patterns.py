"""Nodes of a body that are one op together: parts of a value, a normalisation, a softmax, a softplus."""

from __future__ import annotations

import math
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
    reader = _Norms(graph)
    found = {node.output: reader.norm(node) for node in makers.values() if node.op == "mul"}
    return {name: norm for name, norm in found.items() if norm is not None}


def _made(makers: Mapping[str, Node], name: str, *ops: str) -> Node | None:
    """The node that made a value by one of these ops."""
    node = makers.get(name)
    return node if node is not None and node.op in ops else None


class _Norms:
    """Reads normalisations backwards, from their results to x."""

    def __init__(self, graph: Graph) -> None:
        self.values, self.producers = graph.values, graph.producers

    def _made(self, name: str, *ops: str) -> Node | None:
        return _made(self.producers, name, *ops)

    def _number(self, name: str) -> float | None:
        node = self._made(name, "full")
        return None if node is None else node.attr("value")

    def norm(self, node: Node) -> tuple[str, tuple[int, ...], float] | None:
        for centred, scale in (node.inputs, node.inputs[::-1]):
            minus, root = self._made(centred, "sub"), self._made(scale, "rsqrt")
            mean = None if minus is None or root is None else self._mean(minus.inputs[1])
            if minus is None or root is None or mean is None or mean[0] != minus.inputs[0]:
                continue
            shifted = self._made(root.inputs[0], "add")
            for var, eps in () if shifted is None else (shifted.inputs, shifted.inputs[::-1]):
                small, variance = self._number(eps), self._average(var)
                if small is None or variance is None or variance[1] != mean[1]:
                    continue
                square = self._made(variance[0], "mul")
                if square is not None and square.inputs == (centred, centred):
                    return *mean, small
        return None

    def _average(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """x and the dimensions of sum(x) / n, or of that times 1 / n"""
        node = self._made(name, "mul", "div")
        if node is None:
            return None
        for sum_of, scale in (node.inputs, node.inputs[::-1]) if node.op == "mul" else (node.inputs,):
            made, factor = self._made(sum_of, "sum"), self._number(scale)
            if made is None or factor is None:
                continue
            x, dims = made.inputs[0], made.attr("dims")
            count = math.prod(self.values[x].shape[d] for d in dims)
            if self.values[x].kind == "row" and factor == (count if node.op == "div" else 1.0 / count):
                return x, tuple(dims)
        return None

    def _mean(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """The average of x, or a + the average of x - a for an a that has no such dimensions"""
        node = self._made(name, "add")
        if node is None:
            return self._average(name)
        for base, rest in (node.inputs, node.inputs[::-1]):
            average = self._average(rest)
            shifted = None if average is None else self._made(average[0], "sub")
            if average is None or shifted is None or shifted.inputs[1] != base:
                continue
            x, dims, shape = shifted.inputs[0], average[1], self.values[base].shape
            if len(shape) == len(self.values[x].shape) and all(shape[d] == 1 for d in dims):
                return x, dims
        return None


def softmaxes(graph: Graph, makers: Mapping[str, Node]) -> dict[str, tuple[str, int]]:
    """Results of exp(x - max x) / sum exp(x - max x) along one dimension: x, and which."""
    found = {}
    for node in makers.values():
        if node.op != "div":
            continue
        power, total = (_made(makers, *of) for of in zip(node.inputs, ("exp", "sum"), strict=True))
        less = None if power is None else _made(makers, power.inputs[0], "sub")
        most = None if less is None else _made(makers, less.inputs[1], "amax")
        if power is None or total is None or less is None or most is None or total.inputs != power.outputs:
            continue
        x, dims = less.inputs[0], total.attr("dims")
        alone = most.inputs == (x,) and most.attr("dims") == dims and len(dims) == 1
        if alone and graph.values[x].kind == "row":
            found[node.output] = x, dims[0]
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
