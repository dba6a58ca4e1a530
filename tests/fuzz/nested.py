"""Random steps over sentences that run recurrences over their words: by any way, and by the plain loop.

Values, which of them carry a gradient, and every gradient, of three calls in a row; inputs hold NaN,
infinities and huge numbers now and then.

`python -m fuzz.nested [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepnet import LoDTensor, recurrent
from stepnet.data.tree import flatten
from stepnet.data.values import rows_of

from . import seeds
from .compare import same

H = 3
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, 1e300)
BEGINS = ("the outer state", "zeros", "its own", "linear", "tanh", "no log probability")
WORDS = ("as they are", "tanh", "linear", "arithmetic", "map")
INNER = ("gru", "lstm", "own", "log", "max")
THEN = (
    "tanh", "linear", "times h", "softmax", "norm", "quotient", "log", "sqrt", "exp", "cat", "where", "clamp",
    "sigmoid", "sum", "power", "max", "detach",
)  # fmt: skip
GIVES = ("h", "words", "both", "words mapped", "the last")


class Program(nn.Module):
    """One step over sentences, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        r = self.random = random.Random(seed)
        self.begin, self.words, self.inner = r.choice(BEGINS), r.choice(WORDS), r.choice(INNER)
        self.second, self.gives = r.choice([None, None, "the outer state", "the last"]), r.choice(GIVES)
        self.how: Any = r.choice(
            [{}, {}, {}, {}, {}, {"reverse": True}, {"detach_every": 2}, {"checkpoint": 2}]
        )
        self.then = [r.choice(THEN) for _ in range(r.randint(1, 3))]
        self.gru, self.other, self.lstm = nn.GRUCell(H, H), nn.GRUCell(H, H), nn.LSTMCell(H, H)
        self.one, self.two = nn.Linear(H, H), nn.Linear(2 * H, H)
        self.double()

    def __repr__(self) -> str:
        return (
            f"{self.begin}, {self.words}, {self.inner}, {self.how}, {self.second}, {self.then}, {self.gives}"
        )

    def of_words(self, x: Any) -> Any:
        if self.words == "map":
            return x.map(torch.exp)
        ways = {"tanh": torch.tanh, "linear": self.one, "arithmetic": lambda x: x * 2 - 1}
        return ways.get(self.words, lambda x: x)(x)

    def first(self, h: Tensor, n: int) -> Any:
        if self.begin == "its own":
            return None if self.inner in ("gru", "lstm") else h.new_zeros(n, H)
        if self.begin == "no log probability":
            return torch.full_like(h, -float("inf"))
        ways = {"zeros": torch.zeros_like, "linear": self.one, "tanh": lambda h: 2 * torch.tanh(h)}
        return ways.get(self.begin, lambda h: h)(h)

    def own(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.inner == "own":
            h = torch.tanh(self.one(x)) + 0.5 * h
            return 2 * h, h
        h = torch.log(h.abs() + x.abs()) if self.inner == "log" else torch.maximum(x, h)
        return h, h

    def after(self, how: str, s: Tensor, h: Tensor) -> Tensor:
        ways = {
            "tanh": lambda: torch.tanh(s), "linear": lambda: self.one(s), "times h": lambda: s * h,
            "softmax": lambda: s.softmax(-1), "norm": lambda: F.layer_norm(s, (H,)),
            "quotient": lambda: h / s, "log": lambda: torch.log(s.abs()),
            "sqrt": lambda: torch.sqrt(s.abs()), "exp": lambda: s.exp(),
            "cat": lambda: self.two(torch.cat([s, h], -1)), "where": lambda: torch.where(s > 0, s, h),
            "clamp": lambda: s.clamp(-1, 1), "sigmoid": lambda: torch.sigmoid(s) * h, "power": lambda: s**3,
            "sum": lambda: s.sum(-1, keepdim=True) + h, "max": lambda: s.max(-1, keepdim=True)[0] + h,
            "detach": lambda: s.detach() + h,
        }  # fmt: skip
        return ways[how]()

    def forward(self, x: Any, h: Tensor) -> tuple[Any, Tensor]:
        words, first = self.of_words(x), self.first(h, len(x))
        if self.inner == "lstm":
            pair = None if first is None else (first, torch.zeros_like(h))
            y, (s, _) = recurrent(self.lstm, words, pair, **self.how)
        else:
            y, s = recurrent(self.gru if self.inner == "gru" else self.own, words, first, **self.how)
        if self.second is not None:
            s = s + recurrent(self.other, y, s if self.second == "the last" else h)[1]
        new = s
        for how in self.then:
            new = self.after(how, new, h)
        ways = {"words": y, "both": (y, new * 2), "words mapped": y.map(torch.tanh), "the last": s}
        return ways.get(self.gives, new), new


def difference(seed: int) -> str | None:
    """How the results of a program differ from those of the plain loop; None: not at all."""
    step = Program(seed)
    r = step.random
    sentences = [r.randint(0, 3) for _ in range(r.randint(1, 4))]
    words = [
        r.choice([0, 1, 1, 2, 3, 4]) if seed % 5 == 0 else r.randint(1, 4) for _ in range(sum(sentences))
    ]
    values, start = torch.randn(sum(words), H).double(), torch.randn(len(sentences), H).double()
    if len(values) and r.random() < 0.3:
        values[r.randrange(len(values)), r.randrange(H)] = r.choice(SPECIAL)
    wanted = r.random() < 0.7, r.random() < 0.7

    def run(backend: Any) -> Any:
        x, h = values.clone().requires_grad_(wanted[0]), start.clone().requires_grad_(wanted[1])
        try:
            y, last = recurrent(
                step, LoDTensor.from_lengths(x, [sentences, words]), h, level=0, backend=backend
            )
        except (RuntimeError, ValueError, IndexError) as error:
            return error
        results = [rows_of(leaf) for leaf in flatten((y, last))[0]]
        read = [t for t in (x, h, *step.parameters()) if t.requires_grad]
        ends = [t.sin() * (k + 1) for k, t in enumerate(results) if t.requires_grad]
        gradients = torch.autograd.grad([e.sum() for e in ends], read, allow_unused=True) if ends else ()
        shown = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, read, strict=False)]
        return [t.requires_grad for t in results], [*map(Tensor.detach, results), *shown]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run("naive")
        for call in range(3):
            found = run("auto")
            if isinstance(found, Exception) or isinstance(expected, Exception):
                if type(found) is not type(expected):
                    return f"{step}: {found!r}, not {expected!r}"
                continue
            alike = found[0] == expected[0] and len(found[1]) == len(expected[1])
            if not alike or not all(same(a, b, 1e-7) for a, b in zip(found[1], expected[1], strict=True)):
                return f"{step}: call {call} differs"
    return None


if __name__ == "__main__":
    seeds.main(difference, "steps over sentences")
