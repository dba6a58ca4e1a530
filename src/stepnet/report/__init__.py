"""What `recurrent` does with a step, what a model holds, at what cost: as data, as text, as a picture."""

from __future__ import annotations

from .explain import explain as explain
from .explanation import Explanation as Explanation
from .explanation import ModelExplanation as ModelExplanation
