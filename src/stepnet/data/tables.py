"""LoDTensors to and from the tables of other libraries: Arrow, awkward arrays, pandas.

Offsets are copied, as LoDTensor always does; values are not, where the other library shares its memory.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepnet.data.arguments import brief
from stepnet.data.convert import shared
from stepnet.data.offsets import offsets_of, ranges
from stepnet.errors import LoDError, MissingExtraError

if TYPE_CHECKING:
    from typing_extensions import Self


class Tabular:
    """The tables of other libraries among the ways into a LoDTensor and out of it."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, values: Tensor, lod: Sequence[Any]) -> None: ...

        @property
        def lod(self) -> tuple[Tensor, ...]: ...
        @property
        def lod_level(self) -> int: ...
        @property
        def values(self) -> Tensor: ...

    @classmethod
    def from_arrow(cls, column: Any) -> Self:
        """A column of lists, as Arrow has it (and Hugging Face's datasets: `dataset.data.column("tokens")`).

        Each level of lists is a level of sequences; lists of a fixed size below them, and tensors of a fixed
        shape, are dimensions of a row.
        An array without nulls shares its memory, which must not be written to where it is a file's that is
        mapped. A column of several chunks is copied into one, and what is encoded by a dictionary is decoded.

        Args:
            column: a pyarrow Array or ChunkedArray of lists of numbers, or what offers one by Arrow's
                PyCapsule interface, as a Series of polars, or of pandas with such a type.

        Raises:
            LoDError: it holds nulls, or other than lists of numbers; says at which level.
        """
        arrow = _imported("pyarrow")
        array, levels, sizes = _one_array(column), list[Tensor](), list[int]()
        while not arrow.types.is_primitive(array.type):
            if array.null_count:
                raise LoDError(
                    f"from_arrow: the lists of level {len(levels) + len(sizes)} hold nulls",
                    got=f"{array.null_count} of {len(array)}",
                    remedy="column.drop_null(), or pyarrow.compute.fill_null(column, [])",
                )
            array = _inside(array, levels, sizes)
        if not levels:
            raise LoDError(
                "from_arrow: the column has no lists of any length",
                got=str(column.type),
                remedy=f"column.cast(pyarrow.list_({column.type.value_type}()))"
                if sizes
                else "torch.from_dlpack",
            )
        if array.null_count:
            raise LoDError(
                "from_arrow: the rows hold nulls",
                got=f"{array.null_count} of {len(array)}",
                remedy="fill them before they are put into lists: pyarrow.compute.fill_null(rows, 0)",
            )
        return cls(_shaped(_numbers(array), sizes, levels), levels)

    def to_arrow(self) -> Any:
        """A pyarrow array of lists, a level of lists for each level of sequences; `from_arrow` undoes it.

        Dimensions of a row become lists of a fixed size. Values on the CPU are not copied.

        Raises:
            LoDError: the other library has no such numbers, as bfloat16.
        """
        arrow = _imported("pyarrow")
        values = _array(self)
        if np.iscomplexobj(values) or 0 in values.shape[1:]:
            raise LoDError(
                "to_arrow: Arrow has no complex numbers, and no rows without numbers",
                got=f"values {list(self.values.shape)} {self.values.dtype}",
                remedy="x.map(torch.view_as_real)" if np.iscomplexobj(values) else None,
            )
        array = arrow.array(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            array = arrow.FixedSizeListArray.from_arrays(array, size)
        if values.size == 0 and values.ndim > 1:
            array = array.slice(0, len(values))
        for offsets in reversed(self.lod):
            small = int(offsets[-1]) < 2**31
            lists = arrow.ListArray if small else arrow.LargeListArray
            array = lists.from_arrays(
                arrow.array(offsets.numpy(), arrow.int32() if small else arrow.int64()), array
            )
        return array

    @classmethod
    def from_awkward(cls, array: Any) -> Self:
        """An awkward array, `n * var * ... * float64`; its levels of any length are levels of sequences.

        Dimensions of a fixed size below them are dimensions of a row. Memory is shared where lists lie one
        after the other.

        Raises:
            LoDError: it holds missing values, records, strings, or nothing of any length.
        """
        ak = _imported("awkward")
        levels, sizes = [], []
        layout: Any = None
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # whatever awkward does not read
            layout = ak.to_layout(array)
        if not isinstance(layout, ak.contents.Content):
            got, remedy = type(array).__name__, "ak.Array([[1, 2], []])"
            raise LoDError("from_awkward takes an awkward array of lists of numbers", got=got, remedy=remedy)
        if layout.backend.name != "cpu":
            raise LoDError(
                "from_awkward takes arrays in the memory of the CPU",
                got=f"one of the backend {layout.backend.name}",
                remedy='ak.to_backend(array, "cpu")',
            )
        while not layout.is_numpy:
            if layout.is_regular and not _ragged_below(layout.content):
                sizes.append(layout.size)
                layout = layout.content[: len(layout) * layout.size]
            elif layout.is_unknown:  # all lists are empty
                layout = layout.to_NumpyArray(torch.empty(0).numpy().dtype)
            elif (layout.is_indexed or layout.is_option) and not ak.any(ak.is_none(layout)):
                layout = layout.project()
            elif layout.is_list and layout.parameter("__array__") is None:
                layout = layout.to_ListOffsetArray64(True)
                offsets = torch.from_numpy(np.array(layout.offsets.data, dtype=np.int64))
                layout = layout.content[: int(offsets[-1])]
                levels.append(offsets)
            else:
                remedy = "ak.drop_none(array)" if layout.is_option else None
                raise LoDError("from_awkward takes lists of numbers", got=str(ak.type(array)), remedy=remedy)
        if not levels:
            raise LoDError(
                "from_awkward: the array has no lists of any length",
                got=str(ak.type(array)),
                remedy="torch.as_tensor",
            )
        return cls(_shaped(_shared(layout.data), sizes, levels), levels)

    def to_awkward(self) -> Any:
        """An awkward array with a level of lists for each level of sequences; `from_awkward` undoes it.

        Values on the CPU are not copied.

        Raises:
            LoDError: the other library has no such numbers, as bfloat16.
        """
        ak = _imported("awkward")
        layout = ak.contents.NumpyArray(_array(self))
        for offsets in reversed(self.lod):
            layout = ak.contents.ListOffsetArray(ak.index.Index64(offsets.numpy()), layout)
        return ak.Array(layout)

    @classmethod
    def from_pandas(
        cls, frame: Any, by: str | Sequence[str], columns: str | Sequence[str]
    ) -> tuple[Self, Any]:
        """The rows of a DataFrame as sequences: those that have the same value in the column `by`.

        Sequences are in the order in which their first rows are, and rows keep their order. Several columns
        `by` give a level of sequences each. A missing value is a value like others.

        Args:
            frame: the DataFrame.
            by: what tells sequences apart; outermost first.
            columns: the numbers of a row, [rows, columns]; of one name alone, [rows].

        Returns:
            The LoDTensor, and a DataFrame of the columns `by` with a row for each of the innermost sequences.

        Raises:
            LoDError: the columns are no numbers, or not there.
        """
        pandas = _imported("pandas")
        if not isinstance(frame, pandas.DataFrame):
            remedy = "from_pandas(frame, by, columns) groups by itself"
            raise LoDError("from_pandas takes a DataFrame", got=type(frame).__name__, remedy=remedy)
        names, wanted = _names(by, frame), _names(columns, frame)
        missing = [name for name in (*names, *wanted) if name not in frame]
        if missing or not names or any(frame[name].ndim > 1 for name in names):
            raise LoDError(
                "from_pandas: no such column, or several of one name",
                got=missing or names or "no 'by'",
                expected=", ".join(map(str, frame.columns)),
                remedy="frame.reset_index() makes columns of the index"
                if any(name in frame.index.names for name in missing)
                else None,
            )
        columns = columns if wanted == [columns] else wanted
        order = np.arange(len(frame))
        group = np.zeros(len(frame), dtype=np.int64)
        levels, starts, sequences = [], np.zeros(0, dtype=np.int64), 1
        for name in names:
            try:  # of the column itself: as an array, whole numbers beside a missing one are floats
                codes = pandas.factorize(frame[name], use_na_sentinel=False)[0][order]
            except (TypeError, ValueError, NotImplementedError) as error:
                raise LoDError(
                    f"from_pandas: the values of column {name!r} tell no sequences apart",
                    got=str(error),
                    remedy="group by a column of numbers, texts or tuples",
                ) from error
            pairs, _ = pandas.factorize(group * (codes.max(initial=0) + 1) + codes)
            inner = np.lexsort((pairs, group))  # stable: by the sequence outside, then by first appearance
            order, outer, pairs = order[inner], group[inner], pairs[inner]
            starts = np.flatnonzero(np.diff(pairs, prepend=-1))
            counts = np.bincount(outer[starts], minlength=sequences)
            levels.append(np.concatenate([[0], counts.cumsum()]))
            sequences = len(starts)
            group = np.repeat(np.arange(sequences), np.diff(np.append(starts, len(order))))
        levels.append(np.append(starts, len(order)))
        rows = frame[columns]
        numbers = rows.to_numpy()
        if numbers.dtype == object and isinstance(rows, pandas.DataFrame):  # of one kind each, perhaps
            kinds = [column.to_numpy().dtype for _, column in rows.items()]
            if all(kind.kind in "biuf" for kind in kinds):
                numbers = rows.to_numpy(np.result_type(*kinds))
        numbers = numbers[order]
        if numbers.dtype.kind not in "biuf":
            raise LoDError(
                "from_pandas takes columns of numbers", got=str(numbers.dtype), remedy="frame.astype(...)"
            )
        keys = frame[names].iloc[order[starts]].reset_index(drop=True)
        return cls(_shared(numbers), levels[1:]), keys

    def to_pandas(self, columns: str | Sequence[str], by: str | Sequence[str] = "sequence") -> Any:
        """A DataFrame of all rows, with the number of the sequence of each, at every level, in columns `by`.

        Raises:
            LoDError: there is not a name for each feature and each level, or one is there twice.
        """
        pandas = _imported("pandas")
        names, wanted = _names(by, ()), _names(columns, ())
        values = _array(self)
        values = values[:, None] if values.ndim == 1 else values
        fit = values.ndim == 2 and [len(wanted), len(names)] == [values.shape[1], self.lod_level]
        if not fit or len({*wanted, *names}) < len(wanted) + len(names):
            raise LoDError(
                "to_pandas needs a name for each feature of a row and for each level, no two alike",
                got=f"columns {wanted}, by {names}",
                expected=f"{list(values.shape[1:])} features, {self.lod_level} levels",
            )
        numbers: list[np.ndarray] = []
        below = np.arange(len(values))
        for offsets in reversed(self.lod):
            below = np.searchsorted(offsets.numpy(), below, side="right") - 1
            numbers.append(below)
        table = dict(zip(names, reversed(numbers), strict=True))
        return pandas.DataFrame(table | dict(zip(wanted, values.T, strict=True)))


def _offered(column: Any) -> Any:
    """The column of another library that offers it to Arrow; else what was given."""
    arrow = _imported("pyarrow")
    try:
        if hasattr(column, "__arrow_c_stream__"):
            return arrow.chunked_array(column)
        return arrow.array(column) if hasattr(column, "__arrow_c_array__") else column
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise LoDError(
            "from_arrow: the column cannot be had as Arrow's",
            got=str(error),
            remedy="pyarrow.array(column.to_list())",
        ) from error


def _holds_lists(kind: Any) -> bool:
    """Whether there are lists of any length among the values of an Arrow type."""
    while _imported("pyarrow").types.is_fixed_size_list(kind):
        kind = kind.value_type
    return _is_list(kind)


def _is_fixed_tensor(kind: Any) -> bool:
    """Whether an Arrow type is of tensors of one shape that lie as their dimensions say."""
    known = isinstance(kind, getattr(_imported("pyarrow"), "FixedShapeTensorType", ()))
    return known and list(kind.permutation or ()) in ([], list(range(len(kind.shape))))


def _is_list(kind: Any) -> bool:
    """Whether an Arrow type is of lists of any length."""
    types = _imported("pyarrow").types
    views = hasattr(types, "is_list_view") and (types.is_list_view(kind) or types.is_large_list_view(kind))
    return views or types.is_list(kind) or types.is_large_list(kind)


def _one_array(column: Any) -> Any:
    """A column as one pyarrow Array."""
    arrow = _imported("pyarrow")
    array = column if isinstance(column, (arrow.Array, arrow.ChunkedArray)) else _offered(column)
    if isinstance(array, arrow.ChunkedArray):
        chunks = array.chunks or [arrow.array([], array.type)]
        array = chunks[0] if len(chunks) == 1 else arrow.concat_arrays(chunks)
    if not isinstance(array, arrow.Array):
        raise LoDError(
            "from_arrow takes an Array or a ChunkedArray",
            got=type(column).__name__,
            remedy="table['name'] is a column; LoDTensor.from_sequences takes lists",
        )
    return array


def _inside(array: Any, levels: list[Tensor], sizes: list[int]) -> Any:
    """What an array of lists holds. Its level of sequences is added to `levels`, or its dimensions to
    `sizes`."""
    arrow, kind = _imported("pyarrow"), array.type
    types = arrow.types
    if types.is_dictionary(kind):
        return array.dictionary_decode()
    if _is_fixed_tensor(kind):
        sizes += kind.shape
        return array.storage.flatten()
    if isinstance(kind, arrow.BaseExtensionType) and _holds_lists(kind.storage_type):
        return array.storage
    if types.is_null(kind):  # all lists are empty
        return arrow.array(torch.empty(0).numpy())
    if types.is_fixed_size_list(kind):
        if _holds_lists(kind.value_type):
            levels.append(torch.arange(len(array) + 1) * kind.list_size)
        else:
            sizes.append(kind.list_size)
        return array.flatten()
    if _is_list(kind):
        content, offsets = _content(array)
        levels.append(offsets)
        return content
    raise LoDError(
        "from_arrow takes lists of numbers, and lists of a fixed size inside them: "
        f"level {len(levels) + len(sizes)}",
        got=str(kind),
        remedy="a column for each field; numbers, as ids, in place of words",
    )


def _content(lists: Any) -> tuple[Any, Tensor]:
    """What is in Arrow's lists, one after the other, and their offsets in it."""
    starts = torch.from_numpy(lists.offsets.to_numpy().astype(np.int64))
    if hasattr(lists, "sizes"):  # views, in any order
        lengths = torch.from_numpy(lists.sizes.to_numpy().astype(np.int64))
        places, own = starts[lengths > 0], offsets_of(lengths)
        first = int(places[0]) if len(places) else 0
        if not torch.equal(places - first, own[:-1][lengths > 0]):
            return lists.values.take(_imported("pyarrow").array(ranges(starts, lengths).numpy())), own
    else:
        first, own = int(starts[0]), starts - starts[0]
    return lists.values.slice(first, int(own[-1])), own


def _numbers(array: Any) -> Tensor:
    kind = array.type
    arrow = _imported("pyarrow")
    if arrow.types.is_boolean(kind):  # a bit each
        return torch.from_numpy(array.to_numpy(zero_copy_only=False))
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        raise LoDError("from_arrow takes numbers", got=str(kind), remedy="column.cast(...)")
    if not len(array):
        return torch.from_numpy(np.array(array.to_numpy()))
    return torch.from_dlpack(array)


def _ragged_below(layout: Any) -> bool:
    while layout.is_list:
        if not layout.is_regular:
            return True
        layout = layout.content
    return False


def _names(given: Any, frame: Any) -> list[Any]:
    """Names of columns: one, which may be a tuple, or a sequence of them, as `frame.columns[1:]`."""
    given = given.tolist() if isinstance(given, _imported("pandas").Index) else given
    one = isinstance(given, str) or not isinstance(given, Sequence)
    names = [given] if one or (isinstance(given, tuple) and given in frame) else list(given)
    if not all(isinstance(name, Hashable) for name in names):
        raise LoDError("names of columns are needed", got=brief(given), expected="a name, or a list of names")
    return names


def _array(x: Tabular) -> np.ndarray:
    if not isinstance(x, Tabular):
        raise LoDError(
            "only a LoDTensor has sequences", got=type(x).__name__, remedy="LoDTensor.from_sequences(x)"
        )
    try:
        return x.values.detach().cpu().contiguous().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise LoDError(
            "numpy has no such numbers", got=str(x.values.dtype), remedy="x.map(lambda rows: rows.float())"
        ) from error


def _shared(numbers: np.ndarray) -> Tensor:
    """`shared`, of numbers alone."""
    if numbers.dtype.kind not in "biufc":
        raise LoDError(
            "sequences of numbers are needed",
            got=str(numbers.dtype),
            expected="a column of numbers, as the ids of words",
        )
    try:
        return shared(numbers)
    except TypeError as error:
        raise LoDError(
            "torch has no such numbers", got=str(numbers.dtype), remedy="numbers.astype(numpy.float64)"
        ) from error


def _shaped(values: Tensor, sizes: Sequence[int], levels: Sequence[Tensor]) -> Tensor:
    """Numbers as rows, of which there are as many as the innermost sequences have: they may hold none."""
    return values.reshape(int(levels[-1][-1]), *sizes, *values.shape[1:]) if sizes else values


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "sequences in tables of other libraries", package=name, extra="tables"
        ) from error
