"""`dynamic_recurrent`: the stepnet of the RNN op over sequences of any lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepnet.checks import sequences_of
from stepnet.data.arguments import listed, whole
from stepnet.data.lod import LoDTensor
from stepnet.data.recording import AS_A_LAYER, InGrid, StandIn
from stepnet.errors import StepError
from stepnet.executors.base import Backend
from stepnet.front.memory import Memory, Stepnet, check_rows, memories_of
from stepnet.front.scope import Scope
from stepnet.front.static import memory_of
from stepnet.front.step import describe_leaf

from .as_step import run_as_step, run_in_frame


def dynamic_recurrent(
    stepnet: Stepnet,
    scope: Scope,
    inputs: Sequence[str],
    outputs: Sequence[str],
    memories: Sequence[Memory] = (),
    *,
    static_inputs: Sequence[str] = (),
    padded: Sequence[str] = (),
    level: int = -1,
    reverse: bool = False,
    backend: Backend | None = None,
) -> dict[str, Tensor]:
    """Run a stepnet over LoDTensors: unpack them, step over batches that shrink, pack the outputs.

    Step t holds a row for each sequence longer than t. The stepnet sees the rows of inputs, memories and
    static inputs in one order; which order that is it need not know, for all that goes in and comes out is
    in the caller's.

    Args:
        stepnet: as in `RecurrentOp`: `stepnet(scope)` reads and writes names of its step's scope.
        scope: the outer scope: inputs, static inputs, inits and what else the stepnet reads.
        inputs: names of LoDTensors, all of the same lengths at `level`.
        outputs: names that the stepnet writes, [n, ...]; written to `scope` as LoDTensors like the inputs.
        memories: what a step hands to the next. An init has a row per sequence, in the caller's order.
        static_inputs: names of what every step sees whole: a tensor [B, ...], or a LoDTensor with an entry
            per sequence, such as an encoder's outputs; each step sees the rows or entries of the sequences
            in it.
        padded: those of the ragged static inputs that a step sees as a `Padded`, rows [n, L, ...] and a mask,
            as in `recurrent(static=)`: such a stepnet compiles.
        level: the level whose elements are the steps. Above the last level an input is a LoDTensor.
        reverse: run every sequence from its end to its beginning.
        backend: as in `recurrent`; ragged static inputs that are not padded run by the plain loop.

    Returns:
        The memories after the last step of each sequence by name, a row per sequence in the caller's order.

    Raises:
        StepError: a name is missing, an input is not ragged, or a value has not a row per sequence.
        LoDError: inputs have different lengths.
        Unsupported: a static input is ragged and not padded, and a backend is named that cannot run that.

    Source: Paddle's dynamic_recurrent_op and DynamicRNN (2017).

    >>> def stepnet(step):
    ...     step["h"] = step["h_pre"] + step["x"] * step["scale"]
    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[1, 3]])
    >>> scope = Scope({"x": x, "scale": torch.tensor([[10.0], [2.0]])})
    >>> memory = Memory("h", "h_pre", shape=(1,))
    >>> last = dynamic_recurrent(stepnet, scope, ["x"], ["h"], [memory], static_inputs=["scale"])
    >>> scope["h"].values.flatten().tolist(), last["h"].flatten().tolist()
    ([10.0, 2.0, 4.0, 6.0], [10.0, 6.0])
    """

    def run(within: Scope, other: Backend | None) -> dict[str, Tensor]:
        return dynamic_recurrent(
            stepnet, within, inputs, outputs, memories,
            static_inputs=static_inputs, padded=padded, level=level, reverse=reverse,
            backend=other or backend,
        )  # fmt: skip

    inputs = listed("dynamic_recurrent: 'inputs'", inputs, str)
    outputs = listed("dynamic_recurrent: 'outputs'", outputs, str)
    static_inputs = listed("dynamic_recurrent: 'static_inputs'", static_inputs, str)
    padded = listed("dynamic_recurrent: 'padded'", padded, str)
    level = whole("dynamic_recurrent: 'level'", level)
    memories = memories_of("dynamic_recurrent", memories, (*inputs, *static_inputs), outputs)
    recorded = run_in_frame(scope, run, outputs, memories)
    if recorded is not None:
        return recorded
    name = getattr(stepnet, "__name__", type(stepnet).__name__)
    first = _first_input(scope, inputs, name)
    if not -first.lod_level <= level < first.lod_level:
        raise StepError(
            f"dynamic_recurrent over '{name}': input '{inputs[0]}' has no level {level}",
            got=describe_leaf(first),
            expected=f"a level from {-first.lod_level} to {first.lod_level - 1}",
        )
    rows = first.sequences if isinstance(first, InGrid) else sequences_of(first, level, 0)
    wrong: list[str | None] = []
    for memory in memories:
        if memory.init is not None:
            what = f"init '{memory.init}' of memory '{memory.name}'"
            wrong.append(check_rows(what, scope.find(memory.init), rows, "one per sequence"))
    for static in static_inputs:
        wrong.append(check_rows(f"static input '{static}'", scope.find(static), rows, "one per sequence"))
    for other in set(padded) - set(static_inputs):
        wrong.append(f"'{other}' in padded= is no static input")
    found = [text for text in wrong if text is not None]
    if found:
        raise StepError(
            f"dynamic_recurrent over '{name}': {len(found)} thing(s) do not fit",
            got="; ".join(found),
            remedy="give a row per sequence, in the order of the inputs",
        )
    ragged = {n: scope[n] for n in static_inputs if isinstance(scope[n], LoDTensor) and n not in padded}
    static = {n: torch.arange(rows) if n in ragged else scope[n] for n in static_inputs}
    static |= {n: memory_of(static[n], rows, f"static input '{n}'") for n in static_inputs if n in padded}
    return run_as_step(
        stepnet, scope, inputs, outputs, memories, (rows, first.values), static=static, ragged=ragged,
        level=level, reverse=reverse, backend=backend,
    )  # fmt: skip


def _first_input(scope: Scope, names: Sequence[str], stepnet: str) -> LoDTensor | InGrid:
    wrong = [
        f"input '{name}' is {describe_leaf(scope[name]) if name in scope else 'not in the scope'}"
        for name in names
        if not isinstance(scope.find(name), (LoDTensor, InGrid))
    ]
    if wrong or not names:
        found = [scope.find(name) for name in names]
        remedy = (
            "RecurrentOp runs a stepnet over tensors of one length; "
            "LoDTensor.from_sequences and from_padded make LoDTensors"
        )
        if not names or any(value is None for value in found):
            remedy = f"inputs names values of the scope, which has {', '.join(scope.all_values()) or 'none'}"
        elif any(isinstance(value, StandIn) for value in found):
            remedy = AS_A_LAYER
        raise StepError(
            f"dynamic_recurrent over '{stepnet}' steps over LoDTensors",
            got="; ".join(wrong) or "no inputs",
            remedy=remedy,
        )
    return scope[names[0]]
