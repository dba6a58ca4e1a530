"""Nestings that Dynamo follows: torch sees into tuples, lists and dicts, and takes dataclasses for leaves.

Dynamo follows torch's functions call by call, ten for a tensor alone: what most nestings are is told before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from stepnet.data.lod import LoDTensor
from stepnet.data.tree import is_record, record_fields


def flat(tree: Any) -> tuple[list[Any], Any]:
    """Tensors and LoDTensors in a nesting, and how they are nested.

    >>> flat((2, [3]))[0]
    [2, 3]
    """
    if isinstance(tree, (Tensor, LoDTensor)):
        return [tree], None
    if _are_side_by_side(tree):
        return [*tree], len(tree)
    return _pytree.tree_flatten(tree, is_leaf=lambda leaf: isinstance(leaf, LoDTensor))


def nested(leaves: Any, spec: Any) -> Any:
    """The inverse.

    >>> nested(*flat((2, [3])))
    (2, [3])
    """
    if spec is None:
        return leaves[0]
    return tuple(leaves) if isinstance(spec, int) else _pytree.tree_unflatten(leaves, spec)


def each_leaf(change: Any, tree: Any) -> Any:
    """A nesting of what `change` gives for each leaf.

    >>> each_leaf(lambda leaf: -leaf, (2, [3]))
    (-2, [-3])
    """
    leaves, spec = flat(tree)
    return nested([change(leaf) for leaf in leaves], spec)


def _are_side_by_side(tree: Any) -> bool:
    """Whether a nesting is a tuple of tensors; Dynamo follows a loop for less than `all`."""
    if type(tree) is not tuple:
        return False
    for part in tree:  # noqa: SIM110
        if not isinstance(part, Tensor):
            return False
    return True


def opened(tree: Any) -> Any:
    """A tree with dicts in the place of dataclasses, which tell of what class each is.

    >>> from dataclasses import make_dataclass
    >>> opened((1, make_dataclass("State", ["h"])(2)))
    (1, {'State.h': 2})
    """
    if is_record(type(tree)):
        kind = type(tree)
        return {f"{kind.__qualname__}.{name}": opened(getattr(tree, name)) for name in record_fields(kind)}
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
        for name, part in zip(record_fields(type(like)), tree.values(), strict=True):
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
    if isinstance(tree, Tensor) or _are_side_by_side(tree):
        return False
    return any(is_record(type(leaf)) for leaf in _pytree.tree_leaves(tree))
