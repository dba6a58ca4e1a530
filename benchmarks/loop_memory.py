"""Memory of loops: what checkpoints save in training, and that the RNN op's inference is flat in T.

Counted are the bytes of all tensors alive at once, looked at every few operators; so the figures are the same
on every machine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from rich.console import RenderableType
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import stepnet
from stepnet.front.memory import Memory
from stepnet.front.scope import Scope
from stepnet.loops.recurrent_op import RecurrentOp

from .harness import Case, Contender, Effort, Row, Topic
from .memory import ONCE, table_in

BATCH, SIZE = 32, 64


def cases(quick: bool) -> Iterator[Case]:
    """Loops of more and more steps, trained and in inference."""
    counts = (20, 80) if quick else (50, 200, 800, 3200)
    for steps in counts:
        draw = torch.Generator().manual_seed(steps)
        W = torch.randn(SIZE, SIZE, generator=draw) / SIZE**0.5
        start = torch.randn(BATCH, SIZE, generator=draw)
        yield Case(
            name=f"training a while loop, T={steps}",
            contenders={
                "everything kept": training(steps, W, start, None),
                "checkpoint=16": training(steps, W, start, 16),
                "checkpoint=True": training(steps, W, start, True),
            },
            reference="everything kept",
            ours="checkpoint=True",
            facts={"T": steps, "pass": "train"},
            rtol=1e-4,
            atol=1e-5,
        )
    for steps in counts:
        draw = torch.Generator().manual_seed(steps)
        x = torch.randn(1, BATCH, SIZE, generator=draw).expand(steps, BATCH, SIZE)
        W = torch.randn(SIZE, SIZE, generator=draw) / SIZE**0.5
        yield Case(
            name=f"RecurrentOp, T={steps}",
            contenders={
                "inference, two scopes": op(x, W, inference=True),
                "training, a scope per step": op(x, W, inference=False),
            },
            reference="training, a scope per step",
            ours="inference, two scopes",
            facts={"T": steps, "pass": "forward"},
        )


def training(steps: int, W: Tensor, start: Tensor, checkpoint: int | bool | None) -> Contender:
    """Forward and backward of `while_loop`."""

    def run() -> Mapping[str, Tensor]:
        weight = W.detach().requires_grad_()

        def body(i: int, h: Tensor) -> tuple[int, Tensor]:
            return i + 1, torch.sin(torch.tanh(h @ weight))

        _, h = stepnet.while_loop(lambda i, h: i < steps, body, (0, start), checkpoint=checkpoint)
        (gradient,) = torch.autograd.grad(h.square().mean(), weight)
        return {"state": h.detach(), "gradient": gradient}

    return Contender(run)


def op(x: Tensor, W: Tensor, *, inference: bool) -> Contender:
    """The RNN op for its last state; the weight wants a gradient in training."""

    def stepnet_(step: Scope) -> None:
        step["a"] = step["h_pre"] @ step["W"] + step["x"]
        step["h"] = torch.tanh(step["a"])

    def run() -> Mapping[str, Tensor]:
        recurrent_op = RecurrentOp(stepnet_, ["x"], [], [Memory("h", "h_pre", "boot")])
        weight = W.detach().requires_grad_(not inference)
        with torch.set_grad_enabled(not inference):
            recurrent_op.run(Scope({"x": x, "W": weight, "boot": torch.zeros(BATCH, SIZE)}))
        return {"last state": recurrent_op.last["h"].detach()}

    return Contender(run)


class LiveMemory(TorchDispatchMode):
    """`peak` is the most bytes that tensors made in this block held, looked at every eighth operator."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._calls = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._calls += 1
        if self._calls % 8 == 0:
            self._live = {key: held for key, held in self._live.items() if not held[0].expired()}
            self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def peak_of(run: Callable[[], object]) -> float:
    """Bytes alive at once while something runs."""
    gc.collect()
    with LiveMemory() as memory:
        run()
    return float(memory.peak)


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Peak bytes of each contender."""
    return {name: [peak_of(contender.run)] for name, contender in case.contenders.items()}


def table(rows: Sequence[Row]) -> RenderableType:
    """A line for each contender, in KiB."""
    return table_in("KiB alive", 1024, 0, rows)


def findings(rows: Sequence[Row]) -> Mapping[str, float]:
    """How memory grows from the fewest steps to the most: 1 is flat; beside it, how the steps grow."""
    found: dict[str, float] = {}
    for kind in ("train", "forward"):
        some = sorted((r for r in rows if r.facts["pass"] == kind), key=lambda r: float(r.facts["T"]))
        if len(some) < 2:
            continue
        first, last = some[0], some[-1]
        steps = float(last.facts["T"]) / float(first.facts["T"])
        for name, alive in last.times.items():
            growth = alive.median / first.times[name].median
            found[f"{name}: growth of memory as steps grow {steps:g} times"] = growth
    return found


TOPIC = Topic(
    name="loop_memory",
    claim="bytes alive: checkpoints keep training at the root of T; the RNN op's inference is flat in T",
    cases=cases,
    findings=findings,
    table=table,
    measure=measure,
    unit="bytes",
    efforts=(ONCE, ONCE),
)
