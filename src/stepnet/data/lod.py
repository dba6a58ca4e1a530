"""LoDTensor: a batch of ragged, possibly nested sequences as one table of rows and its offsets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final, overload
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data import convert, in_graph, pieces, pytree
from stepnet.data.arguments import brief, function, truth, whole
from stepnet.data.display import html
from stepnet.data.dtypes import dtype_name
from stepnet.data.fits import are_rows, check_values
from stepnet.data.modes import beside
from stepnet.data.no_index import no_index
from stepnet.data.offsets import LENGTHS, LoD, in_program, integers
from stepnet.data.row_wise import RowWise
from stepnet.errors import FrozenError, LoDError, LoDIndexError, RowMixError
from stepnet.watchers import said

from .recording import recorded_in_frames
from .tables import Tabular

_TO_BE_FILLED: WeakValueDictionary[int, Any] = WeakValueDictionary()


@dataclass
class _Fields:
    values: Tensor
    lod: tuple[Tensor, ...]


@final
class LoDTensor(RowWise, Tabular):
    """Rows of all sequences one after the other, and the nested offsets that cut them into sequences.

    ``values`` is [rows, ...]; ``lod`` is a list of offsets per level, outermost level first. A level of n
    sequences has n + 1 offsets: it starts at 0, never falls, and ends at the number of sequences of the next
    level (the last level: at the number of rows). Sequences of any level may be empty, and so may the batch.

    The structure never changes: attributes cannot be set, and the offsets are copies of what was passed. The
    offsets are int64 and stay on the CPU; the values may be on any device and may require grad.

    ``x[i]`` is sequence i of the outermost level (a tensor when there is one level, otherwise a LoDTensor of
    one level less), ``x[i:j]`` a LoDTensor. Torch functions that treat every row alike give a LoDTensor of
    the same LoD; those that would mix rows raise RowMixError.

    A pytree node whose one leaf is ``values``. ``torch.save`` and ``torch.load`` (weights_only too) work.

    Raises LoDError when the offsets do not describe the rows, naming level, index and values.

    Source: Paddle's "Design for TensorArray" (2017), its LoDTensor.

    >>> x = LoDTensor(torch.arange(9.0), [[0, 2, 3], [0, 3, 5, 9]])
    >>> x
    LoDTensor(2 sequences, lengths [[2, 1], [3, 2, 4]], values [9] float32)
    >>> x[0]
    LoDTensor(2 sequences, lengths [[3, 2]], values [5] float32)
    >>> x[0][1]
    tensor([3., 4.])
    >>> torch.relu(x - 7).values
    tensor([0., 0., 0., 0., 0., 0., 0., 0., 1.])
    """

    __slots__ = ("__weakref__", "_values", "structure")

    _values: Tensor
    structure: LoD  # what tensors that are cut alike share
    # DistributedDataParallel and fully_shard look for tensors in dataclasses, not in pytrees.
    __dataclass_fields__: ClassVar[Any] = _Fields.__dataclass_fields__
    __dataclass_params__: ClassVar[Any] = vars(_Fields)["__dataclass_params__"]

    def __init__(self, values: Tensor, lod: Sequence[Any]) -> None:
        levels = in_graph.levels_of(lod)
        if levels is not None:
            structure = in_graph.structure("offsets", levels, values.shape[0])
        else:
            structure = LoD(lod)
        check_values(values, structure)
        self._fill(values, structure)

    def _fill(self, values: Any, lod: LoD) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "structure", lod)

    @staticmethod
    def of(values: Any, lod: LoD) -> LoDTensor:
        """Values and a structure that is known to fit them; neither is checked, as `with_values` does."""
        x = object.__new__(LoDTensor)
        x._fill(values, lod)
        return x

    def __setattr__(self, name: str, value: object) -> None:
        if _TO_BE_FILLED.get(id(self)) is self and name in ("values", "lod"):
            return self._refill(name, value)
        raise FrozenError(
            f"a LoDTensor is immutable: cannot set '{name}'",
            remedy="x.with_values(v) gives a new one with the same LoD",
        )

    def _refill(self, name: str, value: Any) -> None:
        """Set a field of a copy that is made field by field; it is checked with the last one."""
        if name == "values":
            object.__setattr__(self, "_values", value)
        else:
            del _TO_BE_FILLED[id(self)]
            self.__init__(self._values, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenError(f"a LoDTensor is immutable: cannot delete '{name}'", remedy="del x, for all of it")

    # Ways in

    @staticmethod
    @recorded_in_frames()
    def from_lengths(values: Tensor, lengths: Sequence[Any]) -> LoDTensor:
        """Rows, and the lengths of every level, outermost first (Paddle's recursive sequence lengths).

        Raises LoDError when lengths are negative or do not add up.

        >>> LoDTensor.from_lengths(torch.zeros(9, 4), [[2, 1], [3, 2, 4]]).lod
        (tensor([0, 2, 3]), tensor([0, 3, 5, 9]))
        """
        levels = in_graph.levels_of(lengths)
        if levels is not None:
            structure = in_graph.structure("lengths", levels, values.shape[0])
        else:
            structure = LoD.from_lengths(lengths)
        check_values(values, structure, lengths=True)
        return LoDTensor.of(values, structure)

    @staticmethod
    @recorded_in_frames()
    def from_sequences(sequences: Iterable[Any]) -> LoDTensor:
        """A list of [length, ...] tensors, or lists of such lists: one level per depth. Differentiable.

        Numpy arrays are taken as tensors, and a list of plain numbers as one of shape [length]; any iterable,
        as the column of a table, is taken as a list. All lists of numbers are of one dtype: int64 if all are
        whole, else ``torch.get_default_dtype()``.

        Rows must agree in shape, dtype and device. A list with no tensor in it gives values of shape [0]:
        where the row shape matters, write ``LoDTensor(torch.empty(0, features), [[0]])``.

        Raises LoDError naming the sequence that does not fit.

        >>> LoDTensor.from_sequences([[torch.zeros(3), torch.zeros(2)], [torch.zeros(4)]])
        LoDTensor(2 sequences, lengths [[2, 1], [3, 2, 4]], values [9] float32)
        >>> LoDTensor.from_sequences([[1, 2], [], [3]])
        LoDTensor(3 sequences, lengths [[2, 0, 1]], values [3] int64)
        """
        if in_graph.is_followed() and are_rows(sequences):
            return LoDTensor.of(*in_graph.joined(sequences))
        values, lengths = convert.join_sequences(sequences)
        return LoDTensor.of(values, LoD.from_lengths(lengths))

    @staticmethod
    @recorded_in_frames()
    def from_padded(padded: Tensor, lengths: Any, batch_first: bool = True) -> LoDTensor:
        """[sequences, longest, ...] and [sequences] lengths to one level. Differentiable.

        With ``batch_first=False`` padded is [longest, sequences, ...]. Raises LoDError for lengths that are
        not one per sequence, or not 0 to longest.

        >>> LoDTensor.from_padded(torch.tensor([[1, 2, 0], [3, 0, 0]]), [2, 1]).values
        tensor([1, 2, 3])
        """
        levels = in_graph.levels_of([lengths])
        if levels is not None:
            values, offsets = in_graph.call("unpad", [padded, *levels], [], batch_first)
            return LoDTensor.of(values, LoD.trusted((offsets,), values.shape[0]))
        values, lengths = convert.padded_to_rows(padded, lengths, batch_first)
        return LoDTensor.of(values, LoD.from_lengths([lengths]))

    @staticmethod
    def from_packed(packed: PackedSequence) -> LoDTensor:
        """A PackedSequence to one level, in the order of its batch (not its sorted one). Differentiable.

        >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(1), torch.zeros(2)], enforce_sorted=False)
        >>> LoDTensor.from_packed(packed).recursive_sequence_lengths()
        [[1, 2]]
        """
        values, offsets, _ = convert.packed_to_rows(packed)
        return LoDTensor.of(values, LoD.trusted((offsets,), values.shape[0]))

    @staticmethod
    def from_nested(nested: Tensor) -> LoDTensor:
        """A NestedTensor of jagged layout, [sequences, ragged, ...], to one level. Differentiable.

        No copy is made, unless the NestedTensor has holes. Raises LoDError for what is no such tensor.

        >>> nested = torch.nested.nested_tensor([torch.ones(1), torch.zeros(2)], layout=torch.jagged)
        >>> LoDTensor.from_nested(nested).recursive_sequence_lengths()
        [[1, 2]]
        """
        jagged = convert.jagged(nested)
        if in_graph.is_followed() and jagged.lengths() is None:
            in_graph.check_whole(jagged.values(), jagged.offsets())
            return LoDTensor(jagged.values(), [jagged.offsets()])
        values, lengths = convert.nested_to_rows(jagged)
        return LoDTensor.of(values, LoD.from_lengths([lengths]))

    @staticmethod
    @recorded_in_frames()
    def cat(batches: Sequence[LoDTensor]) -> LoDTensor:
        """The sequences of several batches, one batch after the other. Differentiable.

        Raises LoDError for no batches, and for batches that differ in levels, row shape, dtype or device.

        >>> LoDTensor.cat([LoDTensor(torch.zeros(3), [[0, 2, 3]]), LoDTensor(torch.ones(4), [[0, 4]])])
        LoDTensor(3 sequences, lengths [[2, 1, 4]], values [7] float32)
        """
        _check_batches(batches)
        lod = pieces.one_after_the_other([x.structure for x in batches])
        return LoDTensor.of(torch.cat([x._values for x in batches]), lod)

    # Ways out, of the sequences of the last level

    def to_padded(self, padding_value: float = 0, batch_first: bool = True) -> tuple[Tensor, Tensor]:
        """(padded, lengths): [sequences, longest, ...] and int64 [sequences] on the CPU. Differentiable.

        The sequences are those of the last level. ``batch_first=False`` gives [longest, sequences, ...].

        >>> LoDTensor(torch.tensor([1, 2, 3]), [[0, 2, 3]]).to_padded()
        (tensor([[1, 2],
                [3, 0]]), tensor([2, 1]))
        """
        lengths = self.structure.lengths()
        if in_graph.is_followed():
            how = padding_value, batch_first
            return in_graph.call("pad", [self._values], [self.structure], *how)[0], lengths
        return convert.rows_to_padded(self._values, lengths, padding_value, batch_first), lengths

    def to_packed(self) -> PackedSequence:
        """The sequences of the last level as a PackedSequence. Differentiable.

        Raises LoDError when a sequence is empty, which a PackedSequence cannot hold.

        >>> LoDTensor(torch.tensor([1, 2, 3]), [[0, 1, 3]]).to_packed().data
        tensor([2, 1, 3])
        """
        return convert.rows_to_packed(self._values, self.structure.lengths())

    def to_nested(self) -> Tensor:
        """The sequences of the last level as a jagged NestedTensor over the same memory. Differentiable.

        >>> LoDTensor(torch.zeros(3, 4), [[0, 1, 3]]).to_nested().is_nested
        True
        """
        return convert.rows_to_nested(self._values, self.structure.handed_out())

    # Structure

    @property
    def values(self) -> Tensor:
        """The rows of all sequences, [rows, ...]."""
        return self._values

    @property
    def lod(self) -> tuple[Tensor, ...]:
        """Offsets per level, outermost first: int64 on the CPU. Copies: writing to them changes nothing."""
        return self.structure.copies()

    @property
    def lod_level(self) -> int:
        """How many levels of sequences."""
        return self.structure.lod_level

    def lengths(self, level: int = -1) -> Tensor:
        """Lengths of the sequences of one level, in elements of that level: int64 on the CPU. Raises
        LoDError where there is no such level.

        >>> LoDTensor(torch.zeros(9), [[0, 2, 3], [0, 3, 5, 9]]).lengths()
        tensor([3, 2, 4])
        """
        self.check_level(level, "LoDTensor.lengths")
        answer = said(LENGTHS)
        return self.structure.lengths(level) if answer is None else answer(self.structure.levels[level])

    def check_level(self, level: int, where: str) -> None:
        """Refuse a level that there is not, with a LoDError that begins with `where`."""
        if not -self.lod_level <= whole(f"{where}: 'level'", level, error=LoDError) < self.lod_level:
            raise LoDError(
                f"{where}: no such level",
                got=level,
                expected=f"{-self.lod_level} to {self.lod_level - 1}, as it has {self.lod_level}",
            )

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Lengths of every level, outermost first.

        >>> LoDTensor(torch.zeros(9), [[0, 2, 3], [0, 3, 5, 9]]).recursive_sequence_lengths()
        [[2, 1], [3, 2, 4]]
        """
        return self.structure.lists()

    def __len__(self) -> int:
        """Sequences of the outermost level."""
        return len(self.structure)

    def __bool__(self) -> bool:
        raise LoDError("the truth of a LoDTensor is ambiguous", remedy="len(x) > 0, or x.values.any()")

    def __contains__(self, value: Any) -> bool:
        raise LoDError("whether a LoDTensor holds something is ambiguous", remedy="(x.values == v).any()")

    @overload
    def __getitem__(self, index: slice) -> LoDTensor: ...

    @overload
    def __getitem__(self, index: Any) -> Any: ...

    def __getitem__(self, index: Any) -> Any:
        """Sequence ``index`` of the outermost level, or those of a slice."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.select_sequences(list(range(start, stop, step)))
            levels, first, last = self.structure.span(start, max(start, stop))
            return LoDTensor.of(self._values[first:last], LoD.trusted(levels, last - first))
        place = _place(index, len(self))
        levels, first, last = self.structure.span(place, place + 1)
        return self._below(levels, self._values[first:last])

    def __iter__(self) -> Iterator[Any]:
        # One split: indexing n times would make the backward pass quadratic.
        for i, rows in enumerate(self._values.split(self.structure.row_counts())):
            yield self._below(self.structure.span(i, i + 1)[0], rows)

    @staticmethod
    def _below(levels: tuple[Tensor, ...], rows: Tensor) -> Any:
        return LoDTensor.of(rows, LoD.trusted(levels[1:], len(rows))) if len(levels) > 1 else rows

    def select_sequences(self, indices: Any) -> LoDTensor:
        """The sequences of the outermost level at ``indices`` (integers, repeats allowed), in that order.

        Paddle's reorder_lod_tensor_by_rank, for any order. Differentiable. Raises LoDError for an index that
        is not 0 to n - 1.

        >>> LoDTensor(torch.arange(6), [[0, 3, 3, 6]]).select_sequences([2, 1])
        LoDTensor(2 sequences, lengths [[3, 0]], values [3] int64)
        """
        chosen = integers(indices, "LoDTensor.select_sequences: 'indices'")
        i = self.structure.missing(chosen)
        if i is not None:
            raise LoDIndexError(
                "LoDTensor.select_sequences: no such sequence",
                got=f"{int(chosen[i])} at index {i}",
                expected=f"0 to {len(self) - 1}" if len(self) else "none, as there are no sequences",
            )
        lod, rows = self.structure.take(chosen)
        return LoDTensor.of(self._values.index_select(0, beside(rows, self._values)), lod)

    def drop_levels(self, count: int = 1) -> LoDTensor:
        """The sequences of an inner level as a batch of their own: the ``count`` outermost levels go.

        The same rows. Raises LoDError unless a level is left.

        >>> LoDTensor(torch.zeros(9), [[0, 2, 3], [0, 3, 5, 9]]).drop_levels()
        LoDTensor(3 sequences, lengths [[3, 2, 4]], values [9] float32)
        """
        if not 0 <= whole("LoDTensor.drop_levels: 'count'", count, error=LoDError) < self.lod_level:
            raise LoDError(
                "LoDTensor.drop_levels: a level must be left",
                got=repr(count),
                expected=f"0 to {self.lod_level - 1}, as it has {self.lod_level}",
                remedy="x.values has the rows alone",
            )
        return LoDTensor.of(self._values, LoD.trusted(self.structure.levels[count:], self.structure.rows))

    def split_at(self, marks: Any, after: bool = False) -> LoDTensor:
        """Cut the sequences of the last level before each marked row: one level more, of their pieces.

        ``marks`` holds a truth value per row: a tensor, or a LoDTensor of the same LoD. Marks of first rows
        (torchrl's ``is_init``) cut before, marks of last rows (gym's ``done``) with ``after=True``. The same
        rows; no piece is empty, and `join_pieces` undoes it. Raises LoDError for other marks.

        >>> x = LoDTensor(torch.arange(5), [[0, 3, 5]])
        >>> x.split_at([False, True, False, True, False])
        LoDTensor(2 sequences, lengths [[2, 1], [1, 2, 2]], values [5] int64)
        """
        what = "LoDTensor.split_at: 'marks'"
        after = truth("LoDTensor.split_at: 'after'", after, error=LoDError)
        if isinstance(marks, LoDTensor):
            if marks.structure != self.structure:
                raise LoDError(
                    f"{what} must have the LoD of the rows",
                    got=f"first difference at {self.structure.difference(marks.structure)}",
                    remedy="x.map(lambda rows: ...) makes marks of the rows; a tensor has one for each row",
                )
            marks = marks._values
        rows = self.structure.rows
        flags = pieces.truths(pieces.marks_of(marks, [(rows,), (rows, 1)], what))
        if flags is None:
            raise LoDError(
                f"{what} must have numbers to cut by",
                got=brief(marks),
                remedy="cut before a function is traced, and on a device that has data",
            )
        return LoDTensor.of(self._values, pieces.split(self.structure, pieces.places(flags), after))

    def join_pieces(self) -> LoDTensor:
        """One level less: a sequence of the last level but one holds the rows of its own. Undoes `split_at`.

        The same rows. Raises LoDError where there is one level only.

        >>> LoDTensor(torch.zeros(9), [[0, 2, 3], [0, 3, 5, 9]]).join_pieces()
        LoDTensor(2 sequences, lengths [[5, 4]], values [9] float32)
        """
        if self.lod_level < 2:
            raise LoDError(
                "LoDTensor.join_pieces needs two levels or more",
                got=f"{self.lod_level}",
                remedy="x.split_at(marks) makes what it joins",
            )
        return LoDTensor.of(self._values, pieces.joined(self.structure))

    # Values

    def with_values(self, values: Tensor) -> LoDTensor:
        """The same LoD over other rows; LoDError unless there are as many.

        >>> LoDTensor(torch.zeros(3, 4), [[0, 2, 3]]).with_values(torch.ones(3))
        LoDTensor(2 sequences, lengths [[2, 1]], values [3] float32)
        """
        check_values(values, self.structure)
        return LoDTensor.of(values, self.structure)

    def map(self, fn: Callable[[Tensor], Tensor]) -> LoDTensor:
        """The same LoD over ``fn(values)``, called once; fn should treat every row alike.

        >>> LoDTensor(torch.ones(3, 4), [[0, 2, 3]]).map(lambda v: v.sum(-1)).values
        tensor([4., 4., 4.])
        """
        function("LoDTensor.map: 'fn'", fn, "fn(values)", error=LoDError)
        return self.with_values(fn(self._values))

    def detach(self) -> LoDTensor:
        """The same rows, cut from the autograd graph."""
        return LoDTensor.of(self._values.detach(), self.structure)

    def to(self, *args: Any, **kwargs: Any) -> LoDTensor:
        """``values.to(...)``: another device or dtype, or those of a tensor. The LoD stays on the CPU.

        >>> LoDTensor(torch.ones(3), [[0, 2, 3]]).to(torch.float64).dtype
        torch.float64
        """
        args = tuple(a._values if isinstance(a, LoDTensor) else a for a in args)
        return LoDTensor.of(self._values.to(*args, **kwargs), self.structure)

    def pin_memory(self) -> LoDTensor:
        """``values.pin_memory()``: a DataLoader calls it where there is a GPU. The LoD stays as it is.

        Raises what torch raises where there is none.
        """
        return LoDTensor.of(self._values.pin_memory(), self.structure)

    def is_pinned(self) -> bool:
        """Whether the values are in pinned memory."""
        return self._values.is_pinned()

    @property
    def shape(self) -> torch.Size:
        """The shape of the values; dimension 0 is rows."""
        return self._values.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the values."""
        return self._values.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self._values.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad."""
        return self._values.requires_grad

    # Copies, files and text

    def __copy__(self) -> LoDTensor:
        return LoDTensor.of(self._values, self.structure)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoDTensor:
        twin = LoDTensor.of(copy.deepcopy(self._values, memo), self.structure)
        if twin._values is self._values:  # a copy without its fields, which will be set: Lightning does so
            _TO_BE_FILLED[id(twin)] = twin
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: what comes out of a file is checked like anything else.
        return LoDTensor, (self._values, self.structure.levels)

    def __repr__(self) -> str:
        v = self._values
        if not isinstance(v, Tensor):
            return f"LoDTensor({len(self)} sequences, lengths {self.structure.show()}, values {brief(v)})"
        tail = "" if v.device.type == "cpu" else f" {v.device}"
        if v.requires_grad:
            tail += f" grad_fn={v.grad_fn.name()}" if v.grad_fn is not None else " requires_grad"
        return (
            f"LoDTensor({len(self)} sequence{'' if len(self) == 1 else 's'}, "
            f"lengths {self.structure.show()}, values {list(v.shape)} {dtype_name(v.dtype)}{tail})"
        )

    def _repr_html_(self) -> str:
        return html(self)


def _place(index: Any, n: int) -> int:
    """An index as given, as 0 to n - 1."""
    whole_number: Any = getattr(index, "__index__", None) if getattr(index, "ndim", 0) == 0 else None
    is_bool = isinstance(index, bool) or getattr(index, "dtype", None) == torch.bool
    is_float = isinstance(index, Tensor) and index.is_floating_point()
    if is_bool or is_float or isinstance(index, type) or whole_number is None:
        raise RowMixError(
            "x[...] of a LoDTensor takes a sequence number, or a slice of them",
            got=brief(index),
            remedy="x.select_sequences(indices) for several; x.map(lambda v: v[:, k]) for features; "
            "x.values[...] for rows",
        )
    place = whole_number()
    if not -n <= place < n:
        raise LoDIndexError(
            f"sequence {place} of a LoDTensor of {n} sequences",
            expected=f"{-n} to {n - 1}" if n else "none, as there are no sequences",
        )
    return place % n


def _check_batches(batches: Any) -> None:
    where = "LoDTensor.cat"
    if not isinstance(batches, Sequence) or not batches:
        raise LoDError(
            f"{where} takes a list of LoDTensors, one or more",
            got=brief(batches),
            remedy="LoDTensor.cat([x, y])",
        )
    for i, x in enumerate(batches):
        if not isinstance(x, LoDTensor):
            raise LoDError(
                f"{where}: batch {i} must be a LoDTensor",
                got=brief(x),
                remedy="LoDTensor.from_sequences(tensors), a tensor for each sequence",
            )
        for what, a, b in (
            ("levels", x.lod_level, batches[0].lod_level),
            ("rows of shape", list(x.shape[1:]), list(batches[0].shape[1:])),
            ("dtype", x.dtype, batches[0].dtype),
            ("device", x.device, batches[0].device),
        ):
            if a != b:
                raise LoDError(
                    f"{where}: batch {i} does not fit batch 0",
                    got=f"{what} {a}",
                    expected=f"{b}",
                    remedy="x.drop_levels() leaves out an outer level" if what == "levels" else None,
                )


def _flatten(x: LoDTensor) -> tuple[list[Tensor], LoD]:
    if in_program(x.structure.levels[0]):
        raise LoDError(in_graph.NO_RESULT, remedy=in_graph.AS_TENSORS)
    if pytree.is_frozen_by_checkpoint(x._values):
        raise LoDError(
            "a checkpoint with use_reentrant=True gives no gradients to LoDTensors",
            got=repr(x),
            remedy="use_reentrant=False; or pass and return tensors: x.values, and x.with_values(...) inside",
        )
    return [x._values], x.structure


no_index(LoDTensor)
torch.serialization.add_safe_globals([LoDTensor])
pytree.register_node(
    LoDTensor,
    name="stepnet.LoDTensor",
    leaves=lambda _: ["values"],
    flatten=_flatten,
    # Unchecked: torch rebuilds trees around axis numbers, placeholders and batched gradients too.
    unflatten=lambda leaves, lod: LoDTensor.of(next(iter(leaves)), lod),
    dump=lambda lod: [level.tolist() for level in lod.levels],
    load=LoD,
)
pytree.name_packed_sequences()
