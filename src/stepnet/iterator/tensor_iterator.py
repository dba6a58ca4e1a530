"""`stepnet.TensorIterator`: a loop built by hand from a body, a port map and back edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from stepnet.data.arguments import check_dense
from stepnet.data.in_graph import by_python
from stepnet.data.lod import LoDTensor
from stepnet.data.no_graph import refuse_proxies, refuse_traces
from stepnet.data.outputs import Outputs
from stepnet.data.recording import AS_A_LAYER, RECORDER, StandIn, inside, recorded_in_frames
from stepnet.data.storage import apart
from stepnet.errors import LoopError, Unsupported
from stepnet.executors import naive
from stepnet.executors.base import Backend
from stepnet.executors.naive import PLAIN
from stepnet.executors.registry import AUTO
from stepnet.executors.setting import check_backend
from stepnet.front.step import describe_leaf, describe_leaves, step_name
from stepnet.ir import loop as ir
from stepnet.watchers import ITERATORS

from .body import CallBody
from .port_checks import fit, infer_shape
from .port_map import check_ports, does_not_fit, record
from .ports import BackEdge, InputPort, OutputPort, Port
from .rows import RowLoop, show_declined

_MADE: WeakKeyDictionary[TensorIterator, tuple[tuple[Any, ...], RowLoop]] = WeakKeyDictionary()


class TensorIterator(nn.Module):
    """OpenVINO's TensorIterator over a torch body: slices in, back edges between iterations, outputs joined.

    Means, for N iterations of a body with parameters p and results r::

        for i in range(N):
            p = slice i of inputs with an axis; all of the others
            p, from the second iteration on: what back edges carried instead
            r = body(**p)
            carried = results that back edges start at, all at once
        outputs = results of all iterations joined along an axis, or the last one

    With D elements along an axis, a negative `start` or `end` counts from D + 1; between the two lie N slices
    of `part_size` elements. All sliced inputs must give the same N. If none is sliced, an `OutputPort` with
    an axis whose `start` and `end` are not negative says N, else it is 1. No iterations leave carried values
    as they came in, and join to nothing.

    It runs as a step of `recurrent` does: compiled if the body treats each row of the batch alike (the first
    axis, or the second of what is cut along axis 0), else by the plain loop.

    Args:
        body: a function or an nn.Module. Its parameters are fed by name; it returns a tensor, a tuple of
            them (results 0, 1, ...), or a dict (results by name). Parameters with a default need no port.
        port_map: InputPorts and OutputPorts, in any order. The order in which inputs and outputs are named
            first is theirs in a call.
        back_edges: BackEdges. Each ends at a parameter that an InputPort without an axis gives a first value.
        backend: as in `recurrent`.

    Attributes:
        inputs, outputs: their names, in order.
        loop: the record that runs.

    Raises:
        LoopError: the port map does not fit the body; every mistake is listed, each port as it was written.

    Source: OpenVINO's specification of TensorIterator-1.

    >>> def body(x_t, h):
    ...     h = 0.5 * h + x_t.squeeze(1)
    ...     return h, h.unsqueeze(1)
    >>> loop = TensorIterator(
    ...     body,
    ...     port_map=[InputPort("x", "x_t", axis=1), InputPort("h0", "h"),
    ...               OutputPort("y", 1, axis=1), OutputPort("h", 0)],
    ...     back_edges=[BackEdge(0, "h")],
    ... )
    >>> y, h = loop(torch.ones(1, 3, 1), h0=torch.zeros(1, 1))
    >>> y.flatten().tolist(), h.item()
    ([1.0, 1.5, 1.75], 1.75)
    >>> loop.infer_shape(x=(8, 25, 512), h0=(8, 512))
    {'y': torch.Size([8, 25, 512]), 'h': torch.Size([8, 512])}
    """

    takes_sequences = True  # to `explain` a model, and no step

    def __init__(
        self,
        body: Callable[..., Any],
        port_map: Sequence[Port],
        back_edges: Sequence[BackEdge] = (),
        *,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        check_ports(body, port_map, back_edges)
        check_backend(backend)
        self.body = body
        self.port_map = tuple(port_map)
        self.back_edges = tuple(back_edges)
        self.backend: Backend | None = backend

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(dict.fromkeys(port.external for port in self.port_map if isinstance(port, InputPort)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(port.external for port in self.port_map if isinstance(port, OutputPort))

    @property
    def loop(self) -> ir.Loop:
        """The record of the loop, as every kind of recurrence has one."""
        return self._rows().loop

    def _rows(self) -> RowLoop:
        """What runs the loop. It is kept beside the module, for it is no part of what a step reaches."""
        made_of = (self.body, self.port_map, self.back_edges)
        known = _MADE.get(self)
        if known is not None and all(a is b for a, b in zip(known[0], made_of, strict=True)):
            return known[1]
        rows = RowLoop(record(*made_of))
        _MADE[self] = made_of, rows
        return rows

    if TYPE_CHECKING:

        def __call__(self, *args: Tensor, **kwargs: Tensor) -> Outputs: ...

    @by_python("a TensorIterator is a loop of its own")
    def forward(self, *args: Tensor, **kwargs: Tensor) -> Outputs:
        """Run the loop on inputs by position or by name.

        Returns:
            The outputs: by name, by number, or unpacked in order.

        Raises:
            LoopError: an input is missing or unknown, slices do not fit, or results do not; every mistake
                of the inputs is listed.
            Unsupported: the backend asked for by name declines the loop.

        Warns:
            SlowPathWarning: once for a body that cannot be compiled and runs by the plain loop.
        """
        recorded = not torch.compiler.is_compiling() and RECORDER.get() is not None
        if recorded and next(inside((args, kwargs)), None) is not None:
            made: Any = self._part_of_frame(args, kwargs)  # one value where nothing is known of it
            return Outputs(self.outputs, tuple(made[i] for i in range(len(self.outputs))))
        instead = ITERATORS.get()
        if instead is not None:
            feeds = self.feeds(*args, **kwargs)
            return self._named(instead(self.loop, feeds, lambda: self._by_name(feeds)))
        return self._run(args, kwargs)

    @recorded_in_frames()
    def _part_of_frame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        return self(*args, **kwargs).tuple()

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outputs:
        feeds = self.feeds(*args, **kwargs)
        out = self._by_name(feeds)
        if not torch.compiler.is_compiling():  # a graph gives results of its own
            given = (*feeds.values(), *self.parameters(), *self.buffers())
            out = dict(zip(out, apart([*out.values()], given), strict=True))
        return self._named(out)

    def _named(self, out: Mapping[str, Any]) -> Outputs:
        return Outputs(self.outputs, tuple(out[name] for name in self.outputs))

    def _by_name(self, feeds: dict[str, Tensor]) -> dict[str, Any]:
        refuse_traces()
        steps = self._steps(feeds)
        chosen = check_backend(self.backend)
        rows = self._rows()
        loop = rows.loop
        out: dict[str, Any] | None = None
        if chosen == PLAIN.name or not steps:
            why = "backend='naive' asks for the plain loop" if steps else "it has no steps"
            show_declined(loop, feeds, steps, Unsupported(why))
        else:
            try:
                out = rows.run(feeds, chosen, steps=steps)
            except Unsupported:
                if chosen != AUTO:
                    raise
        if out is None:
            out = naive.run(loop, feeds)
            if chosen == AUTO and steps:
                rows.warn(feeds, chosen, steps)
        return out

    def feeds(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The inputs of a call by name.

        Raises:
            LoopError: as `forward`, of what is missing, unknown, given twice or no tensor.
        """
        found, wrong = self._placed(args, kwargs)
        refuse_proxies(found.values())
        names = self.inputs
        wrong += [f"there is no input {name!r}" for name in kwargs if name not in names]
        for name in names:
            if name not in found:
                wrong.append(f"input {name!r} is not given")
            elif not isinstance(found[name], Tensor) or isinstance(found[name], LoDTensor):
                remedy = f" ({AS_A_LAYER})" if isinstance(found[name], StandIn) else ""
                wrong.append(f"input {name!r} must be a tensor, not {describe_leaf(found[name])}{remedy}")
            else:
                check_dense(f"input {name!r} of a TensorIterator", found[name], LoopError)
        if wrong:
            raise does_not_fit(step_name(self.body), wrong, f"inputs {', '.join(names)}")
        return found

    def _placed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """What is given by name, also what was given by position, and what is wrong about that."""
        wrong: list[str] = []
        if len(args) > len(self.inputs):
            wrong.append(f"{len(args)} inputs are given by position, there are {len(self.inputs)}")
        by_position = dict(zip(self.inputs, args, strict=False))
        wrong += [f"input {n!r} is given by position and by name" for n in kwargs if n in by_position]
        return by_position | dict(kwargs), wrong

    def _steps(self, feeds: Mapping[str, Tensor]) -> int:
        found = fit(self.port_map, feeds)
        if found.wrong:
            given = describe_leaves(feeds, feeds.values())
            raise does_not_fit(step_name(self.body), found.wrong, f"inputs that fit; given: {given}")
        if not isinstance(found.steps, int):
            raise LoopError(
                f"TensorIterator over {step_name(self.body)!r}: a program cannot hold it, as its number of "
                "steps is left open",
                got=f"a dynamic size, {found.steps}, along the axis of its slices",
                expected="a fixed number of steps: a program holds each of them",
                remedy="leave that axis out of dynamic_shapes, or call recurrent, of which a program holds "
                "any number; stepnet.onnx.save and stepnet.openvino.save write a TensorIterator as it is",
            )
        return found.steps

    def infer_shape(self, *args: Any, **given: Any) -> dict[str, torch.Size]:
        """The shape of every output, without running the loop.

        Args:
            args: inputs by position: a shape (its dtype is that of the weights, else the default one), or a
                tensor, of which shape and dtype are read; it may be a meta tensor or a fake one.
            given: inputs by name.

        Raises:
            LoopError: everything that does not fit, each port as it was written: inputs that are missing or
                unknown, axes and slices outside an input, ports that count different numbers of iterations,
                results that the body does not return, states that change shape or dtype, results of another
                size than their part_size.

        >>> loop = TensorIterator(lambda x, s: s + x, [InputPort("x", "x", axis=0), InputPort("s", "s"),
        ...                       OutputPort("sum", 0)], [BackEdge(0, "s")])
        >>> loop.infer_shape(x=(7, 2), s=torch.empty(1, 3, device="meta"))
        Traceback (most recent call last):
        stepnet.errors.LoopError: TensorIterator over '<lambda>': 1 thing does not fit
          - the body fails on x float32[1, 2], s float32[1, 3]: ...
        """
        body = self.loop.body
        assert isinstance(body, CallBody)
        dtypes = [weight.dtype for weight in self.parameters() if weight.is_floating_point()]
        dtype = dtypes[0] if dtypes else torch.get_default_dtype()
        found, wrong = self._placed(args, given)
        if wrong:
            raise does_not_fit(step_name(self.body), wrong, f"inputs {', '.join(self.inputs)}")
        return infer_shape(body, self.port_map, self.back_edges, found, dtype)

    def extra_repr(self) -> str:
        ports = [repr(part) for part in (*self.port_map, *self.back_edges)]
        if not isinstance(self.body, nn.Module):
            ports.insert(0, step_name(self.body))
        return "\n".join(ports)
