"""Stages of the models of `fuzz.sequences`: each as users write it, and by hand for one sequence."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Memory, Resets, Scope, TensorArray
from stepnet.data.modes import transformed
from stepnet.data.tree import by_leaf, flatten
from stepnet.front.static import padded

H = 3


class Given(NamedTuple):
    """What every stage may use, beside its rows: of all sequences, or of one."""

    state: Tensor  # [n, H]
    marks: Any  # a truth value per row
    memory: Any  # a sequence of rows for each


class Record(NamedTuple):
    h: Tensor
    c: Tensor


@dataclass
class Data:
    h: Tensor
    more: dict[str, Tensor]


class Step(nn.Module):
    """A step of one kind of state."""

    KINDS = (
        "tanh", "gate", "pair", "named", "record", "data", "count", "flag", "wave", "linear", "late", "low",
    )  # fmt: skip

    def __init__(self, pick: random.Random, static: str = ""):
        super().__init__()
        self.kind, self.static = pick.choice(self.KINDS), static
        self.w, self.u = nn.Linear(2 * H, H), nn.Linear(H, H)

    def state(self, h: Tensor) -> Any:
        """The state whose numbers are these rows."""
        if self.kind == "pair":
            return h, 0.3 * h
        if self.kind == "named":
            return {"h": h, "at": [h.sum(-1)]}
        if self.kind == "record":
            return Record(h, h.sin())
        if self.kind == "data":
            return Data(h, {"c": h * 0.5})
        if self.kind == "count":
            return h, torch.zeros(h.shape[0], dtype=torch.int64)
        if self.kind == "flag":
            return h, torch.zeros(h.shape[0], 1, dtype=torch.bool)
        if self.kind == "wave":
            return torch.complex(h, h.cos())
        return (h, h.detach().to(torch.bfloat16)) if self.kind == "low" else h

    def forward(self, x: Tensor, state: Any, static: Any = None) -> tuple[Tensor, Any]:
        if static is not None:
            x = x + self.seen(static, x)
        new = lambda h: torch.tanh(self.w(torch.cat([x, h.to(x.dtype)], -1)))  # noqa: E731
        if self.kind == "pair":
            h, c = state
            c = torch.sigmoid(self.u(h)) * c + new(h)
            return h + c, (torch.tanh(c), c)
        if self.kind == "named":
            h, at = state["h"], state["at"][0]
            h = new(h * at.tanh()[:, None])
            return h, {"h": h + 0.1 * x, "at": [at * 0.9 + x.sum(-1) * 0.1]}
        if self.kind == "record":
            h = new(state.h) + 0.5 * state.c
            return h, Record(h.tanh(), state.c * 0.8 + x * 0.2)
        if self.kind == "data":
            h = new(state.h) * state.more["c"]
            return h + x, Data(h, {"c": state.more["c"].cos()})
        if self.kind == "count":
            h, n = state
            h = torch.where((n % 2 == 0)[:, None], new(h), h * 0.5)
            return h, (h, n + 1)
        if self.kind == "flag":
            h, was = state
            h = torch.where(was, h * 0.5, new(h))
            return h, (h, (h.sum(-1, keepdim=True) > 0) | (was & (x[:, :1] > 0)))
        if self.kind == "wave":
            z = state * torch.polar(torch.ones_like(x) * 0.9, self.u(x).tanh()) + x
            return z.real + z.imag, z
        if self.kind == "linear":
            f = torch.sigmoid(self.w(torch.cat([x, x], -1)))
            h = f * state + (1 - f) * self.u(x)
            return h, h
        if self.kind == "late":
            return state, new(state).detach() + self.u(state) * 0.5
        if self.kind == "low":
            h, low = state
            h = new(h) + low.to(x.dtype)
            return h, (h, low * 0.5)
        if self.kind == "gate":
            g = torch.sigmoid(self.u(state))
            h = g * state + (1 - g) * new(g * state)
            return h.relu(), h
        h = new(state)
        return h, h

    def seen(self, static: Any, x: Tensor) -> Tensor:
        if self.static == "dense":
            return static[:, :1]
        scores = torch.einsum("nlf,nf->nl", static.rows, x).masked_fill(~static.mask, -1e9)
        return torch.einsum("nl,nlf->nf", scores.softmax(-1) * static.mask, static.rows)


class Booting(Step):
    """One that says its own initial state."""

    def __init__(self, pick: random.Random, static: str = ""):
        super().__init__(pick, static)
        self.h0 = nn.Parameter(torch.zeros(H))

    def initial_state(self, n: int) -> Any:
        return self.state(self.h0.expand(n, H))


def real(state: Any) -> list[Tensor]:
    return flatten(state)[0]


class Own(nn.Module):
    """A recurrence of a step of the user's."""

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.static = pick.choice(
            ["", "", "dense"] if only in ("files", "graph") else ["", "", "dense", "ragged"]
        )
        self.boots = pick.random() < 0.5
        self.step = (Booting if self.boots else Step)(pick, self.static)
        if only == "graph" and self.step.kind == "data":
            self.step.kind = "named"
        if only == "files" and self.step.kind in ("wave", "low"):
            self.step.kind = "gate"  # no complex numbers, and no bfloat16, in arrays of files
        self.given = not self.boots or pick.random() < 0.5
        self.resets = pick.choice(["", "", "bare", "is_init", "done"])
        self.fresh = self.resets in ("is_init", "done") and pick.random() < 0.4
        self.reverse = only != "streams" and pick.random() < 0.3
        self.checkpoint = pick.choice([None, None, 1, 2, True])
        self.detach_every = pick.choice([None, None, None, 1, 2])
        self.form = pick.choice(["ragged", "ragged", "packed", "axis 0", "axis 1", "levels"])
        self.form = "ragged" if only else self.form
        self.how = pick.choice(["call", "call", "module", "eager"])
        self.more = len(real(self.step.state(torch.zeros(1, H))))
        options = "static resets fresh reverse checkpoint detach_every form how given boots"
        chosen = ", ".join(
            f"{k}={v}" for k in options.split() if (v := getattr(self, k)) not in ("", None, False)
        )
        self.what = f"{self.step.kind}({chosen})"

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        form = self.form
        lengths = x.lengths().tolist() if form != "ragged" else []
        if form.startswith("axis") and (len(set(lengths)) != 1 or not lengths[0]):
            form = "ragged"
        if form == "packed" and not (lengths and all(lengths)):
            form = "ragged"
        axis = int(form == "axis 1")

        def formed(t: Any) -> Any:
            if form == "packed":
                return t.to_packed()
            if form.startswith("axis"):
                return t.to_padded(batch_first=bool(axis))[0]
            return LoDTensor(t.values, [[0, len(lengths), len(lengths)], t.lod[0]]) if form == "levels" else t

        how: dict[str, Any] = {}
        if self.static:
            how["static"] = given.state.tanh() if self.static == "dense" else given.memory
        if self.resets:
            marks = formed(given.marks)
            fresh = self.step.state(given.state * 0.5) if self.fresh else None
            how["resets"] = marks if self.resets == "bare" else Resets(**{self.resets: marks}, state=fresh)
        state = self.step.state(given.state) if self.given else None
        own = {"reverse": self.reverse, "axis": axis, "checkpoint": self.checkpoint}
        own |= {"detach_every": self.detach_every}
        if self.how == "module":
            y, final = stepnet.Recurrent(self.step, **own)(formed(x), state, **how)
        else:
            backend = "eager" if self.how == "eager" and not transformed() else None
            y, final = stepnet.recurrent(self.step, formed(x), state, backend=backend, **own, **how)
        if form == "packed":
            y = LoDTensor.from_packed(y)
        elif form.startswith("axis"):
            y = LoDTensor.from_padded(y, torch.tensor(lengths), batch_first=bool(axis))
        return (y.drop_levels() if form == "levels" else y), real(final)

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        h = self.step.state(given.state) if self.given else self.step.initial_state(1)
        fresh = self.step.initial_state(1) if self.boots else h
        fresh = self.step.state(given.state * 0.5) if self.fresh else fresh
        see: tuple[Any, ...] = ()
        if self.static:
            memory = given.memory
            whole = padded(LoDTensor.from_lengths(memory, [[len(memory)]]))
            see = (given.state.tanh(),) if self.static == "dense" else (whole,)
        marks = given.marks.tolist() if self.resets else [False] * len(rows)
        begins = [False, *marks] if self.resets == "done" else [*marks, False]
        y: list[Any] = [None] * len(rows)
        since = 0
        for t in reversed(range(len(rows))) if self.reverse else range(len(rows)):
            if begins[t + self.reverse]:
                h, since = fresh, 0
            if self.detach_every and since and since % self.detach_every == 0:
                h = by_leaf(Tensor.detach, h)
            y[t], h = self.step(rows[t : t + 1], h, *see)
            since += 1
        h = fresh if begins[0 if self.reverse else len(rows)] else h
        return torch.cat([rows[:0], *y]), real(h)


