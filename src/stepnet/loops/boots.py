"""What memories start with: those without an init in the dtype that their stepnet hands on."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.reads.undo import Snapshot
from stepnet.compiler.trace.logs_and_prints import unheard
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import draws_put_back, unrecorded
from stepnet.data.recording import InGrid
from stepnet.data.tree import map_leaves
from stepnet.front.memory import Memory, ScopeStep, Stepnet
from stepnet.front.meta import OnMeta, without_data
from stepnet.front.scope import Scope
from stepnet.front.step import kept_dtypes
from stepnet.interrupts import let_through

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_Dtypes = dict[str, torch.dtype]


def boots_of(
    stepnet: Stepnet, scope: Scope, memories: Sequence[Memory], rows: tuple[int, Tensor],
    one_step: Callable[[], Mapping[str, Any]],
) -> tuple[Tensor, ...]:  # fmt: skip
    """What the first step reads of each memory.

    Args:
        rows: how many a memory without an init has, and the first input.
        one_step: gives what a step sees besides memories: the rows of its inputs and of static inputs.
    """
    n, first = rows
    own: _Dtypes = {memory.name: first.dtype for memory in memories if memory.init is None}
    if own and not (first.is_floating_point() or first.is_complex()):
        own = unrecorded(_found)(stepnet, scope, memories, rows, own, one_step)
    return tuple(memory.boot(scope, n, first, own.get(memory.name)) for memory in memories)


def bare(value: Any) -> Any:
    """A value of a scope without its numbers."""
    if isinstance(value, LoDTensor):
        return value.with_values(without_data(value.values))
    return map_leaves(value, Tensor, without_data)


def one_of(sequences: Any, n: int, level: int) -> Any:
    """What one step sees of an input, without its numbers: n rows, or n sequences of them above the last
    level; of [T, B, ...] those at one time."""
    if not isinstance(sequences, (LoDTensor, InGrid)):
        return without_data(sequences).new_zeros(sequences.shape[1:])
    level %= sequences.lod_level
    if isinstance(sequences, LoDTensor) and level < sequences.lod_level - 1:
        inner = bare(sequences.drop_levels(level + 1))
        return inner.select_sequences([0] * n) if len(inner) else inner
    return without_data(sequences.values).new_zeros(n, *sequences.values.shape[1:])


def _found(
    stepnet: Stepnet, scope: Scope, memories: Sequence[Memory], rows: tuple[int, Tensor],
    own: _Dtypes, one_step: Callable[[], Mapping[str, Any]],
) -> _Dtypes:  # fmt: skip
    """The dtypes that one step, run for its shapes, hands on as it was given them: those of `own`, of integers,
    where it does with these, as a counter; else of floats. `own`, where it does with none."""
    reached = reach(stepnet, everything=True)
    # To run it would use something up; of a model that is traced, that is how a trace counts its tensors.
    if reached.refused is not None and not isinstance(rows[1], FakeTensor):
        return own
    n, like, seen, before = rows[0], without_data(rows[1]), one_step(), Snapshot(reached.holders)
    names = tuple(memory.name for memory in memories)
    around = Scope({name: bare(value) for name, value in scope.all_values().items() if name not in seen})
    step = ScopeStep(stepnet, around, tuple(seen), (), memories)

    def handed_on(dtypes: _Dtypes) -> _Dtypes | None:
        given = [without_data(m.boot(scope, n, like, dtypes.get(m.name))) for m in memories]
        try:
            with torch.no_grad(), OnMeta():
                _, new = step(tuple(seen.values()), tuple(given))
            kept = dict(zip(names, kept_dtypes(given, list(new)), strict=True))
            return {name: kept[name].dtype for name in dtypes}
        except Exception as error:  # the run tells it
            let_through(error)
            return None
        finally:
            before.restore()

    def settled(dtypes: _Dtypes) -> _Dtypes | None:
        for _ in range(len(dtypes) + 1):
            new = handed_on(dtypes)
            if new is None or new == dtypes:
                return new
            dtypes = new
        return None

    def search() -> _Dtypes:
        whole = {memory.name for memory in memories if float(memory.value).is_integer()}
        found = settled(own) if whole.issuperset(own) else None
        for dtype in dict.fromkeys((torch.get_default_dtype(), *_FLOATS)):
            found = found or settled(dict.fromkeys(own, dtype))
        if found is None:
            return own
        for name in whole & own.keys():  # a counter beside a state of floats
            integer = found | {name: own[name]}
            found = integer if handed_on(integer) == integer else found
        return found

    with draws_put_back(), unheard():
        return contextvars.copy_context().run(search)
