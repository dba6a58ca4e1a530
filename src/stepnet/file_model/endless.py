"""Loops that nothing ends: without a trip count, by a condition that is true and that no step changes.

go = a > b outside; while go: h = body(h); go = a > b     ->     an error after the first step, which shows it
go = s;             while go: h, s = body(h), s | go      ->     one after some steps, when s is what it was
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from stepnet.errors import IRError

from .file_errors import Misfitting
from .model import shorten

_FEW = 1024  # steps that nobody looks at: to compare states takes a tenth of a small step


class Computed(Protocol):
    """A node of a body: what it reads, with what bodies in it read, and what it makes. None draws numbers."""

    @property
    def inputs(self) -> Iterable[Any]: ...

    @property
    def outputs(self) -> Iterable[Any]: ...


class Endless:
    """Whether a loop without a trip count comes to an end.

    Args:
        where: its node.
        name: of the condition; None: its body computes none.
        nodes: those of its body, in order.
        changing: what is another value in each step: the iteration's number, slices.
        carried: what the body makes of each state.
        condition: what its body computes as the condition.

    Attributes:
        steps: after how many of them the condition is what it stays; None: there is no such number.
        deciding: of the states, by their order, those from which the condition follows, and they from each
            other, with nothing else that changes; None: it follows from more.
    """

    def __init__(
        self, where: str, name: str | None, nodes: Collection[Computed], changing: Iterable[Any],
        carried: Mapping[Any, Any], condition: Any,
    ) -> None:  # fmt: skip
        self.where, self.name = where, name
        self.steps = _settled(nodes, frozenset(changing), carried, condition)
        self.deciding = _deciding(nodes, frozenset(changing), carried, condition)

    def check(self, step: Tensor, going: Tensor) -> None:
        """Refuse a loop that is run as it is written, where it goes on from a step although nothing ends it.

        Raises:
            IRError: it does.
        """
        # what is traced has no numbers; what writes a model also tries one step of loops that have none
        numbers = type(step) is Tensor and type(going) is Tensor
        if self.steps is not None and numbers and step.item() > self.steps and going.item():
            raise self.error()

    def watch(self) -> Callable[[int, Sequence[Any]], None]:
        """What is to be told the number of steps and the states after some steps that go on.

        Raises:
            IRError: the states that decide are what they were after another step, so they will be again.
        """
        places = self.deciding
        known, then = [], _FEW

        def told(steps: int, state: Sequence[Any]) -> None:
            nonlocal known, then
            if steps < _FEW or places is None:
                return
            now = [state[k] for k in places]
            if known and all(map(_same, now, known)):
                raise self.error()
            if steps >= then:  # what is kept gets older, and so any number of steps between is met
                known, then = now, 2 * steps

        return told

    def error(self) -> IRError:
        """What such a loop is refused with."""
        condition = "no condition" if self.name is None else f"the condition '{shorten(self.name)}'"
        return Misfitting(
            f"{self.where}: never ends",
            got=f"no trip count, and {condition}, which is true and which no step makes false",
            expected="a trip count, or a condition that the body computes of a state, a slice or the number "
            "of the iteration",
            remedy="give the loop a trip count in the file; or, where its condition follows from the inputs, "
            "inputs for which it is false",
        )


def _settled(
    nodes: Collection[Computed], changing: frozenset[Any], carried: Mapping[Any, Any], condition: Any
) -> int | None:
    """A state that follows from nothing that changes is the same from the second step on, and so is the
    condition, for no step follows a false one: what follows from these alone is so one step later."""
    again = any(result == condition for result in carried.values())
    waiting = {state for state, result in carried.items() if result not in (state, condition)}
    for steps in range(1, len(waiting) + 2):
        varying = {*changing, *waiting}
        for node in nodes:
            if not varying.isdisjoint(node.inputs):
                varying.update(node.outputs)
        if condition not in varying:
            return steps + again
        settled = {state for state in waiting if carried[state] not in varying}
        if not settled:
            return None
        waiting -= settled
    return None


def _deciding(
    nodes: Collection[Computed], changing: frozenset[Any], carried: Mapping[Any, Any], condition: Any
) -> tuple[int, ...] | None:
    made = {value: node for node in nodes for value in node.outputs}
    left, seen = [condition], set[Any]()
    while left:
        value = left.pop()
        if value in changing:
            return None
        if value not in seen:
            seen.add(value)
            node = made.get(value)
            left += [carried[value]] if value in carried else () if node is None else node.inputs
    return tuple(k for k, state in enumerate(carried) if state in seen)


def _same(a: Any, b: Any) -> bool:
    """Bit by bit: NaN may come again, and 0.0 is not -0.0."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype and a.shape == b.shape):
        return False
    bits = (t.detach().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(*bits)
