"""What runs a recurrent group: the creations of its step, once for each step of the sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import UNKNOWN, recorded_in_frames
from stepnet.data.sequence import sequence_expand
from stepnet.errors import TapeError
from stepnet.executors.naive import PLAIN
from stepnet.tape.creation import Creation


class GroupStep:
    """The step of a recurrent group, for `stepnet.recurrent`: plays the group's creations once."""

    def __init__(
        self,
        name: str,
        played: list[tuple[int, Creation]],
        cut: list[int],
        memories: list[tuple[int, int]],
        results: list[int],
    ) -> None:
        self.__name__ = name
        self.played = played
        self.cut = cut
        self.memories = memories
        self.results = results

    def __call__(self, x: tuple[Any, ...], state: tuple[Tensor, ...]) -> tuple[Any, Any]:
        return self.run(x, state, {})

    def run(self, x: tuple[Any, ...], state: tuple[Tensor, ...], values: dict[int, Any]) -> tuple[Any, Any]:
        """One step; `values` are known already, and get all others."""
        values.update(zip(self.cut, x, strict=True))
        values.update(zip((index for index, _ in self.memories), state, strict=True))
        for index, creation in self.played:
            if index not in values:
                values[index] = creation.run(values)
        new_state = tuple(values[source] for _, source in self.memories)
        return tuple(values[index] for index in self.results), new_state

    def without(self, count: int) -> GroupStep:
        """The step whose inputs after the first `count` are among the values that are known."""
        return GroupStep(self.__name__, self.played, self.cut[:count], self.memories, self.results)

    def seen(self, whole: list[Any], running: Tensor) -> dict[int, Any]:
        """What the static inputs, which come last, are for the sequences that still run."""
        return {
            index: value.select_sequences(running.cpu())
            if isinstance(value, LoDTensor)
            else value.index_select(0, running)
            for index, value in zip(self.cut[len(self.cut) - len(whole) :], whole, strict=True)
        }

    def start(self, boots: list[Any], sizes: list[int], rows: int, lead: Tensor) -> tuple[Tensor, ...]:
        """What the memories are before the first step."""
        beside = self._beside(lead)
        return tuple(
            boot if isinstance(boot, Tensor) else beside.new_full((rows, size), boot)
            for boot, size in zip(boots, sizes, strict=True)
        )

    def _beside(self, lead: Tensor) -> Tensor:
        """A tensor of the dtype that a memory starts with: that of the step's parameters, or its input's."""
        for _, creation in self.played:
            if creation.module is not None:
                for parameter in creation.module.parameters():
                    if parameter.is_floating_point():
                        return parameter
        return lead if lead.dtype.is_floating_point else torch.empty(0, device=lead.device)


class GroupRunner:
    """What a recurrent group calls: its step over sequences."""

    def __init__(
        self, step: GroupStep, sizes: list[int], reverse: bool, single: bool, generates: bool
    ) -> None:
        self.step = step
        self.sizes = sizes
        self.reverse = reverse
        self.single = single
        self.generates = generates

    def _like(self, *_: Any, **__: Any) -> Any:
        """In a frame nothing is known of the results but how many there are."""
        return UNKNOWN if self.single else (UNKNOWN,) * len(self.step.results)

    @recorded_in_frames(_like)
    def __call__(self, cut: list[LoDTensor], whole: list[Any], boots: list[Any], backend: Any = None) -> Any:
        lead = cut[0]
        ragged = [isinstance(value, LoDTensor) for value in whole]
        for value in whole:
            if len(value) != len(lead):
                raise TapeError(
                    "a StaticInput needs one row or sequence for each sequence of the group",
                    got=len(value),
                    expected=len(lead),
                    remedy="feed both from one batch; pool(x) gives a row for each sequence",
                )
        if any(ragged):
            return self._with_sequences(cut, whole, boots)
        x = (*cut, *(sequence_expand(value, lead, 0) for value in whole))
        y, _ = recurrent(
            self.step, x, self._state(lead, boots), reverse=self.reverse, level=0, backend=backend
        )
        return y[0] if self.single else y

    def _with_sequences(self, cut: list[LoDTensor], whole: list[Any], boots: list[Any]) -> Any:
        """Static sequences are chosen anew at each step, by which sequences still run."""
        step, bare = self.step, self.step.without(len(cut))

        def choose(x: Any, state: Any) -> Any:
            running, *memories = state
            values = step.seen(whole, running)
            y, new = bare.run(x, tuple(memories), values)
            return y, (running, *new)

        numbers = torch.arange(len(cut[0]), device=cut[0].device)
        state = (numbers, *self._state(cut[0], boots))
        y, _ = recurrent(choose, tuple(cut), state, reverse=self.reverse, level=0, backend=PLAIN.name)
        return y[0] if self.single else y

    def _state(self, lead: LoDTensor, boots: list[Any]) -> tuple[Tensor, ...]:
        return self.step.start(boots, self.sizes, len(lead), lead.values)
