"""Which layers around a loop do to each step what they do to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepnet.file_model.step_rules import Seen, along, each_number, parts, product, reshaped, transposed

from .layers import activations, elementwise, reduce
from .layers.row import listed

Node = Any  # as `graph` has it
Rule = Callable[[Node, Seen], "list[Any] | None"]


def _each(node: Node, seen: Seen) -> list[Any] | None:
    if node.layer.attributes.get("auto_broadcast", "numpy") not in ("numpy", "none"):
        return None
    return each_number(seen, node.inputs[: 3 if not node.values else 1], node.outputs[0])


def _product(node: Node, seen: Seen) -> list[Any] | None:
    return None if node.layer.said.bool("transpose_a", False) else product(seen, *node.inputs)


def _axes(number: int) -> Rule:
    """Along axes that an input says."""

    def rule(node: Node, seen: Seen) -> list[Any] | None:
        if number not in node.fixed or any(k not in node.fixed for k in node.values if k < len(node.inputs)):
            return None
        of = node.outputs[0] if node.layer.type == "Unsqueeze" else None
        return along(seen, node.inputs[0], listed(node.fixed[number]), of=of)

    return rule


def _softmax(node: Node, seen: Seen) -> list[Any] | None:
    return along(seen, node.inputs[0], [node.layer.said.int("axis", 1)])


def _concat(node: Node, seen: Seen) -> list[Any] | None:
    return parts(seen, node.inputs, node.layer.said.int("axis"))


def _transpose(node: Node, seen: Seen) -> list[Any] | None:
    return transposed(seen, node.inputs[0], listed(node.fixed[1])) if 1 in node.fixed else None


_REDUCED = [row.type for row in reduce.ROWS if row.type.startswith("Reduce")]
_EACH = [row.type for row in (*elementwise.ROWS, *activations.ROWS)]
RULES: dict[str, Rule] = {
    **{name.lower(): _each for name in _EACH if name not in ("PReLU", "ConvertPromoteTypes", "ConvertLike")},
    **{
        name.lower(): _axes(1)
        for name in ("MVN", "Squeeze", "Unsqueeze", "Split", "VariadicSplit", *_REDUCED)
    },
    "matmul": _product,
    "softmax": _softmax,
    "logsoftmax": _softmax,
    "concat": _concat,
    "slice": _axes(4),
    "transpose": _transpose,
    "reshape": lambda node, seen: reshaped(seen, node.inputs[0], node.outputs[0]),
}
