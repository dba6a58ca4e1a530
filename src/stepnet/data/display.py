"""A LoDTensor in a notebook: its lengths and its first rows."""

from __future__ import annotations

from html import escape
from typing import Any

from torch import Tensor

SEQUENCES, ROWS, NUMBERS = 8, 6, 8  # more are cut short


def html(x: Any) -> str:
    """A LoDTensor as a table with a line for each sequence of the last level: its length, its first rows."""
    head = f"<code>{escape(repr(x))}</code>"
    if not isinstance(x.values, Tensor) or x.values.is_meta:
        return head
    lengths = x.lengths().tolist()
    start, lines = 0, []
    for i, length in enumerate(lengths[:SEQUENCES]):
        rows = x.values.detach()[start : start + min(length, ROWS)]
        shown = [_row(row.flatten()) for row in rows] + (["&hellip;"] if length > ROWS else [])
        lines.append(f"<tr><td>{i}</td><td>{length}</td><td><pre>{'<br>'.join(shown)}</pre></td></tr>")
        start += length
    if len(lengths) > SEQUENCES:
        lines.append(f"<tr><td>&hellip;</td><td></td><td>{len(lengths) - SEQUENCES} more</td></tr>")
    title = "<tr><th>sequence</th><th>length</th><th>rows</th></tr>"
    return f"{head}<table>{title}{''.join(lines)}</table>"


def _row(row: Tensor) -> str:
    numbers = [
        f"{number:.4g}" if isinstance(number, float) else str(number) for number in row[:NUMBERS].tolist()
    ]
    return escape(" ".join(numbers)) + (" &hellip;" if len(row) > NUMBERS else "")
