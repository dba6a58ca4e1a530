"""Options that several commands have, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .outcome import CommandError

MODEL = Annotated[
    Path, typer.Argument(metavar="MODEL", help="MODEL.XML in OpenVINO IR, version 10 or 11, or MODEL.ONNX.")
]
BIN = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The weights; else the .bin beside the model.")
]
SHAPES = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=2,10,64", help="The shape of an input; one for each input."),
]
INPUTS = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]FILE",
        help="NAME=x.npy for one input, or an .npz with arrays by name. Give it as often as needed.",
    ),
]
SEED = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Of the random inputs.")]
_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>[0-9]{1,18}( *, *[0-9]{1,18})*|)", re.ASCII | re.DOTALL)


def shapes_of(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Shapes by name, as `--shape` gives them; nothing after = is a scalar.

    >>> shapes_of(["x=2,10,64"])
    {'x': (2, 10, 64)}

    Raises:
        CommandError: one is written otherwise, or an input has two.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in given or ():
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CommandError(f"--shape {text}: is not understood", expected="NAME=2,10,64")
        name = match["name"]
        if name in found:
            raise CommandError(f"--shape {text}: input '{name}' has two shapes")
        found[name] = tuple(int(size) for size in match["sizes"].split(",")) if match["sizes"] else ()
    return found
