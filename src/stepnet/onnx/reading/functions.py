"""The functions that a file defines: each once, none by itself, of sets of operators that are imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import FunctionProto, ModelProto, NodeProto, OperatorSetIdProto

from stepnet.file_model import Broken

from .places import name_of, short

_ONNX = ("", "ai.onnx")  # two names of one domain
Kind = tuple[str, str]  # domain and name


def check_functions(model: ModelProto, where: str) -> None:
    """Refuse those that ONNX does not define.

    Raises:
        IRError: says the function, or the node that calls it.
    """
    functions: dict[Kind, FunctionProto] = {}
    for function in model.functions:
        kind = function.domain, function.name
        if kind in functions and function.overload == functions[kind].overload:
            what = f"{where}: two functions have the name '{_named(kind)}'"
            raise Broken(what, got="2 of them", expected="a name of its own for each")
        functions[kind] = function
    if functions:
        _check_imports(model.graph.node, model.opset_import, functions, where)
    for kind, function in functions.items():
        place = f"{where}: function '{short(function.name)}'"
        _check_calls(kind, functions, place)
        _check_imports(function.node, function.opset_import, functions, place)


def _check_imports(
    nodes: Iterable[NodeProto], imports: Iterable[OperatorSetIdProto],
    functions: Mapping[Kind, FunctionProto], where: str,
) -> None:  # fmt: skip
    known = {_domain(imported.domain) for imported in imports}
    domains = {"", *(domain for domain, _ in functions)}
    for number, node in enumerate(nodes):
        for inner in _with_inner(node):
            domain = _domain(inner.domain)
            if domain in domains and domain not in known:
                place = f"{where}: {name_of(number, node)}"
                raise Broken(
                    f"{place}: the domain '{short(domain)}' of '{short(inner.op_type)}' is not imported",
                    got=", ".join(f"'{short(name)}'" for name in sorted(known)) or "no opset_import",
                    expected=f"an opset_import of '{short(domain)}'",
                )


def _check_calls(kind: Kind, functions: Mapping[Kind, FunctionProto], where: str) -> None:
    waiting, seen = [kind], set[Kind]()
    while waiting:
        for node in functions[waiting.pop()].node:
            for called in {(inner.domain, inner.op_type) for inner in _with_inner(node)} & functions.keys():
                if called == kind:
                    what = f"{where}: calls itself, by itself or by others"
                    raise Broken(what, got=f"a call of '{_named(kind)}'", expected="functions of other ones")
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    yield node
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _with_inner(inner)


def _domain(name: str) -> str:
    return "" if name in _ONNX else name


def _named(kind: Kind) -> str:
    return short(f"{kind[0]}.{kind[1]}")
