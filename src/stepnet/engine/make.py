"""A plan made: the step tried on sample rows (`trial`), compiled or read from disk, and given to an executor
(`executor_choice`)."""

from __future__ import annotations

import contextvars
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler import stored
from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.pipeline import Compiled, Signature, compile_loop
from stepnet.compiler.reads.step_digest import digest
from stepnet.compiler.reads.undo import Snapshot, undone
from stepnet.compiler.rewritten.inner_loops import inner_loops, is_guarded
from stepnet.compiler.trace.capture import BY_VALUES, Example
from stepnet.compiler.trace.data_dependent import AsksCaptured
from stepnet.compiler.trace.draws import Draw, drawn_in_order
from stepnet.compiler.trace.iteration import code_of, reached
from stepnet.compiler.trace.untraced_constants import unseen_are_constants
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import FOUND_AGAIN, default_device
from stepnet.data.tree import leaves
from stepnet.errors import StepnetError, Unsupported
from stepnet.executors import plan_files
from stepnet.executors.torch_ops.ops import bind
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop
from stepnet.user_line import line_in
from stepnet.watchers import during

from .entries import Entry, Weights, refused_as, was_not_built
from .executor_choice import about_as_many, choose
from .failures import failure
from .other_threads import Meanwhile
from .reads import Reads, ReadsChanged, read_anew, settings, steps_of_inner_loops
from .rows import Sequences, samples
from .stride_dependence import check_strided
from .trial import Seen, apart, try_on_rows, untaken, weights_of

_FAILS = "compiling it fails"


def make(loop: Loop, reads: Reads, sequences: Sequences, backend: str) -> Entry:
    """The entry of a run's signature."""
    found = reached(loop, everything=True)
    if found.refused is not None:
        return _refused_for(Unsupported(found.refused))
    holders = found.holders
    if any(holder is os.environ for holder in holders):
        try:
            from stepnet.compiler.trace.torch_tracers import warm  # a second of imports

            warm()
        except Exception as error:  # torch's compiler looks into all modules, and fails at odd ones
            let_through(error)
            return _refused_for(failure(_FAILS, error))
    others = Meanwhile(holders, loop, reads, sequences)

    def attempt(snapshot: Snapshot) -> tuple[Entry, tuple[str, bytes] | None]:
        def made(moved: Callable[[], bool] | None) -> tuple[Entry, tuple[str, bytes] | None]:
            return contextvars.copy_context().run(_make, snapshot, moved, loop, reads, sequences, backend)

        found = made(moved := others.watch())
        if moved is not None and refused_as(ReadsChanged, found[0]) and others.moves_itself(moved):
            return made(None)
        return found

    (entry, to_keep), names = undone(holders, reads.root, attempt)
    if names is not None:
        entry.changes = names
    if entry.changes is not None:
        return entry
    failed = entry.ready is None or entry.wrong
    if others.changed(failed):
        return _refused_for(ReadsChanged())
    if others.alone and reads.open is not None and read_anew(reads, loop, sequences) is None:
        entry.changes = frozenset()  # by what no walk sees: a cache, an object of C
        return entry
    entry.unsure = (failed and not others.alone) or was_not_built(entry)
    if to_keep is not None:
        plan_files.write(*to_keep)
    return entry


def _refused_for(refusal: Unsupported) -> Entry:
    return Entry(refusals=[("capture", refusal)])


def _make(
    snapshot: Snapshot,
    moved: Callable[[], bool] | None,
    loop: Loop,
    reads: Reads,
    sequences: Sequences,
    backend: str,
) -> tuple[Entry, tuple[str, bytes] | None]:
    """An entry, and its plan and what that is found by, to be kept on disk."""
    entry = Entry(size=about_as_many(sequences.layout.sequences))
    to_keep = None
    try:
        with apart(reads):
            to_keep = _compile(entry, snapshot, moved, loop, reads, sequences, backend)
    except Unsupported as refusal:
        entry.ready = None
        entry.refusals.append(("capture" if entry.compiled is None else "run", refusal.fresh()))
    except StepnetError:
        raise
    except Exception as error:  # whatever it is, the plain loop may do without
        let_through(error)
        entry.ready = None
        entry.refusals.append(("capture", failure(_FAILS, error)))
    return entry, to_keep


