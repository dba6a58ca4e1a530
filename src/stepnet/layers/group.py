"""Recurrent groups: a step made of layers, run over sequences, with memories linked by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import sequence_expand
from stepnet.errors import TapeError
from stepnet.tape.creation import (
    SEQUENCES,
    UNKNOWN,
    Creation,
    Group,
    Memory,
    describe,
    example_lengths,
    example_rows,
    swap,
    user_line,
)
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape, check_memory
from stepnet.tape.topology import Given

from .check import check_item, check_sequences, check_size


@dataclass(frozen=True, eq=False)
class StaticInput:
    """An input of a recurrent group that every step sees whole: one row, or one sequence, for each sequence
    of the group.

    >>> from stepnet.layers import Dense, data
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     StaticInput(data("topic", Dense(3)))
    StaticInput(item=TapeItem(0, 'topic', float32 [*, 3]))
    """

    item: TapeItem


def recurrent_group(
    step: Callable[..., Any],
    inputs: TapeItem | StaticInput | Sequence[TapeItem | StaticInput],
    *,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Run a step made of layers over sequences; `memory` gives it the value of one of them a step before.

    `step` is called once, with one item for each input, and makes layers as usual; they go on the tape as the
    group's own. The outermost level of the inputs is cut into steps: rows of a sequence, or, of a nested one,
    its sequences whole. What the step returns is gathered, in the order of the inputs.

    Args:
        step: from items of one step to an item, or to a tuple of items.
        inputs: sequences of the same outermost lengths, and StaticInputs; one, or a list.
        reverse: from the end of each sequence to its beginning.

    Returns:
        An item of sequences, or a tuple of them as the step returned it.

    Raises:
        TapeError: an input is no sequence, a layer of the step reads an item from outside, a memory's layer
            never came, or the step returned no items of its own. What the step recorded is then taken back.

    Source: recurrent_group of Paddle's v2 API.

    >>> from stepnet.layers import Dense, Sequence, concat, data, fc
    >>> from stepnet.tape import Tape
    >>> def step(x):
    ...     before = memory("h", size=5)
    ...     return fc([x, before], 5, act="tanh", name="h")
    >>> with Tape() as tape:
    ...     recurrent_group(step, data("x", Sequence(Dense(3))), name="rnn")
    TapeItem(5, 'rnn', float32 [*, 5], 1 level)
    """
    tape = Tape.current()
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    where = f"recurrent_group {name!r} ({user_line()})" if name else f"recurrent_group ({user_line()})"
    items = [check_item("recurrent_group", x.item if isinstance(x, StaticInput) else x) for x in given]
    tape.check_items(items, where)
    static = [isinstance(x, StaticInput) for x in given]
    if all(static):
        raise TapeError(f"{where} has no sequence to run over", got=f"{len(items)} static inputs")
    for item, whole in zip(items, static, strict=True):
        if not whole:
            check_sequences("recurrent_group", item)
    group = Group(name or tape.new_name("recurrent_group"), tape.group)
    start = len(tape)
    try:
        tape.open_group(group)
        try:
            inside = [_inside(tape, item, whole) for item, whole in zip(items, static, strict=True)]
            returned = step(*inside)
            several = isinstance(returned, (list, tuple))
            results = list(returned) if several else [returned]
            _check_step(tape, group, results, where)
        finally:
            tape.close_group()
        runner = _runner(tape, start, group, inside, static, results, reverse, not several)
        args = (
            [item for item, whole in zip(items, static, strict=True) if not whole],
            [item for item, whole in zip(items, static, strict=True) if whole],
            [memory.boot for memory in group.memories],
        )
        gathered = tape.record(
            "recurrent_group",
            runner,
            args,
            name=group.name,
            example=_example(runner, args),
            body=group,
        )
    except BaseException:
        tape.truncate(start, group)
        raise
    return tuple(gathered[k] for k in range(len(results))) if several else gathered


def memory(name: str, size: int, *, boot: TapeItem | float = 0.0) -> TapeItem:
    """The value that the layer called `name` had a step before; inside the step of a recurrent group.

    The layer may be made later in the step: the link is made when it is.

    Args:
        name: of a layer of the same group, a tensor [*, size] at each step.
        size: its features.
        boot: the value before the first step: a number, or an item of rows [*, size] from outside the group,
            one for each sequence. In a group inside a group it may be an item of the outer step.

    Raises:
        TapeError: it is called outside a recurrent group, or the layer or the boot has another size.

    >>> from stepnet.layers import Dense, Sequence, addto, data
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     total = recurrent_group(
    ...         lambda x: addto([x, memory("sum", 1)], name="sum"), data("x", Sequence(Dense(1)))
    ...     )
    >>> x = LoDTensor(torch.ones(5, 1), [[0, 2, 5]])
    >>> tape.topology(total)(x=x)[0].values.flatten().tolist()
    [1.0, 2.0, 1.0, 2.0, 3.0]
    """
    tape, line = Tape.current(), user_line()
    where = f"memory '{name}' ({line})"
    group = tape.group
    if group is None:
        raise TapeError(
            f"{where} is outside a recurrent group",
            remedy="call memory(...) in the step of recurrent_group(step, inputs)",
        )
    check_size("memory", size)
    if isinstance(boot, TapeItem):
        tape.check_items([boot], f"{where}, its boot", group.parent)
        example = boot.creation.example
        fits = isinstance(example, Tensor) and example.dim() == 2 and example.shape[1] == size
        if example is not UNKNOWN and not fits:
            raise TapeError(
                f"{where}: 'boot' has another size", got=describe(example), expected=f"rows [*, {size}]"
            )
    elif not isinstance(boot, (int, float)) or isinstance(boot, bool):
        raise TapeError(f"{where}: 'boot' must be a number or an item", got=type(boot).__name__)
    free = f"memory_of_{name}"
    item = tape.record(
        "memory",
        Given(),
        name=None if tape.find(free) else free,
        example=torch.zeros(SEQUENCES, size),
    )
    link = Memory(item.index, name, size, line, boot)
    made = tape.find(name)
    if made is not None:
        if made.group is not group:
            raise TapeError(f"{where}: its layer is not in the group '{group.name}'", got=made.place)
        check_memory(link, made, where)
        link.source = tape[name].index
    group.memories.append(link)
    return item


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


