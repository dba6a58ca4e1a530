"""Operations on the sequences of the last level: pool, softmax, expand, concat, reverse, slice, mask.

All are differentiable, defined on empty sequences and on a batch of none, cost O(rows), and have no Python
loop over sequences.

Source: the sequence_* operators of Paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from stepnet.data import in_graph
from stepnet.data.arguments import brief, check_dense, size, whole
from stepnet.data.convert import check_fill
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import beside, outside_modes
from stepnet.data.offsets import LoD, check_lengths, integers, offsets_of, owners, ranges
from stepnet.data.recording import AS_A_LAYER, StandIn, recorded_in_frames
from stepnet.errors import LoDError
from stepnet.watchers import SEQUENCES, said

Pooling = Literal["sum", "mean", "sqrt", "max", "first", "last"]

# What sees parts of sequences at a time is told of what takes them for whole ones: its name, the sequences.
WHOLE: ContextVar[Callable[[str, LoDTensor], None] | None] = ContextVar("what sees parts", default=None)


@recorded_in_frames()
def sequence_pool(x: LoDTensor, pooling: Pooling, pad_value: float = 0) -> Any:  # 0.0: Dynamo begins anew
    """One entry per sequence of the last level, which goes: a LoDTensor of one level less, or a tensor.

    ``pooling``: "sum", "mean", "sqrt" (the sum over the square root of the length), "max", "first", "last".
    Values [rows, ...] give [sequences, ...]. An empty sequence gives ``pad_value``, and passes no gradient.

    Where several rows hold the maximum, its gradient is shared equally among them, as in ``torch.amax``. Sums
    of float16 and bfloat16 are carried in float32; sums of integers are int64, as in ``torch.sum``.

    Raises LoDError for an unknown pooling, a mean of integers, or a pad_value that the dtype cannot hold.

    >>> x = LoDTensor(torch.tensor([1.0, 2.0, 6.0]), [[0, 2, 2, 3]])
    >>> sequence_pool(x, "mean")
    tensor([1.5000, 0.0000, 6.0000])
    >>> sequence_pool(x, "last", pad_value=-1.0)
    tensor([ 2., -1.,  6.])
    """
    _check_ragged(x, "sequence_pool")
    if not isinstance(pooling, str) or pooling not in get_args(Pooling):
        raise LoDError(
            "sequence_pool: no such pooling", got=brief(pooling), expected=", ".join(get_args(Pooling))
        )
    if in_graph.is_exported():
        (pooled,) = in_graph.call("pool", [x.values], [x.structure], pooling, pad_value)
        levels = x.structure.levels[:-1]
        return LoDTensor.of(pooled, LoD.trusted(levels, pooled.shape[0])) if levels else pooled
    instead = said(SEQUENCES)
    if instead is not None:
        pooled = instead(pooling, x, x.values, pad_value)
    elif pooling in ("first", "last"):
        pooled = _end_rows(x, pooling, pad_value)
    elif pooling == "max":
        check_fill(pad_value, x.dtype, "sequence_pool: 'pad_value'")
        out = x.values.new_full((len(x.structure.levels[-1]) - 1, *x.shape[1:]), pad_value)
        pooled = out.scatter_reduce(0, _owner_index(x, x.values), x.values, "amax", include_self=False)
    else:
        pooled = _sums(x, pooling, pad_value)
    levels = x.structure.levels[:-1]
    return LoDTensor.of(pooled, LoD.trusted(levels, pooled.shape[0])) if levels else pooled


@recorded_in_frames()
def sequence_softmax(x: LoDTensor) -> LoDTensor:
    """Softmax over the rows of each sequence of x, for every feature apart.

    The same LoD and shape. float16 and bfloat16 are computed in float32. Raises LoDError for integers.

    >>> sequence_softmax(LoDTensor(torch.zeros(3), [[0, 2, 2, 3]])).values
    tensor([0.5000, 0.5000, 1.0000])
    """
    _check_ragged(x, "sequence_softmax")
    if not x.dtype.is_floating_point:
        raise LoDError("sequence_softmax takes floating point values", got=x.dtype, remedy="x.float()")
    if in_graph.is_exported():
        return LoDTensor.of(in_graph.call("softmax", [x.values], [x.structure])[0], x.structure)
    instead = said(SEQUENCES)
    if instead is not None:
        return x.with_values(instead("softmax", x, x.values, 0.0))
    rows = _wide(x.values)
    index = _owner_index(x, rows)
    none = rows.new_zeros(len(x.structure.levels[-1]) - 1, *x.shape[1:])
    # The largest is taken off for range only: it does not change the result, so it needs no gradient.
    largest = none.scatter_reduce(0, index, rows.detach(), "amax", include_self=False)
    powers = (rows - largest.gather(0, index)).exp()
    sums = none.scatter_add(0, index, powers)
    return LoDTensor.of((powers / sums.gather(0, index)).to(x.dtype), x.structure)


@recorded_in_frames()
def sequence_expand(x: Tensor | LoDTensor, y: LoDTensor, ref_level: int = -1) -> LoDTensor:
    """Repeat entry i of x as often as sequence i of y (at level ``ref_level``) is long.

    A tensor x [sequences, ...] gives a LoDTensor with a row per element of that level of y: its LoD is that
    of y down to ``ref_level`` (all of y's, for the last level). A LoDTensor x repeats its
    outermost sequences as a whole, and the result has as many levels as x.

    Raises LoDError when x does not have one entry per sequence.

    >>> y = LoDTensor(torch.zeros(5), [[0, 2, 2, 5]])
    >>> sequence_expand(torch.tensor([10, 20, 30]), y)
    LoDTensor(3 sequences, lengths [[2, 0, 3]], values [5] int64)
    >>> sequence_expand(torch.tensor([10, 20, 30]), y).values
    tensor([10, 10, 30, 30, 30])
    """
    _check_ragged(y, "sequence_expand", "y")
    ref_level = whole("sequence_expand: 'ref_level'", ref_level, error=LoDError)
    last = ref_level in (-1, y.lod_level - 1)
    if in_graph.is_exported() or (in_graph.is_followed() and not (last and isinstance(x, Tensor))):
        return _expanded_in_graph(x, y, ref_level)
    instead = said(SEQUENCES)
    if instead is not None and isinstance(x, Tensor) and last:
        return y.with_values(instead("expand", y, x, 0.0))
    lengths = y.lengths(ref_level)
    if not isinstance(x, (Tensor, LoDTensor)) or x.ndim == 0:
        raise LoDError(
            "sequence_expand: 'x' must be a tensor [sequences, ...] or a LoDTensor",
            got=brief(x),
            remedy="torch.as_tensor(x), an entry for each sequence",
        )
    if isinstance(x, Tensor):
        check_dense("sequence_expand: 'x'", x, LoDError)
    entries = len(x)
    if entries != len(lengths):
        remedy = None
        if isinstance(x, LoDTensor) and x.shape[0] == len(lengths):
            remedy = "its rows would fit: pass x.values"
        raise LoDError(
            f"sequence_expand: 'x' must have one entry per sequence of 'y' at level {ref_level}",
            got=f"{entries} {'sequences' if isinstance(x, LoDTensor) else 'rows'}",
            expected=len(lengths),
            remedy=remedy,
        )
    repeats = y.structure.owner() if last else owners(lengths, sum(lengths.tolist()))
    if isinstance(x, LoDTensor):
        return x.select_sequences(repeats)
    levels = y.structure.levels[: ref_level % y.lod_level + 1]
    lod = y.structure if len(levels) == y.lod_level else LoD.trusted(levels, len(repeats))
    return LoDTensor.of(x.index_select(0, beside(repeats, x)), lod)


def _expanded_in_graph(x: Tensor | LoDTensor, y: LoDTensor, ref_level: int) -> LoDTensor:
    # under dynamic=True a number around a function is one that the graph leaves open: here it is one of a few
    ref_level = next((k for k in range(-y.lod_level, y.lod_level) if k == ref_level), ref_level)
    if isinstance(x, LoDTensor):
        values, *levels = in_graph.call("repeat", [x.values, y.values], [x.structure, y.structure], ref_level)
        return LoDTensor.of(values, LoD.trusted(tuple(levels), values.shape[0]))
    (values,) = in_graph.call("expand", [x, y.values], [y.structure], ref_level)
    levels = y.structure.levels[: ref_level % y.lod_level + 1]
    lod = y.structure if len(levels) == y.lod_level else LoD.trusted(levels, values.shape[0])
    return LoDTensor.of(values, lod)


@recorded_in_frames()
def sequence_concat(xs: Sequence[LoDTensor]) -> LoDTensor:
    """Join sequence i of every LoDTensor of `xs` in turn, for each i of the last level.

    The levels above the last must be equal. Raises LoDError when they are not, or the rows differ in shape.

    >>> a = LoDTensor(torch.tensor([1, 2, 3]), [[0, 2, 3]])
    >>> b = LoDTensor(torch.tensor([7, 8]), [[0, 0, 2]])
    >>> sequence_concat([a, b])
    LoDTensor(2 sequences, lengths [[2, 3]], values [5] int64)
    >>> sequence_concat([a, b]).values
    tensor([1, 2, 3, 7, 8])
    """
    if not isinstance(xs, (list, tuple)) or not xs:
        raise LoDError(
            "sequence_concat takes a list of LoDTensors", got=brief(xs), remedy="sequence_concat([x, y])"
        )
    for i, x in enumerate(xs):
        _check_ragged(x, "sequence_concat", f"[{i}]")
    first = xs[0]
    _ask_whole("concat", first)
    if in_graph.is_followed():
        values, last = in_graph.call("concat", [x.values for x in xs], [x.structure for x in xs])
        return LoDTensor.of(values, LoD.trusted((*first.structure.levels[:-1], last), values.shape[0]))
    for i, x in enumerate(xs[1:], 1):
        _check_joins(first, x, i)
    lod, rows = _concat([x.structure for x in xs])
    values = torch.cat([x.values for x in xs])
    return LoDTensor.of(values.index_select(0, beside(rows, values)), lod)


@outside_modes
def _concat(lods: list[LoD]) -> tuple[LoD, Tensor]:
    # [sequences, inputs]: read row by row, these are the pieces in the order in which they are joined.
    lengths = torch.stack([lod.lengths() for lod in lods], dim=1)
    bases = offsets_of(torch.tensor([lod.rows for lod in lods], dtype=torch.int64))
    starts = torch.stack([lod.levels[-1][:-1] + bases[i] for i, lod in enumerate(lods)], dim=1)
    rows = ranges(starts.flatten(), lengths.flatten())
    return LoD.trusted((*lods[0].levels[:-1], offsets_of(lengths.sum(1))), len(rows)), rows


@recorded_in_frames()
def sequence_reverse(x: LoDTensor) -> LoDTensor:
    """Every sequence of the last level from its last row to its first; the LoD stays. LoDError if x has none.

    >>> sequence_reverse(LoDTensor(torch.tensor([1, 2, 3, 4]), [[0, 3, 3, 4]])).values
    tensor([3, 2, 1, 4])
    """
    _check_ragged(x, "sequence_reverse")
    if in_graph.is_exported():
        return LoDTensor.of(in_graph.call("reverse", [x.values], [x.structure])[0], x.structure)
    instead = said(SEQUENCES)
    if instead is not None:
        return x.with_values(instead("reverse", x, x.values, 0.0))
    return LoDTensor.of(x.values.index_select(0, beside(_mirrored(x.structure), x.values)), x.structure)


@outside_modes
def _mirrored(lod: LoD) -> Tensor:
    offsets = lod.levels[-1]
    return (offsets[:-1] + offsets[1:] - 1)[lod.owner()] - torch.arange(lod.rows)


@recorded_in_frames()
def sequence_slice(x: LoDTensor, offset: Any, length: Any) -> LoDTensor:
    """Rows ``offset[i]`` to ``offset[i] + length[i]`` of every sequence i of the last level.

    ``offset`` and ``length`` are lists or integer tensors with one entry per sequence. Raises LoDError,
    naming the first sequence where they do not fit.

    >>> x = LoDTensor(torch.tensor([1, 2, 3, 4, 5]), [[0, 3, 5]])
    >>> sequence_slice(x, [1, 0], [2, 1])
    LoDTensor(2 sequences, lengths [[2, 1]], values [3] int64)
    >>> sequence_slice(x, [1, 0], [2, 1]).values
    tensor([2, 3, 4])
    """
    _check_ragged(x, "sequence_slice")
    _ask_whole("slice", x)
    if in_graph.is_followed():
        values, last = in_graph.call("slice", [_numbers(offset), _numbers(length), x.values], [x.structure])
        return LoDTensor.of(values, LoD.trusted((*x.structure.levels[:-1], last), values.shape[0]))
    lod, rows = _sliced(x.structure, offset, length)
    return LoDTensor.of(x.values.index_select(0, beside(rows, x.values)), lod)


@outside_modes
def _sliced(lod: LoD, offset: Any, length: Any) -> tuple[LoD, Tensor]:
    held = lod.lengths()
    begin = integers(offset, "sequence_slice: 'offset'")
    count = integers(length, "sequence_slice: 'length'")
    for name, given in (("offset", begin), ("length", count)):
        if len(given) != len(held):
            raise LoDError(
                f"sequence_slice: '{name}' must have one entry per sequence",
                got=len(given),
                expected=len(held),
            )
    # Written as a difference, so that huge numbers cannot wrap around.
    wrong = (begin < 0) | (count < 0) | (begin > held) | (count > held - begin)
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise LoDError(
            f"sequence_slice: the slice of sequence {i} does not lie in it",
            got=f"offset {int(begin[i])}, length {int(count[i])}",
            expected=f"both at least 0, and together at most its length, {int(held[i])}",
        )
    rows = ranges(lod.levels[-1][:-1] + begin, count)
    return LoD.trusted((*lod.levels[:-1], offsets_of(count)), len(rows)), rows


@recorded_in_frames()
def sequence_mask(lengths: Any, maxlen: int | None = None) -> Tensor:
    """[n] lengths to a bool mask [n, maxlen]: True at step t of sequence i where t < lengths[i].

    ``maxlen`` is the longest length unless given; a shorter one cuts. The mask is where ``lengths`` are.

    Raises LoDError for negative lengths or maxlen.

    >>> sequence_mask(torch.tensor([2, 0, 3]))
    tensor([[ True,  True, False],
            [False, False, False],
            [ True,  True,  True]])
    """
    if maxlen is not None:
        maxlen = size("sequence_mask: 'maxlen'", maxlen, 0, error=LoDError)
    if in_graph.is_followed():
        (mask,) = in_graph.call("mask", [_numbers(lengths)], [], sizes=[] if maxlen is None else [maxlen])
        return mask
    own = integers(lengths, "sequence_mask: 'lengths'")
    check_lengths(own, "sequence_mask: 'lengths'")
    if maxlen is None:
        longest = max(own.tolist(), default=0)
        maxlen = size("sequence_mask: the longest of 'lengths'", longest, 0, error=LoDError)
    device = lengths.device if isinstance(lengths, Tensor) else torch.device("cpu")
    return torch.arange(maxlen, device=device) < own.to(device, copy=True).unsqueeze(1)


def _numbers(given: Any) -> Tensor:
    """A list of integers as a tensor of a graph, which checks them as it runs."""
    return given if isinstance(given, Tensor) else torch.tensor(given, dtype=torch.int64, device="cpu")


def _ask_whole(name: str, x: LoDTensor) -> None:
    """Let what sees parts of sequences refuse that these are taken for whole ones."""
    if (ask := said(WHOLE)) is not None:
        ask(name, x)


def _check_ragged(x: Any, function: str, name: str = "x") -> None:
    if not isinstance(x, LoDTensor):
        raise LoDError(
            f"{function}: '{name}' must be a LoDTensor",
            got=brief(x),
            remedy=AS_A_LAYER
            if isinstance(x, StandIn)
            else "LoDTensor.from_lengths, from_padded and from_sequences make one",
        )


def _check_joins(a: LoDTensor, b: LoDTensor, i: int) -> None:
    if a.lod_level != b.lod_level or len(a.structure.levels[-1]) != len(b.structure.levels[-1]):
        difference = a.structure.difference(b.structure)
    elif a.lod_level > 1:
        difference = LoD.trusted(a.structure.levels[:-1]).difference(LoD.trusted(b.structure.levels[:-1]))
    else:
        difference = "none"
    if difference != "none":
        raise LoDError(
            f"sequence_concat: [0] and [{i}] must be alike in all levels above the last",
            got=f"{difference}; lengths {a.structure.show()} and {b.structure.show()}",
            remedy="LoDTensor.cat joins batches one after the other; x.drop_levels() leaves out outer levels",
        )
    if a.shape[1:] != b.shape[1:]:
        raise LoDError(
            f"sequence_concat: [0] and [{i}] must have rows of one shape",
            got=f"{list(a.shape[1:])} and {list(b.shape[1:])}",
            remedy="torch.cat([a, b], dim=-1) joins features",
        )


def _wide(values: Tensor) -> Tensor:
    """float16 and bfloat16 as float32: a long sum in either is lost to rounding."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _owner_index(x: LoDTensor, rows: Tensor) -> Tensor:
    """The sequence of every row, as an index of the shape of the rows (a view)."""
    owner = beside(x.structure.owner(), rows)
    return owner.view(-1, *(1,) * (rows.ndim - 1)).expand(rows.shape)


def _end_rows(x: LoDTensor, which: str, pad_value: float) -> Tensor:
    check_fill(pad_value, x.dtype, "sequence_pool: 'pad_value'")
    if torch.compiler.is_dynamo_compiling():
        return _end_rows_in_graph(x, which, pad_value)
    full, rows = (beside(places, x.values) for places in _ends(x.structure, which))
    ends, sequences = x.values.index_select(0, rows), len(x.structure.levels[-1]) - 1
    if len(full) == sequences:
        return ends
    return x.values.new_full((sequences, *x.shape[1:]), pad_value).index_copy(0, full, ends)


def _end_rows_in_graph(x: LoDTensor, which: str, pad_value: float) -> Tensor:
    """Without sizes that no graph knows: an empty sequence takes a row, and leaves it."""
    offsets = beside(x.structure.levels[-1], x.values)
    rows = offsets[:-1] if which == "first" else offsets[1:] - 1
    held = torch.cat([x.values, x.values.new_zeros(1, *x.shape[1:])])
    ends = held.index_select(0, rows.clamp(min=0))
    empty = (offsets.diff() == 0).view(-1, *(1,) * (x.ndim - 1))
    return ends.masked_fill(empty, pad_value)


@outside_modes
def _ends(lod: LoD, which: str) -> tuple[Tensor, Tensor]:
    """The sequences that hold rows, and the first or last one of each."""
    offsets = lod.levels[-1]
    full = lod.lengths().nonzero()[:, 0]
    return full, offsets[full] if which == "first" else offsets[full + 1] - 1


def _sums(x: LoDTensor, pooling: str, pad_value: float) -> Tensor:
    rows, lengths = _wide(x.values), x.structure.lengths()
    integral = not (rows.is_floating_point() or rows.is_complex())
    if integral and pooling != "sum":
        raise LoDError(
            f"sequence_pool: '{pooling}' takes floating point values", got=x.dtype, remedy="x.float()"
        )
    if integral:
        rows = rows.long()
    out_dtype = rows.dtype if integral else x.dtype
    check_fill(pad_value, out_dtype, "sequence_pool: 'pad_value'")
    sums = rows.new_zeros(len(lengths), *x.shape[1:]).scatter_add(0, _owner_index(x, rows), rows)
    counts = beside(lengths, x.values).view(-1, *(1,) * (rows.ndim - 1))
    if pooling != "sum":
        divisor = counts.clamp(min=1).to(rows.dtype)
        sums = sums / (divisor if pooling == "mean" else divisor.sqrt())
    if pad_value != 0:
        sums = sums.masked_fill(counts == 0, pad_value)
    return sums.to(out_dtype)
