"""Random frames of `create_whileloop` against the same Python, run step by step.

A program counts a step, up or down, by ones or twos, over dense and ragged arrays; it writes arrays, carries
variables that keep, lose or gain rows, and ends by its count, by another count or by data. What it computes
between is a list of statements, among them sizes as numbers, loops and frames inside.

`python -m fuzz.frames [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import stepnet
from stepnet import LoDTensor, TensorArray
from stepnet.data.array import contents_of
from stepnet.tape import Tape
from threads import at_once

from . import seeds

H, MOST = 2, 20
LENGTHS = ([3, 1, 2], [1], [2, 2], [4, 1], [2, 0, 3], [3, 3, 1, 1])
Body = Callable[..., Any]


def fit(a: Any, like: Any) -> Any:
    """As many rows of `a` as another value has, zeros after its own."""
    return torch.cat([a, a.new_zeros(like.shape[0], H)])[: like.shape[0]]


def _no_grad(a: Any) -> Any:
    with torch.no_grad():
        return a * 2


def _inner_frame(a: Any, w: Any) -> Any:
    """A frame inside: over the columns of a value."""
    columns, sums = TensorArray(unstack_from=a.t()), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (t,):
        loop.break_if(t >= columns.size())
        sums.write(t, torch.tanh(sums.read(t - 1, columns.read(0)) + columns.read(t)))
        loop.update(t, t + 1)
    return sums.stack().t() @ w


def _inner_by_hand(a: Any, w: Any) -> Any:
    before, sums = a[:, 0], []
    for column in a.unbind(1):
        before = torch.tanh(before + column)
        sums.append(before)
    return torch.stack(sums, 1) @ w


def _recurrent(a: Any, w: Any) -> Any:
    return stepnet.recurrent(lambda x, h: (torch.tanh(x @ w + h),) * 2, a[None], a)[1]


_NET = stepnet.nn.LSTM(H, H).double()
for _weight in _NET.parameters():
    torch.nn.init.constant_(_weight, 0.1)


def _lstm(a: Any) -> Any:
    y, (h, c) = _NET(a[None])
    return y[0], h[0] + c[0]


# What a statement makes of two values of as many rows of H, the step and the weight.
STATEMENTS: dict[str, Body] = {
    "product": lambda a, b, s, w: torch.tanh(a @ w),
    "times": lambda a, b, s, w: a * b * 0.5,
    "plus": lambda a, b, s, w: a + b,
    "where": lambda a, b, s, w: torch.where(a > 0, b, a * 2),
    "softmax": lambda a, b, s, w: a.softmax(-1),
    "softmax over rows": lambda a, b, s, w: a.softmax(0),
    "detach": lambda a, b, s, w: a.detach() + 1,
    "no_grad": lambda a, b, s, w: _no_grad(a),
    "chunks": lambda a, b, s, w: torch.cat([a, b], -1)[:, 1 : H + 1],
    "count": lambda a, b, s, w: a * (s + 1),
    "layer_norm": lambda a, b, s, w: torch.nn.functional.layer_norm(a, (H,)),
    "layer_norm of its shape": lambda a, b, s, w: torch.nn.functional.layer_norm(a, a.shape[1:]),
    "maximum": lambda a, b, s, w: torch.maximum(a, b),
    "mean by shape": lambda a, b, s, w: a / (a.shape[0] + 1) + a.sum(0) / (a.shape[0] + 1),
    "numel": lambda a, b, s, w: a * a.numel() / (a.size(0) * H + 1),
    "narrow": lambda a, b, s, w: b.narrow(0, 0, a.shape[0]) + a,
    "split": lambda a, b, s, w: torch.cat([a, b]).split([a.shape[0], b.shape[0]])[0] * 2,
    "index_select": lambda a, b, s, w: torch.cat([b, a]).index_select(0, torch.arange(a.shape[0])),
    "arange": lambda a, b, s, w: a * torch.arange(a.shape[0]).unsqueeze(1),
    "zeros": lambda a, b, s, w: torch.zeros(a.shape, dtype=a.dtype) + a[:, :1],
    "expand": lambda a, b, s, w: w[:1].expand(a.shape[0], H) * a,
    "reshape": lambda a, b, s, w: (a.reshape(a.shape[0] * H, 1) * 2).view(-1, H),
    "unbind of features": lambda a, b, s, w: torch.stack(a.unbind(1)[::-1], 1),
    "a mask of rows": lambda a, b, s, w: torch.cat([a[a.sum(1) > 0], a[a.sum(1) <= 0]]),
    "rows of a mask": lambda a, b, s, w: a[a.sum(1) > 0],
    "rows lost": lambda a, b, s, w: a[1:],
    "rows gained": lambda a, b, s, w: torch.cat([a[:2], b[:1]]),
    "flip": lambda a, b, s, w: a.flip(0),
    "cumsum": lambda a, b, s, w: a.cumsum(0) * 0.3,
    "recurrent": lambda a, b, s, w: _recurrent(a, w),
    "while_loop": lambda a, b, s, w: stepnet.while_loop(
        lambda i, v: i < 2, lambda i, v: (i + 1, v * 0.5 + w[0] / (v.shape[0] + 1)), (0, a))[1],
    "frame": lambda a, b, s, w: _inner_frame(a, w),
    "float32": lambda a, b, s, w: a.float().double() * 1.5,
    "a torch.Size": lambda a, b, s, w: torch.ones(torch.Size([a.shape[0], H]), dtype=a.dtype) * a,
    "a module": lambda a, b, s, w: sum(_lstm(a)),
    "two sequences": lambda a, b, s, w: stepnet.sequence_pool(LoDTensor.from_lengths(a, [[1, 1]]), "sum") * b,
    "an array filled inside": lambda a, b, s, w: TensorArray().unstack(a.t()).stack(1) * b,
    "an array inside": lambda a, b, s, w: TensorArray(unstack_from=a.t()).read(1).unsqueeze(1) + a,
}  # fmt: skip
# Those that a scan may have: they treat rows alike, keep them, and do not count.
ALIKE = (
    "product", "times", "plus", "where", "softmax", "detach", "no_grad", "chunks", "layer_norm", "maximum",
    "layer_norm of its shape", "unbind of features", "recurrent", "while_loop", "float32",
    "a module", "two sequences", "count",
)  # fmt: skip
ENDS: dict[str, Callable[..., Any]] = {  # from the step, the end, a loop variable, and a size
    "eq": lambda s, n, v, size: s == n,
    "ge": lambda s, n, v, size: s >= n,
    "le": lambda s, n, v, size: n <= s,
    "not lt": lambda s, n, v, size: ~(s < n),
    "logical_not": lambda s, n, v, size: torch.logical_not(n > s),
    "gt": lambda s, n, v, size: s + 1 > n,
    "size": lambda s, n, v, size: s >= size(),
    "data": lambda s, n, v, size: (s >= n) | (v.sum() > 1.5),
    "rows": lambda s, n, v, size: (s >= n) | (v.abs().sum(1) > 9).any(),
}


class Program:
    """A random loop, written once for both ways of running it."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.seed, self.scan = seed, pick.random() < 0.5
        scan = self.scan
        self.steps = pick.choice([0, 1, 2, 3, 5])
        self.first = pick.choice([0, 0, 0, 1])
        self.by = pick.choice([1, 1, -1] if scan else [1, 1, 2, -1])
        self.lengths = pick.choice(LENGTHS) if not scan and pick.random() < 0.6 else None
        self.n_in, self.n_out = pick.randint(1, 2), pick.randint(1, 2)
        self.filled = not scan and pick.random() < 0.3  # whether the arrays that are written hold something
        self.reads = [
            [pick.choice([0, 0, -1, 1]) for _ in range(pick.randint(1, 2))] for _ in range(self.n_in)
        ]
        self.before = [pick.choice([None, 1, 1, 1] if scan else [None, 1, 1, 2]) for _ in range(self.n_out)]
        self.rows = [
            2 if scan else pick.choice([1, 2, 3]) for _ in range(pick.randint(0, 2))
        ]  # of the loop variables
        known = sum(map(len, self.reads)) + sum(o is not None for o in self.before) + len(self.rows)
        self.lines: list[tuple[str, int, int]] = []
        for _ in range(pick.randint(1, 7)):
            self.lines.append(
                (pick.choice(ALIKE if scan else [*STATEMENTS]), pick.randrange(known), pick.randrange(known))
            )
            known += 1
        late = range(max(0, known - 3), known)
        self.writes = [pick.choice(late) for _ in range(self.n_out)]
        self.updates = [pick.choice(late) for _ in self.rows]
        self.keeps = [pick.random() < 0.6 for _ in self.rows]  # whether a variable keeps its rows
        self.end = pick.choice([*ENDS][: 7 if scan else None]) if self.by > 0 else "down"
        self.late, self.twice = not scan and pick.random() < 0.2, not scan and pick.random() < 0.2
        self.clocks = not scan and pick.random() < 0.3  # a second counter
        self.counts = pick.choice([torch.int64, torch.int64, torch.int32, torch.uint8, torch.int8])
        self.way = pick.choice(["once", "once", "twice", "thread", "tape"])
        self.places: list[list[int]] = []  # that the loop by hand has written
        self.at_end = [pick.random() < 0.3 for _ in range(self.n_out)]  # which are written at their end
        self.shape = [1] if pick.random() < 0.2 else []  # of what counts

    def __str__(self) -> str:
        return "\n".join(f"  {name} = {value!r}" for name, value in vars(self).items())

    def inputs(self) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """Rows of each input, the weight, and what the loop variables start with."""
        noise = torch.Generator().manual_seed(self.seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=noise, dtype=torch.float64).requires_grad_()

        shape = (self.steps + 3, 2, H) if self.lengths is None else (sum(self.lengths), H)
        return [drawn(*shape) for _ in range(self.n_in)], drawn(H, H), [drawn(n, H) for n in self.rows]

    def run(self, frame: bool, rows: list[Tensor], w: Tensor, variables: list[Tensor]) -> list[Tensor]:
        """The loop variables after the last step, and all that was written."""
        if self.lengths is None:
            ins = [TensorArray(unstack_from=x) for x in rows]
        else:
            ins = [TensorArray.unpack(LoDTensor.from_lengths(x, [self.lengths]))[0] for x in rows]
        n = rows[0].shape[0] - 3 if self.lengths is None else max(self.lengths)
        outs = [TensorArray() for _ in range(self.n_out)]
        if self.filled:
            for out in outs:
                out.write(0, w * 3)
        start = n - 1 if self.by < 0 else self.first
        counters = [torch.tensor(start, dtype=self.counts), *([torch.tensor(7)] if self.clocks else [])]
        counters = [counter.reshape(self.shape) for counter in counters]

        def body(given: Any, leave: Callable[[Any], None]) -> list[Any]:
            s, carried = given[0], list(given[len(counters) :])

            def end() -> Any:
                v = carried[0] if carried else w
                if self.by < 0:
                    return s < 0
                return ENDS["ge" if self.by == 2 and self.end == "eq" else self.end](
                    s, n, v, lambda: ins[0].size() - (3 if self.lengths is None else 0)
                )

            if not self.late:
                leave(end())
            values = [a.read(s + o, w) for a, offsets in zip(ins, self.reads, strict=True) for o in offsets]
            back = -1 if self.by > 0 else 1
            values += [
                a.read(s + back * o, w) for a, o in zip(outs, self.before, strict=True) if o is not None
            ]
            values += carried
            if self.late:
                leave(end())
            for name, i, j in self.lines:
                a, b = values[i], values[j] if self.scan else fit(values[j], values[i])
                by_hand = name == "frame" and not frame
                values.append(_inner_by_hand(a, w) if by_hand else STATEMENTS[name](a, b, s, w))
            for out, place, at_end in zip(outs, self.writes, self.at_end, strict=True):
                if self.twice:
                    out.write(s, values[0] * 0)
                out.write(*([] if at_end else [s]), values[place])
            new = [
                values[place] if self.scan else fit(values[place], v) if keeps else values[place][:6]
                for place, v, keeps in zip(self.updates, carried, self.keeps, strict=True)
            ]
            clock = [given[1] * 2 - s] if self.clocks else []
            return [s + self.by if self.by > 0 else s - 1, *clock, *new]

        given = [*counters, *variables]
        results = as_frame(body, given) if frame else by_hand(body, given)
        return [*results, *self.written(frame, outs)]

    def written(self, frame: bool, outs: list[TensorArray]) -> list[Tensor]:
        """What stands in the arrays that a run wrote."""
        if not frame:
            self.places = [sorted(contents_of(out).values) for out in outs]
        elif self.way != "tape":
            assert self.places == [sorted(contents_of(out).values) for out in outs]
        return [a.read(i) for a, at in zip(outs, self.places, strict=True) for i in at]


