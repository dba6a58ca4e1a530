"""The inputs of a module that is to be written: names, ragged structures, and which sizes stay open."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from stepnet.data.attributes import attribute
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.tree import flatten, names
from stepnet.errors import IRError
from stepnet.iterator.tensor_iterator import TensorIterator

from .calls import call_of, calls_inside
from .iterators import IteratorCall
from .open_sizes import SOME
from .trace import Program, sizes_of

Dynamic = Mapping[str, Sequence[int]]
FEW = 1, 2, 8  # sequences of another example: the first of these that the module takes
_MANY = 10_007  # if they are short: so many numbers as an example of them may hold
_MOST = 2**24


@dataclass(frozen=True)
class Input:
    """One tensor among the inputs of a module. `lod` is a number for each structure of ragged sequences."""

    name: str
    value: Any
    lod: int | None


def inputs_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: list[Any]) -> list[Input]:
    """The inputs by the names that the module's `forward` gives them."""
    known = _parameters(module, len(args))
    found: list[str] = []
    for text, arg in zip(known, args, strict=True):
        found += names(flatten(arg)[1], text)
    for key, arg in kwargs.items():
        found += names(flatten(arg)[1], key)
    lods: list[LoD] = []
    made = []
    for text, value in zip(found, leaves, strict=True):
        number = None
        if isinstance(value, LoDTensor):
            same = [k for k, lod in enumerate(lods) if lod == value.structure]
            number = same[0] if same else len(lods)
            if not same:
                lods.append(value.structure)
            value = LoDTensor.of(value.values, lods[number])
        made.append(Input(text, value, number))
    return made


def _parameters(module: Any, count: int) -> list[str]:
    """Names of the first positional arguments."""
    if isinstance(module, TensorIterator):
        return list(module.inputs[:count])
    if attribute(module, "open_sizes") is not None:  # it was read from a file
        return list(module.open_sizes)[:count]
    function = module.forward if isinstance(module, nn.Module) else module
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        signature = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin has none
        signature = ()
    known = [p.name for p in signature if p.kind in kinds]
    return [known[i] if i < len(known) else f"input_{i}" for i in range(count)]


def structures(inputs: Sequence[Input]) -> list[LoD]:
    """The structures of the ragged inputs, by number.

    Raises:
        IRError: one has more levels than can be written.
    """
    found: dict[int, LoD] = {}
    for i in inputs:
        if i.lod is not None:
            found[i.lod] = i.value.structure
            if len(i.value.structure.levels) > 2:
                raise IRError(
                    f"input '{i.name}' cannot be written: it has sequences of sequences",
                    got=f"{len(i.value.structure.levels)} levels",
                    expected="two levels: it becomes a padded input and its lengths",
                    remedy="give the module the sequences of the inner level, or lengths as an input",
                )
    return [found[k] for k in sorted(found)]


