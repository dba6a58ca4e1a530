"""Sequences a piece at a time: streams that arrive in chunks, long sequences trained in pieces."""

from .streams import Stream as Stream
from .streams import stream as stream
from .truncated import truncated as truncated
