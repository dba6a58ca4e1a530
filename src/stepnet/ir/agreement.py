"""Whether shapes and dtypes of a node's inputs and its result go together: sentences of what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .graph import Value

INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})
Inputs = Sequence[Value]


def same_dtype(values: Inputs, out: Value) -> Iterator[str]:
    """The result is of the dtype of all values."""
    found = {v.dtype for v in values}
    if found != {out.dtype}:
        yield f"gives {out.dtype} from {', '.join(sorted(found))}"


def has_shape(out: Value, expected: tuple[int, ...] | None, inputs: Inputs) -> Iterator[str]:
    """The result is of a shape; None where the inputs go together to none."""
    if expected != out.shape:
        given = ", ".join(str(list(v.shape)) for v in inputs)
        wanted = "none: they do not go together" if expected is None else str(list(expected))
        yield f"gives shape {list(out.shape)} from {given}, expected {wanted}"
