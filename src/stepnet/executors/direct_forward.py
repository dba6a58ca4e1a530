"""How a plan's results are made by scans of its forward loop, which are given addresses, and by the maps
before, between and after them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from stepnet.data.dtypes import dtype_of
from stepnet.data.storage import distinct
from stepnet.data.unpatched_torch import data_ptr

from .addresses import MOST, Place, Places, Read, Run, addressed, bytes_of, outline, ran, read
from .layout import Layout
from .loop import Bound, Lone, Turn, run_nodes_as_written
from .ready import Ready
from .schedule.views import contiguous as contiguous_strides
from .tables import as_table


class _Maps(NamedTuple):
    """Maps; what they read of what is at hand, and which of their values scans read."""

    nodes: list[Bound]
    reads: list[Read]
    given: list[str]


class WayThere(NamedTuple):
    """How results are made.

    At hand are, one after the other: the inputs, what is made for the scans, and what maps give them.

    Attributes:
        turns: the scans and maps in their order.
        shown: the values of maps that are results, or kept for backward; each gets memory of its own.
        scans: the turns, if all are scans; else none.
        between: what one scan makes for others and for maps, each in one piece, as tensors without memory.
    """

    turns: list[Run | _Maps]
    shown: list[str]
    between: list[Tensor]
    scans: Sequence[Run]

    def run(self, inputs: Sequence[Tensor], made: Sequence[Tensor], layout: Layout) -> list[Tensor] | None:
        """What is shown, as rows; None: not of these. `made`: memory for what scans make."""
        addresses = [*map(data_ptr, inputs), *map(data_ptr, made)]
        if self.scans:
            return [] if self.run_at(addresses, layout) else None
        values: dict[str, Tensor] = {}
        seen: list[Tensor] = []
        alive: list[Tensor] = []
        for turn in self.turns:
            if not isinstance(turn, _Maps):
                if not ran(turn, addresses, layout):
                    return None
                continue
            values |= (found := read((*inputs, *made), turn.reads, layout.rows))
            seen += found.values()
            run_nodes_as_written(turn.nodes, values, layout.rows)
            given = [as_table(values[name]) for name in turn.given]
            alive += given
            addresses += map(data_ptr, given)
        return distinct([values[name] for name in self.shown], seen) if self.shown else []

    def run_at(self, addresses: Sequence[int], layout: Layout) -> bool:
        """A run without maps; False: not of these."""
        return bool(self.scans) and all(ran(scan, addresses, layout) for scan in self.scans)


def made_by_maps(turns: Sequence[Turn]) -> frozenset[str]:
    """The values of a loop's maps."""
    return frozenset(name for turn in turns if turn.scan is None for n in turn.nodes for name in n.outputs)


def way_there(
    ready: Ready, layout: Layout, most: int, turns: Sequence[Turn], at: Places, first: int, size: int
) -> WayThere:
    """How results are made. `at`: where inputs are, boot values, and what is asked for of what scans make;
    last values stand after that. `first`: their place; `size`: how many bytes are kept. Raises LookupError:
    a scan takes more than addresses."""
    plan, kinds = ready.plan, ready.plan.forward.body.values
    scans, by_maps = [turn.scan for turn in turns if turn.scan is not None], made_by_maps(turns)
    makes: list[frozenset[str]] = [getattr(scan, "fresh", frozenset()) for scan in scans]
    found, read_by = _all(makes), [*map(_reads, turns)]
    between = sorted((found & _all(read_by)) - {*at.made})
    shown = [name for name in (*plan.y, *ready.extra) if name in by_maps]
    rows_alone = all(kinds[name].kind == "row" for name in (*between, *shown))
    alone = len(scans) == 1
    if not (rows_alone and (alone or (found.issuperset(at.made) and len(found) == sum(map(len, makes))))):
        raise LookupError
    sizes = [most * math.prod(kinds[name].shape) for name in between]
    tables = [outline((n,), dtype_of(kinds[name].dtype)) for n, name in zip(sizes, between, strict=True)]
    if size + sum(map(bytes_of, tables)) >= MOST:
        raise LookupError
    made = {**at.made, **{name: Place(first + k) for k, name in enumerate(between)}}
    lasts = {name: Place(first + len(between) + k) for k, name in enumerate(plan.states)}
    values, strides = {**at.values, **made}, dict(at.strides)
    runs: list[Run | _Maps] = []
    after, known = first + len(between) + len(lasts), set[str]()  # by maps so far
    for k, turn in enumerate(turns):
        if turn.scan is not None:
            own = made if alone else makes[scans.index(turn.scan)]
            its = {name: place for name, place in made.items() if name in own}
            places = at._replace(values={**values}, strides={**strides}, made=its, lasts=lasts)
            runs.append(addressed(Lone(turn.scan, None, [], []), layout, most, places))
            continue
        reads: list[Read] = []
        for name in sorted(read_by[k] - known):
            place, kind = values[name], kinds[name]
            in_piece = name in made and name not in plan.y
            begin = place.offset // dtype_of(kind.dtype).itemsize if in_piece else None
            reads.append((name, place.which or 0, begin, kind.kind == "row", kind.shape))
        names = made_by_maps([turn])
        known |= names
        later = [read_by[i] for i in range(k + 1, len(turns)) if turns[i].scan is not None]
        given = sorted(names & _all(later))
        for place, name in enumerate(given, after):
            values[name], strides[name] = Place(place), contiguous_strides(kinds[name].shape)
        after += len(given)
        runs.append(_Maps(turn.nodes, reads, given))
    only_scans = [run for run in runs if not isinstance(run, _Maps)]
    return WayThere(runs, shown, tables, only_scans if len(only_scans) == len(runs) else ())


def _all(parts: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*parts)


def _reads(turn: Turn) -> frozenset[str]:
    """What a scan or maps read."""
    if turn.scan is not None:
        return frozenset(getattr(turn.scan, "reads", ()))
    return frozenset(name for node in turn.nodes for name in node.inputs) - made_by_maps([turn])
