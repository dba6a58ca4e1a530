"""stepnet: write one recurrent step in plain PyTorch and run it over ragged sequences."""

from typing import TYPE_CHECKING, Any

from . import cells as cells
from . import data as data
from . import datasets as datasets
from . import decode as decode
from . import distributed as distributed
from . import errors as errors
from . import executors as executors
from . import graph as graph
from . import layers as layers
from . import nn as nn
from . import ops as ops
from .api import Recurrent as Recurrent
from .api import recurrent as recurrent
from .data.array import TensorArray as TensorArray
from .data.lod import LoDTensor as LoDTensor
from .data.sequence import sequence_concat as sequence_concat
from .data.sequence import sequence_expand as sequence_expand
from .data.sequence import sequence_mask as sequence_mask
from .data.sequence import sequence_pool as sequence_pool
from .data.sequence import sequence_reverse as sequence_reverse
from .data.sequence import sequence_slice as sequence_slice
from .data.sequence import sequence_softmax as sequence_softmax
from .executors.setting import get_backend as get_backend
from .executors.setting import set_backend as set_backend
from .front.memory import Memory as Memory
from .front.scope import Scope as Scope
from .iterator import BackEdge as BackEdge
from .iterator import InputPort as InputPort
from .iterator import OutputPort as OutputPort
from .iterator import TensorIterator as TensorIterator
from .loops.create import create_whileloop as create_whileloop
from .loops.dynamic import dynamic_recurrent as dynamic_recurrent
from .loops.map_fn import map_fn as map_fn
from .loops.recurrent_op import RecurrentOp as RecurrentOp
from .repeat import while_loop as while_loop
from .report import Explanation as Explanation
from .report import ModelExplanation as ModelExplanation
from .report import explain as explain
from .resets import Resets as Resets
from .streams import Stream as Stream
from .streams import stream as stream
from .streams import truncated as truncated
from .tape import Tape as Tape
from .tape import TapeItem as TapeItem
from .tape import Topology as Topology

if TYPE_CHECKING:
    from . import onnx as onnx
    from . import openvino as openvino
    from .saving.load import load as load

else:  # a type checker is to find names that there are not

    def __getattr__(name: str) -> Any:
        """`onnx`, `openvino`, `load` are imported when first used: they bring torch's tracing machinery."""
        import importlib

        if name in ("onnx", "openvino", "saving"):
            return importlib.import_module(f".{name}", __name__)
        if name == "load":
            return importlib.import_module(".saving", __name__).load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