def _compile(
    entry: Entry,
    snapshot: Snapshot,
    moved: Callable[[], bool] | None,
    loop: Loop,
    reads: Reads,
    sequences: Sequences,
    backend: str,
) -> tuple[str, bytes] | None:
    _check_devices((*sequences.x_rows, *sequences.states))
    x, states = samples(sequences.x_rows, ROWS), samples(sequences.states, ROWS)
    line = line_in(reads.files)
    with inner_loops(None, line) as loops:
        few = sequences._replace(x_rows=x, states=states)
        seen = try_on_rows(entry, snapshot, loop, reads, few, sequences)
    if loops.too_long is not None:
        raise loops.too_long.fresh()
    most = steps_of_inner_loops(reads, loops.longest)
    if entry.changes is not None:
        return None
    numbers = [] if reads.inputs is None else reads.inputs.tensors
    weights = weights_of((*seen.tensors, *numbers), reads, (*x, *states))
    signature = _signature(loop, sequences, weights, seen.draws)
    key = None if reads.open is not None or numbers or seen.draws else _digest(loop, reads, signature, most)
    noise = drawn_in_order(seen.draws, reads.reach.generators, [ROWS])
    given = (signature, weights, bind, [t.detach() for t in (*x, *noise, *states)])
    chosen = (loop, reads, sequences, weights, backend, key)
    if key is not None and _from_file(entry, seen, (signature, weights), key, chosen):
        return None
    recorded = functools.partial(_recorded, seen=seen, moved=moved, line=line, loop=loop, reads=reads,
                                 sequences=sequences, most=most)  # fmt: skip
    if more := untaken(seen, reads, weights):
        followed = recorded((signature, [*weights, *more], *given[2:])).followed
        more = [weight for weight in more if weight[0] in followed]
        weights, key = [*weights, *more], None if more else key
        given, chosen = (signature, weights, *given[2:]), (*chosen[:3], weights, backend, key)
    compiled = recorded(given)
    if seen.strides_matter:
        check_strided(loop, compiled, sequences, weights, reads.reach.generators)
    if moved is not None and moved():
        raise ReadsChanged
    if reads.open is not None and len(compiled.followed) < len(weights):
        raise Unsupported("the step reads a tensor that the trace could not follow")
    if snapshot.changed():
        entry.changes = frozenset()
        return None
    if numbers:
        entry.notes.append(
            f"{len(numbers)} of Python's numbers change from call to call: a run on {ROWS} rows tells them"
        )
    choose(entry, compiled, *chosen)
    if key is None or entry.ready is None or compiled.fused.random:  # noise cannot be checked
        return None
    data = stored.dump(compiled, signature, weights)
    return None if data is None else (key, data)


def _check_devices(inputs: Sequence[Tensor]) -> None:
    device = inputs[0].device
    if any(t.device != device for t in inputs):
        raise Unsupported("x and the state are on different devices")
    if default_device().type not in ("cpu", device.type):
        raise Unsupported(f"torch's default device is {default_device().type}, the rows are on {device.type}")


def _signature(loop: Loop, sequences: Sequences, weights: Weights, draws: Sequence[Draw]) -> Signature:
    states = sequences.states
    trained = (*sequences.x_rows, *states, *(t for _, t, _ in weights))
    training = torch.is_grad_enabled() and any(t.requires_grad for t in trained)
    x = [Example(tuple(t.shape[1:]), t.dtype, training and t.requires_grad) for t in sequences.x_rows]
    return Signature(
        name=loop.body.name,
        x=(*x, *(Example(draw.shape, draw.dtype, False) for draw in draws)),
        states=tuple(Example(tuple(t.shape[1:]), t.dtype, training) for t in states),
        boots=tuple(training and t.requires_grad for t in states),
        x_names=(*(port.parameter for port in loop.slices), *(f"noise{i}" for i in range(len(draws)))),
        state_names=tuple(port.parameter for port in loop.merged),
    )


def _from_file(entry: Entry, seen: Seen, given: Sequence[Any], key: str, chosen: Sequence[Any]) -> bool:
    """Whether a plan that was kept on disk is right for the body, and an executor takes it."""
    kept = plan_files.read(key)
    if kept is None:
        return False
    try:
        known = stored.load(kept, *given)
        if known.y_spec == seen.y_spec or is_guarded(known.y_spec):
            choose(entry, known, *chosen)
            if not entry.wrong:
                return True
    except Unsupported:
        pass
    except StepnetError:
        raise
    except Exception as error:  # if it is of the step itself, the plan recorded now has it, too
        let_through(error)
    entry.ready, entry.refusals, entry.notes, entry.wrong = None, [], [], False
    return False


def _recorded(
    given: Sequence[Any], seen: Seen, moved: Callable[[], bool] | None, line: Callable[[], str | None],
    loop: Loop, reads: Reads, sequences: Sequences, most: int,
) -> Compiled:  # fmt: skip
    """The plan of a body that is recorded now."""

    def here() -> str | None:
        if moved is not None and moved():
            raise ReadsChanged
        return line()

    signature, weights, bound, plain = given
    how = (loop, signature, weights, here, bound, plain, sequences.shared)
    kept = [each.structure.kept() for each in reads.reach.holders if type(each) is LoDTensor]
    of_offsets = set(map(id, leaves(kept, Tensor)))  # constants, too: the key tells the offsets
    before = [t for t in seen.tensors if id(t) not in of_offsets]
    is_open = reads.open is not None
    with (
        warnings.catch_warnings(),
        unseen_are_constants(not is_open, before),
        during(FOUND_AGAIN, is_open),
    ):
        warnings.simplefilter("ignore")
        try:
            answers = () if seen.asks_captured else seen.answers
            lifted = None if reads.inputs is None else reads.inputs.lifted
            return compile_loop(*how, answers, most, seen.draws, lifted)
        except Unsupported as refusal:
            if not seen.asks_captured or refusal.reason != BY_VALUES:
                raise
            raise AsksCaptured("its Python asks for the numbers of a tensor that it reads") from refusal


def _digest(loop: Loop, reads: Reads, signature: Signature, most: int) -> str | None:
    return digest(
        reads.key,
        [(tuple(t.shape), t.dtype, t.requires_grad, t.device.type, type(t)) for t in reads.tensors],
        [(e.shape, e.dtype, e.grad) for e in (*signature.x, *signature.states)],
        (signature.boots, code_of(loop).form, most),
        settings(),
    )
