"""What runs a loop: the plain loop, which says what a loop means, and executors of its plan."""

from .base import Backend as Backend
from .base import BackendName as BackendName
from .base import Executor as Executor
from .registry import backend_names as backend_names
from .registry import register as register
from .registry import tried as tried
from .registry import unregister as unregister
