"""What a step can reach: the tensors and the plain values it reads besides its arguments.

One walk over closures, globals that the code names, defaults, bound objects, classes, modules and containers.
Equal keys mean equal structure, and the i-th tensor of one walk is the i-th of the next: weights are found
again at every call, by place and not by identity. No code of the user's runs: no truth value, no length, no
comparison, no property.

The key is sound or says that it is not. What code can read is known from the names that it mentions
(`code_facts`). `open` tells of the first thing met whose content no walk sees, or of code that looks names up
by itself: such a step is held against what it does (`record`), not against what it reaches.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from stepnet.data.bounded_cache import Bounded
from stepnet.interrupts import let_through

from .attributes import WithAttributes
from .code_facts import Facts, facts, words
from .functions_set import functions_set
from .monkeypatches import DISTRIBUTIONS, patched
from .numbers import but_for_numbers
from .trust import is_machinery
from .walk import Walk


@dataclass
class Reach:
    """`key` identifies structure and plain values; `tensors` are in the order of the walk.

    `complete`: false for too many objects. `open`: why the key does not tell all, or None. `refused`: why the
    step cannot even be tried on sample rows, or None. `holders`: the containers met, by owner. `generators`:
    those that it may draw noise from. `names`: of the attributes that were looked up. `in_python`: what the
    standard library holds was looked into. `beneath`: of the key, what was put in the place of torch's own.
    `met_tensors`: with `everything`, the tensors as often as they were met. `uncached`: parametrized tensors
    that `parametrize.cached()` will keep once they are asked for.
    """

    key: tuple[Any, ...]
    tensors: list[Tensor]
    complete: bool
    open: str | None
    refused: str | None
    holders: list[Any]
    generators: list[torch.Generator] = field(default_factory=list)
    names: Set[str] = frozenset()
    in_python: bool = False
    beneath: tuple[Any, ...] = ()
    met_tensors: Sequence[Tensor] = ()
    uncached: Sequence[tuple[Any, str]] = ()

    @property
    def files(self) -> frozenset[str]:
        """The source files of the step's own functions; not those of the machinery around it."""
        files = {item.code.co_filename for item in self.key if isinstance(item, Facts)}
        for kind in self.key:  # cells of ours, whose code is not walked
            forward = getattr(kind, "forward", None) if isinstance(kind, type) else None
            if isinstance(forward, types.FunctionType) and (forward.__module__ or "").startswith("stepnet."):
                files.add(forward.__code__.co_filename)
        return frozenset(name for name in files if not is_machinery(name))


# Called by operators, torch and Python itself, not by name; the last where a dict is made of a mapping.
_IMPLICIT = words("forward backward setup_context vmap jvp _compiled_call_impl _call_impl _slow_forward keys")
# Steps whose Python asks for the numbers of captured tensors: their keys, as hashes, by their root. Python's
# numbers in them may be others by now.
_ASKING: dict[Any, set[int]] = {}
# What walks found names by, by the code or class of the step: those that code mentions, what those begin with
# that it makes, those of attributes that it sets and of such that hold names, and these names.
_Named = tuple[Set[str], tuple[str, ...], Set[str], frozenset[str], frozenset[str]]
_NONE: _Named = _IMPLICIT, (), frozenset(), frozenset(), frozenset()
_NAMES = Bounded[Any, _Named](10_000)


def reach(step: Callable[..., Any], given: Sequence[type] = (), *, everything: bool = False) -> Reach:
    """Walk from a step. `given`: classes of what it is called with, whose methods it may call. With
    `everything`, what is met is visited whole: for its tensors, not its key.

    >>> import torch
    >>> w = torch.ones(2)
    >>> reach(lambda x, s: (x * w, s)).tensors[0] is w
    True
    """
    root = _root(step)
    try:
        with step.apart() if isinstance(step, WithAttributes) else contextlib.nullcontext():
            return _walked(step, given, root, everything)
    except Exception as error:  # of a class's own attributes, which a walk cannot do without
        let_through(error)
        refused = f"what it reads cannot be looked into: {type(error).__name__}"
        return Reach((root,), [], False, None, refused, [])


def _walked(step: Callable[..., Any], given: Sequence[type], root: Any, everything: bool) -> Reach:
    named, others = _NAMES.get(root, _NONE), patched()
    anew = named is _NONE
    while True:
        names, prefixes, sets, held, looked_up = named
        walk = Walk(set(names), prefixes, held, looked_up, sets=set(sets))
        walk.visit(step)
        for kind in given:
            walk.visit(kind)
        walk.replaced(others)
        set_parts = functions_set(walk.known, not DISTRIBUTIONS.isdisjoint(walk.names))
        walk.replaced(set_parts)
        more = len(walk.prefixes) > len(prefixes) or len(walk.sets) > len(sets)
        more = more or walk.held is not held or walk.looked_up is not looked_up
        if more or len(walk.names) > len(names):
            named = walk.names, walk.prefixes, walk.sets, walk.held, walk.looked_up
            # an attribute of a new name may have been passed by
        elif anew or not walk.complete or names - _IMPLICIT <= walk.told:
            break
        else:  # code that was reached before, and is not now, named more: what it led to is not the step's
            named, anew = _NONE, True
    _NAMES[root] = named
    if changed := walk.held & walk.sets:
        walk.opened(f"the names in '{min(changed)}', which it sets")
    if not DISTRIBUTIONS.isdisjoint(names):  # whether they check their arguments is set for all of them
        walk.key += ("_validate_args", Distribution._validate_args)
    beneath = Walk(set(names))
    beneath.replaced([*others, *set_parts])
    if beneath.open is not None:  # torch's functions call it where no record sees it
        walk.refused = (
            walk.refused
            or "it runs with what somebody put in the place of torch's or stepnet's own, which leads to what "
            f"no key tells: {beneath.open}"
        )
    if root in _ASKING and hash(but_for_numbers(walk.key)) in _ASKING[root]:
        walk.opened("its Python asks for the numbers of tensors")
    if everything:
        whole = Walk(set(names), prefixes, held, looked_up, everything=True)
        for part in (step, *given):
            whole.visit(part)
        whole.open, whole.refused = walk.open, walk.refused
        whole.holders = [
            *walk.holders,
            *whole.holders,
        ]  # what code names is among them, however much else there is
        walk = whole
    return Reach(
        tuple(walk.key), walk.tensors, walk.complete, walk.open, walk.refused, walk.holders, walk.generators,
        walk.names, bool(walk.met), tuple(beneath.key), walk.met_tensors, walk.uncached,
    )  # fmt: skip


def note_asking(step: Callable[..., Any], given: Sequence[type]) -> None:
    """From now on hold a step, and those that read what it reads, against what it does: no walk tells what
    its Python asks of tensors."""
    if len(_ASKING) > 10_000:
        _ASKING.clear()
    asking = _ASKING.setdefault(_root(step), set())
    if len(asking) > 1000:
        asking.clear()
    asking.add(hash(but_for_numbers(reach(step, given).key)))


def _root(step: Any) -> Any:
    """What is the same for every closure a piece of source gives."""
    if isinstance(step, functools.partial):
        return _root(step.func)
    if isinstance(step, WithAttributes):
        return type(step), _root(step.step)
    function = getattr(step, "__func__", step) if isinstance(step, types.MethodType) else step
    return facts(function.__code__) if isinstance(function, types.FunctionType) else type(function)
