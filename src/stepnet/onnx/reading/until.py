"""A Loop that its body ends, by blocks of steps in generated C.

    while go: go, h = body(n, h)     ->     16 steps of:  new = body(n, h);  h = new if go else h;  ...

The steps of a block that come after the end change nothing. The next call begins with a block as long as the
loop was; a loop of a few steps is not worth a plan, and the first call of a kind tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from stepnet.errors import StepnetError, Unsupported
from stepnet.executors.setting import check_backend
from stepnet.file_model import ERRORS, LoopReport, plainly_fed

from .branches import both_ways
from .info import Info
from .scan_rows import ScanLoop

if TYPE_CHECKING:
    from .graph import Graph

_LEAST, _MOST = 16, 4096  # steps of a loop that is worth a plan; and of a block
_MOST_KINDS = 64  # of calls that are remembered


class OwnEnd:
    """The body of such a Loop as a step of rows, of which there is one: the whole batch. Its states are
    whether the loop goes on, the number of the step, and what is carried."""

    def __init__(self, body: Graph) -> None:
        self.body = body
        self.captured = body.captured

    @property
    def content(self) -> str:
        """All that tells it from others but the numbers of what it captures."""
        return f"own end {self.body.content}"

    def run(self, arguments: Sequence[Any], around: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The new states, and what is joined."""

        def one(going: Tensor, number: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            again, *results = self.body.run((number, going, *state), around)
            if again.numel() != 1 or again.dtype is not torch.bool:
                raise Unsupported("the condition of its body is no truth value")
            new = results[: len(state)]
            for old, value in zip(state, new, strict=True):
                if (old.shape, old.dtype) != (value.shape, value.dtype):
                    raise Unsupported("a state changes its shape or its type")
            kept = (torch.where(going, value, old) for value, old in zip(new, state, strict=True))
            number = torch.where(going, number + 1, number)
            return going & again.reshape(()), number, *kept, *results[len(state) :]

        with both_ways():
            return torch.func.vmap(one)(*arguments)


class Begun(NamedTuple):
    """A Loop after some blocks: how many steps, whether it goes on, its states, and the tables of what is
    joined, each in parts."""

    steps: int
    going: bool
    state: Sequence[Tensor]
    tables: Sequence[list[Tensor]]


class OwnEndLoop:
    """Runs such a Loop as far as blocks go.

    Args:
        node: the Loop.
        body: its graph.
        states: how many are carried.
        joined: how many results are joined.
    """

    def __init__(self, node: Info, body: Graph, states: int, joined: int) -> None:
        self.reports, self.joined = LoopReport(node.where), joined
        self.reason = None
        if not _branches_alone(body):
            self.reason = "its body holds a loop"
        elif body.inputs[1] in {*body.outputs, *(value for step in body.steps for value in step.inputs)}:
            self.reason = "its body reads its condition"
        name = node.node.name or "Loop"
        self.scan = ScanLoop(OwnEnd(body), name, states + 2, [], [(0, 0)] * joined, self.reports, self.reason)
        self.captured = body.captured
        self._last: dict[Any, int | None] = {}  # steps of the last call of a kind; None: blocks do not run it

    def begin(
        self, most: int | None, state: Sequence[Any], around: Mapping[Any, Any]
    ) -> tuple[Begun, Callable[[int], None] | None]:
        """What blocks of steps come to, no step where they do not pay or do not run the loop; and what is to
        be told how many steps the loop had in the end.

        Args:
            most: how many steps; None: any number.
            state: what is carried.
            around: what the body captures.
        """
        begun = Begun(0, True, state, [[] for _ in range(self.joined)])
        fed = (*state, *(around[value] for value in self.captured))
        if not plainly_fed(fed):
            return begun, None
        why_not = self.reason
        if why_not is None and torch.is_grad_enabled() and any(value.requires_grad for value in fed):
            why_not = "it has to give gradients, and its body ends it"
        if why_not is not None:
            self.reports.declined(why_not)
            return begun, None
        kind = check_backend(None), torch.is_autocast_enabled("cpu"), *((v.shape, v.dtype) for v in state)
        size = rounded(self._last.get(kind, 0))
        if size is None:
            return begun, None
        if not size:
            self.reports.declined(f"no call before had {_LEAST} steps")
        while size and begun.going and (most is None or begun.steps < most):
            steps = size if most is None else min(size, most - begun.steps)
            try:
                further = self._block(steps, begun, fed[len(state) :])
            except (StepnetError, *ERRORS) as problem:  # of a step after the end, which is none of the loop's
                self.reports.declined(f"a block of its steps fails: {problem}".splitlines()[0])
                further = None
            if further is None:
                self._last[kind] = None
                return begun, None
            begun, size = further, min(2 * size, _MOST)
        return begun, partial(self._note, kind)

    def _note(self, kind: Any, steps: int) -> None:
        while len(self._last) >= _MOST_KINDS and kind not in self._last:
            self._last.pop(next(iter(self._last)), None)
        self._last[kind] = steps

    def _block(self, steps: int, begun: Begun, captured: Sequence[Tensor]) -> Begun | None:
        """The loop after so many steps more, at most; None: they are not compiled."""
        body, number = self.scan.body, torch.full((1,), begun.steps, dtype=torch.int64)
        states = (torch.ones(1, dtype=torch.bool), number, *(value.unsqueeze(0) for value in begun.state))
        feeds = dict(zip(body.parameters, (*states, *captured), strict=True))
        out = self.scan.compiled(feeds, steps=steps)
        if out is None:
            return None
        going, number, *values = (out[name] for name in body.results)
        done, count = int(number), len(begun.state)
        for table, rows in zip(begun.tables, values[count:], strict=True):
            table.append(rows[: done - begun.steps, 0])
        return Begun(done, bool(going), [value.squeeze(0) for value in values[:count]], begun.tables)


def _branches_alone(graph: Graph) -> bool:
    """Whether no node of a graph holds another one but branches."""
    inner = [(step.info.node.op_type, body) for step in graph.steps for body in step.info.bodies.values()]
    return all(kind == "If" and _branches_alone(body) for kind, body in inner)


def rounded(steps: int | None) -> int | None:
    """The steps of a first block, where the loop had so many last time: some more; none of a short loop.

    >>> rounded(15), rounded(16), rounded(100), rounded(1000)
    (0, 32, 112, 1024)
    """
    if steps is None or steps < _LEAST:
        return steps and 0
    unit = max(_LEAST, 1 << (steps.bit_length() - 4))
    return min((steps // unit + 1) * unit, _MOST)
