"""Text of reports: lines, columns and tables, for a string or for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .words import printable

WIDTH = 110
UNFOLDED = 10_000


def to_text(parts: Iterable[RenderableType], width: int = WIDTH) -> str:
    """Parts as text without colours, with an empty line between them."""
    console = Console(
        file=StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False,
        markup=False, highlight=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    with console.capture() as capture:
        print_parts(parts, console)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Print parts with an empty line between them."""
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part, crop=False)


def verbatim(text: str) -> Text:
    """Lines that are not folded."""
    return Text(text, no_wrap=True, overflow="ignore")


def columns(
    rows: Iterable[Sequence[str]], *, indent: int = 0, gap: int = 2, right: Collection[int] = (),
    widths: Mapping[int, int] | None = None,
) -> RenderableType:  # fmt: skip
    """Rows in columns, of which the last is folded.

    Args:
        rows: texts of the cells.
        indent: spaces before the first column.
        gap: spaces between columns.
        right: the columns that are flush right.
        widths: of columns, at least.

    >>> to_text([columns([("at", "step.py:12"), ("remedy", "a longer text")], indent=2)], 18)
    '  at      step.py:\\n          12\\n  remedy  a longer\\n          text'
    """
    rows = list(rows)
    grid = Table.grid(padding=(0, gap, 0, 0))
    last = max((len(row) for row in rows), default=0) - 1
    for i in range(last + 1):
        justify = "right" if i in right else "left"
        grid.add_column(justify=justify, no_wrap=i < last, overflow="fold", min_width=(widths or {}).get(i))
    for row in rows:
        grid.add_row(*map(Text, row))
    return Padding(grid, (0, 0, 0, indent), expand=False)


def table(*names: str, right: Collection[str] = ()) -> Table:
    """A table with a header, to which `add_row` adds rows."""
    it = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for name in names:
        it.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    return it


def add_row(it: Table, *cells: str, style: str | None = None) -> None:
    """A row of a table; characters that cannot be printed are written as escapes."""
    it.add_row(*(Text(printable(cell)) for cell in cells), style=style)
