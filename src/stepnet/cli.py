"""The command line: `stepnet demo`, `inspect`, `run`, `convert`, `compare`."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from .commands.compare import compare
from .commands.convert import convert
from .commands.demo import demo
from .commands.inspect import inspect
from .commands.run import run

app = typer.Typer(
    help="Write one recurrent step in plain PyTorch; run it over ragged and nested sequences, unpadded.\n\n"
    "Start with **stepnet demo**, then read its model: it is short. The other commands are for models in"
    " OpenVINO IR and in ONNX.",
    epilog="In Python: import stepnet; help(stepnet.recurrent)",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command(epilog="The data come with the package: nothing is downloaded.")(demo)
for command in (inspect, run, convert, compare):
    app.command(epilog="Exit codes: 0 fine, 1 the answer is no, 2 bad usage or an unreadable model.")(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepnet {version('stepnet')}")
        raise typer.Exit


@app.callback()
def _stepnet(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The `stepnet` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # where a terminal lacks a letter of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    app()
