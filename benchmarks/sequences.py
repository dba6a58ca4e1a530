"""Sequences as people have them: resets, streams, linear recurrences over one long sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Recurrent, Resets, cells, recurrent

from .child import on_threads
from .harness import Case, Contender, Effort, Row, Topic

Values = Mapping[str, Tensor]
EFFORTS = (
    Effort(rounds=15, warmup=2, shortest=0.02, budget=20.0),
    Effort(rounds=3, warmup=1, shortest=0.0, budget=5.0),
)
RTOL, ATOL = 1e-3, 2e-5
EPISODE = 20  # steps, in the mean


def drawn(*shape: int) -> Tensor:
    """Normal numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def training(run: Callable[[], Tensor], weights: Mapping[str, Tensor]) -> Callable[[], Values]:
    """Forward and backward: y, and the gradients of the weights of half the mean square of y."""

    def step() -> Values:
        y = run()
        grads = torch.autograd.grad(y, list(weights.values()), y.detach() / (y.numel() ** 0.5))
        return {"y": y.detach(), **dict(zip(weights, grads, strict=True))}

    return step


def twins(H: int) -> tuple[cells.LSTM, nn.LSTMCell, nn.LSTM]:
    """Three LSTMs of the same weights."""
    torch.manual_seed(H)
    own, step, whole = cells.LSTM(H, H), nn.LSTMCell(H, H), nn.LSTM(H, H)
    step.load_state_dict(own.state_dict())
    whole.load_state_dict({f"{name}_l0": weight for name, weight in own.state_dict().items()})
    return own, step, whole


# ---- resets


def reset_cases(quick: bool) -> Iterator[Case]:
    """A rollout of episodes, by resets, by the masked loop, and by an nn.LSTM that sees none of them."""
    goals = {(128, 8, 64): 15.0, (128, 64, 128): 2.5}
    for T, B, H in ((12, 3, 8),) if quick else (*goals, (128, 8, 128), (128, 8, 256), (128, 64, 256)):
        own, step, whole = twins(H)
        x = drawn(T, B, H)
        first = torch.rand(T, B, generator=torch.Generator().manual_seed(1)) < 1 / EPISODE

        def by_loop(cell: nn.LSTMCell = step, x: Tensor = x, first: Tensor = first) -> Tensor:
            h = c = x.new_zeros(x.shape[1:])
            out = []
            for row, keep in zip(x, (~first).float()[..., None], strict=True):
                h, c = cell(row, (h * keep, c * keep))
                out.append(h)
            return torch.stack(out)

        def by_calls(net: nn.LSTM = whole, x: Tensor = x, first: Tensor = first) -> Tensor:
            """As CleanRL and sb3-contrib have it."""
            h = c = x.new_zeros(1, *x.shape[1:])
            out = []
            for row, keep in zip(x[:, None], (~first).float()[..., None], strict=True):
                y, (h, c) = net(row, (h * keep, c * keep))
                out.append(y)
            return torch.cat(out)

        def by_resets(cell: cells.LSTM = own, x: Tensor = x, first: Tensor = first) -> Tensor:
            return recurrent(cell, x, resets=Resets(is_init=first))[0]

        ours = training(by_resets, dict(own.named_parameters()))
        weights = {name.removesuffix("_l0"): weight for name, weight in whole.named_parameters()}
        masked = training(by_loop, dict(step.named_parameters()))
        yield Case(
            name=f"{T},{B},{H} beside the masked loop",
            contenders={
                "stepnet": Contender(ours),
                "masked loop": Contender(training(by_calls, weights)),
                "masked loop of cells": Contender(masked),
            },
            reference="masked loop",
            facts={"goal": goals.get((T, B, H), 1.0)},
            rtol=RTOL,
            atol=ATOL,
        )
        if H < 128 and not quick:
            continue
        no_marks = torch.zeros_like(first)
        unmarked = training(lambda run=by_resets, no=no_marks: run(first=no), dict(own.named_parameters()))
        yield Case(
            name=f"{T},{B},{H} beside nn.LSTM without resets",
            contenders={
                "stepnet": Contender(ours, values=lambda _, run=unmarked: run()),
                "nn.LSTM": Contender(training(lambda net=whole, x=x: net(x)[0], weights)),
            },
            reference="nn.LSTM",
            facts={"goal": 1.0},
            rtol=RTOL,
            atol=ATOL,
        )


