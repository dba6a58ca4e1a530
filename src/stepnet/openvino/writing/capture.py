"""Torch modules as OpenVINO IR."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stepnet.api import replaced
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.tree import flatten, names, unflatten
from stepnet.errors import IRError

from . import loops_call, ops_math, ops_shape  # noqa: F401  (they fill the table)
from .builder import NetBuilder, Out
from .capture_trace import Recorder, Tracer, sizes_of
from .loops import Steps, mask_of
from .loops_step import Program, program, run_in
from .ops import AtenNet
from .ops_emit import Emit
from .xml_writer import write

Dynamic = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Input:
    """One tensor among the inputs of a module. `lod` is a number for each structure of ragged sequences."""

    name: str
    value: Any
    lod: int | None


def save_module(
    module: Any, path: str | os.PathLike[str], example_inputs: Any, *, dynamic: Dynamic | None = None
) -> None:
    """Write a torch module as OpenVINO IR; see `stepnet.openvino.save`.

    Raises:
        IRError: something in it cannot be written; says what, and the line it came from.
    """
    net = module_net(module, example_inputs, dynamic=dynamic, name=Path(path).stem)
    write(net.net(), Path(path))


def module_net(
    module: Any, example_inputs: Any, *, dynamic: Dynamic | None = None, name: str = "model"
) -> NetBuilder:
    """A torch module as a net."""
    where = _described(module)
    args, kwargs = _arguments(example_inputs)
    leaves, spec = flatten((args, kwargs))
    leaves = [LoDTensor.from_packed(v) if isinstance(v, PackedSequence) else v for v in leaves]
    inputs = _inputs(module, args, kwargs, spec, leaves)
    lods = _structures(inputs)
    recorder = Recorder()
    try:
        with torch.no_grad(), replaced(recorder):
            a, k = unflatten(spec, [i.value for i in inputs])
            results, out_spec = flatten(module(*a, **k))
        outputs = _outputs(results, names(out_spec, "y"), where)
        return _written(module, name, where, spec, inputs, lods, recorder, outputs, dynamic)
    finally:
        recorder.forget()


def _written(
    module: Any, name: str, where: str, spec: Any, inputs: list[Input], lods: list[LoD], recorder: Recorder,
    outputs: list[str], dynamic: Dynamic | None,
) -> NetBuilder:  # fmt: skip
    tensors = [i for i in inputs if isinstance(i.value, (Tensor, LoDTensor))]
    examples = [i.value.values if isinstance(i.value, LoDTensor) else i.value for i in tensors]
    examples += [lod.lengths() for lod in lods]

    def run(*given: Tensor) -> Sequence[Tensor]:
        values = iter(given)
        rebuilt: list[Any] = []
        shared: dict[int, LoD] = {}
        for i in inputs:
            if i.lod is None:
                rebuilt.append(next(values) if isinstance(i.value, Tensor) else i.value)
                continue
            rows = next(values)
            lod = shared.setdefault(i.lod, LoD.trusted(lods[i.lod].levels, rows.shape[0]))
            rebuilt.append(LoDTensor._make(rows, lod))
        counts = dict(zip(shared, values, strict=True))
        by_lod = {id(shared[k]): length for k, length in counts.items()}

        def lengths(x: LoDTensor) -> Tensor:
            if id(x._lod) not in by_lod:
                raise IRError(
                    f"{where} cannot be written: a recurrence runs over sequences that are not an input's"
                )
            return by_lod[id(x._lod)]

        a, k = unflatten(spec, rebuilt)
        with replaced(Tracer(recorder.calls, lengths)):
            leaves, _ = flatten(module(*a, **k))
        return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in leaves]

    chosen = _dynamic(tensors, len(lods), dynamic, where)
    examples = [e.detach() for e in examples]
    made = program(run, module, examples, chosen, where)
    if dynamic is None:
        fewer = _without_features(made, chosen, examples)
        if fewer != chosen:
            made = program(run, module, examples, fewer, where)
    net = NetBuilder(name)
    emit = Emit(net)
    given: list[Out] = []
    for i, node in zip(tensors, made.inputs, strict=False):
        shape = [s if isinstance(s, int) else -1 for s in sizes_of(node.meta["val"])]
        if i.lod is not None:
            shape = [-1, -1, *shape[1:]]
        given.append(net.parameter(i.name, node.meta["val"].dtype, shape))
    ragged: dict[str, Out] = {}
    for k, _ in enumerate(lods):
        text = "lengths" if len(lods) == 1 else f"lengths_{k}"
        given.append(net.parameter(text, torch.int64, (-1,)))
        for i, node in zip(tensors, made.inputs, strict=False):
            if i.lod == k:
                ragged[str(node.meta["val"].shape[0])] = given[-1]
    aten = AtenNet(emit, where, ragged)
    aten.must_be_open = dynamic is None
    for out, node, text in zip(run_in(aten, made, given), made.outputs, outputs, strict=True):
        net.result(_ended(aten, node, out), (text,), name=_layer_name(text))
    return net


def _ended(aten: AtenNet, node: Any, out: Out) -> Out:
    """Zeros past the end of each sequence."""
    if not aten.is_ragged(node):
        return out
    emit, dtype = aten.emit, node.meta["val"].dtype
    steps = Steps(1, False, aten.ragged[str(node.meta["val"].shape[0])])
    mask, rank = mask_of(emit, steps, out), len(node.meta["val"].shape) - 1
    if rank != 1:
        mask = emit.reshape(mask, (0, 0, *(1,) * rank))
    return emit.call("Select", mask, out, emit.number(0, dtype))


def _layer_name(text: str) -> str:
    return f"{text}/result"


def _described(module: Any) -> str:
    if isinstance(module, nn.Module):
        return f"module {type(module).__name__}"
    return f"function {getattr(module, '__name__', type(module).__name__)}"


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)) and not isinstance(example_inputs, PackedSequence):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _inputs(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], spec: Any, leaves: list[Any]
) -> list[Input]:
    """The inputs by the names that the module's `forward` gives them."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        known = [p.name for p in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        known = []
    found: list[str] = []
    for i, arg in enumerate(args):
        found += names(flatten(arg)[1], known[i] if i < len(known) else f"input_{i}")
    for key, arg in kwargs.items():
        found += names(flatten(arg)[1], key)
    lods: list[LoD] = []
    made = []
    for text, value in zip(found, leaves, strict=True):
        number = None
        if isinstance(value, LoDTensor):
            same = [k for k, lod in enumerate(lods) if lod == value._lod]
            number = same[0] if same else len(lods)
            if not same:
                lods.append(value._lod)
            value = LoDTensor._make(value.values, lods[number])
        made.append(Input(text, value, number))
    return made


