"""The entries of a port map, and back edges, as a user writes them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


class _Shown:
    """Prints as it was written: settings that have their default are left out."""

    def __repr__(self) -> str:
        written: list[str] = []
        for i, field in enumerate(fields(self)):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if i < 2:
                written.append(repr(value))
            elif type(value) is not type(field.default) or value != field.default:
                written.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(written)})"


@dataclass(frozen=True, repr=False)
class _Port(_Shown):
    external: str
    internal: Any
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1


@dataclass(frozen=True, repr=False)
class InputPort(_Port):
    """An input of a TensorIterator, and the parameter of its body that it feeds.

    With an `axis` the input is cut into steps; without, the parameter gets all of it: at every iteration, or
    at the first one only if a `BackEdge` feeds the parameter then.

    Attributes:
        external: the name of the input; several ports may cut or pass on the same one.
        internal: the name of the body's parameter.
        axis: cut along this axis of the input; None: not cut. The axis stays, with `part_size` elements.
        start: where iteration starts. A negative one counts from the end: of D elements, -1 is D.
        end: where it ends, counted alike. 0 and -1 are the whole axis; backwards, -1 and 0.
        stride: from one step to the next; a negative one goes backwards.
        part_size: elements in a step, as many as the stride's size. Their order is kept, backwards too.

    Source: OpenVINO TensorIterator-1, `port_map`; `part_size` is in its files, not in its document.

    >>> InputPort("x", "x_t", axis=1, start=-1, end=0, stride=-1)
    InputPort('x', 'x_t', axis=1, start=-1, end=0, stride=-1)
    """

    internal: str


@dataclass(frozen=True, repr=False)
class OutputPort(_Port):
    """An output of a TensorIterator, and the result of its body that it is made of.

    With an `axis` it is the values of all iterations joined along that axis, in their order, or with a
    negative `stride` in the opposite one. Without, it is the value of the last iteration.

    Attributes:
        external: the name of the output.
        internal: the body's result: its position, or its name if the body returns a dict.
        axis: join along this axis of the result; None: take the last value.
        start, end: as in `InputPort`. If both count from the beginning and no input is cut, they say how
            many iterations there are.
        stride: negative: the first iteration's value comes last.
        part_size: elements along `axis` that each iteration gives, as many as the stride's size.

    Source: OpenVINO TensorIterator-1, `port_map`.

    >>> OutputPort("last", 0), OutputPort("y", "y_t", axis=1)
    (OutputPort('last', 0), OutputPort('y', 'y_t', axis=1))
    """

    internal: int | str


@dataclass(frozen=True, repr=False)
class BackEdge(_Shown):
    """A result of one iteration becomes a parameter of the next. All back edges act at once.

    Attributes:
        from_result: the body's result, as in `OutputPort`.
        to_parameter: the name of the body's parameter. An `InputPort` without an axis gives its first value.

    Source: OpenVINO TensorIterator-1, `back_edges`.

    >>> BackEdge(0, to_parameter="h")
    BackEdge(0, 'h')
    """

    from_result: int | str
    to_parameter: str


Port = InputPort | OutputPort


def cut_of(port: Port) -> dict[str, Any]:
    """How a port cuts or joins, as the ports of the record say it."""
    return {name: getattr(port, name) for name in ("axis", "start", "end", "stride", "part_size")}
