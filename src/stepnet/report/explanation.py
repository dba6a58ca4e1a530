"""What `stepnet.explain` returns: data, text and a picture."""

from __future__ import annotations

import html
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from stepnet.data.arguments import name_of, path_of
from stepnet.executors.naive import PLAIN

from .records import REFUSED, Direction, LoopSummary, Op, Refused, Region, RegionKind, Saved, as_data


class Report:
    """What is common to reports: text by `str`, a picture by `to_svg`, plain data by `to_dict`.

    They are written by the modules `KIND_text` and `KIND_picture`, which are imported when they are asked
    for: `import stepnet` need not load them.
    """

    kind: ClassVar[str] = "explanation"

    def __str__(self) -> str:
        return import_module(f"{__package__}.{self.kind}_text").text(self)

    def __repr__(self) -> str:
        return str(self)

    def to_svg(self, path: str | Path | None = None) -> str:
        """The picture as SVG, also written to `path` if that is not None.

        Of a step its graph, coloured by region; of a model an overview, then the graph of each recurrence.

        Raises:
            StepError: `path` is none.
        """
        place = None if path is None else path_of("to_svg: 'path'", path)
        drawing: str = import_module(f"{__package__}.{self.kind}_picture").picture(self)
        if place is not None:
            Path(place).write_text(drawing, encoding="utf-8")
        return drawing

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, the FLOPs of loops and regions included."""
        return as_data(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        words = html.escape(str(self))
        return f"{self.to_svg()}<details><summary>as text</summary><pre>{words}</pre></details>"


@dataclass(frozen=True, repr=False)
class Explanation(Report):
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

    >>> import torch
    >>> from stepnet import LoDTensor, explain
    >>> x, weight = LoDTensor.from_lengths(torch.ones(4, 2), [[3, 1]]), torch.ones(2, 2)
    >>> told = explain(lambda x, s: (s, torch.relu(x @ weight + s)), x, torch.zeros(2, 2), backend="eager")
    >>> told.compiled, [(region.kind, [op.name for op in region.ops]) for region in told.regions]
    (True, [('map', ['matmul']), ('scan', ['add', 'relu'])])
    >>> told.find("matmul", kind="map")[0].shape
    (2,)
    >>> told.flops, told.batched_flops, told.saved_bytes, told.to_dict()["rows"]
    (48, 32, 0, 4)
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
    loops: tuple[LoopSummary, ...] = ()
    saved: tuple[Saved, ...] = ()
    refusals: tuple[Refused, ...] = ()
    linear: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None

    @property
    def compiled(self) -> bool:
        """True if a plan runs, not the plain loop, and the step is not refused."""
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
    def batched_flops(self) -> int:
        """The part of `flops` that is computed on many rows at once, not step after step."""
        return sum(region.flops for region in self.regions if not region.per_step)

    @property
    def saved_bytes(self) -> int:
        """Memory that is kept from the forward to the backward loop for that alone."""
        return sum(saved.bytes for saved in self.saved if saved.extra)

    @property
    def saved_per_row(self) -> int:
        """The part of `saved_bytes` that is kept for each row."""
        return sum(saved.bytes_per_row for saved in self.saved if saved.extra)

    def find(
        self, name: str | None = None, *, direction: Direction | None = None, kind: RegionKind | None = None
    ) -> tuple[Op, ...]:
        """The ops of that name, in that direction and kind of region; None: any.

        Raises:
            StepError: these are no names.
        """
        for what, given in (("name", name), ("direction", direction), ("kind", kind)):
            if given is not None:
                name_of(f"find: '{what}'", given)
        return tuple(
            op
            for region in self.regions
            if direction in (None, region.direction) and kind in (None, region.kind)
            for op in region.ops
            if name in (None, op.name)
        )


@dataclass(frozen=True, repr=False)
class ModelExplanation(Report):
    """What `stepnet.explain` returns for a model. Prints as text; draws itself in a notebook.

    Attributes:
        name: of the model.
        recurrences: an `Explanation` for each call of `recurrent`, in the order in which they ran.

    >>> import torch
    >>> from stepnet import explain, recurrent
    >>> def model(x):
    ...     return recurrent(lambda x, s: (s + x, s + x), x, torch.zeros(2, 1), backend="naive")[0]
    >>> told = explain(model, torch.ones(3, 2, 1))
    >>> [(each.executor, each.rows) for each in told.recurrences]
    [('naive', 6)]
    """

    name: str
    recurrences: tuple[Explanation, ...]

    @property
    def flops(self) -> int:
        """Of all recurrences, forward and backward; what the model computes besides them is not counted."""
        return sum(it.flops for it in self.recurrences)

    @property
    def saved_bytes(self) -> int:
        """Memory that is kept from the forward to the backward loops for that alone."""
        return sum(it.saved_bytes for it in self.recurrences)
