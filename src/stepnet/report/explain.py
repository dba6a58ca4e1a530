"""`explain`: find the plan that `recurrent` would run a step by, and describe it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, overload

import torch
from torch import nn
from typing_extensions import Unpack

from stepnet.api import Recurrent
from stepnet.checks import checked, state_with_static
from stepnet.compiler.reads.reach import reach
from stepnet.compiler.trace.iteration import code_of
from stepnet.data.arguments import truth, whole
from stepnet.data.dtypes import dtype_name
from stepnet.data.in_graph import leave_to_python, not_followed
from stepnet.data.lod import LoDTensor
from stepnet.data.values import rows_of
from stepnet.engine import Entry, OverSequences, carrying, find_plan, leaving, why_not_looked_at
from stepnet.errors import StepError, Unsupported
from stepnet.executors.base import Backend
from stepnet.executors.naive import PLAIN
from stepnet.executors.registry import AUTO, is_backend, tried
from stepnet.executors.setting import check_backend
from stepnet.front.step import step_name
from stepnet.front.step_counter import clock
from stepnet.ir.loop import Loop, Sweep
from stepnet.nested import loop_over_words
from stepnet.resets import as_pieces
from stepnet.typed import Booting
from stepnet.user_line import line_in

from .describe_plan import describe_plan, generated_source
from .explain_model import explain_model, is_model
from .explanation import Explanation, ModelExplanation
from .names import SourceLines
from .plain_loop import describe_plain_loop
from .records import REFUSED, LoopSummary, Refused, Saved


class _How(TypedDict, total=False):
    steps: Any
    static: Any
    reverse: bool
    level: int
    axis: int
    resets: Any
    source: bool
    backend: Backend | None


@overload
def explain(
    step: nn.RNNCellBase | Recurrent[Any] | Booting[Any], x: Any = None, state: Any = None,
    **how: Unpack[_How],
) -> Explanation: ...  # fmt: skip
@overload
def explain(
    step: nn.Module, x: Any = None, state: Any = None, **how: Unpack[_How]
) -> Explanation | ModelExplanation: ...
@overload
def explain(
    step: Callable[[Any, Any], tuple[Any, Any]] | Callable[[Any, Any, Any], tuple[Any, Any]],
    x: Any = None, state: Any = None, **how: Unpack[_How],
) -> Explanation: ...  # fmt: skip
@overload
def explain(
    step: Callable[..., Any], x: Any = None, state: Any = None, **how: Unpack[_How]
) -> Explanation | ModelExplanation: ...
@not_followed
def explain(
    step: Any,
    x: Any = None,
    state: Any = None,
    *,
    steps: Any = None,
    static: Any = None,
    reverse: bool = False,
    level: int = -1,
    axis: int = 0,
    resets: Any = None,
    source: bool = False,
    backend: Backend | None = None,
) -> Explanation | ModelExplanation:
    """Describe what `recurrent` does with a step: what runs once, what at every step, why, and at what cost.

    Finds the plan as `recurrent` does (and leaves it ready for it), but does not run the loop. A step that
    cannot be compiled is called once more, on the first step of x, to note its torch calls.

    A model is run once, as `model(x)` or `model(x, state)`, and each recurrence that it meets is explained,
    in the order in which they run. `stepnet.nn.LSTM`, `GRU` and `RNN` are models, and so is what can be
    called with x alone and has no `initial_state`. Other arguments are then for its recurrences to say.

    Args:
        step: a step as `recurrent` takes it; a `Recurrent`, whose own settings then hold; or a model.
        x: as `recurrent` takes it, or what the model takes; all inputs of a `TensorIterator` or of a model
            read from OpenVINO IR as a dict or a tuple. The plan depends on shapes, dtypes and which gradients
            are wanted; the costs on the lengths too.
        state: as `recurrent` takes it, or the model's second argument.
        steps: as in `recurrent`, in place of x.
        static: as in `recurrent`.
        reverse: as in `recurrent`.
        level: as in `recurrent`.
        axis: as in `recurrent`.
        resets: as in `recurrent`; what is described are the pieces, which run as sequences.
        backend: as in `recurrent`.
        source: also keep the generated C.

    Returns:
        An `Explanation`: `print(it)` for text, `it.to_svg("step.svg")` for a picture, which a notebook shows
        by itself; `it.executor`, `it.regions`, `it.saved`, `it.refusals` and more for programs.
        Floating-point operations count 2 K for each element of a matmul over K, 10 for one of exp, tanh and
        the like, 1 for other arithmetic. Bytes are those that cross a region's border.
        Of a model a `ModelExplanation`, whose `recurrences` are such `Explanation`s.

    Raises:
        StepError: the step or what it was given does not fit, as `recurrent` says it; a model met no
            recurrence, or was given settings that are its recurrences' own.

    >>> x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
    >>> told = explain(lambda x, s: (s + x, s + x), x, torch.zeros(2, 1), backend="eager")
    >>> told.executor, told.linear, [region.kind for region in told.regions]
    ('eager', ('state',), ['scan'])
    """
    if torch.compiler.is_dynamo_compiling():
        leave_to_python("stepnet: explain looks at Python")
    level, axis = whole("explain: 'level'", level), whole("explain: 'axis'", axis)
    reverse, source = truth("explain: 'reverse'", reverse), truth("explain: 'source'", source)
    if steps is None and static is None and resets is None and is_model(step, state):
        _check_unset(
            step, reverse=(reverse, False), level=(level, -1), axis=(axis, 0), backend=(backend, None)
        )
        return explain_model(step, x, state, functools.partial(explain_loop, source=source))
    scopes = False
    if isinstance(step, Recurrent):
        reverse, level, axis, scopes = step.reverse, step.level, step.axis, step.scopes
        backend = step.backend if backend is None else backend
        step = step.step
    if steps is not None:
        x, state = clock(step, x, state, steps, axis)
    if static is not None:
        state = state_with_static(step, x, state, static, level, axis)
    if resets is not None:
        x, state, level = as_pieces(step, x, state, resets, reverse=reverse, level=level, axis=axis)
    body, x_leaves, states = checked(step, x, state, level=level, axis=axis)
    loop, feeds = body.as_loop(x_leaves, states, reverse=reverse, level=level, axis=axis)
    return explain_loop(loop, feeds, scopes=scopes, backend=backend, source=source)


def _check_unset(model: Any, **settings: tuple[Any, Any]) -> None:
    """Refuse settings, each with what it is by default, that are for a model's recurrences to say."""
    changed = [name for name, (value, default) in settings.items() if value != default]
    if changed:
        raise StepError(
            f"{step_name(model)} is a model: its recurrences have their own {', '.join(changed)}",
            remedy="set them where the model calls recurrent, or explain a step",
        )


