"""stepnet: write one recurrent step in plain PyTorch and run it over ragged sequences."""

from .api import Recurrent as Recurrent
from .api import recurrent as recurrent
from .data.array import TensorArray as TensorArray
from .data.lod import LoDTensor as LoDTensor
from .front.scope import Scope as Scope
from .ir.tensor_iterator import TensorIterator as TensorIterator
