"""`stepnet convert`: from one OpenVINO IR to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import BIN, MODEL
from .outcome import told
from .output import console


def convert(
    model: MODEL,
    output: Annotated[Path, typer.Argument(metavar="NEW.XML", help="Where to write, with NEW.bin.")],
    bin: BIN = None,
    unfuse: Annotated[
        bool, typer.Option("--unfuse", help="Make each LSTM-, GRU- and RNNSequence a loop with a cell.")
    ] = False,
    f16: Annotated[bool, typer.Option("--f16", help="Store float32 constants as float16.")] = False,
) -> None:
    """Write a model of IR version 10 or 11 as version 11, which OpenVINO and stepnet read.

    The new files may take the place of those that are read.
    """
    with told():
        from stepnet.openvino import load
        from stepnet.openvino.convert import convert as write

        write(load(model, bin), output, unfuse=unfuse, f16=f16)
        size = sum(path.stat().st_size for path in (output, output.with_suffix(".bin")) if path.exists())
        console().print(f"written: {output}, {output.with_suffix('.bin')}, {size:,} bytes")
