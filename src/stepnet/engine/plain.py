"""The plain loop on the rows of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.reads.put_back import Held, changed_since, put_back
from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.iteration import code_of, reached
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import StepError
from stepnet.executors import naive
from stepnet.ir.loop import Loop

from .cached_parametrizations import cached_again
from .reads import Reads, read
from .rows import Sequences

Results = tuple[list[Tensor], list[Tensor]]  # the leaves of y, and of the final state


def plain_loop(
    loop: Loop,
    sequences: Sequences,
    reads: Reads | None = None,
    places: Sequence[int] = (),
    reader: Callable[..., Reads] = read,
    *,
    guarded: bool = False,
) -> Callable[..., Results]:
    """The plain loop over rows that lie as those of `sequences`, `plain(x, states, weights)`.

    With weights, those stand where the step reads its tensors at `places` of what `reads` found. They may be
    others than at the call by now, as under `functional_call`; the step may not. A `guarded` plan has one
    more result, which is true for each row.

    Raises:
        StepError: the step reads something else by now.
    """

    def plain(
        x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> Results:
        if weights is None or reads is None:
            return run_it(x, states)
        with cached_again(reads.cached):
            now, held = read_as_then(loop, sequences, reads, reader)
            with put_back(held), Replaced.by((now.tensors[place] for place in places), weights):
                return run_it(x, states)

    def run_it(x: Sequence[Tensor], states: Sequence[Tensor]) -> Results:
        y, finals = run_plain(loop, sequences, x, states)
        return [*y, torch.ones(sequences.layout.rows, dtype=torch.bool)] if guarded else y, finals

    return plain


def read_as_then(
    loop: Loop, sequences: Sequences, reads: Reads, reader: Callable[..., Reads]
) -> tuple[Reads, list[Held]]:
    """What `read_again` gives where numbers that are others by now are put back, and where those stand."""
    try:
        return read_again(loop, sequences, reads, reader), []
    except StepError:
        held = changed_since(reads.reach, functools.partial(reached, loop))
        if held is None:
            raise
    with put_back(held):
        return read_again(loop, sequences, reads, reader), held


def read_again(
    loop: Loop, sequences: Sequences, reads: Reads, reader: Callable[..., Reads],
    why: str = "so its gradient cannot be differentiated again",
) -> Reads:  # fmt: skip
    """What a loop reads now, which is what it read before, perhaps in other tensors. `why` it is to be.

    Raises:
        StepError: it is something else.
    """
    # of rows that want a gradient where those of the call did: derivatives do other things where they do
    now = reader(loop, sequences.x_rows, sequences.states, sequences.shared)
    if now.refusal is not None or now.whole != reads.whole:
        raise StepError(
            f"step '{loop.body.name}' no longer reads what it read when it ran, {why}",
            remedy="change what the step reads after the last backward; or backend='naive'",
        )
    return now


def run_plain(loop: Loop, sequences: Sequences, x: Sequence[Tensor], states: Sequence[Tensor]) -> Results:
    layout = sequences.layout
    sequence_rows = layout.by_sequence
    back = torch.empty_like(sequence_rows)
    back[sequence_rows] = torch.arange(len(sequence_rows), device="cpu")
    lengths = [layout.lengths]
    own = x[: len(loop.slices)]  # without noise
    tables = [
        LoDTensor.from_lengths(rows.index_select(0, sequence_rows.to(rows.device)), lengths) for rows in own
    ]
    values = zip(loop.sources, (tables, states, sequences.shared), strict=True)
    feeds = {source: value for sources, part in values for source, value in zip(sources, part, strict=True)}
    out = naive.run(loop.ragged.around(code_of(loop).fresh()), feeds)
    leaves = flatten({port.output: out[port.output] for port in loop.joined})[0]
    y = [leaf.values.index_select(0, back.to(leaf.values.device)) for leaf in leaves]
    return y, [out[f"last {port.parameter}"] for port in loop.merged]
