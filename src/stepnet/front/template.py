"""Arguments of a recorded call with places for values; hashable, so that equal programs are found equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, NamedTuple

from torch import Size

from stepnet.data.recording import content, inside, reached
from stepnet.locks import Lock


class Ref:
    """The place of a value in a program; there is one object for each place (`ref`).

    >>> ref(3) is ref(3), ref(3)
    (True, v3)
    """

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __repr__(self) -> str:
        return f"v{self.place}"


_REFS: list[Ref] = []
_ARRAYS: list[Ref] = []
_growing = Lock()


def ref(place: int) -> Ref:
    """The Ref of a place; arrays have the places below 0."""
    known, at = (_REFS, place) if place >= 0 else (_ARRAYS, -1 - place)
    if at >= len(known):
        with _growing:
            while at >= len(known):
                known.append(Ref(len(known) if place >= 0 else -1 - len(known)))
    return known[at]


class Shape(tuple[Any, ...]):
    """The shape of a symbolic value: sizes that may change from step to step are symbolic.

    >>> Shape((2, 3)).numel()
    6
    """

    __slots__ = ()

    def numel(self) -> Any:
        """The number of elements."""
        return math.prod(self)


class Literal(NamedTuple):
    """A leaf that is no value of the program; 1, 1.0 and True are three, and so are 0.0 and -0.0."""

    kind: type
    value: Any
    sign: str = ""


class Packed(NamedTuple):
    """A list, a dict, a slice or a named tuple."""

    kind: type
    items: tuple[Any, ...]


class Closed(NamedTuple):
    """A function that refers to values of the program: what its cells and its defaults hold."""

    function: FunctionType
    cells: tuple[Any, ...]  # None for what stays as it is, else a tuple of one template
    defaults: Any


def encode(tree: Any, ref_of: Callable[[Any], Ref | None]) -> Any:
    """A template of arguments.

    Args:
        tree: tuples, lists, dicts and slices of leaves.
        ref_of: the place of a leaf that is a value of the program, None for another.

    >>> encode(([1, 2.0], slice(None)), lambda leaf: None)
    (Packed(kind=<class 'list'>, items=(1, Literal(kind=<class 'float'>, value=2.0, sign=''))), Packed(kind=\
<class 'slice'>, items=(None, None, None)))
    """
    kind = type(tree)
    if kind is int or kind is str or tree is None:
        return tree
    if kind is tuple or kind is Shape or (kind is Size and any(True for _ in inside(tree))):
        return tuple([encode(item, ref_of) for item in tree])
    if kind is list or is_named(tree):
        return Packed(kind, tuple([encode(item, ref_of) for item in tree]))
    if kind is FunctionType and any(True for _ in reached(tree)):
        return _closed(tree, ref_of)
    if kind is dict:
        return Packed(dict, tuple([(key, encode(item, ref_of)) for key, item in tree.items()]))
    if kind is slice:
        parts = (tree.start, tree.stop, tree.step)
        return Packed(slice, tuple([encode(item, ref_of) for item in parts]))
    found = ref_of(tree)
    if found is not None:
        return found
    return Literal(kind, tree, str(tree) if kind is float and tree == 0 else "")


def is_named(tree: Any) -> bool:
    """Whether a leaf of `encode` is a tuple with names."""
    return (
        isinstance(tree, tuple) and hasattr(tree, "_fields") and type(tree).__module__ != "torch.nn.utils.rnn"
    )


def _closed(function: FunctionType, ref_of: Callable[[Any], Ref | None]) -> Closed:
    def held(part: Any) -> Any:
        return (encode(part, ref_of),) if any(True for _ in reached(part, (function,))) else None

    cells = [held(content(cell)) for cell in function.__closure__ or ()]
    return Closed(function, tuple(cells), held(function.__defaults__))


def _opened(closed: Closed, values: Mapping[int, Any]) -> FunctionType:
    """The function with the values of a step in the places where it held symbolic ones."""
    function: Any = closed.function
    cells = tuple(
        [
            cell if held is None else CellType(resolve(held[0], values))
            for cell, held in zip(function.__closure__ or (), closed.cells, strict=True)
        ]
    )
    defaults = function.__defaults__ if closed.defaults is None else resolve(closed.defaults[0], values)
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    twin.__kwdefaults__, twin.__qualname__ = function.__kwdefaults__, function.__qualname__
    return twin


def resolve(template: Any, values: Mapping[int, Any]) -> Any:
    """The arguments of a template.

    >>> resolve((ref(0), Packed(list, (ref(1), 2))), {0: "a", 1: "b"})
    ('a', ['b', 2])
    """
    kind = type(template)
    if kind is Ref:
        return values[template.place]
    if kind is tuple:
        return tuple([resolve(item, values) for item in template])
    if kind is Literal:
        return template.value
    if kind is Closed:
        return _opened(template, values)
    if kind is not Packed:
        return template
    if template.kind is dict:
        return {key: resolve(item, values) for key, item in template.items}
    items = [resolve(item, values) for item in template.items]
    return items if template.kind is list else template.kind(*items)


def changed(template: Any, change: Callable[[Any], Any]) -> Any:
    """The template with `change` called on each leaf: a place, a literal, or what stands for itself."""
    kind = type(template)
    if kind is tuple:
        return tuple([changed(item, change) for item in template])
    if kind is Packed:
        if template.kind is dict:
            return Packed(dict, tuple([(key, changed(item, change)) for key, item in template.items]))
        return Packed(template.kind, tuple([changed(item, change) for item in template.items]))
    if kind is Closed:
        return Closed(template.function, changed(template.cells, change), changed(template.defaults, change))
    return change(template)


def renamed(template: Any, new: Mapping[int, Any]) -> Any:
    """The template with other templates in some places."""
    return changed(template, lambda leaf: new.get(leaf.place, leaf) if type(leaf) is Ref else leaf)


def _leaves(template: Any) -> Iterator[Any]:
    kind = type(template)
    if kind is tuple:
        for item in template:
            yield from _leaves(item)
    elif kind is Closed:
        yield from _leaves((template.cells, template.defaults))
    elif kind is Packed:
        for item in template.items:
            yield from _leaves(item[1] if template.kind is dict else item)
    else:
        yield template


def literals(template: Any) -> Iterator[Any]:
    """The leaves of a template that are no values of the program.

    >>> list(literals((ref(0), Packed(list, (3, Literal(float, 2.5))))))
    [3, 2.5]
    """
    leaves = (leaf for leaf in _leaves(template) if type(leaf) is not Ref)
    return (leaf.value if type(leaf) is Literal else leaf for leaf in leaves)


def places(template: Any) -> Iterator[int]:
    """The places in a template."""
    return (leaf.place for leaf in _leaves(template) if type(leaf) is Ref)
