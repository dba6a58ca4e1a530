"""Rows and lengths to padded, packed, nested and back; the only place that sorts sequences.

Everything here works on bare rows and lengths, so that LoDTensor and TensorArray can both build on it.
No function loops over sequences in Python, save the one that takes a Python list of them apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data import in_graph
from stepnet.data.arguments import brief, check_dense, check_unmasked, truth
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import check_lengths, integers, known, offsets_of, owners, ranges
from stepnet.data.permute import permute_rows
from stepnet.data.unpatched_torch import from_numpy
from stepnet.errors import LoDError

_OF_ARROW = "LoDTensor.from_arrow(column) of a column of lists; array.to_numpy() of one array of pyarrow"
_DEEPER = "[tensor] is a list of one sequence, as deep as lists of several"
_MOST_KEPT = 1 << 16  # rows: places of more take memory, and to find them is little beside what is done then
DEEPEST = 32  # levels of nesting; more is a list that holds itself


@outside_modes
def rank_order(lengths: Tensor) -> Tensor:
    """[n] int64: the sequences by length, longest first; equal lengths keep their order.

    The rank table of Paddle's LoDRankTable.

    >>> rank_order(torch.tensor([3, 6, 1, 6]))
    tensor([1, 3, 0, 2])
    """
    return torch.sort(lengths, descending=True, stable=True).indices


def join_sequences(nested: Any) -> tuple[Tensor, list[list[int]]]:
    """Nested lists of [length, ...] tensors to all rows, and the lengths of every level.

    >>> rows, lengths = join_sequences([[torch.zeros(3), torch.zeros(2)], [torch.zeros(4)]])
    >>> rows.shape, lengths
    (torch.Size([9]), [[2, 1], [3, 2, 4]])
    """
    packed = isinstance(nested, PackedSequence)
    if packed or (isinstance(nested, Tensor) and nested.is_nested):
        raise LoDError(
            "LoDTensor.from_sequences takes a list of sequences",
            got=type(nested).__name__ if packed else "a nested tensor",
            remedy=f"LoDTensor.from_{'packed' if packed else 'nested'}(...)",
        )
    if isinstance(nested, Tensor) or _is_array(nested) or not _is_listing(nested):
        raise LoDError(
            "LoDTensor.from_sequences takes a list of sequences",
            got=brief(nested),
            remedy="list(...) of it, if its first dimension counts sequences"
            if isinstance(nested, (Tensor, np.ndarray))
            else None,
        )
    nested = _listed(nested, "", 0)
    nested = _numbers(nested, "", 0, _kind(nested))
    leaves: list[tuple[Tensor, str]] = []
    lengths: list[list[int]] = [[]]
    leaf_depth = _visit(nested, "", 0, None, leaves, lengths)
    if leaf_depth is not None and len(lengths) > leaf_depth:
        raise LoDError(
            "LoDTensor.from_sequences: all tensors must lie equally deep",
            got=f"a tensor at {leaves[0][1]}, {leaf_depth} deep, and lists {len(lengths)} deep",
            remedy=_DEEPER,
        )
    if not leaves:
        return torch.empty(0), lengths
    first, first_at = leaves[0]
    for leaf, at in leaves[1:]:
        for what, a, b in (
            ("rows of shape", list(leaf.shape[1:]), list(first.shape[1:])),
            ("dtype", leaf.dtype, first.dtype),
            ("device", leaf.device, first.device),
        ):
            if a != b:
                raise LoDError(
                    f"LoDTensor.from_sequences: sequence {at} does not fit the others",
                    got=f"{what} {a}",
                    expected=f"{b}, as in sequence {first_at}",
                    remedy=f"sequence.to({b!r})" if a is not b and what != "rows of shape" else None,
                )
    return torch.cat([leaf for leaf, _ in leaves]), lengths


def _is_listing(node: Any) -> bool:
    return isinstance(node, Iterable) and not isinstance(node, (Tensor, str, bytes, dict, set))


def _is_array(node: Any) -> bool:
    """Whether it holds numbers; an array of objects is a list of them."""
    return isinstance(node, np.ndarray) and node.dtype != object


def from_array(array: np.ndarray | np.generic) -> Tensor:
    """A copy of an array: of any strides and order of bytes, and of one that must not be written.

    >>> from_array(np.arange(3, dtype=">i4")[::-1])
    tensor([2, 1, 0], dtype=torch.int32)
    """
    check_unmasked(array)
    return torch.tensor(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape))


def shared(array: np.ndarray) -> Tensor:
    """The memory of an array, on the device of what is made; a copy where torch does not take it."""
    check_unmasked(array)
    taken = array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    return torch.as_tensor(array) if taken else from_array(array)


def _is_number(node: Any) -> bool:
    return isinstance(node, (int, float, complex, np.number, np.bool_))


def _listed(node: Any, at: str, depth: int) -> Any:
    """Lists in place of all iterables, and tensors in place of numpy arrays."""
    if _is_array(node):
        check_unmasked(node)
        try:
            return from_array(node)
        except (TypeError, ValueError) as error:
            raise LoDError(
                f"LoDTensor.from_sequences: {at} holds no numbers",
                got=brief(node),
                expected="an array of numbers, as the ids of words",
            ) from error
    if isinstance(node, PackedSequence):
        raise LoDError(
            f"LoDTensor.from_sequences: {at} is a PackedSequence, a batch of its own",
            got=f"{len(node.data)} rows",
            remedy="LoDTensor.cat([LoDTensor.from_packed(p) for p in batches]), or collate, a level more",
        )
    if isinstance(node, Tensor) and node.is_nested:
        return list(node.unbind())
    if isinstance(node, Tensor) or not _is_listing(node):
        return node
    if depth > DEEPEST:
        raise LoDError(
            f"LoDTensor.from_sequences: lists nested more than {DEEPEST} deep",
            got=at,
            remedy="torch.as_tensor(list) of numbers that are rows",
        )
    return [_listed(child, f"{at}[{i}]", depth + 1) for i, child in enumerate(node)]


def _kind(node: Any) -> torch.dtype | None:
    """What the plain numbers in the lists are together; None where there are none."""
    if isinstance(node, (bool, np.bool_)):
        return torch.bool
    if isinstance(node, (int, np.integer)):
        return torch.int64
    if _is_number(node):
        return torch.tensor(node).dtype
    if not isinstance(node, list):
        return None
    kinds = [kind for child in node if (kind := _kind(child)) is not None]
    return functools.reduce(torch.promote_types, kinds) if kinds else None


def _numbers(node: Any, at: str, depth: int, kind: torch.dtype | None) -> Any:
    """The same lists, with a tensor in place of each list of numbers."""
    if not isinstance(node, list):
        return node
    if depth and node and all(_is_number(child) for child in node):
        try:
            # torch 2.8 takes no booleans of numpy 2.3
            return torch.tensor([bool(n) if type(n) is np.bool_ else n for n in node], dtype=kind)
        except (ValueError, RuntimeError, OverflowError) as error:
            raise LoDError(
                f"LoDTensor.from_sequences: {at} does not fit {kind}",
                got=brief(node),
                remedy="torch.tensor(numbers, dtype=...) with a dtype that holds them",
            ) from error
    return [_numbers(child, f"{at}[{i}]", depth + 1, kind) for i, child in enumerate(node)]


def _visit(
    node: Any,
    at: str,
    depth: int,
    leaf_depth: int | None,
    leaves: list[tuple[Tensor, str]],
    lengths: list[list[int]],
) -> int | None:
    if isinstance(node, Tensor):
        if node.ndim == 0:
            raise LoDError(
                f"LoDTensor.from_sequences: sequence {at} has no rows to count",
                got="a tensor of shape []",
                expected="a tensor of shape [length, ...]",
                remedy="tensor[None] is a sequence of one row",
            )
        check_dense(f"LoDTensor.from_sequences: sequence {at}", node, LoDError)
        if leaf_depth not in (None, depth):
            raise LoDError(
                "LoDTensor.from_sequences: all tensors must lie equally deep",
                got=f"a tensor at {at}, {depth} deep, and one at {leaves[0][1]}, {leaf_depth} deep",
                remedy=_DEEPER,
            )
        leaves.append((node, at))
        lengths[depth - 1].append(node.shape[0])
        return depth
    if not _is_listing(node):
        raise LoDError(
            f"LoDTensor.from_sequences: sequence {at} must be a tensor of shape [length, ...]",
            got=brief(node),
            remedy=_OF_ARROW
            if hasattr(node, "as_py")
            else "[[1, 2], [3]] or [tensor, tensor]: an entry per sequence, and in it one per row",
        )
    children = list(node)
    if depth > 0:
        lengths[depth - 1].append(len(children))
    if children and len(lengths) == depth:
        lengths.append([])
    for i, child in enumerate(children):
        leaf_depth = _visit(child, f"{at}[{i}]", depth + 1, leaf_depth, leaves, lengths)
    return leaf_depth


def rows_to_padded(
    values: Tensor, lengths: Tensor, padding_value: float = 0.0, batch_first: bool = True, longest: int = 0
) -> Tensor:
    """[rows, ...] to [sequences, longest, ...], or [longest, sequences, ...]; the rest is padding. `longest`:
    at least so many are given room."""
    check_fill(padding_value, values.dtype, "LoDTensor.to_padded: 'padding_value'")
    batch_first = truth("LoDTensor.to_padded: 'batch_first'", batch_first, error=LoDError)
    shape, places = _places_in_grid(lengths, batch_first, longest)
    flat = values.new_full((shape[0] * shape[1], *values.shape[1:]), padding_value)
    return flat.index_copy(0, beside(places, values), values).view(*shape, *values.shape[1:])


@outside_modes
def _places_in_grid(lengths: Tensor, batch_first: bool, longest: int) -> tuple[tuple[int, int], Tensor]:
    n, longest = len(lengths), max(longest, int(lengths.max()) if len(lengths) else 0)
    owner, step = _owners_and_steps(lengths)
    return ((n, longest), owner * longest + step) if batch_first else ((longest, n), step * n + owner)


@outside_modes
def _owners_and_steps(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For every row, its sequence and its place in it."""
    offsets = offsets_of(lengths)
    rows = int(offsets[-1])
    owner = owners(lengths, rows)
    return owner, torch.arange(rows) - offsets[owner]


