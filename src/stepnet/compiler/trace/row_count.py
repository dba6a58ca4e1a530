"""How many rows a step is run on, as a number that is left open: torch's `SymInt` stands on it.

Torch's own symbols are terms of sympy, which takes a third of a second to import, and longer to compare two
sizes than an operator takes to run. Here sizes are `times * rows + plus`, and what is asked of them has one
answer from two rows on, or is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

NAME = "rows"
LEAST, MOST = 2, 1 << 40  # more than any memory holds


class Unusual(BaseException):
    """A call that the recorder does not know how to record; no step is to catch it."""


class AsNumber(Unusual):
    """The number of rows is asked for as a plain number, as by `range(x.shape[0])`."""


class RowCount:
    """`times * rows + plus`, as torch asks for it: see `torch.fx.experimental.sym_node.SymNode`.

    >>> rows = torch.SymInt(RowCount(1, 0))
    >>> rows * 3 + 1, (rows * 4) // 2, rows == 1, rows * 2 > rows
    (3*rows + 1, 2*rows, False, True)
    """

    def __init__(self, times: int, plus: int) -> None:
        self.times, self.plus = times, plus

    @property
    def expr(self) -> str:
        """The text of it."""
        if not self.times:
            return str(self.plus)
        factor = NAME if self.times == 1 else f"{self.times}*{NAME}"
        return factor + (f" {'+' if self.plus > 0 else '-'} {abs(self.plus)}" if self.plus else "")

    def at(self, rows: int) -> int:
        """The number for so many rows."""
        return self.times * rows + self.plus

    # ---- what kind of number it is

    def is_int(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    is_bool = is_nested_int = has_hint = is_float

    def is_constant(self) -> bool:
        return not self.times

    def maybe_as_int(self) -> int | None:
        return None if self.times else self.plus

    def int_(self) -> int:
        if self.times:
            raise AsNumber
        return self.plus

    def guard_int(self, *_: Any) -> int:
        return self.int_()

    def str(self) -> str:
        return self.expr

    __str__ = __repr__ = _graph_repr = str

    def wrap_int(self, number: int) -> RowCount:
        return RowCount(0, number)

    def wrap_bool(self, truth: bool) -> Truth:
        return Truth(truth)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unusual(f"'{name}' of the number of rows")

    # ---- arithmetic

    def add(self, other: RowCount) -> RowCount:
        return RowCount(self.times + other.times, self.plus + other.plus)

    def sub(self, other: RowCount) -> RowCount:
        return RowCount(self.times - other.times, self.plus - other.plus)

    def neg(self) -> RowCount:
        return RowCount(-self.times, -self.plus)

    def clone(self) -> RowCount:
        return self

    def mul(self, other: RowCount) -> RowCount:
        if self.times and other.times:
            raise Unusual("the number of rows times itself")
        one, factor = (self, other.plus) if self.times else (other, self.plus)
        return RowCount(one.times * factor, one.plus * factor)

    def floordiv(self, other: RowCount) -> RowCount:
        if other.times:
            times, rest = divmod(self.times, other.times)
            zero_at, between = divmod(-other.plus, other.times)
            if rest or self.plus != times * other.plus or (zero_at > 0 and not between):
                raise Unusual("a part of the number of rows")
            return RowCount(0, times)
        if not other.plus or self.times % other.plus:
            raise Unusual("a part of the number of rows")
        return RowCount(self.times // other.plus, self.plus // other.plus)

    int_floordiv = floordiv

    def mod(self, other: RowCount) -> RowCount:
        whole = self.floordiv(other)
        return self.sub(whole.mul(other))

    def sym_max(self, other: RowCount) -> RowCount:
        return self if self.ge(other).bool_() else other

    def sym_min(self, other: RowCount) -> RowCount:
        return other if self.ge(other).bool_() else self

    # ---- comparison

    def gt(self, other: RowCount) -> Truth:
        apart = self.sub(other)
        first, last = apart.at(LEAST) > 0, apart.at(MOST) > 0
        return Truth(first if first == last else None)

    def lt(self, other: RowCount) -> Truth:
        return other.gt(self)

    def le(self, other: RowCount) -> Truth:
        return self.gt(other).sym_not()

    def ge(self, other: RowCount) -> Truth:
        return other.le(self)

    def eq(self, other: RowCount) -> Truth:
        apart = self.sub(other)
        if not apart.times:
            return Truth(not apart.plus)
        rows, rest = divmod(-apart.plus, apart.times)
        return Truth(None if not rest and LEAST <= rows < MOST else False)

    def ne(self, other: RowCount) -> Truth:
        return self.eq(other).sym_not()


class Truth:
    """What a comparison of sizes says: None where it depends on the number of rows. Torch asks often only
    whether it is known, as for a shorter way where a table happens to lie in one piece."""

    def __init__(self, truth: bool | None) -> None:
        self.truth = truth

    def is_bool(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_float = is_nested_int = is_int
    has_hint = is_constant = is_bool

    def guard_bool(self, *_: Any) -> bool:
        if self.truth is None:
            raise Unusual("what depends on the number of rows")
        return self.truth

    bool_ = expect_true = guard_size_oblivious = guard_bool

    def guard_or_false(self, *_: Any) -> bool:
        return self.truth is True

    statically_known_true = guard_or_false

    def guard_or_true(self, *_: Any) -> bool:
        return self.truth is not False

    def maybe_as_int(self) -> None:
        return None

    def str(self) -> str:
        return str(self.truth)

    __str__ = __repr__ = _graph_repr = str

    def wrap_bool(self, truth: bool) -> Truth:
        return Truth(truth)

    def sym_not(self) -> Truth:
        return Truth(None if self.truth is None else not self.truth)

    def and_(self, other: Truth) -> Truth:
        both = self.truth, other.truth
        return Truth(False if False in both else None if None in both else True)

    def or_(self, other: Truth) -> Truth:
        return self.sym_not().and_(other.sym_not()).sym_not()

    sym_and, sym_or = and_, or_


@functools.lru_cache(1 << 12)
def size_of(few: Any, many: Any, at: tuple[int, int]) -> int | torch.SymInt:
    """The size that is `few` and `many` on so many rows.

    >>> size_of(5, 5, (3, 101)), size_of(7, 203, (3, 101))
    (5, 2*rows + 1)
    """
    if few == many:
        return few
    times, rest = divmod(many - few, at[1] - at[0])
    if rest:
        raise Unusual("a size that does not grow with the rows")
    return torch.SymInt(RowCount(times, few - times * at[0]))


_NEAR = 1 << 20  # what a size may be more than rows, and the most times that it is them


def number_of(number: float, many: int) -> Any:
    """A number that torch computed where there were `many` rows, more than any other size: left open again.

    >>> number_of(7, 8589934583), number_of(3 * 8589934583 - 1, 8589934583)
    (7, 3*rows - 1)
    """
    if isinstance(number, int):
        times = round(number / many)
        if not times or abs(times) > _NEAR or abs(number - times * many) > _NEAR:
            return number
        return torch.SymInt(RowCount(times, number - times * many))
    for part in (number, 1 / number if number else 0.0):
        times = part / many
        if 0.5 < abs(times) < _NEAR and abs(times - round(times)) < 1e-6:
            raise Unusual("the number of rows in a number that is no size")
    return number
