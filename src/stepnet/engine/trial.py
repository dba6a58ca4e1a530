"""A step tried on a few rows: what it reads, asks and draws."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.compiler.passes.rowwise_probe import ROWS
from stepnet.compiler.reads.undo import Snapshot, is_only_thread
from stepnet.compiler.trace.data_dependent import CLAIMED
from stepnet.compiler.trace.draws import Draw, drawn_in_order, kept
from stepnet.compiler.trace.iteration import iteration
from stepnet.compiler.trace.record import Trial, asks_for_gradient, has_own_backward, tried
from stepnet.compiler.trace.set_aside import without_compiled_autograd, without_hooks, without_modes
from stepnet.compiler.trace.untraced_constants import lost_tensor, may_be_constant
from stepnet.data.modes import draws_put_back, for_plans
from stepnet.data.storage import memory_of
from stepnet.data.tree import Spec
from stepnet.errors import Unsupported
from stepnet.interrupts import let_through
from stepnet.ir.loop import Loop

from .code_in_backward import InBackward
from .entries import Entry, Weights
from .reads import FailsOnSamples, Reads, ReadsChanged, read
from .rows import Sequences
from .self_check import versions


@contextlib.contextmanager
def apart(reads: Reads) -> Iterator[None]:
    """What is found in here outlives the modes and hooks it is found under, and draws nothing."""
    grad = torch.is_grad_enabled()
    with (
        for_plans(),
        torch.set_grad_enabled(grad),
        without_compiled_autograd(),
        without_hooks(),
        torch.autograd.set_detect_anomaly(False),
        without_modes(),
        kept(reads.reach.generators),
    ):
        yield


class Seen(NamedTuple):
    """What a body was seen to do on a few rows.

    Attributes:
        tensors: those that it reads.
        y_spec: the structure of y; None of an open body, whose key holds it.
        answers: what its Python asks of tensors.
        draws: from generators of its own.
        asks_captured: whether an answer follows from tensors of which its key does not tell the numbers.
        strides_matter: whether it may give something else of rows that lie otherwise in memory.
    """

    tensors: list[Tensor]
    y_spec: Spec | None
    answers: Sequence[Any]
    draws: list[Draw]
    asks_captured: bool
    strides_matter: bool


def try_on_rows(
    entry: Entry, snapshot: Snapshot, loop: Loop, reads: Reads, rows: Sequences, whole: Sequences
) -> Seen:
    """Try a body on a few rows. `whole`: the caller's.

    Raises:
        Unsupported: it fails, changes a tensor, does not do the same twice, or asks what later steps answer
            otherwise.
    """
    before = versions(reads.tensors)
    if reads.open is not None:
        seen = _recorded_again(reads, loop, rows)
        if asks_for_gradient(reads.whole):
            _check_wanted(loop, rows, whole, reads.reach.generators, None)
        entry.own_backward = has_own_backward(reads.whole)
    else:
        try:
            seen = _run_once(entry, loop, reads, rows, whole)
        except Unsupported:
            raise
        except Exception as error:
            let_through(error)
            raise FailsOnSamples(error) from error
    if before != versions(reads.tensors):
        raise Unsupported("the step changes a tensor it did not make, in place")
    entry.changes = frozenset() if snapshot.changed() else None
    return seen


def _recorded_again(reads: Reads, loop: Loop, rows: Sequences) -> Seen:
    """A body that no walk closes: it must ask torch for the same once more.

    Raises:
        Unsupported: it does not.
        ReadsChanged: another thread changes what it reads.
    """

    def record() -> Reads:
        return read(loop, rows.x_rows, rows.states, rows.shared)

    again = record()
    if again.refusal is not None:
        raise again.refusal.fresh()
    if again.whole != reads.whole:
        if not is_only_thread():  # what they change there and back is met again; chance is not
            known = [reads.whole, again.whole]
            for _ in range(4):
                key = record().whole
                if key in known:
                    raise ReadsChanged
                known.append(key)
        raise Unsupported(
            "the step does not do the same twice on the same rows",
            remedy="draw noise by torch, and hand in what changes as part of x",
        )
    if not all(a is b for a, b in zip(again.read, reads.read, strict=True)):
        raise Unsupported(
            f"the step reads a tensor that was made without a call that torch reports, by {reads.open}",
            remedy="make it by torch's functions, in Python that is not scripted; or backend='naive'",
        )
    return Seen(reads.read, None, again.answers, [], asks_captured=False, strides_matter=True)


def _run_once(entry: Entry, loop: Loop, reads: Reads, rows: Sequences, whole: Sequences) -> Seen:
    """A body whose key a walk tells, run; raises whatever that raises."""
    generators = reads.reach.generators
    with draws_put_back():
        x, states = rows.x_rows, rows.states
        before = [generator.get_state() for generator in generators]
        trial = tried(functools.partial(iteration, loop, x, states, rows.shared), [*x, *states], generators)
    _check_draws(trial.draws, generators, before)
    y_spec, *_ = trial.result
    if trial.wanted:
        _check_wanted(loop, rows, whole, generators, trial)
    entry.own_backward = trial.own_backward
    entry.in_backward = InBackward.of(trial.functions)
    draws = [draw for draw, _ in trial.draws]
    return Seen(trial.tensors, y_spec, trial.answers, draws, trial.asks_captured, trial.strides_matter)


def _check_wanted(
    loop: Loop, rows: Sequences, whole: Sequences, generators: Sequence[torch.Generator], first: Trial | None
) -> None:
    """Ask a body again whether its rows require a gradient: with states that do where those of later steps
    do, and where nothing is recorded with rows that do where the caller's do: their views still tell of it.

    Raises:
        Unsupported: it is told something else.
    """
    before = [generator.get_state() for generator in generators]

    def told(x: Sequence[Tensor], states: Sequence[Tensor]) -> Trial:
        return tried(functools.partial(iteration, loop, x, states, rows.shared), [*x, *states], generators)

    with draws_put_back():
        states = rows.states
        known = told(rows.x_rows, states) if first is None else first
        if not torch.is_grad_enabled():
            alike = [told(_wanting(rows.x_rows, whole.x_rows), _wanting(states, whole.states)).wanted]
        else:
            alike, now = [known.wanted], known
            for _ in states:
                if all(
                    a.requires_grad is b.requires_grad for a, b in zip(states, now.result[2], strict=True)
                ):
                    break
                states = _wanting(states, now.result[2])
                now = told(rows.x_rows, states)
                alike.append(now.wanted)
    for generator, state in zip(generators, before, strict=True):
        generator.set_state(state)
    if any(answers != known.wanted for answers in alike):
        raise Unsupported(
            "the step asks whether a row requires a gradient, which those of later steps may not do alike",
            remedy="ask torch.is_grad_enabled(), or a weight",
        )


def _wanting(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_(of.requires_grad) for t, of in zip(tensors, like, strict=True)]


def _check_draws(
    draws: Sequence[tuple[Draw, Tensor]], generators: Sequence[torch.Generator], before: Sequence[Tensor]
) -> None:
    """Draw anew what a step drew on its rows.

    Raises:
        Unsupported: it is not the same: the step sets a state of a generator, or uses it otherwise.
    """
    after = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, before, strict=True):
        generator.set_state(state)
    noise = drawn_in_order([draw for draw, _ in draws], generators, [ROWS])
    states = [generator.get_state() for generator in generators]
    alike = all(torch.equal(a, b) for a, (_, b) in zip(noise, draws, strict=True) if a.shape == b.shape)
    rows = all(a.shape == b.shape for a, (_, b) in zip(noise, draws, strict=True))
    if not rows:
        raise Unsupported(
            "what the step draws from its own generator does not have a row for each sequence",
            remedy="torch.rand(x.shape[0], ..., generator=g)",
        )
    if not alike or not all(map(torch.equal, after, states)):
        raise Unsupported(
            "the step uses its own generator for more than noise of its rows",
            remedy="seed it before the call; draw by torch.rand or torch.randn(x.shape[0], ..., generator=g)",
        )


def weights_of(tensors: Sequence[Tensor], reads: Reads, rows: Sequence[Tensor]) -> Weights:
    """The tensors that a body read on a few rows, found among those that it refers to."""
    places = {id(t): i for i, t in enumerate(reads.tensors)}
    lost = [tensor for tensor in tensors if id(tensor) not in places]
    alike = bool(lost) and not {*map(memory_of, lost)}.isdisjoint(map(memory_of, (*reads.tensors, *rows)))
    if not alike and reads.open is None:
        lost = [tensor for tensor in lost if not may_be_constant(tensor)]
        tensors = [tensor for tensor in tensors if id(tensor) in places or not may_be_constant(tensor)]
    if alike:
        raise Unsupported(
            "the step makes one tensor from another by a call that torch does not report",
            remedy="leave out Variable(t), nn.Parameter(t) and t.as_subclass(); t.detach() has no gradient",
        )
    if lost:
        raise lost_tensor()
    grad = torch.is_grad_enabled()
    return [(places[id(t)], t, grad and t.requires_grad) for t in tensors]


def untaken(seen: Seen, reads: Reads, weights: Weights) -> Weights:
    """What a body may read besides on a way that no sample row took."""
    if reads.open is not None or not any(answer is claim for answer in seen.answers for claim in CLAIMED):
        return []
    known, grad = {place for place, *_ in weights}, torch.is_grad_enabled()
    others = enumerate(reads.tensors if reads.inputs is None else reads.read)
    return [(i, t, grad and t.requires_grad) for i, t in others if i not in known and not t.is_meta]
