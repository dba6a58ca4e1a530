"""The operations that a frame records, and how each is done on the values and the arrays of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepnet.data.tree import flatten

from .examples import changing, named
from .template import Ref, resolve

Values = dict[int, Any]


@dataclass(frozen=True)
class Call:
    """`values[out:] = leaves of function(*args, **kwargs)`, templates; `line` is where the user wrote it."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    out: int
    count: int
    nested: bool  # whether the result is taken apart; else it is one value, whatever it is
    line: str

    @property
    def name(self) -> str:
        """What the function is called."""
        return getattr(self.function, "__name__", repr(self.function))

    def do(self, values: Values, arrays: Sequence[Any], at: str = "") -> None:
        """Raises a StepError if it gives another number of values than at the first step."""
        kwargs = resolve(self.kwargs, values) if self.kwargs else {}
        result = named(self.function(*resolve(self.args, values), **kwargs))
        if not self.nested:
            values[self.out] = result
            return
        leaves = flatten(result)[0]
        if len(leaves) != self.count:
            raise changing(f"{self.count} parts", f"{len(leaves)} at another step", self.line)
        values.update(enumerate(leaves, self.out))


@dataclass(frozen=True)
class Read:
    """`values[out] = arrays[array].read(index, default)`."""

    array: int
    index: Any
    default: Any
    out: int
    line: str

    def do(self, values: Values, arrays: Sequence[Any], at: str = "") -> None:
        values[self.out] = arrays[self.array].read(*resolve((self.index, self.default), values))


@dataclass(frozen=True)
class Write:
    """`arrays[array].write(index, value, data_shared)`."""

    array: int
    index: Any
    value: Any
    data_shared: bool
    line: str

    def do(self, values: Values, arrays: Sequence[Any], at: str = "") -> None:
        arrays[self.array].write(*resolve((self.index, self.value), values), self.data_shared)


@dataclass(frozen=True)
class Count:
    """`values[out] = arrays[array].size()`."""

    array: int
    out: int
    line: str

    def do(self, values: Values, arrays: Sequence[Any], at: str = "") -> None:
        values[self.out] = arrays[self.array].size()


@dataclass(frozen=True)
class Guard:
    """What Python was told while the frame was written, `values[of] == told`, must hold at every step."""

    of: Ref
    told: Any
    line: str

    def do(self, values: Values, arrays: Sequence[Any], at: str = "") -> None:
        """Raises a StepError if it does not hold; `at` says at which step."""
        if values[self.of.place] != self.told:
            raise changing(self.told, f"{values[self.of.place]}{at}", self.line)


@dataclass(frozen=True)
class Break:
    """Leave the loop if the condition holds."""

    condition: Ref
    line: str


Op = Call | Read | Write | Count | Guard | Break