class Layer(nn.Module):
    """A module of `stepnet.nn`, brought to H numbers again."""

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.kind = pick.choice(["LSTM", "GRU", "RNN"])
        self.both, self.layers = only != "streams" and pick.random() < 0.4, pick.choice([1, 1, 2])
        self.first = pick.random() < 0.5
        self.given, self.form = pick.random() < 0.5, pick.choice(["ragged", "packed", "padded"])
        self.form = "ragged" if only else self.form
        self.resets = pick.choice(["", "", "bare", "done"])
        self.rnn = getattr(stepnet.nn, self.kind)(
            H, H, num_layers=self.layers, bidirectional=self.both, batch_first=self.first
        )
        self.out = nn.Linear((1 + self.both) * H, H)
        self.more = 2 if self.kind == "LSTM" else 1
        self.what = (
            f"nn.{self.kind}(layers={self.layers}, both={self.both}, {self.form}, first={self.first}, "
        )
        self.what += f"given={self.given}, resets={self.resets})"

    def begins(self, state: Tensor) -> Any:
        h = torch.stack([state * (k + 1) * 0.3 for k in range(self.layers * (1 + self.both))])
        return (h, h.cos()) if self.kind == "LSTM" else h

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        form = self.form
        lengths = x.lengths().tolist() if form != "ragged" else []
        if form == "padded" and (len(set(lengths)) != 1 or not lengths[0]):
            form = "ragged"
        if form == "packed" and not (lengths and all(lengths)):
            form = "ragged"
        formed = lambda t: (  # noqa: E731
            t
            if form == "ragged"
            else t.to_packed()
            if form == "packed"
            else t.to_padded(batch_first=self.first)[0]
        )
        marks = formed(given.marks)
        resets = {"": None, "bare": marks, "done": Resets(done=marks)}[self.resets]
        y, final = self.rnn(formed(x), self.begins(given.state) if self.given else None, resets=resets)
        if form == "packed":
            y = LoDTensor.from_packed(y)
        elif form == "padded":
            y = LoDTensor.from_padded(y, torch.tensor(lengths), batch_first=self.first)
        return y.map(self.out), [leaf.transpose(0, 1) for leaf in flatten(final)[0]]

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        begins = self.begins(given.state if self.given else given.state * 0)
        if not self.given:
            begins = by_leaf(torch.zeros_like, begins)
        marks = given.marks.tolist() if self.resets else [False] * len(rows)
        cuts = [False, *marks] if self.resets == "done" else [*marks, False]
        finals: list[list[Tensor]] = []
        for layer in range(self.layers):
            ys = []
            for back in range(1 + self.both):
                k = len(finals)
                h = [leaf[k] for leaf in flatten(begins)[0]]
                fresh = [torch.zeros_like(leaf) for leaf in h]
                y: list[Any] = [None] * len(rows)
                for t in reversed(range(len(rows))) if back else range(len(rows)):
                    if cuts[t + back]:
                        h = fresh
                    h = self.once(rows[t : t + 1], h, f"l{layer}{'_reverse' * back}")
                    y[t] = h[0]
                finals.append(fresh if cuts[0 if back else len(rows)] else h)
                ys.append(torch.cat([rows[:0, :H], *y]))
            rows = torch.cat(ys, -1)
        return self.out(rows), [torch.stack(leaf, 1) for leaf in zip(*finals, strict=True)]

    def once(self, x: Tensor, state: list[Tensor], suffix: str) -> list[Tensor]:
        w, u, b, c = (
            getattr(self.rnn, f"{n}_{suffix}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = state[0]
        a, r = x @ w.t() + b, h @ u.t() + c
        if self.kind == "RNN":
            return [torch.tanh(a + r)]
        if self.kind == "GRU":
            (ar, az, an), (hr, hz, hn) = a.chunk(3, -1), r.chunk(3, -1)
            z = torch.sigmoid(az + hz)
            return [(1 - z) * torch.tanh(an + torch.sigmoid(ar + hr) * hn) + z * h]
        i, f, g, o = (a + r).chunk(4, -1)
        new = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(new), new]


class Pieces(nn.Module):
    """Sequences cut at marks; a step over the pieces runs a recurrence over their rows; joined again."""

    more = 1

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.inner, self.outer = nn.GRUCell(H, H), nn.Linear(H, H)
        self.goes_on, self.after, self.back = pick.random() < 0.5, pick.random() < 0.5, pick.random() < 0.3
        self.outer_back, self.checkpoint = pick.random() < 0.3, pick.choice([None, None, 1, 2])
        self.detach_every = pick.choice([None, None, 1])
        self.what = f"pieces(goes_on={self.goes_on}, after={self.after}, back={self.back}, "
        self.what += f"outer_back={self.outer_back}, {self.checkpoint}, {self.detach_every})"

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        def step(piece: LoDTensor, h: Tensor) -> tuple[LoDTensor, Tensor]:
            y, final = stepnet.recurrent(self.inner, piece, h if self.goes_on else None, reverse=self.back)
            return y, torch.tanh(self.outer(final) + h)

        pieces = x.split_at(given.marks, after=self.after)
        y, final = stepnet.recurrent(
            step, pieces, given.state, level=0, reverse=self.outer_back, checkpoint=self.checkpoint,
            detach_every=self.detach_every,
        )  # fmt: skip
        return y.join_pieces(), [final]

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        at = [k + self.after for k, m in enumerate(given.marks.tolist()) if m]
        edges = sorted({0, len(rows), *at})
        spans = [*itertools.pairwise(edges)]
        h, y = given.state, [rows[:0] for _ in spans]
        for k, p in enumerate(reversed(range(len(spans))) if self.outer_back else range(len(spans))):
            if k and self.detach_every:
                h = h.detach()
            a, b = spans[p]
            inner = h if self.goes_on else torch.zeros_like(h)
            own: list[Any] = [None] * (b - a)
            for t in reversed(range(b - a)) if self.back else range(b - a):
                own[t] = inner = self.inner(rows[a + t : a + t + 1], inner)
            y[p] = torch.cat(own)
            h = torch.tanh(self.outer(inner) + h)
        return torch.cat([rows[:0], *y]), [h]


class Dynamic(nn.Module):
    """A dynamic recurrence, its memory and what every step sees."""

    more = 1

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.w, self.padded = nn.Linear(2 * H, H), pick.random() < 0.5
        self.back = only != "streams" and pick.random() < 0.4
        self.init = pick.random() < 0.6
        self.static = pick.choice(["", "dense"] if only in ("files", "graph") else ["", "dense", "ragged"])
        self.what = f"dynamic(back={self.back}, init={self.init}, static={self.static}, padded={self.padded})"

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        def stepnet_of(s: Scope) -> None:
            rows = s["x"]
            if self.static == "dense":
                rows = rows + s["seen"]
            elif self.static == "ragged":
                seen = s["seen"]
                pooled = seen.rows.sum(1) if self.padded else stepnet.sequence_pool(seen, "sum")
                rows = rows + pooled
            s["h"] = torch.tanh(self.w(torch.cat([rows, s["before"]], -1)))

        scope = Scope(
            {"x": x, "seen": given.memory if self.static == "ragged" else given.state, "h0": given.state}
        )
        memory = (
            Memory("h", "before", init="h0") if self.init else Memory("h", "before", shape=(H,), value=0.1)
        )
        last = stepnet.dynamic_recurrent(
            stepnet_of, scope, ["x"], ["h"], [memory], reverse=self.back,
            static_inputs=["seen"] if self.static else [],
            padded=["seen"] if self.padded and self.static == "ragged" else [],
        )  # fmt: skip
        return scope["h"], [last["h"]]

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        h = given.state if self.init else torch.full_like(given.state, 0.1)
        more = {"": 0.0, "dense": given.state, "ragged": given.memory.sum(0, keepdim=True)}[self.static]
        y: list[Any] = [None] * len(rows)
        for t in reversed(range(len(rows))) if self.back else range(len(rows)):
            y[t] = h = torch.tanh(self.w(torch.cat([rows[t : t + 1] + more, h], -1)))
        return torch.cat([rows[:0], *y]), [h]


class Looped(nn.Module):
    """A while loop in which each sequence runs as long as it has rows, and writes what it makes of them."""

    more = 1

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.w, self.checkpoint = nn.Linear(2 * H, H), pick.choice([None, None, True, 2])
        self.what = f"looped(checkpoint={self.checkpoint})"

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        rows, lengths, starts = x.values, x.lengths(), x.lod[0][:-1]
        if not len(rows):
            return x, [given.state]

        def body(t: Tensor, lengths: Tensor, starts: Tensor, h: Tensor, out: TensorArray) -> tuple[Any, ...]:
            h = torch.tanh(self.w(torch.cat([rows[starts + t], h], -1)))
            out.write(t, h)
            return t + 1, lengths, starts, h, out

        begin = (torch.tensor(0), lengths, starts, given.state, TensorArray())
        *_, h, out = stepnet.while_loop(lambda t, n, *_: t < n, body, begin, checkpoint=self.checkpoint)
        return LoDTensor.from_padded(out.stack(), lengths, batch_first=False), [h]

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        h, y = given.state, []
        for t in range(len(rows)):
            h = torch.tanh(self.w(torch.cat([rows[t : t + 1], h], -1)))
            y.append(h)
        return torch.cat([rows[:0], *y]), [h]


class Cut(nn.Module):
    """The pieces of `truncated`, put together again."""

    more = 1

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        self.cell, self.rows = nn.GRUCell(H, H), pick.choice([1, 2, 3])
        self.at_once, self.checkpoint = pick.choice([None, None, 1, 2]), pick.choice([None, 1])
        self.what = f"truncated(rows={self.rows}, at_once={self.at_once}, checkpoint={self.checkpoint})"

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        if not len(x):
            return x, [given.state.detach()]
        parts: list[list[Tensor]] = [[rows[:0]] for rows in x]
        pieces = stepnet.truncated(x, given.state, rows=self.rows, at_once=self.at_once)
        for piece in pieces:
            y, piece.state = stepnet.recurrent(self.cell, piece.x, piece.state, checkpoint=self.checkpoint)
            for b, own in zip(piece.sequences.tolist(), y, strict=True):
                parts[b].append(own)
        return LoDTensor.from_sequences([torch.cat(own) for own in parts]), [pieces.state]

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        h, y = given.state, []
        for t in range(len(rows)):
            if t and t % self.rows == 0:
                h = h.detach()
            h = self.cell(rows[t : t + 1], h)
            y.append(h)
        return torch.cat([rows[:0], *y]), [h.detach()]


class Whole(nn.Module):
    """Operators of whole sequences around rows that are treated alike."""

    more = 0
    KINDS = ("map", "reverse", "expand", "concat", "slice", "softmax")

    def __init__(self, pick: random.Random, only: str):
        super().__init__()
        kinds = {"": self.KINDS, "files": ("map", "expand", "softmax")}.get(only, ("map",))
        self.kind, self.w = pick.choice(kinds), nn.Linear(H, H)
        self.what = self.kind

    def forward(self, x: LoDTensor, given: Given) -> tuple[LoDTensor, list[Tensor]]:
        y = x.map(lambda rows: torch.tanh(self.w(rows)))
        if self.kind == "reverse":
            return stepnet.sequence_reverse(y), []
        if self.kind == "expand":
            mean = stepnet.sequence_pool(y, "sum")
            return x.with_values(y.values + stepnet.sequence_expand(mean, y).values), []
        if self.kind == "softmax":
            weight = stepnet.sequence_softmax(y.map(lambda rows: rows[:, :1]))
            return x.with_values(y.values * weight.values), []
        if self.kind == "concat":
            both = stepnet.sequence_concat([y, x])
            lengths = x.lengths()
            return stepnet.sequence_slice(both, lengths // 2, lengths), []
        if self.kind == "slice":
            half = x.lengths() // 2
            later = stepnet.sequence_slice(y, half, x.lengths() - half)
            return stepnet.sequence_concat([later, stepnet.sequence_slice(x, half * 0, half)]), []
        return y, []

    def alone(self, rows: Tensor, given: Given) -> tuple[Tensor, list[Tensor]]:
        y, half = torch.tanh(self.w(rows)), len(rows) // 2
        if self.kind == "reverse":
            return y.flip(0), []
        if self.kind == "expand":
            return y + y.sum(0), []
        if self.kind == "softmax":
            return y * y[:, :1].softmax(0), []
        if self.kind == "concat":
            return torch.cat([y, rows])[half : half + len(rows)], []
        return (torch.cat([y[half:], rows[:half]]) if self.kind == "slice" else y), []


KINDS: tuple[Any, ...] = (Own, Own, Own, Own, Layer, Layer, Pieces, Pieces, Dynamic, Looped, Cut, Whole)


def make_stage(pick: random.Random, only: str) -> Any:
    """A random one; `only` those that "streams", programs ("graph") or "files" may hold."""
    return pick.choice((Own, Own, Layer, Dynamic, Whole) if only else KINDS)(pick, only)
