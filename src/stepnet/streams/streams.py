"""Streams: sequences that arrive in chunks, run by a module that is written for whole ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from numbers import Real
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.api import Recurrent
from stepnet.data.arguments import brief, function, whole
from stepnet.data.attributes import attribute, begins_by_itself
from stepnet.data.in_graph import by_python
from stepnet.data.modes import traced, transforms_active
from stepnet.errors import StreamError, UnknownStream
from stepnet.front.step import step_name
from stepnet.locks import Lock

from .chunks import joined, parted
from .cuts import Cuts
from .keeper import Keeper
from .known_recurrences import check, of_kept, recurrences_of
from .states import States
from .warm_pushes import WarmPush


@dataclass
class _Open:
    """An open stream: its place, whether it had rows, when it was last pushed to."""

    slot: int
    begun: bool
    used: float


def stream(
    module: Callable[[Any], Any], *, max_streams: int | None = None, idle_seconds: float | None = None
) -> Stream:
    """Run a module over sequences that arrive in chunks; see `Stream` for what it may be and what it does.

    >>> from stepnet import cells
    >>> live = stream(Recurrent(cells.GRU(3, 4), backend="naive"), max_streams=100)
    >>> a, b = live.open(), live.open("b")
    >>> out = live.push({a: torch.zeros(2, 3), b: torch.zeros(5, 3)})
    >>> out[a].shape, live.push({b: torch.zeros(1, 3)})["b"].shape
    (torch.Size([2, 4]), torch.Size([1, 4]))
    >>> live.close(a)
    >>> live.ids
    ['b']
    """
    return Stream(module, max_streams=max_streams, idle_seconds=idle_seconds)


class Stream:
    """A module and the states of the streams that are open; made by `stepnet.stream`.

    However streams are cut into pushes, the outputs are those of whole sequences::

        whole = module(LoDTensor.from_sequences([rows]))[0]
        cut = torch.cat([stream.push({id: chunk})[id] for chunk in rows.split(k)])
        assert torch.equal(whole, cut)  # but for rounding

    A push is one call of the module, on one LoDTensor of the chunks, with gradients off. What its recurrences
    leave is kept, a row per stream, and the next push starts there; recurrences inside a step, and over the
    inner levels of nested chunks, lie within a push. A push that fails leaves all streams as they were.
    Pushes of several threads run one after the other.

    Args:
        module: a module, or a function, of one LoDTensor, or of the nesting of them that the chunks have. It
            gives LoDTensors with a row for each row; of a tuple `(y, states)`, y. It may hold any number of
            recurrences that run forwards, by `recurrent` or what is made of it, and layers that treat every
            row alike; a push warns of what it sees meet the edges of chunks, as a convolution does. Dropout
            draws as it does elsewhere: see `module.eval()`.
        max_streams: how many may be open at once; None: any number.
        idle_seconds: a stream that got no push for so long is closed when one is opened or pushed to.

    Raises:
        StreamError: the module runs backwards, or holds a torch.nn recurrence, whose state is not seen.

    >>> from stepnet import recurrent
    >>> def summed(x):
    ...     return recurrent(lambda x, s: (s + x, s + x), x, torch.zeros(len(x), 1), backend="naive")
    >>> sums = Stream(summed)
    >>> a = sums.open()
    >>> sums.push({a: torch.ones(3, 1)})[a].flatten(), sums.push({a: torch.ones(1, 1)})[a].flatten()
    (tensor([1., 2., 3.]), tensor([4.]))
    >>> kept = sums.state_dict()  # where the stream stands, for torch.save
    >>> sums.reset(a)
    >>> sums.push({a: torch.ones(1, 1)})[a].flatten()
    tensor([1.])
    >>> sums.load_state_dict(kept)
    >>> sums.push({a: torch.ones(1, 1)})[a].flatten()
    tensor([5.])
    """

    def __init__(
        self,
        module: Callable[[Any], Any],
        *,
        max_streams: int | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        _check(module)
        if max_streams is not None:
            max_streams = whole("stream: 'max_streams'", max_streams, 1, error=StreamError)
        real = isinstance(idle_seconds, Real) and not isinstance(idle_seconds, bool)
        if idle_seconds is not None and not (real and idle_seconds > 0):
            raise StreamError(
                "stream: 'idle_seconds' must be None or seconds above 0", got=repr(idle_seconds)
            )
        self.module = module
        self.max_streams = max_streams
        self.idle_seconds = idle_seconds
        self._states = States()
        self._open: dict[Hashable, _Open] = {}
        self._free: list[int] = []
        self._rows = 0  # of the tables, free ones too
        self._next = 0  # the id that `open` tries first
        self._lock = Lock(self._forked)  # the module may ask which streams are open
        self._pushing = False
        self._cuts = Cuts()  # until they told
        self._warm: WarmPush | None = None  # of the last push

    @property
    def ids(self) -> list[Hashable]:
        """The open streams, in the order they were opened."""
        with self._lock:
            return list(self._open)

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def __contains__(self, id: Hashable) -> bool:
        return id in self._open

    @by_python("streams keep states in Python")
    def open(self, id: Hashable | None = None) -> Hashable:
        """Open a stream and return its id: the one that is passed, or else a number.

        Raises:
            StreamError: the id is open or cannot be hashed, or no more streams may be.
        """
        _check_id(id)
        with self._lock:
            self._close_idle()
            if id is None:
                while self._next in self._open:
                    self._next += 1
                id = self._next
                self._next += 1
            elif id in self._open:
                raise StreamError(
                    f"stream {id!r} is open", remedy="reset(id) starts it anew, close(id) ends it"
                )
            if self.max_streams is not None and len(self._open) >= self.max_streams:
                raise StreamError(
                    "no more streams may be open",
                    got=f"{len(self._open)} open",
                    expected=f"max_streams={self.max_streams}",
                    remedy="close(id) those that have ended",
                )
            slot = self._free.pop() if self._free else self._rows
            self._rows = max(self._rows, slot + 1)
            self._open[id] = _Open(slot, False, monotonic())
            return id

    @by_python("streams keep states in Python")
    def close(self, id: Hashable) -> None:
        """End a stream; its place is free for another.

        Raises:
            UnknownStream: it is not open.
        """
        _check_id(id)
        with self._lock:
            self._free.append(self._found(id).slot)
            del self._open[id]

    @by_python("streams keep states in Python")
    def reset(self, id: Hashable) -> None:
        """Let a stream start anew, from the initial states, at its next push.

        Raises:
            UnknownStream: it is not open.
        """
        _check_id(id)
        with self._lock:
            found = self._found(id)
            # a record of its own: a push whose module asks for this ends with those that it began with
            self._open[id] = _Open(found.slot, False, monotonic() if self._pushing else found.used)

    @by_python("streams keep states in Python")
    def push(self, chunks: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The outputs for the next rows of some streams, by their ids.

        Args:
            chunks: of each stream, [rows, ...], or a LoDTensor of the sequences that its next elements are;
                or a nesting of them, the same for all. Lengths may differ, and be 0.

        Raises:
            UnknownStream: a stream is not open.
            StreamError: the chunks are no mapping, or not alike, or the module cannot be run chunk by chunk.

        Warns:
            StreamWarning: once, if the module gives other results for pieces of its first rows than for them
                at once.
        """
        alone: Any = torch.compiler.disable(self._push) if torch.compiler.is_compiling() else self._push
        return alone(chunks)

    def _push(self, chunks: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        if type(chunks) is not dict and not isinstance(chunks, Mapping):
            raise StreamError(
                "push takes the next rows of each stream",
                got=type(chunks).__name__,
                expected="{id: rows, ...}",
            )
        with self._lock:
            if self._warm is not None:
                found = self._pushed_warm(chunks)
                if found is not None:
                    return found
            if traced() or transforms_active():
                raise StreamError(
                    "a push keeps states that have numbers: it is not traced, nor transformed by torch.func",
                    remedy="trace or transform the module on whole sequences",
                )
            self._close_idle()
            streams = [self._found(id) for id in chunks]
            if not streams:
                return {}
            begun = [each.begun for each in streams]
            first = not (begun[0] or any(each.begun for each in self._open.values()))
            states = States() if first else self._states
            with _plain_tensors():
                x, levels, lengths = joined(chunks)
                keeper = Keeper(states, tuple([each.slot for each in streams]), begun, levels)

                def push() -> Any:
                    return parted(keeper.answer(self.module, x), levels[0], lengths, self.module)

                if self._pushing:
                    raise StreamError(
                        "the module pushes to the stream that it is run by",
                        remedy="stepnet.stream(module) opens another, for another module",
                    )
                self._pushing = True
                try:
                    out = self._cuts.beside(push, self.module, chunks, x) if self._cuts.wait else push()
                finally:
                    self._pushing = False
                keeper.done()
            now, self._states = monotonic(), states
            for each in streams:
                each.begun, each.used = True, now
            if len(out) == 1 and not self._cuts.wait and keeper.by_plans() and type(out[0]) is Tensor:
                self._warm = WarmPush(streams[0], keeper, x)
            return dict(zip(chunks, out, strict=True))

    def _pushed_warm(self, chunks: Mapping[Hashable, Any]) -> dict[Hashable, Any] | None:
        """What `push` gives for one stream, if it is the one of the last push, and this one is like that."""
        warm, self._warm = self._warm, None
        if warm is None or len(chunks) != 1 or self._pushing:
            return None
        self._close_idle()
        ((id, rows),) = chunks.items()
        stream = warm.stream
        if self._open.get(id) is not stream:
            return None
        self._pushing = True
        try:
            y = warm.push(self.module, rows)
        finally:
            self._pushing = False
        if y is None:
            return None
        stream.used, self._warm = monotonic(), warm
        return {id: y}

    def state_dict(self) -> dict[str, Any]:
        """The open streams and their states, for `torch.save`; not the module. It is of lists, dicts and
        tensors, as far as ids and states are, so that `torch.load` reads it as it is."""
        with self._lock:
            with _plain_tensors():
                recurrences = self._states.all_of(tuple([each.slot for each in self._open.values()]))
            return {
                "ids": list(self._open),
                "begun": [each.begun for each in self._open.values()],
                "recurrences": recurrences,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Open the streams that another `Stream` of this module had open, as it left them; close all others.

        Raises:
            StreamError: there are more than `max_streams`, or it is no state of a `Stream`, or that of
                another module, as far as that is known without a push, or the module asks for it in a push;
                nothing changes.
        """
        try:
            ids, begun = list(state["ids"]), [bool(each) for each in state["begun"]]
            states = States()
            with _plain_tensors():
                states.load(tuple(range(len(ids))), state["recurrences"])
            now = monotonic()
            streams = {id: _Open(k, b, now) for k, (id, b) in enumerate(zip(ids, begun, strict=True))}
            if len(streams) < len(ids):
                raise ValueError("an id is there twice")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise StreamError(
                "this is no state of a stream",
                got=f"{type(error).__name__}: {error}",
                expected="its state_dict()",
                remedy="load_state_dict(stream.state_dict()), the stream of a module of the same steps",
            ) from error
        if self.max_streams is not None and len(ids) > self.max_streams:
            raise StreamError(
                "no more streams may be open",
                got=len(ids),
                expected=f"max_streams={self.max_streams}",
                remedy="stepnet.stream(module, max_streams=...) of as many; close(id) before state_dict()",
            )
        with self._lock:
            if self._pushing:
                raise StreamError(
                    "the module loads the states of the stream that it is run by",
                    remedy="load_state_dict(...) before a push or after it",
                )
            begun = any(each.begun for each in self._open.values())
            with _plain_tensors():
                check([*map(of_kept, self._states.calls)] if begun else None, states.calls)
                check(recurrences_of(self.module), states.calls)
            self._states, self._free, self._rows, self._open = states, [], len(ids), streams

    def __getstate__(self) -> dict[str, Any]:
        own = {"module": self.module, "max_streams": self.max_streams, "idle_seconds": self.idle_seconds}
        return {**own, "streams": self.state_dict(), "next": self._next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Stream.__init__(
            self, state["module"], max_streams=state["max_streams"], idle_seconds=state["idle_seconds"]
        )
        self._next = state["next"]
        self.load_state_dict(state["streams"])

    def _forked(self, held: bool) -> None:
        """Be as before the push of a thread that is not there."""
        if held:
            self._pushing, self._warm = False, None

    def _found(self, id: Hashable) -> _Open:
        found = self._open.get(id)
        if found is None:
            idle = "" if self.idle_seconds is None else f", or had no push for {self.idle_seconds} seconds"
            raise UnknownStream(
                f"stream {id!r} is not open",
                got=f"{len(self._open)} open streams",
                remedy=f"it was never opened, or was closed{idle}: open(id)",
            )
        return found

    def _close_idle(self) -> None:
        if self.idle_seconds is None:
            return
        last = monotonic() - self.idle_seconds
        for id, each in [(id, each) for id, each in self._open.items() if each.used < last]:
            self._free.append(each.slot)
            del self._open[id]


class _WithoutGradients:
    """`torch.no_grad()`, in a third of the time."""

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self.before)


def _plain_tensors() -> AbstractContextManager[Any]:
    """In here, what is kept is made: without gradients, and to be written to outside of inference mode."""
    if not torch.is_inference_mode_enabled():
        return _WithoutGradients()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def _check(module: Any) -> None:
    function("stream: 'module'", module, "a module, or a function of a LoDTensor", error=StreamError)
    parts = module.modules() if isinstance(module, nn.Module) else ()
    for part in parts:
        if isinstance(part, nn.RNNBase):
            raise StreamError(
                f"the module holds a torch.nn.{type(part).__name__}, which keeps no state between chunks",
                remedy=f"stepnet.nn.{type(part).__name__} has the same parameters",
            )
        if (isinstance(part, Recurrent) and part.reverse) or attribute(part, "bidirectional") is True:
            raise StreamError(
                f"the module holds a {type(part).__name__} that runs backwards, from the end of sequences "
                "that have not ended",
                remedy="a bidirectional module needs whole sequences; stream one that runs forwards",
            )
    if begins_by_itself(module) or isinstance(module, nn.RNNCellBase):
        raise StreamError(
            f"'{step_name(module)}' is a step, which runs one row of each stream",
            remedy="stream(Recurrent(step))",
        )


def _check_id(id: Any) -> None:
    try:
        hash(id)
    except TypeError:
        raise StreamError(
            "the id of a stream must be hashable",
            got=brief(id),
            remedy="a number, a text, a tuple of those",
        ) from None
