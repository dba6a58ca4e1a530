"""Which inputs and outputs of a graph are one state: before the steps, and after them."""

from __future__ import annotations

from .graph import Graph, Value

# Elements stay what they are.
_MOVED = ("squeeze", "unsqueeze", "reshape", "permute", "expand", "copy", "split", "slice", "take", "cat")


def state_pairs(graph: Graph) -> dict[int, int]:
    """The result, by the number of its node, that is the new value of a parameter, by the number of that.

    A stack of the states of several layers counts as one state if the initial states are parts of one input.
    """
    pairs: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        if node.op != "result":
            continue
        starts, turned = _starts(graph, node.inputs[0])
        parameter = next(iter(starts), None)
        if turned and len(starts) == 1 and parameter is not None and parameter not in pairs:
            pairs[parameter] = number
    return pairs


def _starts(graph: Graph, value: Value) -> tuple[set[int | None], bool]:
    """The parameters that a value was through recurrences alone, None for all else; whether through any."""
    starts: set[int | None] = set()
    waiting, turned = [value], False
    while waiting:
        value = waiting.pop()
        node = graph.nodes[value.node]
        if value in graph.carried:
            turned = True
            waiting.append(graph.carried[value])
        elif node.op in _MOVED:
            waiting += node.inputs if node.op == "cat" else node.inputs[:1]
        else:
            starts.add(value.node if node.op == "parameter" else None)
    return starts, turned
