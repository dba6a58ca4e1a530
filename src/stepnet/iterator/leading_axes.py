"""Axes of one element before the batch, as states of a layer have them in files: a loop over rows goes
without.

    x[t]: [1, B, F], h: [1, B, H]     ->     rows [B, F] and [B, H]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.errors import IRError, LoopError, Unsupported
from stepnet.ir.loop import Concat, Loop

Shapes = Mapping[str, "torch.Size"]


class Leads(NamedTuple):
    """Which states, whether what is cut, and which of the outputs that are joined have such an axis, besides
    that of the step."""

    states: tuple[str, ...] = ()
    cut: bool = False
    rows: tuple[str, ...] = ()


def possible(loop: Loop, feeds: Mapping[str, Tensor]) -> list[Leads]:
    """Where such axes may stand, best first: one step says of the rows that are joined."""
    states = {port.parameter: feeds[port.source].shape for port in loop.merged}
    x = {port.parameter: feeds[port.source].shape[1:] for port in loop.slices}
    if not states or not x or any(0 in feeds[port.source].shape[:1] for port in loop.slices):
        return []
    if not any(len(shape) > 1 and shape[0] == 1 for shape in (*states.values(), *x.values())):
        return []
    first: dict[str, Any] = {port.parameter: feeds[port.source] for port in (*loop.merged, *loop.invariants)}
    first |= {port.parameter: feeds[port.source][:1] for port in loop.slices}
    try:
        with torch.no_grad():
            found = loop.body(*(first[name] for name in loop.body.parameters))
    except (IRError, LoopError, Unsupported, RuntimeError):  # the plain loop tells it, if it meets it
        return []
    made = {name: value.shape for name, value in zip(loop.body.results, found, strict=True)}
    carried = {*loop.carried.values()}
    rows = {p.output: made[p.result][1:] for p in loop.outputs if isinstance(p, Concat)}
    rows |= {
        p.output: made[p.result]
        for p in loop.outputs
        if not isinstance(p, Concat) and p.result not in carried
    }
    return [leads for leads in _leads(states, x, rows) if any(leads)]


def _leads(states: Shapes, x: Shapes, rows: Shapes) -> Iterator[Leads]:
    """Such axes by the shapes of a step."""
    for cut in (True, False):
        if any(len(shape) <= cut or (cut and shape[0] != 1) for shape in x.values()):
            continue
        batch = next(iter(x.values()))[cut]
        least = 3 if batch == 1 else 2  # [1, features] is a batch of one, or one row behind such an axis
        for rank in range(least, 1, -1):
            led = [n for n, s in states.items() if len(s) >= rank and s[0] == 1 and s[1] == batch]
            if all(name in led or (len(s) and s[0] == batch) for name, s in states.items()):
                of_rows = [n for n, s in rows.items() if len(s) >= least and s[0] == 1 and s[1] == batch]
                yield Leads(tuple(led), cut, tuple(of_rows))
