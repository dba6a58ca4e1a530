"""The loop of a body that goes over rows, from the names of what is cut, carried and joined."""

from __future__ import annotations

import functools
from typing import Any

from .loop import BackEdge, Body, Concat, Invariant, Last, Loop, Merged, Slice

Names = tuple[str, ...]


def over_rows(
    body: Body, x: Names, states: Names, new: Names, joined: Names, shared: Names = (), *,
    axis: int, level: int | None = None, reverse: bool = False,
) -> Loop:  # fmt: skip
    """The loop that runs a body over rows; inputs and outputs have the names of its parameters and results.

    Args:
        body: what runs at each step.
        x: the parameters that are cut, along `axis` or by LoD `level`.
        states, new: the parameters that are carried, and for each the result that is its next value.
        joined: the results that are joined, as x is cut.
        shared: the parameters that are the same at every step.
        reverse: from the last step to the first.

    >>> class Sum:
    ...     name, parameters, results = "sum", ("x", "s"), ("s_new",)
    ...     def __call__(self, x, s): return (s + x,)
    >>> over_rows(Sum(), ("x",), ("s",), ("s_new",), (), axis=0).finals
    (('s_new', 0),)
    """
    return _ports(x, states, new, joined, shared, axis, level, reverse).around(body)


@functools.lru_cache(maxsize=256)
def _ports(
    x: Names, states: Names, new: Names, joined: Names, shared: Names, axis: int, level: int | None,
    reverse: bool,
) -> Loop:  # fmt: skip
    cut: Any = {"axis": axis, "level": level}
    if reverse:
        cut |= {"start": -1, "end": 0, "stride": -1}
    return Loop(
        _Named((*x, *states, *shared), (*joined, *new)),
        inputs=(
            *(Slice(name, name, **cut) for name in x),
            *(Merged(name, name) for name in states),
            *(Invariant(name, name) for name in shared),
        ),
        outputs=(*(Concat(name, name, **cut) for name in joined), *(Last(name, name) for name in new)),
        back_edges=tuple(BackEdge(a, b) for a, b in zip(new, states, strict=True)),
    )


class _Named:
    """Stands for the bodies with these names."""

    name = "a body"

    def __init__(self, parameters: Names, results: Names) -> None:
        self.parameters, self.results = parameters, results

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        raise NotImplementedError
