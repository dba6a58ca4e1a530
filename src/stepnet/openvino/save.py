"""Modules to OpenVINO IR files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from stepnet.data.arguments import path_of
from stepnet.errors import IRError
from stepnet.export import module_graph

from .model import OpenVINOModel
from .writing.from_graph import OPENVINO, net_of
from .writing.snapshot import snapshot
from .writing.xml_writer import write


def save(
    module: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    dynamic: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Write a module as OpenVINO IR, version 11: `path` and the .bin beside it.

    Both files are complete before an older pair is replaced; a model may be saved over its own files.

    A model that `load` read is written as it is now: constants that were trained have their new values, in
    the types that its file declared; compressed weights that were not trained stay compressed; constants
    that share memory share their place in the .bin. Names, dynamic dimensions and `rt_info` are kept.

    Any other module is run on `example_inputs`, and what it does becomes layers. A recurrence becomes a
    TensorIterator by its plan: what does not depend on the state is written outside of the loop. A step
    that is an LSTM, GRU or RNN cell is written as LSTMCell, GRUCell or RNNCell. A LoDTensor is written as a
    padded input with an input of lengths.

    Args:
        module: an `OpenVINOModel`, or a module of torch.
        path: NAME.xml.
        example_inputs: what to call a module of torch with: a tensor or a LoDTensor, a tuple of arguments,
            or a dict of arguments by name. A model that was read takes none.
        dynamic: of a module of torch, the dimensions of each input that take any size. None: those that
            hold batch and time.

    Raises:
        IRError: the files cannot be written, IR cannot hold a name, or something in the module cannot be
            written; says what, and the line of the step it came from.

    >>> import torch
    >>> save(nn.Linear(2, 2), "linear.onnx", torch.ones(1, 2))
    Traceback (most recent call last):
    stepnet.errors.IRError: linear.onnx: the name must end in .xml
    ...
    """
    place = Path(path_of("save: 'path'", path, error=IRError))
    if not isinstance(module, OpenVINOModel):
        graph = module_graph(module, example_inputs, OPENVINO, dynamic=dynamic, name=place.stem)
        write(net_of(graph).net(), place)
        return
    if example_inputs is not None or dynamic is not None:
        raise IRError(
            f"{place.name}: a model that was read is saved as it is",
            got="example_inputs" if example_inputs is not None else "dynamic",
            expected="the model and the path alone",
            remedy="save(model, path)",
        )
    write(snapshot(module), place)
