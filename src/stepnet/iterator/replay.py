"""A loop run like one before: the views of what it is fed that its plan took, the plan, and the views of what
that gave. Nothing between is asked again, for calls that need no gradient."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.data.modes import default_device, nothing_around, settings
from stepnet.data.unpatched_torch import contiguous, data_ptr
from stepnet.engine import Entry, Reads
from stepnet.executors.autograd import is_computed_again, run_direct, run_plan
from stepnet.executors.call import Call, goes_by_places, not_asked_for
from stepnet.executors.direct import Direct, Lately
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.executors.registry import tried
from stepnet.watchers import is_noted, note_run

from .replay_by_address import ByAddress
from .views import View, view_of

_MOST = 8  # numbers of threads, and modes, that runs by address are kept for


class Replay(NamedTuple):
    """What a call of a kind comes to: `given` are views of what is fed, `results` of what the plan gives and
    of what is fed."""

    entry: weakref.ref[Entry]  # forgotten with the plan
    ready: weakref.ref[Ready]
    layout: Layout
    steps: tuple[int, ...]  # see `Call`
    given: tuple[Sequence[View], Sequence[View], Sequence[View]]  # x, states, weights
    results: Mapping[str, View]
    direct: bool  # whether a run may go by places
    lately: Lately
    last: dict[int, tuple[Tensor, int, Tensor]]  # weights by their number: of what, where, and the view
    by_address: dict[Direct, ByAddress | None]  # runs by places without views; None: not so

    def run(self, fed: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """The outputs by name; None: the plan was forgotten.

        Raises:
            Unsupported: the plan declines.
        """
        entry = self.entry()
        if entry is None or entry.ready is None or entry.compiled is None:
            return None
        ready = entry.ready
        if ready is not self.ready():
            return None
        direct = self.lately.last(self.layout, self.steps, torch.is_grad_enabled()) if self.direct else None
        if direct is not None and not is_noted() and not is_computed_again():
            by_address = self.by_address.get(direct) or self._by_address(direct, fed)
            found = None if by_address is None else by_address.run(fed)
            if found is not None:
                return found
        weights = self._weights(fed)
        given = *([view.of(fed) for view in views] for views in self.given[:2]), weights
        x, states = ([contiguous(t) for t in part] for part in given[:2])
        call, out = Call(ready, self.layout, entry.compiled.constants, not_asked_for, steps=self.steps), None
        if self.direct:
            inputs = (*x, *states, *weights)
            direct = self.lately.direct(ready, self.layout, inputs, self.steps, torch.is_grad_enabled())
            out = None if direct is None else run_direct(direct, lambda: call, inputs, self.layout)
        out = run_plan(call, x, states, weights) if out is None else out
        note_run(entry, self.layout, given, out, self.steps)
        sources = (*out, *fed)
        return {name: view.of(sources) for name, view in self.results.items()}

    def _by_address(self, direct: Direct, fed: Sequence[Tensor]) -> ByAddress | None:
        if direct not in self.by_address and len(self.by_address) < _MOST:
            try:
                if direct.layout is not self.layout:
                    raise LookupError
                views = [view for part in self.given for view in part]
                self.by_address[direct] = ByAddress(direct, fed, views, self.results)
            except LookupError:
                self.by_address[direct] = None
        return self.by_address.get(direct)

    def _weights(self, fed: Sequence[Tensor]) -> list[Tensor]:
        """The views of weights, which are the same from call to call where those are, in their memory."""
        found = []
        for k, view in enumerate(self.given[2]):
            if view.place is None or view.always is not None:
                found.append(view.of(fed))
                continue
            source, last = fed[view.source], self.last.get(k)
            if last is None or last[0] is not source or last[1] != data_ptr(source):
                last = self.last[k] = source, data_ptr(source), view.of(fed)
            found.append(last[2])
        return found


class Noting:
    """Notes how the plan of a loop was run."""

    def __init__(self) -> None:
        self.noted: list[tuple[Entry, Layout, tuple[Sequence[Tensor], ...], Sequence[Tensor], Any]] = []
        self.reads: Reads | None = None  # by the last run that was no run like one before

    def __call__(
        self, entry: Entry, layout: Layout, given: tuple[Sequence[Tensor], ...], out: Sequence[Tensor],
        steps: tuple[int, ...] = (), reads: Reads | None = None,
    ) -> None:  # fmt: skip
        self.noted.append((entry, layout, given, out, steps))
        self.reads = reads

    def replay(
        self, fed: Sequence[Tensor], outputs: Mapping[str, Any], always: Collection[int] = ()
    ) -> Replay | None:
        """What such a call comes to; None: something was no view of what was fed, or several plans ran.

        Args:
            fed: to the loop.
            outputs: by name.
            always: the addresses of memory that is the same in all calls, and that no caller gets hold of.
        """
        if len(self.noted) != 1:
            return None
        entry, layout, given, out, steps = self.noted[0]
        if entry.ready is None or entry.compiled is None or entry.ready.plan.random:
            return None
        views = tuple(
            [
                View(0, None, v) if v.untyped_storage().data_ptr() in always else view_of(v, fed)
                for v in values
            ]
            for values in given
        )
        sources = (*out, *fed)
        results = {name: view_of(value, sources) for name, value in outputs.items()}
        if any(view is None for found in (*views, [*results.values()]) for view in found):
            return None
        direct = goes_by_places(entry.ready, entry.compiled.constants, [t for part in given for t in part])
        whose = weakref.ref(entry), weakref.ref(entry.ready)
        return Replay(*whose, layout, steps, views, results, direct, Lately(), {}, {})  # pyright: ignore[reportArgumentType]


def kind_of(fed: Sequence[Any], backend: str, steps: int | None) -> Any:
    """What calls have in common that come to the same; None: of a call that may need a gradient, or that
    something watches."""
    if any(type(v) not in _PLAIN or v.is_complex() or v.is_neg() for v in fed) or not nothing_around():
        return None
    if torch.is_grad_enabled() and any(value.requires_grad for value in fed):
        return None
    ids = [*map(id, fed)]
    return (
        steps,
        tuple(map(ids.index, ids)),  # one tensor may be fed twice
        tried(backend),
        torch.is_inference_mode_enabled(),
        *settings(),
        default_device(),
        *[(v.shape, v.stride(), v.dtype, v.device, v.requires_grad) for v in fed],
    )


_PLAIN = (Tensor, torch.nn.Parameter)