class _Left(Exception):
    pass


def by_hand(body: Body, variables: list[Any]) -> list[Any]:
    """What a frame means."""

    def leave(condition: Any) -> None:
        if bool(condition):
            raise _Left

    for _ in range(MOST):
        try:
            variables = body(variables, leave)
        except _Left:
            return variables
    raise RuntimeError("it does not end")


def as_frame(body: Body, variables: list[Any]) -> list[Any]:
    """The same as a frame."""
    loop = stepnet.create_whileloop(variables, max_steps=MOST)
    with loop.frame() as inside:
        for variable, value in zip(inside, body(inside, loop.break_if), strict=True):
            loop.update(variable, value)
    return list(loop.results)


def outcome(program: Program, frame: bool, second: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Values, and gradients, or those of gradients."""
    rows, w, variables = program.inputs()
    if frame and program.way == "tape":
        with Tape() as tape:
            results = program.run(True, rows, w, variables)
        values = list(tape.topology(list(results))()[0])
    elif frame and program.way == "thread":
        (values,) = at_once(lambda _: program.run(True, rows, w, variables), 1)
    else:
        values = program.run(frame, rows, w, variables)
    wanted = [*rows, w, *variables]
    loss = sum(((i + 1) * v.sin().sum() for i, v in enumerate(values) if v.requires_grad), torch.zeros(()))
    if not loss.requires_grad:
        return values, [None] * len(wanted)
    gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, create_graph=second))
    if second:
        loss = sum((g.sin().sum() for g in gradients if g is not None and g.requires_grad), torch.zeros(()))
        if loss.requires_grad:
            gradients += torch.autograd.grad(loss, wanted, allow_unused=True)
    return values, gradients


def same(found: Tensor | None, expected: Tensor | None, rounding: float) -> bool:
    """Whether two values, or gradients, of which none is zero, are the same but for rounding."""
    if found is None or expected is None:
        other = found if expected is None else expected
        return other is None or not other.any()
    most = float(expected.detach().abs().max()) if rounding > 1e-9 and expected.numel() else 1.0
    return (
        found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.allclose(
            found, expected, rtol=10 * rounding, atol=rounding * max(most, 1.0), equal_nan=True
        )
    )


def difference(seed: int, backend: Any = "eager") -> str | None:
    """How a program differs from what it means; None: not at all."""
    program, second = Program(seed), seed % 4 == 0
    # a sum in another order may be another number of float32
    rounding = 1e-6 if any(name == "float32" for name, _, _ in program.lines) else 1e-9
    try:
        expected = outcome(program, False, second)
    except Exception:
        return None  # what Python cannot run says nothing
    stepnet.set_backend(backend)
    try:
        for _ in range(2 if program.way == "twice" else 1):
            found = outcome(program, True, second)
            for kind, a, b in zip(("values", "gradients"), found, expected, strict=True):
                wrong = [i for i, pair in enumerate(zip(a, b, strict=False)) if not same(*pair, rounding)]
                if len(a) != len(b) or wrong:
                    return f"seed {seed}: {kind} {wrong} of {len(b)} differ ({len(a)})\n{program}"
    except Exception:
        return f"seed {seed}: {traceback.format_exc()}{program}"
    finally:
        stepnet.set_backend("auto")
    return None


if __name__ == "__main__":
    seeds.main(difference, "frames")
