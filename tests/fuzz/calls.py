"""Random calls of `recurrent`: how sequences come, which options are joined, in which mode of torch, beside a
loop by hand over one sequence and one row at a time.

`python -m fuzz.calls [first] [count] [backend]` runs those of some seeds.
"""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import stepnet
from stepnet import LoDTensor, Resets
from stepnet.data.tree import by_leaf, flatten
from stepnet.front.static import padded

from . import seeds
from .compare import same

H = 3
DTYPE = torch.float64
NAMES = [
    "form", "lengths", "nested", "static", "reverse", "checkpoint", "detach_every", "resets", "mode", "given",
]  # fmt: skip
LENGTHS = ([3, 0, 1, 4], [1], [5], [], [0, 0], [2, 5, 1], [1, 1, 2, 6], [0, 7])


class Step(nn.Module):
    """One of some recurrences: of one state or several, numbers or counts, with a memory or without."""

    def __init__(self, pick: random.Random, static: str, wide: int):
        super().__init__()
        self.kind = pick.choice(["tanh", "gate", "pair", "named", "linear", "count", "none", "late"])
        self.static, self.wide = static, wide
        self.w = nn.Linear(wide + H, H, dtype=DTYPE)
        self.u = nn.Linear(H, H, dtype=DTYPE)
        self.h0 = nn.Parameter(torch.zeros(H, dtype=DTYPE)) if pick.random() < 0.5 else None

    def state(self, rows: Tensor) -> Any:
        """The state whose numbers are these rows, in the form that the step has it."""
        if self.kind == "none":
            return ()
        if self.kind == "count":
            return rows, torch.zeros(len(rows), dtype=torch.int64)
        if self.kind == "named":
            return {"h": rows, "at": (rows.sum(-1, keepdim=True) * 0.5,)}
        return (rows, 0.3 * rows) if self.kind == "pair" else rows

    def forward(self, x: Any, state: Any, static: Any = None) -> tuple[Any, Any]:
        x = self.row(x, state)
        if static is not None:
            x = x + self.seen(static, x)
        both = lambda h: torch.cat([x, h], -1)  # noqa: E731
        if self.kind == "none":
            return self.w(both(x[:, :1].expand(-1, H))), ()
        if self.kind == "count":
            h, n = state
            h = torch.where((n % 2 == 0)[:, None], torch.tanh(self.w(both(h))), h * 0.5)
            return {"h": h, "n": n}, (h, n + 1)
        if self.kind == "named":
            h, (at,) = state["h"], state["at"]
            h = torch.tanh(self.w(both(h)) * at)
            return (h, at), {"h": h + self.u(h), "at": (at * 0.9 + x.sum(-1, keepdim=True) * 0.1,)}
        if self.kind == "pair":
            h, c = state
            c = torch.sigmoid(self.w(both(h))) * c + self.u(h)
            return h, (torch.tanh(c), c)
        if self.kind == "linear":
            f = torch.sigmoid(self.w(both(torch.zeros_like(state))))
            h = f * state + (1 - f) * x[:, :1]
            return h, h
        if self.kind == "late":
            return state, torch.tanh(self.w(both(state))).detach() + self.u(state)
        if self.kind == "gate":
            g = torch.sigmoid(self.u(state))
            h = g * state + (1 - g) * torch.tanh(self.w(both(g * state)))
            return h.relu(), h
        h = torch.tanh(self.w(both(state)))
        return h, h

    def row(self, x: Any, state: Any) -> Tensor:
        if x is None:
            leaves = flatten(state)[0]
            return leaves[0][:, :1].expand(-1, self.wide) * 0.5
        leaves = flatten(x)[0]
        return torch.cat([leaf.flatten(1) for leaf in leaves], -1)

    def seen(self, static: Any, x: Tensor) -> Tensor:
        if self.static == "dense":
            return static[:, :1]
        a = torch.softmax((static.rows[..., 0] * x[:, :1]).masked_fill(~static.mask, -1e9), -1)
        return torch.einsum("nl,nlf->nf", a * static.mask, static.rows)[:, :1]


class Booting(Step):
    """One that says its own initial state."""

    def initial_state(self, n: int) -> Any:
        assert self.h0 is not None
        return self.state(self.h0.expand(n, H))


