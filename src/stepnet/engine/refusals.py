"""Why a step has no plan, or one by torch's ops only, and what its user is told of that."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch import nn

from stepnet.compiler.trace.capture import FailsOnAnyRows
from stepnet.errors import NoCompiler, NotBuilt, SlowPathWarning, StepError, TorchOpsWarning, Unsupported
from stepnet.executors.registry import AUTO
from stepnet.ir.loop import Loop
from stepnet.user_line import user_level

from .entries import Entry
from .executor_choice import Slower
from .reads import FailsOnSamples, Reads
from .rows import Sequences

_LIMIT = 512
_told: set[Any] = set()  # steps and reasons that were warned of
DOES_NOT_HOLD = Unsupported(
    "a check in the step does not hold for all rows, rows disagree on a question that it asks all of them, "
    "or a while_loop in it takes more than its max_steps",
    remedy="torch.where(condition, a, b) with a condition for each row",
)
_ONE_PER_SEQUENCE = Unsupported(
    "the step reads a tensor that has one row for each sequence, so it runs on no other number of rows",
    remedy="recurrent(step, x, state, static=tensor) hands it to the step, as step(x_t, state, tensor)",
)


def error_for(
    entry: Entry, loop: Loop, reads: Reads, sequences: Sequences, *, backend: str, warn: bool
) -> Exception:
    """What to raise where no executor takes a step; the user is told of it, as far as that is asked for."""
    refusal = reason_of(entry)
    tell = warn and backend == AUTO
    fails = isinstance(refusal, FailsOnSamples)
    if fails and warn and backend != AUTO and not isinstance(refusal.error, StepError):
        return refusal.error_anew()
    told = refusal.fresh()
    if tell and (fails or isinstance(refusal, FailsOnAnyRows)) and _one_per_sequence(reads, sequences):
        tell_of(SlowPathWarning, loop, reads, _ONE_PER_SEQUENCE)
    elif fails:
        # The plain loop may meet it, too. One number for each sequence may be meant as one vector.
        if tell and any(t.dim() > 1 for t in (*sequences.x_rows, *sequences.states)):
            told.ran = functools.partial(tell_of, SlowPathWarning, loop, reads, refusal)
    elif tell:
        tell_of(SlowPathWarning, loop, reads, refusal)
    return told


def _one_per_sequence(reads: Reads, sequences: Sequences) -> bool:
    """Whether a step that fails on a few rows may do so for a tensor with a row for each sequence."""
    layout = sequences.layout
    weights = (t for t in reads.tensors if not isinstance(t, nn.Parameter))
    return len(layout.ends) == 1 and any(t.dim() > 1 and t.shape[0] == layout.sequences for t in weights)


def tell_of_torch_ops(entry: Entry, loop: Loop, reads: Reads, sequences: Sequences) -> None:
    """Warn of a step that torch ops run where generated C was meant."""
    assert entry.ready is not None
    on_cpu = all(t.is_cpu for t in (*sequences.x_rows, *sequences.states))  # elsewhere torch ops are meant
    if not (entry.refusals and entry.ready.executor.in_torch and on_cpu):
        return
    refusal = reason_of(entry)
    if refusal.line is not None or isinstance(refusal, NotBuilt):  # not a dtype: the caller chose it
        tell_of(TorchOpsWarning, loop, reads, refusal)


def reason_of(entry: Entry) -> Unsupported:
    """Why no faster executor runs a step: what it cannot do, before what it does too slowly."""
    reasons = [refusal for _, refusal in entry.refusals]
    return next((r for r in reversed(reasons) if not isinstance(r, Slower)), reasons[-1])


def tell_of(kind: type[SlowPathWarning], loop: Loop, reads: Reads, refusal: Unsupported) -> None:
    tell(kind, loop.body.name, reads.root, refusal)


def tell(kind: type[SlowPathWarning], name: str, root: Any, refusal: Unsupported) -> None:
    """Warn of a step once, of the machine once for all steps. `root`: the code of the step."""
    step = () if isinstance(refusal, NoCompiler) else (root, name)
    key = (*step, refusal.reason)
    if isinstance(refusal, Slower) or key in _told:
        return
    if len(_told) > _LIMIT:
        _told.clear()
    _told.add(key)
    warnings.warn(kind(name, refusal), stacklevel=user_level())


def forget_told() -> None:
    """Warn of every step anew."""
    _told.clear()
