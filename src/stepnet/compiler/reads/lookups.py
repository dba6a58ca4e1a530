"""Attributes that code looks up by a text: `getattr(self, "norm", None)`, `getattr(self, f"conv{i}")`.

Known from instructions alone: what the second argument is, or what it begins with, whatever runs.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

LOOKING = ("getattr", "hasattr")
_CALLS = ("CALL", "CALL_FUNCTION")
_CALL = next(kind for kind in _CALLS if kind in dis.opmap)
_NO_PART = ("PRECALL", "PUSH_NULL", "EXTENDED_ARG", "CACHE", "NOP")


class Lookups(NamedTuple):
    """`at`: which instructions load a function whose lookups are known; `names` are those that are whole,
    `prefixes` what others begin with."""

    at: frozenset[int]
    names: frozenset[str]
    prefixes: frozenset[str]


NONE = Lookups(frozenset(), frozenset(), frozenset())


def lookups(code: types.CodeType, steps: Sequence[dis.Instruction], elsewhere: Collection[str]) -> Lookups:
    """What code looks up by texts that are known. `elsewhere`: names that no prefix may stand for."""
    if not any(step.argval in LOOKING for step in steps if step.opname == "LOAD_GLOBAL"):
        return NONE
    at, names, prefixes = set[int](), set[str](), set[str]()
    for place, step in enumerate(steps):
        if step.opname not in _CALLS or step.arg not in (2, 3) or _by_name(steps, place):
            continue
        spans = list[tuple[int, int]]()
        before = place
        for _ in range(step.arg):
            span = _argument(steps, before)
            if span is None:
                break
            spans.append(span)
            before = span[0]
        function = _before(steps, before)
        if len(spans) != step.arg or function is None or steps[function].opname != "LOAD_GLOBAL":
            continue
        if steps[function].argval not in LOOKING:
            continue
        text = _text(code, steps, spans[step.arg - 2])
        if text is None:
            continue
        begins, whole = text
        if not whole and (not begins or any(name.startswith(begins) for name in elsewhere)):
            continue
        at.add(function)
        (names if whole else prefixes).add(begins)
    return Lookups(frozenset(at), frozenset(names), frozenset(prefixes))


def _text(
    code: types.CodeType, steps: Sequence[dis.Instruction], span: tuple[int, int]
) -> tuple[str, bool] | None:
    """What a text begins with, and whether that is all of it."""
    first, last = span
    if first == last and steps[first].opname == "LOAD_FAST":
        return _of_local(code, steps, steps[first].argval)
    return _written(steps, span)


def _written(steps: Sequence[dis.Instruction], span: tuple[int, int]) -> tuple[str, bool] | None:
    first, last = span
    begins = steps[first]
    if begins.opname != "LOAD_CONST" or type(begins.argval) is not str:
        return None
    if first == last:
        return begins.argval, True
    return (begins.argval, False) if steps[last].opname == "BUILD_STRING" else None


def _of_local(code: types.CodeType, steps: Sequence[dis.Instruction], name: str) -> tuple[str, bool] | None:
    """A variable that one line alone sets, which is no argument."""
    counted = code.co_argcount + code.co_kwonlyargcount
    stores = [n for n, step in enumerate(steps) if "STORE" in step.opname and _is_of(step.argval, name)]
    if name in code.co_varnames[:counted] or len(stores) != 1 or name in code.co_cellvars:
        return None
    (store,) = stores
    if steps[store].opname != "STORE_FAST" or code.co_flags & _STARS:
        return None
    span = _argument(steps, store)
    return None if span is None else _written(steps, span)


_STARS = 0x04 | 0x08  # *args, **kwargs


def _is_of(value: Any, name: str) -> bool:
    return value == name or (type(value) is tuple and name in value)


def _argument(steps: Sequence[dis.Instruction], end: int) -> tuple[int, int] | None:
    """The first and last instruction of what is pushed last before one, computed in one line."""
    last, depth = _before(steps, end), 0
    place = last
    while place is not None and place >= 0:
        step = steps[place]
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs or steps[place].is_jump_target:
            return None
        depth += _effect(step)
        if depth == 1:
            return (place, last) if last is not None else None
        place -= 1
    return None


def _effect(step: dis.Instruction) -> int:
    """How many more values are on the stack after an instruction."""
    if step.opname == "PRECALL":
        return 0
    if step.opname == "CALL":  # a function and what is beside it, and its arguments, for a result
        return -(step.arg or 0) - 1
    return dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None, jump=False)


def _before(steps: Sequence[dis.Instruction], place: int) -> int | None:
    """The instruction before one, but for those that compute nothing."""
    place -= 1
    while place >= 0 and steps[place].opname in _NO_PART:
        place -= 1
    return place if place >= 0 else None


def _by_name(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Whether a call has arguments by name, which these functions do not take."""
    return any(step.opname == "KW_NAMES" for step in steps[max(place - 2, 0) : place])


def only_for_checks(steps: Sequence[dis.Instruction]) -> frozenset[int]:
    """Which instructions load `globals` and `locals` for `TypeCheckMemo(globals(), locals(), ...)` of
    typeguard, as that writes it into functions: it looks names in annotations up there."""
    if not any(step.argval == "typeguard" for step in steps if step.opname == "IMPORT_NAME"):
        return frozenset()
    plain = [(n, step) for n, step in enumerate(steps) if step.opname not in _NO_PART]
    kinds = [(step.opname, step.argval) for _, step in plain]
    stores = [n for n, (kind, name) in enumerate(kinds) if "STORE" in kind and _is_of(name, "TypeCheckMemo")]
    if len(stores) != 1 or stores[0] < 2:
        return frozenset()
    (store,) = stores
    if kinds[store - 2 : store] != [("IMPORT_NAME", "typeguard"), ("IMPORT_FROM", "TypeCheckMemo")]:
        return frozenset()
    found = set[int]()
    for n, (kind, name) in enumerate(kinds):
        ahead = [(k, v if k.startswith("LOAD") else None) for k, v in kinds[n + 1 : n + 5]]
        wanted = [("LOAD_GLOBAL", "globals"), (_CALL, None), ("LOAD_GLOBAL", "locals"), (_CALL, None)]
        memo = (kind, name) == ("LOAD_FAST", "TypeCheckMemo") and ahead == wanted
        if memo and not (plain[n + 2][1].arg or plain[n + 4][1].arg):
            found |= {plain[n + 1][0], plain[n + 3][0]}
    return frozenset(found)
