"""Hold what a loop is given against its ports, without running it: counts of iterations, and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor
from stepnet.errors import LoopError
from stepnet.executors.segment import iterations
from stepnet.front.meta import OnMeta, without_data
from stepnet.front.step import describe_leaf, describe_leaves, step_name
from stepnet.ir import loop as ir

from .body import CallBody
from .port_map import does_not_fit
from .ports import BackEdge, InputPort, OutputPort, Port, cut_of

Sizes = tuple[int, ...]


@dataclass
class Fit:
    """What the inputs of a loop say: how many iterations, the shape that each port feeds, what is wrong."""

    steps: int = 1
    shapes: dict[str, Sizes] = field(default_factory=dict)  # by parameter
    wrong: list[str] = field(default_factory=list)


def fit(port_map: Sequence[Port], given: Mapping[str, Tensor]) -> Fit:
    """Cut shapes as ports say. `given` may lack inputs, of which nothing is said then."""
    found = Fit()
    inputs: dict[Port, int] = {}
    outputs: dict[Port, int] = {}
    for port in port_map:
        if isinstance(port, OutputPort):
            if port.axis is not None and port.start >= 0 and port.end >= 0:
                counted = _count(port, max(port.start, port.end), found.wrong)
                outputs |= {} if counted is None else {port: counted}
            continue
        if port.external not in given:
            continue
        shape = list(given[port.external].shape)
        if port.axis is not None:
            if not -len(shape) <= port.axis < len(shape):
                found.wrong.append(
                    f"{port!r}: input {port.external!r} has no axis {port.axis}: it is {shape}"
                )
                continue
            counted = _count(port, shape[port.axis], found.wrong)
            inputs |= {} if counted is None else {port: counted}
            shape[port.axis] = port.part_size
        found.shapes[port.internal] = tuple(shape)
    counts = inputs | outputs
    first = next(iter(counts.values()), 1)
    if any(count != first for count in counts.values()):  # no set: a symbolic size has no hash
        told = ", ".join(f"{count} by {port!r}" for port, count in counts.items())
        found.wrong.append(f"ports count different numbers of iterations: {told}")
    found.steps = first
    return found


def _count(port: Port, size: int, wrong: list[str]) -> int | None:
    try:
        return iterations(ir.Slice(port.external, port.external, **cut_of(port)), size)[2]
    except LoopError as error:
        what, *rest = str(error).splitlines()
        wrong.append(f"{port!r}: {what} ({', '.join(' '.join(line.split()) for line in rest)})")
        return None


def as_meta(name: str, value: Any, dtype: torch.dtype, wrong: list[str]) -> Tensor | None:
    """A shape (then of `dtype`), or a tensor of any kind, as a tensor without data."""
    if isinstance(value, Tensor) and not isinstance(value, LoDTensor):
        return torch.empty(tuple(int(n) for n in value.shape), dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value
    ):
        return torch.empty(tuple(value), dtype=dtype, device="meta")
    wrong.append(f"input {name!r} is {describe_leaf(value)}: neither a shape nor a tensor")
    return None


def infer_shape(
    body: CallBody, port_map: Sequence[Port], back_edges: Sequence[BackEdge], given: Mapping[str, Any],
    dtype: torch.dtype,
) -> dict[str, torch.Size]:  # fmt: skip
    """The shape of each output; see `TensorIterator.infer_shape`."""
    names = list(dict.fromkeys(p.external for p in port_map if isinstance(p, InputPort)))
    wrong = [f"there is no input {name!r}" for name in given if name not in names]
    wrong += [f"input {name!r} is not given" for name in names if name not in given]
    metas: dict[str, Tensor] = {}
    for name in names:
        value = as_meta(name, given[name], dtype, wrong) if name in given else None
        if value is not None:
            metas[name] = value
    found = fit(port_map, metas)
    wrong += found.wrong
    shapes: dict[str, torch.Size] = {}
    if found.shapes.keys() >= set(body.parameters):
        source = {p.internal: metas[p.external] for p in port_map if isinstance(p, InputPort)}
        fed = {
            name: torch.empty(found.shapes[name], dtype=source[name].dtype, device="meta")
            for name in body.parameters
        }
        shapes = _results(body, port_map, back_edges, found.steps, fed, wrong)
    if wrong:
        inputs = describe_leaves(metas, metas.values())
        raise does_not_fit(step_name(body.function), wrong, f"inputs that fit; given: {inputs or 'none'}")
    return shapes


def _results(
    body: CallBody, port_map: Sequence[Port], back_edges: Sequence[BackEdge], steps: int,
    fed: Mapping[str, Tensor], wrong: list[str],
) -> dict[str, torch.Size]:  # fmt: skip
    """Run the body without data; the shapes of the outputs, and on `wrong` what does not fit."""
    try:
        results, missing = body.pick(_without_running(body.call, list(fed.values())))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        wrong.append(f"the body fails on {describe_leaves(fed, fed.values())}: {said}")
        return {}
    wrong += missing.values()
    for edge in back_edges:
        before, after = fed[edge.to_parameter], results.get(edge.from_result)
        if after is not None and (before.shape, before.dtype) != (after.shape, after.dtype):
            wrong.append(f"{edge!r}: the state is {describe_leaf(before)} and becomes {describe_leaf(after)}")
    shapes: dict[str, torch.Size] = {}
    carried = {edge.from_result for edge in back_edges}
    for port in port_map:
        value = results.get(port.internal) if isinstance(port, OutputPort) else None
        if value is None:
            continue
        shape = list(value.shape)
        if port.axis is None:
            if steps == 0 and port.internal not in carried:
                wrong.append(f"{port!r}: there is no iteration to take the last value of, and no back edge")
        elif not -len(shape) <= port.axis < len(shape):
            wrong.append(f"{port!r}: result {port.internal!r} has no axis {port.axis}: it is {shape}")
            continue
        else:
            if shape[port.axis] != port.part_size:
                wrong.append(
                    f"{port!r}: result {port.internal!r} must have part_size={port.part_size} elements"
                    f" along axis {port.axis}: it is {shape}"
                )
            shape[port.axis] = steps * port.part_size
        shapes[port.external] = torch.Size(shape)
    return shapes


def _without_running(call: Callable[[Sequence[Any]], Any], values: Sequence[Tensor]) -> Any:
    with torch.no_grad(), OnMeta():
        return call([without_data(value) for value in values])
