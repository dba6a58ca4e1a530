"""ONNX: write models."""

from importlib.util import find_spec

from stepnet.errors import MissingExtraError

if find_spec("onnx_ir") is None:
    raise MissingExtraError("writing ONNX", package="onnx-ir", extra="onnx")

from .save import save as save
