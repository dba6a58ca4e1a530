"""The inputs of a run: from files, random where that is asked for, or an error that says what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .options import shapes_of
from .outcome import CommandError

if TYPE_CHECKING:
    from stepnet.openvino import OpenVINOModel


def gather(
    model: OpenVINOModel,
    files: Sequence[str] | None,
    shapes: Sequence[str] | None,
    seed: int,
    *,
    random: bool,
) -> dict[str, Any]:
    """Values of all inputs by name.

    Raises:
        CommandError: an option is wrong, a file cannot be read, or an input is missing.
        IRError: a shape is for no input or does not fit it.
    """
    from stepnet.report.sizes import check_shapes

    from .arrays import fill, from_files

    sizes = shapes_of(shapes)
    check_shapes(model, sizes)
    found = from_files(model, files or ())
    both = next((name for name in sizes if name in found), None)
    if both is not None:
        raise CommandError(f"input '{both}' has an array and a --shape", remedy="give one of them")
    missing = [socket for socket in model.inputs if socket.name not in found]
    if missing and not random:
        raise CommandError(
            f"input '{missing[0].name}' is not given",
            expected=str(missing[0]),
            remedy=f"--input {missing[0].name}=FILE.npy, or --random",
        )
    return fill(model, found, sizes, seed)
