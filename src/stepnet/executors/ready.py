"""A plan made ready for an executor, and what is known of all its calls."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from stepnet.data.bounded_cache import Bounded
from stepnet.data.dtypes import dtype_of
from stepnet.data.modes import Around
from stepnet.errors import Unsupported
from stepnet.ir.plan import LoopPlan, Plan, Region

from .base import Executor
from .layout import Layout
from .loop import PreparedLoop, Scan

_FEW = 4  # rows at a step
_MOST_KINDS = 64  # of calls, of which one plan remembers what they ask for


class Asked(NamedTuple):
    """Which inputs get a gradient; and which of the backward loop's values that takes, None: all."""

    has: list[bool]
    wanted: frozenset[str] | None


class Sources(NamedTuple):
    """Where a backward loop finds what it reads: places among the inputs, then the rows of y, then `extra`.

    `held`: states that no step changes, with the type that the loop carries them in;
    `shifted`: states that it reads one step earlier, with the place of the rows and of the boot value;
    `tangents`: by the place of the result, with the place of a tensor like it, and the type that the loop
    carries it in (None: rows).
    """

    values: tuple[tuple[str, int], ...]
    held: tuple[tuple[str, torch.dtype], ...]
    shifted: tuple[tuple[str, int, int], ...]
    tangents: tuple[tuple[str, int, int, torch.dtype | None], ...]

    @classmethod
    def of(cls, ready: Ready, inputs: int) -> Sources:
        """Those of a call with so many inputs; constants have no place."""
        plan = ready.plan
        at = {name: k for k, name in enumerate(ready.names[:inputs])}
        result = {name: inputs + k for k, name in enumerate(plan.y)}
        extra = {name: inputs + len(plan.y) + k for k, name in enumerate(ready.extra)}
        shifted = {name for name in plan.kept if name in plan.shifted and name not in extra}
        places = {name: at[name] for name in plan.weights if name in at}
        known = at | result | extra
        places |= {name: known[name] for name in plan.kept if name in known and name not in shifted}
        new = dict(zip(plan.states, plan.new_states, strict=True))
        likes = [*range(inputs, inputs + len(plan.y)), *range(len(plan.x), inputs)]
        return cls(
            tuple(places.items()),
            tuple((name, ready.carried_as[name]) for name in plan.states if places.get(name) == at[name]),
            tuple((name, result[new[name]], at[name]) for name in shifted),
            tuple(
                (name, k, like, ready.carried_as[name] if name in ready.carried else None)
                for k, (name, like) in enumerate(zip(plan.tangents, likes, strict=False))
                if name is not None
            ),
        )