def explain_loop(
    loop: Loop, feeds: Mapping[str, Any], *, scopes: bool, backend: Backend | None, source: bool = False
) -> Explanation:
    """Describe what is done with a loop, a sweep over rows.

    Args:
        loop: the record of the loop.
        feeds: the value of each input port's `source`.
        scopes: whether the scopes of its steps are kept.
        backend: as in `recurrent`.
        source: also keep the generated C.
    """
    body, sweep = code_of(loop), loop.sweep
    assert sweep is not None
    x_leaves, states, shared = ([feeds[name] for name in part] for part in loop.sources)
    chosen = check_backend(backend)
    captures: Any = reach(body.function)
    code = SourceLines(captures.files)
    entry, notes = Entry(), list[str]()
    if chosen == PLAIN.name or scopes:
        asked = "scopes=True" if scopes else "backend='naive'"
        refusal = getattr(body.function, "refusal", None) or Unsupported(f"{asked} asks for the plain loop")
        entry.refusals.append(("compiler", refusal))
    else:
        entry, found, loop, feeds, note = _found(loop, feeds, chosen)
        captures = captures if found is None else found
        notes += [note] if note else []
        sweep = loop.sweep
        assert sweep is not None
        x_leaves, states, shared = ([feeds[name] for name in part] for part in loop.sources)
    notes += entry.notes
    counts = _counts(x_leaves[0], sweep)
    loops: tuple[LoopSummary, ...] = ()
    saved: tuple[Saved, ...] = ()
    linear: tuple[str, ...] = ()
    if entry.ready is not None and entry.y_spec is not None:
        executor, label = entry.ready.executor.name, entry.ready.executor.label
        tensors = [captures.tensors[place] for place in entry.weights]
        loops, saved, linear = describe_plan(
            entry.ready, loop, entry.y_spec, tensors, counts, code, rows_of(x_leaves[0]).device.type
        )
    elif chosen not in (AUTO, PLAIN.name) and not scopes:
        executor, label = REFUSED, "declined"
    else:
        executor, label = PLAIN.name, PLAIN.label
        described, note = describe_plain_loop(loop, feeds, line_in(captures.files), counts, code)
        loops = (described,)
        notes.append(note)
    lengths = sorted(counts)
    tables = list(map(rows_of, x_leaves))
    wants = any(t.requires_grad for t in (*tables, *states, *shared, *captures.tensors))
    return Explanation(
        name=body.name,
        reverse=sweep.reverse,
        executor=executor,
        label=label,
        rows=sum(lengths),
        sequences=len(lengths),
        steps=lengths[-1] if lengths else 0,
        shortest=lengths[0] if lengths else 0,
        dtype=dtype_name(tables[0].dtype),
        training=torch.is_grad_enabled() and wants,
        loops=loops,
        saved=saved,
        refusals=tuple(_refused(name, refusal, code) for name, refusal in entry.refusals),
        linear=linear,
        notes=tuple(notes),
        source=generated_source(entry.ready) if source else None,
    )


