"""The plain loop: what every loop means. Every other executor is measured against this one.

A ragged input is unpacked as Paddle's dynamic recurrent op did it: sequences ranked by length, step t
holds the t-th element of those longer than t, states shrink with them, and results are packed back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stepnet.errors import LoopError
from stepnet.ir.tensor_iterator import Concat, Invariant, Merged, TensorIterator

from .segment import Count, Cut


@dataclass(frozen=True)
class PlainLoop:
    """The plain loop among the backends. It takes the step itself: it needs no plan and declines nothing."""

    name: str = "naive"
    label: str = "the plain loop"


PLAIN = PlainLoop()
Observer = Callable[[int, Mapping[str, Any], torch.Tensor | None], None]


def run(loop: TensorIterator, feeds: Mapping[str, Any], observe: Observer | None = None) -> dict[str, Any]:
    """Run a loop step after step in torch.

    Args:
        loop: the loop.
        feeds: the value of each input port's `source`. Carried values are in the caller's order of
            sequences, one row each.
        observe: called after each step with its number, its named values, and the caller's index of
            the sequence in each row (None where all sequences are present in order).

    Returns:
        The value of each output port by its `output` name, in the caller's order.

    Raises:
        LoopError: sliced inputs disagree on the number of steps or on the LoD.
    """
    cuts = {port.parameter: Cut.of(port, feeds[port.source]) for port in loop.slices()}
    first = next(iter(cuts.values())) if cuts else Count(loop)
    for name, cut in cuts.items():
        first.check_same(cut, loop.slices()[0].parameter, name)
    order = first.order  # the caller's index of each ranked sequence

    current: dict[str, Any] = {}
    for port in loop.inputs:
        if isinstance(port, Merged):
            current[port.parameter] = first.to_rank(feeds[port.source])
        elif isinstance(port, Invariant):
            current[port.parameter] = feeds[port.source]
    finished: dict[str, list[Any]] = {name: [] for name in loop.carried}
    joined: dict[str, list[Any]] = {p.result: [] for p in loop.outputs if isinstance(p, Concat)}
    named: dict[str, Any] = {}

    for t in range(first.steps):
        active = first.active(t)
        for name in loop.carried:
            current[name] = first.shrink(current[name], active, finished[name])
        values = {name: cut[t] for name, cut in cuts.items()} | current
        results = loop.body(*(values[name] for name in loop.body.parameters))
        named = dict(zip(loop.body.results, results, strict=True))
        for name, kept in joined.items():
            kept.append(named[name])
        if observe is not None:
            observe(t, values | named, None if order is None else order[:active])
        for parameter, result in loop.carried.items():  # all back edges at once
            current[parameter] = named[result]

    outputs: dict[str, Any] = {}
    for port in loop.outputs:
        if isinstance(port, Concat):
            kept = joined[port.result] or [_shape_only(loop, cuts, current)[port.result]]
            outputs[port.output] = first.join(kept, port, empty=not joined[port.result])
        else:
            parameter = next((p for p, r in loop.carried.items() if r == port.result), None)
            if parameter is not None:
                outputs[port.output] = first.from_rank([current[parameter], *reversed(finished[parameter])])
            elif first.order is None and first.steps:
                outputs[port.output] = named[port.result]
            else:
                raise LoopError(
                    f"'{port.output}' asks for the last '{port.result}', which no back edge carries",
                    got="no steps" if first.order is None else "sequences that end at different steps",
                    remedy="add a back edge for it, or take it as Concat and select the last step",
                )
    return outputs


def _shape_only(loop: TensorIterator, cuts: dict[str, Cut], current: dict[str, Any]) -> dict[str, Any]:
    """Results of one step on no data: what a loop of no steps needs to know of its outputs."""
    with torch.no_grad():
        empty = {name: cut.empty_step() for name, cut in cuts.items()}
        first = next(iter(cuts.values())) if cuts else Count(loop)
        still = {n: first.no_rows(v) if n in loop.carried else v for n, v in current.items()}
        values = empty | still
        results = loop.body(*(values[name] for name in loop.body.parameters))
    return dict(zip(loop.body.results, results, strict=True))
