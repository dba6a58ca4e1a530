"""From a call of `recurrent` to a run: find or make the plan, check it once, choose an executor."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.compiler import stored
from stepnet.compiler.capture import Example, tensors_used, user_line, without_modes
from stepnet.compiler.pipeline import Compiled, Signature, compile_step
from stepnet.compiler.portable import digest
from stepnet.compiler.probe import ROWS
from stepnet.compiler.reach import Reach, reach
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import Spec, flatten, unflatten
from stepnet.errors import Refusal, SlowPathWarning, StepError
from stepnet.front.step import StepBody, loop_over
from stepnet.run import naive, plan_files
from stepnet.run.autograd import Call, Ready, run
from stepnet.run.layout import Layout
from stepnet.run.select import executors, make_ready
from stepnet.run.torch_ops import bind

from .backends import transforms_active


@dataclass
class Entry:
    """What is known of one signature of a step: its plan and executor, or why there is none."""

    ready: Ready | None = None
    compiled: Compiled | None = None
    weights: list[int] = field(default_factory=list)
    y_spec: Spec | None = None
    refusals: list[tuple[str, Refusal]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: bool = False  # an executor did not pass the self-check
    warned: bool = False


_restless: dict[Any, Entry] = {}  # steps that change what they read, by code or class
_entries: OrderedDict[Any, Entry] = OrderedDict()
_LIMIT = 512
_lock = threading.RLock()


@dataclass(frozen=True)
class Sequences:
    """The rows of a call, and how to give rows of results back as x came."""

    layout: Layout
    x_rows: list[Tensor]
    restore: Callable[[Tensor], Any]


def as_rows(leaves: Sequence[Any], *, reverse: bool, level: int, axis: int) -> Sequences:
    """See x as a table of rows.

    Raises:
        Refusal: its steps are not rows.
    """
    first = leaves[0]
    if isinstance(first, LoDTensor):
        if level % first.lod_level != first.lod_level - 1:
            raise Refusal("the steps hold whole sequences (a level above the last)")
        for leaf in leaves:
            if not isinstance(leaf, LoDTensor) or leaf.lod_level != first.lod_level:
                raise Refusal("x mixes LoDTensors of different levels with other values")
            if leaf._lod is not first._lod and not torch.equal(leaf._lod.levels[-1], first._lod.levels[-1]):
                raise Refusal("inputs of different lengths")
        layout = Layout.ragged(first._lod.levels[-1], reverse)
        return Sequences(layout, [leaf.values for leaf in leaves], first.with_values)
    shapes = set()
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dim() < 2 or not -leaf.dim() <= axis < leaf.dim():
            raise Refusal("x has no batch dimension beside its time axis")
    axes = {axis % leaf.dim() for leaf in leaves}
    if len(axes) > 1:
        raise Refusal("the time axis of the inputs is not the same dimension")
    (at,) = axes
    majors = [leaf if at <= 1 else leaf.movedim(at, 0) for leaf in leaves]
    shapes = {tuple(leaf.shape[:2]) for leaf in majors}
    if len(shapes) > 1:
        raise Refusal("inputs of different lengths or batch sizes")
    ((one, two),) = shapes
    steps, batch = (two, one) if at == 1 else (one, two)
    layout = Layout.dense(steps, batch, at != 1, reverse)
    rows = [leaf.reshape(one * two, *leaf.shape[2:]) for leaf in majors]

    def restore(table: Tensor) -> Tensor:
        whole = table.reshape(one, two, *table.shape[1:])
        if at <= 1:
            return whole
        if whole.dim() <= at:
            raise Refusal("y has too few dimensions for the time axis")
        return whole.movedim(0, at)

    return Sequences(layout, rows, restore)


def run_compiled(
    body: StepBody, x_leaves: Sequence[Any], state_leaves: Sequence[Tensor], *,
    reverse: bool, level: int, axis: int, backend: str, warn: int = 4,
) -> tuple[Any, list[Tensor]]:  # fmt: skip
    """Run a step by a plan. Without one, a step is warned of once, `warn` frames up; 0: not at all.

    Raises:
        Refusal: no plan can be made, or no executor of `backend` takes it.
    """
    entry, found, sequences = find_plan(
        body, x_leaves, state_leaves, reverse=reverse, level=level, axis=axis, backend=backend
    )
    layout = sequences.layout
    if entry.ready is None or entry.compiled is None or entry.y_spec is None:
        refusal = entry.refusals[-1][1]
        if warn and backend == "auto" and not entry.warned:
            entry.warned = True
            warnings.warn(SlowPathWarning(body.name, refusal), stacklevel=warn)
        raise refusal
    weights = [found.tensors[place] for place in entry.weights]
    x_rows = [rows.contiguous() for rows in sequences.x_rows]
    states = [state.contiguous() for state in state_leaves]
    plain = _plain(body, layout)
    call = Call(entry.ready, layout, entry.compiled.constants, plain)
    out = run(call, x_rows, states, weights)
    n_y = len(entry.ready.plan.y)
    y = unflatten(entry.y_spec, [sequences.restore(rows) for rows in out[:n_y]])
    return y, out[n_y:]


def find_plan(
    body: StepBody, x_leaves: Sequence[Any], state_leaves: Sequence[Tensor], *,
    reverse: bool, level: int, axis: int, backend: str,
) -> tuple[Entry, Reach, Sequences]:  # fmt: skip
    """The plan that a call runs by, what its step reaches, and x as a table of rows.

    Raises:
        Refusal: x or the state is not a table of rows. That no plan can be made is in the entry.
    """
    if transforms_active():
        raise Refusal("a torch.func transform (vmap, grad, jvp) is active")
    sequences = as_rows(x_leaves, reverse=reverse, level=level, axis=axis)
    for name, state in zip(body.state_names, state_leaves, strict=True):
        if state.dim() == 0 or state.shape[0] != sequences.layout.sequences:
            raise Refusal(f"{name} does not have one row per sequence")
    for tensor in (*sequences.x_rows, *state_leaves):
        if type(tensor) is not Tensor and not isinstance(tensor, nn.Parameter):
            raise Refusal(f"a {type(tensor).__name__} is traced or dispatched by rules of its own")
    found = reach(body.step)
    return lookup(body, found, sequences, state_leaves, backend), found, sequences


def lookup(
    body: StepBody, found: Reach, sequences: Sequences, states: Sequence[Tensor], backend: str
) -> Entry:
    """The plan of a call's signature, made at its first use."""
    if found.key[0] in _restless:
        return _restless[found.key[0]]
    grad = torch.is_grad_enabled()
    key = (
        found.key,
        tuple((t.shape, t.dtype, t.requires_grad, t.device.type) for t in found.tensors),
        body.x_spec,
        body.state_spec,
        tuple((t.shape[1:], t.dtype, t.requires_grad, t.device.type) for t in sequences.x_rows),
        tuple((t.shape[1:], t.dtype, t.requires_grad, t.device.type) for t in states),
        grad,
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        backend,
    )
    entry = _entries.get(key)
    if entry is not None:
        return entry
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            entry = _make(body, found, sequences, states, backend)
            _entries[key] = entry
            while len(_entries) > _LIMIT:
                _entries.popitem(last=False)
    return entry


