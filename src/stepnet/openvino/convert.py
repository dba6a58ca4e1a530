"""One OpenVINO IR to another: version 11, cells for sequences, smaller weights."""

from __future__ import annotations

import os
from pathlib import Path

from .model import OpenVINOModel, load
from .writing.completion import complete, is_open
from .writing.compress import compress
from .writing.snapshot import snapshot
from .writing.unfuse import unfuse as unfuse_sequences
from .writing.xml_writer import write


def convert(
    model: OpenVINOModel | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    unfuse: bool = False,
    f16: bool = False,
) -> None:
    """Write a model, or the model of a file of version 10 or 11, as IR of version 11.

    Args:
        model: what `load` gave, or the path of an .xml file with its .bin beside it.
        output: NAME.xml; it may be the file that is read. NAME.bin is written, too.
        unfuse: make every LSTMSequence, GRUSequence and RNNSequence a TensorIterator with a cell in its
            body, one for each direction. Sequence lengths are kept, by a mask where it needs one.
        f16: store f32 constants as f16, each with a Convert back to f32. Constants of fewer than 16 numbers
            stay, and those with a number that f16 does not hold.

    Raises:
        IRError: the model cannot be read, or the files cannot be written.

    >>> convert("missing.xml", "new.xml")
    Traceback (most recent call last):
    stepnet.errors.IRError: missing.xml: cannot be read: No such file or directory
    ...
    """
    net = snapshot(model if isinstance(model, OpenVINOModel) else load(model))
    if is_open(net):  # of no precision, as OpenVINO writes ports that depend on a type it leaves open
        complete(net)
    if unfuse:
        unfuse_sequences(net)
    if f16:
        compress(net)
    write(net, Path(output))
