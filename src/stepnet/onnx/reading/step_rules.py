"""Which operators around a Scan do to each step what they do to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepnet.file_model.step_rules import Seen, along, each_number, parts, product, reshaped, transposed

from .elementwise import BINARY, MANY, UNARY
from .sums import REDUCTIONS

Step = Any  # as `graph` has it
Rule = Callable[[Step, Seen], "list[Any] | None"]


def _axes(step: Step, seen: Seen) -> list[Any] | None:
    info, x = step.info, step.inputs[0]
    if info.has(1) and 1 not in info.known:
        return None
    axes = info.listed(1, "axes")([None] * len(step.inputs))
    return along(seen, x, axes, of=step.outputs[0] if info.node.op_type == "Unsqueeze" else None)


def _along_an_axis(step: Step, seen: Seen) -> list[Any] | None:
    kind = step.info.node.op_type
    axis = step.info.get("axis", 1 if "Softmax" in kind and step.info.opset < 13 else -1)
    return along(seen, step.inputs[0], [axis], shared=step.inputs[1:])


def _gemm(step: Step, seen: Seen) -> list[Any] | None:
    return None if step.info.get("transA", 0) else product(seen, *step.inputs[:3])


def _split(step: Step, seen: Seen) -> list[Any] | None:
    if step.info.has(1) and 1 not in step.info.known:
        return None
    return parts(seen, step.inputs[:1], step.info.get("axis", 0))


def _slice(step: Step, seen: Seen) -> list[Any] | None:
    info = step.info
    if any(info.has(k) and k not in info.known for k in range(1, 5)):
        return None
    return along(seen, step.inputs[0], info.listed(3, "axes")([None] * len(step.inputs)))


_EACH = (*UNARY, *BINARY, *MANY, "Div", "Pow", "Where", "Clip", "Cast", "Elu", "LeakyRelu", "HardSigmoid",
         "Selu", "Gelu", "Celu")  # fmt: skip
RULES: dict[str, Rule] = {
    **dict.fromkeys(_EACH, lambda step, seen: each_number(seen, step.inputs, step.outputs[0])),
    **dict.fromkeys(("Squeeze", "Unsqueeze", *REDUCTIONS), _axes),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), _along_an_axis),
    "MatMul": lambda step, seen: product(seen, *step.inputs),
    "Gemm": _gemm,
    "Reshape": lambda step, seen: reshaped(seen, step.inputs[0], step.outputs[0]),
    "Split": _split,
    "Concat": lambda step, seen: parts(seen, step.inputs, step.info.get("axis", 0)),
    "Transpose": lambda step, seen: transposed(seen, step.inputs[0], step.info.get("perm")),
    "Slice": _slice,
}
