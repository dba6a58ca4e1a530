"""Nested tuples, lists, dicts, dataclasses, attrs objects: flattened to leaves with names a user would write.

torch's own pytree looks inside a LoDTensor; here a LoDTensor is one leaf, and so is a
PackedSequence.

`flatten` is for values, whose structure is kept; `leaves` and `map_leaves` are for arguments of a call, which
hold slices and tuples, lists and dicts of any class.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stepnet.data.modes import beside
from stepnet.errors import StepError

_DEEPEST = 100  # structures in each other; one that holds itself has no end


@dataclass(frozen=True)
class Spec:
    """The structure of a tree without its leaves; compares equal for equal structures."""

    kind: type | None  # None: a leaf
    keys: tuple[Any, ...] = ()
    children: tuple[Spec, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.keys, self.children)))
        flat = self.kind is tuple and all(child.kind is None for child in self.children)
        object.__setattr__(self, "_flat", flat)

    def __hash__(self) -> int:  # specs are part of what plans are found by, at every call
        return self._hash  # pyright: ignore[reportAttributeAccessIssue]

    def __reduce__(self) -> Any:  # hashes of strings differ between processes
        return Spec, (self.kind, self.keys, self.children)

    @property
    def is_flat(self) -> bool:
        """Whether it is a tuple of leaves."""
        return self._flat  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def count(self) -> int:
        """Number of leaves."""
        return 1 if self.kind is None else sum(child.count for child in self.children)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inner = [str(child) for child in self.children]
        if self.kind is type(None):
            return "None"
        if issubclass(self.kind, dict):
            parts = "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(self.keys, inner, strict=True)) + "}"
            return parts if self.kind is dict else f"{self.kind.__name__}({parts})"
        if _has_names(self.kind):
            fields = ", ".join(f"{k}={c}" for k, c in zip(self.keys, inner, strict=True))
            return f"{self.kind.__name__}({fields})"
        if self.kind is list:
            return "[" + ", ".join(inner) + "]"
        return "(" + ", ".join(inner) + ("," if len(inner) == 1 else "") + ")"


LEAF = Spec(None)


def _parts(tree: Any) -> tuple[type, tuple[Any, ...], tuple[Any, ...]] | None:
    if tree is None:
        return type(None), (), ()
    if isinstance(tree, dict):
        kind = dict if isinstance(tree, defaultdict) else type(tree)
        return kind, tuple(tree), tuple(tree.values())
    if isinstance(tree, tuple) and hasattr(tree, "_fields") and not isinstance(tree, PackedSequence):
        return type(tree), tuple(tree._fields), tuple(tree)  # pyright: ignore[reportAttributeAccessIssue]
    if type(tree) in (tuple, list):
        return type(tree), tuple(range(len(tree))), tuple(tree)
    if isinstance(tree, tuple) and type(tree).__module__ == "torch.return_types":  # of topk, sort, max
        return tuple, tuple(range(len(tree))), tuple(tree)
    kind: Any = type(tree)
    if is_record(kind):
        fields = record_fields(kind)
        return kind, fields, tuple(getattr(tree, name) for name in fields)
    return None


def is_record(kind: type) -> bool:
    """Whether objects of a class are dataclasses of the user's, or of attrs: those that act as tensors are
    leaves."""
    return _is_of_fields(kind) and not hasattr(kind, "__torch_function__")


def record_fields(kind: Any) -> tuple[str, ...]:
    """The names of what such objects hold.

    >>> record_fields(Spec)
    ('kind', 'keys', 'children')
    """
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(kind.__dataclass_fields__)
    return tuple(field.name for field in kind.__attrs_attrs__)


def _is_of_fields(kind: type) -> bool:
    return hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__")


def _has_names(kind: type) -> bool:
    """Whether parts are attributes."""
    return hasattr(kind, "_fields") or _is_of_fields(kind)


def flatten(tree: Any, depth: int = 0) -> tuple[list[Any], Spec]:
    """Split a tree into its leaves, in order, and its structure. `depth`: how deep it lies in another.

    >>> leaves, spec = flatten({"a": 1, "b": (2, 3)})
    >>> leaves, str(spec)
    ([1, 2, 3], "{'a': *, 'b': (*, *)}")
    >>> unflatten(spec, leaves)
    {'a': 1, 'b': (2, 3)}
    """
    if type(tree) is Tensor:
        return [tree], LEAF
    if type(tree) is tuple and len(tree) < len(_TUPLES):  # as most states are
        for child in tree:
            if type(child) is not Tensor:
                break
        else:
            return [*tree], _TUPLES[len(tree)]
    parts = _parts(tree)
    if parts is None:
        return [tree], LEAF
    if depth > _DEEPEST:
        raise StepError(
            f"lists, tuples and dicts more than {_DEEPEST} deep in each other",
            remedy="see whether one holds itself: a value has an end",
        )
    kind, keys, children = parts
    leaves, specs = [], []
    for child in children:
        if isinstance(child, Tensor):
            leaves.append(child)
            specs.append(LEAF)
        else:
            inner, spec = flatten(child, depth + 1)
            leaves += inner
            specs.append(spec)
    return leaves, _spec(kind, keys, tuple(specs))


_spec = functools.lru_cache(maxsize=1024)(Spec)
_TUPLES = [_spec(tuple, tuple(range(n)), (LEAF,) * n) for n in range(5)]  # of leaves


def flatten_as(spec: Spec, tree: Any) -> tuple[list[Any], Spec]:
    """`flatten`, with the keys of dicts in the order of a structure, where that is all that differs.

    >>> flatten_as(flatten({"a": 1, "b": 2})[1], {"b": 4, "a": 3})[0]
    [3, 4]
    """
    leaves, own = flatten(tree)
    if own is spec or own == spec:
        return leaves, own
    places = _places(own, spec, 0)
    return (leaves, own) if places is None else ([leaves[k] for k in places], spec)


def _places(own: Spec, spec: Spec, first: int) -> list[int] | None:
    """Where leaves are in a structure whose dicts have other orders; None: something else differs."""
    if own.kind is not spec.kind or {*own.keys} != {*spec.keys} or len(own.children) != len(spec.children):
        return None
    if own.kind is None:
        return [first]
    ordered = own.kind is not type(None) and not issubclass(own.kind, dict)
    if ordered and own.keys != spec.keys:
        return None
    starts: dict[Any, int] = {}
    for key, child in zip(own.keys, own.children, strict=True):
        starts[key] = first
        first += child.count
    of, found = dict(zip(own.keys, own.children, strict=True)), list[int]()
    for key, child in zip(spec.keys, spec.children, strict=True):
        places = _places(of[key], child, starts[key])
        if places is None:
            return None
        found += places
    return found


def unflatten(spec: Spec, leaves: Sequence[Any]) -> Any:
    """Put leaves back into a structure; the inverse of `flatten`."""
    if spec._flat:  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(leaves)
    if spec.kind is None:
        return leaves[0]
    return _build(spec, iter(leaves))


def _build(spec: Spec, leaves: Iterator[Any]) -> Any:
    if spec.kind is None:
        return next(leaves)
    if spec.kind is type(None):
        return None
    children = [_build(child, leaves) for child in spec.children]
    if issubclass(spec.kind, dict):
        return spec.kind(zip(spec.keys, children, strict=True))
    if hasattr(spec.kind, "_fields"):
        return spec.kind(*children)
    if _is_of_fields(spec.kind):
        made = object.__new__(spec.kind)  # what its own code makes of its fields is in them already
        for name, child in zip(spec.keys, children, strict=True):
            object.__setattr__(made, name, child)
        return made
    return spec.kind(children)


def by_leaf(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree of what `change` gives for each leaf, and for those at its place in trees of the same structure.

    >>> by_leaf(max, (1, [5]), (3, [4]))
    (3, [5])
    """
    first, spec = flatten(tree)
    return unflatten(spec, list(map(change, first, *(flatten(other)[0] for other in others))))


