"""From a loop to a run: what its body reads, the plan for that, and the executor."""

from .plans import Entry as Entry
from .plans import find_plan as find_plan
from .plans import run as run
from .reads import Reads as Reads
from .reads import read as read
