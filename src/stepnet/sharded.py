"""Cells whose weights `fully_shard` spreads over processes: gathered once for all steps of a loop.

Its hooks gather at each call of a module, in backward once more. A cell is called once a step, so processes
whose longest sequences differ would gather unequally often, and wait for each other for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

_OF_TORCH = "torch.distributed.fsdp"


class Sharded(NamedTuple):
    """A module whose weights are spread, and the hooks that gather them and let them go."""

    module: nn.Module
    gather: Callable[..., Any]
    release: Callable[..., Any]


def sharded(step: Any) -> Sequence[Sharded]:
    """The modules of a step that `fully_shard` was given; those around others first."""
    kind = getattr(sys.modules.get(_OF_TORCH), "FSDPModule", None)  # it takes seconds to import
    if kind is None or not isinstance(step, nn.Module):
        return ()
    found = list[Sharded]()
    for module in step.modules():
        gathers = [hook for hook in module._forward_pre_hooks.values() if _is_torchs(hook)]
        releases = [hook for hook in module._forward_hooks.values() if _is_torchs(hook)]
        if isinstance(module, kind) and len(gathers) == len(releases) == 1:
            found.append(Sharded(module, gathers[0], releases[0]))
    return found


def gathered(parts: Sequence[Sharded], run: Callable[..., Any], *given: Any) -> Any:
    """What `run` gives, called as torch calls these modules: once, around all that it does with them."""
    if not parts:
        return run(*given)
    part, *inside = parts
    with _left_alone(part):
        given, _ = part.gather(part.module, given, {})
        out = gathered(inside, run, *given)
        return part.release(part.module, given, out)


@contextmanager
def _left_alone(part: Sharded) -> Iterator[None]:
    """Calls of a module neither gather nor release its weights in here; they cast what they are given, still:
    a cell begins with a state of its own, and goes on with what it made."""
    tables: Any = part.module._forward_pre_hooks, part.module._forward_hooks
    before = [dict(table) for table in tables]
    cast = _cast_of(getattr(part.gather, "__self__", None))
    try:
        for table, kept, instead in zip(tables, before, (cast, None), strict=True):
            for key, hook in kept.items():
                if _is_torchs(hook):
                    table[key] = instead
                    if instead is None:
                        del table[key]
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)


def _cast_of(state: Any) -> Callable[..., Any] | None:
    """The hook that casts what a module is given, if its policy of mixed precision says so."""
    policy = state._mp_policy
    if policy.param_dtype is None or not policy.cast_forward_inputs:
        return None

    def cast(leaf: Any) -> Any:
        return leaf.to(policy.param_dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return lambda _, args, kwargs: tree_map(cast, (args, kwargs))


def _is_torchs(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__module__.startswith(_OF_TORCH)
