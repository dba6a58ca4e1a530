"""What `stepnet.explain` returns: data, text and a picture."""

from __future__ import annotations

import html
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from stepnet.executors.naive import PLAIN

from .overview import model_svg, model_text
from .records import REFUSED, Direction, Loop, Op, Refused, Region, RegionKind, Saved
from .svg import svg
from .text import text


class _Shown:
    """What both kinds of explanation do with their text and their picture."""

    def _text(self) -> str:
        raise NotImplementedError

    def _svg(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return self._text()

    def to_svg(self, path: str | Path | None = None) -> str:
        """The graph of each step coloured by region, as SVG text, of a model all at a glance first; written
        to `path` too if given."""
        drawing = self._svg()
        if path is not None:
            Path(path).write_text(drawing, encoding="utf-8")
        return drawing

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, the FLOPs of loops and regions included."""
        return _data(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        words = html.escape(str(self))
        return f"{self.to_svg()}<details><summary>as text</summary><pre>{words}</pre></details>"


@dataclass(frozen=True, repr=False)
class Explanation(_Shown):
    """What `stepnet.explain` returns. Prints as text; draws itself in a notebook.

    Attributes:
        name: of the step; in a model after the path of the module that runs it.
        reverse: True if sequences are run from their ends.
        executor: "c", "eager", "naive" (the plain loop), or the name of one that was registered; "refused" if
            a backend was asked for by name and declines, where `recurrent` raises.
        label: what the executor is called: "generated C".
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

    `to_dict()` has all of this as plain dicts, lists and numbers, for `json.dumps`.
    """

    name: str
    executor: str
    label: str
    rows: int
    sequences: int
    steps: int
    shortest: int
    dtype: str
    training: bool
    reverse: bool = False
    loops: tuple[Loop, ...] = ()
    saved: tuple[Saved, ...] = ()
    refusals: tuple[Refused, ...] = ()
    linear: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None

    @property
    def compiled(self) -> bool:
        """True if the step runs by a plan, not by the plain loop, and is not refused."""
        return self.executor not in (PLAIN.name, REFUSED)

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

    def _text(self) -> str:
        return text(self)

    def _svg(self) -> str:
        return svg(self)


@dataclass(frozen=True, repr=False)
class ModelExplanation(_Shown):
    """What `stepnet.explain` returns for a model. Prints as text; draws itself in a notebook.

    Attributes:
        name: of the model.
        recurrences: an `Explanation` for each call of `recurrent`, in the order in which they ran.
    """

    name: str
    recurrences: tuple[Explanation, ...]

    @property
    def flops(self) -> int:
        """Of all recurrences, forward and backward; what the model computes besides them is not counted."""
        return sum(it.flops for it in self.recurrences)

    @property
    def saved_bytes(self) -> int:
        """Memory that lives from the forward to the backward loops for that alone."""
        return sum(it.saved_bytes for it in self.recurrences)

    def _text(self) -> str:
        return model_text(self)

    def _svg(self) -> str:
        return model_svg(self)


def _data(it: Any) -> Any:
    """Records as dicts, sequences as lists."""
    if is_dataclass(it):
        found = {field.name: _data(getattr(it, field.name)) for field in fields(it)}
        computed = ("flops", "saved_bytes", "per_step")
        return found | {name: getattr(it, name) for name in computed if hasattr(it, name)}
    if isinstance(it, dict):
        return {key: _data(value) for key, value in it.items()}
    return [_data(part) for part in it] if isinstance(it, (tuple, list)) else it
