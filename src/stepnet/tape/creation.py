"""What a tape holds: layer creations, as records that refer to each other by index alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepnet.data.dtypes import dtype_name
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import leaves, map_leaves
from stepnet.user_line import Line
from stepnet.watchers import during


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[Any] = _Unknown()

# Whether a creation runs: what it does is done, not recorded, even if a tape is open around it.
PLAYING: ContextVar[bool] = ContextVar("stepnet_playing", default=False)
# Whether it runs on a small example batch, to see what it gives.
TRIAL: ContextVar[bool] = ContextVar("stepnet_trial", default=False)


class Endless(Exception):
    """A loop did not end soon for an example; for other values it may."""


@dataclass(frozen=True)
class Ref:
    """The value of the creation at `index`, wherever it stands among the arguments of another."""

    index: int


@dataclass(frozen=True, eq=False)
class Group:
    """A recurrent group: creations that belong to it are its step."""

    name: str
    parent: Group | None = None
    memories: list[Memory] = field(default_factory=list)


@dataclass
class Memory:
    """The value of the layer called `layer` at the step before; `source` is its index, once it is made."""

    index: int
    layer: str
    size: int
    line: Line
    boot: Any = 0.0  # a number, or an item from outside the group
    source: int | None = None


@dataclass(frozen=True)
class Place:
    """A layer that is being made and the line that makes it, for messages; worked out when one is written."""

    kind: str
    name: str | None
    line: Line

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' ({self.line})" if self.name else f"{self.kind} ({self.line})"


@dataclass(eq=False)
class Creation:
    """A layer on a tape: what to call, with what, and what is known of the result.

    `args` and `kwargs` hold a `Ref` wherever the value of an earlier creation goes. `example` is the result
    for a small batch, which tells shape and dtype; `group` is the recurrent group whose step it is part of,
    `body` the one that it runs. `classes` is how many different integers there are, for ids.

    >>> Creation(max, (Ref(0), [Ref(2), 5])).inputs
    (0, 2)
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    kind: str = ""
    act: Callable[..., Any] | None = None
    group: Group | None = None
    line: Line | None = None
    example: Any = UNKNOWN
    classes: int | None = None
    body: Group | None = None

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The indices of the creations whose values it takes."""
        return tuple(dict.fromkeys(ref.index for ref in leaves((self.args, self.kwargs), Ref)))

    @property
    def module(self) -> nn.Module | None:
        """The module that is called, where it is one."""
        return self.function if isinstance(self.function, nn.Module) else None

    @property
    def place(self) -> str:
        """The layer and the line that made it, for messages."""
        return f"{self.kind} '{self.name}'" + (f" ({self.line})" if self.line else "")

    def run(self, values: Mapping[int, Any]) -> Any:
        """Call it on the values of earlier creations, by index."""
        args = [map_leaves(a, Ref, lambda ref: values[ref.index]) for a in self.args]
        kwargs = {k: map_leaves(a, Ref, lambda ref: values[ref.index]) for k, a in self.kwargs.items()}
        with during(PLAYING, True):
            result = self.function(*args, **kwargs)
            return result if self.act is None else self.act(result)


def trial(run: Callable[[], Any]) -> Any:
    """What a layer gives for examples; unknown if a loop in it does not end. The random state stays."""
    state = torch.get_rng_state()
    try:
        with during(TRIAL, True), torch.no_grad():
            return run()
    except Endless:
        return UNKNOWN
    finally:
        torch.set_rng_state(state)


def describe(value: Any) -> str:
    """A value in a word or two, the number of rows left open.

    >>> describe(LoDTensor(torch.zeros(5, 3), [[0, 2, 5]]))
    'float32 [*, 3], 1 level'
    """
    if value is UNKNOWN:
        return "unknown"
    if value is None:  # an evaluator: nothing can take its value
        return ""
    if isinstance(value, LoDTensor):
        sizes = ", ".join(["*", *(str(n) for n in value.shape[1:])])
        levels = "1 level" if value.lod_level == 1 else f"{value.lod_level} levels"
        return f"{dtype_name(value.dtype)} [{sizes}], {levels}"
    if isinstance(value, Tensor):
        sizes = ", ".join("*" if n is None else str(n) for n in open_shape(value))
        return f"{dtype_name(value.dtype)} [{sizes}]"
    if isinstance(value, (tuple, list)):
        return f"({'; '.join(describe(v) for v in value)})"
    return type(value).__name__


# Small batches stand for large ones when a layer is made. Their numbers of rows are seldom a size of anything
# else, so a first dimension of so many is taken for rows.
SEQUENCES = 5
_LENGTHS = (2, 4, 1, 3, 1)


def example_lengths(level: int) -> list[list[int]]:
    """The lengths of an example with so many levels of sequences.

    >>> example_lengths(1)
    [[2, 4, 1, 3, 1]]
    """
    counts, found = SEQUENCES, []
    for _ in range(level):
        found.append([_LENGTHS[i % SEQUENCES] for i in range(counts)])
        counts = sum(found[-1])
    return found


def example_rows(level: int) -> int:
    """How many rows an example with so many levels has."""
    return sum(example_lengths(level)[-1]) if level else SEQUENCES


_ROWS = frozenset(example_rows(level) for level in range(4))


def open_shape(value: Tensor | LoDTensor) -> tuple[int | None, ...]:
    """The shape of an example, with None in the place of its rows."""
    shape = tuple(value.shape)
    ragged = isinstance(value, LoDTensor)
    return (None, *shape[1:]) if shape and (ragged or is_rows(shape[0])) else shape


def is_rows(size: int) -> bool:
    """Whether a size is taken for a number of rows of examples."""
    return size in _ROWS
