"""Cells whose weights `fully_shard` spreads over processes: gathered once for all steps of a loop.

Its hooks gather at each call of a module, in backward once more. A cell is called once a step, by itself or
by a function, so processes whose longest sequences differ would gather unequally often, and wait for each
other for ever.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .compiler.reads.reach import reach
from .data.in_graph import not_followed

_OF_TORCH = "torch.distributed.fsdp"


class Sharded(NamedTuple):
    """A module whose weights are spread, and the hooks that gather them and let them go.

    `inside`: it is called by a step, and what it is given and gives is not what the step is and does.
    """

    module: nn.Module
    gather: Callable[..., Any]
    release: Callable[..., Any]
    inside: bool

    @property
    def state(self) -> Any:
        """What torch notes of it."""
        return getattr(self.gather, "__self__", None)


@not_followed
def sharded(step: Any) -> Sequence[Sharded]:
    """The modules of a step that `fully_shard` was given, and of a function those that it may call; those
    around others first. Not those that call the loop: their weights are gathered."""
    kind = getattr(sys.modules.get(_OF_TORCH), "FSDPModule", None)  # it takes seconds to import
    if kind is None or not kind.__subclasses__():  # it makes a class of each that it is given
        return ()
    modules: Iterable[Any] = step.modules() if isinstance(step, nn.Module) else _reached(step, kind)
    found = list[Sharded]()
    for module in modules:
        gathers = [hook for hook in module._forward_pre_hooks.values() if _is_torchs(hook)]
        releases = [hook for hook in module._forward_hooks.values() if _is_torchs(hook)]
        if isinstance(module, kind) and len(gathers) == len(releases) == 1:
            part = Sharded(module, gathers[0], releases[0], module is not step)
            if part.state._training_state.name != "FORWARD":
                found.append(part)
    return found


def _reached(step: Any, kind: type) -> list[nn.Module]:
    found = [each for each in reach(step).holders if isinstance(each, kind)]
    return sorted(found, key=lambda module: -len([*module.modules()]))


def gathered(parts: Sequence[Sharded], run: Callable[..., Any], *given: Any) -> Any:
    """What `run` gives, called as torch calls these modules: once, around all that it does with them."""
    if not parts:
        return run(*given)
    part, *inside = parts
    with _left_alone(part):
        with _as_they_are(part):
            given, _ = part.gather(part.module, given, {})
        out = None
        try:
            out = gathered(inside, run, *given)
        finally:  # where it fails, too: a module that is gathered counts as one that runs
            with _as_they_are(part):
                out = part.release(part.module, given, out)
    return out


@contextmanager
def _as_they_are(part: Sharded) -> Iterator[None]:
    """Nothing is cast that goes into and comes out of a loop, by the policy of what its step calls."""
    state = part.state
    policy = state._mp_policy
    try:
        if part.inside:
            state._mp_policy = dataclasses.replace(policy, cast_forward_inputs=False, output_dtype=None)
        yield
    finally:
        state._mp_policy = policy


@contextmanager
def _left_alone(part: Sharded) -> Iterator[None]:
    """Calls of a module neither gather nor release its weights in here; they cast what they are given, still:
    a cell begins with a state of its own, and goes on with what it made. What a step calls casts what it
    gives, too."""
    tables: Any = part.module._forward_pre_hooks, part.module._forward_hooks
    before = [dict(table) for table in tables]
    policy = part.state._mp_policy
    casts = _cast_of(policy), _cast_back(policy) if part.inside else None
    try:
        for table, kept, instead in zip(tables, before, casts, strict=True):
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


def _cast_of(policy: Any) -> Callable[..., Any] | None:
    """The hook that casts what a module is given, if its policy of mixed precision says so."""
    if policy.param_dtype is None or not policy.cast_forward_inputs:
        return None
    return lambda _, args, kwargs: _cast((args, kwargs), policy.param_dtype)


def _cast_back(policy: Any) -> Callable[..., Any] | None:
    """The hook that casts what a module gives, if its policy says so."""
    if policy.output_dtype is None:
        return None
    return lambda _, args, out: _cast(out, policy.output_dtype)


def _cast(tree: Any, dtype: Any) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return tree_map(cast, tree)


def _is_torchs(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__module__.startswith(_OF_TORCH)
