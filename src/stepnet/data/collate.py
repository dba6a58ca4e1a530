"""Samples of a data set to a batch: sequences become LoDTensors, numbers tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data._utils.collate import default_collate_fn_map

from stepnet.data.arguments import brief
from stepnet.data.convert import DEEPEST, from_array, shared
from stepnet.data.lod import LoDTensor
from stepnet.errors import LoDError

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def collate(samples: Sequence[Any], dense: Collection[Any] = ()) -> Any:
    """The `collate_fn` of a torch DataLoader for samples with sequences in them.

    Samples are nested mappings, tuples and dataclasses, all of one structure; the batch has that structure,
    and in it

    - a LoDTensor for tensors and arrays of one dimension or more, whose first counts rows, empty lists
      among them, and for lists of numbers; of two levels for lists of these, and of one level more for
      LoDTensors, nested tensors and PackedSequences;
    - a tensor with an entry per sample for numbers and tensors of no dimension, and for what is named in
      `dense`: tensors, or lists of numbers, of one shape;
    - a list for all else, as strings.

    Args:
        samples: what the data set gives for each index of a batch.
        dense: keys of mappings, fields of named tuples and dataclasses, and places in tuples, at any depth
            (one that is a text may stand alone),
            whose tensors or lists have no rows: `functools.partial(collate, dense=("speaker",))` is a
            `collate_fn`.

    Raises:
        LoDError: there are no samples, or one does not fit the others; the text says where.

    >>> batch = collate([{"x": torch.zeros(2, 3), "y": 1}, {"x": torch.zeros(1, 3), "y": 0}])
    >>> batch["x"], batch["y"]
    (LoDTensor(2 sequences, lengths [[2, 1]], values [3, 3] float32), tensor([1, 0]))
    """
    if not isinstance(samples, Sequence) or not samples:
        raise LoDError(
            "collate takes a list of samples, one or more",
            got=brief(samples),
            remedy="collate([sample]) of one; a DataLoader gives lists unless its batch_size is None",
        )
    named = (dense,) if isinstance(dense, str) else dense  # else parts of the name would be names, too
    if not isinstance(named, Collection):
        raise LoDError("collate: 'dense' must be names", got=brief(dense), expected="a tuple of them")
    return _joined(list(samples), "sample", named, False)


def _joined(samples: list[Any], where: str, dense: Collection[Any], is_dense: bool, depth: int = 0) -> Any:
    """Samples of one kind as what a batch holds of them."""
    _check_depth(depth, where)
    samples = samples if is_dense else _as_rows(samples)
    first = samples[0]
    for i, sample in enumerate(samples):
        if _kind(sample) != _kind(first):
            raise LoDError(
                f"collate: {where} of sample {i} is of another kind than in sample 0",
                got=brief(sample),
                expected=_kind(first),
            )

    def part(column: list[Any], place: str, name: Any) -> Any:
        return _joined(column, where + place, dense, name in dense, depth + 1)

    if isinstance(first, Tensor) and first.is_nested:
        samples = [LoDTensor.from_nested(sample) for sample in samples]
    if isinstance(first, PackedSequence):
        samples = [LoDTensor.from_packed(sample) for sample in samples]
    if isinstance(samples[0], LoDTensor):
        return _told(_nested, samples, where)
    if isinstance(first, (Mapping, tuple)) or _is_record(first):
        return _container(samples, where, part)
    if isinstance(first, _NUMBERS):
        return _told(_numbers, samples, where)
    is_array = isinstance(first, (Tensor, np.ndarray))
    if is_array and (is_dense or first.ndim == 0):
        return _stacked([_told(_as_tensor, sample, where) for sample in samples], where)
    if is_array or _holds_numbers(samples, where):
        return _told(torch.tensor if is_dense else LoDTensor.from_sequences, samples, where)
    return samples


def _is_record(sample: Any) -> bool:
    return dataclasses.is_dataclass(sample) and not isinstance(sample, type)


def _container(samples: list[Any], where: str, part: Callable[[list[Any], str, Any], Any]) -> Any:
    """Mappings, dataclasses or tuples as one, of what `part` makes of each column, its place and its name."""
    first = samples[0]
    if isinstance(first, Mapping):
        _check_parts([list(sample) for sample in samples], where)
        whole = copy.copy(first) if isinstance(first, MutableMapping) else {}
        for key in first:
            whole[key] = part([sample[key] for sample in samples], f"[{key!r}]", key)
        return whole
    if _is_record(first):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        columns = {name: [getattr(sample, name) for sample in samples] for name in names}
        parts = {name: part(column, f".{name}", name) for name, column in columns.items()}
        return dataclasses.replace(first, **parts)
    _check_parts([[None] * len(sample) for sample in samples], where)
    names = getattr(first, "_fields", range(len(first)))
    columns = zip(names, zip(*samples, strict=True), strict=True)
    parts = [part(list(column), f"[{name!r}]", name) for name, column in columns]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def _as_rows(samples: list[Any]) -> list[Any]:
    """No rows in place of empty lists, where other samples are rows: so Hugging Face gives them."""
    rows = next((each for each in samples if isinstance(each, (Tensor, np.ndarray))), None)
    if rows is None or not rows.ndim or (isinstance(rows, Tensor) and rows.is_nested):
        return samples
    return [rows[:0] if type(each) is list and not each else each for each in samples]


def _numbers(samples: list[Any]) -> Tensor:
    kinds = {type(sample): sample for sample in samples}
    if any(isinstance(sample, np.generic) for sample in kinds.values()):
        return from_array(np.array(samples, np.result_type(*kinds.values())))
    return torch.tensor(samples)


def _as_tensor(sample: Any) -> Tensor:
    """What is to be joined next to others."""
    return shared(sample) if isinstance(sample, np.ndarray) else sample


def _told(join: Callable[[Any], Any], samples: Any, where: str) -> Any:
    """What `join` makes of the samples, or an error that says where they are."""
    try:
        return join(samples)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # a LoDError is a ValueError
        listed = isinstance(samples, list) and isinstance(samples[0], list)
        dense = listed and not isinstance(error, LoDError)
        remedy = "leave it out of 'dense' where lengths differ" if dense else None
        raise LoDError(f"collate: {where} cannot be joined: {error}", remedy=remedy) from error


def _kind(sample: Any) -> str:
    """What must be alike: numbers of all kinds are."""
    if isinstance(sample, _NUMBERS):
        return "number"
    if isinstance(sample, (Tensor, np.ndarray)):
        return "tensor"
    return type(sample).__name__


def _check_parts(parts: list[list[Any]], where: str) -> None:
    for i, names in enumerate(parts):
        if len(names) != len(parts[0]) or set(names) != set(parts[0]):
            raise LoDError(
                f"collate: {where} of sample {i} has other parts than in sample 0",
                got=str(names if any(names) else len(names)),
                expected=str(parts[0] if any(parts[0]) else len(parts[0])),
            )


def _nested(samples: list[LoDTensor], **_: Any) -> LoDTensor:
    """One level more, with a sequence for each sample."""
    joined = LoDTensor.cat(samples)
    counts = [[len(sample) for sample in samples]]
    return LoDTensor.from_lengths(joined.values, [*counts, *joined.recursive_sequence_lengths()])


def _stacked(tensors: list[Tensor], where: str) -> Tensor:
    for i, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise LoDError(
                f"collate: dense {where} of sample {i} does not fit that of sample 0",
                got=brief(tensor),
                expected=brief(tensors[0]),
                remedy="leave it out of 'dense' where lengths differ; tensor.to(dtype) in the data set",
            )
    return torch.stack(tensors)


def _check_depth(depth: int, where: str) -> None:
    if depth > DEEPEST:
        raise LoDError(
            f"collate: samples nested more than {DEEPEST} deep, or that hold themselves",
            got=where,
            remedy="leave out of a sample what leads back to it",
        )


def _holds_numbers(samples: list[Any], where: str) -> bool:
    """Whether lists hold numbers, tensors or such lists, and no strings or other things."""
    if not isinstance(samples[0], list):
        return False
    leaves = list(_leaves(samples, where, 0))
    kinds = (Tensor, np.ndarray, int, float, complex, np.number, np.bool_)
    return all(isinstance(leaf, kinds) for leaf in leaves)


def _leaves(node: Any, where: str, depth: int) -> Any:
    if isinstance(node, list):
        _check_depth(depth, where)
        for child in node:
            yield from _leaves(child, where, depth + 1)
    else:
        yield node


# torch's default_collate joins LoDTensors in the same way; its registry has no public name up to torch 2.13.
default_collate_fn_map[LoDTensor] = _nested