@dataclass(frozen=True)
class Ready:
    """A plan whose loops can run.

    Attributes:
        around: what was around the call that it was made at.
        histories: by `history_key`, see `call.Along`.
        along, along_lately: what runs its derivatives, and what tells a call like one.
        expected: derivatives whose plans were made early.
        members: what runs many calls as one, by their number.
        lately: runs by places: one `direct.Lately`.
    """

    plan: Plan
    forward: PreparedLoop
    backward: PreparedLoop | None
    executor: Executor
    around: Around = field(default_factory=Around.now, compare=False)
    histories: dict[Any, tuple[bool, ...]] = field(default_factory=dict, compare=False)
    along: dict[Any, Any] = field(default_factory=dict, compare=False)
    along_lately: dict[Any, Any] = field(default_factory=dict, compare=False)
    expected: set[Any] = field(default_factory=set, compare=False)
    members: dict[int, Any] = field(default_factory=dict, compare=False)
    lately: list[Any] = field(default_factory=list, compare=False)

    def history_key(
        self, layout: Layout, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> tuple[tuple[int, ...], tuple[bool, ...], tuple[bool, ...], tuple[bool, ...]]:
        """What `histories` are found by, see `call.Along.has_history`; lengths of a few sequences first."""
        # there through every state and back: a longer sequence has no other ways from one step to another
        enough = 2 * (len(self.plan.states) + 1)
        lengths = tuple(sorted({min(n, enough) for n in layout.ends}))
        return lengths, tuple(given), tuple(needed), tuple(live)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The inputs: x, states, weights."""
        return *self.plan.x, *self.plan.states, *self.plan.weights

    @cached_property
    def rows_and_weights(self) -> tuple[str, ...]:
        """The inputs without the states."""
        return *self.plan.x, *self.plan.weights

    @cached_property
    def extra(self) -> list[str]:
        """The kept values that a call saves beside its inputs and the rows of y."""
        plan = self.plan
        at_hand = {*plan.x, *plan.states, *plan.weights, *plan.y, *plan.shifted}
        kinds = plan.forward.body.values
        rows_of_states = [
            n for n in plan.kept if n in plan.states and n not in plan.shifted and kinds[n].kind == "row"
        ]
        return [n for n in plan.kept if n not in at_hand] + rows_of_states

    @cached_property
    def by_sequence(self) -> bool:
        """Whether something is computed once per sequence: of those without steps, too."""
        return any(value.kind == "sequence" for value in self.plan.forward.body.values.values())

    @cached_property
    def owned(self) -> bool:
        """Whether each result of the forward loop is a table made for it, so that none shares memory."""
        return self.owns_all_but(())

    def owns_all_but(self, others: Collection[str]) -> bool:
        """`owned`, some results left aside."""
        plan = self.plan
        changed = {c.parameter for c in plan.forward.carries if c.parameter != c.result}
        names = (*plan.y, *plan.states)
        return (
            len(set(names)) == len(names)
            and changed.issuperset(plan.states)
            and self.forward.fresh >= {*names}.difference(others)
        )

    @cached_property
    def state_places(self) -> range:
        """The places of the states among the inputs."""
        return range(len(self.plan.x), len(self.plan.x) + len(self.plan.states))

    @cached_property
    def cut_off(self) -> list[int]:
        """The places of inputs that no result of a step needs a gradient for."""
        needed = set().union(*self.plan.requires)
        return [k for k in range(len(self.names)) if k not in needed]

    @cached_property
    def unread(self) -> list[int]:
        """The places of rows and weights that the backward loop does not read."""
        loops = [] if self.backward is None else [self.backward.plan, self.plan.backward]
        read = {name for loop in loops if loop for node in loop.body.nodes for name in node.inputs}
        return [k for k, name in enumerate(self.names) if k not in self.state_places and name not in read]

    @cached_property
    def inert(self) -> frozenset[int]:
        """Those of `unread` that nothing which backward reads depends on, so that no derivative does."""
        plan, body = self.plan, self.plan.forward.body
        new, live, before = dict(zip(plan.states, plan.new_states, strict=True)), set(plan.kept), 0
        while len(live) > before:
            before = len(live)
            live |= {new[name] for name in live if name in new}
            live |= {name for node in body.needed(live) for name in node.inputs}
        return frozenset(k for k in self.unread if self.names[k] not in live)

    @cached_property
    def read_results(self) -> list[int]:
        """The places of the leaves of y whose rows the backward loop reads."""
        n = len(self.names)
        sources = self.sources(n)
        read = {k - n for _, k in sources.values} | {k - n for _, k, _ in sources.shifted}
        return [k for k in range(len(self.plan.y)) if k in read]

    @cached_property
    def again(self) -> PreparedLoop | None:
        """The forward loop where leaves of y are known, see `Plan`; None: there is none, or the executor
        declines it."""
        with contextlib.suppress(Unsupported):
            return None if self.plan.again is None else make_loop(self.executor, self.plan.again)
        return None

    def knows(self, layout: Layout) -> bool:
        """Whether a second run on these rows is faster by `again`: where steps have many, their products are
        as fast in a scan (measured)."""
        few = self.executor.in_torch or layout.rows <= _FEW * layout.turns
        return few and self.plan.again is not None

    @cached_property
    def known(self) -> dict[str, int]:
        """The leaves of y that `again` takes, with their places."""
        loop = self.again
        given = () if loop is None else loop.plan.body.parameters
        return {name: k for k, name in enumerate(self.plan.y) if name in given}

    @cached_property
    def own_gradients(self) -> frozenset[str]:
        """The gradients that are tensors made for them."""
        made = frozenset() if self.backward is None else self.backward.fresh
        return made.intersection(name for name in self.plan.gradients if name is not None)

    def is_few(self, layout: Layout) -> bool:
        """Whether the scans of the backward loop make products over these rows, too."""
        return self.backward is not None and 0 < layout.rows <= self.backward.few_rows

    def takes_steps(self, layout: Layout) -> bool:
        """Whether the backward loop takes y and its gradients with a dimension of steps."""
        return self.is_few(layout) and self.backward is not None and self.backward.few_by_address

    @cached_property
    def asked(self) -> Bounded[Any, Asked]:
        """For the calls at hand, which gradients there are, and which of the backward loop's that takes."""
        return Bounded(_MOST_KINDS)

    def sources(self, inputs: int) -> Sources:
        """Where the backward loop of a call with so many inputs finds what it reads."""
        if inputs not in self._sources:
            self._sources[inputs] = Sources.of(self, inputs)
        return self._sources[inputs]

    @cached_property
    def _sources(self) -> dict[int, Sources]:
        return {}

    def leaves_out(self, given: Sequence[bool]) -> bool:
        """Whether something is computed at a step that has no part in the results which something comes in
        for: to autograd there is no gradient of it, to the backward loop there are zeros. A new state has a
        part in the last step, and in others if it is read."""
        known = self._left_out.get(tuple(given))
        if known is None:
            plan, body = self.plan, self.plan.forward.body
            results, n_y, n_x = (*plan.y, *plan.new_states), len(plan.y), len(plan.x)
            carry = {i for i, tangent in enumerate(plan.tangents) if tangent is not None}
            last = more = {i for i, comes_in in enumerate(given) if comes_in}
            before = {i for i in last if i < n_y}
            while more:
                read = {n_y + k - n_x for i in more for k in plan.flow[i] if k >= n_x}
                more = {i for i in read if i < len(results)} - before
                before |= more
            whole, *used = (
                len(body.needed(results[i] for i in part & carry)) for part in (carry, last, before)
            )
            known = self._left_out[tuple(given)] = whole > min(used)
        return known

    @cached_property
    def _left_out(self) -> dict[tuple[bool, ...], bool]:
        return {}

    @cached_property
    def carried(self) -> frozenset[str]:
        """The gradients that the backward loop carries from step to step."""
        loop = self.plan.backward
        return frozenset() if loop is None else frozenset(carry.parameter for carry in loop.carries)

    @cached_property
    def carried_as(self) -> dict[str, torch.dtype]:
        """The type that the loops carry each state in, and its gradient. Callers may have fewer bits."""
        plan, found = self.plan, {}
        names = (*plan.states, *(t for t in plan.tangents[len(plan.y) :] if t is not None))
        for name in names:
            body = plan.forward.body if name in plan.states or plan.backward is None else plan.backward.body
            found[name] = dtype_of(body.values[name].dtype)
        return found


def make_ready(executor: Executor, plan: Plan) -> Ready:
    """Make a plan's loops ready to run.

    Raises:
        Unsupported: the executor declines the plan.
    """
    forward, backward = _prepared(executor, plan.forward, plan.backward)
    assert forward is not None
    ready = Ready(plan, forward, backward, executor)
    forward.hide(ready.extra)
    return ready


def for_one_step(ready: Ready) -> Ready | None:
    """The same where few sequences have one row each; None: as it is, or the executor declines it."""
    with contextlib.suppress(Unsupported):
        loop = ready.executor.for_one_step(ready.plan.forward)
        if loop is not None:
            forward = make_loop(ready.executor, loop)
            forward.hide(ready.extra)
            return replace(ready, forward=forward, members={}, lately=[])
    return None


def make_loop(executor: Executor, loop: LoopPlan) -> PreparedLoop:
    """Make one loop ready to run. Raises Unsupported: the executor declines it."""
    (made,) = _prepared(executor, loop)
    assert made is not None
    return made


def _prepared(executor: Executor, *loops: LoopPlan | None) -> list[PreparedLoop | None]:
    """Loops made ready to run, and built together. Raises Unsupported: the executor declines one."""
    scans: list[Scan] = []

    def scan(loop: LoopPlan, region: Region) -> Scan:
        executor.check(loop, region)
        scans.append(made := executor.scan(loop, region))
        return made

    def prepared(part: LoopPlan | None) -> PreparedLoop | None:
        if part is None:
            return None
        return PreparedLoop(executor.prepare(part), scan, executor.on_all_rows, executor.joined)

    with ThreadPoolExecutor(max_workers=1) as apart:  # where none of the caller's modes is
        made = [*apart.map(prepared, loops[::-1])][::-1]
    executor.build(scans)
    return made
