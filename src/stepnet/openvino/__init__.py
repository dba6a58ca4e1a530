"""OpenVINO IR: read models, run them, train them."""

from .loops import LoopReport as LoopReport
from .model import OpenVINOModel as OpenVINOModel
from .model import Outputs as Outputs
from .model import Socket as Socket
from .model import load as load
from .table import supported_types as supported_types