# ---- streams


def stream_cases(quick: bool) -> Iterator[Case]:
    """One frame of one stream, beside calls of its loop; a frame of many, beside calls of nn.LSTM. The first
    calls, whose values are compared, are of the first frames."""
    H, many = (8, 4) if quick else (128, 256)
    own, _, whole = twins(H)
    zeros = (torch.zeros(1, H), torch.zeros(1, H))
    for n in (1, many):
        live = stepnet.stream(Recurrent(own))
        frames = {live.open(k): drawn(1, H + k)[:, k:] for k in range(n)}
        rows = LoDTensor.from_sequences([*frames.values()])

        def push(live: stepnet.Stream = live, frames: dict[Any, Tensor] = frames) -> dict[Any, Tensor]:
            return live.push(frames)

        @torch.no_grad()
        def call(rows: LoDTensor = rows) -> dict[Any, Tensor]:
            return {0: recurrent(own, rows, zeros)[0].values}

        states = dict.fromkeys(frames, zeros)

        @torch.no_grad()
        def calls(frames: dict[Any, Tensor] = frames, states: dict[Any, Any] = states) -> dict[Any, Tensor]:
            out = {}
            for k, frame in frames.items():
                out[k], states[k] = whole(frame, states[k])
            return out

        peer, run = ("a call of the loop", call) if n == 1 else ("calls of nn.LSTM", calls)
        yield Case(
            name=f"a frame of {n} streams, H={H}",
            contenders={"stepnet": Contender(push, _by_name), peer: Contender(run, _by_name)},
            reference=peer,
            facts={"goal": 1 / 1.5 if n == 1 else 20.0},
        )


def _by_name(out: Mapping[Any, Tensor]) -> Values:
    return {str(k): y for k, y in out.items()}


# ---- one long sequence, on one thread and on two


def time_cases(quick: bool) -> Iterator[Case]:
    """Cells that are linear in their state, forward and backward. minGRU is held against the plain loop."""
    T = 200 if quick else 100_000
    makes: dict[str, Callable[[int], nn.Module]] = {
        "minGRU": lambda H: cells.MinGRU(H, H),
        "minLSTM": lambda H: cells.MinLSTM(H, H),
        "RG-LRU": cells.RGLRU,
    }
    for name, make in makes.items():
        for H in (8,) if quick else (128, 256):
            torch.manual_seed(H)
            cell, x = make(H), drawn(T, 1, H)
            weights = dict(cell.named_parameters())

            compiled = training(lambda cell=cell, x=x: recurrent(cell, x)[0], weights)
            plain = training(lambda cell=cell, x=x: recurrent(cell, x, backend="naive")[0], weights)
            yield Case(
                name=f"{name} {T},1,{H}",
                contenders={
                    "stepnet": Contender(on_threads(2)(compiled)),
                    "one thread": Contender(on_threads(1)(compiled)),
                },
                reference=plain if name == "minGRU" else "one thread",
                facts={"goal": 1.6 if name == "minGRU" else 1.0},
                rtol=RTOL,
                atol=ATOL,
            )


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """Each ratio over its goal: 1 or more reaches it."""
    return {
        f"{row.case}: of its goal ({float(row.facts['goal']):.3g})": ratio.median / float(row.facts["goal"])
        for row in rows
        for ratio in row.ratios.values()
    }


RESETS = Topic(
    name="resets",
    claim="training on episodes that are cut out of a rollout: others' time over ours",
    cases=reset_cases,
    findings=findings,
    efforts=EFFORTS,
)
STREAMS = Topic(
    name="streams",
    claim="a push of frames: a call of the generated loop (goal 1 / 1.5), and calls of nn.LSTM, over ours",
    cases=stream_cases,
    findings=findings,
    efforts=EFFORTS,
)
ONE_SEQUENCE = Topic(
    name="one_sequence",
    claim="cells linear in their state over one long sequence, trained on one thread over on two",
    cases=time_cases,
    findings=findings,
    efforts=EFFORTS,
)
