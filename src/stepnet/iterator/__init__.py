"""TensorIterators built by hand, and any loop written anew as a sweep over rows."""

from __future__ import annotations

from .ports import BackEdge as BackEdge
from .ports import InputPort as InputPort
from .ports import OutputPort as OutputPort
from .tensor_iterator import TensorIterator as TensorIterator
