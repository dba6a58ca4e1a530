"""Memories, and a stepnet that works on scopes as a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.arguments import brief, listed, name_of, number, whole
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import surely_differ
from stepnet.errors import StepError, Unsupported

from .scope import Scope
from .step import describe_leaf

Stepnet = Callable[[Scope], Any]


@dataclass(frozen=True)
class Memory:
    """What a stepnet hands to the next step.

    Args:
        name: what the stepnet writes.
        pre_name: by which it reads what the step before wrote.
        init: the name, in the outer scope, of the value that the first step reads: [B, ...], a row per
            sequence in the order of the inputs.
        shape: without `init`, the shape of the value, without the batch.
        value: without `init`, the number that fills it; True or False where `dtype` is torch.bool.
        dtype: without `init`, its dtype; None: that of the first input. Say it where that holds words.

    Raises:
        StepError: neither or both of `init` and `shape` are given, or one of these is no such thing.

    >>> Memory("h", "h_pre", init="h_boot")
    Memory(name='h', pre_name='h_pre', init='h_boot', shape=None, value=0.0, dtype=None)
    """

    name: str
    pre_name: str
    init: str | None = None
    shape: tuple[int, ...] | None = None
    value: float = 0.0
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        name_of("Memory: 'name'", self.name)
        name_of("Memory: 'pre_name'", self.pre_name)
        if (self.init is None) == (self.shape is None):
            raise StepError(
                f"memory '{self.name}' starts either from an init or from a shape and a value",
                got=f"init={self.init!r}, shape={self.shape!r}",
                remedy="Memory(name, pre_name, init='its name in the scope'), or shape=(size,)",
            )
        if self.shape is not None and not isinstance(self.shape, (tuple, list)):
            raise StepError(
                f"memory '{self.name}': 'shape' is that of one row, a tuple",
                got=brief(self.shape),
                remedy=f"shape=({self.shape},)" if isinstance(self.shape, int) else "shape=(size,)",
            )
        for size in self.shape or ():
            whole(f"memory '{self.name}': a size in 'shape'", size, 0)
        if self.dtype is not torch.bool or not isinstance(self.value, bool):
            number(f"memory '{self.name}': 'value'", self.value)
        if self.dtype is not None and (self.init is not None or not isinstance(self.dtype, torch.dtype)):
            raise StepError(
                f"memory '{self.name}': 'dtype' is that of a memory without an init",
                got=brief(self.dtype),
                expected="a torch.dtype beside shape=, or None",
                remedy="leave dtype= out beside an init, which has its own",
            )
        if self.name == self.pre_name:
            raise StepError(
                f"memory '{self.name}' and its pre-memory need two names",
                remedy=f"Memory('{self.name}', '{self.name}_before', ...)",
            )

    def boot(self, scope: Scope, rows: int, like: Tensor) -> Tensor:
        """The value that the first step reads."""
        if self.init is not None:
            return scope[self.init]
        assert self.shape is not None
        return torch.full((rows, *self.shape), self.value, dtype=self.dtype or like.dtype, device=like.device)


def memories_of(
    where: str, memories: Sequence[Memory], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[Memory, ...]:
    """The memories of a stepnet, each of a name of its own.

    Raises:
        StepError: they are no list of memories, two have a name or a pre-memory in common, a pre-memory would
            hide an input, or an output would be written over an init.
    """
    given = listed(f"{where}: 'memories'", memories, Memory)
    hidden = next((memory.pre_name for memory in given if memory.pre_name in inputs), None)
    if hidden is not None:
        raise StepError(
            f"{where}: an input and a pre-memory have the name '{hidden}'",
            got=f"inputs {list(inputs)}",
            remedy="another pre_name: a step reads both",
        )
    over = next((memory for memory in given if memory.init in outputs), None)
    if over is not None:
        raise StepError(
            f"{where}: an output and an init have the name '{over.init}'",
            got=f"outputs {list(outputs)}; a second run would start from what the first one gave",
            remedy=f"another name for the init in the scope: Memory(..., init='{over.init}_boot')",
        )
    for names in ([memory.name for memory in given], [memory.pre_name for memory in given]):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise StepError(
                f"{where}: two memories have the name '{twice}'", remedy="a name and a pre-memory for each"
            )
    return given


class ScopeStep:
    """A stepnet on scopes as a step: `step(x, state, static) -> (outputs, memories)`, tuples in the order of
    names.

    `scope` holds what is the same at every step. Static inputs are rows [n, ...] as they are, or the rows'
    places in a LoDTensor.
    """

    def __init__(
        self, stepnet: Stepnet, scope: Scope, inputs: Sequence[str], outputs: Sequence[str],
        memories: Sequence[Memory], static: Sequence[str] = (), ragged: dict[str, LoDTensor] | None = None,
    ) -> None:  # fmt: skip
        self.stepnet, self.scope = stepnet, scope
        self.inputs, self.outputs, self.memories = tuple(inputs), tuple(outputs), tuple(memories)
        self.static = tuple(static)
        self.ragged = ragged or {}
        self.__name__ = getattr(stepnet, "__name__", type(stepnet).__name__)
        self._chosen: dict[str, LoDTensor] = {}

    @property
    def refusal(self) -> Unsupported | None:
        """Why this step has no plan, if it is known beforehand."""
        if not self.ragged:
            return None
        names = ", ".join(map(repr, self.ragged))
        return Unsupported(
            f"static input {names} is ragged: what a row reads of it is as long as its sequence",
            remedy=f"dynamic_recurrent(..., padded=[{names}]) gives the step rows [n, L, ...] and a mask",
        )

    def __call__(
        self, x: tuple[Any, ...], state: tuple[Tensor, ...], static: tuple[Any, ...] = ()
    ) -> tuple[Any, Any]:
        scope = self.scope.new_scope(dict(zip(self.inputs, x, strict=True)))
        for memory, value in zip(self.memories, state, strict=True):
            scope[memory.pre_name] = value
        for name, value in zip(self.static, static, strict=True):
            scope[name] = self._sequences(name, value) if name in self.ragged else value
        self.stepnet(scope)
        wanted = dict.fromkeys((*self.outputs, *(m.name for m in self.memories)))
        missing = [name for name in wanted if name not in list(scope)]
        if missing:
            raise StepError(
                f"stepnet '{self.__name__}' did not write {', '.join(map(repr, missing))}",
                got=f"it wrote {list(scope)}",
                remedy="scope[name] = value in the stepnet",
            )
        y = tuple(scope[name] for name in self.outputs)
        return y, tuple(scope[memory.name] for memory in self.memories)

    def _sequences(self, name: str, places: Tensor) -> LoDTensor:
        """The sequences of a ragged static input at the rows of this step; taken anew only as rows end."""
        chosen = self._chosen.get(name)
        if chosen is None or len(chosen) != len(places):
            chosen = self._chosen[name] = self.ragged[name].select_sequences(places)
        return chosen


def check_rows(what: str, value: Any, rows: int, remedy: str) -> str | None:
    """What is wrong with a value that must have a row for each sequence; None if nothing is."""
    plain = isinstance(value, Tensor) and not isinstance(value, LoDTensor)
    count = len(value) if isinstance(value, LoDTensor) else value.shape[0] if plain and value.dim() else None
    if count is not None and not surely_differ(count, rows):
        return None
    found = "not in the scope" if value is None else describe_leaf(value)
    return f"{what} is {found}, and must have {rows} rows ({remedy})"
