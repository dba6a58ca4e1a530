"""The RNN op: a stepnet, its memories, and a scope for each time step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stepnet.data.arguments import function, listed, truth, whole
from stepnet.data.in_graph import leave_to_python, not_followed
from stepnet.data.lod import LoDTensor
from stepnet.data.no_graph import refuse_proxies
from stepnet.data.recording import AS_A_LAYER, LeftByRuns, StandIn
from stepnet.errors import StepError, StepIndexError
from stepnet.executors import naive
from stepnet.executors.base import Backend
from stepnet.front.memory import Memory, Stepnet, memories_of
from stepnet.front.meta import OnMeta, without_data
from stepnet.front.scope import Scope, Variable, check_scope
from stepnet.front.step import describe_leaf, describe_leaves, kept_dtypes
from stepnet.ir.loop import BackEdge, Concat, Iteration, Loop, Merged, Slice
from stepnet.watchers import instead

from .as_step import run_as_step, run_in_frame


class StepScopes:
    """The scopes of a run, by time step; in inference the last two, since two take turns."""

    def __init__(self, kept: dict[int, Scope], steps: int | None) -> None:
        self._kept, self._many = kept, steps

    @property
    def _steps(self) -> int:
        if self._many is None:
            raise _kept_none()
        return self._many

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, t: int) -> Scope:
        t = whole("op.scopes: a step", t, error=StepIndexError, remedy="op.scopes[t], one at a time")
        place = t + self._steps if t < 0 else t
        if not 0 <= place < self._steps:
            raise StepIndexError(
                f"op.scopes: there is no step {t}",
                got=f"a run of {self._steps} steps",
                remedy="len(op.scopes) is how many there are",
            )
        if not self._kept:
            raise _kept_none()
        if place not in self._kept:
            raise StepError(
                f"the scope of step {place} was used again by a later step",
                got=f"scopes of steps {sorted(self._kept)}, as in inference two scopes take turns",
                remedy="run with gradients enabled, which keeps the scope of every step",
            )
        return self._kept[place]

    def __iter__(self) -> Iterator[Scope]:
        return (self[t] for t in range(self._steps))


def _kept_none() -> StepError:
    return StepError(
        "this run kept no scopes of its steps",
        got="a run with keep_scopes=False, in a frame, or while a file is written",
        remedy="op.run(scope); in a frame, what is read of them may be one of the outputs",
    )


class _Left(LeftByRuns):
    """What the last run of an op left."""

    asked_by = frozenset({"scopes", "last"})
    replaced = True

    def __init__(self) -> None:
        self.scopes = StepScopes({}, 0)
        self.last: dict[str, Tensor] = {}


class RecurrentOp:
    """A recurrence as Paddle's RNN op has it: a stepnet run in one scope per time step.

    Means, in the training form::

        for t in range(T):
            step = scope.new_scope(inputs at t)
            step["h_pre"] = h_boot if t == 0 else a reference to the "h" of step t - 1
            stepnet(step)
        scope["y"] = torch.stack([step["y"] for step in steps])

    Args:
        stepnet: `stepnet(scope)`: reads inputs and pre-memories from the scope of its step, and everything
            else (weights) from the scopes around it; writes memories, outputs and what else it names.
        inputs: names of tensors [T, B, ...] in the outer scope, all of the same T.
        outputs: names that the stepnet writes; the op writes them to the outer scope, [T, ...].
        memories: what a step hands to the next.
        reverse: run from the last step to the first; outputs stay in the order of the inputs.

    Raises:
        StepError: what it is made of does not fit, or a run finds other names or shapes than these say.

    Attributes:
        scopes: after `run`, the scope of each time step.
        last: after `run`, the memories of the step that ran last, by name.

    Source: Paddle's "RNN design" (2017): RNNOp, its step scopes and its InferShape, CreateScopes,
    InitMemories and Run.

    >>> def stepnet(step):
    ...     step["h"] = step["h_pre"] * 0.5 + step["x"]
    >>> op = RecurrentOp(stepnet, inputs=["x"], outputs=["h"], memories=[Memory("h", "h_pre", "h_boot")])
    >>> scope = Scope({"x": torch.ones(3, 1), "h_boot": torch.zeros(1)})
    >>> op.infer_shape(scope)
    {'h': torch.Size([3, 1])}
    >>> op.run(scope)
    >>> scope["h"].flatten().tolist(), op.scopes[1]["h_pre"].tolist()
    ([1.0, 1.5, 1.75], [1.0])
    """

    def __init__(
        self,
        stepnet: Stepnet,
        inputs: Sequence[str],
        outputs: Sequence[str],
        memories: Sequence[Memory] = (),
        *,
        reverse: bool = False,
    ) -> None:
        self.inputs = tuple(dict.fromkeys(listed("RecurrentOp: 'inputs'", inputs, str)))
        self.outputs = listed("RecurrentOp: 'outputs'", outputs, str)
        self.memories = memories_of("RecurrentOp", memories, self.inputs, self.outputs)
        if not inputs:
            raise StepError(
                "RecurrentOp needs an input to count its steps by",
                remedy="inputs=['x'], the name of sequences in the scope",
            )
        self.stepnet = function("RecurrentOp: 'stepnet'", stepnet, "stepnet(scope)")
        self.reverse = reverse
        self.name = getattr(stepnet, "__name__", type(stepnet).__name__)
        self._left = _Left()

    @property
    def scopes(self) -> StepScopes:
        """The scopes of the last run, by time step."""
        return self._left.scopes

    @property
    def last(self) -> dict[str, Tensor]:
        """The memories of the step that ran last, by name."""
        return self._left.last

    def _leave(self, scopes: StepScopes, last: dict[str, Tensor]) -> None:
        self._left.scopes, self._left.last = scopes, last

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled without what a run left."""
        return vars(self) | {"_left": _Left()}

    def infer_shape(self, scope: Scope) -> dict[str, torch.Size]:
        """The shape of every output, without running a step on data.

        Raises:
            StepError: all that does not fit, each by its name.
        """
        steps = self._first_step(scope)
        return {
            name: torch.Size((scope[self.inputs[0]].shape[0], *step.shape)) for name, step in steps.items()
        }

    def _first_step(self, scope: Scope) -> dict[str, Tensor]:
        """The outputs of one step, without data.

        Raises:
            StepError: as `infer_shape`.
        """
        self._check(scope)
        bare = {n: without_data(v) if isinstance(v, Tensor) else v for n, v in scope.all_values().items()}
        shadow = Scope(bare)
        firsts = (bare[name][:1].sum(0, dtype=bare[name].dtype) for name in self.inputs)
        step = self._step_scope(shadow, firsts)
        self.init_memories([step], infer_shape_mode=True)
        boots = {memory.name: step[memory.pre_name] for memory in self.memories}
        try:
            with torch.no_grad(), OnMeta():
                self.stepnet(step)
        except RuntimeError as error:
            raise self._failed("fails", step, error) from error
        written = set(step)
        wrong = [f"output '{n}' is never written by the stepnet" for n in self.outputs if n not in written]
        wrong += self._no_tensors(step)
        for name, boot in boots.items():
            if name not in written:
                wrong.append(f"memory '{name}' is never written by the stepnet")
            elif not isinstance(step[name], Tensor) or not _same(boot, step[name]):
                wrong.append(f"memory '{name}' starts as {describe_leaf(boot)} and becomes "
                             f"{describe_leaf(step[name])}")  # fmt: skip
        self._report(wrong)
        return {name: step[name] for name in self.outputs}

    def create_scopes(self, scope: Scope) -> list[Scope]:
        """The step scopes, with the inputs of their steps: one per step, or two in inference.

        In inference (gradients not enabled) step t runs in scope t % 2, and `run` renews what it holds.
        """
        self._check(scope)
        steps = scope[self.inputs[0]].shape[0]
        count = steps if torch.is_grad_enabled() else min(steps, 2)
        order = self._order(steps)
        columns = [scope[name].unbind(0) for name in self.inputs]
        return [self._step_scope(scope, (c[order[i]] for c in columns)) for i in range(count)]

    def _step_scope(self, scope: Scope, values: Iterable[Any]) -> Scope:
        return scope.new_scope(dict(zip(self.inputs, values, strict=True)))

    def init_memories(self, step_scopes: Sequence[Scope], infer_shape_mode: bool = False) -> None:
        """Let each pre-memory be a reference to the memory of the step before; the first, to its init.

        Args:
            step_scopes: as `create_scopes` made them, in the order in which they run.
            infer_shape_mode: give the first step values without data: their shapes are what is asked for.

        Raises:
            StepError: these are no such scopes, or the first has no init in reach.
        """
        for step in listed("init_memories: 'step_scopes'", step_scopes, Scope):
            if step.parent is None or any(step.find(name) is None for name in self.inputs):
                raise StepError(
                    f"RecurrentOp over '{self.name}': init_memories takes the scopes of steps",
                    got=repr(step),
                    expected=f"scopes inside of the outer one, with {list(self.inputs)} at one step",
                    remedy="step_scopes = op.create_scopes(scope)",
                )
        before: Scope | None = None
        for step in step_scopes:
            self._link(step, before, infer_shape_mode)
            before = step

    def _link(self, step: Scope, before: Scope | None, infer_shape_mode: bool = False) -> None:
        for memory in self.memories:
            if before is not None:
                step.share(memory.pre_name, before.var(memory.name))
                continue
            assert step.parent is not None
            boot = memory.boot(step.parent, *self._batch(step))
            step.share(memory.pre_name, Variable(without_data(boot) if infer_shape_mode else boot))

    def _batch(self, step: Scope) -> tuple[int, Tensor]:
        first = step[self.inputs[0]]
        return (first.shape[0] if first.dim() else 1), first

    @not_followed
    def run(self, scope: Scope, *, keep_scopes: bool = True) -> None:
        """Run all time steps; outputs are written to `scope`.

        Args:
            scope: holds inputs, inits and all that the stepnet reads besides.
            keep_scopes: False runs the stepnet as `stepnet.recurrent` runs a step, compiled where that is
                possible: faster, and `op.scopes` stays empty. Inits and outputs in the outer scope are not in
                its reach then.

        Raises:
            StepError: something does not fit, by name; an input is ragged.
        """
        if torch.compiler.is_dynamo_compiling():
            leave_to_python("stepnet: scopes are no part of a graph")
        keep_scopes = truth("run: 'keep_scopes'", keep_scopes)
        recorded = run_in_frame(scope, self._run_compiled, self.outputs, self.memories)
        if recorded is not None:  # it keeps no scopes of steps
            self._leave(StepScopes({}, None), recorded)
            return
        if not keep_scopes or instead() is not None:  # what is saved keeps no scopes
            self._run_compiled(scope)
            return
        self._check(scope)
        x = scope[self.inputs[0]]
        body = _ScopedBody(self, scope)
        boots = [memory.boot(scope, *_rows(x)) for memory in self.memories]
        if len(x):
            feeds = {name: scope[name] for name in self.inputs}
            outputs = naive.run(body.loop(), feeds | dict(zip(body.memories, boots, strict=True)))
        else:
            outputs = {
                name: x.new_zeros((0, *step.shape), dtype=step.dtype)
                for name, step in self._first_step(scope).items()
            }
        for name in self.outputs:
            scope[name] = outputs[name]
        last = boots
        if body.before is not None:
            last = kept_dtypes(boots, [body.before[memory.name] for memory in self.memories])
        # of its own memory: a stepnet may hand on what it was given
        copies = {memory.name: value.clone() for memory, value in zip(self.memories, last, strict=True)}
        self._leave(StepScopes(body.kept, len(x)), copies)

    def _step(self, scope: Scope, step: Scope, t: int) -> None:
        try:
            self.stepnet(step)
        except RuntimeError as error:
            self.infer_shape(scope)  # says what does not fit, by name, if it is that
            raise self._failed(f"failed at step {t}", step, error) from error
        own = list(step)
        wrong = [f"output '{n}' is not written at step {t}" for n in self.outputs if n not in own]
        wrong += self._no_tensors(step)
        for memory in self.memories:
            if memory.name not in own:
                wrong.append(f"memory '{memory.name}' is not written at step {t}")
            elif not _same(before := step[memory.pre_name], kept_dtypes([before], [step[memory.name]])[0]):
                wrong.append(
                    f"memory '{memory.name}' was {describe_leaf(step[memory.pre_name])} and becomes "
                    f"{describe_leaf(step[memory.name])} at step {t}"
                )
        self._report(wrong)

    def _no_tensors(self, step: Scope) -> list[str]:
        found = {name: step[name] for name in self.outputs if name in list(step)}
        return [
            f"output '{name}' is no tensor but {describe_leaf(value)}"
            for name, value in found.items()
            if not isinstance(value, Tensor)
        ]

    def _failed(self, how: str, step: Scope, error: RuntimeError) -> StepError:
        names = (*self.inputs, *(memory.pre_name for memory in self.memories))
        inits = [f"'{m.pre_name}' starts as '{m.init}' is" for m in self.memories if m.init is not None]
        return StepError(
            f"stepnet '{self.name}' {how}: {str(error).splitlines()[0]}",
            got=describe_leaves(names, (step[name] for name in names)),
            remedy="these are the shapes of one step, a row for each sequence"
            + (f"; {', '.join(inits)} in the outer scope" if inits else ""),
        )

    def _run_compiled(self, scope: Scope, backend: Backend | None = None) -> dict[str, Tensor]:
        self._check(scope)
        x = scope[self.inputs[0]]
        try:
            last = run_as_step(
                self.stepnet, scope, self.inputs, self.outputs, self.memories, _rows(x),
                reverse=self.reverse, backend=backend,
            )  # fmt: skip
        except StepError:
            self.infer_shape(scope)  # says what does not fit by the names of the scope, if it is that
            raise
        self._leave(StepScopes({}, x.shape[0]), last)
        return last

    def _order(self, steps: int) -> range:
        return range(steps - 1, -1, -1) if self.reverse else range(steps)

    def _check(self, scope: Scope) -> None:
        """Inputs and inits are there, and inputs are of one length."""
        check_scope(scope)
        refuse_proxies(scope.all_values().values())
        wrong: list[str] = []
        steps: dict[str, int] = {}
        for name in self.inputs:
            value = scope.find(name)
            if isinstance(value, LoDTensor):
                wrong.append(f"input '{name}' is ragged (a LoDTensor): dynamic_recurrent takes it")
            elif not isinstance(value, Tensor):
                what = "not in the scope" if value is None else describe_leaf(value)
                wrong.append(f"input '{name}' is {what}")
            elif value.layout is not torch.strided or value.is_nested:
                wrong.append(f"input '{name}' is of layout {value.layout}: x.to_dense() lies in rows")
            elif value.dim() == 0:
                wrong.append(f"input '{name}' has no time axis")
            else:
                steps[name] = value.shape[0]
        counts = list(steps.values())  # perhaps sizes that a trace leaves open, which do not hash
        if any(count != counts[0] for count in counts[1:]):
            lengths = ", ".join(f"'{name}' {count}" for name, count in steps.items())
            wrong.append(f"inputs have different lengths: {lengths}")
        for memory in self.memories:
            if memory.init is not None and not isinstance(scope.find(memory.init), Tensor):
                wrong.append(f"memory '{memory.name}': its init '{memory.init}' is no tensor in the scope")
        named = (*self.inputs, *(memory.init for memory in self.memories if memory.init is not None))
        self._report(wrong, AS_A_LAYER if any(isinstance(scope.find(n), StandIn) for n in named) else None)

    def _report(self, wrong: list[str], remedy: str | None = None) -> None:
        if wrong:
            raise StepError(
                f"RecurrentOp over '{self.name}': {len(wrong)} thing(s) do not fit",
                got="; ".join(wrong),
                remedy=remedy
                or "inputs [T, B, ...] of one length, inits in the outer scope; the stepnet writes all "
                "outputs and memories, these in the shape and dtype of their init, or Memory(shape=, dtype=)",
            )


