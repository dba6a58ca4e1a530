"""Numbers of Python's in a program that are others in another call.

How many sequences there are stands for any number in what is written, but only as a size. What a module
counts in its attributes is no input of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.errors import IRError

from .call_log import Request
from .calls import call_of
from .graph import Graph
from .recurrence_call import RecurrenceCall
from .same_graphs import same_node
from .trace import Program, line_of, sizes_of

_LOOPS = "stepnet.recurrence", "stepnet.while_node", "stepnet.iterator"
_REMEDY = "torch.ones_like(x.lengths()).sum() in its place"
# Calls of which the numbers in a list are sizes, and written as such.
_SIZED = re.compile(
    r"(aten\.(_unsafe_view|reshape|view|unflatten|expand|broadcast_to|repeat|(new_)?(full|zeros|ones|empty)"
    r"|split(_with_sizes)?|upsample\w*)\b|stepnet\.)"
)


class AsManyAsSequences(IRError):
    """A size of a module's own is the number of sequences of the example."""


def following(made: Program, other: Program, pairs: Mapping[int, int]) -> dict[int, int]:
    """The sizes that follow from the number of sequences, as twice as many; with each what it is in the same
    program for another number.

    Raises:
        AsManyAsSequences: one of `pairs` is a size that does not follow.
    """
    found: dict[int, int] = {}
    stays: set[int] = set()
    ours, theirs = ([*of.inputs, *of.nodes] for of in (made, other))
    for node, twin in zip(ours, theirs, strict=False):
        if str(node.target) != str(twin.target):
            break
        for size, others in zip(_own_sizes(node), _own_sizes(twin), strict=False):
            if size == others or (pairs.get(size) != others and found.setdefault(size, others) != others):
                stays.add(size)
    if stays & {n for n, others in pairs.items() if n != others}:
        raise AsManyAsSequences("a size is as large as the number of sequences of the example")
    return {size: others for size, others in found.items() if size not in stays and size not in pairs}


def _own_sizes(node: FxNode) -> Iterator[int]:
    """The sizes of a call's results that are numbers, and 0 for each that is a symbol."""
    made = node.meta.get("val")
    for value in made if isinstance(made, (list, tuple)) else (made,):
        if isinstance(value, Tensor):
            yield from (size if isinstance(size, int) else 0 for size in sizes_of(value))


def _scaled(grown: Mapping[int, int], pairs: Mapping[int, int], by: Mapping[int, int]) -> dict[int, float]:
    """What follows from numbers of sequences, for those of `pairs`: where it does so along a line, through
    what it is for those of `by`."""
    n, last = next(iter(by.items()))
    return {a: a + (b - a) * (pairs[n] - n) / (last - n) for a, b in grown.items()}


class Other(NamedTuple):
    """The program for another number of sequences; by the numbers of the first one those in their place, and
    what its loops read."""

    program: Program
    numbers: Mapping[int, int]
    read: Sequence[list[Any]]


def read_in(made: Program) -> list[list[Any]]:
    """What the loops of a program read, which was the last one to be traced."""
    return [call.read for call in _loops(made)]


def _loops(made: Program) -> list[Any]:
    return [call_of(cast(int, n.args[0])) for n in made.nodes if str(n.target).startswith(_LOOPS)]


def check_counts(made: Program, others: Sequence[Other], grown: Mapping[int, int], where: str) -> None:
    """Refuse a program that computes with the number of sequences, or that it decides.

    Args:
        made: the program, which was the last one to be traced.
        others: it for other numbers of sequences. Of few sequences torch makes other calls, so of those only
            what the user's code asks for is compared.
        grown: what is `following` in the first of these.
        where: what is traced, for errors.

    Raises:
        IRError: another number of sequences makes it another.
    """
    for other, numbers, read in others:
        pairs: Any = {**_scaled(grown, numbers, others[0].numbers), **numbers} if grown else numbers
        for call, values in zip(_loops(made), read, strict=True):
            if call.read != values:
                ours, theirs = next(p for p in zip_longest(call.read, values) if p[0] != p[1])
                raise IRError(
                    f"{_named(call)} cannot be written: it reads the number of sequences",
                    remedy=_REMEDY,
                    got=f"{_shown(ours)} for the example, {_shown(theirs)} for another",
                    expected="a step that does not depend on it",
                )
        many = all(a <= b for a, b in pairs.items())
        changed = (_first_call(made, other, pairs) or _first_reader(made, other)) if many else None
        changed = changed or _first_request(made, other, pairs)
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
    for pair in zip_longest(made.nodes, other.nodes):
        if not all(pair) or not _alike(pair[0], pair[1], pairs):
            return pair[0] or pair[1]
    return None


