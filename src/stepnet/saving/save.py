"""Topologies to OpenVINO IR and ONNX."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.data.arguments import path_of
from stepnet.errors import IRError, TapeError
from stepnet.export import Graph, Target, module_graph
from stepnet.openvino.writing.from_graph import OPENVINO, net_of
from stepnet.openvino.writing.xml_writer import write
from stepnet.tape.creation import Ref, evaluating
from stepnet.tape.evaluator import Evaluator
from stepnet.tape.topology import Topology

from .check import check_numbers
from .dense import DenseTopology
from .padded import PaddedLoD

KEY = "stepnet"  # of what is noted in rt_info, or in the metadata


@dataclass(frozen=True)
class IR:
    """A model as OpenVINO reads it from memory: `Core().read_model(ir.xml, ir.weights)`.

    >>> from stepnet.layers import Dense, data
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     doubled = data("x", Dense(3)) * 2
    >>> ir = tape.topology(doubled).to_ir()
    >>> ir.xml[:5], type(ir.weights)
    (b'<?xml', <class 'bytes'>)
    """

    xml: bytes
    weights: bytes


def save(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write a topology as OpenVINO IR or as ONNX; see `Topology.save`."""
    place = Path(path_of("save: 'path'", path, error=IRError))
    if place.suffix == ".onnx":
        from stepnet.onnx.from_graph import ONNX  # which needs an extra
        from stepnet.onnx.save import model_of, replace_file

        graph, notes = topology_graph(topology, ONNX, place.stem)
        replace_file(model_of(graph, metadata={KEY: json.dumps(notes)}), place)
        return
    graph, notes = topology_graph(topology, OPENVINO, place.stem)
    net = net_of(graph).net()
    net.rt_info[KEY] = notes
    write(net, place)


def to_ir(topology: Topology) -> IR:
    """A topology as OpenVINO IR in memory; see `Topology.to_ir`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "topology.xml"
        save(topology, path)
        return IR(path.read_bytes(), path.with_suffix(".bin").read_bytes())


def topology_graph(topology: Topology, target: Target, name: str) -> tuple[Graph, dict[str, Any]]:
    """A topology as a graph: what its outputs need, in the mode of inference; and what a file says of it.

    Raises:
        TapeError: a layer has no meaning on padded sequences.
        IRError: a layer cannot be written.
    """
    dense = DenseTopology(topology)
    if not dense.inputs:
        raise TapeError(
            "a topology without data cannot be saved",
            got=f"outputs {dense.outputs}",
            expected="outputs that follow from data layers",
            remedy="make a stepnet.layers.data layer its input",
        )
    with evaluating([topology]):
        floating = next((p.dtype for p in dense.parameters() if p.is_floating_point()), torch.float32)
        check_numbers(dense, floating)
        examples = _examples(dense, floating)
        dynamic = {
            text: range(leaf.level + 1 if text == leaf.name else value.dim())
            for leaf in dense.inputs
            for text, value in zip(leaf.tensors, (examples[t] for t in leaf.tensors), strict=True)
        }
        graph = module_graph(_ByName(dense), examples, target, dynamic=dynamic, name=name)
    return graph, _notes(topology, dense)


class _ByName(nn.Module):
    """A dense topology that takes and gives tensors by name."""

    def __init__(self, dense: DenseTopology) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        names = (text for leaf in self.dense.outputs for text in leaf.tensors)
        return dict(zip(names, self.dense(*tensors.values()), strict=True))


_ByName.__name__ = "Topology"  # as errors call it


def _examples(dense: DenseTopology, floating: torch.dtype) -> dict[str, Tensor]:
    """A small batch for each input, in the dtype of the parameters."""
    found: dict[str, Tensor] = {}
    for leaf in dense.inputs:
        example = dense.types[leaf.name].example()
        if example.dtype.is_floating_point:
            example = example.to(floating)
        if leaf.level:
            padded = PaddedLoD.of(example)
            found |= zip(leaf.tensors, (padded.grid, *padded.lengths), strict=True)
        else:
            found[leaf.name] = example
    return found


def _notes(topology: Topology, dense: DenseTopology) -> dict[str, Any]:
    """What the file says of the topology: data types, the nesting of outputs, evaluators."""
    names = dict(zip(dense.ends, (leaf.name for leaf in dense.outputs), strict=True))
    known = {i: c.name for i, c in topology.played}
    notes: dict[str, Any] = {
        "format": "1",
        "data": {name: json.dumps(type.describe()) for name, type in dense.types.items()},
        "outputs": json.dumps(_structure(topology.structure, names)),
        "levels": json.dumps({leaf.name: leaf.level for leaf in dense.outputs}),
    }
    evaluators = {
        c.name: json.dumps({"kind": c.kind, "inputs": [known[j] for j in c.inputs]})
        for _, c in topology.played
        if isinstance(c.function, Evaluator)
    }
    if evaluators:
        notes["evaluators"] = evaluators
    return notes


def _structure(tree: Any, names: Mapping[int, str]) -> Any:
    if isinstance(tree, Ref):
        return names[tree.index]
    if isinstance(tree, (tuple, list)):
        return {type(tree).__name__: [_structure(part, names) for part in tree]}
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _structure(part, names) for key, part in tree.items()}}
    raise TapeError(
        "outputs of a saved topology are items in tuples, lists, and dicts by name",
        got=repr(tree)[:80],
        expected="items of the tape",
        remedy="outputs=[item, ...] or {name: item}",
    )
