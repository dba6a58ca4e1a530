"""Chunks of many streams as one batch, and its results as theirs."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.arguments import check_dense
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD, offsets_of
from stepnet.data.pieces import one_after_the_other
from stepnet.data.tree import LEAF, Spec, flatten, names, unflatten
from stepnet.data.unpatched_torch import is_contiguous
from stepnet.errors import StreamError
from stepnet.front.step import describe_leaves, step_name


def joined(chunks: Mapping[Hashable, Any]) -> tuple[Any, tuple[Tensor, ...], list[int]]:
    """The chunks as one batch, leaf by leaf, the offsets of the first leaf, and the lengths of its chunks.
    The rows of a lone chunk may be those of the batch, in the caller's memory.

    Raises:
        StreamError: they are not alike.
    """
    first_chunk = next(iter(chunks.values()))
    if type(first_chunk) is Tensor and first_chunk.layout is torch.strided and first_chunk.dim():
        if len(chunks) == 1:
            lengths = [first_chunk.shape[0]]
            rows = first_chunk
            if rows.requires_grad or rows.is_inference() or not is_contiguous(rows):
                rows = rows.clone(memory_format=torch.contiguous_format)
            batch = LoDTensor.of(rows, _of_lengths((lengths[0],)))
            return batch, batch.structure.levels, lengths
        parts = list(chunks.values())
        if _are_alike(parts):  # as of hundreds of streams at once
            batch, lengths = _batch(parts)
            return batch, batch.structure.levels, lengths
    first, spec = flatten(first_chunk)
    columns: list[list[Any]] = [[] for _ in first]
    for id, chunk in chunks.items():
        leaves, own = flatten(chunk)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                check_dense(f"the chunk of stream {id!r}", leaf, StreamError)
        if own != spec or not leaves or any(map(_differ, leaves, first)):
            raise StreamError(
                f"the chunk of stream {id!r} must be rows, like those of the others",
                got=_show(leaves, own),
                expected="[rows, ...], or a LoDTensor" if chunk is first_chunk else _show(first, spec),
                remedy="rows[None] of one row, the features last; sequences go in one stream each"
                if any(isinstance(leaf, (Tensor, LoDTensor)) for leaf in leaves)
                else "torch.as_tensor(rows)",
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    batches = list(map(_batch, columns))
    return unflatten(spec, [x for x, _ in batches]), batches[0][0].structure.levels, batches[0][1]


def _are_alike(chunks: list[Any]) -> bool:
    """Whether all are rows of one kind. Sets: of hundreds of chunks, hardly any two differ."""
    if {type(chunk) for chunk in chunks} != {Tensor}:
        return False
    if {chunk.layout for chunk in chunks} != {torch.strided}:
        return False
    kinds = {chunk.dtype for chunk in chunks}, {chunk.device for chunk in chunks}
    shapes = {chunk.shape for chunk in chunks}
    return [*map(len, kinds)] == [1, 1] and all(shapes) and len({shape[1:] for shape in shapes}) == 1


def _differ(a: Any, b: Any) -> bool:
    """Whether two chunks cannot be of one batch."""
    if isinstance(a, LoDTensor) and isinstance(b, LoDTensor):
        return a.lod_level != b.lod_level or _differ(a.values, b.values)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() == 0:
        return True
    if a is b:
        return False
    return a.shape[1:] != b.shape[1:] or a.dtype != b.dtype or a.device != b.device


def _show(leaves: Sequence[Any], spec: Spec) -> str:
    return describe_leaves(names(spec, "chunk"), leaves) or "nothing"


def _batch(parts: list[Any]) -> tuple[LoDTensor, list[int]]:
    """The parts as sequences of one batch, and how long each is."""
    lengths = [part.shape[0] if isinstance(part, Tensor) else len(part) for part in parts]
    if isinstance(parts[0], LoDTensor):
        below = one_after_the_other([part.structure for part in parts])
        lod = LoD.trusted((offsets_of(torch.tensor(lengths)), *below.levels), below.rows)
        parts = [part.values for part in parts]
    else:
        lod = _of_lengths(tuple(lengths))
    return LoDTensor.of(torch.cat(parts), lod), lengths  # a copy: the module may write to it


@functools.lru_cache(maxsize=16)  # streams that send as many frames each time
def _of_lengths(lengths: tuple[int, ...]) -> LoD:
    return LoD.trusted((offsets_of(torch.tensor(lengths)),))


def parted(y: Any, offsets: Tensor, lengths: list[int], module: Any) -> Sequence[Any]:
    """The output of each stream.

    Args:
        y: what the module gave.
        offsets, lengths: of the chunks.
        module: for the text of errors.

    Raises:
        StreamError: it is not of so many sequences.
    """
    if type(y) is LoDTensor and y.structure.levels[0] is offsets:
        return _sequences(y, offsets, lengths)
    n, (first, *rest) = len(lengths), y if isinstance(y, tuple) and y else (y,)
    others = flatten(rest)[0]
    leaves, spec = flatten(first if others and not any(isinstance(leaf, LoDTensor) for leaf in others) else y)
    if not leaves or any(not isinstance(leaf, LoDTensor) or len(leaf) != n for leaf in leaves):
        raise StreamError(
            f"'{step_name(module)}' must give a sequence of rows for each stream",
            got=_show(leaves, spec),
            expected=f"LoDTensors of {n} sequences, or a tuple (y, states) of them and of states",
            remedy="what is asked of whole streams, as their mean, is no output of a chunk",
        )
    found = [_sequences(leaf, offsets, lengths) for leaf in leaves]
    return found[0] if spec == LEAF else [unflatten(spec, parts) for parts in zip(*found, strict=True)]


def _sequences(x: LoDTensor, offsets: Tensor, lengths: list[int]) -> Sequence[Any]:
    if x.lod_level > 1:
        return list(x)
    own = lengths if x.structure.levels[0] is offsets else x.lengths().tolist()
    return x.values.split(own) if len(own) > 1 else [x.values]
