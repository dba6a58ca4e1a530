"""Scopes: the values of one time step, by name, with the names of the enclosing scope in reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from stepnet.errors import StepError


class Scope:
    """Named values with a parent to look further in (the step scopes of Paddle's RNN op).

    `sequences` is the caller's index of the sequence in each row of this scope's values; None where
    every sequence is present in the caller's order.

    >>> outer = Scope({"w": 2})
    >>> inner = outer.new_scope({"h": 1})
    >>> inner["h"], inner["w"], inner.find("z") is None
    (1, 2, True)
    """

    def __init__(
        self,
        values: dict[str, Any] | None = None,
        parent: Scope | None = None,
        sequences: Tensor | None = None,
    ) -> None:
        self._values = dict(values or {})
        self.parent = parent
        self.sequences = sequences

    def new_scope(self, values: dict[str, Any] | None = None) -> Scope:
        """A child scope: it sees this scope's names, and its own hide them."""
        return Scope(values, parent=self)

    def find(self, name: str) -> Any:
        """The value of a name here or in an enclosing scope; None if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope.parent
        return None

    def __contains__(self, name: object) -> bool:
        return name in self._values or (self.parent is not None and name in self.parent)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise StepError(
                f"no value named '{name}' in this scope", got=name, expected=f"one of {list(self)}"
            )
        return self.find(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Scope({', '.join(self._values)})"
