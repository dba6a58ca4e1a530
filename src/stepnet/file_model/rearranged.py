"""Constants that a graph puts together anew, as the gates of an LSTM in another order: no number of theirs is
part of a function. What is made of them is made in each call, or read where its parts stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepnet.data.storage import same_bits

from .calls import Call, slots_in
from .put_together import PUT_TOGETHER

_LEAST = 2**14  # bytes, of fewer they are compared in less time than a call takes


@dataclass
class Rearranged:
    """What one call made of constants.

    Attributes:
        function, arguments: that call; its arguments are the same in all calls.
        result: of it, in memory of its own.
        slot: of that, once something that is not the same in all calls meets it.
    """

    function: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    result: Tensor
    slot: int | None = None

    def is_still(self) -> bool:
        """Whether that call gives what it gave."""
        positional, named = self.arguments
        return same_bits(self.function(*positional, **named), self.result)


def rearranges(name: str, given: Sequence[Tensor]) -> bool:
    """Whether a function puts so many numbers together as they are that these are not to be kept."""
    large = sum(t.nbytes for t in given) >= _LEAST
    return name in PUT_TOGETHER and large and all(t.is_floating_point() for t in given)


def just_before(made: Sequence[Call], calls: Sequence[Call], outputs: Collection[int]) -> list[Call]:
    """Calls, with those that `made` what they are given just before them.

    Args:
        made: each after those that it needs itself.
        calls: the others, in their order.
        outputs: slots that are wanted in the end.
    """
    left = {slot: call for call in made for slot in call.results}
    found: list[Call] = []

    def place(slots: Collection[int]) -> None:
        for slot in slots:
            call = left.pop(slot, None)
            if call is not None:
                place([*slots_in(call.arguments)])
                found.append(call)

    for call in calls:
        place([*slots_in(call.arguments)])
        found.append(call)
    place(outputs)
    return found
