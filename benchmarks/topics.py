"""All topics, by the name the command line knows them by."""

from __future__ import annotations

from . import kernels, read_cost, unpack_pack, while_loops
from .harness import Topic

TOPICS: dict[str, Topic] = {module.TOPIC.name: module.TOPIC for module in (read_cost, unpack_pack, kernels, while_loops)}
