"""Topology: a part of a tape as a module."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.data.in_graph import is_exported
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import InFrame
from stepnet.data.storage import apart
from stepnet.data.tree import leaves, map_leaves
from stepnet.errors import TapeError, TapeKeyError
from stepnet.ir.last_uses import last_uses
from stepnet.watchers import instead

from .creation import Creation, Group, Ref
from .evaluator import Evaluator

Chosen = list[tuple[int, Creation]]


class Feed:
    """What a data layer calls: its type's check of the value that was passed for it."""

    def __init__(self, name: str, type: Any) -> None:
        self.name = name
        self.type = type

    def __call__(self, feeds: Mapping[str, Any], like: Tensor | None = None) -> Any:
        value = feeds[self.name]
        if isinstance(value, InFrame):  # it is checked where it has numbers
            return value.record(_checked, (self.type, self.name, value), {})
        return self.type.check(self.name, value, like)


def _checked(type: Any, name: str, value: Any) -> Any:
    return type.check(name, value)


_checked.like = lambda type, name, value: value  # pyright: ignore[reportFunctionMemberAccess]


class Given:
    """What stands for a value that a recurrent group's step is given: an input or a memory."""

    def __call__(self) -> Any:
        raise TapeError(
            "a step's input has a value only while its recurrent group runs",
            remedy="take what recurrent_group returns",
        )


def select(creations: Sequence[Creation], ends: list[int], skip: list[int], prune: bool) -> Chosen:
    """The creations up to the last of `ends` that make a topology, with their indices, in order.

    Raises:
        TapeError: an end or a skipped one is inside a recurrent group, an end is skipped, or one that stays
            needs one that is skipped.
    """
    for what, indices in (("end", ends), ("skip", skip)):
        for i in indices:
            group = creations[i].group
            if group is not None:
                raise TapeError(
                    f"a topology cannot {what} inside the recurrent group '{group.name}': a group is in or "
                    "out as a whole",
                    got=creations[i].place,
                    remedy=f"take what the group returns, or tape['{group.name}']",
                )
    skipped = set(skip)
    for i in ends:
        if i in skipped:
            raise TapeError(
                "a topology's output cannot be skipped",
                got=creations[i].place,
                remedy="leave it out of skip=, or of the outputs",
            )
    within = creations[: max(ends) + 1]
    whole: dict[Group, list[int]] = {}
    for i, creation in enumerate(within):
        for group in creation.group.chain if creation.group is not None else ():
            whole.setdefault(group, []).append(i)
    if prune:
        kept = _needed(within, ends, skipped, whole)
    else:
        kept = {i for i, c in enumerate(within) if c.group is None and i not in skipped}
        kept |= {j for i in kept if (body := within[i].body) for j in whole.get(body, ())}
    for i in sorted(kept):
        for j in within[i].inputs:
            if j in skipped:
                raise TapeError(
                    f"{within[i].place} needs '{within[j].name}', which is skipped",
                    got=f"skip={[creations[k].name for k in sorted(skipped)]}",
                    remedy=f"skip '{within[i].name}' too, or keep '{within[j].name}'",
                )
    return [(i, within[i]) for i in sorted(kept)]


def _needed(
    within: Sequence[Creation], ends: list[int], skipped: set[int], whole: dict[Group, list[int]]
) -> set[int]:
    """What the ends and the evaluators need. Inputs come before what takes them, so one way back will do."""
    needed = set(ends)
    needed |= {i for i, c in enumerate(within) if isinstance(c.function, Evaluator) and i not in skipped}
    for i in range(len(within) - 1, -1, -1):
        if i in needed:
            needed.update(within[i].inputs)
            body = within[i].body
            if body is not None:
                needed.update(whole.get(body, ()))
    return needed


def play(creations: Chosen, values: dict[int, Any], feeds: Mapping[str, Any]) -> dict[int, Any]:
    """Run creations in order; `values` are those known so far, and get the new ones.

    Raises:
        TapeError: one fails; the text names it and the line that made it.
    """
    for i, creation in creations:
        if i not in values:
            values[i] = run_one(creation, values, feeds)
    return values


def run_one(
    creation: Creation,
    values: Mapping[int, Any],
    feeds: Mapping[str, Any],
    accumulate: bool = False,
    like: Tensor | None = None,
) -> Any:
    """The value of one creation; that of an evaluator is for this batch alone, or it takes the batch in.

    Numbers from lists and arrays are fed in the dtype and on the device of `like`.
    """
    function = creation.function
    if isinstance(function, Feed):
        if function.name not in feeds:
            raise TapeError(
                f"no value for {creation.place}",
                got=f"values for {sorted(feeds)}",
                remedy=f"{function.name}=its value",
            )
        return function(feeds, like)
    try:
        if accumulate and isinstance(function, Evaluator):
            args = map_leaves(creation.args, Ref, lambda ref: values[ref.index])
            if any(isinstance(value, InFrame) for value in args):
                raise TapeError(
                    "an evaluator takes in numbers, and values in a frame have none yet",
                    remedy=f"tape.topology(..., skip=['{creation.name}']), or stepnet.recurrent in the place "
                    "of the frame",
                )
            return function.update(*(value.detach() for value in args))
        return creation.run(values)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if type(error) is torch.OutOfMemoryError:
            raise
        first, *rest = str(error).splitlines() or [repr(error)]
        raise TapeError("\n".join([f"{creation.place} failed: {first}", *rest])) from error


