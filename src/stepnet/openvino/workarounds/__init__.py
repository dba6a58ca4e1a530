"""What OpenVINO gets wrong, a file each; a file goes when its bug has."""

from .apply import worked_around as worked_around
