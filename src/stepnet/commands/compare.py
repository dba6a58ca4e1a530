"""`stepnet compare`: our answers and our time beside those of OpenVINO or ONNX Runtime."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import BIN, INPUTS, MODEL, SEED, SHAPES
from .outcome import NO, told
from .output import console


def compare(
    model: MODEL,
    bin: BIN = None,
    input: INPUTS = None,
    shape: SHAPES = None,
    seed: SEED = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each that are timed, in turns.")] = 20,
    atol: Annotated[
        float | None, typer.Option(min=0, help="Difference that is allowed; else 1e-5, of float16 0.01.")
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(min=0, help="The same relative to the other; else 1e-4, of float16 0.01.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Run a model here and in OpenVINO, an ONNX model in ONNX Runtime: the largest differences, and the time.

    Inputs that are not given are random; their dynamic dimensions are 8, unless --shape gives the shape.
    The other runs with float32 arithmetic on as many threads as torch. Ends with 1 if an output differs.
    """
    with told():
        from .arrays import gather, told_sizes
        from .models import load_model
        from .versus import print_table, to_json, versus

        it = load_model(model, bin)
        values = gather(it, input, shape, seed, random=True)
        with told_sizes(it, values):
            found = versus(it, model, bin, values, rounds=rounds, atol=atol, rtol=rtol)
        if json:
            typer.echo(to_json(found))
        else:
            print_table(found, console())
    if not found.agree:
        raise typer.Exit(NO)
