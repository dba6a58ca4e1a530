"""Modules as graphs of small ops, with recurrences as loops: what every file format is written from."""

from .graph import Graph as Graph
from .graph import Target as Target
from .module import module_graph as module_graph
