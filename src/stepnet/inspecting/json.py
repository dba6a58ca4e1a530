"""What is told of a model, for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from .records import Inspection


def to_json(it: Inspection) -> str:
    """JSON with the names of `Inspection` and its parts; -1 is a dynamic dimension, null not known."""
    return json.dumps(asdict(it), indent=1)
