"""Where commands print: a terminal, or a file or pipe, which gets plain text that is never folded."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 10_000


def console() -> Console:
    """The standard output. Names are printed as they are: nothing in them is markup."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "nobody reads it")  # `told` ends the command

    out = Output(markup=False, highlight=False, emoji=False)
    return out if out.is_terminal else Output(markup=False, highlight=False, emoji=False, width=_WIDE)