_IN = "an evaluator is in if it was made before the last output, or is an output: topology([cost, error])"


_NOT_WRITTEN = "evaluators are not run while a file is written: leave what reads them out of what is saved"


class Metrics(Mapping[str, Any]):
    """The evaluators of a topology by name, or by item: each value, over all batches so far, is worked out
    when read.

    Raises:
        TapeKeyError: the topology has no such evaluator.

    >>> import torch
    >>> from stepnet.layers import Dense, Integer, classification_error, data
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     error = classification_error(data("scores", Dense(2)), data("label", Integer(2)), name="error")
    >>> _, metrics = tape.topology(error)(scores=torch.eye(2), label=torch.tensor([0, 0]))
    >>> [*metrics], metrics["error"], metrics[error]
    (['error'], 0.5, 0.5)
    """

    def __init__(self, evaluators: Mapping[str, Evaluator], remedy: str = _IN) -> None:
        self._evaluators = evaluators
        self._remedy = remedy

    def __getitem__(self, name: Any) -> Any:
        found = self._evaluators.get(name if isinstance(name, str) else str(getattr(name, "name", "")))
        if found is None:
            raise TapeKeyError(
                f"this topology has no evaluator {name!r}",
                got=f"its evaluators are {list(self._evaluators)}" if self._evaluators else "it has none",
                remedy=self._remedy,
            )
        return found.compute()

    def __iter__(self) -> Iterator[str]:
        return iter(self._evaluators)

    def __len__(self) -> int:
        return len(self._evaluators)

    def __repr__(self) -> str:
        return repr(dict(self))