def many(inputs: Sequence[Input]) -> tuple[int, int]:
    """How many sequences, about, another example has: as many as are no burden, or few more."""
    given = len(next(i.value for i in inputs if i.lod is not None).structure.levels[0]) - 1
    tables = (i.value if i.lod is None else i.value.values for i in inputs)
    numbers = sum(table.numel() for table in tables if isinstance(table, Tensor))
    return max(2 * SOME, min(_MANY, _MOST * given // max(numbers, 1))), 2 * SOME


def batch_number(module: Any, inputs: Sequence[Input], least: int = SOME, other: int = 0) -> int:
    """A number of sequences that is no other size of the module: where a trace meets it, it is the batch. Its
    rests are other ones than those of another number."""
    sizes = {size for i in inputs if isinstance(i.value, Tensor) for size in i.value.shape}
    sizes |= {size for i in inputs if i.lod is not None for size in i.value.values.shape[1:]}
    if isinstance(module, nn.Module):
        sizes |= {size for t in (*module.parameters(), *module.buffers()) for size in t.shape}
    counts = [i.value.structure.lengths(0) for i in inputs if i.lod is not None and i.value.lod_level > 1]
    if any(n.numel() and int(n.max()) < 2 for n in counts):
        raise IRError(
            "an example of sequences of sequences holds no two sequences in one",
            got=[n.tolist() for n in counts],
            expected="two sequences at least in one of them",
            remedy="an example that holds them",
        )
    number = least
    while (
        not all((number - other) % d for d in range(2, 11))
        or any(size % number == 0 for size in sizes if size)
        or any(_repeats(n, number) in {*sizes, number} for n in counts)
    ):
        number += 1
    return number


def _repeats(counts: Tensor, number: int) -> int:
    """How many sequences are in `number` sequences of sequences, which `counts` are repeated to."""
    return int(counts[torch.arange(number) % max(1, len(counts))].sum()) if len(counts) else 0


def repeated(inputs: Sequence[Input], count: int, dynamic: Dynamic | None) -> list[Input]:
    """The inputs with their sequences repeated until there are `count`; and with them the rows of what has
    one for each sequence: in the dimensions that `dynamic` says, else the first that is as long as the batch.
    """
    first = next(i for i in inputs if i.lod is not None)
    given = len(first.value.structure.levels[0]) - 1
    if not len(first.value.values):
        raise IRError(
            f"input '{first.name}' holds no row",
            expected="an example of one sequence at least",
            got=f"{given} sequences, all empty",
            remedy="an example with rows",
        )
    chosen = torch.arange(count) % given
    structures: dict[int, LoD] = {}
    made = []
    for i in inputs:
        if i.lod is not None:
            if len(i.value.structure.levels[0]) - 1 != given:
                raise IRError(
                    f"input '{i.name}' has another number of sequences than '{first.name}'",
                    got=len(i.value.structure.levels[0]) - 1,
                    expected=given,
                    remedy="an example of as many sequences in each input",
                )
            more = i.value.select_sequences(chosen)
            lod = structures.setdefault(i.lod, more.structure)
            made.append(replace(i, value=LoDTensor.of(more.values, lod)))
        elif isinstance(i.value, Tensor):
            if dynamic is not None and i.name in dynamic:
                dims = [d % i.value.dim() for d in dynamic[i.name]]
            else:
                dims = [
                    d for d, size in enumerate(i.value.shape[: max(1, i.value.dim() - 1)]) if size == given
                ]
            value = i.value
            for d in dims if i.name in (dynamic or ()) else dims[:1]:
                value = value.index_select(d, chosen)
            made.append(replace(i, value=value))
        else:
            made.append(i)
    return made


def dynamic_of(
    inputs: Sequence[Input],
    lods: int,
    dynamic: Dynamic | None,
    where: str,
    *,
    wide: bool = False,
    declared: Dynamic | None = None,
) -> list[dict[int, bool]]:
    """The open dimensions of each tensor: those that were asked for, or else all that can be; the last one of
    numbers, which mostly holds features, only if `wide`. What was read from a file has `declared` them."""
    known = [i.name for i in inputs]
    unknown = [n for n in dynamic or () if n not in known]
    if unknown:
        raise IRError(
            f"{where} has no input '{unknown[0]}' to be dynamic",
            got=unknown,
            expected=known,
            remedy="dynamic={NAME: dimensions} with the names of the parameters of forward",
        )
    chosen: list[dict[int, bool]] = []
    for i in inputs:
        sizes = i.value.shape
        if i.lod is not None:
            chosen.append({0: True})
        elif lods:  # the batch is a number that stands for any, see `repeated`
            chosen.append({})
        elif declared is not None:
            chosen.append({d: False for d in declared.get(i.name, ()) if sizes[d] > 1})
        elif dynamic is None:
            last = len(sizes) - 1 if _has_features(i.value) and not wide else -1
            chosen.append({d: False for d, size in enumerate(sizes) if size > 1 and d != last})
        else:
            chosen.append(dict.fromkeys(_asked_for(i, dynamic.get(i.name, ()), where), True))
    return chosen + [{} for _ in range(lods)]


def _asked_for(i: Input, dims: Sequence[int], where: str) -> list[int]:
    """The dimensions of an input that were asked for, counted from the front."""
    rank = i.value.dim()
    wrong = [d for d in dims if not -rank <= d < rank]
    if wrong:
        raise IRError(
            f"{where}: input '{i.name}' has no dimension {wrong[0]} to be dynamic",
            got=list(i.value.shape),
            expected=f"dimensions from {-rank} to {rank - 1}",
            remedy=f"dynamic={{{i.name!r}: ...}} with dimensions that it has",
        )
    return [d % rank for d in dims]


def places_asked_for(inputs: Sequence[Input], dynamic: Dynamic | None) -> list[tuple[Input, int]]:
    """The dimensions of dense inputs that `dynamic` leaves open, where no input is ragged."""
    if any(i.lod is not None for i in inputs):
        return []
    places: list[tuple[Input, int]] = []
    for i in inputs:
        if isinstance(i.value, Tensor):
            sizes, asked = i.value.shape, (dynamic or {}).get(i.name, ())
            places += (
                (i, d) for d in range(len(sizes)) if sizes[d] and (d in asked or d - len(sizes) in asked)
            )
    return places


def declared_of_one(module: Any, inputs: Sequence[Input]) -> list[tuple[Input, int]]:
    """The dimensions of one element that the file of a model leaves open: torch takes them for one in every
    call."""
    declared = attribute(module, "open_sizes") or {}
    return [
        (i, d)
        for i in inputs
        if isinstance(i.value, Tensor)
        for d in declared.get(i.name, ())
        if i.value.shape[d] == 1
    ]


def _has_features(x: Tensor) -> bool:
    """Whether the last dimension of an input mostly holds features."""
    return x.dim() > 1 and x.is_floating_point()


def _before_features(x: Tensor) -> int:
    """How many dimensions of an input stand before the one that holds features."""
    return x.dim() - _has_features(x)


def without_features(
    made: Program, chosen: Sequence[dict[int, bool]], examples: Sequence[Tensor], *, memories: bool
) -> list[dict[int, bool]]:
    """Of the dimensions that could be open: those that a recurrence knows as time or batch, and of the others
    the first two, but not the last of numbers, nor those that a recurrence knows as features. `memories`:
    the rows of what a step reads for each sequence are no features."""
    steps, features = _known_sizes(made, memories=memories)
    kept = []
    for node, dims, example in zip(made.inputs, chosen, examples, strict=True):
        shape = sizes_of(node.meta["val"])
        texts = {d: str(shape[d]) for d in dims if not isinstance(shape[d], int)}
        known = {d for d, text in texts.items() if text in steps}
        most = min(2, _before_features(example))
        front = {d for d, text in texts.items() if d < most and text not in features}
        kept.append({d: must for d, must in dims.items() if must or d not in texts or d in known | front})
    return kept


def _known_sizes(made: Program, *, memories: bool) -> tuple[set[str], set[str]]:
    """The sizes that recurrences of a program know as time or batch, and those that they know as features,
    as torch writes them. `memories`: see `without_features`."""
    steps: set[str] = set()
    features: set[str] = set()
    read: list[Tensor] = []  # what steps read besides what is cut for each
    for node in made.nodes:
        target = str(node.target)
        if target.startswith("stepnet.recurrence"):
            number, *groups, _, _ = node.args
            call = call_of(cast(int, number))
            x, state, weights = ([leaf.meta["val"] for leaf in group] for group in groups)  # pyright: ignore
            read += (*state, *weights)
            lead = 1 if call.ragged else 2  # dimensions of x before its features
            # A batch of one row: of that row nobody says what else it holds, such as zeros for as many rows.
            alone = call.alone
            own = {text for value in x for text in _symbols(value.shape[lead : lead + 1])}
            for values, skip in ((x, lead), (state, 1), (weights, 0)):
                for value in values:
                    steps |= _symbols(value.shape[:skip])
                    found = _symbols(value.shape[skip:])
                    if not alone:
                        features |= found
                    elif values is weights:
                        features |= found - own
        elif target.startswith("stepnet.iterator"):
            steps |= {text for size in _cut_sizes(node) for text in _symbols([size])}
        if target.startswith("stepnet.") and isinstance(node.args[0], int):
            steps |= set(_inner_sizes(call_of(node.args[0])))
    for value in read if memories else ():  # [sequences, rows, features], and of numbers no features
        lead = _symbols(value.shape[:1])
        if _before_features(value) > 1 and lead and lead <= steps:
            features -= _symbols(value.shape[1:2])
    return steps, features - steps


def alone_as_long(
    inputs: Sequence[Input], chosen: Sequence[dict[int, bool]], leads: Sequence[Sequence[int]]
) -> list[dict[int, bool]]:
    """Of the dimensions that could be open those that are as long as time or batch of a recurrence, which
    `leads` are, and stand before the last of numbers."""
    long = {size for lead in leads for size in lead}
    kept = []
    for i, dims in zip(inputs, chosen, strict=False):
        most = _before_features(i.value)
        kept.append({d: must for d, must in dims.items() if must or (d < most and i.value.shape[d] in long)})
    return kept + [dict(dims) for dims in chosen[len(kept) :]]


def frozen_leads(inputs: Sequence[Input], shapes: Sequence[Sequence[Any]]) -> set[tuple[str, int]]:
    """The dimensions before the last of numbers that are fixed in a trace with inputs of these shapes."""
    return {
        (i.name, d)
        for i, shape in zip(inputs, shapes, strict=False)
        for d, size in enumerate(shape[: _before_features(i.value)])
        if isinstance(size, int)
    }


def closed(made: Program) -> bool:
    """Whether a recurrence of dense sequences has a fixed number of steps or sequences."""
    sizes: list[Any] = []
    for node in made.nodes:
        if str(node.target).startswith("stepnet.recurrence"):
            call = call_of(cast(int, node.args[0]))
            if call.ragged:
                continue
            rows = 1 if call.alone else 2
            sizes += sizes_of(node.args[1][0].meta["val"])[:rows]  # pyright: ignore
        elif str(node.target).startswith("stepnet.iterator"):
            sizes += _cut_sizes(node)
    return any(isinstance(size, int) for size in sizes)


def _inner_sizes(call: Any) -> Iterator[str]:
    """The sizes of time and batch of the recurrences inside a loop."""
    for inner in calls_inside(call):
        for number in inner.numbers():
            yield from _symbols(getattr(call_of(number), "known", ()))
            yield from _inner_sizes(call_of(number))


def _cut_sizes(node: Any) -> list[Any]:
    """The sizes of a TensorIterator's inputs along the axes that they are cut along."""
    number, inputs, *_ = node.args
    call: IteratorCall = call_of(number)
    fed = dict(zip(call.sources, inputs, strict=True))
    return [sizes_of(fed[port.source].meta["val"])[port.axis] for port in call.loop.slices]


def _symbols(shape: Sequence[Any]) -> set[str]:
    sizes = [size.node.expr for size in shape if not isinstance(size, int)]
    return {str(symbol) for expr in sizes for symbol in expr.free_symbols}
