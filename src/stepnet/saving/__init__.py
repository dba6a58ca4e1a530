"""Topologies as OpenVINO IR files, and back."""

from .load import SavedTopology as SavedTopology
from .load import load as load
from .save import IR as IR
from .save import save as save
from .save import to_ir as to_ir