class GroupRunner:
    """What a recurrent group calls: its step over sequences."""

    def __init__(self, step: GroupStep, sizes: list[int], reverse: bool, single: bool) -> None:
        self.step = step
        self.sizes = sizes
        self.reverse = reverse
        self.single = single

    def __call__(self, cut: list[LoDTensor], whole: list[Any], boots: list[Any], backend: Any = None) -> Any:
        lead = cut[0]
        ragged = [isinstance(value, LoDTensor) for value in whole]
        for value in whole:
            if len(value) != len(lead):
                raise TapeError(
                    "a StaticInput needs one row or sequence for each sequence of the group",
                    got=len(value),
                    expected=len(lead),
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
        step, count = self.step, len(cut)
        bare = GroupStep(step.__name__, step.played, step.cut[:count], step.memories, step.results)

        def choose(x: Any, state: Any) -> Any:
            running, *memories = state
            values = {
                index: value.select_sequences(running.cpu())
                if isinstance(value, LoDTensor)
                else value.index_select(0, running)
                for index, value in zip(step.cut[count:], whole, strict=True)
            }
            y, new = bare.run(x, tuple(memories), values)
            return y, (running, *new)

        numbers = torch.arange(len(cut[0]), device=cut[0].device)
        state = (numbers, *self._state(cut[0], boots))
        y, _ = recurrent(choose, tuple(cut), state, reverse=self.reverse, level=0, backend="naive")
        return y[0] if self.single else y

    def _state(self, lead: LoDTensor, boots: list[Any]) -> tuple[Tensor, ...]:
        beside = self._beside(lead)
        return tuple(
            boot if isinstance(boot, Tensor) else beside.new_full((len(lead), size), boot)
            for boot, size in zip(boots, self.sizes, strict=True)
        )

    def _beside(self, lead: LoDTensor) -> Tensor:
        """A tensor of the dtype that a memory starts with: that of the step's parameters, or its input's."""
        for _, creation in self.step.played:
            if creation.module is not None:
                for parameter in creation.module.parameters():
                    if parameter.is_floating_point():
                        return parameter
        floating = lead.dtype.is_floating_point
        return lead.values if floating else torch.empty(0, device=lead.device)


def _inside(tape: Tape, item: TapeItem, whole: bool) -> TapeItem:
    """What the step sees of an input."""
    known = item.creation.example
    if not whole:
        level, shape = known.lod_level - 1, known.shape[1:]
        rows = known.values.new_zeros(example_rows(level), *shape)
        known = LoDTensor.from_lengths(rows, example_lengths(level)) if level else rows
    kind = "static_input" if whole else "step_input"
    return tape.record(kind, Given(), example=known, classes=item.creation.classes)


def _check_step(tape: Tape, group: Group, results: list[Any], where: str) -> None:
    for result in results:
        if not isinstance(result, TapeItem):
            raise TapeError(
                f"{where}: the step must return an item or a tuple of items", got=type(result).__name__
            )
    tape.check_items(results, f"{where}: what the step returned")
    for link in group.memories:
        if link.source is None:
            raise TapeError(
                f"{where}: the memory of '{link.layer}' has no layer",
                got=f"memory({link.layer!r}, size={link.size}) at {link.line}",
                expected=f"a layer of the step with name='{link.layer}'",
            )


def _runner(
    tape: Tape,
    start: int,
    group: Group,
    inside: list[TapeItem],
    static: list[bool],
    results: list[TapeItem],
    reverse: bool,
    single: bool,
) -> GroupRunner:
    # Only what running needs: what a step can reach is part of the key of its compiled form.
    played = [
        (i, Creation(c.function, c.args, c.kwargs, c.name, c.kind, c.act))
        for i, c in enumerate(tape)
        if i >= start and c.group is group and not isinstance(c.function, Given)
    ]
    order = [
        item.index
        for whole in (False, True)
        for item, is_whole in zip(inside, static, strict=True)
        if is_whole is whole
    ]
    links = [(link.index, link.source) for link in group.memories if link.source is not None]
    step = GroupStep(group.name, played, order, links, [result.index for result in results])
    return GroupRunner(step, [link.size for link in group.memories], reverse, single)


def _example(runner: GroupRunner, args: Any) -> Any:
    examples = swap(args, TapeItem, lambda item: item.creation.example)
    if any(value is UNKNOWN for part in examples for value in part):
        return UNKNOWN
    with torch.no_grad():
        return runner(*examples, backend="naive")
