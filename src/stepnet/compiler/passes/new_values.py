"""Values that a pass adds to a graph. A user's may have the name that one would get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepnet.ir.graph import Kind, Node, Value


def further(values: dict[str, Value], name: str, like: Value, **others: Any) -> str:
    """Add a value of that name, or as near as can be, like another one but for `others`.

    >>> further({"h_row": (h := Value("h_row", "sequence", (3,), "float32"))}, "h_row", h, kind="row")
    'h_row_'
    """
    while name in values:
        name += "_"
    values[name] = replace(like, name=name, **others)
    return name


def numbered(base: str, number: int, like: Value, kind: Kind, values: dict[str, Value]) -> str:
    """Add a value of a name that `stored` knows: made of that of the one it is for."""
    while (name := f"{base}_s{number}") in values:  # of an earlier pass, before the graph lost values
        number += 1
    values[name] = replace(like, name=name, kind=kind)
    return name


def sliced(source: str, name: str, dim: int, start: int, end: int, line: str | None) -> Node:
    """What makes a value of that name of the part of another from `start` to `end`.

    >>> sliced("w", "part", 0, 2, 5, None).attr("end")
    5
    """
    how = (("dim", dim), ("start", start), ("end", end), ("step", 1))
    return Node("slice", (source,), (name,), how, line)
