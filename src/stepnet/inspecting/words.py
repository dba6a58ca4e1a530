"""Words for what is told, which the table and the picture share."""

from __future__ import annotations

from stepnet.explaining.titles import short

from .records import Loop, Port, Value, When

WHEN: dict[When, str] = {"once": "once", "rows": "once, all steps", "step": "each step"}


def plain(text: str) -> str:
    """A name as it can be printed: what is not printable is written as an escape.

    >>> plain("a\\x1b[31m b")
    'a\\\\x1b[31m b'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def value_text(value: Value) -> str:
    """'float32[?, 3]'; '...' where the shape is not known.

    >>> value_text(Value("float32", (-1, 3)))
    'float32[?, 3]'
    """
    return f"{value.dtype or ''}[{shape_text(value.shape)}]"


def shape_text(shape: tuple[int, ...] | None) -> str:
    """'?, 3'; '...' if it is not known."""
    return "..." if shape is None else ", ".join("?" if d == -1 else str(d) for d in shape)


def amount(count: int, noun: str) -> str:
    """A large number of things, short.

    >>> amount(64200, "parameter"), amount(1, "loop")
    ('64.2 k parameters', '1 loop')
    """
    return f"{short(count, '')} {noun}{'' if count == 1 else 's'}"


def number(count: int, unit: str = "") -> str:
    """A count, short; nothing for none."""
    return short(count, unit) if count else ""


def way_text(port: Port) -> str:
    """How a value crosses the border of a loop: 'a slice along axis 1', 'the state', ..."""
    if port.way in ("slice", "joined"):
        words = f"{'cut' if port.way == 'slice' else 'joined'} along axis {port.axis}"
        if port.stride < 0:
            words += ", backwards"
        backwards = port.stride < 0
        whole = (port.start, port.end) in (((-1, 0),) if backwards else ((0, -1),))
        if not whole:
            words += f", from {port.start} to {port.end}"
        if port.part_size != 1 or abs(port.stride) != 1:
            words += f", {port.part_size} at a time (stride {port.stride})"
        return words
    return {
        "state": "state before the first step",
        "whole": "the same at each step",
        "iteration": "number of the step",
        "given": "as it is",
        "last": "of the last step",
        "condition": "whether to go on",
        "result": "the result",
    }[port.way]


def steps_text(loop: Loop) -> str:
    """'5 steps', or 'dynamic'."""
    if loop.kind == "If":
        return "one of two bodies"
    if loop.static and loop.steps is not None:
        return f"{loop.steps:,} step{'' if loop.steps == 1 else 's'}"
    return f"dynamic steps: {loop.counted_by}"


def verdict(loop: Loop) -> str:
    """How the library runs the loop."""
    if loop.kind == "If":
        return ""
    if loop.compiled:
        return "compiled"
    if loop.compiled is None:
        return f"not known whether it is compiled: {loop.reason}"
    return f"plain loop, everything at each step: {loop.reason}"
