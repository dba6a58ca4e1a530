"""The tables of other libraries among the ways into a LoDTensor and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from .lod import LoDTensor


class Tabular:
    """What `tables` has as functions, which is imported when it is asked for: it stands on LoDTensor."""

    __slots__ = ()

    @staticmethod
    def from_arrow(column: Any) -> LoDTensor:
        """A column of lists, as Arrow and Hugging Face's datasets have it: see `stepnet.data.from_arrow`."""
        from .tables import from_arrow

        return from_arrow(column)

    def to_arrow(self) -> Any:
        """A pyarrow array of lists: see `stepnet.data.to_arrow`."""
        from .tables import to_arrow

        return to_arrow(cast("LoDTensor", self))

    @staticmethod
    def from_awkward(array: Any) -> LoDTensor:
        """An awkward array: see `stepnet.data.from_awkward`."""
        from .tables import from_awkward

        return from_awkward(array)

    def to_awkward(self) -> Any:
        """An awkward array: see `stepnet.data.to_awkward`."""
        from .tables import to_awkward

        return to_awkward(cast("LoDTensor", self))

    @staticmethod
    def from_pandas(
        frame: Any, by: str | Sequence[str], columns: str | Sequence[str]
    ) -> tuple[LoDTensor, Any]:
        """The rows of a DataFrame, as its groups, and their keys: see `stepnet.data.from_pandas`."""
        from .tables import from_pandas

        return from_pandas(frame, by, columns)

    def to_pandas(self, columns: str | Sequence[str], by: str | Sequence[str] = "sequence") -> Any:
        """A DataFrame of all rows: see `stepnet.data.to_pandas`."""
        from .tables import to_pandas

        return to_pandas(cast("LoDTensor", self), columns, by)
