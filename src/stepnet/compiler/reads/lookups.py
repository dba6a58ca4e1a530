"""Attributes that code looks up by a text: `getattr(self, "norm", None)`, `getattr(self, f"conv{i}")`,
`getattr(torch, self.act)`.

Known from instructions alone: what the second argument is, which ones it may be, what it begins with, or
which attribute of the code's own object holds it, whatever runs.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

LOOKING = ("getattr", "hasattr")
_CALLS = ("CALL", "CALL_FUNCTION")
_CALL = next(kind for kind in _CALLS if kind in dis.opmap)
_NO_PART = ("PRECALL", "PUSH_NULL", "EXTENDED_ARG", "CACHE", "NOP")


class Lookups(NamedTuple):
    """`at`: which instructions load a function whose lookups are known; `names` are those that are whole,
    `prefixes` what others begin with; `held`: the attributes of `self` that hold such texts."""

    at: frozenset[int]
    names: frozenset[str]
    prefixes: frozenset[str]
    held: frozenset[str]


NONE = Lookups(frozenset(), frozenset(), frozenset(), frozenset())


def lookups(code: types.CodeType, steps: Sequence[dis.Instruction], elsewhere: Collection[str]) -> Lookups:
    """What code looks up by texts that are known. `elsewhere`: names that no prefix may stand for."""
    if not any(step.argval in LOOKING for step in steps if step.opname == "LOAD_GLOBAL"):
        return NONE
    at, found = set[int](), {kind: set[str]() for kind in ("whole", "begins", "held")}
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
        texts, kind = text
        if kind == "begins" and any(not begins or _begins_any(begins, elsewhere) for begins in texts):
            continue
        at.add(function)
        found[kind].update(texts)
    return Lookups(frozenset(at), *map(frozenset, found.values()))


# Texts, and whether each is the whole of what is looked up, what that begins with, or what holds it.
_Texts = tuple[Collection[str], Literal["whole", "begins", "held"]]


def _begins_any(begins: str, names: Collection[str]) -> bool:
    return any(name.startswith(begins) for name in names)


def _text(code: types.CodeType, steps: Sequence[dis.Instruction], span: tuple[int, int]) -> _Texts | None:
    first, last = span
    if first == last and steps[first].opname == "LOAD_FAST":
        return _of_local(code, steps, steps[first].argval)
    return _computed(code, steps, span)


def _computed(code: types.CodeType, steps: Sequence[dis.Instruction], span: tuple[int, int]) -> _Texts | None:
    return _written(code, steps, span) or _held(code, steps, *span)


def _written(code: types.CodeType, steps: Sequence[dis.Instruction], span: tuple[int, int]) -> _Texts | None:
    first, last = span
    begins = steps[first]
    if begins.opname != "LOAD_CONST" or type(begins.argval) is not str:
        return None
    if first == last:
        return (begins.argval,), "whole"
    if steps[last].opname == "BUILD_STRING":
        return (begins.argval,), "begins"
    if fills_in(steps, first):
        return (begins.argval.partition("{")[0],), "begins"
    if (by := operator_of(steps[last])) not in ("%", "+"):
        return None
    right = _argument(steps, last)
    if right is None or _before(steps, right[0]) != first:
        return None
    if by == "+" and not _is_text(code, steps, right):  # another value may say what the sum is
        return None
    return (begins.argval.partition("%")[0] if by == "%" else begins.argval,), "begins"


def _held(
    code: types.CodeType, steps: Sequence[dis.Instruction], first: int | None, last: int
) -> _Texts | None:
    """Texts that an attribute of `self` holds, which these two instructions ask for."""
    asks = steps[last].opname == "LOAD_ATTR" and not steps[last].is_jump_target
    if not asks or first is None or _before(steps, last) != first:
        return None
    return ((steps[last].argval,), "held") if is_of_self(code, steps) and loads_self(steps[first]) else None


def is_of_self(code: types.CodeType, steps: Sequence[dis.Instruction]) -> bool:
    """Whether the first argument of code is its `self`, whatever it does."""
    first = code.co_varnames[: code.co_argcount][:1] == ("self",)
    return first and not any("STORE" in step.opname and _is_of(step.argval, "self") for step in steps)


def loads_self(step: dis.Instruction) -> bool:
    """Whether an instruction loads a variable of this name, last."""
    value = step.argval[-1] if type(step.argval) is tuple else step.argval
    return value == "self" and step.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))


def operator_of(step: dis.Instruction) -> str:
    """The operator that an instruction computes; "" if it is none of two values that gives a third."""
    return _OPERATORS.get(step.opname, step.argrepr if step.opname == "BINARY_OP" else "")


_OPERATORS = {"BINARY_MODULO": "%", "BINARY_ADD": "+"}  # of Python 3.10


def fills_in(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Whether a text is loaded that is asked for `.format` next, which reads no attributes for it."""
    if place < 0 or place + 1 >= len(steps):
        return False
    text, asked = steps[place : place + 2]
    if asked.is_jump_target:  # it may be asked of another one
        return False
    is_text = text.opname == "LOAD_CONST" and type(text.argval) is str
    asks = asked.opname in ("LOAD_METHOD", "LOAD_ATTR") and asked.argval == "format"
    return is_text and asks and not re.search(r"[{}]", _FIELD.sub("", text.argval))


