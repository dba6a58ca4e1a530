"""The Tape: layers in the order they were made, and the topologies played from it."""

from .evaluator import Evaluator as Evaluator
from .item import TapeItem as TapeItem
from .tape import Tape as Tape
from .topology import Metrics as Metrics
from .topology import Topology as Topology
