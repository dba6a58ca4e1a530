"""ONNX: read models as torch modules, and write them."""

from importlib.util import find_spec

from stepnet.errors import MissingExtraError

if find_spec("onnx_ir") is None:
    raise MissingExtraError("ONNX", package="onnx-ir", extra="onnx")

from .reading.model import ONNXModel as ONNXModel
from .reading.model import load as load
from .reading.model import supported_types as supported_types
from .save import save as save
from .translations import translations as translations
