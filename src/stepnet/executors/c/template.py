"""Text with gaps, and how they are filled.

$name               a value; alone on its line it may be lines, or none, which stand where it stands
@if name            lines up to `@else` or `@end` if there is such a thing, those after `@else` if not
@each name          lines for each item, which has names of its own
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The text.

    >>> print(fill("@each words\\n    say($word);\\n@end", {"words": [{"word": 1}, {"word": 2}]}))
        say(1);
        say(2);
    """
    return "\n".join(_filled(template.splitlines(), values))


def _filled(lines: list[str], values: Mapping[str, Any]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        word, _, name = lines[at].partition(" ")
        if word not in ("@if", "@each"):
            yield from _line(lines[at], values)
            at += 1
            continue
        other, end = _extent(lines, at)
        inner, otherwise = lines[at + 1 : other], lines[other + 1 : end]
        if word == "@if":
            yield from _filled(inner if values[name] else otherwise, values)
        else:
            for item in values[name]:
                yield from _filled(inner, {**values, **item})
        at = end + 1


def _extent(lines: list[str], start: int) -> tuple[int, int]:
    """The lines of the `@else` and the `@end` of a block; without an `@else`, twice that of the `@end`."""
    depth, other = 0, None
    for at in range(start, len(lines)):
        word = lines[at].partition(" ")[0]
        depth += (word in ("@if", "@each")) - (word == "@end")
        if word == "@else" and depth == 1:
            other = at
        if depth == 0:
            return (at if other is None else other), at
    raise ValueError(f"line {start + 1} has no @end: {lines[start]}")


def _line(line: str, values: Mapping[str, Any]) -> list[str]:
    alone = re.fullmatch(r"( *)\$(\w+)", line)
    if alone is None:
        return [Template(line).substitute(values)]
    return [alone[1] + text for text in str(values[alone[2]]).splitlines()]
