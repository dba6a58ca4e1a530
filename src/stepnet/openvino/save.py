"""Modules to OpenVINO IR files."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from stepnet.errors import IRError

from .model import OpenVINOModel
from .writing.naming import name_ends
from .writing.snapshot import snapshot
from .writing.xml_writer import write


def save(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model that `load` read as OpenVINO IR, version 11: `path` and the .bin beside it.

    Its constants are written as they are now, in the types that its file declared: what was trained is
    saved. Constants that share memory share their place in the .bin. Compressed weights stay compressed where
    they were not trained. Names, dynamic dimensions and `rt_info` are kept.

    Both files are complete before an older pair is replaced; a model may be saved over its own files.

    Args:
        module: an `OpenVINOModel`.
        path: NAME.xml.

    Raises:
        IRError: `module` is of another kind, the files cannot be written, or IR cannot hold a name.

    >>> save(nn.Linear(2, 2), "linear.xml")
    Traceback (most recent call last):
    stepnet.errors.IRError: linear.xml: only models that were read can be saved
    ...
    """
    if not isinstance(module, OpenVINOModel):
        raise IRError(
            f"{Path(path).name}: only models that were read can be saved",
            got=type(module).__name__,
            expected="an OpenVINOModel",
        )
    net = snapshot(module)
    name_ends(net, [output.name for output in module.outputs])
    write(net, Path(path))
