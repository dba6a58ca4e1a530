"""A graph of a file as one function: what torch was asked for in a call of a kind, and nothing between.

    Shape -> Gather -> Equal -> If(Squeeze | Identity) -> Reshape -> Add     ->     t = reshape(x, [1, 128])
                                                                                    return add(t, c)

The second call of a kind runs node by node as the first did, and each function of torch that it calls is
noted. What depends on sizes and on constants alone is then known, and so is what the graph decided by it,
as long as those constants are not changed; parameters are read anew in each call. A loop, or another node
that reads numbers of its inputs, stays a call of that node; a branch is taken as it was, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from stepnet.data.bounded_cache import Bounded
from stepnet.data.modes import sees_saved_tensors
from stepnet.data.recording import LeftByRuns
from stepnet.data.tensor_guards import alike
from stepnet.errors import StepnetError
from stepnet.executors.line import Otherwise

from .recording import Function, Recorder, Unprepared
from .repeated_calls import Again, modes, nothing_watches

# What torch raises for inputs that an operator does not take.
ERRORS = (RuntimeError, ValueError, IndexError, TypeError, OverflowError, ArithmeticError, AssertionError,
          AttributeError, KeyError, MemoryError)  # fmt: skip
_PLAIN = (Tensor, nn.Parameter)
_MOST_KINDS = 64  # of calls, that one graph remembers
_MOST_TRIED = 4  # of more functions than these, none is waited for longer
_MOST_WAYS = 4  # through the branches of a graph, that one kind of call remembers


class Plain(Protocol):
    """A graph that runs node by node."""

    @property
    def captured(self) -> Sequence[Any]:
        """What it reads besides its inputs."""
        ...

    @property
    def constants(self) -> Collection[Any]:
        """Of that, the constants of the file."""
        ...

    def plainly(self, arguments: Sequence[Any], around: Mapping[Any, Any], recorder: Recorder | None) -> Any:
        """Its outputs; each node is called by `recorder.call` if there is one."""


def plainly_fed(values: Iterable[Any]) -> bool:
    """Whether a call is one of tensors with data, that nothing traces or watches."""
    for value in values:
        if type(value) not in _PLAIN or not value.is_cpu:
            return False
    return nothing_watches()


class _Last(NamedTuple):
    """The call before: its modes, whether tensors look as its inputs did, and its kind."""

    modes: tuple[Any, ...]
    alike: Callable[..., bool]
    kind: Any


class Prepared(LeftByRuns):
    """The functions of a graph, one for each kind of call."""

    asked_by = frozenset()  # what it computes is what the graph does

    def __init__(self) -> None:
        # by the kind of a call, one for each way through branches; None: it runs node by node
        self._functions = Bounded[Any, list[Function] | None](_MOST_KINDS)
        self._last: _Last | None = None
        self._again: Again | None = None
        self._copies: dict[Any, Tensor] = {}  # of constants whose numbers are part of a function

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        return Prepared()

    def __reduce__(self) -> Any:
        return Prepared, ()

    def again(self, graph: Plain, arguments: Sequence[Any], around: Mapping[Any, Any]) -> Any:
        """The outputs in a call like the one before; None: it is not, or nothing is known of that."""
        again = self._again
        constants = None if again is None else again.fed(arguments, around)
        if again is None or constants is None:
            return None
        try:
            return again.run(arguments, constants)
        except Otherwise:
            return self.run(graph, arguments, around, again.function)
        except (StepnetError, *ERRORS):
            return self._node_by_node(graph, arguments, around, again.kind)

    def forget_last(self) -> None:
        """Have the next call be like none before."""
        self._again = None

    def run(
        self, graph: Plain, arguments: Sequence[Any], around: Mapping[Any, Any], ended: Function | None = None
    ) -> Any:
        """The outputs of a graph for its inputs and what it captures; `plainly_fed` with the inputs.

        Args:
            graph: it.
            arguments, around: those.
            ended: a function that was tried, and takes another branch.
        """
        now, last = modes(), self._last
        if last is not None and last.modes == now and last.alike(*arguments):
            kind = last.kind
        else:
            ids = [*map(id, arguments)]
            kind = (
                tuple(map(ids.index, ids)),  # one tensor may be several inputs
                *now,
                *((t.shape, t.stride(), t.dtype, t.requires_grad) for t in arguments),
            )
            self._last = _Last(now, alike(arguments), kind) if arguments else None
        functions = self._functions.get(kind, ())
        for function in functions or ():
            constants = None if function is ended else function.constants_of(around)
            if constants is None:
                continue
            try:
                out = function.run(*arguments, *constants)
            except Otherwise:
                continue
            except (StepnetError, *ERRORS):  # which the nodes tell better, one by one
                return self._node_by_node(graph, arguments, around, kind)
            self._remember(kind, now, function, arguments, around)
            return out
        if functions is None or not plainly_fed(around[value] for value in graph.captured):
            return graph.plainly(arguments, around, None)
        # a checkpoint's second run is a second call, and is to save what the first one did
        if kind not in self._functions and not sees_saved_tensors():
            self._functions[kind] = []
            return graph.plainly(arguments, around, None)
        captured = {key: around[key] for key in graph.captured}
        fit = [function for function in functions if function.constants_of(around) is not None]
        recorder = Recorder(arguments, captured, graph.constants, self._copies)
        out = graph.plainly(arguments, around, recorder)
        try:
            after = 8 ** min(sum(map(len, filter(None, self._functions.values()))), _MOST_TRIED)
            self._functions[kind] = [recorder.function(out, after), *fit][:_MOST_WAYS]
        except Unprepared:
            self._functions[kind] = None
        return recorder.handed(out)

    def _node_by_node(
        self, graph: Plain, arguments: Sequence[Any], around: Mapping[Any, Any], kind: Any
    ) -> Any:
        """The outputs of a call, and of all of its kind from now on, without a function."""
        out = graph.plainly(arguments, around, None)
        self._functions[kind], self._again = None, None
        return out

    def _remember(
        self, kind: Any, now: tuple[Any, ...], function: Function, arguments: Sequence[Tensor],
        around: Mapping[Any, Any],
    ) -> None:  # fmt: skip
        """Have calls like this one run its function at once."""
        if function.again is None and arguments and function.run.settled() is not None:
            function.again = Again(kind, now, function, arguments, around)
        self._again = function.again
