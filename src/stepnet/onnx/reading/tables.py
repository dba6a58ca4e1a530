"""Sequences whose elements are rows of one tensor: of what is split, of that with some taken out or put in,
and of what each step of a Loop adds.

ys = []; for t: ys.append(h); torch.stack(ys)     ->     the Loop gives h of each step
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

# which take a tensor for its rows
_READERS = ("ConcatFromSequence", "SequenceAt", "SequenceLength", "SequenceErase", "SequenceInsert")


def is_table(value: ir.Value) -> bool:
    """Whether all that reads a sequence takes a tensor of its elements, too."""
    return not value.is_graph_output() and all(use.node.op_type in _READERS for use in value.uses())


def as_tables(graph: ir.Graph) -> None:
    """Let Loops that do nothing with a sequence but add to it give their rows instead."""
    for node in [node for node in graph.all_nodes() if node.op_type == "Loop"]:
        _without_sequences(node)


def _without_sequences(loop: ir.Node) -> None:
    attribute = loop.attributes.get("body")
    if attribute is None or attribute.type != ir.AttributeType.GRAPH:
        return
    body = attribute.as_graph()
    count = len(loop.inputs) - 2
    if len(body.inputs) != count + 2 or len(body.outputs) != len(loop.outputs) + 1:
        return
    for k in reversed(range(min(count, len(loop.outputs)))):
        added = _added(loop, body, k)
        if added is not None:
            loop = _joined(loop, body, k, added)


def _added(loop: ir.Node, body: ir.Graph, k: int) -> ir.Value | None:
    """What a step adds to a sequence that begins empty; None if it does more, or elements may differ."""
    first, kept, after = loop.inputs[2 + k], body.inputs[2 + k], body.outputs[1 + k]
    begun = None if first is None else origin(first).producer()
    insert = after.producer()
    if (
        begun is None
        or insert is None
        or (begun.op_type, insert.op_type) != ("SequenceEmpty", "SequenceInsert")
    ):
        return None
    if len(insert.inputs) != 2 or insert.inputs[0] is not kept or kept.is_graph_output():
        return None
    if len(kept.uses()) != 1 or after.uses() or [*body.outputs].count(after) != 1:
        return None
    added, sequence = insert.inputs[1], loop.outputs[k]
    if added is None or not is_table(sequence):
        return None
    declared = kept, after, sequence
    return added if any(_of_one_shape(use.node, added, declared) for use in sequence.uses()) else None


def _is_known(value: ir.Value, axis: int) -> bool:
    """Whether the file says how long an axis is of a tensor, or of the elements of a sequence."""
    shape = () if value.shape is None else value.shape
    return -len(shape) <= axis < len(shape) and isinstance(shape[axis], int)


def _of_one_shape(reader: ir.Node, element: ir.Value, sequences: Sequence[ir.Value]) -> bool:
    """Whether a node takes elements of one shape alone: it stacks them, or joins them by an axis of one, or
    of which the file says how long it is."""
    if reader.op_type in ("SequenceErase", "SequenceInsert"):
        return any(_of_one_shape(use.node, element, sequences) for use in reader.outputs[0].uses())
    if reader.op_type != "ConcatFromSequence":
        return False
    if reader.attributes.get_int("new_axis", 0):
        return True
    axis = reader.attributes.get_int("axis", 0)
    if any(_is_known(value, axis) for value in (element, *sequences)):
        return True
    maker = element.producer()
    axes = maker.inputs[1] if maker is not None and len(maker.inputs) == 2 else None
    if maker is None or maker.op_type != "Unsqueeze" or axes is None or axes.is_graph_input():
        return False  # of an input a call may give another
    known = ir.convenience.get_const_tensor(axes)
    return known is not None and axis in known.numpy().reshape(-1).tolist()


def _joined(loop: ir.Node, body: ir.Graph, k: int, added: ir.Value) -> ir.Node:
    """The Loop with a table of what is added, behind all else that it gives."""
    insert, name = body.outputs[1 + k].producer(), loop.outputs[k].name
    assert insert is not None
    row = ir.node("Identity", [added], name=insert.name, version=insert.version)
    body.insert_after(insert, row)
    del body.outputs[1 + k]
    body.outputs.append(row.outputs[0])
    body.remove(insert, safe=True)
    del body.inputs[2 + k]
    kept = [value for i, value in enumerate(loop.inputs) if i != 2 + k]
    attributes, count = loop.attributes.values(), len(loop.outputs)
    new = ir.Node(
        loop.domain, "Loop", kept, attributes, num_outputs=count, version=loop.version, name=loop.name
    )
    before = [*loop.outputs[:k], *loop.outputs[k + 1 :], loop.outputs[k]]
    graph = loop.graph
    assert graph is not None
    graph.insert_before(loop, new)
    for old, value in zip(before, new.outputs, strict=True):
        value.name, value.type, value.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    new.outputs[-1].name, new.outputs[-1].type, new.outputs[-1].shape = name, None, None
    graph.remove(loop, safe=True)
    return new


def origin(value: ir.Value) -> ir.Value:
    """What a value is that nodes hand on as it is."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
