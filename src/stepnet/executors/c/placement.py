"""How threads share the rows of a call of a scan, and where each has its memory."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Literal

from stepnet.data.bounded_cache import Bounded
from stepnet.data.unpatched_torch import data_ptr
from stepnet.errors import BuildError, describe
from stepnet.executors.layout import Layout, is_uneven
from stepnet.executors.schedule.features import features
from stepnet.executors.schedule.turns import by_turns, waits_for_memory
from stepnet.ir.plan import LoopPlan, Region
from stepnet.user_line import user_level

from .call_arguments import Placed, Sharing
from .code import Code, codes
from .new_tables import NewTables
from .places import padded
from .products import BY_DTYPE, has_tiles
from .source import FIXED, Source, write
from .thread_gain import SHORT, Pace
from .weight_memory import worth_packing

ALONE = 1 << 19  # multiplications of a call that one thread does before another one wakes
MEMBER_BYTES = 1 << 15  # of weights that a step reads, for each thread that shares it (measured)
FAR = 1 << 21  # bytes of weights that a step reads, which no cache of one thread holds: each takes a part
FEW_TO_READ_FAR = 64  # sequences, with more of which that saves little
NEAR = 1 << 16  # bytes of states that one thread works on at a time, where steps do not share a product
WORTH_TURNS = 0.3  # of the time of steps, that takes what is made beside them
WORTH_TURNS_TOO = 1.0  # where threads could take some features each
TURNS, LEAST = 4, 16  # chunks of a thread at least, if they have so many steps, when threads take turns
APART = 2  # such chunks between two meetings of threads that take some features each: one may have to wait
CHUNK = 1 << 18  # bytes of rows between products and the steps beside them: the second cache holds them
CHUNK_BY_TILES = 1 << 20  # at most, for tiles, which outrun a cache that is far: twice those of matrices
_MOST_KINDS = 64  # of calls, whose pace one scan remembers
_MOST_PLACED = 64  # sequences, of which one scan remembers the arguments
_FEW_ROWS = 1 << 12  # of more rows it remembers those alone


class Placements:
    """The code of a scan for each way to share it, and where the calls for which sequences have what."""

    alone: Code  # for threads that have sequences of their own; see `build_all`

    def __init__(self, loop: LoopPlan, region: Region, source: Source, tables: NewTables) -> None:
        self._whose, self._source, self._tables, p = (loop, region), source, tables, source.program
        self.features = features(p)
        self._beside = by_turns(p)[1]
        self._waits = waits_for_memory(p, self._beside)
        early = {node.inputs[1] for node in (*p.early, *p.late)}
        self._step_bytes = sum(p.value(name).bytes for name, *_ in source.packed if name not in early)
        self._worth_packing = worth_packing(max((p.value(name).bytes for name in p.matrices), default=0))
        self._packings: dict[tuple[Sharing | None, int], tuple[list[int], int]] = {}
        self._row_work = source.space[1] + sum(h * k * n for _, h, k, n in source.packed)
        products = [BY_DTYPE[p.value(name).dtype] for name in p.matrices if name not in p.by_row]
        self._chunk_bytes = CHUNK
        if has_tiles() and any(product.sums == "f32" for product in products):
            beside = sum(p.value(name).bytes for name in early)
            self._chunk_bytes = max(CHUNK, min(2 * beside, CHUNK_BY_TILES))
        self._known = Bounded[tuple[Layout, int, int], Placed](_MOST_PLACED)
        self._paces = Bounded[tuple[int, int, int], Pace](_MOST_KINDS)

    def of(self, layout: Layout, threads: int, split: int) -> Placed:
        """What the arguments of a call are for these sequences, on at most so many threads."""
        kind = layout, threads, split
        placed = self._known.get(kind)
        if placed is None:
            if layout.rows > _FEW_ROWS:
                self._known.clear()
            placed = self._known[kind] = self._placed_anew(layout, threads, split)
        return placed

    def _placed_anew(self, layout: Layout, threads: int, split: int) -> Placed:
        placed, work = self.on(layout, threads, split), layout.rows * self._row_work
        # where each has sequences of its own, sums have as many parts as there are threads
        meets = placed.sharing is not None or (work < SHORT and not self._source.program.sums)
        if threads == 1 or work <= ALONE or not meets:
            return placed
        kind = threads, layout.sequences, layout.rows.bit_length()
        if kind not in self._paces:
            self._paces[kind] = Pace()
        return placed._replace(pace=self._paces[kind])

    def by_one(self, placed: Placed) -> Placed:
        """A placement on one thread, which adds the same numbers in the same order."""
        kind = placed.layout, *placed.key
        known = self._known.get(kind, placed)
        if known.alone is None:
            known = self._known[kind] = placed._replace(alone=self._alone_of(placed, placed.key[1]))
        assert known.alone is not None
        return known.alone

    def _alone_of(self, placed: Placed, split: int) -> Placed:
        layout, shares = placed.layout, 1
        if self._source.program.sums:
            if placed.sharing == "turns":
                return placed._replace(used=1, pace=None)
            if placed.sharing == "members":  # one share has the rows of one member
                shares = min(placed.used, layout.sequences)
        return self.on(layout, shares, split, alone=True)

    def on(
        self, layout: Layout, threads: int, split: int, alone: bool = False, room: tuple[int, int] = (0, 0)
    ) -> Placed:
        """The same, on so many threads. `alone`: on one thread, which does what those threads would; sums as
        their rows came together. `room`: for how many sequences, and of how many steps, there is to be
        memory."""
        n, steps = layout.sequences, layout.steps
        in_turn = alone and bool(self._source.program.sums)
        small = self.has_few(layout.rows)
        sharing, members = (None, 1)
        if threads > 1 and not alone and not small:
            sharing, members = self.shared_out(layout, threads)
        source = self.code(sharing).source
        slots = 1 if small or sharing is not None else max(1, min(threads, n))
        count = -(-max(n, room[0]) // slots)
        whole = self._step_bytes or sharing is not None or in_turn
        turns = 1 if whole else -(-count // max(1, NEAR // max(source.space[1], 1)))
        count = -(-count // max(turns, 1))
        copies = members if sharing == "turns" else 1  # of what a chunk of steps reads
        row_bytes = copies * source.chunk_bytes + members * source.index_bytes
        block = self._chunk_bytes * (APART if sharing == "features" else copies)
        held_bytes = row_bytes + source.late_bytes + copies * source.ahead_bytes
        chunk = max(1, min(max(steps, room[1]), block // max(count * held_bytes, 1)))
        if sharing == "turns":  # a state is in the first of its two places where a chunk begins
            chunk = max(LEAST, min(chunk, steps // (TURNS * members)) // LEAST * LEAST)
        share_bytes = source.space[0] + count * (8 * members + source.space[1] + chunk * row_bytes)
        share_bytes = padded(share_bytes + (64 + source.own_bytes) * members)
        shares = slots * max(turns, 1)
        order = layout.order if in_turn else layout.dealt(shares)
        packed, packed_bytes = self._packed(sharing, split)
        few = self._few_to_pack(layout, sharing)
        head = (
            n, shares, steps, layout.stride, slots, chunk,
            members if sharing is not None else 0, split, few,
            data_ptr(layout.starts), data_ptr(layout.lengths), data_ptr(order),
        )  # fmt: skip
        assert len(head) + 2 == len(FIXED)
        return Placed(
            layout,
            order,
            (threads, split),
            1 if alone else members if sharing is not None else threads,
            sharing,
            head,
            share_bytes,
            tuple(share_bytes * slots + at for at in packed),
            share_bytes * slots + packed_bytes + 64,
            slots * members,
            self._tables.of(layout, layout.rows, slots * members),
        )

    def moved(self, placed: Placed, layout: Layout) -> Placed:
        """The same for other sequences, where one thread has all of both, and there is room for them."""
        _, shares, _, stride, slots, chunk, members, split, _, *_ = placed.head
        order, few = layout.order, self._few_to_pack(layout, placed.sharing)
        at = data_ptr(layout.starts), data_ptr(layout.lengths), data_ptr(order)
        head = layout.sequences, shares, layout.steps, stride, slots, chunk, members, split, few, *at
        return placed._replace(layout=layout, order=order, head=head)

    def _few_to_pack(self, layout: Layout, sharing: Sharing | None) -> int:
        """1 where packing a matrix takes longer than it saves."""
        return int(layout.rows < self._worth_packing and sharing in (None, "members"))

    def _packed(self, sharing: Sharing | None, split: int) -> tuple[list[int], int]:
        """Where the matrices that are packed stand, one after the other, and the bytes of all."""
        found = self._packings.get((sharing, split))
        if found is None:
            source, places, at = self.code(sharing).source, [], 0
            for name, heads, k, n in source.packed:
                places.append(at)
                value = source.program.value(name)
                size = heads * BY_DTYPE[value.dtype].packed_bytes(k, n, split)
                at += padded(value.bytes if name in source.program.by_row else size)
            found = self._packings[sharing, split] = places, at
        return found

    def shared_out(self, layout: Layout, threads: int) -> tuple[Sharing | None, int]:
        """How threads share all rows, and how many; none where each has sequences of its own.

        They work on one step at a time where there are more of them than sequences, or they are few and no
        cache holds its weights, and each has enough to read to pay for the meetings. Where sequences are
        dealt unevenly, they take turns, or some features each.
        """
        members = min(threads, self._step_bytes // MEMBER_BYTES)
        few = FEW_TO_READ_FAR if self._step_bytes > FAR and members > 1 else members - 1
        if 0 < layout.sequences <= few:
            return "members", members
        if self.for_few is not None and is_uneven(layout, threads):
            if self.for_few == "turns" and self._by_turns is not None:
                return "turns", threads
            if self.features is not None and self.features.parts > 1 and self._by_features is not None:
                return "features", min(threads, self.features.parts)
        return None, 1

    @property
    def for_few(self) -> Literal["turns", "features"] | None:
        """How threads share the rows of sequences that are dealt unevenly."""
        by_features = self.features is not None and self.features.parts > 1
        if self._waits or self._beside >= (WORTH_TURNS_TOO if by_features else WORTH_TURNS):
            return "turns"
        return "features" if by_features else None

    def has_few(self, rows: int) -> bool:
        """Whether one thread does a call of so many rows before another one wakes."""
        return rows * self._row_work < ALONE

    # ---- the code for each way

    def code(self, sharing: Sharing | None) -> Code:
        """That of threads which share rows so."""
        code = self._by_features if sharing == "features" else self.alone
        code = self._by_turns if sharing == "turns" else code
        assert code is not None
        return code

    @functools.cached_property
    def _by_features(self) -> Code | None:
        """The same scan by threads that take some features each, built when it is first called for; None,
        and a warning, where it cannot be built."""
        return self._for_several(features=self.features)

    @functools.cached_property
    def _by_turns(self) -> Code | None:
        """The same scan by threads that take turns; as above."""
        return self._for_several(turns=True)

    def _for_several(self, **how: Any) -> Code | None:
        source = write(*self._whose, "run", **how)
        try:
            return codes([source])[0]
        except BuildError as error:
            what = "one long sequence runs on one thread: the code for several was not built"
            warnings.warn(describe(what, got=error), RuntimeWarning, stacklevel=user_level())
            return None
