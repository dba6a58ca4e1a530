"""OpenVINO IR: read models, run them, train them, write them."""

from stepnet.data.outputs import Outputs as Outputs
from stepnet.file_model import LoopReport as LoopReport
from stepnet.file_model import Socket as Socket

from .convert import convert as convert
from .model import OpenVINOModel as OpenVINOModel
from .model import load as load
from .save import save as save
from .table import supported_types as supported_types
