"""Scopes: the values of one time step, by name, with the names of the enclosing scope in reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from torch import Tensor, nn

from stepnet.data.lod import LoDTensor
from stepnet.errors import StepAttributeError, StepError
from stepnet.user_line import user_line


class Variable:
    """A place for a value. Scopes that share one see the same value; `value` is None while it is empty."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Scope:
    """Named values with a parent to look further in (the step scopes of Paddle's RNN op).

    `sequences` is the caller's index of the sequence in each row of this scope's values; None where
    every sequence is present in the caller's order.

    Raises:
        StepError: `values` is no dict.

    >>> outer = Scope({"w": 2})
    >>> inner = outer.new_scope({"h": 1})
    >>> inner["h"], inner["w"], inner.find("z") is None
    (1, 2, True)
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        parent: Scope | None = None,
        sequences: Tensor | None = None,
    ) -> None:
        if not isinstance(values, Mapping | None):
            raise StepError(
                "Scope: 'values' must be a dict of names and values",
                got=type(values).__name__,
                remedy="Scope({'x': x})",
            )
        self._variables = {name: Variable(value) for name, value in (values or {}).items()}
        self._shared: set[str] = set()
        self.parent = parent
        self.sequences = sequences

    def new_scope(self, values: Mapping[str, Any] | None = None) -> Scope:
        """A child scope: it sees this scope's names, and its own hide them."""
        return Scope(values, parent=self)

    def var(self, name: str) -> Variable:
        """This scope's own variable of a name, made empty if there is none.

        >>> step = Scope()
        >>> step.var("h").value = 3
        >>> step["h"]
        3
        """
        return self._variables.setdefault(name, Variable())

    def share(self, name: str, variable: Variable) -> None:
        """Let a name of this scope stand for a variable of another: a reference, never a copy. What is
        written to the name later is this scope's own.

        >>> before, step = Scope({"h": 1}), Scope()
        >>> step.share("h_pre", before.var("h"))
        >>> before["h"] = 2
        >>> step["h_pre"]
        2
        """
        self._variables[name] = variable
        self._shared.add(name)

    def find(self, name: str) -> Any:
        """The value of a name here or in an enclosing scope; None if there is none."""
        scope: Scope | None = self
        while scope is not None:
            variable = scope._variables.get(name)
            if variable is not None and variable.value is not None:
                return variable.value
            scope = scope.parent
        return None

    def all_values(self) -> dict[str, Any]:
        """The values of all names that can be seen from here."""
        above = self.parent.all_values() if self.parent is not None else {}
        return above | {name: self[name] for name in self}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __getitem__(self, name: str) -> Any:
        value = self.find(name)
        if value is None:
            raise StepError(
                f"no value named '{name}' in this scope",
                got=user_line().short,
                expected=f"one of {list(self.all_values())}",
                remedy=f"Memory(name, pre_name={name!r}, init=...) is what '{name}' was at the step before; "
                f"scope[{name!r}] = value before what reads it",
            )
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copies and pickles ask for
            raise AttributeError(name)
        raise StepAttributeError(
            f"a Scope has no attribute '{name}'",
            got=user_line().short,
            expected=f"the values of a step are its items: {list(self.all_values())}",
            remedy=f"scope['{name}']",
        )

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._shared:
            self._shared.remove(name)
            self._variables[name] = Variable()
        self.var(name).value = value

    def __iter__(self) -> Iterator[str]:
        return (name for name, variable in self._variables.items() if variable.value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Scope({', '.join(self)})"


def check_scope(given: Any) -> None:
    """Refuse what is no Scope, such as a dict: outputs are written to it, and scopes of steps made of it."""
    if not isinstance(given, Scope):
        raise StepError(
            "the values of an RNN op are in a Scope", got=type(given).__name__, remedy="stepnet.Scope(values)"
        )


class LocalVariables:
    """Watches a step's frame and keeps its local variables when it returns."""

    def __init__(self, step: Callable[..., Any]) -> None:
        function = step.forward if isinstance(step, nn.Module) else step
        self._code = getattr(getattr(function, "__func__", function), "__code__", None)
        self._found: dict[str, Any] = {}

    def __enter__(self) -> LocalVariables:
        self._before = sys.getprofile()
        sys.setprofile(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _watch(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is self._code:
            tensors = {k: v for k, v in frame.f_locals.items() if isinstance(v, (Tensor, LoDTensor))}
            self._found.update(tensors)

    def take(self) -> dict[str, Any]:
        found, self._found = self._found, {}
        return found