def padded_to_rows(padded: Any, lengths: Any, batch_first: bool) -> tuple[Tensor, Tensor]:
    """[sequences, longest, ...] (or [longest, sequences, ...]) and lengths to rows and checked lengths."""
    where = "LoDTensor.from_padded"
    batch_first = truth(f"{where}: 'batch_first'", batch_first, error=LoDError)
    axes = "[sequences, longest, ...]" if batch_first else "[longest, sequences, ...]"
    if isinstance(padded, Tensor):
        check_dense(f"{where}: 'padded'", padded, LoDError)
    if not isinstance(padded, Tensor) or padded.ndim < 2:
        raise LoDError(
            f"{where}: 'padded' must have shape {axes}",
            got=brief(padded),
            remedy=f"padded.unsqueeze({int(not batch_first)}) of one sequence"
            if isinstance(padded, Tensor)
            else "torch.as_tensor(padded); LoDTensor.from_sequences takes lists that are not padded",
        )
    table = padded if batch_first else padded.transpose(0, 1)
    n, longest = table.shape[:2]
    lengths = integers(lengths, f"{where}: 'lengths'")
    if len(lengths) != n:
        raise LoDError(
            f"{where}: 'lengths' must have one entry per sequence",
            got=f"{len(lengths)} lengths",
            expected=f"{n} ('padded' has shape {list(padded.shape)}, read as {axes})",
            remedy=f"batch_first={not batch_first}" if len(lengths) == longest else None,
        )
    check_lengths(lengths, f"{where}: 'lengths'", longest, f" ('padded' has {longest} steps)")
    return table.flatten(0, 1).index_select(0, beside(_rows_in_grid(lengths, longest), table)), lengths


