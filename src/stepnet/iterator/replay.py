"""A loop run like one before: the views of what it is fed that its plan took, the plan, and the views of what
that gave. Nothing between is asked again, for calls that need no gradient."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.as_imported import contiguous
from stepnet.data.modes import autocast_dtype, default_device
from stepnet.engine import Entry
from stepnet.executors.autograd import run as run_plan
from stepnet.executors.call import Call
from stepnet.executors.layout import Layout
from stepnet.executors.registry import tried
from stepnet.executors.setting import nothing_around


class View(NamedTuple):
    """A tensor as a view of one of several.

    Attributes:
        source: which of them.
        place: shape, strides and offset from where the source begins; None: it is the source.
    """

    source: int
    place: tuple[Sequence[int], Sequence[int], int] | None

    def of(self, sources: Sequence[Tensor]) -> Tensor:
        """The view of sources that lie as those did."""
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
    memory, (first, last) = value.untyped_storage().data_ptr(), _span(value)
    found = [
        number
        for number, source in enumerate(sources)
        if source.numel()
        and source.untyped_storage().data_ptr() == memory
        and source.dtype == value.dtype
        and _span(source)[0] <= first <= last <= _span(source)[1]
    ]
    if len(found) != 1:
        return None
    offset = int(value.storage_offset()) - int(sources[found[0]].storage_offset())
    return View(found[0], (value.shape, value.stride(), offset))


def _span(value: Tensor) -> tuple[int, int]:
    """Its first and its last number in memory."""
    first = int(value.storage_offset())
    return first, first + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))


class Replay(NamedTuple):
    """What a call of a kind comes to: `given` are views of what is fed, `results` of what the plan gives and
    of what is fed."""

    entry: weakref.ref[Entry]  # forgotten with the plan
    layout: Layout
    given: tuple[Sequence[View], Sequence[View], Sequence[View]]  # x, states, weights
    results: Mapping[str, View]

    def run(self, fed: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """The outputs by name; None: the plan was forgotten.

        Raises:
            Unsupported: the plan declines.
        """
        entry = self.entry()
        if entry is None or entry.ready is None or entry.compiled is None:
            return None
        call = Call(entry.ready, self.layout, entry.compiled.constants, _no_gradients)
        x, states, weights = ([view.of(fed) for view in views] for views in self.given)
        out = run_plan(call, [contiguous(rows) for rows in x], [contiguous(s) for s in states], weights)
        sources = (*out, *fed)
        return {name: view.of(sources) for name, view in self.results.items()}


def _no_gradients(*_: Any) -> Any:
    raise AssertionError("a run that needs no gradient asks for the plain loop")


class Noting:
    """Notes how the plan of a loop was run."""

    def __init__(self) -> None:
        self._noted: tuple[Entry, Layout, tuple[Sequence[Tensor], ...], Sequence[Tensor]] | None = None

    def __call__(
        self, entry: Entry, layout: Layout, given: tuple[Sequence[Tensor], ...], out: Sequence[Tensor]
    ) -> None:
        self._noted = entry, layout, given, out

    def replay(self, fed: Sequence[Tensor], outputs: Mapping[str, Any]) -> Replay | None:
        """What such a call comes to; None: something was no view of what was fed."""
        if self._noted is None:
            return None
        entry, layout, given, out = self._noted
        views = tuple([view_of(value, fed) for value in values] for values in given)
        sources = (*out, *fed)
        results = {name: view_of(value, sources) for name, value in outputs.items()}
        if any(view is None for found in (*views, [*results.values()]) for view in found):
            return None
        return Replay(weakref.ref(entry), layout, views, results)  # pyright: ignore[reportArgumentType]


def kind_of(fed: Sequence[Any], backend: str, steps: int | None) -> Any:
    """What calls have in common that come to the same; None: of a call that may need a gradient, or that
    something watches."""
    if any(type(value) not in _PLAIN or value.is_complex() for value in fed) or not nothing_around():
        return None
    if torch.is_grad_enabled() and any(value.requires_grad for value in fed):
        return None
    ids = [*map(id, fed)]
    return (
        steps,
        tuple(map(ids.index, ids)),  # one tensor may be fed twice
        tried(backend),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_dtype("cpu"),
        torch.get_default_dtype(),
        default_device(),
        *[(v.shape, v.stride(), v.dtype, v.device, v.requires_grad) for v in fed],
    )


_PLAIN = (Tensor, torch.nn.Parameter)
