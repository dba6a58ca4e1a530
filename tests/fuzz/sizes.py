"""Random steps of wide rows on paths that only large tables take: by plans and by the plain loop.

How large is large is decided by numbers in the source; some of these are lowered, and some runs have many
rows. Compared are results, first and second derivatives, those by what came in, gradients in batches and
directions, and what shares memory with what, in calls that are made several times.

`python -m fuzz.sizes [first] [count] [backend]` runs those of some seeds.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from stepnet import LoDTensor, recurrent
from stepnet.compiler.passes import early_columns
from stepnet.data.storage import memory_of
from stepnet.data.tree import flatten
from stepnet.engine.plans import forget
from stepnet.errors import Unsupported
from stepnet.executors import addresses, autograd, direct, loop, ready, transformed
from stepnet.executors.c import (
    few_rows,
    new_tables,
    on_rows,
    over_rows,
    placement,
    scan,
    source,
    thread_gain,
    threads,
    zero_tails,
)
from stepnet.executors.schedule import over_steps, turns, wide
from stepnet.executors.torch_ops import ops

from . import seeds

# Where a path begins, and at what else it may begin. What is written into C is part of the text of a scan.
THRESHOLDS: dict[tuple[Any, str], tuple[Any, ...]] = {
    (autograd, "WORTH_ASKING"): (0,),
    (early_columns, "LARGE"): (0, 256),
    (loop, "_BY_COPY"): (0,),
    (ready, "_FEW"): (0, 1 << 20),
    (addresses, "_FOUND"): (0,),
    (direct, "_SURE"): (0, 1 << 20),
    (transformed, "NEAR"): (0,),
    (scan, "WORTH_SPLITTING"): (0,),
    (few_rows, "MOST"): (0, 1 << 12),
    (few_rows, "WORK"): ((0, 0), (1 << 30, 1 << 30)),
    (new_tables, "LED"): (0, 1 << 30),
    (new_tables, "SMALL"): (0, 1 << 30),
    (on_rows, "_WORK"): (0,),
    (on_rows, "_ROWS"): (0,),
    (over_rows, "_WORK"): (0,),
    (over_rows, "_FEW_ROWS"): (0,),
    (over_rows, "_FEW_COLUMNS"): (1,),
    (over_rows, "_PART"): (1, 16),
    (over_rows, "_SHARE"): (16,),
    (threads, "_MULTIPLIED"): (1,),
    (thread_gain, "SHORT"): (0,),
    (placement, "SHORT"): (0,),
    (placement, "ALONE"): (0,),
    (placement, "MEMBER_BYTES"): (1,),
    (placement, "FAR"): (0,),
    (placement, "NEAR"): (1, 256),
    (placement, "WORTH_TURNS"): (1e-9, 10.0),  # 0 of a time stands for no turns at all
    (placement, "WORTH_TURNS_TOO"): (1e-9, 10.0),
    (placement, "CHUNK"): (64, 4096),
    (source, "PACKED_ALONE"): (0,),
    (turns, "_LEAST_MOVED"): (0,),
    (over_steps, "_LEAST"): (0, 1 << 20),
    (wide, "_LEAST"): (1, 1 << 20),
    (zero_tails, "_LEAST"): (1,),
    (ops, "_SMALL"): (0, 1 << 30),
    (ops, "_FEW"): (0,),
}
ROWS = ([3, 0, 1, 5], [12], [1, 1, 9], [40, 25], [7, 0, 30, 33], [600], [3] * 200, [300, 1, 299], [9] * 16)
WIDTHS = (3, 4, 8, 16, 17, 32, 48, 64)
Weights = list[Tensor]


@contextlib.contextmanager
def lowered(pick: random.Random) -> Iterator[None]:
    """Some thresholds are others."""
    often = pick.choice([0.0, 0.3, 0.6, 0.9])
    with contextlib.ExitStack() as stack:
        for (module, name), others in THRESHOLDS.items():
            value = pick.choice(others)
            if pick.random() < often:
                stack.enter_context(patch.object(module, name, value))
        yield


class Step:
    """A step as lines of torch, and its weights; all values are as wide as the state."""

    def __init__(self, pick: random.Random) -> None:
        self.pick, self.n = pick, pick.choice(WIDTHS)
        self.dtype = pick.choice([torch.float64, torch.float32, torch.float32])
        self.states = pick.choice([1, 1, 2])
        self.lines, self.names = list[str](), ["x", *(f"h{k}" for k in range(self.states))]
        for _ in range(pick.randrange(2, 8)):
            self._line()
        self.given = [pick.choice([*self.names[-3:], *self.names]) for _ in range(pick.randrange(1, 4))]
        if pick.random() < 0.4:  # a value twice, or parts of one
            self.given.append(pick.choice([self.given[0], f"{self.given[0]}[:, : n // 2]"]))
        self.new = [f"0.5 * torch.tanh({self.names[-1 - k]})" for k in range(self.states)]
        if pick.random() < 0.3:
            self.lines.append(f"new = {self.new[0]}")
            self.new[0], self.given[-1] = "new", "new"
        if self.states == 2 and pick.random() < 0.3:
            self.new[1] = pick.choice([self.new[0], "h0", "h1", "x"])

    def _line(self) -> None:
        pick, name = self.pick, f"v{len(self.lines)}"
        a, b, c = (pick.choice([*self.names[-3:], *self.names]) for _ in range(3))
        w, u = (f"w[{pick.randrange(3)}]" for _ in range(2))
        self.lines.append(f"{name} = " + pick.choice([
            f"torch.tanh({a} @ {w} + {b} @ {u} + w[3])", f"torch.sigmoid({a} @ {w}) * {b}", f"{a} @ {w}.t()",
            f"torch.cat([{a}, {b}], -1) @ torch.cat([{w}, {u}])", f"torch.cat([{a}, {b}], -1) @ w[4]",
            f"(torch.cat([{a}, {b}, {c}], -1) @ w[5]).chunk(3, -1)[{pick.randrange(3)}]",
            f"sum((torch.cat([{a}, {b}]) @ {w}).chunk(2))", f"torch.cat([{a}, {b}]).tanh()[: x.shape[0]]",
            f"(torch.cat([{a}, {b}]) @ {w}).sin().split(x.shape[0])[1] * {c}",
            f"({a}.repeat(2, 1) * torch.cat([{b}, {c}])).softmax(-1)[x.shape[0] :]",
            f"({a} - {a}.mean(-1, keepdim=True)) * ({a}.square().mean(-1, keepdim=True) + 1).rsqrt() * w[3]",
            f"torch.softmax({a}, -1) * {b}", f"{a} * {b} + {c}",
            f"({a}[:, :, None] * {b}[:, None, :] @ {c}[:, :, None])[..., 0].tanh()",
            f"torch.where({a} > 0, {b}, {c} * 0.5)", f"{a} - {b}.detach()", f"F.linear({a}, {w}, w[3]).sin()",
            f"{a} * w[3] + {b}.sum(-1, keepdim=True) / n", f"({a}.unsqueeze(1) * {w}).sum(-1)",
            f"torch.addmm(w[3], {a}, {w}).cos() + {b}", f"{a}[:, :1] * {b} + {c}.flip(-1)",
        ]))  # fmt: skip
        self.names.append(name)

    @property
    def source(self) -> str:
        states = ", ".join(f"h{k}" for k in range(self.states))
        lines = [f"({states}) = h", *self.lines]
        lines.append(f"return ({', '.join(self.given)},), ({', '.join(self.new)})")
        return "def step(x, h):\n    " + "\n    ".join(lines)

    def of(self, w: Weights) -> Callable[..., Any]:
        space: dict[str, Any] = {"w": w, "n": self.n, "torch": torch, "F": F}
        exec(self.source, space)
        return space["step"]

    def weights(self, rand: Callable[..., Tensor]) -> Weights:
        n = self.n
        sizes = (n, n), (n, n), (n, n), (n,), (2 * n, n), (3 * n, 3 * n)
        return [rand(*size) * (0.5 / n**0.5 if len(size) > 1 else 1) for size in sizes]


class Program:
    """A step over some sequences, by a backend."""

    def __init__(self, seed: int) -> None:
        pick = self.pick = random.Random(seed * 7 + 5)
        self.step = Step(pick)
        self.lengths = pick.choice(ROWS)
        if max(self.lengths) > 100:
            self.step.dtype = torch.float64
        if self.step.n > 32 and len(self.lengths) > 50:
            self.lengths = [3] * 50
        self.dense = len({*self.lengths}) == 1
        self.reverse, self.way = pick.random() < 0.3, pick.choice(WAYS)
        self.how = pick.choice([{}, {}, {}, {"checkpoint": True}, {"checkpoint": 2}, {"checkpoint": 5}])
        self.threads = pick.choice([1, 2])
        noise = torch.Generator().manual_seed(seed)

        def rand(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=noise, dtype=torch.float64).to(self.step.dtype)

        self.rand, n = rand, self.step.n
        self.weights = self.step.weights(rand)
        self.x = rand(sum(self.lengths), n)
        self.h = [rand(len(self.lengths), n) for _ in range(self.step.states)]
        for t in self.points:
            t.requires_grad_(pick.random() < 0.8)

    @property
    def points(self) -> list[Tensor]:
        return [self.x, *self.h, *self.weights]

    def results(self, points: Sequence[Tensor], backend: Any) -> list[Tensor]:
        x, h, w = points[0], points[1 : 1 + self.step.states], points[1 + self.step.states :]
        self.weights[:] = w
        given: Any = LoDTensor.from_lengths(x, [self.lengths])
        if self.dense:
            given = x.view(len(self.lengths), self.lengths[0], -1).transpose(0, 1)
        how: Any = {"reverse": self.reverse, "backend": backend, **self.how}
        y, last = recurrent(self.made, given, h[0] if len(h) == 1 else tuple(h), **how)
        leaves = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(y)[0]]
        return [*leaves, *flatten(last)[0]]

    def run(self, backend: Any) -> list[list[Tensor | None]]:
        """What several calls give."""
        points = self.points
        self.made = self.step.of(self.weights)
        before = torch.get_num_threads()
        torch.set_num_threads(1 if backend == "naive" else self.threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return [
                    self.way(lambda own: self.results(own, backend), points, self.rand_of(5))
                    for _ in range(1 if backend == "naive" else 5)
                ]
            finally:
                torch.set_num_threads(before)

    @property
    def about(self) -> str:
        """What tells it from others."""
        step = self.step
        return (
            f"{self.way.__name__}, {self.lengths}, {'dense' * self.dense}, {step.n} of {step.dtype}, "
            f"{'reverse' * self.reverse}, {self.how}, {self.threads} threads"
        )

    def rand_of(self, seed: int) -> Callable[..., Tensor]:
        noise = torch.Generator().manual_seed(seed)
        return lambda like: torch.randn(like.shape, generator=noise, dtype=torch.float64).to(like.dtype)


# ---- what is asked of the results: of results, points and numbers like others

Found = list[Tensor | None]


def _parts(
    results: Callable[..., list[Tensor]], points: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    out = [t for t in results(points) if t.requires_grad]
    return out, [p for p in points if p.requires_grad]


def _grad(out: Any, own: Any, came: Any = None, **how: Any) -> list[Any]:
    pairs = [
        (t, g)
        for t, g in zip(out, came or [None] * len(out), strict=True)
        if t is not None and t.requires_grad
    ]
    if not pairs or not own:
        return [None] * len(own)
    out, came = zip(*pairs, strict=True)
    return [*torch.autograd.grad(out, own, came, allow_unused=True, **how)]


def first(results: Any, points: Any, like: Any) -> Found:
    out, own = _parts(results, points)
    return [*out, *_grad(out, own, [*map(like, out)])]


def some(results: Any, points: Any, like: Any) -> Found:
    """Of some results, by some points."""
    out, own = _parts(results, points)
    last = _grad(out[-1:], own[:2], [*map(like, out[-1:])], retain_graph=True)
    return [*out, *last, *_grad(out[:1], own[1:], [*map(like, out[:1])])]


def second(results: Any, points: Any, like: Any) -> Found:
    """By the points and by what comes in."""
    out, own = _parts(results, points)
    came = [like(t).requires_grad_() for t in out]
    got = _grad(out, own, came, create_graph=True)
    moved = [*own, *came]
    sines = [None if g is None else g.sin().sum() for g in got]
    return [*out, *got, *_grad(sines, moved, None)]


def along_own(results: Any, points: Any, like: Any) -> Found:
    """What comes in is what the step reads."""
    out, own = _parts(results, points)
    got = _grad(out, own, [*map(like, out)], create_graph=True)
    pairs = [(g, v) for g, v in zip(got, own, strict=True) if g is not None]
    return [*got, *_grad([g for g, _ in pairs], own, [v for _, v in pairs])]


def penalty(results: Any, points: Any, like: Any) -> Found:
    """A loss and the lengths of its gradients, by backward."""
    out, own = _parts(results, points)
    if not out or not own:
        return []
    loss = torch.stack([(t * like(t)).mean() + t.square().mean() for t in out]).sum()
    got = [g for g in _grad([loss], own[::2], None, create_graph=True) if g is not None]
    total = loss + sum((g.square().mean() for g in got), torch.zeros((), dtype=loss.dtype))
    return [loss, *_grad([total], own)]


def third(results: Any, points: Any, like: Any) -> Found:
    out, own = _parts(results, points)
    got = _grad(out, own, [*map(like, out)], create_graph=True)
    again = _grad([g.sin().mean() for g in got if g is not None], own, None, create_graph=True)
    return [*got, *again, *_grad([g.cos().mean() for g in again if g is not None and g.requires_grad], own)]


def batched(results: Any, points: Any, like: Any) -> Found:
    out, own = _parts(results, points)
    came = [torch.stack([like(t), like(t), like(t)]) for t in out]
    return _grad(out, own, came, is_grads_batched=True)


def directions(results: Any, points: Any, like: Any) -> Found:
    """Forward, and the gradient of what comes out."""
    with forward_ad.dual_level():
        own = [forward_ad.make_dual(p, like(p)) for p in points]
        pairs = [forward_ad.unpack_dual(t) for t in results(own)]
        tangents = [pair.tangent for pair in pairs]
    leaves = [p for p in points if p.requires_grad]
    sines = [None if t is None else t.sin().mean() for t in tangents]
    return [*(pair.primal for pair in pairs), *tangents, *_grad(sines, leaves)]


def of_func(results: Any, points: Any, like: Any) -> Found:
    """torch.func's: a gradient, and a direction of it."""

    def loss(own: Any) -> Tensor:
        return torch.stack([t.square().mean() for t in results(own)]).sum()

    plain = tuple(p.detach() for p in points)
    pushed = torch.func.jvp(torch.func.grad(loss), (plain,), (tuple(map(like, plain)),))
    return [*pushed[0], *pushed[1]]


