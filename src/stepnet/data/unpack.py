"""Unpack and pack: from the order of sequences to the order of steps, and back.

Everything is index arithmetic on the CPU and one permutation of the rows; no loop runs over sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.data.arguments import truth
from stepnet.data.convert import rank_order
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, noted, outside_modes
from stepnet.data.offsets import LoD, longest_of, offsets_of, owners, ranges, told
from stepnet.data.permute import invert, permute_rows
from stepnet.data.unpatched_torch import from_numpy
from stepnet.data.values import Value, check_fit, describe, rows_of
from stepnet.errors import ArrayError


def unpack(x: LoDTensor, level: int, sort_by_length: bool) -> tuple[list[Any], Value, Tensor]:
    """The work of `TensorArray.unpack`: the step values, all of them as one value, and the indices map."""
    if not isinstance(x, LoDTensor):
        raise ArrayError(
            "TensorArray.unpack cuts LoDTensors",
            got=describe(x),
            remedy="LoDTensor.from_sequences, from_packed and others make one; "
            "TensorArray.unstack(tensor, axis) cuts sequences of equal length",
        )
    if not -x.lod_level <= level < x.lod_level:
        raise ArrayError(
            f"TensorArray.unpack: there is no level {level}",
            got=describe(x),
            expected=f"a level from 0, the outermost, to {x.lod_level - 1}, or from -1, the last, "
            f"to {-x.lod_level}",
        )
    level %= x.lod_level
    sort_by_length = truth("TensorArray.unpack: 'sort_by_length'", sort_by_length, error=ArrayError)
    elements, counts, begins, ends, order = _cut(told(x.structure.levels[level]), level, sort_by_length)
    joined = _take(x, level, elements)
    return split(joined, counts), joined, _stacked(begins, ends, order)


@outside_modes
def _stacked(*columns: Tensor) -> Tensor:
    return torch.stack(columns, 1).to(torch.int32)


class InSteps(NamedTuple):
    """Where the elements of a level lie when it is cut into steps, the longest sequences first."""

    counts: list[int]  # how many sequences each step holds
    order: Tensor  # of the sequences
    ranks: Tensor  # undoes `order`
    elements: Tensor  # of the level, in the order of steps
    places: Tensor  # undoes `elements`


class Steps(NamedTuple):
    """A level of sequences cut into steps."""

    values: list[Any]
    at: InSteps

    def joined(self, values: Sequence[Value], lod: LoD) -> LoDTensor:
        """Values that a loop gave for the steps as sequences again. `lod`: of the levels down to this one."""
        if _are_rows(values, self.at.counts):
            return LoDTensor.of(permute_rows(torch.cat(values), self.at.places), lod)  # pyright: ignore
        check_fit(values, "the values of all steps", free=0)
        whole = join(values)
        if not isinstance(whole, LoDTensor):
            return LoDTensor.of(permute_rows(whole, self.at.places), lod)
        taken = _take(whole, -1, self.at.places)
        return LoDTensor.of(taken.values, LoD.trusted((*lod.levels, *taken.structure.levels)))


def steps_of(x: LoDTensor, level: int, *, reverse: bool = False) -> Steps:
    """The steps of a level, counted from 0, the outermost; of the last one from the end, with `reverse`."""
    if level == x.lod_level - 1:
        at = x.structure.made(_rows_backwards if reverse else _rows)
        return Steps(split(permute_rows(x.values, at.elements), at.counts), at)
    elements, counts, _, _, order = _cut(told(x.structure.levels[level]), level, True)
    at = InSteps(counts, order, invert(order), elements, invert(elements))
    return Steps(split(_take(x, level, elements), counts), at)


def _rows(offsets: Tensor) -> InSteps:
    return _rows_in_steps(offsets, reverse=False)


def _rows_backwards(offsets: Tensor) -> InSteps:
    return _rows_in_steps(offsets, reverse=True)


@outside_modes
def _rows_in_steps(offsets: Tensor, *, reverse: bool) -> InSteps:
    """The rows of sequences in the order of steps, each sequence from its end with `reverse`."""
    bounds = offsets.numpy()
    lengths = np.diff(bounds)
    order = (-lengths).argsort(kind="stable")
    counts = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
    before = np.cumsum(counts) - counts
    rows = np.arange(bounds[-1])
    time = np.repeat(np.arange(len(counts)), counts)
    sequence = order[rows - np.repeat(before, counts)]
    elements = bounds[1:][sequence] - 1 - time if reverse else bounds[:-1][sequence] + time
    ranks, places = np.empty_like(order), np.empty_like(elements)
    ranks[order] = np.arange(len(order))
    places[elements] = rows
    return InSteps(counts.tolist(), *map(from_numpy, (order, ranks, elements, places)))


def _are_rows(values: Sequence[Value], counts: Sequence[int]) -> bool:
    """Whether values are tensors that look alike, with so many rows each."""
    first = values[0]
    if set(map(type, values)) != {Tensor} or first.dim() == 0:
        return False
    dtype, device, one = first.dtype, first.device, first.shape[1:]
    size, last = None, -1
    for value, count in zip(values, counts, strict=False):
        if count != last:
            size, last = torch.Size((count, *one)), count
        if value.shape != size or value.dtype is not dtype or value.device != device:
            return False
    return True


@outside_modes
def _cut(
    offsets: Tensor, level: int, sort_by_length: bool
) -> tuple[Tensor, list[int], Tensor, Tensor, Tensor]:
    """The elements of a level in the order of steps, and how many each step holds; where each sequence
    begins and ends, and which it is, in the order that they have in the steps."""
    if int(offsets[-1]) > torch.iinfo(torch.int32).max:
        raise ArrayError(
            f"TensorArray.unpack: the int32 indices map cannot count the elements of level {level}",
            got=f"{int(offsets[-1])} elements",
            remedy="cut the batch into smaller ones",
        )
    begins, ends = offsets[:-1], offsets[1:]
    order = rank_order(ends - begins) if sort_by_length else torch.arange(len(begins))
    begins, ends = begins[order], ends[order]
    elements, counts = time_major(begins, ends - begins)
    return elements, counts, begins, ends, order


def pack(values: Sequence[Value], steps: int, level: int, indices_map: Tensor, lod: Any) -> LoDTensor:
    """The work of `TensorArray.pack`; where `steps` is 0, `values` is one value of no elements."""
    above = [] if lod is None else lod
    if level < 0 and isinstance(above, Sequence):
        below = values[0].lod_level if isinstance(values[0], LoDTensor) else 0
        total = len(above) + 1 + below
        if level + total != len(above):
            raise ArrayError(
                f"TensorArray.pack: there is no level {level} between lod and the values",
                got=f"{len(above)} level(s) above, {below} below",
                expected=f"level {-1 - below} or {len(above)}",
                remedy="lod=x.lod[:level], x and level what unpack was given",
            )
        level += total
    if not isinstance(above, Sequence) or len(above) != level:
        raise ArrayError(
            f"TensorArray.pack: lod must give the levels above level {level}",
            got=f"{len(above)} level(s)" if isinstance(above, Sequence) else describe(above),
            expected=f"{level} level(s)",
            remedy=f"lod=x.lod[:{level}], x what unpack was given",
        )
    begins, lengths, order = _sequences(indices_map)
    longest = longest_of(lengths)
    if steps != longest:  # first of all: what follows allocates by the map's lengths
        raise ArrayError(
            "TensorArray.pack: the array must hold one step per element of the longest sequence",
            got=f"{steps} steps",
            expected=f"{longest} steps, as indices_map says",
            remedy="write every step; a map goes with the array that TensorArray.unpack gave it with",
        )
    check_fit(values, "TensorArray.pack", free=0)
    if rows_of(values[0]).dim() == 0:
        raise ArrayError(
            "TensorArray.pack: values must have a row per element",
            got=describe(values[0]),
            expected="rank 1 or more",
        )
    for step, (value, count) in enumerate(zip(values, step_counts(lengths), strict=False)):
        if len(value) != count:
            raise ArrayError(
                f"TensorArray.pack: step {step} must hold one element per sequence longer than {step}",
                got=f"{len(value)} elements",
                expected=f"{count} elements, as indices_map says",
                remedy="keep the rows of a step as array.read(step) gives them",
            )
    joined = join(values)
    elements, _ = time_major(begins, lengths)
    packed = _take(joined, -1, invert(elements))
    levels = [*above, _in_order(lengths, order)]
    if isinstance(packed, LoDTensor):
        return LoDTensor(packed.values, [*levels, *packed.lod])
    return LoDTensor(packed, levels)


def take_elements(x: LoDTensor, level: int, elements: Tensor, drop_level: bool = False) -> Any:
    """Elements of one level in another order; the levels below and the rows travel along.

    Args:
        x: a LoDTensor.
        level: whose elements are taken: 0 to `x.lod_level - 1`.
        elements: int64 positions among the elements of `level`. Without `drop_level` each exactly once,
            since the sequences of `level` keep their lengths.
        drop_level: leave out `level` and those above; then any positions will do, and at the last level
            the result is a tensor.

    >>> x = LoDTensor(torch.arange(4), [[0, 1, 4]])
    >>> take_elements(x, 0, torch.tensor([0, 3, 2, 1])).values
    tensor([0, 3, 2, 1])
    """
    taken = _take(x, level, elements)
    if drop_level:
        return taken
    if isinstance(taken, LoDTensor):
        return LoDTensor(taken.values, [*x.lod[: level + 1], *taken.lod])
    return LoDTensor(taken, x.lod[: level + 1])


def _take(x: Value, level: int, elements: Tensor) -> Any:
    """The elements of a level, without that level and those above; level -1 is x as a list of elements."""
    below = x.structure.levels[level + 1 :] if isinstance(x, LoDTensor) else ()
    lod, places = LoD.trusted(below).take(elements) if below else (None, elements)
    values = rows_of(x)
    if _each_once(places, len(values)):
        taken = permute_rows(values, places)
    else:
        taken = values.index_select(0, beside(places, values))
    return taken if lod is None else LoDTensor.of(taken, lod)


@outside_modes
def _each_once(places: Tensor, count: int) -> bool:
    return len(places) == count and bool((torch.bincount(places, minlength=count) == 1).all())


@outside_modes
def step_counts(lengths: Tensor) -> list[int]:
    """How many sequences are longer than t, for each step t.

    >>> step_counts(torch.tensor([3, 6, 1]))
    [3, 2, 2, 1, 1, 1]
    """
    return (len(lengths) - torch.bincount(lengths).cumsum(0)[:-1]).tolist()


@outside_modes
def time_major(begins: Tensor, lengths: Tensor) -> tuple[Tensor, list[int]]:
    """The elements of all sequences in the order of the steps, and how many each step holds.

    Within a step the sequences keep the order they have in `begins`.

    >>> time_major(torch.tensor([3, 0, 9]), torch.tensor([6, 3, 1]))
    (tensor([3, 0, 9, 4, 1, 5, 2, 6, 7, 8]), [3, 2, 2, 1, 1, 1])
    """
    counts = step_counts(lengths)
    elements = ranges(begins, lengths)
    time = ranges(torch.zeros_like(lengths), lengths)
    if not bool((lengths[1:] <= lengths[:-1]).all()):
        return elements[torch.argsort(time, stable=True)], counts
    # Longest first: the sequences of a step are a prefix, so every place is known without a sort.
    place = offsets_of(torch.tensor(counts, dtype=torch.int64))[time] + owners(lengths, len(time))
    return elements[invert(place)], counts


def split(joined: Value, counts: list[int]) -> list[Any]:
    """Cut a value into pieces of `counts` elements: views made by one split, whose gradient is one cat."""
    if not counts:
        return []
    if not isinstance(joined, LoDTensor):
        return list(joined.split(counts))
    lods, sizes = _lods_of_pieces(joined.structure, counts)
    pieces = zip(joined.values.split(sizes), lods, strict=True)
    return [LoDTensor.of(piece, lod) for piece, lod in pieces]


@outside_modes
def _lods_of_pieces(lod: LoD, counts: list[int]) -> tuple[list[LoD], list[int]]:
    """The LoD of each piece of `counts` elements, and how many rows it has."""
    inner: list[list[Tensor]] = [[] for _ in counts]
    for offsets in lod.levels:
        bounds = offsets_of(torch.tensor(counts, dtype=torch.int64))
        at = offsets[bounds]
        for levels, begin, end, first in zip(
            inner, bounds[:-1].tolist(), bounds[1:].tolist(), at.tolist(), strict=False
        ):
            levels.append(offsets[begin : end + 1] - first)
        counts = at.diff().tolist()
    return [LoD.trusted(tuple(levels)) for levels in inner], counts


def join(values: Sequence[Value]) -> Value:
    """One value of the elements of all, one value after the other; LoDTensors keep their levels."""
    joined = torch.cat([rows_of(value) for value in values])
    tables = [value for value in values if isinstance(value, LoDTensor)]
    if not tables:
        return joined
    return LoDTensor.of(joined, _joined_lod([table.structure for table in tables]))


@outside_modes
def _joined_lod(lods: list[LoD]) -> LoD:
    lengths = [torch.cat([lod.lengths(k) for lod in lods]) for k in range(len(lods[0].levels))]
    return LoD.trusted(tuple(offsets_of(level) for level in lengths))


@outside_modes
def _sequences(indices_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Begins, lengths and original indices, checked to be what `unpack` returns."""
    where = "TensorArray.pack: indices_map"
    remedy = "pass the map that unpack returned, unchanged"
    whole = isinstance(indices_map, Tensor) and indices_map.dtype in (torch.int32, torch.int64)
    if not whole or indices_map.dim() != 2 or indices_map.shape[1] != 3:
        raise ArrayError(
            f"{where} must have a row (begin, end, index) per sequence",
            got=describe(indices_map),
            expected="Tensor int32[sequences, 3]",
            remedy=remedy,
        )
    table = noted(indices_map).detach().to("cpu", torch.int64)
    order = table[:, 2]
    if not torch.equal(order.sort().values, torch.arange(len(table))):
        raise ArrayError(
            f"{where} must name each sequence once, in column 2",
            got=order.tolist() if len(table) <= 8 else f"{len(table)} sequences, not each of them once",
            expected=f"the numbers below {len(table)}, each once",
            remedy=remedy,
        )
    batch = table[invert(order)]
    begins = torch.cat([batch.new_zeros(1), batch[:, 1]])[: len(batch)]
    wrong = torch.nonzero((batch[:, 0] != begins) | (batch[:, 1] < batch[:, 0]))
    if len(wrong):
        index = int(wrong[0])
        raise ArrayError(
            f"{where}: the sequences must follow each other, from 0 and without a gap",
            got=f"sequence {index} from {int(batch[index, 0])} to {int(batch[index, 1])}",
            expected=f"from {int(begins[index])} to no less than that",
            remedy=remedy,
        )
    return table[:, 0], table[:, 1] - table[:, 0], order


@outside_modes
def _in_order(lengths: Tensor, order: Tensor) -> Tensor:
    """Offsets of sequences that are given in another order."""
    return offsets_of(lengths[invert(order)])
