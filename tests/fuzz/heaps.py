"""Random programs over one heap of tensors, many of them views of others: by plans and by the plain loop.

A program calls recurrences on what the heap holds, and puts there what they give; it takes views, writes in
place, binds the step's weights anew, hooks tensors, goes backward more than once and uses the gradients.
After each of its lines all tensors and gradients are those of the same program by the plain loop.

`python -m fuzz.heaps [first] [count] [backend]` runs those of some seeds.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten

from . import seeds
from .compare import same

T, B, H, LINES = 3, 4, 3, 22
SHAPES = {(T, B, H): "X", (B, H): "S", (H, H): "W"}
LENGTHS = ([3, 0, 4, 5], [1, 1, 1, 9], [3, 3, 3, 3], [0, 12, 0, 0], [2, 4, 1, 5])
# Where errors are ours alone: one node has all results, and keeps what torch's ops may have no need of.
STRICTER = (
    "modified by an inplace",
    "a second time",
    "no longer reads what it read",
    "is differentiated, but",
)
Weights = dict[str, Tensor]


def steps(w: Weights, a: str, b: str) -> list[Callable[[Tensor, Tensor], Any]]:
    def tanh(x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(x @ w[a] + h @ w[b])
        return h, h

    def detached(x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(h @ w[a])
        return new.detach(), new + x.detach()

    def without(x: Tensor, h: Tensor) -> Any:
        with torch.no_grad():
            gate = torch.sigmoid(x @ w[a])
        return gate, gate * h + x

    def in_place(x: Tensor, h: Tensor) -> Any:
        z = h @ w[a]
        z += x
        z[:, 0] = torch.tanh(z[:, 1])
        z.relu_()
        return z[:, :2], torch.cos(z)

    def gated(x: Tensor, h: Tensor) -> Any:
        i = torch.cat([x, h], -1) @ torch.cat([w[a], w[b]])
        h = torch.sigmoid(i) * h + F.softplus(h @ w[a])
        return {"y": torch.softmax(h, -1), "i": i}, h / (1 + h.abs())

    def one_value(x: Tensor, h: Tensor) -> Any:
        new = torch.tanh(x @ w[a] + h)
        return (new, [new]), new

    def parts(x: Tensor, h: Tensor) -> Any:
        both = torch.sin(torch.cat([x @ w[a], h], -1))
        return both.chunk(2, -1), both[:, ::2]

    return [
        tanh, detached, without, in_place, gated, one_value, parts,
        lambda x, h: ((x * 2, h), h * 0.5 + x @ w[a]),
        lambda x, h: (x + h.detach(), h),
        lambda x, h: (x, h),
        lambda x, h: (w[a][0].expand_as(x), torch.sin(h @ w[b].t())),
        lambda x, h: (h, x * h.sum(-1, keepdim=True) + w[b].sum()),
        lambda x, h: (h.unsqueeze(1).expand(-1, 2, -1), (x.flip(-1) * h) @ w[b][:, [1, 0, 2]]),
        lambda x, h: (x[:, :1] * 0 + w[b][1, 1], torch.maximum(h, x) * w[a].diagonal()),
    ]  # fmt: skip


class Heap:
    """What a program has made so far. `X`, `S`, `W` and `Y`: rows, states, weights and all else."""

    def __init__(self, seed: int, backend: str):
        pick = self.pick = random.Random(seed)
        self.backend, self.lines = backend, [""]
        noise = torch.Generator().manual_seed(seed)

        def rand(*shape: int) -> Tensor:
            t = torch.randn(*shape, generator=noise, dtype=torch.float64) * 0.6
            return t.requires_grad_(pick.random() < 0.7)

        flat = rand(60)  # all parameters in one, as optimizers hold them
        second = flat[9:18].view(H, H).t() if pick.random() < 0.5 else flat[4:13].view(H, H)
        views = flat[:9].view(H, H), second, flat[24:].view(T, B, H), flat[20:32].view(B, H)
        self.held: dict[str, Tensor] = {}
        for t in (flat, *views, rand(T, B, H), rand(B, H), rand(H, H)):
            self.put(t)
        own = self.held["W7"]
        self.weights = {"a": views[0], "b": own, "c": second}
        names = pick.choice(["ab", "aa", "ca", "ac", "bc"])
        self.steps = steps(self.weights, names[0], names[1])

    def put(self, t: Tensor) -> None:
        name = SHAPES.get(tuple(t.shape), "Y") + str(len(self.held))
        self.held[name] = t
        self.lines[-1] += f" -> {name}"

    def some(self, kinds: str = "XSWY") -> Tensor:
        name = self.pick.choice([name for name in self.held if name[0] in kinds])
        self.lines[-1] += f" {name}"
        return self.held[name]

    def choice(self, among: Any) -> Any:
        found = self.pick.choice(among)
        self.lines[-1] += f" {found}"
        return found

    # ---- the lines of a program

    def call(self) -> None:
        number = self.choice(range(len(self.steps)))
        rows, state = self.some("X"), self.some("S")
        lengths = self.choice([*LENGTHS, None, None, None, None])
        x = rows if lengths is None else LoDTensor.from_lengths(rows.reshape(-1, H), [lengths])
        with torch.set_grad_enabled(self.choice([True, True, True, False])):
            how: Any = {"reverse": self.choice([False, False, True]), "backend": self.backend}
            y, final = recurrent(self.steps[number], x, state, **how)
        self.put(final)
        for t in flatten(y)[0]:
            values = t.values if isinstance(t, LoDTensor) else t
            self.put(values.view(T, B, H) if values.numel() == T * B * H and self.choice([0, 1]) else values)

    def view(self) -> None:
        kind = self.choice("XSW")
        t, other = self.some(kind), self.some(kind)
        views: dict[str, Callable[[], Tensor]] = {
            "row": lambda: t[1], "expanded": lambda: t.expand(T, *t.shape), "rest": lambda: t[1:],
            "turned": lambda: t.transpose(-1, -2), "detached": t.detach, "copy": t.clone,
            "conjugate": lambda: torch.complex(t, t * 0.5).conj().imag, "product": lambda: t * other + 0.1,
            "stack": lambda: torch.stack([t, other, t]), "mean": lambda: t.mean(0), "flip": lambda: t.flip(0),
            "column": lambda: t[..., :1].expand_as(t), "tanh": lambda: torch.tanh(t @ self.some("W")),
        }  # fmt: skip
        self.put(views[self.choice([*views])]())

    def write(self) -> None:
        t = self.some()
        with torch.set_grad_enabled(self.choice([False, False, True])):
            how = self.choice(["scaled", "column", "copied", "detached", "negated", "zeros"])
            if how == "column":
                t[..., 0] = 0.3
            elif how == "copied":
                t.copy_(t.detach().flip(-1))
            elif how == "detached":
                t.detach().add_(0.1)
            else:
                t.mul_({"scaled": 0.9, "negated": -1.0, "zeros": 0.0}[how])

    def total(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(self.pick.choice([1, 2, 3])):
            t = self.some()
            weight = torch.arange(t.numel(), dtype=torch.float64).cos().view(t.shape)
            total = total + (t * weight).sum() + 0.1 * t.square().sum()
        return total

    def backward(self) -> None:
        total = self.total()
        if total.requires_grad:
            total.backward(retain_graph=self.choice([True, True, True, False]))

    def gradients(self) -> None:
        total, by = self.total(), [t for t in (self.some() for _ in range(3)) if t.requires_grad]
        how: Any = {
            "create_graph": self.choice([True, False]),
            "materialize_grads": self.choice([False, True]),
        }
        if total.requires_grad and by:
            # A run is one node, which the engine comes to where any of its inputs is asked for, and then what
            # it gave retains a gradient: by single ops only what depends on that input.
            retained = [(t, t.grad) for t in self.held.values() if t.retains_grad and not t.is_leaf]
            found = torch.autograd.grad(total, by, allow_unused=True, retain_graph=True, **how)
            for t, grad in retained:
                t.grad = grad
            for g in found:
                if g is not None:
                    self.put(g)

    def gradient_used(self) -> None:
        t, how = self.some(), self.choice(["none", "scaled", "zeros", "descent"])
        if not t.is_leaf or t.grad is None:
            return
        if how == "none":
            t.grad = None
        elif how == "descent":
            with torch.no_grad():
                t.sub_(t.grad, alpha=0.1)
        else:
            t.grad.mul_(0.5 if how == "scaled" else 0.0)

    def flag(self) -> None:
        t, how, by = self.some(), self.choice(["leaf", "retain", "hook", "hook"]), self.choice([0.5, 2.0])
        if how == "leaf" and t.is_leaf:
            t.requires_grad_(not t.requires_grad)
        elif how == "hook" and t.requires_grad:
            t.register_hook(lambda g: None if g is None else g * by)
        elif how == "retain" and t.requires_grad:
            t.retain_grad()

    def bind(self) -> None:
        self.weights[self.choice("abc")] = self.some("W")

    def run(self) -> Iterator[list[Any]]:
        """The program, line by line: its error, or all tensors and their gradients."""
        often = {self.call: 5, self.view: 4, self.write: 3, self.flag: 2, self.bind: 2}
        often |= {self.backward: 2, self.gradients: 2, self.gradient_used: 2}
        for _ in range(LINES):
            line = self.pick.choice([line for line, times in often.items() for _ in range(times)])
            self.lines.append(line.__name__)
            try:
                line()
            except (RuntimeError, ValueError, IndexError) as error:
                yield [error]
                return
            held = [*self.held.values()]
            gradients = [t.grad if t.is_leaf or t.retains_grad else None for t in held]
            yield [
                None, [t.requires_grad for t in held],
                *(None if t is None else t.detach().clone() for t in (*held, *gradients)),
            ]  # fmt: skip


def difference(seed: int, backend: str = "auto") -> str | None:
    """How a program differs from itself by the plain loop; None: not at all."""
    ours, plain = Heap(seed, backend), Heap(seed, "naive")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found, expected in itertools.zip_longest(ours.run(), plain.run(), fillvalue=[None, []]):
            if isinstance(found[0], Exception) and any(text in str(found[0]) for text in STRICTER):
                return None
            alike = type(found[0]) is type(expected[0]) and found[1:2] == expected[1:2]
            pairs = zip(found[2:], expected[2:], strict=True) if alike else ()
            if not alike or not all(same(a, b, 1e-7) for a, b in pairs):
                what = f"{found[0]!r}, not {expected[0]!r}" if found[0] or expected[0] else "tensors differ"
                return "\n".join([*ours.lines, what])
    return None


if __name__ == "__main__":
    seeds.main(difference, "programs over heaps")
