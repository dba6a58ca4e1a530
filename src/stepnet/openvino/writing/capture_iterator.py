"""TensorIterators built by hand, in a module that is traced: each is one node, as a recurrence is."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.capture import Replaced
from stepnet.compiler.reach import reach
from stepnet.compiler.record import tensors_used
from stepnet.data.outputs import Outputs
from stepnet.errors import IRError
from stepnet.front.step import step_name
from stepnet.iterator.body import CallBody
from stepnet.iterator.ports import InputPort, OutputPort, Port
from stepnet.iterator.tensor_iterator import INSTEAD, TensorIterator
from stepnet.user_line import user_line

from .places import places_of


@dataclass
class LoopCall:
    """A TensorIterator as it was run for real. `parts` are what its body was given at one iteration."""

    loop: TensorIterator
    body: CallBody
    parts: list[Tensor]
    places: list[int]  # of the tensors the body uses, among those it reaches
    weights: list[Tensor]
    where: str

    @property
    def ports(self) -> list[InputPort]:
        """The input port of each parameter of the body."""
        fed = {port.internal: port for port in self.loop.port_map if isinstance(port, InputPort)}
        return [fed[name] for name in self.body.parameters]


_CALLS: dict[int, LoopCall] = {}
_numbers = itertools.count()


@contextlib.contextmanager
def answered(instead: Callable[..., Any] | None) -> Iterator[None]:
    """Let `instead` answer for the TensorIterators that are called in here."""
    token = INSTEAD.set(instead)
    try:
        yield
    finally:
        INSTEAD.reset(token)


def loop_call(number: int) -> LoopCall:
    """The recorded call that a node of the graph stands for."""
    return _CALLS[number]


def part_of(port: InputPort, value: Tensor) -> Tensor:
    """A slice of an input, as the body gets it."""
    return value if port.axis is None else value.narrow(port.axis, 0, port.part_size)


def iterations(port: Port, size: Any) -> Any:
    """How often a port that is cut lets the loop run; `size` may be symbolic."""
    start = port.start + (size + 1 if port.start < 0 else 0)
    end = port.end + (size + 1 if port.end < 0 else 0)
    return (end - start if port.stride > 0 else start - end) // abs(port.stride)


@torch.library.custom_op("stepnet::iterator", mutates_args=())
def _iterator(call: int, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("a TensorIterator of a traced module is written, not run")


@_iterator.register_fake
def _(call: int, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    made = _CALLS[call]
    feeds = dict(zip(made.loop.inputs, inputs, strict=True))
    swap = {id(t): fake for t, fake in zip(made.weights, weights, strict=True)}
    with Replaced(swap), answered(None):
        results = made.body(*(part_of(port, feeds[port.external]) for port in made.ports))
    by_key = dict(zip(made.body.keys, results, strict=True))
    cut = [port for port in made.ports if port.axis is not None]
    out = []
    for port in made.loop.port_map:
        if not isinstance(port, OutputPort):
            continue
        result = by_key[port.internal]
        shape = list(result.shape)
        if port.axis is not None:
            first = cut[0] if cut else None
            size = 0 if first is None or first.axis is None else feeds[first.external].shape[first.axis]
            count = iterations(first or port, size) if first or min(port.start, port.end) >= 0 else 1
            shape[port.axis] = shape[port.axis] * count
        out.append(result.new_empty(shape))
    return out


class LoopRecorder:
    """Answers for a TensorIterator by running it, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, loop: TensorIterator, feeds: Mapping[str, Tensor]) -> Outputs:
        where = f"the TensorIterator over '{step_name(loop.body)}' ({user_line().short})"
        with answered(None):
            body = loop.loop.body
            assert isinstance(body, CallBody)
            out = loop(**feeds)
            made = LoopCall(loop, body, [], [], [], where)
            made.parts = [part_of(port, feeds[port.external]).detach().clone() for port in made.ports]
            used = tensors_used(lambda: body(*made.parts), made.parts)
        made.places = places_of(used, loop.body, where, "its body")
        made.weights = list(used)
        number = next(_numbers)
        _CALLS[number] = made
        self.calls.append(number)
        return out

    def forget(self) -> None:
        """Let go of what was kept."""
        for number in self.calls:
            _CALLS.pop(number, None)


class LoopTracer:
    """Answers for a TensorIterator by one node of the graph that is being traced."""

    def __init__(self, calls: Sequence[int]) -> None:
        self.calls = iter(calls)

    def __call__(self, loop: TensorIterator, feeds: Mapping[str, Tensor]) -> Outputs:
        number = next(self.calls, None)
        if number is None:
            raise IRError("the module runs another number of TensorIterators when it is traced")
        tensors = reach(loop.body, everything=True).tensors
        weights = [tensors[p] for p in _CALLS[number].places]
        out = torch.ops.stepnet.iterator(number, [feeds[name] for name in loop.inputs], weights)
        return Outputs(loop.outputs, tuple(out))
