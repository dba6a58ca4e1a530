"""What is read of an IR file, as plain records: nets, layers, ports, and the map of a loop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .attributes import Attributes
from .element_types import ElementType

Shape = tuple[int, ...]  # -1: a dynamic dimension


@dataclass(frozen=True)
class Port:
    """An input or output of a layer; `shape` and `type` as the file declares them, None where it does not."""

    id: int
    type: ElementType | None
    shape: Shape | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortRow:
    """One row of a `port_map`. Without an `axis` the value passes whole."""

    external: int
    internal: int
    axis: int | None
    start: int
    end: int
    stride: int
    part_size: int
    purpose: str | None


@dataclass(frozen=True)
class PortMap:
    """How the ports of a TensorIterator, Loop or If meet the Parameters and Results of a body."""

    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]


@dataclass
class Layer:
    """One layer. `sources[i]` is (layer id, output index) of what feeds input i.

    `where` says file, body, type, id and name, for messages. `rt_info` are tags and attributes of what a
    file notes besides; `value` is the tensor of a constant that is not in a file.
    """

    id: int
    name: str
    type: str
    version: str
    attributes: dict[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    where: str
    sources: tuple[tuple[int, int], ...] = ()
    bodies: dict[str, Net] = field(default_factory=dict)
    maps: dict[str, PortMap] = field(default_factory=dict)
    back_edges: tuple[tuple[int, int], ...] = ()  # (Result id, Parameter id)
    rt_info: tuple[tuple[str, dict[str, str]], ...] = ()
    output_names: tuple[str, ...] = ()  # of a Result
    value: Tensor | None = None

    @property
    def opset(self) -> int:
        """The number of the set of operators that it is of; it is as in the last one up to that."""
        return int(self.version.removeprefix("opset"))

    @property
    def said(self) -> Attributes:
        """Its attributes, read strictly."""
        return Attributes(self.attributes, self.where)

    def change_output(self, index: int, **changes: Any) -> None:
        """Give an output other names, or another type or shape."""
        port = replace(self.outputs[index], **changes)
        self.outputs = (*self.outputs[:index], port, *self.outputs[index + 1 :])


@dataclass
class Net:
    """A model or a body: layers by id, and an order in which each follows what feeds it.

    `parameters` and `results` are layer ids in the order of the file. `rt_info` is what a file notes of
    the whole model. `states` are the Parameter and the Result of each variable, by its name.
    """

    name: str
    scope: str
    layers: dict[int, Layer]
    order: tuple[int, ...]
    parameters: tuple[int, ...]
    results: tuple[int, ...]
    version: int = 11
    rt_info: dict[str, Any] = field(default_factory=dict)  # text, or another such dict
    states: dict[str, tuple[int, int]] = field(default_factory=dict)