def many(results: Any, points: Any, like: Any) -> Found:
    """Gradients at several points at once."""

    def loss(own: Any) -> Tensor:
        return torch.stack([t.square().mean() for t in results(own)]).sum()

    plain = tuple(p.detach() for p in points)
    both = tuple(torch.stack([p, p * 0.7, p + 0.1 * like(p)]) for p in plain)
    return [*torch.func.vmap(torch.func.grad(loss))(both)]


def checkpointed(results: Any, points: Any, like: Any) -> Found:
    return first(lambda own: checkpoint(lambda *own: results(own), *own, use_reentrant=False), points, like)


WAYS = (
    first, first, some, second, second, second, along_own, penalty, third, batched, directions, of_func, many,
    checkpointed,
)  # fmt: skip


# ---- both


def shared(found: Found) -> set[tuple[int, int]]:
    """Which two of the tensors have memory in common."""
    places = [None if t is None or not t.numel() else memory_of(t) for t in found]
    return {(i, j) for j, b in enumerate(places) for i in range(j) if b is not None and places[i] == b}


def close(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b or not (b if a is None else a).count_nonzero()  # pyright: ignore
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    loose = 1e-8 if a.dtype is torch.float64 else 2e-3
    scale = float(b.detach().abs().nan_to_num(0, 0, 0).max()) if b.numel() else 1.0
    return torch.allclose(a, b, rtol=loose, atol=loose * max(scale, 1e-3), equal_nan=True)


def difference(seed: int, backend: str = "c") -> str | None:
    """How plans and the plain loop differ."""
    try:
        expected = Program(seed).run("naive")[0]
    except (RuntimeError, NotImplementedError):
        return None  # torch has no rule
    forget()
    program = Program(seed)
    try:
        with lowered(random.Random(seed)):
            calls = program.run(backend)
    except Unsupported as error:
        return None if "self-check" not in str(error) else f"{error}\n{program.step.source}"
    finally:
        forget()
    for at, found in enumerate(calls):
        far = [k for k, (a, b) in enumerate(zip(found, expected, strict=True)) if not close(a, b)]
        more = shared(found) - shared(expected)
        if far or more:
            told = [f"{k}: {_short(found[k])}\n   not {_short(expected[k])}" for k in far[:4]]
            return "\n".join(
                [
                    f"seed {seed}",
                    program.about,
                    program.step.source,
                    f"call {at}: of {len(found)} {far} differ, {more} share",
                    *told,
                ]
            )
    return None


def _short(t: Tensor | None) -> str:
    return "None" if t is None else f"{list(t.shape)} {t.dtype} {t.flatten()[:5].tolist()}"


if __name__ == "__main__":
    seeds.main(difference, "steps of many rows")
