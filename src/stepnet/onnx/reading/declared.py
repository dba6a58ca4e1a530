"""Element types that the body of a Loop or Scan declares, held against what feeds it, where both are said."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .info import Misfit

_OPEN = (None, ir.DataType.UNDEFINED)
Kind = ir.DataType | None


def check_fed(inside: Sequence[ir.Value], fed: Sequence[ir.Value | Kind]) -> None:
    """Refuse values of a body that it declares of another element type than they come with: as a value of the
    graph around has it, or as the operator says.

    Raises:
        Misfit: says which.
    """
    for value, outside in zip(inside, fed, strict=False):
        kind = outside.dtype if isinstance(outside, ir.Value) else outside
        if value.dtype not in _OPEN and kind not in _OPEN and value.dtype != kind:
            raise Misfit(
                f"its body declares '{value.name}' of another type", _shown(value.dtype), _shown(kind)
            )


def check_carried(before: Sequence[ir.Value], after: Sequence[ir.Value]) -> None:
    """Refuse states that a body declares of another element type behind a step than before it.

    Raises:
        Misfit: says which.
    """
    for k, (one, other) in enumerate(zip(before, after, strict=False)):
        if one.dtype not in _OPEN and other.dtype not in _OPEN and one.dtype != other.dtype:
            raise Misfit(f"state {k} changes its type in a step", _shown(other.dtype), _shown(one.dtype))


def _shown(kind: Kind) -> str:
    return "none" if kind is None else kind.name
