"""Modules to ONNX files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import nn

from stepnet.data.arguments import path_of, truth
from stepnet.data.modes import as_written
from stepnet.errors import IRError
from stepnet.export import module_graph
from stepnet.export.graph import Graph
from stepnet.export.states import state_pairs
from stepnet.file_model import STATES, FileModel, writing

from .from_graph import ONNX, OpWriter

OPSET, IR_VERSION = 20, 9  # the first that has Gelu, and what torch writes
LARGE = 2**28  # bytes of constants that do not go into the file itself


def save(
    module: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    dynamic: Mapping[str, Sequence[int]] | None = None,
    f16: bool = False,
) -> None:
    """Write a module as an ONNX model of opset 20.

    The module is run on `example_inputs`, and what it does becomes nodes. A recurrence becomes an LSTM, a GRU
    or an RNN if that is what its step computes, whatever it is called, and else a Scan of what depends on the
    state: the rest stands before and after it. A while loop becomes a Loop. A LoDTensor is written as a
    padded input with an input of lengths. Time and batch take any size.

    An output that is the final value of a state which is an input NAME is called NAME_out. The metadata lists
    these pairs as JSON under `stepnet.states`, so that a model can be run piece by piece.

    Args:
        module: a module of torch.
        path: NAME.onnx. Constants of more than 256 MiB go to NAME.onnx.data beside it.
        example_inputs: a tensor or a LoDTensor, a tuple of arguments, or a dict of arguments by name.
        dynamic: the dimensions of each input that take any size. None: those that hold batch and time.
        f16: store weights as float16, each with a Cast back to float32. Constants of fewer than 16 numbers
            stay, and those with a number that float16 does not hold.

    Raises:
        IRError: the file cannot be written, or something in the module cannot; says what, and the line of the
            step it came from.

    >>> import torch
    >>> save(nn.Linear(2, 2), "linear.xml", torch.ones(1, 2))
    Traceback (most recent call last):
    stepnet.errors.IRError: linear.xml: the name must end in .onnx
    ...
    """
    place = Path(path_of("save: 'path'", path, error=IRError))
    if place.suffix != ".onnx":
        raise IRError(
            f"{place.name or place}: the name must end in .onnx",
            got=str(path),
            expected="NAME.onnx",
            remedy="another name",
        )
    f16 = truth("save: 'f16'", f16, error=IRError)
    graph = module_graph(module, example_inputs, ONNX, dynamic=dynamic, name=place.stem)
    known = module.states if isinstance(module, FileModel) else {}
    replace_file(model_of(graph, f16=f16, states=known), place)


@as_written(torch.device("cpu"))
def model_of(
    graph: Graph, *, f16: bool = False, metadata: Mapping[str, str] | None = None,
    states: Mapping[str, str] | None = None,
) -> ir.Model:  # fmt: skip
    """The ONNX model of a graph; `metadata` besides that of the states, which `states` says some of."""
    pairs = state_pairs(graph)
    inputs = {number: str(node.name) for number, node in enumerate(graph.nodes) if node.op == "parameter"}
    results = {i: node.attributes["names"][0] for i, node in enumerate(graph.nodes) if node.op == "result"}
    numbers = {name: number for number, name in {**results, **inputs}.items()}
    pairs |= {numbers[a]: numbers[b] for a, b in (states or {}).items() if a in numbers and b in numbers}
    wanted = {result: f"{inputs[parameter]}_out" for parameter, result in pairs.items()}
    names: dict[int, str] = {}  # of the results: unlike those of all inputs, and of each other
    for number, name in {**wanted, **{i: name for i, name in results.items() if i not in wanted}}.items():
        while name in (*inputs.values(), *names.values()):
            name += "_out"
        names[number] = name
    writer = OpWriter(graph, dict.fromkeys((*inputs.values(), *names.values()), 1), f16)
    writer.write(graph.nodes)
    outputs = []
    for number in results:
        name, value = names[number], writer.call("Identity", writer.results[number])
        value.name, value.type = name, writer.results[number].type
        sizes = graph.nodes[number].attributes["shape"]
        value.shape = ir.Shape([f"{name}_{i}" if size < 0 else size for i, size in enumerate(sizes)])
        outputs.append(value)
    made = ir.Graph(
        writer.inputs, outputs, nodes=writer.nodes, initializers=writer.initializers,
        opset_imports={"": OPSET}, name=graph.name,
    )  # fmt: skip
    states = {inputs[parameter]: names[result] for parameter, result in pairs.items()}
    model = ir.Model(
        made, ir_version=IR_VERSION, producer_name="stepnet",
        metadata_props={STATES: json.dumps(states), **(metadata or {})},
    )  # fmt: skip
    RemoveUnusedNodesPass()(model)
    for part in model.graphs():  # the pass leaves those of bodies
        for name in [name for name, value in part.initializers.items() if not value.uses()]:
            del part.initializers[name]
    return model


def replace_file(model: ir.Model, path: Path) -> None:
    """Write the files beside the older ones, and put them in their places when they are complete."""
    weights = model.graph.initializers.values()
    size = sum(0 if value.const_value is None else value.const_value.nbytes for value in weights)
    with writing(path), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        ir.save(model, new, external_data=f"{path.name}.data" if size > LARGE else None)
        for file in sorted(Path(folder).iterdir(), reverse=True):  # the constants first
            os.replace(file, path.with_name(file.name))
