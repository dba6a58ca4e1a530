"""`stepnet run`: run a model on arrays from files, or on random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepnet.data.dtypes import typed_shape

from .options import BIN, INPUTS, MODEL, SEED, SHAPES
from .outcome import CommandError, told
from .output import console

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from stepnet.openvino import OpenVINOModel, Outputs


def run(
    model: MODEL,
    bin: BIN = None,
    input: INPUTS = None,
    random: Annotated[bool, typer.Option("--random", help="Random values for inputs not given.")] = False,
    shape: SHAPES = None,
    seed: SEED = 0,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="An .npz for the outputs, by their names.")
    ] = None,
) -> None:
    """Run a model and tell its outputs and the time.

    A dynamic dimension of a random input is 8, unless --shape gives the input's shape.
    """
    with told():
        from .arrays import gather, tensors, told_sizes, write
        from .models import load_model

        if output is not None and output.suffix != ".npz":
            raise CommandError(f"--output {output}: should end in .npz")
        it = load_model(model, bin)
        values = gather(it, input, shape, seed, random=random)
        with told_sizes(it, values):
            outputs, first, second = timed(it, values)
        found = tensors(outputs.items())
        if output is not None:
            write(output, found)
        out = console()
        out.print(_table(found))
        out.print(f"first run {first * 1e3:.4g} ms (loops are compiled in it), second {second * 1e3:.4g} ms")
        if output is not None:
            out.print(f"written: {output}")


def timed(model: OpenVINOModel, values: dict[str, Any]) -> tuple[Outputs, float, float]:
    """The outputs, and the seconds of a first run and of a second.

    Raises:
        IRError: the model cannot run on these values.
    """
    import torch

    order = [values[socket.name] for socket in model.inputs]  # by position: a name may be "self"
    others = model.others(values)
    with torch.no_grad():
        start = perf_counter()
        found = model(*order, **others)
        middle = perf_counter()
        model(*order, **others)
        return found, middle - start, perf_counter() - middle


def _table(found: Mapping[str, Tensor]) -> Table:
    from stepnet.report.text import add_row, table

    figures = ("smallest", "mean", "largest", "not finite")
    it = table("output", "type and shape", *figures, right=figures)
    for name, value in found.items():
        numbers = value.double()
        finite = numbers[numbers.isfinite()]
        told = (finite.min(), finite.mean(), finite.max()) if finite.numel() else ()
        shown = [f"{number.item():.6g}" for number in told] or ["", "", ""]
        add_row(it, name, typed_shape(value), *shown, str(numbers.numel() - finite.numel()))
    return it
