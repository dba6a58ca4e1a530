"""Calls that stand in a traced module as one node each: noted as they are run, found again by number.

A module is run once for real, and once more to be traced. A recorder answers for the calls of its kind in the
first run, a tracer in the second, one call after the other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.utils.rnn import PackedSequence

from stepnet.checks import checked
from stepnet.compiler.reads.reach import reach
from stepnet.data.tree import unflatten
from stepnet.errors import IRError
from stepnet.watchers import PACKED, Instead

from .graph import Target

_CALLS: dict[int, Any] = {}
_numbers = itertools.count()


def traced_op(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an operator that stands in a trace for a call, of a function that gives tensors like its results.

    torch 2.6 cannot read a schema from `list[Tensor]`.
    """

    def made(shapes: Callable[..., Any]) -> Callable[..., Any]:
        def run(*_: Any) -> Any:
            raise RuntimeError(f"a {shapes.__name__} of a traced module is written, not run")

        op = torch.library.custom_op(f"stepnet::{shapes.__name__}", run, mutates_args=(), schema=schema)
        op.register_fake(lambda *given: _all_seen(shapes(*given)))
        return shapes

    return made


def _all_seen(made: Any) -> Any:
    """Let go of sizes left open for what happens inside: torch asks for each of them in what is made."""
    sizes: Any = torch.library.get_ctx()
    if sizes._shape_env is not None:
        seen, left = free_unbacked_symbols(made), sizes._shape_env.pending_fresh_unbacked_symbols
        left[:] = [size for size in left if size in seen]
    return made


def call_of(number: int) -> Any:
    """The call that a node of a traced graph stands for."""
    return _CALLS[number]


class Recorder:
    """Answers for the calls of one kind by running them, and keeps what they were given."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.calls: list[int] = []

    def keep(self, call: Any) -> None:
        """Give a call its number."""
        number = next(_numbers)
        _CALLS[number] = call
        self.calls.append(number)

    def forget(self) -> None:
        """Let go of what was kept."""
        for number in self.calls:
            for inner in calls_inside(_CALLS.pop(number, None)):
                inner.forget()


class Tracer:
    """Answers for the same calls by nodes of the traced graph. `what` says that there are more of them."""

    what: str

    def __init__(self, calls: Sequence[int]) -> None:
        self.waiting = list(calls)

    def next(self) -> tuple[int, Any]:
        """Number and record of the call at hand."""
        if not self.waiting:
            raise IRError(
                f"the module {self.what} when it is traced",
                got="another call than the module made on its example",
                expected="the same calls each time it runs",
                remedy="let no state that outlives a call decide which recurrences run",
            )
        number = self.waiting.pop(0)
        return number, _CALLS[number]


def over_packed(answer: Instead, step: Any, x: Any, state: Any, **how: Any) -> Any:
    """What a recurrence gives over what the module itself packed: `answer` runs it over padded rows. None: it
    was not packed there."""
    packed = PACKED.get() if isinstance(x, PackedSequence) else None
    if packed is None:
        return None
    return packed(x, state, lambda rows, state: answer(step, rows, state, axis=1, **how), 0)


class AsLoop(Instead):
    """Answers for a call of `recurrent` as for the loop that it is."""

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        out = over_packed(self, step, x, state, reverse=reverse, level=level, scopes=scopes)
        if out is not None:
            return out
        with unanswered():
            body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
        out = self.loop(*body.as_loop(x_leaves, state_leaves, reverse=reverse, level=level, axis=axis))
        return out["y"], unflatten(body.state_spec, [out[name] for name in body.new_state_names])


Lengths = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of call: how something is made to answer for it, and what notes and traces it."""

    answered: Callable[[Any], AbstractContextManager[None]]
    recorder: Callable[[Target], Recorder]
    tracer: Callable[[Sequence[int], Lengths], Tracer]


KINDS: list[Kind] = []


