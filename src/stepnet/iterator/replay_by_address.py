"""A run of a plan like one before, by addresses: what it is fed is not looked at through views, and what it
gives is made as it is to look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stepnet.data.unpatched_torch import data_ptr, empty_on_cpu
from stepnet.executors.direct import Direct

from .views import View

Size = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class ByAddress:
    """A run by places (`Direct`) that no backward follows.

    Args:
        direct: what runs it.
        fed: tensors that look as those of all runs.
        given: views of those, each in one piece, in the order of the plan.
        results: by name, views of what the plan gives, then of what is fed.

    Raises:
        LookupError: it takes more than addresses.
    """

    def __init__(
        self, direct: Direct, fed: Sequence[Tensor], given: Sequence[View], results: Mapping[str, View]
    ) -> None:
        looks = [view.of(fed) for view in given]
        if direct.trains or not all(t.is_contiguous() for t in looks):
            raise LookupError
        self._direct = direct
        self._held = [(k, view.always) for k, view in enumerate(given) if view.always is not None]
        self._from = [
            (view.source, 0 if view.place is None else view.place[2] * t.dtype.itemsize)
            for view, t in zip(given, looks, strict=True)
        ]
        sizes, self._out = direct.sizes
        self._sizes = [*sizes]
        self._views: dict[str, View] = {}
        self._whole: dict[str, int] = {}  # results that are all that a tensor of the plan holds
        count = len(self._out)
        shown = [view.source for view in results.values() if view.always is None]
        for name, view in results.items():
            at = self._out[view.source] if view.always is None and view.source < count else None
            if at is not None and shown.count(view.source) == 1 and _is_whole(view, sizes[at]):
                if view.place is not None:
                    self._sizes[at] = (*view.place[0],), (*view.place[1],), sizes[at][2]
                self._whole[name] = at
            else:
                self._views[name] = view
        self._names = [*results]

    def _addresses(self, fed: Sequence[Tensor]) -> list[int]:
        addresses = [data_ptr(fed[k]) + offset if offset else data_ptr(fed[k]) for k, offset in self._from]
        for k, always in self._held:
            addresses[k] = data_ptr(always)
        return addresses

    def run(self, fed: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """The results by name; None: not this time."""
        addresses = self._addresses(fed)
        made = [empty_on_cpu(*size) for size in self._sizes]
        if not self._direct.run_at(addresses, made):
            return None
        if not self._views:
            return {name: made[at] for name, at in self._whole.items()}
        sources, whole = [*(made[at] for at in self._out), *fed], self._whole
        return {
            name: made[whole[name]] if name in whole else self._views[name].of(sources)
            for name in self._names
        }


def _is_whole(view: View, size: Size) -> bool:
    """Whether a view shows all numbers of a tensor in one piece, in their order."""
    if view.place is None:
        return True
    shape, strides, offset = view.place
    step = 1
    for n, stride in reversed([*zip(shape, strides, strict=True)]):
        if n != 1 and stride != step:
            return False
        step *= n
    return not offset and math.prod(shape) == math.prod(size[0])
