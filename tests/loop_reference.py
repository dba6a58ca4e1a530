"""The document's loop, written down as it reads: one iteration after another, indices counted by hand."""

from __future__ import annotations

import torch

from stepnet import InputPort, OutputPort


class Misfit(Exception):
    """What the document gives no meaning to."""


def begins(port, size):
    """Where each iteration's part begins on an axis of `size` elements, in the order of iteration."""
    start = port.start if port.start >= 0 else size + 1 + port.start
    end = port.end if port.end >= 0 else size + 1 + port.end
    if not (0 <= start <= size and 0 <= end <= size):
        raise Misfit("outside")
    found = []
    at = start
    while at != end:
        if (end - at > 0) != (port.stride > 0):
            raise Misfit("never gets there")
        found.append(at if port.stride > 0 else at - port.part_size)
        at += port.stride
        if (end - at) * port.stride < 0:
            raise Misfit("does not divide")
    return found


def run(body, port_map, back_edges, given):
    """The outputs by name. `body(**parameters)` returns a tuple."""
    inputs = [p for p in port_map if isinstance(p, InputPort)]
    outputs = [p for p in port_map if isinstance(p, OutputPort)]
    cut = {p.internal: begins(p, given[p.external].shape[p.axis]) for p in inputs if p.axis is not None}
    counts = {len(found) for found in cut.values()}
    if len(counts) > 1:
        raise Misfit("counts differ")
    if not counts:
        ranges = [p for p in outputs if p.axis is not None and p.start >= 0 and p.end >= 0]
        counts = {len(begins(p, max(p.start, p.end))) for p in ranges} or {1}
    values = {p.internal: given[p.external] for p in inputs if p.axis is None}
    kept = []
    for i in range(counts.pop()):
        for p in inputs:
            if p.axis is not None:
                whole, at = given[p.external], cut[p.internal][i]
                where = [slice(None)] * whole.dim()
                where[p.axis] = slice(at, at + p.part_size)
                values[p.internal] = whole[tuple(where)]
        results = body(**values)
        kept.append(results)
        values |= {edge.to_parameter: results[edge.from_result] for edge in back_edges}
    carried = {edge.from_result: values[edge.to_parameter] for edge in back_edges}
    found = {}
    for p in outputs:
        all_of_it = [results[p.internal] for results in kept]
        if p.axis is None:
            found[p.external] = all_of_it[-1] if kept else carried[p.internal]
        elif kept:
            found[p.external] = torch.cat(all_of_it if p.stride > 0 else all_of_it[::-1], p.axis)
        else:
            found[p.external] = None  # no elements along the axis
    return found
