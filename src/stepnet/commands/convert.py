"""`stepnet convert`: from one file to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .models import is_onnx, load_model
from .options import BIN, MODEL, SHAPES, shapes_of
from .outcome import CommandError, told
from .output import console


def convert(
    model: MODEL,
    output: Annotated[
        Path, typer.Argument(metavar="NEW", help="Where to write: NEW.XML with NEW.bin, or NEW.ONNX.")
    ],
    bin: BIN = None,
    shape: SHAPES = None,
    unfuse: Annotated[
        bool, typer.Option("--unfuse", help="Make each LSTM-, GRU- and RNNSequence a loop with a cell.")
    ] = False,
    f16: Annotated[bool, typer.Option("--f16", help="Store float32 constants as float16.")] = False,
) -> None:
    """Write a model of IR version 10 or 11 or an ONNX model as IR of version 11, or as ONNX.

    The new files may take the place of those that are read. Where one of them is ONNX, the model is run on
    ones to see what it does: --shape gives the shape of an input; a dynamic dimension is 8 without it, and
    stays dynamic.
    """
    with told():
        if output.suffix not in (".xml", ".onnx"):
            name = f"{output.name or output}: the name must end in .xml or .onnx"
            raise CommandError(name, got=str(output), expected="NEW.xml or NEW.onnx", remedy="another name")
        if is_onnx(model) or is_onnx(output):
            _traced(model, output, bin, shape, f16=f16, unfuse=unfuse)
            return
        if shape:
            raise CommandError("--shape is for a model that is ONNX, or becomes it", expected="no --shape")
        from stepnet.openvino import load
        from stepnet.openvino.convert import convert as write

        write(load(model, bin), output, unfuse=unfuse, f16=f16)
        size = sum(path.stat().st_size for path in (output, output.with_suffix(".bin")) if path.exists())
        console().print(f"written: {output}, {output.with_suffix('.bin')}, {size:,} bytes")


def _traced(
    model: Path, output: Path, bin: Path | None, shape: list[str] | None, *, f16: bool, unfuse: bool
) -> None:
    """Trace a model, and write what it does."""
    import torch

    import stepnet.onnx
    import stepnet.openvino
    from stepnet.report.sizes import check_shapes

    from .arrays import fill, told_sizes

    if unfuse or (f16 and output.suffix != ".onnx"):
        raise CommandError(
            "--unfuse is for OpenVINO IR that becomes IR, --f16 for that, and for ONNX as output"
        )
    it = load_model(model, bin).eval()
    sizes = shapes_of(shape)
    check_shapes(it, sizes)
    filled = fill(it, {}, sizes, 0)
    values = tuple(torch.ones_like(filled[socket.name]) for socket in it.inputs)  # a name may be "self"
    with told_sizes(it, filled):
        if output.suffix == ".onnx":
            stepnet.onnx.save(it, output, values, f16=f16)
        else:
            stepnet.openvino.save(it, output, values)
    console().print(f"written: {output}, {output.stat().st_size:,} bytes")
