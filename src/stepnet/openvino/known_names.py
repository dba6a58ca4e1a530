"""Elements and attributes by the names that the format knows: one that is misspelt would mean nothing, and
the numbers be others in silence."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from stepnet.file_model import Broken, shorten

_ALIKE = 0.8  # of 1: how far a name is that of another
_ANYWHERE = "rt_info"  # notes, which an element of any kind may hold


def check_children(element: Any, where: str, known: Collection[str], *, notes: bool = False) -> None:
    """Refuse what an element holds besides elements of known names.

    Args:
        element: that.
        where: what it belongs to.
        known: the names.
        notes: whether others may stand there, as long as they are not spelt almost as a known one.

    Raises:
        IRError: names the first that is not known.
    """
    for found in element:
        tag = str(found.tag)
        if tag in known or tag == _ANYWHERE:
            continue
        meant = meant_by(tag, known)
        if meant is not None or not notes:
            raise Broken(
                f"{where}: <{shorten(tag)}> in <{element.tag}> is not known",
                got=f"<{shorten(tag)}>",
                expected=", ".join(f"<{name}>" for name in known) or f"nothing in <{element.tag}>",
                remedy=None if meant is None else f"write it as <{meant}>",
            )


def check_names(
    found: Iterable[str], where: str, known: Collection[str], *, asked: Collection[str] | None = None
) -> None:
    """Refuse attributes that are not known.

    Args:
        found: the names of attributes.
        where: what they belong to.
        known: the names of those that are read.
        asked: of those, the ones that a misspelt one may stand for: others than known are refused only where
            they are spelt almost as one of these. None: all are refused.

    Raises:
        IRError: names the first that is not known.
    """
    for name in found:
        if name in known:
            continue
        meant = meant_by(name, known if asked is None else asked)
        if meant is not None or asked is None:
            raise Broken(
                f"{where}: the attribute {shorten(name)} is not known",
                got=shorten(name),
                expected=", ".join(known),
                remedy=None if meant is None else f"write it as {meant}",
            )


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """The known name that another one is spelt almost as.

    >>> meant_by("backedges", ["port_map", "back_edges"]), meant_by("meta_data", ["layers", "edges"])
    ('back_edges', None)
    """
    by_letters = {_letters(each): each for each in known}
    close = difflib.get_close_matches(_letters(name), [*by_letters], 1, _ALIKE)
    return by_letters[close[0]] if close else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
