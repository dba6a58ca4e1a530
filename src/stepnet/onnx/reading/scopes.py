"""Which names a graph may read: each is made once, before it is read, in the graph or in one around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import onnx_ir as ir
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from stepnet.file_model import Broken, shorten

Functions = Mapping[tuple[str, str], FunctionProto]  # of the file's own, by domain and name


def check_scopes(model: ModelProto, where: str) -> None:
    """Refuse names that nothing makes, or that are made twice; onnx-ir reads both as something else.

    Raises:
        IRError: says the node, in a function of the file's own the function, too.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    _check_graph(model.graph, frozenset(), functions, where)
    for function in model.functions:
        place = f"{where}: function '{_short(function.name)}'"
        _check_nodes(function.node, set(function.input), frozenset(), function.output, functions, place)


def _check_graph(graph: GraphProto, around: Set[str], functions: Functions, where: str) -> None:
    made: set[str] = set()
    for kind, names in (("inputs", graph.input), ("constants", graph.initializer)):
        times = Counter(value.name for value in names)
        twice = next((name for name, count in times.items() if count > 1), None)
        if twice is not None:
            raise Broken(
                f"{where}: two {kind} have the name '{_short(twice)}'",
                got=f"{times[twice]} of them",
                expected=_OWN,
            )
        made.update(times)  # older files list constants among the inputs
    _check_nodes(graph.node, made, around, [value.name for value in graph.output], functions, where)


def _check_nodes(
    nodes: Iterable[NodeProto], made: set[str], around: Set[str], outputs: Iterable[str],
    functions: Functions, where: str,
) -> None:  # fmt: skip
    for number, node in enumerate(nodes):
        place = f"{where}: {name_of(number, node)}"
        for name in node.input:
            if name and name not in made and name not in around:
                raise Broken(
                    f"{place}: reads '{_short(name)}', which nothing before it makes",
                    got=f"'{_short(name)}'",
                    expected="an input, a constant, or what a node before it makes",
                    remedy="put nodes in the order that they run, as onnx_ir's TopologicalSortPass does",
                )
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _check_graph(graph, made | around, functions, f"{place}, {shorten(attribute.name)}")
        own = functions.get((node.domain, node.op_type))
        counts = len(node.input), len(node.output)
        if own is not None and (counts[0] > len(own.input) or counts[1] > len(own.output)):
            raise Broken(
                f"{place}: has more inputs or outputs than its function",
                got=counts, expected=(len(own.input), len(own.output)),
            )  # fmt: skip
        for name in node.output:
            if name and (name in made or name in around):
                what = f"{place}: makes '{_short(name)}', which is there before it"
                raise Broken(what, got=f"'{_short(name)}'", expected=_OWN)
            made.add(name)
    for name in outputs:
        if name not in made:
            what = f"{where}: nothing makes the output '{_short(name)}'"
            got = f"'{_short(name)}'" + (" of a graph around" if name in around else "")
            raise Broken(
                what, got=got, expected="an input, a constant, or what a node makes",
                remedy="an Identity node, which makes it" if name in around else None,
            )  # fmt: skip


_OWN = "a name of its own for each"


def _short(name: object) -> str:
    return shorten(str(name), 100)


def name_of(number: int, node: NodeProto | ir.Node) -> str:
    """A node of a graph, as errors call it."""
    return f"node {number} '{_short(node.name or '')}' ({_short(node.op_type)})"
