"""Where the front, the compiler and the executors meet: `recurrent` and `Recurrent`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import Unpack

from .checks import check_batch, checked, sequences_of, state_with_static, unscripted
from .compiler.reads.reach import reach
from .compiler.rewritten.inner_loops import inner
from .compiler.trace.iteration import code_of
from .data.arguments import truth, whole
from .data.attributes import begins_by_itself
from .data.in_graph import fixed, is_exporting, not_followed
from .data.lod import LoDTensor
from .data.modes import sees_saved_tensors, transforms_active
from .data.no_graph import refuse_proxies, refuse_traces
from .data.recording import recorded_in_frames
from .data.storage import distinct
from .data.tree import by_leaf, unflatten
from .data.values import rows_of, without_packed
from .engine import Asked, OverSequences, Steps, Way, asked, find_plan, is_as_ever, run, run_again, run_warm
from .engine.calls_in_progress import call_of
from .engine.checkpointed_calls import as_at_first, note_plain
from .engine.declined_calls import is_declined, run_one_step
from .engine.no_steps import run_of_no_steps
from .engine.vmapped_calls import run_folded
from .errors import Unsupported
from .executors import naive
from .executors.autograd import plainly
from .executors.base import Backend
from .executors.layout import Layout
from .executors.naive import PLAIN
from .executors.ready import Ready
from .executors.registry import AUTO
from .executors.setting import check_backend, only_plain
from .front.meta import OnMeta
from .front.scope import LocalVariables, Scope
from .front.step import (
    StepBody,
    TorchCell,
    as_called,
    as_step,
    as_they_are,
    boot_state,
    loop_of,
)
from .front.step_counter import clock
from .graph import (
    CAN_CAPTURE,
    TAKES,
    answer_with,
    can_be_node,
    captured,
    each_leaf,
    first_leaf,
    out_of_graph,
    side_by_side,
    traced_step,
)
from .ir.loop import Loop
from .nested import as_one_again, by_twin, lifting, over_sentences
from .resets import Resets, as_resets, run_with_resets
from .sharded import gathered, sharded
from .typed import Booting, ModuleCall, OfStep, Output, Settings, State, typed
from .watchers import Instead, instead, is_kept, kept, nobody_else, replaced, watched, watching
from .windows import check_windows, run_in_windows

_STEPS = Steps(as_step, boot_state, StepBody, loop_of, as_they_are, lambda step: step, as_called)


def _like(step: Any, x: Any = None, state: Any = None, **how: Any) -> Any:
    """What `recurrent` gives for tensors without data."""
    with OnMeta(), contextlib.nullcontext() if instead() is None else replaced(_WithoutData()):
        plain: Any = {**how, "backend": PLAIN.name, "scopes": False}
        return recurrent(step, x, state, **plain)


class _WithoutData(Instead):
    """In place of what answers for recurrences: tensors without data are no call that it is to see."""

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        return _recurrent(step, x, state, reverse, level, axis, scopes, PLAIN.name)

    def loop(self, loop: Loop, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return naive.run(loop, feeds)


class _How(NamedTuple):
    """How a call of `recurrent` is to run its step."""

    steps: Any
    static: Any
    reverse: bool
    level: int
    axis: int
    scopes: bool
    backend: Backend | None
    resets: Any
    checkpoint: int | bool | None
    detach_every: int | None


@typed
@recorded_in_frames(_like, parts=2)
def recurrent(
    step: Any,
    x: Any = None,
    state: Any = None,
    *,
    steps: Any = None,
    static: Any = None,
    reverse: bool = False,
    level: int = -1,
    axis: int = 0,
    scopes: bool = False,
    backend: Backend | None = None,
    resets: Any = None,
    checkpoint: int | bool | None = None,
    detach_every: int | None = None,
) -> Any:
    """Run a step over sequences: `y[t], state = step(x[t], state)` for every t.

    Means, for one sequence, in the order of its rows (backwards with `reverse`)::

        for t in range(len(x)):
            y[t], state = step(x[t], state)
        return y, state

    Args:
        step: `step(x_t, state) -> (y_t, new_state)`, rows of all sequences at once: x_t is [n, ...] with
            one row per sequence still running. A function, an nn.Module, a cell of `stepnet.cells`, or a
            torch.nn cell (LSTMCell, GRUCell, RNNCell) as it is.
        x: LoDTensors (steps cut by LoD `level`), PackedSequences, or tensors of equal lengths (cut along
            `axis`); or tuples, lists, dicts and dataclasses of these, nested. y is of the same kind.
        state: initial state, one row per sequence in the order of x; tensors or a nesting of them. None:
            the cell's `initial_state(n)`, zeros for a torch.nn cell. `()` for a step without a state.
        steps: in place of x, for a step without an input, which is called as `step(None, state)`: how many
            steps, y being [steps, n, ...]; or a number for each sequence, y being a LoDTensor.
        static: what every step sees whole, one for each sequence: tensors [n, ...] or LoDTensors with a
            sequence of rows for each, or a nesting of them. The step is then `step(x_t, state, static_t)`,
            static_t with the rows of the sequences still running; of a LoDTensor a `Padded`, [n, L, ...] and
            a mask. L is the longest of the batch or a little more.
        reverse: run every sequence from its end to its beginning; y stays in the order of x.
        level: the LoD level whose elements are the steps; -1, the last, steps row by row.
        axis: the time axis of tensors.
        scopes: also return a list with a Scope per step: its inputs, state, local variables and results.
            Runs by the plain loop, which is the only one that has steps to look into.
        backend: `"auto"`, `"c"`, `"eager"` or `"naive"`; None: the process-wide setting (`set_backend`).
        resets: a truth value per row of x, true at the first row of an episode (torchrl's `is_init`), which
            starts from the step's `initial_state(n)`; `Resets(done=...)` takes gym's, true at the last row.
            Episodes run as sequences of their own, side by side; final_state is that of the last one.
        checkpoint: a number of steps k: backward computes the steps between every k-th and the next again,
            and forward keeps no more of them than the state they begin with, but for the last k. True: k is
            near the root of the longest length.
        detach_every: a number of steps k: no gradient flows from a step to the one before at every k-th step,
            counted from the end that the loop begins at (truncated back-propagation). Both are for backward:
            without gradients the steps run at once, and a step that draws noise draws other numbers than it
            would with them, of the same distribution.

    Returns:
        `(y, final_state)`, and the scopes if asked for. y is cut and ordered as x is; final_state holds
        the state after the last step of each sequence, in the order of x. A sequence of no steps keeps
        its initial state.

    Raises:
        StepError: the step or what it was given does not fit; the text names the leaf.
        LoDError: two inputs have different lengths.
        Unsupported: the backend asked for by name declines the step; says why.

    Warns:
        SlowPathWarning: once for a step that cannot be compiled and runs by the plain loop.
        TorchOpsWarning: once for a step that generated C declines and that runs by torch ops.

    >>> import torch
    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
    >>> y, total = recurrent(lambda x, s: (s + x, s + x), x, torch.zeros(2, 1))
    >>> y.values.flatten().tolist(), total.flatten().tolist()
    ([1.0, 2.0, 3.0, 1.0], [3.0, 1.0])
    """
    if not (type(level) is type(axis) is int and type(reverse) is type(scopes) is bool):
        level, axis = whole("recurrent: 'level'", level), whole("recurrent: 'axis'", axis)
        reverse, scopes = truth("recurrent: 'reverse'", reverse), truth("recurrent: 'scopes'", scopes)
    if level >= 0 and type(x) is LoDTensor and level == x.lod_level - 1:
        level = -1  # one name of a level: calls like one before are found by it
    if (
        x is not None
        and steps is static is resets is checkpoint is detach_every is None
        and not (scopes or torch.compiler.is_compiling() or (CAN_CAPTURE and is_exporting()))
        and nobody_else()
        and inner() is None
    ):
        if type(x) is PackedSequence:
            tables, pack = without_packed(x)
            assert pack is not None
            how: Any = {"reverse": reverse, "level": level, "axis": axis, "backend": backend}
            y, final = recurrent(step, tables, state, **how)
            return by_leaf(pack, y), final
        backend = as_at_first(step, backend)
        way = (reverse, level, axis, check_backend(backend))
        declined = not lifting.inside_a_step() and is_declined(_STEPS, step, x, state, way)
        if declined and not sharded(step):
            out = run_one_step(_STEPS, step, x, state, axis)
            if out is not None:
                return out
            return _recurrent(step, x, state, reverse, level, axis, scopes, backend, plainly=True)
        state, out = warm(step, x, state, way)
        if out is not None:
            return out
    how = _How(steps, static, reverse, level, axis, scopes, backend, resets, checkpoint, detach_every)
    if CAN_CAPTURE and torch.compiler.is_dynamo_compiling():
        return _in_graph(step, x, state, how)
    if CAN_CAPTURE and instead() is None and is_exporting():
        return traced_step(step, lambda: _in_graph(step, x, state, how))
    if not torch.compiler.is_compiling() and is_kept():
        return kept(step, x, state, **how._asdict())
    parts = sharded(step)
    if parts:
        return gathered(parts, lambda x, state: _outside(step, x, state, how), x, state)
    return _outside(step, x, state, how)


recurrent.__prepare_scriptable__ = unscripted  # pyright: ignore[reportAttributeAccessIssue]


@not_followed
def warm(
    step: Any, x: Any, state: Any, way: tuple[bool, int, int, str],
    pieces: Layout | None = None, draws: bool = True,
) -> tuple[Any, tuple[Any, Any] | None]:  # fmt: skip
    """The initial state; and what `recurrent` gives at a call like one before, where nobody else answers it,
    that draws no noise unless it `draws`. None: it is to be called. `way`: reverse, level, axis and the
    backend. `pieces`: the sequences, where they are not those of x."""
    if lifting.may_run_once(x, state):
        return state, None
    out = None
    if draws and pieces is None and way[1] != -1 and type(x) is LoDTensor:
        out = as_one_again(step, x, state, way)
    if out is None:
        begun = state
        state, out = by_twin(_STEPS, step, lambda of: run_warm(of, step, x, begun, way, pieces, draws))
    if out is None and pieces is None:
        state, out = run_folded(_STEPS, step, x, state, Way(*way))
    if out is not None:
        lifting.passed()
    return state, out


def _in_place(
    step: Any, x: Any, state: Any, *,
    reverse: bool, axis: int, backend: Backend | None, pieces: Layout | None = None,
) -> tuple[Any, Any] | None:  # fmt: skip
    """A call over x, or over pieces of it where they lie, if it is like one before that nobody else answers,
    and none in a region of torch's checkpoint, where calls are counted."""
    if not nobody_else() or inner() is not None or sees_saved_tensors():
        return None
    return warm(step, x, state, (reverse, -1, axis, check_backend(backend)), pieces)[1]


def _in_graph(step: Any, x: Any, state: Any, how: _How) -> Any:
    """A call in a region that Dynamo follows: one node of its graph, if it can be one."""
    how = _How(how.steps, *map(fixed, how[1:]))  # their number may stay open

    def outside() -> Any:
        return _outside(step, x, state, how)

    if isinstance(x, PackedSequence):
        tables, pack = without_packed(x)
        y, *rest = _in_graph(step, tables, state, how)
        return each_leaf(pack, y), *rest
    check_windows(how.checkpoint, how.detach_every, how.scopes)
    steps, level, resets = how.steps, how.level, how.resets
    if how.scopes:
        return out_of_graph(outside, "stepnet: scopes= is no part of a graph")
    if transforms_active():
        return out_of_graph(
            outside, "stepnet: a recurrence inside a torch.func transform is no part of a graph"
        )
    function = TorchCell(step) if isinstance(step, nn.RNNCellBase) else step
    rows = x
    if steps is not None:
        of_time, state = clock(function, x, state, steps, how.axis)
        rows = of_time.rows
    static = side_by_side(how.static)
    plain = resets is None and steps is None and how.checkpoint is None and how.detach_every is None
    if not can_be_node(rows, static, level, plain):
        return out_of_graph(outside, f"stepnet: a recurrence in a graph takes {TAKES}")
    n = sequences_of(first_leaf(rows), level, how.axis)
    marks = fresh = None
    kind = ""
    if resets is not None:
        asked = as_resets(resets)
        marks, fresh, kind = asked.marks, asked.state, "done" if asked.is_init is None else "is_init"
        if isinstance(marks, PackedSequence):
            marks = LoDTensor.from_packed(marks)
        if fresh is None and begins_by_itself(function):
            fresh = boot_state(function, n)
    if state is None:
        state = boot_state(function, n)
    return captured(
        outside, function, rows, state, static, marks, fresh,
        clocked=steps is not None, resets=kind, reverse=how.reverse, level=level, axis=how.axis,
        backend=how.backend, checkpoint=how.checkpoint, detach_every=how.detach_every,
    )  # fmt: skip


@not_followed
def _outside(step: Any, x: Any, state: Any, how: _How) -> Any:
    """A call that runs at once."""
    steps, static, reverse, level, axis, scopes, backend, resets, checkpoint, detach_every = how
    other = instead()
    if type(x) is not Tensor and type(x) is not LoDTensor and (other is None or resets is not None):
        tables, pack = without_packed(x)
        if pack is not None:
            y, *rest = _outside(step, tables, state, how)
            return by_leaf(pack, y), *rest
    compiling = torch.compiler.is_compiling()  # a compiled loop is one call out of the compiled region
    if steps is not None:
        refuse_proxies((x, steps))
        x, state = clock(step, x, state, steps, axis)
    if static is not None:
        together: Any = torch.compiler.disable(state_with_static) if compiling else state_with_static
        state = together(step, x, state, static, level, axis)
    windowed = checkpoint is not None or detach_every is not None
    if windowed:
        check_windows(checkpoint, detach_every, scopes)
    if resets is None and other is None and not (checkpoint or detach_every):
        once: Any = torch.compiler.disable(_recurrent) if compiling else _recurrent
        out, like_before = None, steps is not None or static is not None  # of others `recurrent` has asked
        if like_before and not (scopes or compiling) and nobody_else() and inner() is None:
            state, out = warm(step, x, state, (reverse, level, axis, check_backend(backend)))
        if out is None:
            out = once(step, x, state, reverse, level, axis, scopes, backend)
    else:
        plain: Any = {"reverse": reverse, "level": level, "axis": axis}
        windows: Any = {"checkpoint": checkpoint, "detach_every": detach_every} if windowed else {}
        if resets is not None:
            again: Any = torch.compiler.disable(run_with_resets) if compiling else run_with_resets
            plain |= {"look": other is not None, "backend": backend, "scopes": scopes, **windows}
            plain["in_place"] = None if windowed else _in_place
            out = again(recurrent, step, x, state, resets, **plain)
        elif other is not None:
            out = other(step, x, state, scopes=scopes, **plain)
        else:
            parts: Any = torch.compiler.disable(run_in_windows) if compiling else run_in_windows
            out = parts(recurrent, step, x, state, backend=backend, **windows, **plain)
    return out if static is None else (out[0], out[1].state, *out[2:])


def _recurrent(
    step: Any, x: Any, state: Any, reverse: bool, level: int, axis: int, scopes: bool,
    backend: Backend | None, *, plainly: bool = False,
) -> Any:  # fmt: skip
    """`plainly`: it is known that it has no plan."""
    if is_kept():  # out of a compiled region
        how: Any = {"steps": None, "static": None, "reverse": reverse, "level": level, "axis": axis}
        return kept(step, x, state, resets=None, scopes=scopes, backend=backend, **how)
    booted, call = state is None, None
    if not (scopes or plainly):
        way = Way(reverse, level, axis, check_backend(backend))
        state, call, out = run_as_before(step, x, state, way)
        if out is not None:
            return out
    body, x_leaves, state_leaves = checked(step, x, state, level=level, axis=axis)
    loop, feeds = body.as_loop(x_leaves, state_leaves, reverse=reverse, level=level, axis=axis)
    watch = watching()
    if watch is None:
        return _run(loop, feeds, body, booted, scopes, PLAIN.name if plainly else backend, call)
    with watched(None):
        watch(loop, feeds, scopes=scopes, backend=backend)
        return _run(loop, feeds, body, booted, scopes, backend)


@not_followed
def run_as_before(
    step: Any, x: Any, state: Any, way: Way, draws: bool = True
) -> tuple[Any, Asked | None, tuple[Any, Any] | None]:
    """The initial state; what calls like this one are found by, if its step has no generator of its own; and
    what `recurrent` gives at one like one before, that draws no noise unless it `draws`. None: it is to be
    called."""
    if watching() is not None or inner() is not None or lifting.may_run_once(x, state):
        return state, None, None

    def like_before(of: Steps) -> tuple[Any, Asked | None, tuple[Any, Any] | None]:
        begun, call = asked(of, step, x, state, way)
        return begun, call, None if call is None or (not draws and call.draws) else run_again(call)

    begun, call, out = by_twin(_STEPS, step, like_before)
    if out is not None:
        lifting.passed()
    return begun, call, out


def _run(loop: Loop, feeds: dict[str, Any], body: StepBody, *how: Any) -> Any:
    """`_run_step`, told to other threads."""
    with call_of(code_of(loop).function):
        return _run_step(loop, feeds, body, *how)


def _run_step(
    loop: Loop, feeds: dict[str, Any], body: StepBody, booted: bool, scopes: bool, backend: Backend | None,
    call: Asked | None = None,
) -> Any:  # fmt: skip
    """Run the loop of a step, by a plan where that can be. `booted`: the cell gave the initial state."""
    refuse_traces()
    chosen, ran, refusal = PLAIN.name if scopes else check_backend(backend), None, None
    if chosen != PLAIN.name:
        try:
            if lifting.inside_a_step():
                once = lifting.once(loop, feeds, body, booted, chosen)
                if once is not None:
                    return once[0], unflatten(body.state_spec, once[1])
            out = run(loop, feeds, backend=chosen, asked=call)
            return out["y"], unflatten(body.state_spec, [out[name] for name in body.new_state_names])
        except Unsupported as error:
            if chosen != AUTO and not isinstance(error, OverSequences):
                raise error.by_name() from None
            ran, refusal = error.ran, error.fresh()  # the frames that it came by hold this one
    x, state = ([feeds[name] for name in names] for names in (body.x_names, body.state_names))
    ragged = any(isinstance(leaf, LoDTensor) for leaf in x)
    if not ragged:
        check_batch(loop, body, x, state, booted)
    step_scopes: list[Scope] = []
    if scopes:
        out, step_scopes = _observed(loop, feeds, body)
    elif isinstance(refusal, OverSequences) and only_plain([*map(rows_of, x), *state]) is None:
        out = over_sentences(loop, feeds, body, refusal, backend=chosen)
    else:  # torch is to see every operation
        note_plain(body.step.cell if isinstance(body.step, TorchCell) else body.step)
        by = naive.run if all(rows_of(leaf).numel() for leaf in x) else run_of_no_steps
        out = plainly(body.name, partial(by, loop), feeds, lambda: reach(body.step).generators)
    if ran is not None:
        ran()
    last = [out[name] for name in body.new_state_names]
    # A step may give what it refers to; a hook on the last state is not to see what comes in for the last y.
    last = distinct(last, state) if ragged else [t.clone(memory_format=torch.contiguous_format) for t in last]
    final = unflatten(body.state_spec, last)
    return (out["y"], final, step_scopes) if scopes else (out["y"], final)


def _observed(loop: Loop, feeds: dict[str, Any], body: StepBody) -> tuple[dict[str, Any], list[Scope]]:
    """What the plain loop gives, and the scope of each step."""
    step_scopes: list[Scope] = []
    with LocalVariables(body.step) as local:

        def observe(t: int, values: Any, sequences: Tensor | None) -> None:
            step_scopes.append(Scope({**local.take(), **values}, sequences=sequences))

        return naive.run(loop, feeds, observe), step_scopes


class Recurrent(nn.Module, Generic[State, Output]):
    """A step as a module over sequences; see `recurrent` for the meaning of every argument.

    >>> import torch
    >>> rnn = Recurrent(nn.GRUCell(3, 4), reverse=True)
    >>> y, h = rnn(torch.zeros(7, 2, 3))
    >>> y.shape, h.shape
    (torch.Size([7, 2, 4]), torch.Size([2, 4]))
    """

    @overload
    def __init__(
        self: Recurrent[OfStep, Tensor], step: Booting[OfStep],
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[tuple[Tensor, Tensor], Tensor], step: nn.LSTMCell,
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[Tensor, Tensor], step: nn.GRUCell | nn.RNNCell,
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[OfStep, Tensor],
        step: Callable[[Any, OfStep], tuple[Tensor, OfStep]]
        | Callable[[Any, OfStep, Any], tuple[Tensor, OfStep]],
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[Any, Tensor], step: nn.Module,
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[OfStep, object],
        step: Callable[[Any, OfStep], tuple[Any, OfStep]] | Callable[[Any, OfStep, Any], tuple[Any, OfStep]],
        *, scopes: Literal[False] = False, **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Recurrent[OfStep, Scope], step: Callable[..., tuple[Any, OfStep]], *, scopes: Literal[True],
        **how: Unpack[Settings],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(self, step: Callable[..., Any], *, scopes: bool, **how: Unpack[Settings]) -> None: ...

    def __init__(
        self,
        step: Any,
        *,
        reverse: bool = False,
        level: int = -1,
        axis: int = 0,
        scopes: bool = False,
        backend: Backend | None = None,
        checkpoint: int | bool | None = None,
        detach_every: int | None = None,
    ) -> None:
        super().__init__()
        self.scopes = truth("Recurrent: 'scopes'", scopes)
        check_windows(checkpoint, detach_every, scopes)
        self.step: Any = as_step(step)
        self.reverse = truth("Recurrent: 'reverse'", reverse)
        self.level = whole("Recurrent: 'level'", level)
        self.axis = whole("Recurrent: 'axis'", axis)
        self.backend: Backend | None = backend
        self.checkpoint = checkpoint
        self.detach_every = detach_every

    def forward(
        self, x: Any = None, state: Any = None, resets: Any = None, *, steps: Any = None, static: Any = None
    ) -> Any:
        """What `recurrent` gives for the step and these arguments, which are as there."""
        return recurrent(
            self.step, x, state, steps=steps, resets=resets, static=static, reverse=self.reverse,
            level=self.level, axis=self.axis, scopes=self.scopes, backend=self.backend,
            checkpoint=self.checkpoint, detach_every=self.detach_every,
        )  # fmt: skip

    __prepare_scriptable__ = staticmethod(unscripted)

    if TYPE_CHECKING:
        __call__: ModuleCall[State, Output]  # pyright: ignore[reportIncompatibleMethodOverride]

    def extra_repr(self) -> str:
        shown = {"reverse": False, "level": -1, "axis": 0, "scopes": False, "backend": None}
        shown |= {"checkpoint": None, "detach_every": None}
        return ", ".join(f"{k}={getattr(self, k)!r}" for k, v in shown.items() if getattr(self, k) != v)


def _from_graph(step: Any, x: Any, state: Any, *, resets: dict[str, Any] | None = None, **how: Any) -> Any:
    """A call that a graph holds."""
    return recurrent(step, x, state, resets=None if resets is None else Resets(**resets), **how)


def _plan_of(
    step: Any, x: Any, state: Any, *, static: Any = None, reverse: bool, axis: int, backend: Backend | None,
    **windows: Any,
) -> tuple[Ready, dict[str, Tensor], list[Tensor]] | None:  # fmt: skip
    """The plan by which a call in a graph runs, its constants and its weights; None where it has no plan.
    `windows` of steps change nothing: it is asked for them where no gradient is recorded."""
    chosen = check_backend(backend)
    if chosen == PLAIN.name:
        return None
    if static is not None:
        state = state_with_static(step, x, state, static, -1, axis)
    body, x_leaves, state_leaves = checked(step, x, state, axis=axis)
    loop, feeds = body.as_loop(x_leaves, state_leaves, reverse=reverse, level=-1, axis=axis)
    try:
        entry, reads, _ = find_plan(loop, feeds, backend=chosen)
    except Unsupported:
        return None
    if entry.ready is None or entry.compiled is None or not is_as_ever(entry, reads):
        return None
    return entry.ready, entry.compiled.constants, [reads.tensors[place] for place in entry.weights]


def _plainly(step: Any, x: Any, state: Any, *, backend: Backend | None, **how: Any) -> Any:
    """The plain loop, inside the step, too, of tensors without data."""
    with replaced(_WithoutData()):
        return recurrent(step, x, state, **how)


answer_with(_from_graph, _plan_of, _plainly)
