"""Whatever reads a value through slices, turns and expansions reads what torch does: generated C copies none
of it that it may read where it lies."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from covering import few
from outcomes import outcome
from stepnet import LoDTensor

OPTIMISED = False
D, N, LENGTHS = torch.float64, 12, [3, 0, 1]
Way = Callable[[Tensor], Tensor]


def views(draw: random.Random) -> tuple[str, Way]:
    """A way to look at rows of any shape, which ends in two dimensions of a row, or in one."""
    names: list[str] = []
    ways: list[Way] = []

    def then(name: str, way: Way) -> None:
        names.append(name)
        ways.append(way)

    for _ in range(draw.randrange(1, 4)):
        kind = draw.choice(["slice", "flip", "grid", "turn", "one", "mean", "repeat"])
        if kind == "slice":
            start, step = draw.randrange(2), draw.randrange(1, 4)
            then(
                f"[..., {start}::{step}]", lambda t, a=start, s=step: t[..., a if t.shape[-1] > a else 0 :: s]
            )
        elif kind == "flip":
            then("flip", lambda t: t.flip(-1))
        elif kind == "grid":
            then("grid", lambda t: t.reshape(t.shape[0], -1, 2) if t[0].numel() % 2 == 0 else t)
        elif kind == "turn":
            then("turn", lambda t: t.transpose(-1, -2) if t.dim() > 2 else t)
        elif kind == "one":
            n = draw.randrange(2, 5)
            then(f"one of {n}", lambda t, n=n: t[..., :1].expand(*t.shape[:-1], n))
        elif kind == "mean":
            n = draw.randrange(1, 5)
            then(f"mean, {n} times", lambda t, n=n: t.mean(-1, keepdim=True).repeat(*[1] * (t.dim() - 1), n))
        else:
            then("repeat", lambda t: t.repeat(*[1] * (t.dim() - 1), 2))

    def look(t: Tensor) -> Tensor:
        for way in ways:
            t = way(t)
        return t

    return ", ".join(names), look


def by_weight(t: Tensor) -> Tensor:
    """A product with a weight that is there once for each size."""
    return t @ WEIGHTS[: t.shape[-1], :3]


READERS: dict[str, Way] = {
    "product": by_weight,
    "transposed product": lambda t: t @ WEIGHTS[:3, : t.shape[-1]].T,
    "product of rows": lambda t: (
        (t if t.dim() > 2 else t.unsqueeze(1)) @ (t if t.dim() > 2 else t.unsqueeze(1)).mT
    ),
    "sum": lambda t: t.sum(-1, keepdim=True),
    "softmax": lambda t: t.softmax(-1),
    "cumsum": lambda t: t.cumsum(-1),
    "sort": lambda t: t.sort(-1)[0],
    "cat": lambda t: torch.cat([t, t.flip(-1)], -1),
    "itself": lambda t: t.clone(),
}
WEIGHTS = torch.randn(64, 64, dtype=D, generator=torch.Generator().manual_seed(3))


def items(seed: int) -> list[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    draw = random.Random(seed)
    found: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = []
    for _ in range(5):
        name, look = views(draw)
        reader = draw.choice([*READERS, "product", "product"])
        source = draw.choice(["x", "h", "tanh(h)", "x + h"])

        def run(x: Tensor, h: Tensor, look: Way = look, reader: str = reader, source: str = source) -> Tensor:
            value = {"x": x, "h": h, "tanh(h)": torch.tanh(h), "x + h": x + h}[source]
            return READERS[reader](look(value)).flatten(1)

        found.append((f"{reader} of {source} by {name}", run))
    return found


@pytest.mark.parametrize("seed", few(list(range(120)), [0]))
def test_each_reader_sees_what_torch_does(seed):
    ways = items(seed)

    def step(x: Tensor, h: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        found = {str(k): run(x, h) for k, (_, run) in enumerate(ways)}
        means = torch.cat([t.mean(-1, keepdim=True) for t in found.values()], -1)
        new = torch.tanh(h + x) + means.sum(-1, keepdim=True).tanh() * 0.1
        return found, new

    x, h = (torch.randn(n, N, dtype=D, requires_grad=True) for n in (sum(LENGTHS), len(LENGTHS)))
    ours, plain = (
        [*values, *grads]
        for by in ("c", "naive")
        for values, grads in [outcome(step, LoDTensor.from_lengths(x, [LENGTHS]), h, by)]
    )
    names = [*(name for name, _ in ways), "final", "gradient of x", "gradient of h"]
    for name, a, b in zip(names, ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")
