"""Topologies from OpenVINO IR."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepnet import openvino
from stepnet.data.convert import DEEPEST
from stepnet.data.in_graph import by_python
from stepnet.errors import TapeError
from stepnet.layers.data import Dense, Integer
from stepnet.tape.topology import Metrics

from .dense import Leaf
from .padded import PaddedLoD
from .save import KEY

_NOT_RUN = "a file has no evaluators to run; `evaluators` says which there were"


def load(path: str | os.PathLike[str], *, trainable: bool = False) -> SavedTopology:
    """Read a topology that `Topology.save` wrote.

    Args:
        path: NAME.xml, with NAME.bin beside it.
        trainable: whether its weights are parameters.

    Raises:
        TapeError: the file holds no topology; `stepnet.openvino.load` reads any other model.
        IRError: it cannot be read.

    >>> import tempfile
    >>> import torch
    >>> from stepnet.layers import Dense, data
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     total = data("x", Dense(3)).sum(-1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tape.topology(total).save(f"{folder}/total.xml")
    ...     again = load(f"{folder}/total.xml")
    >>> again(x=torch.ones(2, 3))[0]
    tensor([3., 3.])
    """
    model = openvino.load(path, trainable=trainable)
    notes: Any = model.rt_info.get(KEY)
    try:
        return SavedTopology(model, notes)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TapeError(
            f"{Path(path).name} holds no topology of stepnet",
            got=f"rt_info {KEY}: {str(notes)[:80]}",
            expected="what Topology.save wrote",
            remedy="stepnet.openvino.load reads any model",
        ) from error


class SavedTopology(nn.Module):
    """A topology that `load` read: it is called as the one that was saved, by name, with what that took.

    Attributes:
        inputs: the names of its data.
        types: what each is: `Dense` or `Integer`.
        evaluators: kind and inputs, by name, of the evaluators that the saved topology had. They are not run.

    Raises:
        ValueError: the notes are those of another model.

    >>> import tempfile
    >>> import torch
    >>> from stepnet.layers import Integer, data
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     following = data("words", Integer(10)) + 1
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tape.topology(following).save(f"{folder}/next.xml")
    ...     again = load(f"{folder}/next.xml")
    >>> again.inputs, again.types, again(words=torch.tensor([1, 2]))[0]
    (('words',), {'words': Integer(classes=10, level=0)}, tensor([2, 3]))
    """

    def __init__(self, model: openvino.OpenVINOModel, notes: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.types = {name: _type(json.loads(text)) for name, text in notes["data"].items()}
        self.inputs: tuple[str, ...] = tuple(self.types)
        self.evaluators = {name: json.loads(text) for name, text in notes.get("evaluators", {}).items()}
        self._structure = json.loads(notes["outputs"])
        self._leaves = [Leaf(name, _level(level)) for name, level in json.loads(notes["levels"]).items()]
        taken = {name for data, type in self.types.items() for name in Leaf(data, type.level).tensors}
        given = sum(len(leaf.tensors) for leaf in self._leaves)
        if taken != {socket.name for socket in model.inputs} or given != len(model.outputs):
            raise ValueError("it has other inputs or outputs than its model")
        _nested(self._structure, {leaf.name: None for leaf in self._leaves})

    @by_python("a model from a file computes sizes in Python")
    def forward(self, *args: Any, **feeds: Any) -> tuple[Any, Metrics]:
        """The outputs, nested as the saved topology's, and no metrics.

        Raises:
            TapeError: a value is missing, unknown or does not fit its data layer.
        """
        if args or set(feeds) != set(self.types):
            raise TapeError(
                "a saved topology takes a value for each of its data layers, by name",
                got=f"{len(args)} without a name" if args else f"values for {sorted(feeds)}",
                expected=f"values for {list(self.inputs)}",
                remedy="call it with NAME=value for each of them",
            )
        tensors: dict[str, Tensor] = {}
        weights = (*self.model.parameters(), *self.model.buffers())
        like = next((w for w in weights if w.is_floating_point()), None)
        for name, type in self.types.items():
            value = type.check(name, feeds[name], like)
            leaf = Leaf(name, type.level)
            if type.level:
                padded = PaddedLoD.of(value, least=1)
                tensors |= zip(leaf.tensors, (padded.grid, *padded.lengths), strict=True)
            else:
                tensors[name] = value
            if isinstance(type, Integer):
                tensors[name] = tensors[name].to(torch.int64)
        found = iter(self.model(**tensors))  # in the order of the file: one tensor may have several names
        values = {}
        for leaf in self._leaves:
            grid, *lengths = (next(found) for _ in leaf.tensors)
            values[leaf.name] = PaddedLoD(grid, tuple(lengths)).ragged() if lengths else grid
        return _nested(self._structure, values), Metrics({}, _NOT_RUN)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as it is now, trained weights included: `load` reads that again.

        Args:
            path: NAME.xml; NAME.bin is written beside it.
        """
        openvino.save(self.model, path)


def _type(said: Mapping[str, Any]) -> Dense | Integer:
    kinds = {"dense": Dense, "integer": Integer}
    return kinds[said["kind"]](int(said["size"]), _level(said["level"]))


def _level(said: Any) -> int:
    if type(said) is not int or not 0 <= said <= DEEPEST:
        raise ValueError(f"{said!r} is no number of levels")
    return said


def _nested(tree: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(tree, str):
        return values[tree]
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {key: _nested(part, values) for key, part in parts.items()}
    return (tuple if kind == "tuple" else list)(_nested(part, values) for part in parts)
