"""The number of sequences, which stands for any in what is written: as a size, for as a number it cannot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from torch.fx import Node as FxNode

from stepnet.errors import IRError

from .calls import call_of
from .trace import Program, line_of

_MOST = 16  # what numbers of sequences are counted on to never come to, nor what is computed from such
_END = 2**62
_REMEDY = "torch.ones_like(x.lengths()).sum() in its place"


def check_counts(made: Program, again: Callable[[], tuple[Program, Mapping[int, int]]], where: str) -> None:
    """Refuse a program that computes with the number of sequences.

    Args:
        made: the program.
        again: traces it for other numbers of sequences; by each of `made` the one in its place.
        where: what is traced, for errors.

    Raises:
        IRError: a number in it is another for other numbers of sequences.
    """
    runs = [node for node in made.nodes if str(node.target).startswith("stepnet.recurrence")]
    calls = [call_of(cast(int, node.args[0])) for node in runs]
    read = [call.read for call in calls]
    found = [number for node in made.nodes for number, is_size in _numbers(node) if not is_size]
    if not any(map(_is_odd, [*found, *itertools.chain(*read)])):
        return
    other, pairs = again()
    for call, numbers in zip(calls, read, strict=True):
        if call.read != numbers:
            raise IRError(
                f"the recurrence of {call.where} cannot be written: it reads the number of sequences",
                remedy=_REMEDY,
            )
    pair: Any
    for pair in itertools.zip_longest(made.nodes, other.nodes):
        if all(pair) and _alike(pair[0], pair[1], pairs):
            continue
        node = pair[0] or pair[1]
        line = line_of(node)
        raise IRError(
            f"{where} cannot be written: '{node.target}'" + (f" ({line})" if line else "")
            + ": it computes with the number of sequences",
            remedy=_REMEDY,
        )  # fmt: skip


def _numbers(node: FxNode) -> Iterator[tuple[Any, bool]]:
    """The numbers that a call is given, each with whether it is one of a list, as sizes are."""
    own = str(node.target).startswith("stepnet.")  # the first says which call it stands for
    for value in (*node.args[own:], *node.kwargs.values()):
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, (int, float)):
                yield part, part is not value


def _is_odd(number: float) -> bool:
    return _MOST < abs(number) < _END or (abs(number) < _MOST and number != int(number))


def _alike(node: FxNode, twin: FxNode, pairs: Mapping[int, int]) -> bool:
    ours, theirs = list(_numbers(node)), list(_numbers(twin))
    return str(node.target) == str(twin.target) and len(ours) == len(theirs) and all(
        a == b or a != a or (is_size and pairs.get(a) == b)
        for (a, is_size), (b, _) in zip(ours, theirs, strict=True)
    )  # fmt: skip
