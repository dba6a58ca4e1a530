"""Tensors as views of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from stepnet.data.storage import span


class View(NamedTuple):
    """A tensor as a view of one of several.

    Attributes:
        source: which of them.
        place: shape, strides and offset from where the source begins; None: it is the source.
        always: the view itself, of memory that is the same in all calls.
    """

    source: int
    place: tuple[Sequence[int], Sequence[int], int] | None
    always: Tensor | None = None

    def of(self, sources: Sequence[Tensor]) -> Tensor:
        """The view of sources that lie as those did."""
        if self.always is not None:
            return self.always
        source = sources[self.source]
        if self.place is None:
            return source
        shape, strides, offset = self.place
        return source.as_strided(shape, strides, source.storage_offset() + offset)


def view_of(value: Tensor, sources: Sequence[Tensor]) -> View | None:
    """What view a tensor is; None: of none of the sources, or nothing tells of which."""
    for number, source in enumerate(sources):
        if value is source:
            return View(number, None)
    if not value.numel():
        return None
    memory, (begin, end) = value.untyped_storage().data_ptr(), span(value)
    found = [
        number
        for number, source in enumerate(sources)
        if source.numel()
        and source.untyped_storage().data_ptr() == memory
        and source.dtype == value.dtype
        and span(source)[0] <= begin < end <= span(source)[1]
    ]
    if len(found) != 1:
        return None
    offset = int(value.storage_offset()) - int(sources[found[0]].storage_offset())
    return View(found[0], (value.shape, value.stride(), offset))