def _make(
    body: StepBody, found: Reach, sequences: Sequences, states: Sequence[Tensor], backend: str
) -> Entry:
    entry = Entry()
    grad = torch.is_grad_enabled()
    try:
        with (  # a plan outlives the modes and hooks it is made under
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            torch.autograd.graph.saved_tensors_hooks(_same, _same),
            without_modes(),
        ):
            _compile(entry, body, found, sequences, states, backend)
    except Refusal as refusal:
        entry.ready = None
        entry.refusals.append(("capture" if entry.compiled is None else "run", refusal))
    return entry


def _compile(
    entry: Entry, body: StepBody, found: Reach, sequences: Sequences, states: Sequence[Tensor], backend: str
) -> None:
    if not found.complete:
        raise Refusal("the step reaches too many objects, or too large arrays, to know what it depends on")
    inputs = (*sequences.x_rows, *states)
    device = inputs[0].device
    if any(t.device != device for t in inputs):
        raise Refusal("x and the state are on different devices")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x_few = [_few(rows, ROWS) for rows in sequences.x_rows]
        state_few = [_few(state, ROWS) for state in states]
        clone = StepBody(body.step, body.x_spec, body.state_spec)
        versions = _versions(found)
        try:
            used = tensors_used(lambda: clone.call(x_few, state_few), [*x_few, *state_few])
        except StepError as error:  # the plain loop meets it too, and tells it with the caller's own rows
            entry.warned = True
            raise Refusal(f"the step fails on sample rows: {error.args[0].splitlines()[0]}") from error
        if reach(body.step).key != found.key:
            _restless[found.key[0]] = entry
            raise Refusal(
                "the step changes Python objects as it runs (a list, a counter): a compiled loop would not",
                remedy="return what is collected as part of y, or backend='naive'",
            )
        if versions != _versions(found):
            raise Refusal("the step changes a tensor it did not make, in place")
    places = {id(t): i for i, t in enumerate(found.tensors)}
    weights: list[tuple[int, Tensor, bool]] = []
    grad = torch.is_grad_enabled()
    for tensor in used:
        if id(tensor) not in places:
            raise Refusal(
                "the step reads a tensor that could not be found again from the step",
                remedy="keep it in a closure, an attribute or a module that the step refers to",
            )
        weights.append((places[id(tensor)], tensor, grad and tensor.requires_grad))
    training = grad and any(t.requires_grad for t in (*inputs, *(t for _, t, _ in weights)))
    signature = Signature(
        name=body.name,
        x=tuple(Example(tuple(t.shape[1:]), t.dtype, training and t.requires_grad) for t in sequences.x_rows),
        states=tuple(Example(tuple(t.shape[1:]), t.dtype, training) for t in states),
        boots=tuple(training and t.requires_grad for t in states),
        x_names=tuple(body.x_names),
        state_names=tuple(body.state_names),
    )
    here = user_line(found.files)

    def call(xs: list[Tensor], state: list[Tensor]) -> tuple[Any, list[Tensor], list[Tensor]]:
        clone = StepBody(body.step, body.x_spec, body.state_spec)
        y, new = clone.call(xs, state)
        leaves, spec = flatten(y)
        return spec, leaves, new

    key = digest(
        found.key,
        [(tuple(t.shape), t.dtype, t.requires_grad, t.device.type) for t in found.tensors],
        [(e.shape, e.dtype, e.grad) for e in (*signature.x, *signature.states)],
        (signature.boots, grad, body.x_spec, body.state_spec),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
    )
    kept = None if key is None else plan_files.read(key)
    if kept is not None:
        with contextlib.suppress(stored.NoPlan):
            _choose(entry, stored.load(kept), body, sequences, states, weights, backend)
            if not entry.wrong:
                return
        entry.ready, entry.refusals, entry.notes, entry.wrong = None, [], [], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compile_step(call, signature, weights, here, bind, [*x_few, *state_few])
    _choose(entry, compiled, body, sequences, states, weights, backend)
    if key is not None and entry.ready is not None and not compiled.fused.random:  # noise cannot be checked
        data = stored.dump(compiled)
        if data is not None:
            plan_files.write(key, data)