def rows_at(tree: Any, index: Tensor) -> Any:
    """Of each leaf the rows at these places.

    >>> import torch
    >>> rows_at((torch.arange(3), torch.eye(3)), torch.tensor([2]))
    (tensor([2]), tensor([[0., 0., 1.]]))
    """
    leaves, spec = flatten(tree)
    return unflatten(spec, [leaf.index_select(0, beside(index, leaf)) for leaf in leaves])


def names(spec: Spec, root: str) -> list[str]:
    """The path of each leaf, as a user would write it.

    >>> names(flatten({"h": 1, "c": (2, 3)})[1], "state")
    ["state['h']", "state['c'][0]", "state['c'][1]"]
    """
    if spec.kind is None:
        return [root]
    out: list[str] = []
    for key, child in zip(spec.keys, spec.children, strict=True):
        path = f"{root}.{key}" if _has_names(spec.kind) else f"{root}[{key!r}]"
        out += names(child, path)
    return out


_HOLDERS = (tuple, list, dict, slice)  # of what functions are called with


def leaves(tree: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """The leaves of a kind among the arguments of a call, in order.

    >>> list(leaves(([1, "a"], {"b": slice(2, None)}), int))
    [1, 2]
    """
    if isinstance(tree, kind):
        yield tree
    else:
        for part in _arguments(tree):
            if isinstance(part, kind):
                yield part
            elif isinstance(part, _HOLDERS):
                yield from leaves(part, kind)


def map_leaves(tree: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The arguments of a call with `change` called on each leaf of a kind.

    >>> map_leaves([1, (2, "a")], int, lambda n: n + 1)
    [2, (3, 'a')]
    """
    if isinstance(tree, kind):
        return change(tree)
    if not isinstance(tree, _HOLDERS):
        return tree
    parts = [map_leaves(part, kind, change) for part in _arguments(tree)]
    if not parts:
        return copy.copy(tree) if isinstance(tree, (list, dict)) else tree
    if isinstance(tree, tuple) and all(map(operator.is_, parts, tree)):
        return tree
    if isinstance(tree, tuple):  # other classes, as torch.return_types, may take no parts
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if type(tree) is list:  # Dynamo follows no `copy` of it
        return parts
    if isinstance(tree, list):
        new = copy.copy(tree)
        new[:] = parts
        return new
    if isinstance(tree, dict):
        new = copy.copy(tree)
        new.update(zip(tree, parts, strict=True))
        return new
    return slice(*parts)


def _arguments(tree: Any) -> Iterable[Any]:
    """The parts of an argument; none of a leaf."""
    if isinstance(tree, (tuple, list)):
        return () if isinstance(tree, PackedSequence) else tree
    if isinstance(tree, dict):
        return tree.values()
    return (tree.start, tree.stop, tree.step) if type(tree) is slice else ()
