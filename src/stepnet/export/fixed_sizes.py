"""Numbers of steps and sequences that are fixed in a trace: whether they follow from the sizes of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from .calls import Calls, call_of
from .inputs import Input
from .recurrence_call import RecurrenceCall
from .trace import Program, repeated_along, sizes_of

_MORE = 8  # than a size of an example, at least, in a longer one
_MOST = 5  # dimensions of one size, each set of which is made longer
Lead = tuple[int, int]  # the sizes of time and batch of a recurrence, or the other way round
Place = tuple[int, int]  # which of them, of which recurrence


def fixed_leads(made: Program, calls: Calls) -> dict[int, list[Place]]:
    """The fixed numbers of steps and sequences of a program, and which of the noted recurrences have each."""
    numbers, found = [*_dense(calls)], dict[int, list[Place]]()
    for node in made.nodes:
        if str(node.target).startswith("stepnet.recurrence") and node.args[0] in numbers:
            shape = sizes_of(node.args[1][0].meta["val"])  # pyright: ignore
            for axis, size in enumerate(shape[:2]):
                if isinstance(size, int):
                    found.setdefault(size, []).append((numbers.index(cast(int, node.args[0])), axis))
    return found


def leads_of(calls: Calls) -> list[Lead]:
    """The sizes of time and batch of the dense recurrences that a run made."""
    return [cast(Lead, tuple(call.x[0].shape[:2])) for call in _dense(calls).values()]


def _dense(calls: Calls) -> dict[int, RecurrenceCall]:
    noted = {number: call_of(number) for number in calls.numbers()}
    return {n: call for n, call in noted.items() if isinstance(call, RecurrenceCall) and not call.ragged}


def follows(
    number: int, places: Sequence[Place], inputs: Sequence[Input], frozen: Collection[tuple[str, int]],
    run: Callable[[Sequence[Input]], list[Lead] | None],
) -> bool:  # fmt: skip
    """Whether it is inputs that make a recurrence have this number of steps, not the module itself: then it
    has another one where they are longer. Or whether the trace alone keeps an input from being longer.

    Args:
        number: of steps or sequences.
        places: the recurrences that have it, and the axis of each.
        inputs: the example.
        frozen: the inputs and dimensions of time and batch that are fixed in the trace.
        run: the module on another example; None where it does not take that.
    """
    tensors = [i for i in inputs if isinstance(i.value, Tensor)]
    alike = [(i, d) for i in tensors for d, size in enumerate(i.value.shape) if size == number]
    if len(alike) > _MOST:
        return True
    for some, example in _longer(inputs, alike, (number + 1, 2 * number)):
        leads = run(example)
        if leads is not None and len(some) == 1 and (some[0][0].name, some[0][1]) in frozen:
            return True
        if leads is not None and any(k >= len(leads) or leads[k][axis] != number for k, axis in places):
            return True
    return False


def longer_examples(
    inputs: Sequence[Input], stuck: Sequence[tuple[Input, int]], taken: Callable[[Sequence[Input]], bool]
) -> Iterator[list[Input]]:
    """The example with dimensions longer that a trace keeps at their size: for each size the first one that
    the module takes. Where one element is left of a dimension, as `x[:, 1:]` leaves of two, torch takes it
    for one in every call."""
    for number in sorted({i.value.shape[d] for i, d in stuck}):
        alike = [(i, d) for i, d in stuck if i.value.shape[d] == number]
        if len(alike) <= _MOST:
            longer = (example for _, example in _longer(inputs, alike, (much_longer(number),)))
            yield from itertools.islice(filter(taken, longer), 1)


def much_longer(number: int) -> int:
    """A multiple of a size, of which enough is left wherever a little is cut off."""
    return number * (2 + _MORE // max(1, number))


def lengthened(
    inputs: Sequence[Input], places: Sequence[tuple[Input, int]], size_of: Callable[[int], int]
) -> list[Input]:
    """The inputs with these dimensions of other sizes, by the size of each; what they hold is repeated."""
    values: dict[str, Tensor] = {}
    for i, d in places:
        value = cast(Tensor, values.get(i.name, i.value))
        values[i.name] = repeated_along(value, d, size_of(value.shape[d]))
    return [replace(i, value=values.get(i.name, i.value)) for i in inputs]


def _longer(
    inputs: Sequence[Input], alike: Sequence[tuple[Input, int]], sizes: Sequence[int]
) -> Iterator[tuple[tuple[tuple[Input, int], ...], list[Input]]]:
    """The dimensions of this size, some of them each time, and the example with these of other sizes."""
    for count in range(1, len(alike) + 1):
        for some in itertools.combinations(alike, count):
            for size in sizes:
                yield some, lengthened(inputs, some, lambda _, size=size: size)