def _choose(
    entry: Entry, compiled: Compiled, body: StepBody, sequences: Sequences, states: Sequence[Tensor],
    weights: Sequence[tuple[int, Tensor, bool]], backend: str,
) -> None:  # fmt: skip
    """Take the first executor of a backend that accepts the plan and passes the self-check."""
    device = (*sequences.x_rows, *states)[0].device
    entry.y_spec = compiled.y_spec
    entry.weights = compiled.weights
    compiled = replace(compiled, constants={k: t.to(device) for k, t in compiled.constants.items()})
    entry.compiled = compiled
    for name in executors(backend):
        try:
            if name == "c" and device.type != "cpu":
                raise Refusal(f"the rows are on {device.type}; generated C runs on the CPU")
            ready = make_ready(name, compiled.fused if name == "c" else compiled.hoisted)
        except Refusal as refusal:
            entry.refusals.append((name, refusal))
            continue
        if compiled.fused.random:
            entry.notes.append("the step draws noise: the self-check was skipped")
            entry.ready = ready
            return
        try:
            _self_check(body, ready, compiled, sequences, states, [t for _, t, _ in weights])
        except Refusal as refusal:
            entry.refusals.append((name, refusal))
            entry.wrong = True
        except RuntimeError as error:
            entry.refusals.append((name, Refusal(f"it failed on sample rows: {str(error).splitlines()[0]}")))
            entry.wrong = True
        else:
            entry.ready = ready
            return
    if not entry.refusals:
        raise Refusal(f"no executor of backend '{backend}'")


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _versions(found: Reach) -> list[int]:
    """A count for each reached tensor that every change in place raises; inference tensors have none."""
    return [0 if t.is_inference() else t._version for t in found.tensors]


def _few(rows: Tensor, n: int) -> Tensor:
    """n rows like those given: the first one again and again, zeros if there is none."""
    if rows.shape[0] == 0:
        return rows.new_zeros((n, *rows.shape[1:]))
    return rows.detach()[torch.arange(n, device=rows.device) % rows.shape[0]].clone()