class Topology(nn.Module):
    """Layers of a tape, as a module; made by `Tape.topology`.

    `outputs, metrics = topology(words=..., label=...)`: a value for each data layer by name. Values are
    tensors or LoDTensors; lists, numpy arrays and columns of pandas, whose numbers take on dtype and device
    of the topology's parameters; and, for sequences of one level, PackedSequences and jagged NestedTensors.
    Data layers that nothing in the topology reads need none. `outputs` is nested as it was asked for; an
    evaluator among them stands for its value so far. `metrics` has the evaluators by name.

    The layers are the tape's own, so topologies of one tape train together; the keys of `state_dict` start
    with the layers' names. Evaluators are the topology's own; `reset` empties them. A call runs the layers in
    the topology's own mode (`train` or `eval`), whatever mode another topology left them in.

    Raises:
        TapeError: a value is missing, unknown or does not fit its data layer, or a layer fails.

    >>> import torch
    >>> from stepnet.layers import Dense, Integer, classification_cost, classification_error, data, fc
    >>> from stepnet.tape import Tape
    >>> with Tape() as tape:
    ...     scores = fc(data("img", Dense(4)), 3)
    ...     label = data("label", Integer(3))
    ...     cost = classification_cost(scores, label)
    ...     error = classification_error(scores, label, name="error")
    >>> train, infer = tape.topology([cost, error]), tape.topology(scores)
    >>> (loss, _), metrics = train(img=torch.zeros(2, 4), label=torch.tensor([0, 0]))
    >>> loss.backward()
    >>> 0 <= metrics["error"] <= 1
    True
    >>> infer(img=torch.zeros(2, 4))[0].shape
    torch.Size([2, 3])
    """

    def __init__(self, chosen: Chosen, outputs: Any) -> None:
        super().__init__()
        self._outputs = outputs
        self._evaluators: dict[str, Evaluator] = {}
        self._layers: list[nn.Module] = []
        played: Chosen = []
        modules: dict[str, nn.Module] = {}
        for i, creation in chosen:
            module = creation.module
            if isinstance(module, Evaluator):
                module = copy.deepcopy(module)
                module.reset()
                creation = copy.copy(creation)
                creation.function = module
                self._evaluators[creation.name] = module
            if module is not None:
                modules[creation.name] = module
                self._layers.append(module)
            if creation.group is None:
                played.append((i, creation))
        feeds = [(i, c) for i, c in played if isinstance(c.function, Feed)]
        read = {j for _, c in played for j in c.inputs} | {r.index for r in leaves(outputs, Ref)}
        self.inputs: tuple[str, ...] = tuple(c.name for i, c in feeds if i in read)
        self._known = {c.name for _, c in feeds}
        unread = {i for i, _ in feeds if i not in read}
        self._played = [(i, c) for i, c in played if i not in unread]
        ends = [ref.index for ref in leaves(outputs, Ref)]
        self._finished = last_uses([(i, *c.inputs) for i, c in self._played], ends)
        self._modules.update(modules)  # past add_module: a layer may be called `forward`

    def __setattr__(self, name: str, value: Any) -> None:
        """What is no layer is set as on any object: a layer may be called `training`."""
        if name in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, *args: Any, **feeds: Any) -> tuple[Any, Metrics]:
        """Play the layers on the values of the data layers, given by name: the outputs, and the metrics.

        Raises:
            TapeError: a value is missing, unknown or without a name; or an evaluator is to be exported.
        """
        if args:
            raise TapeError(
                "a topology takes the values of its data layers by name",
                got=f"{len(args)} without a name",
                expected=f"values for {list(self.inputs)}",
            )
        missing = [name for name in self.inputs if name not in feeds]
        unknown = [name for name in feeds if name not in self._known]
        if missing or unknown:
            raise TapeError(
                "a topology takes a value for each of its data layers",
                got=(f"none for {missing}" if missing else f"values for {unknown}, which it does not have"),
                expected=f"values for {list(self.inputs)}",
            )
        for module in self._layers:
            if module.training != self.training:
                module.train(self.training)
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        values: dict[int, Any] = {}
        named = {i: c.name for i, c in self._played if isinstance(c.function, Evaluator)}
        # what a batch leaves in an evaluator is no part of a program, nor of a file
        written = not torch.compiler.is_dynamo_compiling() and instead() is not None
        exported = written or is_exported()
        if exported and (asked := [named[r.index] for r in leaves(self._outputs, Ref) if r.index in named]):
            raise TapeError(
                f"evaluators are not exported, and {asked} are outputs of this topology",
                remedy="tape.topology(...) of other layers",
            )
        for (i, creation), finished in zip(self._played, self._finished, strict=True):
            if exported and i in named:
                continue
            values[i] = run_one(creation, values, feeds, accumulate=True, like=like)
            for j in finished:
                values.pop(j, None)
        metrics: Any = Metrics({}, _NOT_WRITTEN) if written else {} if exported else self.metrics()
        outputs = map_leaves(
            self._outputs, Ref, lambda r: metrics[named[r.index]] if r.index in named else values[r.index]
        )
        if not torch.compiler.is_compiling():  # a graph gives results of its own
            outputs = _own(outputs, feeds)
        return outputs, metrics

    @property
    def structure(self) -> Any:
        """The outputs as they were asked for, a `Ref` in the place of each."""
        return self._outputs

    @property
    def played(self) -> Chosen:
        """The creations that a call runs, in order, with their indices on the tape."""
        return list(self._played)

    def metrics(self) -> Metrics:
        """The evaluators' values over all batches since the last `reset`."""
        return Metrics(self._evaluators)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the outputs need: NAME.xml as OpenVINO IR, with the weights in NAME.bin, or NAME.onnx.

        OpenVINO, or ONNX Runtime, runs the file at any number and length of sequences; `stepnet.load` reads
        IR. Sequences are padded: the input `words` with two levels of sequences is `words` [n, longest,
        longest, ...], and `words.lengths_0` [n] and `words.lengths_1` [n, longest] say what is no padding;
        outputs alike. Layers are written in the mode of inference.

        The section `stepnet` of the file's rt_info (or metadata) tells the type of each data layer, the
        nesting of the outputs, and the evaluators of the topology, which are not run.

        Raises:
            TapeError: a layer has no meaning on padded sequences, as one that mixes rows of all sequences.
            IRError: the format has no form for a layer, or the file cannot be written.

        `stepnet.load` has an example.
        """
        _saving().save(self, path)

    def to_ir(self) -> Any:
        """What `save` writes, in memory: `ir.xml` and `ir.weights`, for OpenVINO's `Core().read_model`.

        Raises:
            TapeError: as `save`.
            IRError: as `save`.
        """
        return _saving().to_ir(self)

    def reset(self) -> None:
        """Empty all evaluators, as at the start of an epoch."""
        for evaluator in self._evaluators.values():
            evaluator.reset()


def _own(outputs: Any, feeds: Mapping[str, Any]) -> Any:
    """Outputs that share no memory with what was fed, nor with each other."""

    def rows(value: Any) -> Tensor:
        return value.values if isinstance(value, LoDTensor) else value

    kinds = (Tensor, LoDTensor)
    own = iter(apart([*map(rows, leaves(outputs, kinds))], [*map(rows, leaves(feeds, kinds))]))

    def of(value: Any) -> Any:
        return value.with_values(next(own)) if isinstance(value, LoDTensor) else next(own)

    return map_leaves(outputs, kinds, of)


def _saving() -> Any:
    """It stands above the tape, and brings torch's tracing machinery."""
    return importlib.import_module("stepnet.saving")
