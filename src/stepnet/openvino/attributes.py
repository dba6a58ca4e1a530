"""Numbers, lists and words in the attributes of XML elements, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepnet.file_model import Broken, shorten

from .element_types import ElementType, by_name
from .known_names import check_names

_INT = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?|[+-]?inf(inity)?|nan", re.I | re.ASCII
)
_TOP = 2**63


class Attributes:
    """The attributes of one element; every reader names the place when a value is missing or malformed.

    >>> a = Attributes({"axis": "1", "pads": "0, 2", "flag": "True"}, "layer 3")
    >>> a.int("axis"), a.ints("pads"), a.bool("flag", False), a.int("part_size", 1)
    (1, [0, 2], True, 1)
    """

    def __init__(self, values: Mapping[str, str], where: str) -> None:
        self.values = values
        self.where = where
        self.asked: dict[str, None] = {}  # the names that were asked for

    def __contains__(self, name: str) -> bool:
        self.asked[name] = None
        return name in self.values

    def check_spelling(self) -> None:
        """Refuse an attribute that is spelt almost as one that was asked for, and is not there.

        Raises:
            IRError: names it.
        """
        missing = [name for name in self.asked if name not in self.values]
        check_names(self.values, self.where, [*self.asked], asked=missing)

    def text(self, name: str, default: str | None = None) -> str:
        """A word as it stands."""
        self.asked[name] = None
        value = self.values.get(name, default)
        if value is None:
            known = ", ".join(map(shorten, list(self.values)[:12]))
            raise Broken(
                f"{self.where}: has no {name}",
                got=f"attributes {known}" if known else "no attributes",
                expected=f'{name}="..."',
            )
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words, in lower case."""
        value = self.text(name, default).strip().lower()
        if value not in choices:
            raise Broken(
                f"{self.where}: {name} is not known",
                got=shorten(value),
                expected=", ".join(choices),
            )
        return value

    def element_type(self, name: str, default: str | None = None) -> ElementType:
        """An element type, such as f32."""
        return by_name(self.text(name, default), self.where, name)

    def index_type(self, name: str, default: str) -> ElementType:
        """The element type of places, counts or sizes: i32 or i64."""
        found = self.element_type(name, default)
        if found.name not in ("i32", "i64"):
            raise Broken(
                f"{self.where}: {name} is the type of whole numbers that count or name a place",
                got=found.name,
                expected="i32 or i64",
            )
        return found

    def bits(self, name: str) -> list[int]:
        """Numbers between commas that are 0 or 1 each; none if empty or missing."""
        found = self.ints(name, [])
        for bit in found:
            if bit not in (0, 1):
                raise Broken(
                    f"{self.where}: {name} is of bits", got=shorten(self.text(name)), expected="0 or 1 each"
                )
        return found

    def int(self, name: str, default: int | None = None) -> int:
        """A whole number of at most 64 bits."""
        if default is not None and name not in self:
            return default
        return self._int(name, self.text(name))

    def size(self, name: str, default: int | None = None) -> int:
        """A number that counts something: not negative."""
        value = self.int(name, default)
        if value < 0:
            raise Broken(f"{self.where}: {name} must be >= 0", got=value, expected=f"{name} >= 0")
        return value

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Whole numbers between commas; none if empty."""
        if default is not None and name not in self:
            return list(default)
        return [self._int(name, part) for part in self._parts(name)]

    def float(self, name: str, default: float | None = None) -> float:
        """A decimal number."""
        if default is not None and name not in self:
            return default
        return self._float(name, self.text(name))

    def floats(self, name: str) -> list[float]:
        """Decimal numbers between commas; none if empty or missing."""
        return [self._float(name, part) for part in self._parts(name)] if name in self else []

    def words(self, name: str, default: Sequence[str]) -> list[str]:
        """Words between commas, in lower case; none if empty."""
        if name not in self:
            return list(default)
        return [part.lower() for part in self._parts(name)]

    def bool(self, name: str, default: bool | None = None) -> bool:
        """true, false, 1 or 0 in any case."""
        if default is not None and name not in self:
            return default
        value = self.text(name).strip().lower()
        if value not in ("true", "false", "1", "0"):
            raise Broken(
                f"{self.where}: {name} is no truth value",
                got=shorten(value),
                expected="true or false",
            )
        return value in ("true", "1")

    def _parts(self, name: str) -> list[str]:
        text = self.text(name).strip()
        return [part.strip() for part in text.split(",")] if text else []

    def _int(self, name: str, text: str) -> int:
        if not _INT.fullmatch(text.strip()):
            raise Broken(
                f"{self.where}: {name} is no whole number",
                got=shorten(text),
                expected="an integer of 64 bits",
            )
        value = int(text)
        if not -_TOP <= value < _TOP:
            raise Broken(f"{self.where}: {name} does not fit in 64 bits", got=text.strip(), expected="less")
        return value

    def _float(self, name: str, text: str) -> float:
        if not _FLOAT.fullmatch(text.strip()):
            raise Broken(f"{self.where}: {name} is no number", got=shorten(text), expected="a number")
        return float(text)