def _found(
    loop: Loop, feeds: Mapping[str, Any], backend: str
) -> tuple[Entry, Any, Loop, Mapping[str, Any], str]:
    """The plan of a loop, or of another in its place: what is known of it, what it reads, that loop,
    what it is fed, and what is to be said of it."""
    try:
        entry, captures, sequences = find_plan(loop, feeds, backend=backend)
    except OverSequences as refusal:
        try:
            words, fed = loop_over_words(loop, dict(feeds), loop.body, backend=backend)
            entry, captures, _ = find_plan(words, fed, backend=backend)
            if entry.ready is None:
                raise entry.refusals[-1][1]
            note = "its steps are sequences; it runs over the elements of all of them at once"
            return entry, captures, words, fed, note
        except Unsupported as why:
            return _declined(Unsupported(f"{refusal.reason}: {why.reason}")), None, loop, feeds, ""
    except Unsupported as refusal:
        return _declined(refusal), None, loop, feeds, ""
    if entry.ready is None and (left := leaving(loop, captures, sequences)) is not None:
        step, others = left
        known, of, _ = find_plan(others, feeds, backend=backend)
        if known.ready is not None:
            names = ", ".join(f".{name}" for _, name in step.where)
            return known, of, others, feeds, f"left by the last step, which runs by the plain loop: {names}"
    if entry.ready is None and (carried := carrying(loop, feeds, captures)) is not None:
        others, fed, attributes = carried
        known, of, _ = find_plan(others, fed, backend=backend)
        if known.ready is not None:
            names = ", ".join(f".{name}" for name in attributes)
            return known, of, others, fed, f"carried as state after the first step: {names}"
        entry, captures = known, of
    return entry, captures, loop, feeds, why_not_looked_at(loop, sequences) if backend == AUTO else ""


def _declined(refusal: Unsupported) -> Entry:
    entry = Entry()
    entry.refusals.append(("compiler", refusal))
    return entry


def _counts(x: Any, sweep: Sweep) -> list[int]:
    """How many steps each sequence takes."""
    if isinstance(x, LoDTensor):
        return x.lengths(-1 if sweep.level is None else sweep.level).tolist()
    shape = list(x.shape)
    steps = shape.pop(sweep.axis)
    return [steps] * (shape[0] if shape else 1)


def _refused(executor: str, refusal: Unsupported, code: SourceLines) -> Refused:
    known = tried(executor) if is_backend(executor) else ()
    who, label = (known[0].name, known[0].label) if known else ("compiler", "the compiler")
    return Refused(who, label, refusal.reason, refusal.remedy, refusal.line, code.at(refusal.line))