def _plain(body: StepBody, layout: Layout) -> Callable[..., tuple[list[Tensor], list[Tensor]]]:
    """The plain loop over rows of a layout."""

    def plain(x: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        sequence_rows = layout.by_sequence
        back = torch.empty_like(sequence_rows)
        back[sequence_rows] = torch.arange(len(sequence_rows))
        clone = StepBody(body.step, body.x_spec, body.state_spec)
        lengths = [layout.lengths]
        tables = [
            LoDTensor.from_lengths(rows.index_select(0, sequence_rows.to(rows.device)), lengths) for rows in x
        ]
        loop = loop_over(clone, reverse=False, level=-1, axis=0)
        feeds = dict(zip(clone.parameters, (*tables, *states), strict=True))
        out = naive.run(loop, feeds)
        y = [leaf.values.index_select(0, back.to(leaf.values.device)) for leaf in flatten(out["y"])[0]]
        return y, [out[name] for name in clone.new_state_names]

    return plain


def _self_check(
    body: StepBody, ready: Ready, compiled: Compiled, sequences: Sequences, states: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> None:  # fmt: skip
    """Compare one small batch with the plain loop: values and every gradient.

    Raises:
        Refusal: they differ.
    """
    layout = Layout.ragged(torch.tensor([0, 2, 2, 5, 6]), reverse=False)
    generator = torch.Generator().manual_seed(20)

    def sample(table: Tensor, n: int, spread: float) -> Tensor:
        rows = _few(table, n)
        if table.shape[0]:
            chosen = torch.randint(table.shape[0], (n,), generator=generator)
            rows = table.detach()[chosen.to(table.device)].clone()
        if rows.dtype.is_floating_point:
            noise = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            rows = rows + spread * noise.to(rows)
        return rows.requires_grad_(table.requires_grad and ready.backward is not None)

    x = [sample(t, 6, 0.0) for t in sequences.x_rows]
    boot = [sample(t, 4, 0.1) for t in states]
    plain = _plain(body, layout)
    with torch.random.fork_rng(devices=[]):
        ours = run(Call(ready, layout, compiled.constants, plain), x, boot, list(weights))
        y, finals = plain(x, boot)
    theirs = [*y, *finals]
    loose = _looseness(compiled)
    names = [*(f"y{i}" for i in range(len(y))), *body.new_state_names]
    for name, a, b in zip(names, ours, theirs, strict=True):
        _compare(name, a, b, loose)
    if ready.backward is None:
        return
    wanted = [t for t in (*x, *boot, *weights) if t.requires_grad]
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.requires_grad]
    for a, _ in pairs:
        if not a.requires_grad:
            raise Refusal("self-check: a result lost its gradient")
    seeds = [torch.randn(b.shape, generator=generator, dtype=torch.float64).to(b) for _, b in pairs]
    mine, other = (
        torch.autograd.grad(_weighed(results, seeds), wanted, allow_unused=True)
        for results in zip(*pairs, strict=True)
    )
    for tensor, a, b in zip(wanted, mine, other, strict=True):
        like = torch.zeros_like(tensor)
        a, b = (like if gradient is None else gradient for gradient in (a, b))
        _compare(f"gradient of a {tuple(tensor.shape)}", a, b, loose)


def _weighed(results: Sequence[Tensor], seeds: Sequence[Tensor]) -> Tensor:
    """One number whose gradient for each result is its seed. Differentiating tensors would make torch import
    what it traces with, which takes a second."""
    parts = [
        (torch.view_as_real(a) * torch.view_as_real(seed) if a.is_complex() else a * seed).sum()
        for a, seed in zip(results, seeds, strict=True)
    ]
    return torch.stack([part.float() for part in parts]).sum()


def _looseness(compiled: Compiled) -> float:
    """How far numbers may be apart in a step of these dtypes, the least precise of them."""
    dtypes = {value.dtype for value in compiled.joint.graph.values.values()}
    if torch.is_autocast_enabled("cpu") or dtypes & {"float16", "bfloat16"}:
        return 5e-2
    return 2e-4 if dtypes & {"float32", "complex64"} else 1e-9


def _compare(name: str, a: Tensor, b: Tensor, loose: float) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Refusal(
            f"self-check: {name} is {a.dtype}{list(a.shape)}, the plain loop says {b.dtype}{list(b.shape)}"
        )
    if not (a.is_floating_point() or a.is_complex()):
        same = torch.equal(a, b)
    else:
        scale = float(b.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
        same = torch.allclose(a, b, rtol=loose, atol=loose * max(scale, 1e-3), equal_nan=True)
    if not same:
        raise Refusal(f"self-check: {name} differs from the plain loop", remedy="please report this step")