_FIELD = re.compile(r"\{\{|\}\}|\{\w*(![rsa])?(:[^{}]*)?\}")


def _is_text(code: types.CodeType, steps: Sequence[dis.Instruction], span: tuple[int, int]) -> bool:
    """Whether what is computed is a text."""
    first, last = span
    if first == last and steps[first].opname == "LOAD_FAST":
        store = _sets(code, steps, steps[first].argval)
        looped = None if store is None else _of_loop(code, steps, store)
        return looped is not None and looped[1] == "whole"
    asks = steps[first].opname == "LOAD_GLOBAL" and steps[first].argval == "str"
    given = _argument(steps, last) if asks and steps[last].opname in _CALLS else None
    if given is not None and steps[last].arg == 1:
        return _before(steps, given[0]) == first
    return steps[last].opname in _FORMATTED or (first == last and type(steps[first].argval) is str)


_FORMATTED = ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING")


def _of_local(code: types.CodeType, steps: Sequence[dis.Instruction], name: str) -> _Texts | None:
    store = _sets(code, steps, name)
    if store is None:
        return None
    if (looped := _of_loop(code, steps, store)) is not None:
        return looped
    span = _argument(steps, store)
    return None if span is None else _computed(code, steps, span)


def _sets(code: types.CodeType, steps: Sequence[dis.Instruction], name: str) -> int | None:
    """The one instruction that sets a variable, which is no argument."""
    counted = code.co_argcount + code.co_kwonlyargcount
    stores = [n for n, step in enumerate(steps) if "STORE" in step.opname and _is_of(step.argval, name)]
    if name in code.co_varnames[:counted] or len(stores) != 1 or name in code.co_cellvars:
        return None
    (store,) = stores
    return None if steps[store].opname != "STORE_FAST" or code.co_flags & _STARS else store


def _of_loop(code: types.CodeType, steps: Sequence[dis.Instruction], store: int) -> _Texts | None:
    """What a loop sets a variable to, if the texts that it goes through are written at its head, or held by
    an attribute."""
    looping = _before(steps, store)
    asks = None if looping is None or steps[looping].opname != "FOR_ITER" else _before(steps, looping)
    if asks is None or steps[asks].opname != "GET_ITER" or steps[asks].is_jump_target:
        return None
    over = _before(steps, asks)
    if over is None:
        return None
    if steps[over].opname != "LOAD_CONST":
        return _held(code, steps, _before(steps, over), over)
    texts = steps[over].argval
    known = type(texts) is str or (type(texts) is tuple and all(type(text) is str for text in texts))
    return (tuple(texts), "whole") if known else None


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
