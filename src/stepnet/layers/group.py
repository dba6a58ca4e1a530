"""Recurrent groups: a step made of layers, run over sequences, with memories linked by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepnet.data.arguments import function, name_of
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import map_leaves
from stepnet.errors import TapeError
from stepnet.executors.naive import PLAIN
from stepnet.tape.creation import (
    SEQUENCES,
    UNKNOWN,
    Creation,
    Group,
    Memory,
    describe,
    example_lengths,
    example_rows,
    trial,
)
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape, check_memory
from stepnet.tape.topology import Given
from stepnet.user_line import user_line

from .check import check_ids, check_item, check_sequences, check_size, describe_item
from .group_run import GroupRunner, GroupStep


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


@dataclass(frozen=True, eq=False)
class GeneratedInput:
    """The words of a recurrent group that `beam_search` can make generate.

    The group itself reads the words that are given: sequences of ids, one level, each beginning with the word
    that begins all. It can have no other sequences than these and StaticInputs.

    >>> from stepnet.layers import Integer, Sequence, data
    >>> from stepnet.tape import Tape
    >>> with Tape():
    ...     GeneratedInput(data("words", Sequence(Integer(9))))
    GeneratedInput(item=TapeItem(0, 'words', int64 [*], 1 level))
    """

    item: TapeItem


GroupInput = TapeItem | StaticInput | GeneratedInput


def recurrent_group(
    step: Callable[..., Any],
    inputs: GroupInput | Sequence[GroupInput],
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
        inputs: sequences of the same outermost lengths, and StaticInputs; one, or a list. A GeneratedInput
            stands for its sequences, and says that `beam_search` may generate them.
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
    function("recurrent_group: 'step'", step, "step(*inputs)", error=TapeError)
    if name is not None:
        name_of("recurrent_group: 'name'", name, error=TapeError)
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    where = f"recurrent_group {name!r} ({user_line()})" if name else f"recurrent_group ({user_line()})"
    items, static, generates = _items(tape, given, where)
    group = Group(name or tape.new_name("recurrent_group"), tape.group)
    start = len(tape)
    try:
        with tape.recording(group):
            inside = [_inside(tape, item, whole) for item, whole in zip(items, static, strict=True)]
            returned = step(*inside)
            several = isinstance(returned, (list, tuple))
            results = list(returned) if several else [returned]
            _check_step(tape, group, results, where)
        runner = _runner(tape, start, group, inside, static, results, reverse, not several, generates)
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
            example=_example(runner, args, results),
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
    name_of("memory: 'name'", name, error=TapeError)
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
                f"{where}: 'boot' has another size",
                got=describe(example),
                expected=f"rows [*, {size}]",
                remedy=f"fc(item, {size}), or memory(name, size) of the size of its boot",
            )
    elif not isinstance(boot, (int, float)) or isinstance(boot, bool):
        raise TapeError(
            f"{where}: 'boot' must be a number or an item",
            got=type(boot).__name__,
            remedy="an item [*, size] has a row for each sequence; 0.0 starts all alike",
        )
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
            raise TapeError(
                f"{where}: its layer is not in the group '{group.name}'",
                got=made.place,
                remedy="give the layer of the step that it remembers, and the memory, a name of their own",
            )
        check_memory(link, made, where)
        link.source = tape[name].index
    group.memories.append(link)
    return item


def _inside(tape: Tape, item: TapeItem, whole: bool) -> TapeItem:
    """What the step sees of an input."""
    known = item.creation.example
    if not whole:
        level, shape = known.lod_level - 1, known.shape[1:]
        rows = known.values.new_zeros(example_rows(level), *shape)
        known = LoDTensor.from_lengths(rows, example_lengths(level)) if level else rows
    kind = "static_input" if whole else "step_input"
    return tape.record(kind, Given(), example=known, classes=item.creation.classes)


def _items(tape: Tape, given: list[Any], where: str) -> tuple[list[TapeItem], list[bool], bool]:
    """The items of a group's inputs, which of them are static, and whether their words may be generated."""
    wrapped = (StaticInput, GeneratedInput)
    items = [check_item("recurrent_group", x.item if isinstance(x, wrapped) else x) for x in given]
    tape.check_items(items, where)
    static = [isinstance(x, StaticInput) for x in given]
    if all(static):
        raise TapeError(
            f"{where} has no sequence to run over",
            got=f"{len(items)} static inputs",
            remedy="an item of sequences, or GeneratedInput(item), that is not a StaticInput",
        )
    for item, whole in zip(items, static, strict=True):
        if not whole:
            check_sequences("recurrent_group", item)
    generates = any(isinstance(x, GeneratedInput) for x in given)
    if generates:
        _check_words(where, items, static)
    return items, static, generates


def _check_words(where: str, items: list[TapeItem], static: list[bool]) -> None:
    """Refuse what `beam_search` could not generate one word after the other."""
    cut = [item for item, whole in zip(items, static, strict=True) if not whole]
    if len(cut) > 1:
        raise TapeError(
            f"{where}: a group with a GeneratedInput has no other sequences",
            got=", ".join(f"'{item.name}' {describe_item(item)}" for item in cut),
            remedy="pass the others as StaticInput(item)",
        )
    check_ids("recurrent_group", cut[0], "a GeneratedInput")
    if cut[0].lod_level != 1:
        raise TapeError(
            f"{where}: a GeneratedInput must have one level",
            got=repr(cut[0]),
            expected="of data(name, Sequence(Integer(words)))",
        )


def _check_step(tape: Tape, group: Group, results: list[Any], where: str) -> None:
    for result in results:
        if not isinstance(result, TapeItem):
            raise TapeError(
                f"{where}: the step must return an item or a tuple of items",
                got=type(result).__name__,
                remedy="layers of stepnet.layers make items; layers.apply(function, item) of any function",
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
    generates: bool,
) -> GroupRunner:
    # Only what running needs: what a step can reach is part of the key of its compiled form.
    played = [
        (i, Creation(c.function, c.args, c.kwargs, c.name, c.kind, c.act))
        for i, c in enumerate(tape.since(start), start)
        if c.group is group and not isinstance(c.function, Given)
    ]
    order = [
        item.index
        for whole in (False, True)
        for item, is_whole in zip(inside, static, strict=True)
        if is_whole is whole
    ]
    links = [(link.index, link.source) for link in group.memories if link.source is not None]
    step = GroupStep(group.name, played, order, links, [result.index for result in results])
    return GroupRunner(step, [link.size for link in group.memories], reverse, single, generates)


def _example(runner: GroupRunner, args: Any, results: list[TapeItem]) -> Any:
    """What the group gives for examples. Where its step gives rows, their shape is known without running it:
    each layer of the step was tried when it was made."""
    examples = map_leaves(args, TapeItem, lambda item: item.creation.example)
    if any(value is UNKNOWN for part in examples for value in part):
        return UNKNOWN
    cut: list[LoDTensor] = examples[0]
    lengths = [value.lengths(0).tolist() for value in cut]
    rows = [result.creation.example for result in results]
    alike = all(other == lengths[0] for other in lengths)
    if alike and all(isinstance(row, Tensor) and row.shape[:1] == (SEQUENCES,) for row in rows):
        count = sum(lengths[0])
        found = tuple(
            LoDTensor.from_lengths(row.new_zeros(count, *row.shape[1:]), [lengths[0]]) for row in rows
        )
        return found[0] if runner.single else found
    return trial(lambda: runner(*examples, backend=PLAIN.name))
