"""Calls of torch that were noted, and the text of a function that calls them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Call:
    """A call that was noted.

    Attributes:
        function: what was called: a function of torch, or a node.
        arguments: by position and by name; tensors that the function computes are `Slot`.
        results: the slots of what it gives.
        several: whether that is a sequence.
        kept: whether it stays where nothing reads what it gives.
        view: whether it only says where numbers of another tensor stand.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    results: Sequence[int]
    several: bool
    kept: bool
    view: bool = False


@dataclass(frozen=True)
class Slot:
    number: int


def function_of(
    calls: Sequence[Call], parameters: Sequence[int], outputs: Sequence[int | Tensor]
) -> Callable[..., Any]:
    """A function of the tensors in some slots: the calls, one after the other, and the outputs as a tuple; of
    outputs that are no slots, which are the same in all calls, a copy."""
    held: dict[str, Any] = {}
    results = [f"v{v}" if isinstance(v, int) else f"{_held(v, held)}.clone()" for v in outputs]
    lines: list[str] = []
    last = {v for v in outputs if isinstance(v, int)}
    for call in reversed(calls):
        own = {*slots_in(call.arguments), *call.results}
        done = sorted(own - last)
        last |= own
        positional, named = call.arguments
        given = [_source(value, held) for value in positional]
        given += [f"{name}={_source(value, held)}" for name, value in named.items()]
        to = ", ".join(f"v{slot}" for slot in call.results) + ("," if call.several else "")
        if done:
            lines.append("    del " + ", ".join(f"v{slot}" for slot in done))
        to += " = " if to else ""
        lines.append(f"    {to}{_held(call.function, held)}({', '.join(given)})")
    text = [
        f"def run({', '.join(f'v{slot}' for slot in parameters)}):",
        *reversed(lines),
        f"    return ({''.join(r + ', ' for r in results)})",
    ]
    exec(compile("\n".join(text), "<a graph of a file>", "exec"), held)
    return held["run"]


def slots_in(value: Any) -> Iterator[int]:
    if isinstance(value, Slot):
        yield value.number
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from slots_in(item)
    elif isinstance(value, dict):
        yield from slots_in([*value.values()])
    elif isinstance(value, slice):
        yield from slots_in([value.start, value.stop, value.step])


def _held(value: Any, held: dict[str, Any]) -> str:
    """The name of an object that the function holds."""
    name = f"k{len(held)}"
    held[name] = value
    return name


def _source(value: Any, held: dict[str, Any]) -> str:
    """A value of the function as Python writes it."""
    if isinstance(value, Slot):
        return f"v{value.number}"
    if value is None or type(value) in (bool, int):
        return repr(value)
    if next(slots_in(value), None) is None and not isinstance(value, list):
        return _held(value, held)
    if isinstance(value, slice):
        return (
            f"slice({_source(value.start, held)}, {_source(value.stop, held)}, {_source(value.step, held)})"
        )
    if isinstance(value, dict):
        items = ", ".join(f"{name!r}: {_source(item, held)}" for name, item in value.items())
        return "{" + items + "}"
    items = "".join(f"{_source(item, held)}, " for item in value)
    return f"[{items}]" if isinstance(value, list) else f"({items})"