class Call:
    """A call and its inputs, the same at each time for a seed."""

    def __init__(self, seed: int):
        pick = self.pick = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.form = pick.choice(["ragged", "ragged", "levels", "dense", "axis 1", "packed", "steps"])
        lengths = list(pick.choice(LENGTHS))
        if self.form in ("dense", "axis 1"):
            lengths = [pick.choice([1, 2, 4])] * max(1, len(lengths))
        if self.form == "packed":
            lengths = [max(1, k) for k in lengths] or [2]
        self.lengths, self.n = lengths, len(lengths)
        self.static = pick.choice(["", "", "dense", "ragged"])
        parts = 0 if self.form == "steps" else pick.choice([1, 1, 2])
        self.nested = pick.choice(["tuple", "dict"]) if parts == 2 else ""
        self.step = Step(pick, self.static, 2 * max(parts, 1))
        if self.step.h0 is not None:
            self.step.__class__ = Booting
        if self.step.kind == "none" and self.form == "steps":
            self.step.kind = "tanh"
        with torch.no_grad():
            for p in self.step.parameters():
                p.copy_(self.random(*p.shape) * 0.6)
        self.x = [self.random(sum(lengths), 2).requires_grad_(pick.random() < 0.7) for _ in range(parts)]
        boots = self.step.h0 is not None
        self.given = not (boots and pick.random() < 0.5)
        self.h = self.random(self.n, H).requires_grad_(pick.random() < 0.6)
        self.counts = [pick.randrange(4) for _ in lengths]
        shape = {"": (), "dense": (self.n, 2), "ragged": (sum(self.counts), 2)}[self.static]
        self.memory = self.random(*shape).requires_grad_(pick.random() < 0.6)
        self.reverse = pick.random() < 0.3
        self.checkpoint = pick.choice([None, None, 1, 2, 3, True])
        self.detach_every = pick.choice([None, None, None, 1, 2, 3])
        self.resets = pick.choice(["", "", "bare", "is_init", "done"])
        if self.form == "steps":
            self.resets = ""
        self.marks = torch.rand(sum(lengths), generator=self.noise) < pick.choice([0.0, 0.3, 1.0])
        self.fresh = (
            self.random(self.n, H) if self.resets in ("is_init", "done") and pick.random() < 0.5 else None
        )
        self.mode = pick.choice(
            [
                "train",
                "train",
                "twice",
                "no_grad",
                "inference",
                "enabled",
                "again",
                "func",
                "jvp",
                "around",
                "module",
                "copy",
            ]
        )

    def __repr__(self) -> str:
        how = ", ".join(f"{k}={getattr(self, k)!r}" for k in NAMES)
        boots = "" if self.step.h0 is None else ", booting"
        return f"{self.step.kind}{boots}: {how}, fresh={self.fresh is not None}"

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.noise, dtype=DTYPE)

    @property
    def leaves(self) -> list[Tensor]:
        return [t for t in (*self.step.parameters(), *self.x, self.h, self.memory) if t.requires_grad]

    # ---- the call

    def formed(self, rows: Tensor) -> Any:
        if self.form == "levels":
            return LoDTensor.from_lengths(rows, [[self.n, 0], self.lengths])
        if self.form == "ragged":
            return LoDTensor.from_lengths(rows, [self.lengths])
        if self.form == "packed":
            return pack_sequence(list(rows.split(self.lengths)), enforce_sorted=False)
        dense = rows.view(self.n, self.lengths[0], *rows.shape[1:])
        return dense if self.form == "axis 1" else dense.transpose(0, 1)

    def nest(self, parts: list[Any]) -> Any:
        if self.nested == "dict":
            return {"a": parts[0], "b": (parts[1],)}
        return tuple(parts) if self.nested else parts[0]

    def options(self) -> dict[str, Any]:
        how: dict[str, Any] = {"reverse": self.reverse, "checkpoint": self.checkpoint}
        how |= {"detach_every": self.detach_every, "axis": int(self.form == "axis 1")}
        if self.static:
            ragged = self.static == "ragged"
            how["static"] = LoDTensor.from_lengths(self.memory, [self.counts]) if ragged else self.memory
        if self.resets:
            marks = self.formed(self.marks)
            fresh = None if self.fresh is None else self.step.state(self.fresh)
            if self.resets == "bare":
                how["resets"] = marks
            else:
                how["resets"] = Resets(**{self.resets: marks}, state=fresh)
        if self.form == "steps":
            how["steps"] = self.lengths
        return how

    def run(self, step: Any, backend: Any) -> list[Tensor]:
        state = self.step.state(self.h) if self.given else None
        how = self.options()
        if self.form == "steps":
            y, final = stepnet.recurrent(step, None, state, backend=backend, **how)
        else:
            x = self.nest([self.formed(rows) for rows in self.x])
            if self.mode == "module":
                own = {k: how.pop(k) for k in ("reverse", "axis", "checkpoint", "detach_every")}
                y, final = stepnet.Recurrent(step, backend=backend, **own)(x, state, **how)
            else:
                y, final = stepnet.recurrent(step, x, state, backend=backend, **how)
        return [*map(self.rows, flatten(y)[0]), *flatten(final)[0]]

    def rows(self, y: Any) -> Tensor:
        """The rows of a result, one sequence after the other."""
        if isinstance(y, LoDTensor):
            return y.values
        if isinstance(y, torch.nn.utils.rnn.PackedSequence):
            return LoDTensor.from_packed(y).values
        y = y if self.form == "axis 1" else y.transpose(0, 1)
        return y.reshape(sum(self.lengths), *y.shape[2:])

    # ---- the loop by hand

    def by_hand(self, step: Any) -> list[Tensor]:
        given = self.step.state(self.h) if self.given else self.step.initial_state(self.n)  # type: ignore[attr-defined]
        fresh = given if self.fresh is None else self.step.state(self.fresh)
        if self.fresh is None and self.step.h0 is not None:
            fresh = self.step.initial_state(self.n)  # type: ignore[attr-defined]
        ys, finals, at = [], [], 0
        for b, length in enumerate(self.lengths):
            own = slice(at, at + length)
            begin, again = (by_leaf(lambda s, b=b: s[b : b + 1], s) for s in (given, fresh))
            y, final = self.sequence(step, b, own, begin, again)
            ys += y
            finals.append(final)
            at += length
        like = self.one_row(step)  # of what there would be, where there are no rows
        y = [
            torch.cat([leaf[:0], *(flatten(y)[0][i] for y in ys)])
            for i, leaf in enumerate(flatten(like[0])[0])
        ]
        last = flatten(like[1])[0]
        return [*y, *(torch.cat([s[:0], *(flatten(f)[0][i] for f in finals)]) for i, s in enumerate(last))]

    def sequence(self, step: Any, b: int, own: slice, h: Any, fresh: Any) -> tuple[list[Any], Any]:
        length = own.stop - own.start
        marks = self.marks[own].tolist() if self.resets else [False] * length
        begins = [False, *marks] if self.resets == "done" else [*marks, False]
        seen = self.static_of(b)
        y: list[Any] = [None] * length
        since = 0
        for t in reversed(range(length)) if self.reverse else range(length):
            if begins[t + self.reverse]:
                h, since = fresh, 0
            if self.detach_every and since and since % self.detach_every == 0:
                h = by_leaf(Tensor.detach, h)
            row = None if not self.x else self.nest([x[own][t : t + 1] for x in self.x])
            y[t], h = step(row, h, *seen)
            since += 1
        return y, fresh if begins[0 if self.reverse else length] else h

    def static_of(self, b: int) -> tuple[Any, ...]:
        if self.static == "ragged":
            at = sum(self.counts[:b])
            own = self.memory[at : at + self.counts[b]]
            return (padded(LoDTensor.from_lengths(own, [[len(own)]])),)
        return (self.memory[b : b + 1],) if self.static else ()

    def one_row(self, step: Any) -> tuple[Any, Any]:
        zeros = torch.zeros(1, 2, dtype=DTYPE)
        row = None if not self.x else self.nest([zeros for _ in self.x])
        see = {"": (), "dense": (zeros,), "ragged": (padded(LoDTensor.from_lengths(zeros, [[1]])),)}
        with torch.no_grad():
            return step(row, self.step.state(torch.zeros(1, H, dtype=DTYPE)), *see[self.static])

    # ---- what is done with it

    def outcome(self, backend: str) -> list[Tensor | None]:
        """By an executor; or by hand, for no executor."""
        step: Any = self.step
        self.own = bool(backend)

        def results(step: Any = step) -> list[Tensor]:
            return self.run(step, backend) if backend else self.by_hand(step)

        if self.mode in ("no_grad", "inference", "enabled"):
            around = torch.no_grad() if self.mode == "no_grad" else torch.inference_mode()
            with around, torch.set_grad_enabled(self.mode == "enabled"):
                return list(results())
        if self.mode == "copy":
            step = copy.deepcopy(step)
            self.step, before = step, self.step
            try:
                return self.trained(results(step))
            finally:
                self.step = before
        if self.mode == "func":
            named = dict(self.step.named_parameters())

            def loss(named: Any) -> Tensor:
                return self.number(results(lambda *a: torch.func.functional_call(self.step, named, a)))

            return list(torch.func.grad(loss)(named).values()) if self.step.h0 is None else []
        if self.mode == "jvp":
            with torch.autograd.forward_ad.dual_level():
                before = self.h
                along = torch.ones_like(before)
                self.h = torch.autograd.forward_ad.make_dual(before.detach(), along)
                out = [torch.autograd.forward_ad.unpack_dual(t) for t in results()]
                self.h = before
            return [t for pair in out for t in (pair.primal, pair.tangent)]
        if self.mode == "around":
            found = torch.utils.checkpoint.checkpoint(results, use_reentrant=False)
            return self.trained(found)
        if self.mode == "again":
            first = self.trained(results())
            with torch.no_grad():
                for p in self.step.parameters():
                    p.mul_(0.9)
            second = self.trained(results())
            with torch.no_grad():
                for p in self.step.parameters():
                    p.div_(0.9)
            return [*first, *second]
        return self.trained(results())

    def number(self, found: list[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=DTYPE)
        for k, t in enumerate(found):
            if t.is_floating_point():
                total = (
                    total
                    + (t * torch.arange(t.numel(), dtype=DTYPE).add(k).cos().view(t.shape)).sum()
                    + t.sin().sum()
                )
        return total

    def trained(self, found: list[Tensor]) -> list[Tensor | None]:
        total = self.number(found)
        out: list[Tensor | None] = list(found)
        leaves = self.leaves
        if not (total.requires_grad and leaves):
            return out
        first = torch.autograd.grad(total, leaves, create_graph=self.mode == "twice", allow_unused=True)
        if self.own:  # by hand they may
            apart = [
                t.untyped_storage().data_ptr()
                for t in (*found, *first, *leaves)
                if t is not None and t.numel()
            ]
            assert len(apart) == len(set(apart)), "results, gradients and inputs share storage"
        out += first
        if self.mode == "twice":
            again = sum(
                (t.square().sum() for t in first if t is not None and t.requires_grad),
                torch.zeros((), dtype=DTYPE),
            )
            if again.requires_grad:
                out += torch.autograd.grad(again, leaves, allow_unused=True)
        return out


def check(seed: int, backend: str = "auto") -> str | None:
    """How a call differs from the loop by hand; None: not at all."""
    call = Call(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = call.outcome("")
        except Exception as error:
            return f"{call}\nby hand: {type(error).__name__}: {error}"
        try:
            ours = call.outcome(backend)
        except Exception as error:
            return f"{call}\n{type(error).__name__}: {error}"
    if not call.n:  # by hand nothing is run, so that there is nothing to differentiate
        ours, plain = ours[:1], plain[:1]
    # what by hand has no part in anything may have gradients of zeros
    for k, (a, b) in enumerate(itertools.zip_longest(ours, plain)):
        a, b = (torch.zeros_like(t) if s is None and t is not None else s for s, t in ((a, b), (b, a)))
        if not same(a if a is None else a.detach(), b if b is None else b.detach(), 1e-8):
            return f"{call}\nresult {k}: {a}, not {b}"
    return None


if __name__ == "__main__":
    seeds.main(check, "calls")