def _named(call: Any) -> str:
    return f"the recurrence of {call.where}" if isinstance(call, RecurrenceCall) else call.where


def _shown(value: Any) -> str:
    return str(value[-1] if isinstance(value, tuple) else value)[:80]


def _first_reader(made: Program, other: Program) -> FxNode | None:
    """The first call that reads a tensor with other numbers, as `torch.tensor(len(x))` makes them."""
    for node, twin in zip(made.constants, other.constants, strict=False):
        ours, theirs = made.constants[node], other.constants[twin]
        if node.users and ours is not theirs and not _equal(ours, theirs):
            return next(iter(node.users))
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _first_request(made: Program, other: Program, pairs: Mapping[int, int]) -> Request | None:
    """The first call of the user's that is another."""
    for ours, theirs in zip_longest(made.asked, other.asked):
        if ours is None or theirs is None or not ours.is_as(theirs, pairs):
            return ours or theirs
    return None


def check_counters(made: Program, following: Program, names: Sequence[str], where: str) -> bool:
    """Refuse a program that computes with numbers that a module keeps for its next call; tells whether that
    makes the same calls of torch. If not, the module made something once.

    Args:
        made: the program.
        following: that of the next call.
        names: the numbers that the first call changed.
        where: what is traced, for errors.

    Raises:
        IRError: a number in it is another in the next call.
    """
    pairs = list(zip(made.nodes, following.nodes, strict=False))
    if len(made.nodes) != len(following.nodes) or any(a.target != b.target for a, b in pairs):
        return False
    changed = next((a for a, b in pairs if not _alike(a, b, {})), None) or _first_reader(made, following)
    if changed is not None:
        raise _of_next_call(_at(where, changed), names)
    return True


def other_reader(made: Program, read: Sequence[list[Any]]) -> str | None:
    """A loop of a program that may read other numbers than it did before, as errors name it.

    >>> other_reader(Program((), {}, (), (), [], {}), [])
    """
    return next((_named(c) for c, before in zip(_loops(made), read, strict=False) if c.read != before), None)


def check_graphs(
    made: Graph, following: Graph, reader: str, names: Sequence[str], *, loops_only: bool
) -> None:
    """Refuse a graph of which a loop computes with such numbers.

    Args:
        made: the graph.
        following: that of the next call.
        reader: the loop that may read them, for errors.
        names: the numbers that the first call changed.
        loops_only: what is around the loops is another.

    Raises:
        IRError: a number in it is another in the next call.
    """
    nodes, twins = (
        [n for n in of.nodes if n.op in ("loop", "cell") or not loops_only] for of in (made, following)
    )
    more = len(nodes) != len(twins) and not loops_only
    if more or not all(map(same_node, nodes, twins)):
        raise _of_next_call(f"{reader} cannot be written", names)


def _of_next_call(what: str, names: Sequence[str]) -> IRError:
    return IRError(
        f"{what}: it computes with a number that the module keeps for its next call",
        got=", ".join(names) or "a number outside of the module",
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
    """What a call is given, other calls by name, each with whether it is a size, one of a list."""
    sized = _SIZED.match(str(node.target)) is not None
    own = bool(node.args) and isinstance(node.args[0], int) and str(node.target).startswith("stepnet.")
    for value in (*node.args[own:], *node.kwargs.values()):  # of some the first says which one it is
        for part in value if isinstance(value, (list, tuple)) else (value,):
            yield part.name if isinstance(part, FxNode) else part, sized and part is not value


def _alike(node: FxNode, twin: FxNode, pairs: Mapping[int, int]) -> bool:
    ours, theirs = list(_given(node)), list(_given(twin))
    return str(node.target) == str(twin.target) and len(ours) == len(theirs) and all(
        a == b or a != a or (is_size and pairs.get(a) == b)
        for (a, is_size), (b, _) in zip(ours, theirs, strict=True)
    )  # fmt: skip
