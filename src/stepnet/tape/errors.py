"""The error of the Tape."""

from __future__ import annotations

from stepnet.errors import StepnetError


class TapeError(StepnetError, ValueError):
    """A layer that cannot be recorded, or a topology that cannot be taken or played; says which layer, and
    the line that made it."""
