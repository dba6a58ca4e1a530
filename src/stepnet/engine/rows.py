"""What a loop is given as tables of rows, and a few of these rows to try its body on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.trace.draws import Draw, drawn_in_order, kept
from stepnet.data.lod import LoDTensor
from stepnet.errors import Unsupported
from stepnet.executors.layout import Layout
from stepnet.executors.setting import only_plain
from stepnet.ir.loop import Loop, Sweep

from .inputs import of_same_sequences


class OverSequences(Unsupported):
    """The steps are no rows."""


class Sequences(NamedTuple):
    """The rows of a call, what is carried and what stays the same; and how to give rows of results back as
    the inputs came. `steps`: the dimensions that stand for the one of rows then, where that is all."""

    layout: Layout
    x_rows: list[Tensor]
    restore: Callable[[Tensor], Any]
    states: list[Tensor]
    shared: list[Tensor]
    steps: tuple[int, ...] = ()


def as_rows(loop: Loop, feeds: Mapping[str, Any], *, transforms: bool = False) -> Sequences:
    """See what a loop is given as tables of rows. With `transforms`, torch.func's may be around.

    Raises:
        Unsupported: its steps are not rows, or torch is to see each of them.
    """
    if loop.sweep is None:
        raise Unsupported("it is not one pass over rows: its ports cut differently, or a condition ends it")
    cut, carried, same = loop.sources
    leaves = [feeds[source] for source in cut]
    states, shared = [feeds[source] for source in carried], [feeds[source] for source in same]
    reason = only_plain(
        [*(x.values if isinstance(x, LoDTensor) else x for x in leaves), *states, *shared],
        transforms=transforms,
    )
    if reason is not None:
        raise Unsupported(reason)
    layout, x_rows, restore, steps = _as_table(leaves, loop.sweep)
    for place, state in enumerate(states):
        if state.dim() == 0 or state.shape[0] != layout.sequences:
            raise Unsupported(f"{loop.merged[place].parameter} does not have one row per sequence")
    return Sequences(layout, x_rows, restore, states, shared, steps)


def _as_table(
    leaves: Sequence[Any], sweep: Sweep
) -> tuple[Layout, list[Tensor], Callable[[Tensor], Any], tuple[int, ...]]:
    axis, reverse, first = sweep.axis, sweep.reverse, leaves[0]
    if isinstance(first, LoDTensor):
        level = -1 if sweep.level is None else sweep.level
        if level % first.lod_level != first.lod_level - 1:
            raise OverSequences("the steps hold whole sequences (a level above the last)")
        for leaf in leaves:
            if not isinstance(leaf, LoDTensor) or leaf.lod_level != first.lod_level:
                raise Unsupported("x mixes LoDTensors of different levels with other values")
            if not of_same_sequences(first, leaf):
                raise Unsupported("inputs of different lengths")
        layout = Layout.of(first.structure, reverse)
        return layout, [leaf.values for leaf in leaves], first.with_values, ()
    shapes = set()
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dim() < 2 or not -leaf.dim() <= axis < leaf.dim():
            raise Unsupported("x has no batch dimension beside its time axis")
    axes = {axis % leaf.dim() for leaf in leaves}
    if len(axes) > 1:
        raise Unsupported("the time axis of the inputs is not the same dimension")
    (at,) = axes
    majors = [leaf if at <= 1 else leaf.movedim(at, 0) for leaf in leaves]
    shapes = {tuple(leaf.shape[:2]) for leaf in majors}
    if len(shapes) > 1:
        raise Unsupported("inputs of different lengths or batch sizes")
    ((one, two),) = shapes
    steps, batch = (two, one) if at == 1 else (one, two)
    layout = Layout.dense(steps, batch, at != 1, reverse)
    rows = [leaf.reshape(one * two, *leaf.shape[2:]) for leaf in majors]

    def restore(table: Tensor) -> Tensor:
        whole = table.reshape(one, two, *table.shape[1:])
        if at <= 1:
            return whole
        if whole.dim() <= at:
            raise Unsupported("y has too few dimensions for the time axis")
        return whole.movedim(0, at)

    return layout, rows, restore, (one, two) if at <= 1 else ()


class Noise(NamedTuple):
    """What a step draws from generators of its own."""

    draws: Sequence[Draw]
    generators: Sequence[torch.Generator]

    def tables(self, layout: Layout) -> list[Tensor]:
        """The noise of a run in tables of rows, drawn as the plain loop draws it."""
        if not self.draws:
            return []
        tables = []
        for packed in drawn_in_order(self.draws, self.generators, layout.active):
            table = torch.empty_like(packed)
            table[layout.packed] = packed
            tables.append(table)
        return tables

    def drawn_again(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A plain loop that draws what a run will draw which begins now."""
        if not self.draws:
            return plain
        before = [generator.get_state() for generator in self.generators]

        def run(*given: Any) -> Any:
            with kept(self.generators):
                for generator, state in zip(self.generators, before, strict=True):
                    generator.set_state(state)
                return plain(*given)

        return run


def few(rows: Tensor, n: int) -> Tensor:
    """n rows like those given: the first one again and again, zeros if there is none."""
    if rows.shape[0] == 0:
        return rows.new_zeros((n, *rows.shape[1:]))
    return rows.detach()[torch.arange(n, device=rows.device) % rows.shape[0]].clone()


def samples(tables: Sequence[Tensor], n: int) -> list[Tensor]:
    """n rows of each table, which want a gradient where the table does."""
    grad = torch.is_grad_enabled()
    return [few(t, n).requires_grad_(grad and t.requires_grad) for t in tables]
