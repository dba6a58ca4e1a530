"""A model read from a file, described: as data, as text, as a picture."""

from .describe import inspect_model as inspect_model
from .records import Inspection as Inspection
