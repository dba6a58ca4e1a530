"""Shows the examples of docstrings as code: markdown would take `>>>` for a quotation in a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)  # to the next empty line


def as_code(docstring: str) -> str:
    """Fence the examples, and drop one colon of the `::` that announces an indented block."""
    fenced = EXAMPLE.sub(lambda example: f"{example[1]}```pycon\n{example[0]}\n{example[1]}```", docstring)
    return re.sub(r"::$", ":", fenced, flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Applied to every docstring of the API page."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_code(obj.docstring.value)
