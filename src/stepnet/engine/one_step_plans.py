"""Plans of calls of one step of few sequences, as of acting and streams: cut otherwise where an executor says
so (`Executor.for_one_step`), and held against the plain loop as any plan is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from stepnet.compiler.rewritten.inner_loops import is_guarded
from stepnet.data.lod import LoDTensor
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready, for_one_step
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .entries import Entry
from .executor_choice import about_as_many
from .reads import Reads
from .rows import Noise, Sequences
from .self_check import self_check
from .trial import apart

_MOST = about_as_many(64)  # sequences; of more, products on all of them by torch take as long (measured)


def is_one_step(x: Tensor | LoDTensor, layout: Layout, axis: int) -> bool:
    """Whether each of some sequences has one row, and there are any."""
    if type(x) is Tensor:
        return layout.sequences > 0 and x.shape[axis] == 1
    return layout.steps == 1 and layout.rows == layout.sequences


def plan_of_one_step(entry: Entry, loop: Callable[[], Loop], reads: Reads, sequences: Sequences) -> Ready:
    """What runs a call of one step. `loop`: its record."""
    ready, compiled = entry.ready, entry.compiled
    assert ready is not None
    assert compiled is not None
    as_ever = ready.plan.random or is_guarded(entry.y_spec)
    if as_ever or about_as_many(sequences.layout.sequences) > _MOST:
        return ready
    if entry.one_step is None:
        entry.one_step = ready
        with apart(reads):
            made = for_one_step(ready)
            if made is not None and compiled.is_compared:
                noise = Noise(compiled.draws, reads.reach.generators)
                weights = [reads.tensors[place] for place in entry.weights]
                try:
                    self_check(loop(), made, compiled, noise, sequences, weights)
                    entry.one_step = made
                    entry.notes.append("calls of 1 step of few sequences run in one scan")
                except Exception as error:  # whatever it is, the plan as it is was found right
                    let_through(error)
    return entry.one_step
