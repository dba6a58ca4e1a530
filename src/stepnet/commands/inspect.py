"""`stepnet inspect`: what a model is made of, what its loops do, what it costs."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from .models import check_bin
from .options import BIN, MODEL, SHAPES, shapes_of
from .outcome import CommandError, told
from .output import console


def inspect(
    model: MODEL,
    bin: BIN = None,
    shape: SHAPES = None,
    svg: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw the model and the bodies of its loops, as SVG.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List each layer, however many there are; else types if over 40.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show a model: layers, loops with ports and back edges, what runs once and what at each step, cost.

    Loops are tried on zeros to see whether they are compiled; the rest is told without running the model. An
    ONNX model is run on zeros.
    """
    with told():
        from stepnet.report.inspect import inspect_model

        check_bin(model, bin)
        it = inspect_model(model, bin, shapes=shapes_of(shape))
        if svg is not None:
            try:
                it.to_svg(svg)
            except OSError as error:
                raise CommandError(f"{svg}: cannot be written: {error.strerror}") from error
        if json:
            typer.echo(dumps(it.to_dict(), indent=1))
        else:
            from stepnet.report.inspection_text import show

            show(it, console(), every=every)
