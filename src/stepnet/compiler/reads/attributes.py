"""A step that keeps tensors in attributes, as one that takes them and gives them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from stepnet.ir.loop import Loop


class Place(NamedTuple):
    """Where an object keeps a tensor: as the attribute `name`; or, by that name, in a dict that is its
    attribute `table`, as the buffers of a module are. A dict keeps it by that name itself."""

    owner: Any
    table: str | None
    name: str

    @property
    def holder(self) -> dict[str, Any]:
        """What holds it."""
        own = self.owner if type(self.owner) is dict else vars(self.owner)
        return own if self.table is None else own[self.table]

    @property
    def value(self) -> Any:
        """What it holds now."""
        return self.holder.get(self.name)

    def put(self, value: Any) -> None:
        """Let it hold something else, past `__setattr__`."""
        self.holder[self.name] = value


@runtime_checkable
class CarriesMore(Protocol):
    """The body of a loop that may be that of another step, which carries more."""

    name: str
    step: Callable[..., Any]

    @property
    def own_states(self) -> int:
        """How many of the states are the step's own."""
        ...

    def carrying(
        self, step: Callable[..., Any], states: Sequence[Any], more: tuple[Any, ...]
    ) -> tuple[CarriesMore, list[Any]]:
        """The body of a step that carries more behind its own states; all that is carried."""
        ...

    def as_loop(
        self, x_leaves: Sequence[Any], state_leaves: Sequence[Any], *, reverse: bool, level: int, axis: int
    ) -> tuple[Loop, dict[str, Any]]:
        """The loop, and what it is fed."""
        ...

    def __call__(self, *values: Any) -> tuple[Any, ...]: ...


class WithAttributes:
    """`step(x, state) -> (y, new_state)` as `(x, (state, held)) -> (y, (new_state, held))`: `held` stands
    where the step keeps tensors while it runs. What stands there at other times is nothing that it reads.
    """

    def __init__(self, name: str, step: Callable[..., Any], places: Sequence[Place]) -> None:
        self.__name__ = name
        self.step = step
        self.owners = tuple(place.owner for place in places)
        self.where = tuple((place.table, place.name) for place in places)

    def places(self) -> list[Place]:
        """Where the step keeps tensors."""
        return [Place(owner, *where) for owner, where in zip(self.owners, self.where, strict=True)]

    def __call__(self, x: Any, carried: tuple[Any, Sequence[Tensor]], *static: Any) -> tuple[Any, Any]:
        state, held = carried
        places = self.places()
        with self.apart(held):
            y, state = self.step(x, state, *static)
            held = tuple([place.value for place in places])
        return y, (state, held)

    @contextlib.contextmanager
    def apart(self, held: Sequence[Any] | None = None) -> Iterator[None]:
        """In here other values stand in its places, or nothing."""
        places = self.places()
        before = [place.value for place in places]
        try:
            for place, value in zip(places, [None] * len(places) if held is None else held, strict=True):
                place.put(value)
            yield
        finally:
            for place, value in zip(places, before, strict=True):
                place.put(value)
