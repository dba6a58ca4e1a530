"""Models of either format, by the end of their name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .outcome import CommandError

if TYPE_CHECKING:
    from stepnet.openvino import OpenVINOModel


def is_onnx(path: Path) -> bool:
    """Whether a file is of ONNX, by the end of its name."""
    return path.suffix.lower() == ".onnx"


def load_model(path: Path, bin: Path | None) -> OpenVINOModel | Any:
    """The model in a file: ONNX if its name ends so, else OpenVINO IR.

    Raises:
        CommandError: `--bin` is given with an ONNX file.
        IRError: it cannot be read.
    """
    check_bin(path, bin)
    if is_onnx(path):
        from stepnet.onnx import load

        return load(path)
    from stepnet.openvino import load as load_ir

    return load_ir(path, bin)


def check_bin(path: Path, bin: Path | None) -> None:
    """Refuse a file of weights beside an ONNX file."""
    if is_onnx(path) and bin is not None:
        raise CommandError(f"--bin {bin}: is for OpenVINO IR; an ONNX file names its weights itself")
