"""Arguments of a recorded call with places for values; hashable, so that equal programs are found equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


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


def ref(place: int) -> Ref:
    """The Ref of a place."""
    while place >= len(_REFS):
        _REFS.append(Ref(len(_REFS)))
    return _REFS[place]


class Literal(NamedTuple):
    """A leaf that is no value of the program; 1, 1.0 and True are three, and so are 0.0 and -0.0."""

    kind: type
    value: Any
    sign: str = ""


class Packed(NamedTuple):
    """A list, a dict or a slice."""

    kind: type
    items: tuple[Any, ...]


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
    if kind is tuple:
        return tuple([encode(item, ref_of) for item in tree])
    if kind is list:
        return Packed(list, tuple([encode(item, ref_of) for item in tree]))
    if kind is dict:
        return Packed(dict, tuple([(key, encode(item, ref_of)) for key, item in tree.items()]))
    if kind is slice:
        parts = (tree.start, tree.stop, tree.step)
        return Packed(slice, tuple([encode(item, ref_of) for item in parts]))
    found = ref_of(tree)
    if found is not None:
        return found
    return Literal(kind, tree, str(tree) if kind is float and tree == 0 else "")


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
    if kind is not Packed:
        return template
    if template.kind is dict:
        return {key: resolve(item, values) for key, item in template.items}
    items = [resolve(item, values) for item in template.items]
    return slice(*items) if template.kind is slice else items


def renamed(template: Any, new: Mapping[int, Any]) -> Any:
    """The template with other templates in some places."""
    kind = type(template)
    if kind is Ref:
        return new.get(template.place, template)
    if kind is tuple:
        return tuple([renamed(item, new) for item in template])
    if kind is Packed:
        if template.kind is dict:
            return Packed(dict, tuple([(key, renamed(item, new)) for key, item in template.items]))
        return Packed(template.kind, tuple([renamed(item, new) for item in template.items]))
    return template


def places(template: Any) -> Iterator[int]:
    """The places in a template."""
    kind = type(template)
    if kind is Ref:
        yield template.place
    elif kind is tuple:
        for item in template:
            yield from places(item)
    elif kind is Packed:
        for item in template.items:
            yield from places(item[1] if template.kind is dict else item)
