"""Dataclasses in what torch flattens: it sees into tuples, lists and dicts, and takes these for leaves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch.utils import _pytree

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
    if not _has_records(tree):
        return tree
    if isinstance(tree, dict):
        return {key: opened(part) for key, part in tree.items()}
    parts = [opened(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def closed(tree: Any, like: Any) -> Any:
    """The inverse: a tree with dataclasses where another has them."""
    if is_record(type(like)):
        made = object.__new__(type(like))
        for name, part in zip(_fields(type(like)), tree.values(), strict=True):
            object.__setattr__(made, name, closed(part, getattr(like, name)))
        return made
    if not _has_records(like):
        return tree
    if isinstance(like, dict):
        made = {key: closed(part, like[key]) for key, part in tree.items()}
        return made if isinstance(like, defaultdict) else type(like)(made)
    parts = [closed(*pair) for pair in zip(tree, like, strict=True)]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def _has_records(tree: Any) -> bool:
    return any(is_record(type(leaf)) for leaf in _pytree.tree_leaves(tree))


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)
