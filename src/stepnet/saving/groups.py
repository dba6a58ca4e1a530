"""Recurrent groups on padded sequences: what no memory leads to is played once, for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.api import recurrent
from stepnet.layers.group_run import GroupRunner
from stepnet.tape.creation import Creation

from .padded import PaddedLoD, mirrored

Play = Callable[[Creation, Mapping[int, Any]], Any]


def run_group(
    runner: GroupRunner, play: Play, cut: Sequence[PaddedLoD], whole: Sequence[Any], boots: Sequence[Any]
) -> Any:
    """What a recurrent group gives; `play` gives the value of one creation of its step."""
    step, lengths = runner.step, cut[0].lengths[0]
    over = _Steps(lengths, cut[0].grid.shape[1])
    early = dict(zip(step.cut, (over.merge(value) for value in cut), strict=False))
    held = dict(zip(step.cut[len(cut) :], whole, strict=True))
    waiting = {index for index, _ in step.memories}
    late: list[tuple[int, Creation]] = []
    for index, creation in step.played:
        if waiting.intersection(creation.inputs):
            waiting.add(index)
            late.append((index, creation))
        elif all(i in held for i in creation.inputs):
            held[index] = play(creation, held)
        else:
            known = {i: early[i] if i in early else over.repeat(held[i]) for i in creation.inputs}
            early[index] = play(creation, known)
    needed = {i for _, creation in late for i in creation.inputs} | {source for _, source in step.memories}
    wanted = {*needed, *step.results, step.cut[0]}
    found = {index: over.split(value) for index, value in early.items() if index in wanted}
    rows = {i for i in needed if isinstance(held.get(i), Tensor)}  # these are cut into steps as well
    found |= {i: over.split(over.repeat(held[i])) for i in {*step.results, *rows} if i in held}
    if waiting.intersection(step.results):
        found |= _loop(runner, play, late, waiting, needed, found, held, boots, lengths)
    results = tuple(found[index] for index in step.results)
    return results[0] if runner.single else results


class _Steps:
    """The steps of a group, each a batch of sequences, and all of them as one batch."""

    def __init__(self, lengths: Tensor, count: int) -> None:
        self.lengths = lengths
        self.count = count

    def merge(self, value: PaddedLoD) -> Any:
        """What a step sees of a value, for all steps."""
        grid, lengths = value.grid.flatten(0, 1), tuple(n.flatten(0, 1) for n in value.lengths[1:])
        return PaddedLoD(grid, lengths) if lengths else grid

    def repeat(self, value: Any) -> Any:
        """What every step sees alike, for all steps."""
        if isinstance(value, PaddedLoD):
            return PaddedLoD(self._repeated(value.grid), tuple(self._repeated(n) for n in value.lengths))
        return self._repeated(value)

    def _repeated(self, value: Tensor) -> Tensor:
        spread = value.unsqueeze(1).expand(value.shape[0], self.count, *value.shape[1:])
        return spread.flatten(0, 1)

    def split(self, value: Any) -> PaddedLoD:
        """A value for all steps as a value of the group."""
        sizes = (self.lengths.shape[0], self.count)
        if isinstance(value, PaddedLoD):
            inner = (n.unflatten(0, sizes) for n in value.lengths)
            return PaddedLoD(value.grid.unflatten(0, sizes), (self.lengths, *inner))
        return PaddedLoD(value.unflatten(0, sizes), (self.lengths,))


def _loop(
    runner: GroupRunner,
    play: Play,
    late: list[tuple[int, Creation]],
    waiting: set[int],
    needed: set[int],
    found: Mapping[int, PaddedLoD],
    held: Mapping[int, Any],
    boots: Sequence[Any],
    lengths: Tensor,
) -> dict[int, PaddedLoD]:
    """What the memories lead to, step after step."""
    step = runner.step
    given = {i: [found[i].grid, *found[i].lengths[1:]] for i in sorted(needed) if i in found}
    if not given:  # the steps are counted by what is cut
        first = step.cut[0]
        given = {first: [found[first].grid, *found[first].lengths[1:]]}
    alike = {i: _leaves(held[i]) for i in sorted(needed) if i in held and i not in given}
    if runner.reverse:
        given = {i: [mirrored(part, lengths, 1) for part in parts] for i, parts in given.items()}
    wanted = [i for i in dict.fromkeys(step.results) if i in waiting]

    def one(x: list[list[Tensor]], state: list[Tensor]) -> tuple[Any, Any]:
        values = dict(zip(given, map(_value, x), strict=True))
        values |= {i: _value(parts) for i, parts in alike.items()}
        values |= dict(zip((index for index, _ in step.memories), state, strict=True))
        for index, creation in late:
            values[index] = play(creation, values)
        return [_leaves(values[i]) for i in wanted], [values[source] for _, source in step.memories]

    one.__name__ = step.__name__
    beside = next(iter(given.values()))[0]
    state = list(step.start(list(boots), runner.sizes, lengths.shape[0], beside))
    y, _ = recurrent(one, list(given.values()), state, axis=1)
    if runner.reverse:
        y = [[mirrored(part, lengths, 1) for part in parts] for parts in y]
    return {i: PaddedLoD(parts[0], (lengths, *parts[1:])) for i, parts in zip(wanted, y, strict=True)}


def _leaves(value: Any) -> list[Tensor]:
    return [value.grid, *value.lengths] if isinstance(value, PaddedLoD) else [value]


def _value(parts: Sequence[Tensor]) -> Any:
    return PaddedLoD(parts[0], tuple(parts[1:])) if len(parts) > 1 else parts[0]
