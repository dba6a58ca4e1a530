"""What `stepnet.explain` returns: data, text and a picture."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .records import Direction, Loop, Op, Refused, Region, RegionKind, Saved
from .svg import svg
from .text import text


@dataclass(frozen=True)
class Explanation:
    """What `stepnet.explain` returns. Prints as text; draws itself in a notebook.

    Attributes:
        name: of the step.
        executor: "c", "eager" or "naive" (the plain loop); "refused" if a backend was asked for by name and
            declines, where `recurrent` raises.
        rows, sequences, steps: of this x; `steps` is the longest sequence's.
        shortest: the shortest sequence's steps.
        dtype: of x.
        training: True if gradients are wanted.
        loops: forward, then backward if the plan has one.
        saved: what the backward loop needs of the forward one.
        refusals: who declined, and why, best executor first.
        linear: states recognised as linear recurrences.
        notes: further remarks.
        source: the generated C, if asked for and if there is any.
    """

    name: str
    executor: Literal["c", "eager", "naive", "refused"]
    rows: int
    sequences: int
    steps: int
    shortest: int
    dtype: str
    training: bool
    loops: tuple[Loop, ...] = ()
    saved: tuple[Saved, ...] = ()
    refusals: tuple[Refused, ...] = ()
    linear: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None

    @property
    def regions(self) -> tuple[Region, ...]:
        """All regions in the order they run, those of the forward loop first."""
        return tuple(region for loop in self.loops for region in loop.regions)

    @property
    def flops(self) -> int:
        """Of everything, forward and backward."""
        return sum(loop.flops for loop in self.loops)

    @property
    def saved_bytes(self) -> int:
        """Memory that lives from the forward to the backward loop for that alone."""
        return sum(saved.bytes for saved in self.saved if saved.extra)

    def find(
        self, name: str | None = None, *, direction: Direction | None = None, kind: RegionKind | None = None
    ) -> tuple[Op, ...]:
        """The ops of that name, in that direction and kind of region; None: any."""
        return tuple(
            op
            for region in self.regions
            if direction in (None, region.direction) and kind in (None, region.kind)
            for op in region.ops
            if name in (None, op.name)
        )

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def to_svg(self, path: str | Path | None = None) -> str:
        """The step's graph coloured by region, as SVG text; written to `path` too if given."""
        drawing = svg(self)
        if path is not None:
            Path(path).write_text(drawing, encoding="utf-8")
        return drawing

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        words = html.escape(str(self))
        return f"{self.to_svg()}<details><summary>as text</summary><pre>{words}</pre></details>"
