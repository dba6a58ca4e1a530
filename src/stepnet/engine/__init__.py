"""From a call of `recurrent` to a run: what the step reads, the plan for that, and the executor."""

from .plans import Entry as Entry
from .plans import find_plan as find_plan
from .plans import run_compiled as run_compiled
from .reads import Reads as Reads
from .reads import read as read
