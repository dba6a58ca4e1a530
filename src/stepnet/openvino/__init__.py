"""OpenVINO IR: read models, run them, train them, write them."""

from stepnet.data.outputs import Outputs as Outputs

from .convert import convert as convert
from .loops import LoopReport as LoopReport
from .model import OpenVINOModel as OpenVINOModel
from .model import Socket as Socket
from .model import load as load
from .save import save as save
from .table import supported_types as supported_types
