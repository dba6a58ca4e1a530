"""Random steps as plain torch source: a seed makes a step, its weights and its inputs, as text to run."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .grammar import ALONG, BINARY, DOWN, HEAD, MASKED, MATRIX, OF_TRUTH, OF_WHOLE, TRUTH, UNARY, WHOLE, lines


@dataclass
class Var:
    """A value of the step: its name, the shape of a row, and f (main float), e (other float), i or b."""

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass
class Case:
    """A step, with its weights and inputs, as source; `space` is what running the source defines."""

    seed: int
    source: str
    space: dict[str, Any] = field(repr=False)
    x_is_tuple: bool
    states: int

    @property
    def is_double(self) -> bool:
        """True if every float of the step is float64."""
        mixed = any(text in self.body for text in ("(E)", "=E", ".float()"))
        return "torch.float64, torch.float32" in self.source and not mixed

    @property
    def nudges(self) -> tuple[float, ...]:
        """Relative changes of the size of rounding."""
        return (1e-14, -3e-14) if self.is_double else (1e-6, -3e-6)

    @property
    def body(self) -> str:
        """The part of the source that the seed decides."""
        return self.source.partition("torch.manual_seed(0)")[2]

    def inputs(self, lengths: list[int]) -> tuple[list[Any], list[Any]]:
        """Fresh rows of each x leaf and rows of each state."""
        self.space["g"].manual_seed(self.seed + sum((i + 1) * n for i, n in enumerate(lengths)))
        return self.space["make"](sum(lengths), len(lengths))

    @property
    def weights(self) -> dict[str, Any]:
        """Tensors that the step reads from outside, by name."""
        import torch

        found = {}
        for name, value in self.space.items():
            if isinstance(value, torch.Tensor):
                found[name] = value
            elif isinstance(value, torch.nn.Module):
                found |= {f"{name}.{k}": p for k, p in value.named_parameters()}
        return found


class Maker:
    """Writes one step."""

    def __init__(self, seed: int, most: int = 14) -> None:
        self.r = random.Random(seed)
        self.most = most
        self.seed = seed
        self.main = self.r.choice(["float64", "float64", "float32"])
        self.other = "float32" if self.main == "float64" else "float64"
        self.lines: list[str] = []
        self.outside: list[str] = []
        self.vars: list[Var] = []
        self.weights: dict[tuple[int, ...], list[str]] = {}
        self.count = 0
        self.indent = "    "

    # -- pieces ------------------------------------------------------------------------------------

    def put(self, text: str, shape: tuple[int, ...], kind: str = "f") -> Var:
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{self.indent}{name} = {text}")
        self.vars.append(Var(name, tuple(shape), kind))
        return self.vars[-1]

    def pick(self, kind: str = "f", least: int = 0, most: int = 3) -> Var:
        """A value, of late more often."""
        fits = [v for v in self.vars if v.kind == kind and least <= len(v.shape) <= most]
        if fits:
            return self.r.choice(fits[-6:] if self.r.random() < 0.7 else fits)
        if kind != "f":
            return self.cast(self.pick("f", least, most), kind)
        v = self.r.choice(self.vars)
        v = v if v.kind == "f" else self.cast(v, "f")
        n = _size(v.shape)
        shape = (n,) if least <= 1 <= most else ((1, n) if least <= 2 <= most else (1,) * least)
        if most == 0:
            return self.put(f"{v.name}.flatten(1).sum(1)" if v.shape else v.name, ())
        return self.put(f"{v.name}.reshape({self.rows(v)}, {', '.join(map(str, shape))})", shape)

    def rows(self, v: Var) -> str:
        return (
            self.r.choice([f"{v.name}.shape[0]", f"{v.name}.size(0)"])
            if 0 in v.shape
            else self.r.choice(["-1", f"{v.name}.shape[0]"])
        )

    def cast(self, v: Var, kind: str) -> Var:
        if kind == "f":
            return self.put(f"{v.name}.to(D)", v.shape)
        if kind == "e":
            return self.put(f"{v.name}.to(E)", v.shape, "e")
        text = self.r.choice(lines(TRUTH if kind == "b" else WHOLE))
        source = v if v.kind in "fe" else self.cast(v, "f")
        return self.put(text.format(source.name), v.shape, kind)

    def weight(self, *shape: int) -> str:
        known = self.weights.setdefault(shape, [])
        if known and self.r.random() < 0.4:
            return self.r.choice(known)
        name = f"w{sum(map(len, self.weights.values()))}"
        grad = ".requires_grad_()" if self.r.random() < 0.75 else ""
        text = f"(rand({', '.join(map(str, shape))}) * 0.5)"
        if self.r.random() < 0.1:
            text = f"({text}{grad} * 2)"  # no leaf of the autograd graph
            grad = ""
        self.outside.append(f"{name} = {text}{grad}")
        known.append(name)
        return name

    def fit(self, v: Var, shape: tuple[int, ...]) -> Var:
        """A float of a wanted shape made from another."""
        if v.shape == shape:
            return v
        if _size(v.shape) == _size(shape):
            return self.put(f"{v.name}.reshape({v.name}.shape[0], {', '.join(map(str, shape))})" if shape
                            else f"{v.name}.reshape(-1)", shape)  # fmt: skip
        flat = (
            v
            if len(v.shape) == 1
            else self.put(f"{v.name}.flatten(1)" if v.shape else f"{v.name}.unsqueeze(1)", (_size(v.shape),))
        )
        n, m = flat.shape[0], _size(shape)
        if n > m and self.r.random() < 0.4:
            part = f"{n - m}:" if self.r.random() < 0.5 else f":{m}"
            out = self.put(f"{flat.name}[:, {part}]", (m,))
        elif m % n == 0 and self.r.random() < 0.4:
            out = self.put(f"{flat.name}.repeat(1, {m // n})", (m,))
        else:
            out = self.put(self.linear(flat.name, n, m), (m,))
        return self.fit(out, shape)

    def linear(self, name: str, n: int, m: int) -> str:
        w = self.weight(m, n)
        return self.r.choice(
            [
                f"F.linear({name}, {w})",
                f"F.linear({name}, {w}, {self.weight(m)})",
                f"{name} @ {w}.t()",
                f"torch.addmm({self.weight(m)}, {name}, {w}.t())",
                f"{name} @ {self.weight(n, m)} + {self.weight(m)}",
                f"torch.einsum('bi,oi->bo', {name}, {w})",
                f"({name}.unsqueeze(1) * {w}).sum(-1)",
            ]
        )

    # -- ops ---------------------------------------------------------------------------------------

    def op(self) -> None:
        table: list[tuple[float, Callable[[], Any]]] = [
            (8, self.unary), (3, self.along), (2, self.down), (6, self.binary), (4, self.matmul),
            (4, self.moved), (2, self.casts), (2, self.no_grad), (2, self.indexed), (1, self.in_place),
            (1, self.module), (1, self.mixed), (1, self.scalar), (1, self.attention),
            (1, self.matrix), (1, self.masked),
        ]  # fmt: skip
        (chosen,) = self.r.choices([f for _, f in table], [n for n, _ in table])
        chosen()

    def unary(self) -> None:
        v = self.pick()
        self.put(self.r.choice(lines(UNARY)).format(v.name), v.shape)

    def along(self) -> None:
        v = self.pick(least=1)
        self.put(self.r.choice(lines(ALONG)).format(v.name), v.shape)

    def down(self) -> None:
        v = self.pick(least=1)
        if self.r.random() < 0.3:
            keep = self.r.choice(["sum", "mean", "amax"])
            self.put(f"{v.name}.{keep}(-1, keepdim=True)", (*v.shape[:-1], 1))
        elif v.shape[-1] > 1 and self.r.random() < 0.2:
            self.put(self.r.choice([f"{v.name}.var(-1)", f"{v.name}.std(-1)"]), v.shape[:-1])
        else:
            self.put(self.r.choice(lines(DOWN)).format(v.name), v.shape[:-1])

    def binary(self) -> None:
        a = self.pick()
        kind = self.r.random()
        if kind < 0.2:
            b = self.weight(*a.shape) if a.shape else self.weight(1)
        elif kind < 0.35 and a.shape:
            c = self.fit(self.pick(), (*a.shape[:-1], 1))
            b = c.name
        elif kind < 0.45 and len(a.shape) == 2:
            b = self.fit(self.pick(), (a.shape[1],)).name + ".unsqueeze(1)"
        elif kind < 0.5 and len(a.shape) == 1:
            b = self.fit(self.pick(), ()).name + "[:, None]"
        else:
            b = self.fit(self.pick(), a.shape).name
        self.put(self.r.choice(lines(BINARY)).format(a.name, b), a.shape)

    def matmul(self) -> None:
        a = self.pick(least=1, most=2)
        m = self.r.choice([1, 2, 3, 4])
        if len(a.shape) == 1:
            self.put(self.linear(a.name, a.shape[0], m), (m,))
        else:
            w = self.weight(a.shape[-1], m)
            text = self.r.choice(["{0} @ {1}", "torch.matmul({0}, {1})", "F.linear({0}, {1}.t())"])
            self.put(text.format(a.name, w), (a.shape[0], m))

    def attention(self) -> None:
        a = self.pick(least=2, most=2)
        b = self.fit(self.pick(), a.shape)
        n = a.shape[0]
        if self.r.random() < 0.5:
            self.put(f"torch.bmm({a.name}, {b.name}.transpose(1, 2))", (n, n))
        else:
            scores = self.put(f"torch.softmax({a.name} @ {b.name}.mT, -1)", (n, n))
            self.put(f"{scores.name} @ {b.name}", a.shape)

    def matrix(self) -> None:
        n = self.r.choice([2, 3])
        v = self.fit(self.pick(), (n, n))
        self.put(self.r.choice(lines(MATRIX)).format(v.name), v.shape)

    def masked(self) -> None:
        v = self.pick()
        mask = self.cast(v, "b")
        other = self.fit(self.pick(), v.shape)
        out = self.put(f"{v.name}.clone()", v.shape)
        self.lines.append(self.indent + self.r.choice(lines(MASKED)).format(out.name, mask.name, other.name))

    def moved(self) -> None:
        v = self.pick(least=1)
        s, r = v.shape, self.r
        last = s[-1]
        pick = r.randrange(10)
        if pick == 0:
            b = self.fit(self.pick(), (*s[:-1], r.choice([1, 2])))
            self.put(f"torch.cat([{v.name}, {b.name}], -1)", (*s[:-1], s[-1] + b.shape[-1]))
        elif pick == 1:
            b = self.fit(self.pick(), s)
            self.put(f"torch.stack([{v.name}, {b.name}], 1)", (2, *s)) if len(s) < 2 else self.put(
                f"torch.cat([{v.name}, {b.name}], 1)", (2 * s[0], *s[1:])
            )
        elif pick == 2 and s[-1] > 1:
            k = r.randrange(1, s[-1])
            a, b = self.put(f"{v.name}[..., :{k}]", (*s[:-1], k)), (*s[:-1], s[-1] - k)
            self.put(f"{v.name}.split([{k}, {s[-1] - k}], -1)[1]", b)
            _ = a
        elif pick == 3 and s[-1] % 2 == 0 and s[-1] > 0:
            half = (*s[:-1], s[-1] // 2)
            a, b = f"v{self.count}", f"v{self.count + 1}"
            self.count += 2
            self.lines.append(f"{self.indent}{a}, {b} = {v.name}.chunk(2, -1)")
            self.vars += [Var(a, half, "f"), Var(b, half, "f")]
            if r.random() < 0.3:
                self.put(f"F.glu({v.name}, -1)", half)
        elif pick == 4 and len(s) == 2:
            text = r.choice([f"{v.name}.transpose(1, 2)", f"{v.name}.permute(0, 2, 1)", f"{v.name}.mT"])
            self.put(text, (s[1], s[0]))
        elif pick == 5 and len(s) < 3:
            self.put(f"{v.name}.unsqueeze(1).expand(-1, 2, {', '.join('-1' for _ in s)})", (2, *s))
        elif pick == 6 and s[-1] > 1:
            self.put(f"{v.name}[..., ::2]", (*s[:-1], (s[-1] + 1) // 2))
        elif pick == 7 and len(s) >= 2:
            self.put(f"{v.name}.flatten(1)", (_size(s),))
        elif pick == 8:
            self.put(f"F.pad({v.name}, (1, 0))", (*s[:-1], last + 1))
        else:
            n = _size(s)
            shape = (2, n // 2) if n % 2 == 0 and n else (n, 1)
            self.put(f"{v.name}.reshape({v.name}.shape[0], {shape[0]}, {shape[1]})", shape)

    def casts(self) -> None:
        kind = self.r.choice("eibbif")
        v = self.r.choice(self.vars)
        if v.kind == kind == "i":
            self.put(self.r.choice(lines(OF_WHOLE)).format(v.name), v.shape, "i")
        elif v.kind == kind == "b":
            self.put(self.r.choice(lines(OF_TRUTH)).format(v.name), v.shape, "b")
        else:
            self.cast(v if v.kind != kind else self.pick("f"), kind)

    def mixed(self) -> None:
        """Values of two dtypes meet."""
        v = self.pick()
        other = self.cast(self.fit(self.pick(), v.shape), self.r.choice("eib"))
        out = self.put(f"{v.name} {self.r.choice('+*')} {other.name}", v.shape, "f")
        if other.kind == "e" and self.other == "float64":
            out.kind = "e"

    def no_grad(self) -> None:
        if self.indent != "    ":
            return
        how = self.r.choice(["torch.no_grad()", "torch.no_grad()", "torch.set_grad_enabled(False)"])
        self.lines.append(f"    with {how}:")
        self.indent = "        "
        for _ in range(self.r.choice([1, 2])):
            self.r.choice([self.unary, self.binary, self.matmul])()
        if self.r.random() < 0.2:
            self.lines.append("        with torch.enable_grad():")
            self.indent = "            "
            self.binary()
        self.indent = "    "

    def indexed(self) -> None:
        v = self.pick(least=1, most=1)
        n = v.shape[0]
        kind = self.r.randrange(6)
        if kind == 0:
            index = self.put(f"{v.name}.argmax(-1)", (), "i")
            self.put(f"F.embedding({index.name}, {self.weight(n, 3)})", (3,))
        elif kind == 1:
            index = self.put(f"{v.name}.argmin(-1, keepdim=True)", (1,), "i")
            self.put(f"{v.name}.gather(1, {index.name})", (1,))
        elif kind == 2:
            self.put(f"F.one_hot({v.name}.argmax(-1), {n})", (n,), "i")
        elif kind == 3:
            index = self.cast(v, "i")
            self.put(f"{self.weight(5, 2)}[({index.name} % 5)]", (n, 2))
        elif kind == 4:
            self.put(f"{v.name}.topk(1, -1).values", (1,))
        else:
            index = self.cast(self.fit(self.pick(), (2,)), "i")
            self.put(f"F.embedding({index.name}.remainder(4), {self.weight(4, 2)}, padding_idx=0)", (2, 2))

    def in_place(self) -> None:
        v = self.pick(least=1)
        out = self.put(f"{v.name}.clone()", v.shape)
        writes = "{0}.mul_(0.5) | {0}.tanh_() | {0}[:, 0] = 0.3 | {0}[..., -1] = {1}[..., 0] | {0}.add_({1})"
        text = self.r.choice(lines(writes + " | {0}.clamp_(-1, 1) | {0} += 1 | {0}[:, :1].zero_()"))
        self.lines.append(self.indent + text.format(out.name, v.name))

    def module(self) -> None:
        v = self.pick(least=1, most=1)
        n, name = v.shape[0], f"m{len(self.outside)}"
        kind = self.r.randrange(4)
        if kind == 0:
            self.outside.append(f"{name} = nn.Linear({n}, 3, dtype=D)")
            self.put(f"{name}({v.name})", (3,))
        elif kind == 1:
            self.outside.append(f"{name} = nn.LayerNorm({n}, dtype=D)")
            self.put(f"{name}({v.name})", (n,))
        elif kind == 2:
            self.outside.append(f"{name} = nn.GRUCell({n}, 2, dtype=D)")
            self.put(f"{name}({v.name}, {self.fit(self.pick(), (2,)).name})", (2,))
        else:
            self.outside.append(f"{name} = nn.Sequential(nn.Linear({n}, 2, dtype=D), nn.PReLU(dtype=D))")
            self.put(f"{name}({v.name})", (2,))

    def scalar(self) -> None:
        """A value that all rows share."""
        v = self.pick()
        text = self.r.choice(["{0}.sum()", "{0}.softmax(0)[0]", "{0}.norm()", "{0}.tanh().mean()"])
        self.put(f"{v.name} * {text.format(self.weight(3))}", v.shape)

    # -- the whole ---------------------------------------------------------------------------------

    def case(self) -> Case:
        r = self.r
        shapes = [(3,), (2,), (4,), (), (2, 3), (1,), (2, 2)]
        n_x = r.choice([1, 1, 1, 2, 3])
        n_s = r.choice([1, 1, 1, 2, 2, 3, 0])
        xs = [Var(f"x{i}", r.choice(shapes), r.choice("ffffffie")) for i in range(n_x)]
        ss = [Var(f"h{i}", r.choice(shapes), r.choice("ffffffiebf")) for i in range(n_s)]
        self.vars = [v for v in (*xs, *ss) if r.random() < 0.9] or [xs[0]]
        for _ in range(min(r.choice([1, 2, 3, 4, 5, 6, 7, 8, 10, 14]), self.most)):
            self.op()
        new = [self.new_state(s) for s in ss]
        y = [self.result([*xs, *ss]) for _ in range(r.choice([1, 1, 1, 2, 3]))]
        if r.random() < 0.05:
            y.append(y[0])
        if new and r.random() < 0.15:
            y[0] = new[0]
        y_text = y[0] if len(y) == 1 else r.choice(["({0},)", "[{0}]"]).format(", ".join(y))
        states = ", ".join(new)
        out = [f"    return {y_text}, " + (states if n_s == 1 else f"({states}{',' if n_s > 1 else ''})")]
        head = [f"    ({', '.join(v.name for v in xs)},) = x" if n_x > 1 else "    x0 = x"]
        if n_s:
            head.append(f"    ({', '.join(v.name for v in ss)},) = h" if n_s > 1 else "    h0 = h")
        text = HEAD.format(main=self.main, other=self.other, seed=self.seed)
        text += "\n\n" + "torch.manual_seed(0)\n" + "\n".join(self.outside) + "\n\n\n"
        text += "def step(x, h):\n" + "\n".join([*head, *self.lines, *out]) + "\n\n\n"
        text += self.make(xs, ss)
        name = f"<fuzz {self.seed}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        space: dict[str, Any] = {"__name__": "fuzz"}
        exec(compile(text, name, "exec"), space)
        return Case(self.seed, text, space, n_x > 1, n_s)

    def new_state(self, s: Var) -> str:
        r = self.r
        if r.random() < 0.12:
            return s.name
        if s.kind in "ib":
            return self.cast_to(s)
        v = self.fit(self.pick(), s.shape)
        bounded = ["torch.tanh({0})", "torch.tanh({0})", "0.5 * {0}", "{0}.clamp(-2, 2)"]
        text = r.choice(bounded).format(v.name)
        if s.kind == "e":
            text = f"({text}).to(E)"
        if r.random() < 0.12:
            text = f"({text}).detach()"
        elif r.random() < 0.05:
            text = f"torch.zeros_like({s.name})"
        return self.put(text, s.shape, s.kind).name

    def cast_to(self, s: Var) -> str:
        v = self.cast(self.fit(self.pick(), s.shape), s.kind)
        if s.kind == "i":
            return self.put(self.r.choice([f"{v.name} % 5", f"({s.name} + 1) % 4", f"{v.name}.clamp(-3, 3)"]),
                            s.shape, "i").name  # fmt: skip
        return v.name

    def result(self, inputs: list[Var]) -> str:
        r = self.r
        v = r.choice(inputs) if r.random() < 0.08 else r.choice(self.vars[-8:])
        if r.random() < 0.1:
            return f"{v.name}.detach()"
        return v.name

    def make(self, xs: list[Var], ss: list[Var]) -> str:
        def fresh(v: Var, n: str) -> str:
            shape = ", ".join([n, *map(str, v.shape)])
            if v.kind == "i":
                return f"rand({shape}).mul(3).long()"
            if v.kind == "b":
                return f"rand({shape}) > 0"
            grad = ".requires_grad_()" if self.r.random() < 0.6 else ""
            dtype = f", dtype={'E' if v.kind == 'e' else 'D'})"
            whole, spaced, later = (f"rand({more}{shape}{dtype}" for more in ("", "2 * ", "3 + "))
            places = [whole, whole, whole, spaced + "[::2]", later + "[3:]"]
            if v.shape:
                turned = ", ".join([*map(str, v.shape), n])
                places.append(f"rand({turned}{dtype}.movedim(-1, 0)")
            return self.r.choice(places) + grad

        lines = [f"    xs = [{', '.join(fresh(v, 'rows') for v in xs)}]"]
        lines.append(f"    hs = [{', '.join(fresh(v, 'n') for v in ss)}]")
        return "def make(rows, n):\n" + "\n".join(lines) + "\n    return xs, hs\n"


def _size(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def make_case(seed: int, most: int = 14) -> Case:
    """The step of a seed, of at most so many ops."""
    return Maker(seed, most).case()
