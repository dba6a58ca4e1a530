"""TensorArray: an array of steps, the one way to cut data into steps and to join steps again."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from stepnet.data.arguments import truth
from stepnet.data.contents import Contents
from stepnet.data.filling import fills, indexed
from stepnet.data.lod import LoDTensor
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import UNKNOWN, InFrame, StandIn, recordable
from stepnet.data.steps import Steps
from stepnet.data.unpack import join, pack, unpack
from stepnet.data.values import Value, axis_of, check_fit, copy, describe, integer, rows_of
from stepnet.errors import ArrayError


def written(array: TensorArray, *args: Any, **kwargs: Any) -> TensorArray:
    """A second array of the same values, and one more: `write` where nothing may change."""
    changed = array.__copy__()
    changed.write(*args, **kwargs)
    return changed


def _unpacked_like(x: Any, how: tuple[Any, ...], named: dict[str, Any]) -> tuple[TensorArray, Any]:
    """What `unpack` gives for values without data."""
    return TensorArray.unpack(x, *how, **named) if isinstance(x, LoDTensor) else (TensorArray(), UNKNOWN)


def contents_of(array: TensorArray) -> Contents:
    """What the array holds, for those who run loops over it; `array.deferred` is None."""
    return array._contents


def hold(array: TensorArray, steps: Steps) -> None:
    """Let an array hold these steps and nothing else."""
    array._contents = Contents.all_of(steps)


class TensorArray:
    """An array whose places hold tensors or LoDTensors, one per step of a loop.

    It is cut from a tensor with `unstack`, from a LoDTensor with `unpack`, or filled with `write`; `stack`,
    `concat` and `pack` join it again. `unstack` and `unpack` fill the array that they are called on; called
    on the class, `TensorArray.unstack(x)`, they make one. All of these are differentiable, and reading T
    steps costs O(T), forward and backward: the steps are views made by one `unbind` or one `split`, whose
    gradient is one join. (Indexing a tensor T times costs O(T^2) in backward: each gradient is a zero tensor
    of the full size.)

    An index is an int or a tensor with one integer. Negative indices are errors, they never wrap: a loop
    reads `states[step - 1]`, and at step 0 that must not be the last state.

    In short, an array is a size and a dict::

        write(i, v):  values[i] = v; size = max(size, i + 1)
        read(i):      return values[i]
        stack():      return torch.stack([values[i] for i in range(size)])

    Args:
        size: number of places, none of them written. An int or a scalar tensor.
        unstack_from: a tensor to `unstack` along its first axis; then `size` is left out.

    Raises:
        ArrayError: `size` is no count, both arguments are given, or `unstack_from` cannot be unstacked.

    Source: Paddle's "Design for TensorArray" and its Python API (2017), after TensorFlow's TensorArray.

    >>> states = TensorArray(size=2)
    >>> states.write(0, torch.zeros(3))
    >>> states.write(1, states[0] + 1)
    >>> states.stack().shape
    torch.Size([2, 3])
    """

    # What stands for this array where it is recorded, not run: an item of a tape, a value inside a frame.
    deferred: StandIn | InFrame | None = None

    @recordable
    def __init__(self, size: int | Tensor = 0, *, unstack_from: Tensor | None = None) -> None:
        if isinstance(size, LoDTensor):
            raise ArrayError(
                "TensorArray: the steps of a LoDTensor depend on the level that is cut",
                got=describe(size),
                remedy="TensorArray.unpack(x, level): the array, and the map that pack needs",
            )
        places = integer(size, "TensorArray: size")
        if places < 0:
            raise ArrayError(
                "TensorArray: size must not be negative",
                got=places,
                remedy="TensorArray() grows as it is written",
            )
        self._contents = Contents(places)
        if unstack_from is not None:
            if places:
                raise ArrayError(
                    "TensorArray: size and unstack_from exclude each other",
                    got=f"size={places} and unstack_from",
                    remedy="leave size out: unstacking gives one place per step",
                )
            self._cut(unstack_from, 0)

    @fills()
    @recordable
    def unstack(self, tensor: Tensor, axis: int = 0) -> TensorArray:
        """Cut a tensor of rank R along `axis` into tensors of rank R - 1, one per place.

        `array.unstack(x)` fills the array, over all that it held; `TensorArray.unstack(x)` makes one. The
        values are views of `tensor`, made by one `unbind`.

        Returns:
            The array.

        Raises:
            ArrayError: `tensor` is a LoDTensor (see `unpack`), or has no such axis. The array stays as it is.

        >>> TensorArray.unstack(torch.arange(6).reshape(2, 3), axis=1)[2]
        tensor([2, 5])
        >>> array = TensorArray()
        >>> array.unstack(torch.arange(6).reshape(2, 3)).size(), array[1]
        (2, tensor([3, 4, 5]))
        """
        self._cut(tensor, axis)
        return self

    def _cut(self, tensor: Tensor, axis: int) -> None:
        if isinstance(tensor, LoDTensor):
            raise ArrayError(
                "TensorArray.unstack cuts tensors; the steps of a LoDTensor depend on its lod",
                got=describe(tensor),
                remedy="TensorArray.unpack(x, level), or unstack x.values",
            )
        if not isinstance(tensor, Tensor):
            refuse_proxies([tensor])
            raise ArrayError(
                "TensorArray.unstack cuts tensors",
                got=describe(tensor),
                remedy="torch.stack(values) of a list of tensors, torch.as_tensor(values) of numbers",
            )
        if tensor.dim() == 0:
            raise ArrayError(
                "TensorArray.unstack: a tensor of rank 0 has no axis to cut",
                got=describe(tensor),
                remedy="array.write(0, tensor) puts in one value",
            )
        axis = axis_of(axis, tensor.dim(), "TensorArray.unstack", describe(tensor))
        cut = Contents()
        cut.put(0, Steps(tensor.movedim(axis, 0) if axis else tensor))
        if not cut.size:
            cut.pattern = tensor.sum(axis, dtype=tensor.dtype)  # over an axis of length 0: keeps the graph
        self._refill(cut)

    def _refill(self, contents: Contents) -> None:
        """Hold these instead of all that there is."""
        self._contents = contents

    @recordable
    def size(self) -> int:
        """Number of places, written or not."""
        return self._contents.size

    def __len__(self) -> int:
        if self.deferred is not None and not isinstance(self.deferred, InFrame):
            raise ArrayError(
                "TensorArray: this array is on a tape, and its length is known when the tape is played",
                remedy="size() gives an item of the tape",
            )
        return operator.index(self.size())

    def __copy__(self) -> TensorArray:
        """A second array of the same values; writing to one leaves the other as it is."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._contents = self._contents.copy()
        return twin

    @overload
    def write(self, index: int | Tensor, value: Value, data_shared: bool = True) -> None: ...

    @overload
    def write(self, value: Value, data_shared: bool = True) -> None: ...

    @indexed
    @recordable
    def write(self, index: Any, value: Any, data_shared: bool = True) -> None:
        """Put `value` at `index`, over whatever is there; an index at the end or beyond makes the array grow.

        `write(value)` and `write(value, data_shared)`, without an index, put it at the end.

        Args:
            index: 0 or more; an int or a scalar tensor.
            value: a tensor or a LoDTensor.
            data_shared: True keeps a reference to `value`; False a copy (gradients flow through it).

        Raises:
            ArrayError: a negative index, or a value that is no tensor.

        >>> array = TensorArray()
        >>> array.write(2, torch.ones(1))
        >>> array.write(torch.zeros(1))
        >>> array.size(), array[3]
        (4, tensor([0.]))
        """
        self._store(index, value, data_shared)

    def _store(self, index: Any, value: Any, data_shared: bool) -> None:
        place = integer(index, "TensorArray.write: index")
        if place < 0:
            raise ArrayError(
                f"TensorArray.write: index {place} is negative, and indices do not wrap",
                got=f"size {self._contents.size}",
                expected="an index from 0",
                remedy=f"array.size() - {-place} counts from the end"
                if -place <= self._contents.size
                else "array.write(value) writes behind the last",
            )
        if not isinstance(value, (Tensor, LoDTensor)):
            raise ArrayError(
                f"TensorArray.write: the value for index {place} is no tensor",
                got=describe(value),
                expected="a Tensor or a LoDTensor",
                remedy="write(torch.as_tensor(value)) puts it behind the last"
                if value is index
                else "torch.as_tensor(value) makes one of numbers",
            )
        if not truth("TensorArray.write: 'data_shared'", data_shared, error=ArrayError):
            value = copy(value)
        self._contents.write(place, value)

    @recordable
    def read(self, index: int | Tensor, default: Value | None = None) -> Any:
        """The value at `index`, by reference.

        Args:
            index: an int or a scalar tensor.
            default: given back where there is no value: below 0, at a place never written, or past the end.

        Raises:
            ArrayError: there is no value at `index`, and no default.

        >>> states = TensorArray(size=1)
        >>> states.read(-1, default=torch.zeros(2))
        tensor([0., 0.])
        """
        place = integer(index, "TensorArray.read: index")
        contents, size = self._contents, self._contents.size
        whole = contents.whole if isinstance(size, torch.SymInt) else None
        if whole is None:
            value = contents.read(place, default)
        else:  # in a trace: taken apart, its length would be that of the example
            value = whole[place : place + 1].squeeze(0) if 0 <= place < size else default
        if value is not None:
            return value
        if 0 <= place < size:
            raise ArrayError(
                f"TensorArray: nothing was written at index {place}",
                got=f"size {size}, {len(contents.values)} written",
                remedy=f"write({place}, value) first, or read({place}, default)",
            )
        raise ArrayError(
            f"TensorArray: index {place} is out of range",
            got=f"size {size}",
            expected=f"an index from 0 to {size - 1}" if size else "no index: the array is empty",
            remedy="indices do not wrap; for the step before the first, read(index, default)"
            if place < 0
            else "write there first: the array grows",
        )

    def __getitem__(self, index: int | Tensor) -> Any:
        return self.read(index)

    def __setitem__(self, index: int | Tensor, value: Value) -> None:
        self.write(index, value)

    def __iter__(self) -> Iterator[Any]:
        return (self.read(place) for place in range(len(self)))

    def __repr__(self) -> str:
        if self.deferred is not None:
            return f"TensorArray({self.deferred!r})"
        size, values = self._contents.size, self._contents.values
        shapes = [describe(values[place]) for place in sorted(values)[:3]]
        more = ", ..." if len(values) > len(shapes) else ""
        return f"TensorArray(size={size}, written={len(values)}, values=[{', '.join(shapes)}{more}])"

    @recordable
    def stack(self, axis: int = 0) -> Tensor:
        """Join values of equal shape into a tensor with rank one higher, the steps along `axis`.

        An array cut by `unstack` from a tensor of length 0 gives that tensor back.

        Raises:
            ArrayError: a place was never written, values differ in shape, dtype or device (the text names the
                two indices), the values are LoDTensors, or there is no value.

        >>> TensorArray(unstack_from=torch.arange(4)).stack()
        tensor([0, 1, 2, 3])
        """
        where = "TensorArray.stack"
        steps = self._contents.steps
        whole = self._contents.after_others() if steps is None else steps.whole()
        if whole is not None:
            axis = axis_of(axis, whole.dim(), where, f"the result has rank {whole.dim()}")
            if axis:
                return whole.movedim(0, axis).clone(memory_format=torch.contiguous_format)
            return whole if steps is None else steps.joined()
        values = self._joinable(where)
        if isinstance(values[0], LoDTensor):
            raise ArrayError(
                f"{where}: LoDTensors have no common axis of steps, since each has a lod of its own",
                got=describe(values[0]),
                remedy="concat() makes one batch of all sequences, pack() restores what unpack cut",
            )
        rank = values[0].dim() + 1
        axis = axis_of(axis, rank, where, f"the result has rank {rank}")
        check_fit(values, where)
        stacked = torch.stack([rows_of(value) for value in values], axis)
        return stacked if self._contents.size else stacked.narrow(axis, 0, 0)

    @recordable
    def concat(self, axis: int = 0) -> Any:
        """Join values along an axis they have; shapes may differ along it.

        LoDTensors are joined along their outermost level, into one batch of all their sequences.

        Raises:
            ArrayError: a place was never written, values differ in dtype, device or shape other than along
                `axis` (the text names the two indices), values have rank 0, LoDTensors differ in their number
                of levels or are joined along another axis, or there is no value.

        >>> array = TensorArray()
        >>> array.write(0, torch.tensor([1, 2]))
        >>> array.write(1, torch.tensor([3]))
        >>> array.concat()
        tensor([1, 2, 3])
        """
        where = "TensorArray.concat"
        steps = self._contents.steps
        if steps is not None and (rank := steps.whole().dim() - 1):
            axis = axis_of(axis, rank, where, f"values of rank {rank}")
            return steps.joined().movedim(0, axis).flatten(axis, axis + 1)
        values = self._joinable(where)
        first = values[0]
        rank = rows_of(first).dim()
        if rank == 0:
            raise ArrayError(
                f"{where}: values of rank 0 have no axis to join along", got=describe(first), remedy="stack()"
            )
        axis = axis_of(axis, rank, where, describe(first))
        if isinstance(first, LoDTensor) and axis != 0:
            raise ArrayError(
                f"{where}: LoDTensors are joined sequence after sequence, along axis 0 only",
                got=f"axis {axis}",
                remedy="concat the .values if all have the same lod",
            )
        check_fit(values, where, free=axis)
        if isinstance(first, LoDTensor):
            return join(values)
        joined = torch.cat([rows_of(value) for value in values], axis)
        return joined if self._contents.size else joined.narrow(axis, 0, 0)

    def _joinable(self, where: str) -> list[Value]:
        """All values in order; where a cut gave none, one in their image."""
        size, pattern = self._contents.size, self._contents.pattern
        if not size and pattern is not None:
            return [pattern]
        if not size:
            raise ArrayError(
                f"{where}: the array is empty, so the shape of its values is not known",
                remedy="write a value first, or treat a batch without steps apart",
            )
        values = self._contents.values
        return [values[place] if place in values else self.read(place) for place in range(size)]

    @fills(like=lambda x, *how, **named: _unpacked_like(x, how, named))
    @recordable
    def unpack(self, x: LoDTensor, level: int = 0, sort_by_length: bool = True) -> tuple[TensorArray, Tensor]:
        """Cut the sequences of one level into steps: step t holds element t of every sequence longer than t.

        `array.unpack(x, level)` fills the array, over all that it held; `TensorArray.unpack(x, level)` makes
        one.

        Args:
            x: values [rows, ...] with at least one level.
            level: the level whose sequences are cut, counted from 0, the outermost; -1 is the last.
            sort_by_length: True orders the sequences by length, longest first and stable, so that the
                sequences of a step are a prefix of those of the step before; False keeps the order of x.

        Returns:
            The array, and the indices map. A value is a tensor [active, ...] at the last level, else a
            LoDTensor of the levels below; its `len` is the number of sequences active at that step. All
            values are views of one permuted table. The map is int32 [sequences, 3] on the CPU: a row per
            sequence, in the order they have in the steps, with its begin and end among the elements of
            `level` and its index in x.

        Raises:
            ArrayError: x is no LoDTensor or has no such level, or an offset does not fit int32. The array
                stays as it is.

        Source: Paddle's "Design for TensorArray", unpack; order and values as Paddle's lod_tensor_to_array.

        >>> x = LoDTensor(torch.arange(10), [[0, 3, 9, 10]])
        >>> array, indices_map = TensorArray.unpack(x)
        >>> [value.tolist() for value in array]
        [[3, 0, 9], [4, 1], [5, 2], [6], [7], [8]]
        >>> indices_map.tolist()
        [[3, 9, 1], [0, 3, 0], [9, 10, 2]]
        """
        values, joined, indices_map = unpack(x, integer(level, "TensorArray.unpack: level"), sort_by_length)
        contents = Contents.of(values)
        contents.pattern = joined if not values else None
        self._refill(contents)
        return self, indices_map

    @recordable
    def pack(
        self, level: int, indices_map: Tensor, lod: Sequence[Sequence[int] | Tensor] | None = None
    ) -> LoDTensor:
        """Join steps into sequences again, in the order and with the lod that `unpack` was given.

        After `array, indices_map = TensorArray.unpack(x, level)`, `array.pack(level, indices_map,
        x.lod[:level])` equals x. The values may also be others, as a loop over the steps writes them: tensors
        with a row per element, or LoDTensors with an entry of their outermost level per element.

        Args:
            level: the level that `unpack` cut; a negative one counts from the last level of the result.
            indices_map: integers [sequences, 3], as `unpack` returned it.
            lod: offsets of the levels above `level`, outermost first; none at level 0.

        Raises:
            ArrayError: the map is no map of sequences, `lod` has not `level` levels, values do not fit
                together (see `concat`), or a step has not one element per sequence longer than that.
            LoDError: `lod` does not describe the sequences of the map.

        Source: Paddle's "Design for TensorArray", pack; the inverse as Paddle's array_to_lod_tensor.

        >>> x = LoDTensor(torch.arange(4), [[0, 1, 4]])
        >>> array, indices_map = TensorArray.unpack(x)
        >>> array.pack(0, indices_map).values
        tensor([0, 1, 2, 3])
        """
        if isinstance(level, TensorArray):
            raise ArrayError(
                "TensorArray.pack packs the array that it is called on",
                got="an array as its first argument",
                remedy="step_outputs.pack(level, indices_map), level that of unpack",
            )
        level = integer(level, "TensorArray.pack: level")
        return pack(self._joinable("TensorArray.pack"), self._contents.size, level, indices_map, lod)