class _ScopedBody:
    """A stepnet as the body of a loop, with a scope for each time step."""

    def __init__(self, op: RecurrentOp, scope: Scope) -> None:
        self.op, self.scope, self.name = op, scope, op.name
        self.memories = tuple(f"memory '{memory.name}'" for memory in op.memories)
        self.parameters = ("the step", *op.inputs, *self.memories)
        self.results = tuple(dict.fromkeys((*op.outputs, *(memory.name for memory in op.memories))))
        self.kept: dict[int, Scope] = {}
        self.first: list[Any] = []  # what the memories were before the first step
        self.before: Scope | None = None
        self._order = op._order(scope[op.inputs[0]].shape[0])

    def loop(self) -> Loop:
        """The loop over all time steps."""
        op = self.op
        cut: Any = {"start": -1, "end": 0, "stride": -1} if op.reverse else {}
        return Loop(
            self,
            inputs=(
                Iteration("the step"),
                *(Slice(name, name, **cut) for name in op.inputs),
                *(Merged(name, name) for name in self.memories),
            ),
            outputs=[Concat(name, name, **cut) for name in op.outputs],
            back_edges=[BackEdge(m.name, name) for m, name in zip(op.memories, self.memories, strict=True)],
        )

    def __call__(self, i: int, *values: Any) -> tuple[Any, ...]:
        op, t = self.op, self._order[i]
        count = len(op.inputs)
        step = op._step_scope(self.scope, values[:count])
        self.first = self.first or list(values[count:])
        kept = kept_dtypes(self.first, list(values[count:]))
        for memory, given, value in zip(op.memories, values[count:], kept, strict=True):
            before = self.before if value is given else None
            step.share(memory.pre_name, Variable(value) if before is None else before.var(memory.name))
        if i > 1 and not torch.is_grad_enabled():  # two scopes take turns
            del self.kept[self._order[i - 2]]
        op._step(self.scope, step, t)
        self.kept[t] = self.before = step
        return tuple(step[name] for name in self.results)


def _same(a: Any, b: Any) -> bool:
    return isinstance(b, Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)


def _rows(x: Tensor) -> tuple[int, Tensor]:
    return (x.shape[1] if x.dim() > 1 else 1), x
