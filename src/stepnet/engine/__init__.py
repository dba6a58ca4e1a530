"""From a loop to a run: what its body reads, the plan for that, and the executor."""

from .attribute_outputs import leaving as leaving
from .attribute_outputs import without_leaving as without_leaving
from .attribute_states import carrying as carrying
from .open_steps import why_not_looked_at as why_not_looked_at
from .plans import Entry as Entry
from .plans import find_plan as find_plan
from .plans import is_as_ever as is_as_ever
from .plans import run as run
from .plans import run_again as run_again
from .plans import run_warm as run_warm
from .reads import ChangesObjects as ChangesObjects
from .reads import FailsOnSamples as FailsOnSamples
from .reads import Reads as Reads
from .reads import read as read
from .refusals import tell as tell
from .rows import OverSequences as OverSequences
from .warm_calls import Asked as Asked
from .warm_calls import Steps as Steps
from .warm_calls import Way as Way
from .warm_calls import asked as asked