def _structures(inputs: Sequence[Input]) -> list[LoD]:
    found: dict[int, LoD] = {}
    for i in inputs:
        if i.lod is not None:
            found[i.lod] = i.value._lod
            if len(i.value._lod.levels) > 1:
                raise IRError(
                    f"input '{i.name}' cannot be written: it has sequences of sequences",
                    got=f"{len(i.value._lod.levels)} levels",
                    expected="one level: it becomes a padded input and its lengths",
                )
    return [found[k] for k in sorted(found)]


def _outputs(results: Sequence[Any], texts: Sequence[str], where: str) -> list[str]:
    for text, value in zip(texts, results, strict=True):
        if not isinstance(value, (Tensor, LoDTensor)):
            raise IRError(
                f"{where} cannot be written: its result {text} is no tensor", got=type(value).__name__
            )
    return list(texts)


def _dynamic(
    inputs: Sequence[Input], lods: int, dynamic: Dynamic | None, where: str
) -> list[dict[int, bool]]:
    """The open dimensions of each tensor: those that were asked for, or else all that can be."""
    known = [i.name for i in inputs]
    unknown = [n for n in dynamic or () if n not in known]
    if unknown:
        raise IRError(f"{where} has no input '{unknown[0]}' to be dynamic", got=unknown, expected=known)
    chosen: list[dict[int, bool]] = []
    for i in inputs:
        if i.lod is not None:
            chosen.append({0: True})
        elif dynamic is None:
            chosen.append({d: False for d, size in enumerate(i.value.shape) if size > 1})
        else:
            dims = dynamic.get(i.name, ())
            wrong = [d for d in dims if not -i.value.dim() <= d < i.value.dim()]
            if wrong:
                raise IRError(
                    f"{where}: input '{i.name}' has no dimension {wrong[0]} to be dynamic",
                    got=list(i.value.shape),
                )
            chosen.append({d % i.value.dim(): True for d in dims})
    return chosen + [{0: True} for _ in range(lods)]


def _without_features(
    made: Program, chosen: Sequence[dict[int, bool]], examples: Sequence[Tensor]
) -> list[dict[int, bool]]:
    """Of the dimensions that could be open: those that a recurrence knows as time or batch, and of the others
    the first two, but not the last, which holds features, nor those that a recurrence knows as features."""
    steps: set[str] = set()
    features: set[str] = set()
    for node in made.nodes:
        if str(node.target).startswith("stepnet.recurrence"):
            _, x, state, weights, lengths = node.args
            lead = 1 if lengths else 2
            for leaves, skip in ((x, lead), (state, 1), (weights, 0)):
                for leaf in leaves:  # pyright: ignore
                    steps |= _symbols(leaf.meta["val"].shape[:skip])
                    features |= _symbols(leaf.meta["val"].shape[skip:])
    kept = []
    for node, dims, example in zip(made.inputs, chosen, examples, strict=True):
        shape = sizes_of(node.meta["val"])
        texts = {d: str(shape[d]) for d in dims if not isinstance(shape[d], int)}
        known = {d for d, text in texts.items() if text in steps}
        front = {d for d, text in texts.items() if d < 2 and d < example.dim() - 1 and text not in features}
        kept.append({d: must for d, must in dims.items() if must or d in known | front})
    return kept


def _symbols(shape: Sequence[Any]) -> set[str]:
    sizes = [size.node.expr for size in shape if not isinstance(size, int)]
    return {str(symbol) for expr in sizes for symbol in expr.free_symbols}
