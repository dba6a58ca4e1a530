"""What models from files share, whatever the format."""

from .misfit import UNSIGNED as UNSIGNED
from .misfit import Misfit as Misfit
from .misfit import same_types as same_types
from .misfit import sign as sign
from .misfit import widened as widened
from .model import STATES as STATES
from .model import FileBody as FileBody
from .model import FileModel as FileModel
from .model import LoopReport as LoopReport
from .model import Socket as Socket
from .model import beside_graphs as beside_graphs
from .model import no_device as no_device
from .model import shorten as shorten
from .prepared import ERRORS as ERRORS
from .prepared import Prepared as Prepared
from .prepared import plainly_fed as plainly_fed
from .recording import Otherwise as Otherwise
from .recording import Recorder as Recorder
from .recording import decided as decided
from .recording import is_recorded as is_recorded
from .recording import not_in_recordings as not_in_recordings
from .windows import Window as Window
from .windows import max_places as max_places
from .windows import max_pool as max_pool
from .windows import mean_pool as mean_pool
from .windows import transposed as transposed
