"""A plain loop of no steps: it calls the body once, to learn what y looks like, and nothing of that stays."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from stepnet.compiler.reads.imports import after_imports
from stepnet.compiler.reads.undo import undone
from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.draws import kept
from stepnet.compiler.trace.iteration import reached
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import draws_put_back, nothing_around
from stepnet.data.values import rows_of
from stepnet.errors import Unsupported
from stepnet.executors import naive
from stepnet.ir.loop import Loop

from .rows import as_rows


def run_of_no_steps(loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a loop that may be of no steps, by the plain loop. Of one that is, what the body's one
    call does to the objects and the tensors that it reads, and what noise it draws, is undone."""
    if not (_is_of_no_steps(loop, feeds) and nothing_around()):
        return naive.run(loop, feeds)
    return after_imports(lambda: _undone(loop, feeds))


def _undone(loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
    found = reached(loop, everything=True)
    if found.refused is not None:
        return naive.run(loop, feeds)
    given = {id(rows_of(fed)) for fed in feeds.values()}  # what is carried is given back as it came
    read = (t for t in found.tensors if type(t) in (Tensor, nn.Parameter) and id(t) not in given)
    swap = {id(t): t.detach().clone() for t in read}

    def attempt(_: object) -> dict[str, Any]:
        with draws_put_back(), kept(found.generators), Replaced(swap):
            return naive.run(loop, feeds)

    return contextvars.copy_context().run(lambda: undone(found.holders, found.key[0], attempt)[0])


def _is_of_no_steps(loop: Loop, feeds: Mapping[str, Any]) -> bool:
    if loop.sweep is None:
        return False
    first = feeds[loop.sources[0][0]]
    if not isinstance(first, LoDTensor):  # of no sequences there may be steps
        return first.shape[loop.sweep.axis] == 0
    try:
        return as_rows(loop, feeds).layout.steps == 0
    except Unsupported:  # steps over sentences, of no words
        return False
