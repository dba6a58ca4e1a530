"""Which names a graph may read: each is made once, before it is read, in the graph or in one around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from stepnet.errors import IRError
from stepnet.file_model import Broken, shorten

from .functions import check_functions
from .places import name_of
from .places import short as _short

Functions = Mapping[tuple[str, str], FunctionProto]  # of the file's own, by domain and name


def check_scopes(model: ModelProto, where: str) -> None:
    """Refuse names that nothing makes, or that are made twice; onnx-ir reads both as something else.

    Raises:
        IRError: says the node, in a function of the file's own the function, too.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    check_functions(model, where)
    _check_graph(model.graph, frozenset(), functions, where)
    for function in model.functions:
        place = f"{where}: function '{_short(function.name)}'"
        _check_nodes(function.node, set(function.input), frozenset(), function.output, functions, place)


def _check_graph(
    graph: GraphProto, around: Set[str], functions: Functions, where: str, later: Set[str] = frozenset()
) -> None:
    """`around`, `later`: the names that graphs around make before it, and all that they make."""
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
    shapes = {tensor.name: [*tensor.dims] for tensor in graph.initializer}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in graph.input:
        kind, got = value.type.tensor_type, shapes.get(value.name)
        if got is None or not kind.HasField("shape"):
            continue
        said = [size.dim_value if size.dim_value > 0 else None for size in kind.shape.dim]
        if len(said) != len(got) or any(a not in (None, b) for a, b in zip(said, got, strict=True)):
            raise Broken(
                f"{where}: constant '{_short(value.name)}' has another shape than the input of its name",
                got=got,
                expected=f"[{', '.join('?' if size is None else str(size) for size in said)}]",
            )
    for value in graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name in types and kind not in (0, types[value.name]):
            raise Broken(
                f"{where}: constant '{_short(value.name)}' is of another type than the input of its name",
                got=TensorProto.DataType.Name(types[value.name]),
                expected=TensorProto.DataType.Name(kind),
            )
    _check_nodes(graph.node, made, around, [value.name for value in graph.output], functions, where, later)


def _check_nodes(
    nodes: Sequence[NodeProto], made: set[str], around: Set[str], outputs: Iterable[str],
    functions: Functions, where: str, later: Set[str] = frozenset(),
) -> None:  # fmt: skip
    own_names = {name for node in nodes for name in node.output if name}
    for number, node in enumerate(nodes):
        place = f"{where}: {name_of(number, node)}"
        for k, name in enumerate(node.input):
            if name and name not in made and name not in around:
                raise _not_there(nodes, number, k, place, later)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                at = f"{place}, {shorten(attribute.name)}"
                _check_graph(graph, made | around, functions, at, later | own_names)
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


def _not_there(nodes: Sequence[NodeProto], number: int, index: int, place: str, later: Set[str]) -> IRError:
    """The error of a node that reads what is not made before it: by no node, by a later one, or by one that
    reads of this one."""
    name = nodes[number].input[index]
    what, got = f"{place}: reads '{_short(name)}', which nothing", f"'{_short(name)}' as input {index}"
    made = {value: k for k, node in enumerate(nodes) for value in node.output if value}
    if name not in made and name not in later:
        return Broken(f"{what} makes", got=got, expected=_BEFORE)
    if name not in made:
        what = f"{what} before it makes"
        return Broken(what, got=f"{got}, of a graph around, which makes it later", expected=_BEFORE)
    waiting, seen = [made[name]], set[int]()
    while waiting:
        at = waiting.pop()
        if at == number:
            return Broken(
                f"{place}: reads '{_short(name)}', which is made of what it gives itself",
                got=f"{got}, of {name_of(made[name], nodes[made[name]])}",
                expected="nodes that do not wait for each other in a circle",
            )
        if at not in seen:
            seen.add(at)
            waiting += [made[value] for value in reads_of(nodes[at]) if value in made]
    return Broken(
        f"{what} before it makes",
        got=f"{got}, of {name_of(made[name], nodes[made[name]])}",
        expected=_BEFORE,
        remedy="put nodes in the order that they run, as onnx_ir's TopologicalSortPass does",
    )


def reads_of(node: NodeProto) -> Iterable[str]:
    """The names that a node and the graphs in it read."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from reads_of(inner)


_BEFORE = "an input, a constant, or what a node before it makes"
_OWN = "a name of its own for each"
