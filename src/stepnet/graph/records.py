"""Dataclasses in what torch flattens: it sees into tuples, lists and dicts, and takes these for leaves."""

from __future__ import annotations

from typing import Any

from stepnet.data.tree import is_record


def opened(tree: Any) -> Any:
    """A tree with dicts in the place of dataclasses, which tell of what class each is.

    >>> from dataclasses import make_dataclass
    >>> opened((1, make_dataclass("State", ["h"])(2)))
    (1, {'State.h': 2})
    """
    if is_record(type(tree)):
        kind = type(tree)
        return {f"{kind.__qualname__}.{name}": opened(getattr(tree, name)) for name in _fields(kind)}
    if isinstance(tree, dict):
        return type(tree)((key, opened(part)) for key, part in tree.items())
    if isinstance(tree, (tuple, list)):
        parts = [opened(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def closed(tree: Any, like: Any) -> Any:
    """The inverse: a tree with dataclasses where another has them."""
    if is_record(type(like)):
        made = object.__new__(type(like))
        for name, part in zip(_fields(type(like)), tree.values(), strict=True):
            object.__setattr__(made, name, closed(part, getattr(like, name)))
        return made
    if isinstance(like, dict):
        return type(like)((key, closed(part, like[key])) for key, part in tree.items())
    if isinstance(like, (tuple, list)):
        parts = [closed(*pair) for pair in zip(tree, like, strict=True)]
        return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    return tree


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)
