"""What a recurrence does with a step: the plan, its cost, and why; as text, as a picture, as data."""

from __future__ import annotations

from .explain import explain as explain
from .explanation import Explanation as Explanation
from .explanation import ModelExplanation as ModelExplanation
