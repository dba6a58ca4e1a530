"""What a tape holds: layer creations, as records that refer to each other by index alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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

    @property
    def chain(self) -> tuple[Group, ...]:
        """It and the groups around it, innermost first."""
        return (self, *(self.parent.chain if self.parent is not None else ()))


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
    for a small batch, which tells shape and dtype, `larger` that for a larger one, once it was asked for, and
    `tried` says that they are what the call gave; `group` is the recurrent group whose step it is part of,
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
    tried: bool = False
    larger: Any = None

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
        # Dynamo sets no ContextVar
        with nullcontext() if torch.compiler.is_dynamo_compiling() else during(PLAYING, True):
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


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Modules in the mode of inference, where running them changes none of their statistics."""
    before = {m: m.training for top in modules for m in top.modules()}
    try:
        for module in before:
            module.training = False
        yield
    finally:
        for module, training in before.items():
            module.training = training


def describe(value: Any, larger: Any = UNKNOWN) -> str:
    """A value in a word or two, the number of rows left open, and what differs in that for a larger batch.

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
        sizes = ", ".join("*" if n is None else str(n) for n in open_shape(value, larger))
        return f"{dtype_name(value.dtype)} [{sizes}]"
    if isinstance(value, (tuple, list)):
        others = (
            larger if type(larger) is type(value) and len(larger) == len(value) else [UNKNOWN] * len(value)
        )
        return f"({'; '.join(map(describe, value, others))})"
    return type(value).__name__


# Small batches stand for large ones when a layer is made. Their numbers of rows are seldom a size of anything
# else, so a first dimension of so many is taken for rows.
SEQUENCES = 5
_LENGTHS = (2, 4, 1, 3, 1)
_MANY = 1000  # sequences of an example: with more, each of the next level has one row


def example_lengths(level: int) -> list[list[int]]:
    """The lengths of an example with so many levels of sequences.

    >>> example_lengths(1)
    [[2, 4, 1, 3, 1]]
    """
    counts, found = SEQUENCES, []
    for _ in range(level):
        found.append([_LENGTHS[i % SEQUENCES] if counts < _MANY else 1 for i in range(counts)])
        counts = sum(found[-1])
    return found


def example_rows(level: int) -> int:
    """How many rows an example with so many levels has."""
    return sum(example_lengths(level)[-1]) if level else SEQUENCES


_ROWS = frozenset(example_rows(level) for level in range(4))


def larger(example: Any) -> Any:
    """An example with two more sequences, or rows, of other values; a value without rows as it is."""
    if isinstance(example, LoDTensor):
        count = len(example)
        more = example.select_sequences([*range(count), *range(min(2, count))])
        return more.with_values(_others_from(len(example.values), more.values))
    if isinstance(example, (tuple, list)):
        return type(example)(map(larger, example))
    if not isinstance(example, Tensor) or not example.dim() or not is_rows(example.shape[0]):
        return example
    return _others_from(len(example), torch.cat([example, example[:2]]))


def _others_from(start: int, rows: Tensor) -> Tensor:
    """Rows, of which those from `start` on are of other numbers, where they are no ids."""
    return torch.cat([rows[:start], 1 - rows[start:]]) if rows.is_floating_point() else rows


def open_shape(value: Tensor | LoDTensor, larger: Any = UNKNOWN) -> tuple[int | None, ...]:
    """The shape of an example, with None in the place of its rows, and where that of a larger one differs.

    >>> open_shape(torch.zeros(5, 3)), open_shape(torch.zeros(2, 6), torch.zeros(2, 8))
    ((None, 3), (2, None))
    """
    shape: tuple[int | None, ...] = tuple(value.shape)
    if type(larger) is type(value) and larger.ndim == value.ndim:
        shape = tuple([a if a == b else None for a, b in zip(shape, larger.shape, strict=True)])
    ragged = isinstance(value, LoDTensor)
    return (None, *shape[1:]) if shape and (ragged or is_rows(value.shape[0])) else shape


def is_rows(size: int) -> bool:
    """Whether a size is taken for a number of rows of examples."""
    return size in _ROWS
