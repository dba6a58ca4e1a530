"""Numbers of Python's in a program that are others in another call.

How many sequences there are stands for any number in what is written, but only as a size. What a module
counts in its attributes is no input of a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch.fx import Node as FxNode

from stepnet.errors import IRError

from .call_log import Request
from .calls import call_of
from .trace import Program, line_of

_RECURRENCE = "stepnet.recurrence"
_REMEDY = "torch.ones_like(x.lengths()).sum() in its place"


def check_counts(made: Program, others: Iterable[tuple[Program, Mapping[int, int]]], where: str) -> None:
    """Refuse a program that computes with the number of sequences, or that it decides.

    Args:
        made: the program.
        others: it for other numbers of sequences; with each by those of `made` the ones in its place. Of few
            sequences torch makes other calls, so of those only what the user's code asks for is compared.
        where: what is traced, for errors.

    Raises:
        IRError: another number of sequences makes it another.
    """
    calls = [call_of(cast(int, n.args[0])) for n in made.nodes if str(n.target).startswith(_RECURRENCE)]
    read = [call.read for call in calls]
    for other, pairs in others:
        for call, numbers in zip(calls, read, strict=True):
            if call.read != numbers:
                raise IRError(
                    f"the recurrence of {call.where} cannot be written: it reads the number of sequences",
                    remedy=_REMEDY,
                    got=f"{numbers} for the example, {call.read} for another",
                    expected="a step that does not depend on it",
                )
        many = all(a <= b for a, b in pairs.items())
        changed = (_first_call(made, other, pairs) if many else None) or _first_request(made, other, pairs)
        if changed is not None:
            raise IRError(
                f"{_at(where, changed)}: it computes with the number of sequences, or that decides it",
                remedy=_REMEDY,
                got="another number for another number of sequences",
                expected="the same calls for any number of sequences",
            )


def _first_call(made: Program, other: Program, pairs: Mapping[int, int]) -> FxNode | None:
    """The first call of torch's that is another."""
    pair: Any
    for pair in itertools.zip_longest(made.nodes, other.nodes):
        if not all(pair) or not _alike(pair[0], pair[1], pairs):
            return pair[0] or pair[1]
    return None


def _first_request(made: Program, other: Program, pairs: Mapping[int, int]) -> Request | None:
    """The first call of the user's that is another."""
    for ours, theirs in itertools.zip_longest(made.asked, other.asked):
        if ours is None or theirs is None or not ours.is_as(theirs, pairs):
            return ours or theirs
    return None


def check_counters(made: Program, following: Program, names: Sequence[str], where: str) -> None:
    """Refuse a program that computes with numbers that a module keeps for its next call.

    Args:
        made: the program.
        following: that of the next call. If it makes other calls of torch, the module made something once.
        names: the numbers that the first call changed.
        where: what is traced, for errors.

    Raises:
        IRError: a number in it is another in the next call.
    """
    pairs = list(zip(made.nodes, following.nodes, strict=False))
    if len(made.nodes) != len(following.nodes) or any(a.target != b.target for a, b in pairs):
        return
    changed = next((a for a, b in pairs if not _alike(a, b, {})), None)
    if changed is not None:
        raise IRError(
            f"{_at(where, changed)}: it computes with a number that the module keeps for its next call",
            got=", ".join(names),
            remedy="what stays from call to call as inputs and outputs",
            expected="a module that computes the same in each call",
        )


def _at(where: str, call: FxNode | Request) -> str:
    if isinstance(call, Request):
        name, line = call.name, call.place and call.place[0].short
    else:
        name, line = str(call.target), line_of(call)
    return f"{where} cannot be written: '{name}'" + (f" ({line})" if line else "")


def _given(node: FxNode) -> Iterator[tuple[Any, bool]]:
    """What a call is given, other calls by name, each with whether it is one of a list, as sizes are."""
    own = bool(node.args) and isinstance(node.args[0], int) and str(node.target).startswith("stepnet.")
    for value in (*node.args[own:], *node.kwargs.values()):  # of some the first says which one it is
        for part in value if isinstance(value, (list, tuple)) else (value,):
            yield part.name if isinstance(part, FxNode) else part, part is not value


def _alike(node: FxNode, twin: FxNode, pairs: Mapping[int, int]) -> bool:
    ours, theirs = list(_given(node)), list(_given(twin))
    return str(node.target) == str(twin.target) and len(ours) == len(theirs) and all(
        a == b or a != a or (is_size and pairs.get(a) == b)
        for (a, is_size), (b, _) in zip(ours, theirs, strict=True)
    )  # fmt: skip
