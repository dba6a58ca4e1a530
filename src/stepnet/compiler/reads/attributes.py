"""A step that keeps tensors in attributes, as one that takes them and gives them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from stepnet.data.recording import LeftByRuns
from stepnet.errors import Unsupported
from stepnet.ir.loop import Loop

from .kinds import MISSING


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

    @property
    def held(self) -> Any:
        """What stands there, MISSING where nothing does."""
        return self.holder.get(self.name, MISSING)

    def put(self, value: Any) -> None:
        """Let it hold something else, past `__setattr__`; MISSING: nothing."""
        if value is MISSING:
            self.holder.pop(self.name, None)
        else:
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

    def over(self, step: Callable[..., Any]) -> Any:
        """The body of another step that takes the same."""
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
        before = [place.held for place in places]
        try:
            for place, value in zip(places, [None] * len(places) if held is None else held, strict=True):
                place.put(value)
            yield
        finally:
            for place, value in zip(places, before, strict=True):
                place.put(value)


class LeavesValues(WithAttributes):
    """A step that leaves values where it never reads them, and counts, as one that does neither: what stands
    in its places as it runs is an `Unread`, and what it leaves there is not kept.

    Args:
        name, step, places: as for `WithAttributes`.
        counts: by how much it counts, by place; None: it does not.

    Raises:
        Unsupported: as it is called, if it reads what stands there, or leaves or counts something else.
    """

    def __init__(
        self, name: str, step: Callable[..., Any], places: Sequence[Place], counts: Sequence[int | None]
    ) -> None:
        super().__init__(name, step, places)
        self.counts = tuple(counts)

    def __call__(self, x: Any, state: Any, *static: Any) -> tuple[Any, Any]:
        places, uses = self.places(), list[str]()
        unread = [Unread(uses, count is not None) for count in self.counts]
        with self.apart(unread):
            result = self.step(x, state, *static)
            left = [place.held for place in places]
        for place, value, count in zip(places, left, self.counts, strict=True):
            if not (_is_left(place.owner, value) if count is None else _is_counted(value, count)):
                uses.append("what it leaves is not what it left before")
        if uses:
            raise Unsupported(f"the step reads what it keeps in attributes ({uses[0]})")
        return result


class Unread:
    """Stands for a value that is not read. As a number, one may be added to it.

    >>> uses = []
    >>> (Unread(uses, True) + 2).by, bool(Unread(uses, True)), uses
    (2, True, ['__bool__'])
    """

    __slots__ = ("_number", "_uses", "by")

    def __init__(self, uses: list[str], number: bool, by: int = 0) -> None:
        self._uses, self._number, self.by = uses, number, by

    def __add__(self, other: Any) -> Any:
        if not self._number or type(other) is not int:
            self._uses.append("__add__")
            return NotImplemented
        return Unread(self._uses, True, self.by + other)

    __radd__ = __iadd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other if type(other) is int else self._used("__sub__")

    def __getattr__(self, name: str) -> Any:
        self._uses.append(name)
        raise AttributeError(name)

    def _used(self, name: str) -> Any:
        self._uses.append(name)
        return NotImplemented


def _noting(name: str, answer: Any) -> Callable[..., Any]:
    """What answers a question that only who reads a value asks, and notes it."""

    def asked(self: Any, *given: Any) -> Any:
        self._uses.append(name)
        return answer

    return asked


for _answer, _names in (
    (True, "__bool__"),
    ("?", "__repr__ __str__ __format__"),
    (0, "__hash__ __len__ __index__ __int__"),
    (0.0, "__float__"),
    (NotImplemented, "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __mul__ __rmul__ __truediv__ __rtruediv__"),
    (NotImplemented, "__mod__ __rmod__ __floordiv__ __rsub__ __pow__ __rpow__ __matmul__ __rmatmul__"),
    (NotImplemented, "__and__ __rand__ __or__ __ror__ __xor__"),
):
    for _name in _names.split():
        setattr(Unread, _name, _noting(_name, _answer))


def _is_counted(value: Any, by: int) -> bool:
    return type(value) is Unread and value.by == by


def _is_left(owner: Any, value: Any) -> bool:
    """Whether nothing that stood in an attribute before is in what is left there."""
    if isinstance(owner, LeftByRuns) and owner.replaced:
        return type(value) is not Unread
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether a value is made of tensors and numbers, so that nothing that stood there before is in it."""
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if kind in (tuple, list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)  # of other classes where a step is traced


_PLAIN = (Tensor, int, float, complex, bool, str, type(None))
