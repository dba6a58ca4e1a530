"""Which products of tables, of which rows are looked up, are kept from call to call by what runs a plan."""

from __future__ import annotations

from .graph import Graph, Node, Value

_MOST_ROWS, _MOST_BYTES = 1 << 10, 1 << 22  # of a table; of it, the weights and the product
# multiplications, fewer of which take as long as to compare what they are of (measured)
_LEAST = 1 << 20


def is_kept(table: Value, weights: Value) -> bool:
    """Whether the product of two matrices is kept: made anew it takes less than a change of weights does."""
    (rows, size), (_, columns) = table.shape, weights.shape
    whole = table.bytes + weights.bytes + table.bytes // max(size, 1) * columns
    return rows <= _MOST_ROWS and whole <= _MOST_BYTES and rows * weights.size >= _LEAST


def is_table(graph: Graph, node: Node) -> bool:
    """Whether a node makes such a product, and nothing but rows of it is read."""
    if node.op != "matmul" or node.output in graph.results:
        return False
    table, weights, product = (graph.values[name] for name in (*node.inputs, node.output))
    flat = all(value.kind == "shared" and len(value.shape) == 2 for value in (table, weights))
    if not flat or len({value.dtype for value in (table, weights, product)}) > 1:
        return False
    places = [(user.op, at) for user in graph.nodes for at, n in enumerate(user.inputs) if n == node.output]
    return {*places} == {("embed", 0)} and is_kept(table, weights)
