"""Random models made of all that works on sequences, one stage after the other, beside the same by hand over
one sequence and one row at a time.

A stage is a recurrence of a step with some options, a layer of `stepnet.nn`, a recurrence inside a step over
pieces, a dynamic recurrence, a `while_loop` that reads and writes rows, the pieces of `truncated`, or an
operator of whole sequences. What is done with a model is one of `WAYS`.

`python -m fuzz.sequences [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stepnet
from stepnet import LoDTensor
from stepnet.errors import StepnetError
from threads import at_once

from . import seeds
from .compare import same
from .stages import Given, H, make_stage

LENGTHS = ([3, 0, 1, 4], [1], [2], [5], [0, 0], [2, 5, 1], [3, 3], [1, 1, 2, 6], [7, 2], [4, 4, 4], [])
LOOSE = {torch.float64: 1e-8, torch.float32: 2e-3}


class Model(nn.Module):
    """Some stages; its results are those of each."""

    def __init__(self, pick: random.Random, only: str = ""):
        super().__init__()
        stages = [make_stage(pick, only) for _ in range(pick.choice([1, 1, 2, 2, 3]))]
        self.stages = nn.ModuleList(stages)
        self.first = nn.Parameter(torch.zeros(H))

    def forward(self, x: LoDTensor, given: Given) -> list[Tensor]:
        found = []
        for stage in self.stages:
            x, own = stage(x, given)
            found += [x.values, *own]
        return found

    def alone(self, rows: Tensor, given: Given) -> list[tuple[Tensor, list[Tensor]]]:
        """The results of one sequence: the rows of each stage, and its other results."""
        found = []
        for stage in self.stages:
            rows, own = stage.alone(rows, given)
            found.append((rows, own))
        return found

    def __repr__(self) -> str:
        return " > ".join(stage.what for stage in self.stages)


class World:
    """A model and its inputs, the same at each time for a seed."""

    def __init__(self, seed: int, only: str = ""):
        self.seed, self.pick = seed, random.Random(seed)
        pick = self.pick
        self.noise = torch.Generator().manual_seed(seed)
        self.lengths = list(pick.choice(LENGTHS))
        self.model = Model(pick, only)
        self.dtype = pick.choice([torch.float64, torch.float64, torch.float32])
        if only == "files":
            self.lengths, self.dtype = self.lengths if any(self.lengths) else [2, 1], torch.float32
        self.model.to(self.dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(self.random(*p.shape) * 0.6)
        n, rows = len(self.lengths), sum(self.lengths)
        self.counts = [pick.randrange(4) for _ in self.lengths]
        self.rows, self.state = self.random(rows, H), self.spread(self.random(n, H))
        self.memory = self.random(sum(self.counts), H)
        self.marks = torch.rand(rows, generator=self.noise) < pick.choice([0.0, 0.3, 0.3, 1.0])
        for t in (self.rows, self.state, self.memory):
            t.requires_grad_(pick.random() < 0.6)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.noise, dtype=torch.float64).to(self.dtype)

    def spread(self, state: Tensor) -> Tensor:
        """The state in some storage: its own, every second column, turned, or one row for all."""
        n = len(state)
        kind = self.pick.choice(["own", "own", "columns", "turned", "expanded"])
        if kind == "columns":
            return state.repeat_interleave(2, 1)[:, ::2]
        if kind == "expanded" and n:
            return state[:1].clone().expand(n, H)
        return state.t().contiguous().t() if kind == "turned" else state

    @property
    def leaves(self) -> list[Tensor]:
        return [t for t in (*self.model.parameters(), self.rows, self.state, self.memory) if t.requires_grad]

    # ---- both ways to the results

    def ours(self, model: Any = None) -> list[Tensor]:
        x = LoDTensor.from_lengths(self.rows, [self.lengths])
        memory = LoDTensor.from_lengths(self.memory, [self.counts])
        return (self.model if model is None else model)(
            x, Given(self.state, x.with_values(self.marks), memory)
        )

    def by_hand(self, model: Any = None) -> list[Tensor]:
        model = self.model if model is None else model
        many = zip(
            self.rows.split(self.lengths), self.state.split(1), self.marks.split(self.lengths),
            self.memory.split(self.counts), strict=True,
        )  # fmt: skip
        each = [model.alone(rows, Given(h, marks, memory)) for rows, h, marks, memory in many]
        found = []
        for parts in zip(*each, strict=True):
            found.append(torch.cat([rows for rows, _ in parts]))
            found += [torch.cat(own) for own in zip(*(own for _, own in parts), strict=True)]
        return found

    def number(self, found: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for k, t in enumerate(found):
            t = torch.view_as_real(t) if t.is_complex() else t
            if t.is_floating_point():
                weight = torch.arange(t.numel(), dtype=torch.float64).add(k).cos().view(t.shape)
                total = total + (t.double() * weight).sum() + 0.1 * t.double().square().sum()
        return total

    def gradients(self, found: list[Tensor], **how: Any) -> list[Tensor | None]:
        total, leaves = self.number(found), self.leaves
        if not (total.requires_grad and leaves):
            return [None for _ in leaves]
        return [*torch.autograd.grad(total, leaves, allow_unused=True, **how)]


ONLY = {"streamed": "streams", "exported": "graph", "saved": "files"}
Run = Callable[..., list[Tensor]]
WAYS: dict[str, Callable[[World, Run], list[Any]]] = {}


def way(function: Callable[[World, Run], list[Any]]) -> Callable[[World, Run], list[Any]]:
    WAYS[function.__name__] = function
    return function


@way
def trained(w: World, run: Run) -> list[Any]:
    out = run()
    return [*out, *w.gradients(out)]


@way
def accumulated(w: World, run: Run) -> list[Any]:
    """Two runs before an update, and one after it."""
    kept: list[Any] = []
    for k in range(3):
        out = run()
        total = w.number(out)
        if total.requires_grad and w.leaves:
            total.backward()
        kept += out
        if k == 1:
            with torch.no_grad():
                for p in w.model.parameters():
                    if p.grad is not None:
                        p.sub_(0.01 * p.grad)
    return [*kept, *(t.grad for t in w.leaves)]


@way
def changed(w: World, run: Run) -> list[Any]:
    """Marks, rows and weights written to, and sequences that are cut in another way, between calls."""
    kept = [t.clone() for t in run()]
    w.marks.copy_(w.marks.flip(0))
    with torch.no_grad():
        w.rows.mul_(0.5)
        for p in w.model.parameters():
            p.mul_(-1.1)
    kept += [t.clone() for t in run()]
    if not any(getattr(stage, "dense", False) for stage in w.model.stages):
        w.lengths = w.lengths[::-1]
    out = run()
    return [*kept, *out, *w.gradients(out)]


@way
def second(w: World, run: Run) -> list[Any]:
    out = run()
    first = w.gradients(out, create_graph=True)
    again = [g.square().sum() for g in first if g is not None and g.requires_grad]
    more = torch.autograd.grad(sum(again), w.leaves, allow_unused=True) if again else [None for _ in w.leaves]
    return [*out, *first, *more]


@way
def kept_graph(w: World, run: Run) -> list[Any]:
    out = run()
    return [*out, *w.gradients(out, retain_graph=True), *w.gradients(out)]


@way
def without(w: World, run: Run) -> list[Any]:
    with torch.no_grad():
        kept = [*run()]
    with torch.inference_mode():
        kept += [t.clone() for t in run()]
    out = run()
    return [*kept, *out, *w.gradients(out)]


@way
def recomputed(w: World, run: Run) -> list[Any]:
    out: Any = checkpoint(run, use_reentrant=False)
    return [*out, *w.gradients(out)]


@way
def transformed(w: World, run: Run) -> list[Any]:
    """Gradients, tangents and an ensemble, by torch.func."""
    named = {k: v.detach() for k, v in w.model.named_parameters()}
    how = run.__name__

    def called(weights: Any) -> list[Tensor]:
        model = Swapped(w.model, weights)
        return getattr(w, how)(model)

    kept = list(torch.func.grad(lambda own: w.number(called(own)))(named).values())
    pushed = torch.func.jvp(lambda own: w.number(called(own)), (named,), (named,))
    stacked = {k: torch.stack([v, v * 0.5]) for k, v in named.items()}
    many = torch.func.vmap(lambda own: w.number(called(own)))(stacked)
    return [*kept, *pushed, many]


class Swapped:
    """A model with other weights."""

    def __init__(self, model: nn.Module, weights: Any):
        self.model, self.weights = model, weights

    def __call__(self, *given: Any) -> Any:
        return torch.func.functional_call(self.model, self.weights, given)

    def alone(self, *given: Any) -> Any:
        return torch.func.functional_call(
            _Alone(self.model), {f"m.{k}": v for k, v in self.weights.items()}, given
        )


class _Alone(nn.Module):
    def __init__(self, m: nn.Module):
        super().__init__()
        self.m = m

    def forward(self, *given: Any) -> Any:
        return self.m.alone(*given)


@way
def copied(w: World, run: Run) -> list[Any]:
    run()
    other = copy.deepcopy(w.model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)
    read = pickle.loads(pickle.dumps(w.model))
    kept = [*run(other), *run(read)]
    read.load_state_dict(other.state_dict())
    kept += run(read)
    out = run()
    return [*kept, *out, *w.gradients(out)]


@way
def threads(w: World, run: Run) -> list[Any]:
    def one(_: int) -> list[Any]:
        out = run()
        return [*out, *w.gradients(out)]

    return [t for own in at_once(one, 2) for t in own]


@way
def lower(w: World, run: Run) -> list[Any]:
    with torch.autocast("cpu", torch.bfloat16):
        out = run()
    return [*out, *w.gradients(out)]


@way
def compiled(w: World, run: Run) -> list[Any]:
    torch._dynamo.reset()
    own = torch.compile(w.model, backend="aot_eager") if run.__name__ == "ours" else w.model
    kept: list[Any] = []
    for _ in range(2):
        out = run(own)
        kept += [*out, *w.gradients(out)]
        with torch.no_grad():
            for p in w.model.parameters():
                p.mul_(0.9)
    return kept


@way
def streamed(w: World, run: Run) -> list[Any]:
    """Rows that come in chunks, of streams that join late."""
    shared = w.random(2, H)
    w.memory, w.counts = torch.cat([shared] * len(w.lengths) or [shared[:0]]), [2] * len(w.lengths)
    w.state = w.model.first.detach().expand(len(w.lengths), H)
    if run.__name__ == "by_hand":
        with torch.no_grad():
            found = run()
        return [found[0]] if len(w.model.stages) == 1 else [_last_rows(w, found)]

    def module(x: Any) -> LoDTensor:
        n = len(x["x"])
        memory = LoDTensor.from_lengths(torch.cat([shared] * n), [[2] * n])
        y, given = x["x"], Given(w.model.first.expand(n, H), x["marks"], memory)
        for stage in w.model.stages:
            y, _ = stage(y, given)
        return y

    live, at, ids = stepnet.stream(module), [0] * len(w.lengths), {}
    got: list[list[Tensor]] = [[w.rows[:0]] for _ in w.lengths]
    rows, marks = w.rows.detach().split(w.lengths), w.marks.split(w.lengths)
    while any(k < n for k, n in zip(at, w.lengths, strict=True)):
        chunks = {}
        for b in w.pick.sample(range(len(at)), w.pick.randint(1, len(at))):
            if b not in ids:
                ids[b] = live.open()
            own = slice(at[b], at[b] + w.pick.randrange(4))
            chunks[ids[b]] = {"x": rows[b][own], "marks": marks[b][own]}
            at[b] = min(own.stop, w.lengths[b])
        back = {i: b for b, i in ids.items()}
        if w.pick.random() < 0.3:
            with contextlib.suppress(StepnetError):
                live.push({**chunks, "no stream": chunks[next(iter(chunks))]})
        for i, y in live.push(chunks).items():
            got[back[i]].append(y)
        if w.pick.random() < 0.3:
            other = stepnet.stream(module)
            other.load_state_dict(copy.deepcopy(live.state_dict()))
            live = other
    return [torch.cat([t for own in got for t in own])] if got else [w.rows.detach()]


@way
def exported(w: World, run: Run) -> list[Any]:
    """A program made with another batch."""
    if run.__name__ == "by_hand":
        return run()

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = w.model

        def forward(self, rows: Any, offsets: Any, state: Any, marks: Any, memory: Any, places: Any) -> Any:
            x = LoDTensor(rows, [offsets])
            return self.model(x, Given(state, x.with_values(marks), LoDTensor(memory, [places])))

    lengths, counts = [3, 4, 2, 1, 5], [2, 3, 1, 4, 1]
    sizes = sum(lengths), len(lengths), sum(counts)
    rows, state, memory = (w.random(k, H) for k in sizes)
    example = rows, _offsets(lengths), state, torch.arange(len(rows)) % 3 == 1, memory, _offsets(counts)
    every = ({0: torch.export.Dim.AUTO},) * len(example)
    program = torch.export.export(Program(), example, dynamic_shapes=every)
    return program.module()(
        w.rows, _offsets(w.lengths), w.state, w.marks, w.memory, _offsets(w.counts)
    )  # fmt: skip


def _offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@way
def saved(w: World, run: Run) -> list[Any]:
    """Written to a file by an example of other lengths, and run there."""
    if run.__name__ == "by_hand":
        with torch.no_grad():
            return run()
    x = LoDTensor.from_lengths(w.random(6, H), [[4, 2]])
    marks = x.with_values(torch.arange(6) % 3 == 1)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = w.model

        def forward(self, x: Any, state: Any, marks: Any) -> Any:
            found, at = self.model(x, Given(state, marks, None)), 0
            out: list[Any] = []
            for stage in self.model.stages:
                out += [x.with_values(found[at]), *found[at + 1 : at + 1 + stage.more]]
                at += 1 + stage.more
            return tuple(out)

    mod, name = w.pick.choice([(stepnet.onnx, "m.onnx"), (stepnet.openvino, "m.xml")])
    grid = lambda rows: LoDTensor.from_lengths(rows, [w.lengths]).to_padded()[0].detach()  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        mod.save(Whole(), path, (x, w.random(2, H), marks))
        given = {"rows": grid(w.rows), "state": w.state.detach(), "marks": grid(w.marks)}
        made = _run_file(path, given, torch.tensor(w.lengths))
    out, at = [], 0
    for stage in w.model.stages:
        out += [
            LoDTensor.from_padded(made[at], torch.tensor(w.lengths)).values,
            *made[at + 1 : at + 1 + stage.more],
        ]
        at += 1 + stage.more
    return out


def _run_file(path: Any, given: dict[str, Tensor], lengths: Tensor) -> list[Tensor]:
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        inputs = [i.name for i in session.get_inputs()]
        run = lambda feeds: session.run(None, feeds)  # noqa: E731
    else:
        import openvino

        model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        inputs = [i.any_name for i in model.inputs]
        run = lambda feeds: [*model(feeds).values()]  # noqa: E731
    feeds = {}
    for name in inputs:
        key = next((k for k in ("lengths", "state", "marks") if k in name), "rows")
        feeds[name] = (lengths if key == "lengths" else given[key]).contiguous().numpy()
    return [torch.as_tensor(a) for a in run(feeds)]


def _last_rows(w: World, found: list[Tensor]) -> Tensor:
    sizes = [1 + stage.more for stage in w.model.stages]
    return found[sum(sizes[:-1])]


def outcome(seed: int, hand: bool) -> list[Any] | Exception:
    name = way_of(seed)
    w = World(seed, ONLY.get(name, ""))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = WAYS[name](w, w.by_hand if hand else w.ours)
            return [None if t is None else t.detach().clone() for t in found]
    except Exception as error:
        return error


def way_of(seed: int) -> str:
    return random.Random(seed + 1).choice([*WAYS])


def check(seed: int) -> str | None:
    """How a model differs from the loop by hand; None: not at all."""
    name, w = way_of(seed), World(seed, ONLY.get(way_of(seed), ""))
    if not w.lengths:
        plain: Any = None  # by hand nothing is run
        ours = outcome(seed, False)
        return f"{name}: {w.model}\n{ours!r}" if isinstance(ours, Exception) else None
    what = f"{name}: lengths {w.lengths}, {w.dtype}: {w.model}"
    plain, ours = outcome(seed, True), outcome(seed, False)
    if isinstance(plain, Exception):
        return f"{what}\nby hand: {type(plain).__name__}: {plain}"
    if isinstance(ours, Exception):
        return f"{what}\n{type(ours).__name__}: {ours}"
    if len(plain) != len(ours):
        return f"{what}\n{len(ours)} results and gradients, not {len(plain)}"
    loose = 0.2 if name == "lower" else LOOSE[w.dtype]
    for k, (a, b) in enumerate(zip(ours, plain, strict=True)):
        a, b = (torch.zeros_like(t) if s is None and t is not None else s for s, t in ((a, b), (b, a)))
        a, b = (torch.view_as_real(t) if t is not None and t.is_complex() else t for t in (a, b))
        if name == "lower" and a is not None:  # by hand nothing is run of a sequence without rows
            a, b = a.float(), b.float()
        if not same(a, b, loose):
            return f"{what}\nresult {k} of {len(plain)}: {a}, not {b}"
    return None


if __name__ == "__main__":
    seeds.main(check, "models of sequences")
