"""Whether a layer gives probabilities, where a cost wants scores: told by running it on a small example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.lod import LoDTensor
from stepnet.data.tree import leaves
from stepnet.errors import TapeError
from stepnet.tape.creation import UNKNOWN, Creation, evaluating, trial
from stepnet.tape.item import TapeItem
from stepnet.tape.tape import Tape
from stepnet.tape.topology import Feed, Given
from stepnet.user_line import user_line
from stepnet.watchers import replaced

from .group_run import GroupRunner
from .plainly import Plainly

# Probabilities stay what they are under these, up to a share of them or a shift, as long as rows stay whole:
# what a number makes larger than they are is a score, as where a temperature tells them apart.
_KEEP = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "clone", "detach", "alias", "_to_copy", "expand",
    "unsqueeze", "squeeze", "slice", "select", "index", "index_select", "split", "split_with_sizes", "unbind",
    "cat", "stack", "clamp", "clamp_min", "clamp_max", "native_dropout", "masked_fill", "lift_fresh",
})  # fmt: skip
_SCALE = frozenset(
    {"mul", "div", "add", "sub", "mul_", "div_", "add_", "sub_", "clamp_", "clamp_min_", "where"}
)
_TIMES = frozenset({"mul", "div", "mul_", "div_"})
_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


def refuse_probabilities(kind: str, x: TapeItem) -> None:
    """Refuse an item whose rows went through softmax, by whatever layer, activation or function.

    Raises:
        TapeError: they did; the text names the layer.
    """
    found = _Search(x.tape).source(x.index)
    if found is not None:
        raise TapeError(
            f"{kind} ({user_line()}) takes scores before softmax",
            got=f"probabilities of {found.place}",
            remedy="give the layer act=None here; activation(x, 'softmax') makes probabilities beside it",
        )


class _Search:
    """Looks for the layer whose probabilities an item has."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._creations = tuple(tape)
        self._known: dict[int, Creation | None] = {}

    def source(self, index: int) -> Creation | None:
        """The creation that makes probabilities of what it is given, if the value at `index` is that."""
        if index not in self._known:
            self._known[index] = self._look(index)
        return self._known[index]

    def _look(self, index: int) -> Creation | None:
        creation = self._creations[index]
        if _is_distribution(creation.example) and self._of_any_numbers(index):
            return creation
        examples = {i: self._creations[i].example for i in creation.inputs}
        if isinstance(creation.function, (Feed, Given)) or any(v is UNKNOWN for v in examples.values()):
            return None
        if _marked(creation, examples, ()):
            return creation
        if not _marked(creation, examples, creation.inputs):
            return None  # whatever it is given: the layers before it do not matter
        sources = {i: found for i in creation.inputs if (found := self.source(i)) is not None}
        return next(iter(sources.values())) if sources and _marked(creation, examples, sources) else None

    def _of_any_numbers(self, index: int) -> bool:
        """Whether it is one for other numbers, too: the sigmoids of two zeros add up to 1 by chance."""
        item = self._tape[index]
        return isinstance(item.creation.function, Given) or _is_distribution(self._tape.larger(item))


def _marked(creation: Creation, examples: Mapping[int, Any], given: Iterable[int]) -> bool:
    """Whether it gives probabilities in inference, if the inputs in `given` are probabilities."""
    given = tuple(given)
    with evaluating(_modules(creation)), _Marks() as marks, replaced(Plainly()):
        for index in given:
            marks.mark(examples[index])
        others = set(examples).difference(given)
        result = trial(lambda: creation.run({**examples, **{i: _any_numbers(examples[i]) for i in others}}))
    return any(marks.has(value) for value in leaves(result, (Tensor, LoDTensor)))


def _any_numbers(example: Any) -> Any:
    """An example of one number throughout, as data layers have, with others: zeros scale or shift nothing."""
    rows = example.values if isinstance(example, LoDTensor) else example
    alike = isinstance(rows, Tensor) and rows.is_floating_point() and rows.numel() > 1
    if not alike or not bool((rows == rows.flatten()[0]).all()):
        return example
    other = torch.randn_like(rows)
    return example.with_values(other) if isinstance(example, LoDTensor) else other


def _modules(creation: Creation) -> Iterator[nn.Module]:
    if isinstance(creation.function, nn.Module):
        yield creation.function
    if isinstance(creation.act, nn.Module):
        yield creation.act
    if isinstance(creation.function, GroupRunner):
        for _, inner in creation.function.step.played:
            yield from _modules(inner)


class _Marks(TorchDispatchMode):
    """Follows which tensors are probabilities, from operation to operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, seconds of it, to keep it out of here

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, Tensor] = {}  # held: an id must stay taken

    def mark(self, value: Any) -> None:
        """From here on it is taken for probabilities."""
        for tensor in leaves(value, (Tensor, LoDTensor)):
            tensor = tensor.values if isinstance(tensor, LoDTensor) else tensor
            self._held[id(tensor)] = tensor

    def has(self, value: Tensor | LoDTensor) -> bool:
        """Whether it is taken for probabilities."""
        return id(value.values if isinstance(value, LoDTensor) else value) in self._held

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = list(leaves((args, kwargs or {}), Tensor))
        name = func.overloadpacket.__name__
        keeps = self._keeps(name, inputs)
        by_number = name in _TIMES and sum(value.numel() > 1 for value in inputs) == 1
        size = inputs[0].shape[-1] if inputs and inputs[0].dim() else 0
        result = func(*args, **(kwargs or {}))
        softmax = func is torch.ops.aten._softmax.default and args[1] in (-1, args[0].dim() - 1)
        for value in leaves(result, Tensor):
            whole = bool(value.dim()) and value.shape[-1] == size
            keeps_it = keeps and whole and not (by_number and _is_several(value))
            if softmax or keeps_it or _is_distribution(value):
                self._held[id(value)] = value
            else:
                self._held.pop(id(value), None)
        return result

    def _keeps(self, name: str, inputs: list[Tensor]) -> bool:
        held = [id(value) in self._held for value in inputs]
        if name in ("cat", "stack"):
            return bool(held) and all(held)
        if name in _SCALE:
            others = (value for value, is_held in zip(inputs, held, strict=True) if not is_held)
            return any(held) and all(_one_number(value) for value in others)
        return name in _KEEP and bool(held) and held[0]


def _one_number(value: Tensor) -> bool:
    """Whether a tensor is a number, or a mask of zeros and one number, as dropout's is."""
    numbers = value[value != 0]
    return not numbers.numel() or bool((numbers == numbers[0]).all())


def _is_several(value: Tensor) -> bool:
    """Whether each row sums to more than 1."""
    return bool((value.double().sum(-1) > 1 + _TOLERANCE.get(value.dtype, 1e-5)).all())


def _is_distribution(value: Any) -> bool:
    """Whether each row of some is positive and sums to 1, and they are no single ones among zeros."""
    rows = value.values if isinstance(value, LoDTensor) else value
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.dim() < 2:
        return False
    if rows.shape[-1] < 2 or not rows.numel():
        return False
    off = _TOLERANCE.get(rows.dtype, 1e-5)
    sums = rows.double().sum(-1)
    return bool((rows >= 0).all() and ((sums - 1).abs() <= off).all() and (rows.amax(-1) < 1).any())
