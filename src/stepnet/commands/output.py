"""Where commands print: a terminal, or a file or pipe, which gets plain text that is never folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 10_000


def console() -> Console:
    """The standard output. Names are printed as they are: nothing in them is markup."""
    from rich.console import Console

    out = Console(markup=False, highlight=False, emoji=False)
    return out if out.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)
