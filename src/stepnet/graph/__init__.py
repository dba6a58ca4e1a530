"""Recurrences as nodes of torch's graphs: what `torch.compile` and `torch.export` see of a call."""

from stepnet.data.in_graph import CAN_CAPTURE as CAN_CAPTURE

from . import autocast as autocast
from . import ops_on_open_rows as ops_on_open_rows
from . import sequences as sequences
from .capture import TAKES as TAKES
from .capture import can_be_node as can_be_node
from .capture import captured as captured
from .capture import first_leaf as first_leaf
from .capture import out_of_graph as out_of_graph
from .capture import side_by_side as side_by_side
from .capture import traced_step as traced_step
from .decomposed import decompositions as decompositions
from .flow import Rounding as Rounding
from .records import each_leaf as each_leaf
from .recurrence import answer_with as answer_with
