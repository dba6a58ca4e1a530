"""How commands end: 0 fine, 1 the answer is no, 2 bad usage or a model that cannot be read."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from stepnet.errors import StepnetError

NO, BAD = 1, 2


class CommandError(StepnetError):
    """A command was asked for something that it cannot do: what, and what would be right."""


@contextmanager
def told() -> Iterator[None]:
    """Turn stepnet's errors, and output that cannot be written, into one line on stderr, and exit code 2."""
    try:
        yield
    except StepnetError as error:
        typer.echo(f"stepnet: error: {one_line(str(error))}", err=True)
        raise typer.Exit(BAD) from error
    except OSError as error:
        if error.filename is not None:  # those of files are stepnet's by now: this is another
            raise
        if error.errno == errno.EPIPE:  # who read the output has enough; nor is there a flush at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            typer.echo(f"stepnet: error: the output cannot be written: {error.strerror}", err=True)
        raise typer.Exit(BAD) from error


def one_line(text: str) -> str:
    r"""An error's text on one line, without control characters.

    >>> one_line("a.xml: no layers\n  got:      0\n  expected: 1")
    'a.xml: no layers (got: 0; expected: 1)'
    """
    first, *rest = [" ".join(line.split(" ")).strip() for line in text.splitlines() if line.strip()] or [""]
    more = "; ".join(" ".join(line.split()) for line in rest)
    whole = f"{first} ({more})" if more else first
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in whole)
