"""Recurrences and functions of sequences of an exported program in torch's own operators, for other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import sequences
from .as_loop import as_loop
from .calls import find
from .recurrence import Recurrence


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What `torch.export.ExportedProgram.run_decompositions` takes to write recurrences as `while_loop`.

    What it has no other form for stays one operator, which runs where stepnet is imported: a recurrence with
    resets, with detach_every= or decomposed under autocast, and what repeats or joins whole sequences.
    Offsets are not checked any more as the program runs.

    The program can be trained. A gradient that is to be differentiated again is an error of torch.

    >>> [*decompositions()]  # doctest: +NORMALIZE_WHITESPACE
    [<OpOverload(op='stepnet.run', overload='default')>, <OpOverload(op='aten.copy', overload='default')>,
     <OpOverload(op='aten.detach', overload='default')>]
    """
    aten = torch.ops.aten
    return {
        torch.ops.stepnet.run.default: _decomposed,
        aten.copy.default: _copied,
        aten.detach.default: _stays,
    }


def _stays(*_: Any) -> Any:
    """What torch's own decompositions leave out, and with it that no gradient passes there."""
    return NotImplemented


def _copied(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What a write to rows of a tensor becomes, which has no derivative in torch."""
    return source.to(into.dtype).expand(into.shape).clone()


def _decomposed(tensors: list[Tensor], sizes: list[int], what: str) -> Any:
    call = find(what)
    if isinstance(call, Recurrence):
        way = call.way
        kept = sizes or way.inside or way.resets or way.autocast or way.detach_every
        return NotImplemented if kept else as_loop(call, tensors)
    if not isinstance(call, sequences.SequenceCall):
        return NotImplemented
    name = next(name for name, function in sequences.FUNCTIONS.items() if function is call.function)
    plain = _FUNCTIONS.get(name)
    return NotImplemented if plain is None else plain(tensors, *call.options)


def _owners(offsets: Tensor, rows: Tensor) -> Tensor:
    """For each row, the sequence it belongs to."""
    at = torch.arange(rows.shape[0], device=rows.device)
    return torch.bucketize(at, offsets[1:].to(rows.device), right=True)


def _offsets(levels: Sequence[Tensor]) -> list[Tensor]:
    lengths = []
    for offsets in (t.to(torch.int64) for t in levels):
        # by `nonzero`, for a size of its own; of one less than another, torch asks whether it is 1
        at = (torch.arange(offsets.shape[0], device=offsets.device) < offsets.shape[0] - 1).nonzero()[:, 0]
        lengths.append(offsets.index_select(0, at + 1) - offsets.index_select(0, at))
    return _lengths(lengths)


def _lengths(levels: Sequence[Tensor]) -> list[Tensor]:
    ends = [torch.cat([t.new_zeros(1, dtype=torch.int64), t.cumsum(0)]) for t in levels]
    return [*ends, *(t.to(torch.int64).clone() for t in levels)]


def _reversed(tensors: Sequence[Tensor]) -> list[Tensor]:
    rows, offsets = tensors[0], tensors[-1].to(tensors[0].device)
    owner = _owners(offsets, rows)
    at = torch.arange(rows.shape[0], device=rows.device)
    return [rows.index_select(0, offsets[owner] + offsets[owner + 1] - 1 - at)]


def _expanded(tensors: Sequence[Tensor], level: int) -> Any:
    entries, rows, *levels = tensors
    if level % len(levels) != len(levels) - 1:
        return NotImplemented
    return [entries.index_select(0, _owners(levels[-1], rows))]


def _table(tensors: Sequence[Tensor], fill: float) -> tuple[Tensor, Tensor]:
    """[sequences, longest, ...], and where there are rows in it."""
    rows, offsets = tensors[0], tensors[-1].to(tensors[0].device)
    lengths = offsets.diff()
    longest = torch.cat([lengths.new_zeros(1), lengths]).max()
    steps = (torch.arange(rows.shape[0], device=rows.device) < longest).nonzero()[:, 0]
    mask = steps < lengths[:, None]
    at = torch.where(mask, offsets[:-1, None] + steps, 0)
    shown = mask.view(*mask.shape, *[1] * (rows.dim() - 1))
    return torch.where(shown, rows[at], rows.new_full((), fill)), mask


def _padded(tensors: Sequence[Tensor], fill: float, batch_first: bool) -> list[Tensor]:
    table, _ = _table(tensors, fill)
    return [table if batch_first else table.transpose(0, 1).contiguous()]


def _softmax(tensors: Sequence[Tensor]) -> Any:
    rows, offsets = tensors[0], tensors[-1].to(tensors[0].device)
    if rows.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    index = _owners(offsets, rows).view(-1, *[1] * (rows.dim() - 1)).expand(rows.shape)
    none = rows.new_zeros((offsets.shape[0] - 1, *rows.shape[1:]))
    largest = none.scatter_reduce(0, index, rows.detach(), "amax", include_self=False)
    powers = (rows - largest.gather(0, index)).exp()
    return [powers / none.scatter_add(0, index, powers).gather(0, index)]


def _pooled(tensors: Sequence[Tensor], pooling: str, pad_value: float) -> Any:
    rows, offsets = tensors[0], tensors[-1].to(tensors[0].device)
    if rows.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    lengths = offsets.diff().view(-1, *[1] * (rows.dim() - 1))
    none = rows.new_zeros((offsets.shape[0] - 1, *rows.shape[1:]))
    owner = _owners(offsets, rows)
    if pooling == "max":
        index = owner.view(-1, *[1] * (rows.dim() - 1)).expand(rows.shape)
        pooled = none.scatter_reduce(0, index, rows, "amax", include_self=False)
    elif pooling in ("first", "last"):
        at = offsets[:-1] if pooling == "first" else offsets[1:] - 1
        behind = torch.cat([rows, none[:1]])  # where a sequence is empty, and there are no rows
        pooled = behind.index_select(0, at.clamp(min=0))
    else:
        pooled = none.index_add(0, owner, rows)
        if pooling != "sum":
            counts = lengths.clamp(min=1).to(rows.dtype)
            pooled = pooled / (counts if pooling == "mean" else counts.sqrt())
    return [torch.where(lengths == 0, pad_value, pooled)]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "offsets": _offsets,
    "lengths": _lengths,
    "reverse": _reversed,
    "expand": _expanded,
    "beside": lambda tensors: [*_table(tensors, 0)],
    "pad": _padded,
    "pool": _pooled,
    "softmax": _softmax,
}
