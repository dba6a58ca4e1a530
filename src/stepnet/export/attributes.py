"""What a module keeps of a call in its attributes: no file does, so no run of it sees that of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from stepnet.data.tree import leaves

_OWN = frozenset(vars(nn.Module()))
_DATA = (Tensor, int, float, str, type(None), list, dict, tuple)


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Give the parts of a module the data back that their attributes were, when this is left; what was
    yielded then holds the tensors that were in other ones' places, by name."""
    before = [(path, space, space.copy()) for path, space in _spaces(module)]
    replaced: dict[str, Tensor] = {}
    try:
        yield replaced
    finally:
        for path, space, old in before:
            now = dict(enumerate(space)) if isinstance(space, list) else space
            then = dict(enumerate(old)) if isinstance(old, list) else old
            changed = [name for name in {**then, **now} if _is_changed(name, now, then)]
            for name in changed:
                for tensor in leaves(then.get(name), Tensor):
                    replaced[f"{path}.{name}" if path else str(name)] = tensor
            if isinstance(space, list):
                space[:] = old
                continue
            for name in changed:
                if name in then:
                    space[name] = then[name]
                else:
                    del space[name]


def _spaces(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What holds attributes of a module's parts: those, their buffers, and dicts and lists of their own."""
    for path, part in module.named_modules():
        yield path, vars(part)
        yield path, part._buffers
        for name, value in vars(part).items():
            if type(value) in (dict, list) and name not in _OWN:
                yield f"{path}.{name}" if path else name, value


def _is_changed(name: Any, now: dict[Any, Any], then: dict[Any, Any]) -> bool:
    if name in _OWN or (now.get(name) is then.get(name) and (name in now) == (name in then)):
        return False
    return isinstance(now.get(name), _DATA) and isinstance(then.get(name), _DATA)
