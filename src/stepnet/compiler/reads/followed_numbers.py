"""Numbers that a step reads, followed to the calls of torch that they are handed to, and to what its Python
asks of them on the way: what it does with any others follows then without a run of it.

What stands in the place of a number while the step is recorded computes as it does. It tells its value to
nothing but comparisons, whose answers are kept; whatever else looks at it ends the attempt.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.errors import Unsupported

from .code_facts import words
from .numbers import WITH_ANY_NUMBER, Number, numbers_in

Formula = Callable[[Sequence[Any]], Any]  # of the numbers that are followed
_MOST = 3e38  # larger ones torch does not take in place of each other
_WHOLE = range(-(2**63), 2**63)
_SURE = (torch.float32, torch.float64)


class Followed:
    """A number that is followed; its class is told as that of the number."""

    __slots__ = ("_made", "_now", "_uses")

    def __init__(self, made: Formula, now: Any, uses: Uses) -> None:
        self._made, self._now, self._uses = made, now, uses

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._now)

    def __getattr__(self, name: str) -> Any:
        raise self._uses.seen()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def is_followed(value: Any) -> bool:
    """Whether a value stands for a number that is followed."""
    return type(value) is Followed


class Uses:
    """What a step does with numbers that are followed.

    Attributes:
        asked: what its Python asked of them, and the answers.
        handed: what it handed to torch, by its place among all numbers that it did.
        failed: something else looked at one.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Formula, Any]] = []
        self.handed: dict[int, tuple[Formula, type]] = {}
        self.failed = False

    def follow(self, values: Sequence[Any]) -> list[Followed]:
        """What stands in the places of numbers."""
        return [Followed(operator.itemgetter(k), value, self) for k, value in enumerate(values)]

    def seen(self) -> Unsupported:
        """Something looked at a number: to be raised."""
        self.failed = True
        return Unsupported("the step looks at a number that is followed")

    def told(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], before: int
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments of a call of torch with the numbers themselves. `before`: how many it was handed.

        Raises:
            Unsupported: it may take others otherwise.
        """
        found = {place: v for place, v in (*enumerate(args), *kwargs.items()) if is_followed(v)}
        if not found:
            return args, kwargs
        args = tuple(v._now if is_followed(v) else v for v in args)
        kwargs = {name: v._now if is_followed(v) else v for name, v in kwargs.items()}
        places = [number.place for number in numbers_in(func, args, kwargs)]
        dtypes = [t.dtype for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        sure = all(dtype in _SURE for dtype in dtypes if dtype is not torch.bool)
        if func is F.dropout:
            self.asked += [(_share(value._made), True) for value in found.values()]
        elif func is torch.tensor:
            sure = kwargs.keys() == {"dtype"} and kwargs["dtype"] in _SURE
        elif func not in WITH_ANY_NUMBER:
            sure = False
        if not sure or not found.keys() <= {*places}:
            raise self.seen()
        for place, value in found.items():
            self.handed[before + places.index(place)] = value._made, type(value._now)
        return args, kwargs

    def of(self, values: Sequence[Any], numbers: Sequence[Number]) -> list[Number] | None:
        """What the step hands to torch where it reads these values; None if it may do something else."""
        now = list(numbers)
        try:
            if any(made(values) is not answer for made, answer in self.asked):
                return None
            for at, (made, kind) in self.handed.items():
                value = made(values)
                if type(value) is not kind or not (value in _WHOLE if kind is int else abs(value) <= _MOST):
                    return None
                now[at] = now[at]._replace(value=value)
        except (ArithmeticError, TypeError, ValueError):  # the step's own: it is run, and says so
            return None
        return now


def _share(made: Formula) -> Formula:
    return lambda values: 0 <= made(values) <= 1


def _computed(op: Callable[..., Any], asks: bool = False) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator of a number that is followed, and the same from the other side."""

    def computed(self: Followed, args: tuple[Any, ...], made: Formula) -> Any:
        try:
            now = op(*args)
        except Exception:
            self._uses.failed = True
            raise
        if not asks:
            return Followed(made, now, self._uses)
        if type(now) is not bool:
            raise self._uses.seen()
        self._uses.asked.append((made, now))
        return now

    def formula(self: Followed, other: Any) -> tuple[Any, Formula] | None:
        if is_followed(other):
            return other._now, other._made
        if type(other) in (int, float):
            return other, lambda _: other
        if not isinstance(other, Tensor):
            self._uses.failed = True
        return None

    def of_two(self: Followed, other: Any) -> Any:
        if (found := formula(self, other)) is None:
            return NotImplemented
        now, made = found
        mine = self._made
        return computed(self, (self._now, now), lambda values: op(mine(values), made(values)))

    def turned(self: Followed, other: Any) -> Any:
        if (found := formula(self, other)) is None:
            return NotImplemented
        now, made = found
        mine = self._made
        return computed(self, (now, self._now), lambda values: op(made(values), mine(values)))

    def of_one(self: Followed) -> Any:
        mine = self._made
        return computed(self, (self._now,), lambda values: op(mine(values)))

    return (of_one, of_one) if op in _OF_ONE else (of_two, turned)


def _looks(self: Followed, *args: Any) -> Any:
    raise self._uses.seen()


_OF_ONE = {operator.neg, operator.pos, abs, operator.truth}
for _op in (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
):  # fmt: skip
    _of_two, _turned = _computed(_op)
    setattr(Followed, f"__{_op.__name__}__", _of_two)
    setattr(Followed, f"__r{_op.__name__}__", _turned)
for _op in (operator.neg, operator.pos, abs):
    setattr(Followed, f"__{_op.__name__}__", _computed(_op)[0])
for _op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
    setattr(Followed, f"__{_op.__name__}__", _computed(_op, asks=True)[0])
Followed.__bool__ = _computed(operator.truth, asks=True)[0]  # pyright: ignore[reportAttributeAccessIssue]
for _name in words(
    """int float index complex round trunc floor ceil divmod rdivmod hash str repr format reduce_ex array
    array_ufunc"""
):
    setattr(Followed, f"__{_name}__", _looks)
