"""Torch modules as OpenVINO IR."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stepnet.api import replaced
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.data.outputs import Outputs
from stepnet.data.sequence import INSTEAD
from stepnet.data.tree import flatten, names, unflatten
from stepnet.errors import IRError

from . import loops_call, loops_iterator, loops_while, ops_math, ops_sequences, ops_shape  # noqa: F401  (they fill the table)
from .builder import NetBuilder, Out
from .capture_inputs import (
    Dynamic,
    Input,
    batch_number,
    closed,
    dynamic_of,
    inputs_of,
    repeated,
    structures,
    without_features,
)
from .capture_iterator import LoopRecorder, LoopTracer, answered
from .capture_trace import Recorder, Tracer, sizes_of
from .capture_while import WhileRecorder, WhileTracer, whiles
from .loops import Steps, mask_of
from .loops_step import program, run_in
from .ops import AtenNet
from .ops_emit import Emit
from .xml_writer import write


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
    inputs = inputs_of(module, args, kwargs, leaves)
    batch = 0
    if any(i.lod is not None for i in inputs):
        batch = batch_number(module, inputs)
        inputs = repeated(inputs, batch, dynamic)
    lods = structures(inputs)
    recorder, loops, turning = Recorder(), LoopRecorder(), WhileRecorder()
    try:
        with torch.no_grad(), replaced(recorder), answered(loops), whiles(turning):
            a, k = unflatten(spec, [i.value for i in inputs])
            outputs = _outputs(_plain(module(*a, **k)), where)
        calls = (recorder.calls, loops.calls, turning.calls)
        return _written(module, name, where, spec, inputs, lods, calls, outputs, dynamic, batch)
    finally:
        recorder.forget()
        loops.forget()
        turning.forget()


def _written(
    module: Any, name: str, where: str, spec: Any, inputs: list[Input], lods: list[LoD],
    calls: tuple[list[int], list[int], list[int]], outputs: list[str], dynamic: Dynamic | None, batch: int,
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
        tracer = Tracer(calls[0], lengths)
        token = INSTEAD.set(tracer.sequences)
        try:
            with replaced(tracer), answered(LoopTracer(calls[1])), whiles(WhileTracer(calls[2])):
                leaves, _ = flatten(_plain(module(*a, **k)))
        finally:
            INSTEAD.reset(token)
        return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in leaves]

    chosen = dynamic_of(tensors, len(lods), dynamic, where)
    examples = [e.detach() for e in examples]
    made = program(run, module, examples, chosen, where)
    if dynamic is None and closed(made):  # time may be the last dimension
        chosen = dynamic_of(tensors, len(lods), dynamic, where, wide=True)
        made = program(run, module, examples, chosen, where)
    if dynamic is None:
        fewer = without_features(made, chosen, examples)
        if fewer != chosen:
            made = program(run, module, examples, fewer, where)
    net = NetBuilder(name)
    emit = Emit(net)
    given: list[Out] = []
    for i, node in zip(tensors, made.inputs, strict=False):
        shape = [s if isinstance(s, int) else -1 for s in sizes_of(node.meta["val"], batch)]
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
    aten.batch = batch
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


def _plain(results: Any) -> Any:
    """What a module returns, as tensors in tuples, lists and dicts."""
    return dict(results.items()) if isinstance(results, Outputs) else results


def _outputs(results: Any, where: str) -> list[str]:
    """The names of the outputs: by key if they are in a dict."""
    parts = results if isinstance(results, dict) and results else {"y": results}
    texts: list[str] = []
    for key, part in parts.items():
        leaves, spec = flatten(part)
        for text, value in zip(names(spec, str(key)), leaves, strict=True):
            if not isinstance(value, (Tensor, LoDTensor)):
                raise IRError(
                    f"{where} cannot be written: its result {text} is no tensor", got=type(value).__name__
                )
            texts.append(text)
    return texts
