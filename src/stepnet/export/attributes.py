"""What a module keeps of a call in its attributes: no file does, so no run of it sees that of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.compiler.reads.reach import reach
from stepnet.data.recording import LeftByRuns
from stepnet.data.tree import leaves

_OWN = frozenset(vars(nn.Module()))
_DATA = (Tensor, int, float, str, type(None), list, dict, tuple)


@dataclass
class Kept:
    """What a run of a module left in its attributes: by name the tensors that others took the places of, and
    the numbers that are others now."""

    replaced: dict[str, Tensor] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    after: list[tuple[Any, Any]] = field(default_factory=list)

    def note(self, path: str, space: Any, old: Any) -> None:
        """Note what a run changed in a list or a dict, which held `old`."""
        now, then = _by_name(space), _by_name(old)
        changed = _changed(now, then)
        for name in changed:
            known = f"{path}.{name}" if path else str(name)
            for tensor in leaves(then.get(name), Tensor):
                self.replaced[known] = tensor
            if isinstance(then.get(name), (int, float)) and isinstance(now.get(name), (int, float)):
                self.numbers.append(known)
        if changed:
            left = [*space] if isinstance(space, list) else {n: now[n] for n in changed if n in now}
            self.after.append((space, left))

    def put_back(self) -> None:
        """Let the attributes be what the run left."""
        for space, left in self.after:
            if isinstance(space, list):
                space[:] = left
            else:
                space.update(left)


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[Kept]:
    """Give the parts of a module the data back that their attributes were, when this is left; what was
    yielded then tells of them."""
    before = [(path, space, space.copy()) for path, space in _spaces(module)]
    kept = Kept()
    try:
        yield kept
    finally:
        for path, space, old in before:
            kept.note(path, space, old)
            _put_back(space, old)


def _put_back(space: Any, old: Any) -> None:
    """Let a list or a dict hold what it held; in a dict what is no data stays."""
    if isinstance(space, list):
        space[:] = old
        return
    for name in _changed(space, old):
        if name in old:
            space[name] = old[name]
        else:
            del space[name]


@contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Let what a module runs, as an RNN op, be left with what runs before this had left in it."""
    found = reach(module, everything=True).holders
    spaces = [vars(owner) for owner in found if isinstance(owner, LeftByRuns) and owner.replaced]
    before = [space.copy() for space in spaces]
    try:
        yield
    finally:
        for space, old in zip(spaces, before, strict=True):
            space.update(old)


@contextmanager
def run_plainly(module: nn.Module) -> Iterator[None]:
    """Let a module run uncompiled in here, and leave its buffers as they were."""
    before = [(b, b.clone()) for b in module.buffers() if not b.is_meta]
    try:
        with uncompiled(module):
            yield
    finally:
        for buffer, old in before:
            if not torch.equal(buffer, old):
                buffer.copy_(old)


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Let the parts of a module that torch compiles be called as what they were."""
    instead: list[tuple[dict[str, Any], str, Any]] = []
    for part in module.modules():
        original = part._modules.get("_orig_mod")
        if original is not None:
            instead.append((vars(part), "forward", original.__call__))
        if part._compiled_call_impl is not None:
            instead.append((vars(part), "_compiled_call_impl", None))
    before = [space[name] for space, name, _ in instead]
    try:
        for space, name, value in instead:
            space[name] = value
        yield
    finally:
        for (space, name, _), value in zip(instead, before, strict=True):
            space[name] = value


def _spaces(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What holds attributes of a module's parts: those, their buffers, and dicts and lists of their own."""
    for path, part in module.named_modules():
        yield path, vars(part)
        yield path, part._buffers
        for name, value in vars(part).items():
            if type(value) in (dict, list) and name not in _OWN:
                yield f"{path}.{name}" if path else name, value


def _by_name(space: Any) -> dict[Any, Any]:
    return dict(enumerate(space)) if isinstance(space, list) else space


def _changed(now: dict[Any, Any], then: dict[Any, Any]) -> list[Any]:
    """The names by which there is other data now."""
    return [name for name in {**then, **now} if _is_changed(name, now, then)]


def _is_changed(name: Any, now: dict[Any, Any], then: dict[Any, Any]) -> bool:
    if name in _OWN or (now.get(name) is then.get(name) and (name in now) == (name in then)):
        return False
    return isinstance(now.get(name), _DATA) and isinstance(then.get(name), _DATA)