@outside_modes
def _rows_in_grid(lengths: Tensor, longest: int) -> Tensor:
    return ranges(torch.arange(len(lengths)) * longest, lengths)


def rows_to_packed(values: Tensor, lengths: Tensor) -> PackedSequence:
    """[rows, ...] to a PackedSequence, as pack_padded_sequence(enforce_sorted=False) makes it."""
    order, batch_sizes, rows = _step_by_step(lengths)
    return PackedSequence(
        values.index_select(0, beside(rows, values)), batch_sizes, beside(order, values), None
    )


@outside_modes
def _step_by_step(lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rank order, how many sequences take part in each step, and the rows in the order of steps."""
    empty = (known(lengths) == 0).nonzero()
    if len(empty):
        raise LoDError(
            "LoDTensor.to_packed: a PackedSequence cannot hold an empty sequence",
            got=f"sequence {int(empty[0])} has length 0 ({len(empty)} of {len(lengths)} are empty)",
            remedy="leave them out: x.select_sequences((x.lengths() > 0).nonzero()[:, 0]), for one level",
        )
    order = rank_order(lengths)
    longest = int(lengths.max()) if len(lengths) else 0
    ended = torch.bincount(lengths, minlength=longest + 1).cumsum(0)[:longest]
    batch_sizes = len(lengths) - ended
    step, rank = _owners_and_steps(batch_sizes)
    return order, batch_sizes, offsets_of(lengths)[order[rank]] + step


class Packing(NamedTuple):
    """Where the rows of sequences, one after the other, stand in a PackedSequence."""

    places: Tensor  # of each row
    back: Tensor  # undoes `places`
    offsets: Tensor  # of the sequences


def packed_to_rows(packed: Any) -> tuple[Tensor, Tensor, Packing | None]:
    """A PackedSequence to rows in the order of its batch, the offsets of its sequences, and the places of the
    rows in it; in a graph these are not known."""
    if not isinstance(packed, PackedSequence):
        raise LoDError(
            "LoDTensor.from_packed takes a PackedSequence",
            got=brief(packed),
            remedy="LoDTensor.from_padded(padded, lengths) of a tensor, from_sequences of a list",
        )
    if in_graph.is_followed():
        return *in_graph.unpacked(packed), None
    at = _packing(packed)
    return packed.data.index_select(0, beside(at.places, packed.data)), _own(at.offsets), at


@outside_modes
def _own(offsets: Tensor) -> Tensor:
    return offsets.clone()


@outside_modes
def _packing(packed: PackedSequence) -> Packing:
    where = "LoDTensor.from_packed"
    sizes = integers(packed.batch_sizes, f"{where}: 'batch_sizes'").numpy().tobytes()
    unsorted, count = packed.unsorted_indices, int(packed.data.shape[0])
    order = None
    if unsorted is not None:
        order = integers(unsorted, f"{where}: 'unsorted_indices'").numpy().tobytes()
    return (_packing_of if count <= _MOST_KEPT else _packing_of.__wrapped__)(sizes, order, count)


@functools.lru_cache(maxsize=16)
def _packing_of(batch_sizes: bytes, unsorted: bytes | None, rows: int) -> Packing:
    """What it gives is kept, for several modules run over the same lengths; nobody writes to it."""
    where = "LoDTensor.from_packed"
    sizes = np.frombuffer(batch_sizes, dtype=np.int64)
    if int(sizes.sum()) != rows or (sizes < 1).any() or (sizes[1:] > sizes[:-1]).any():
        raise LoDError(
            f"{where}: 'batch_sizes' must be positive, never rise, and add up to the rows of 'data'",
            got=f"{sizes.tolist()} for {rows} rows",
            remedy="torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)",
        )
    n = int(sizes[0]) if len(sizes) else 0
    rank = np.arange(n)
    lengths = np.searchsorted(-sizes, -rank)  # the steps that more than so many sequences take part in
    if unsorted is not None:
        order = np.frombuffer(unsorted, dtype=np.int64)
        if not np.array_equal(np.sort(order), rank):
            raise LoDError(
                f"{where}: 'unsorted_indices' must be an order of {n} sequences",
                got=order.tolist(),
                expected=f"each of 0 to {n - 1} once",
            )
        rank, lengths = order, lengths[order]
    offsets = np.concatenate([[0], lengths.cumsum()])
    step = np.arange(rows) - np.repeat(offsets[:-1], lengths)
    places = (np.cumsum(sizes) - sizes)[step] + np.repeat(rank, lengths)
    back = np.empty_like(places)
    back[places] = np.arange(rows)
    return Packing(*map(from_numpy, (places, back, offsets)))


def rows_to_nested(values: Tensor, offsets: Tensor) -> Tensor:
    """[rows, ...] to a jagged NestedTensor over the same memory."""
    return torch.nested.nested_tensor_from_jagged(values, offsets=beside(offsets, values))


def jagged(nested: Any) -> Any:
    """A jagged NestedTensor [sequences, ragged, ...], or an error."""
    where = "LoDTensor.from_nested"
    if not isinstance(nested, Tensor) or not nested.is_nested:
        raise LoDError(
            f"{where} takes a NestedTensor",
            got=brief(nested),
            remedy="LoDTensor.from_padded(padded, lengths) of a tensor, from_sequences of a list",
        )
    if nested.layout != torch.jagged:
        raise LoDError(
            f"{where} takes a NestedTensor of jagged layout",
            got=str(nested.layout),
            remedy="make it with torch.nested.nested_tensor(..., layout=torch.jagged)",
        )
    found: Any = nested
    if found._ragged_idx != 1:  # what Dynamo says of the type of a size is no help
        raise LoDError(
            f"{where}: the ragged dimension must be dimension 1",
            got=f"shape {nested.shape}",
            remedy="transpose it there first",
        )
    return found


def nested_to_rows(nested: Any) -> tuple[Tensor, Tensor]:
    """A jagged NestedTensor [sequences, ragged, ...] to rows and lengths; no copy, unless it has holes."""
    values, held = nested.values(), nested.lengths()
    offsets = integers(nested.offsets(), "LoDTensor.from_nested: 'offsets'")
    lengths = offsets.diff() if held is None else integers(held, "LoDTensor.from_nested: 'lengths'")
    if held is None and int(offsets[0]) == 0 and int(offsets[-1]) == values.shape[0]:
        return values, lengths
    rows = ranges(offsets[:-1], lengths)
    return values.index_select(0, beside(rows, values)), lengths


def check_fill(value: float, dtype: torch.dtype, what: str) -> None:
    """Refuse to fill with no number, or with one that integers cannot hold, which torch.full would cut."""
    if not isinstance(value, (int, float, complex, np.number, np.bool_, torch.SymInt, torch.SymFloat)):
        raise LoDError(f"{what} must be a number", got=brief(value), remedy="value.item() of a tensor")
    if isinstance(value, (int, np.integer)) and int(value).bit_length() > 63:
        raise LoDError(f"{what} is beyond 64 bits", got=value, remedy=f"float({value})")
    if isinstance(value, (complex, np.complexfloating)) and not dtype.is_complex:
        raise LoDError(f"{what} must be a value of {dtype}", got=value, expected="a real number")
    most = torch.finfo(torch.float32).max  # more is infinite in what is narrower, but for torch an error
    real = dtype.to_real() if dtype.is_complex else dtype
    wide = real == torch.float64 or not real.is_floating_point
    if not wide and isinstance(value, float) and most < abs(value) < math.inf:
        raise LoDError(f"{what} is beyond {dtype}", got=value, expected=f"up to {most}, or math.inf")
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        if not (low <= value <= high and value == int(value)):
            raise LoDError(
                f"{what} must be a value of {dtype}", got=value, expected=f"a whole number, {low} to {high}"
            )


def pack_like(packed: PackedSequence, rows: Tensor, at: Packing | None = None) -> PackedSequence:
    """Rows in the order of the batch, sequence after sequence, to the places `packed` has them in.

    The inverse of `packed_to_rows`, which gives `at`; the result keeps the sort order of `packed`.
    """
    if in_graph.is_followed():
        data = in_graph.packed_like(packed, rows)
    else:
        at = at or _packing(packed)
        data = permute_rows(rows, at.back, at.places)
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