@contextlib.contextmanager
def answered(by: Iterable[tuple[Kind, Any]]) -> Iterator[None]:
    """Let these answer for the calls of their kinds in here."""
    with contextlib.ExitStack() as stack:
        for kind, who in by:
            stack.enter_context(kind.answered(who))
        yield


def unanswered() -> AbstractContextManager[None]:
    """Let the calls that are made in here run as they are."""
    return answered((kind, None) for kind in KINDS)


class Calls:
    """The calls of a piece of code, those of each kind in their order."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.recorders = [kind.recorder(target) for kind in KINDS]

    def noted(self) -> AbstractContextManager[None]:
        """Note the calls that are made in here."""
        return answered(zip(KINDS, self.recorders, strict=True))

    def traced(self, lengths: Lengths) -> AbstractContextManager[None]:
        """Answer for the same calls by nodes. `lengths` gives those of a LoDTensor's sequences."""
        pairs = zip(KINDS, self.recorders, strict=True)
        return answered((kind, kind.tracer(recorder.calls, lengths)) for kind, recorder in pairs)

    def numbers(self) -> list[int]:
        """The numbers of all calls."""
        return [number for recorder in self.recorders for number in recorder.calls]

    def forget(self) -> None:
        """Let go of what was noted."""
        for recorder in self.recorders:
            recorder.forget()


def calls_inside(call: Any) -> tuple[Calls, ...]:
    """What the body of a loop was noted to call."""
    inner = getattr(call, "inner", None)
    noted = (*(inner if isinstance(inner, tuple) else (inner,)), *getattr(call, "again", ()))
    return tuple(calls for calls in noted if calls is not None)


def noted_calls(target: Target, run: Callable[[], Any]) -> Calls:
    """The calls that a body makes as it runs."""
    calls = Calls(target)
    with torch.no_grad(), calls.noted():
        run()
    return calls


class Places(NamedTuple):
    """Where tensors stand among all that code meets, and of what kinds those are as far as the last of them.

    Each stands as often as it is met: of one tensor that is two in a trace no other comes to stand elsewhere.
    """

    at: Sequence[int]
    kinds: Sequence[tuple[torch.dtype, int]]


def places_of(
    read: Sequence[Tensor], code: Callable[..., Any], what: str, reader: str = "it", owner: str = "body"
) -> Places:
    """The place of each tensor that `code` reads among all that it meets: a trace finds them there again.

    The other words are what a user calls that.

    Raises:
        IRError: one of them is not found from `code`.

    >>> import torch
    >>> a, b = torch.ones(1), torch.ones(1)
    >>> places_of([b], lambda x: x * a + b, "the step").at
    [1]
    """
    met = reach(code, everything=True).met_tensors
    place: dict[int, int] = {}
    for i, tensor in enumerate(met):
        place.setdefault(id(tensor), i)
    if any(id(t) not in place for t in read):
        raise _lost(what, reader, owner)
    at = [place[id(t)] for t in read]
    return Places(at, [*map(_kind, met[: 1 + max(at, default=-1)])])


def at_places(
    places: Places, code: Callable[..., Any], what: str, reader: str = "it", owner: str = "body"
) -> list[Tensor]:
    """In a trace, the tensors that stand at the places of others among all that `code` meets.

    Raises:
        IRError: it meets others.
    """
    now = reach(code, everything=True).met_tensors
    if [*map(_kind, now[: len(places.kinds)])] != places.kinds:
        raise _lost(what, reader, owner)
    return [now[p] for p in places.at]


def _kind(tensor: Tensor) -> tuple[torch.dtype, int]:
    return tensor.dtype, tensor.dim()


def _lost(what: str, reader: str, owner: str) -> IRError:
    return IRError(
        f"{what} cannot be written: {reader} reads a tensor that was not found again",
        remedy=f"keep it in a closure, an attribute or a module that the {owner} refers to; an array that a "
        "loop reads, in one of create_whileloop",
        got=reader,
        expected=f"tensors that the {owner} refers to",
    )
