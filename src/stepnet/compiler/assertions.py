"""Assertions about values that hold whatever the values are, taken out of a trace.

F.one_hot asserts that the classes of all rows are in range, which no compiled step could do row by row. Of an
argmax it is known.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

_SAME_VALUES = frozenset(
    {"alias", "clone", "detach", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "permute",
     "t", "transpose", "expand", "slice", "select", "_to_copy"}
)  # fmt: skip


def drop_proved(graph: FxGraph) -> None:
    """Erase each assertion that is proved, and what only it read."""
    for node in list(graph.nodes):
        if _name(node) == "_assert_async" and _holds(node.args[0]):
            _erase(graph, node)


def _erase(graph: FxGraph, node: FxNode) -> None:
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for given in inputs:
        if not given.users and given.op == "call_function":
            _erase(graph, given)


def _name(node: Any) -> str:
    """'add' of aten.add.Tensor; '' of what is no call of aten."""
    if not isinstance(node, FxNode) or node.op != "call_function":
        return ""
    space, _, rest = str(node.target).partition(".")
    return rest.split(".")[0] if space == "aten" else ""


def _holds(claim: Any) -> bool:
    """True for `not any(not (index >= least))` and `not any(not (index < most))` that hold always."""
    for step in ("logical_not", "any", "logical_not"):
        if _name(claim) != step:
            return False
        claim = claim.args[0]
    index, number = (*claim.args, None)[:2] if _name(claim) in ("ge", "lt") else (None, None)
    most = _largest_index(index)
    if most is None or not isinstance(number, int):
        return False
    return number <= 0 if _name(claim) == "ge" else most < number


def _largest_index(node: Any) -> int | None:
    """The largest value that an argmax or argmin can have, seen through changes of shape."""
    while _name(node) in _SAME_VALUES:
        if _name(node) == "_to_copy" and node.meta["val"].dtype.itemsize < 8:
            return None  # a narrower type may not hold it
        node = node.args[0]
    if _name(node) not in ("argmax", "argmin"):
        return None
    shape, dim = node.args[0].meta["val"].shape, (*node.args, None)[1]
    size = shape[dim] if dim is not None and shape else None
    return size - 1 if isinstance(size, int) else None
