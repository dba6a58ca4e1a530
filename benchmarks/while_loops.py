"""The founding documents' while loop, written as a frame: raised to a scan, or run as recorded.

Beside them the same recurrence by `stepnet.recurrent`, and as a loop in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

import stepnet
from stepnet.data.array import TensorArray
from stepnet.front.frame import WhileLoop
from stepnet.loops.create import create_whileloop
from stepnet.loops.recorded_frame import run_recorded

from .harness import Case, Contender, Topic

States = Callable[[Tensor], Tensor]


def cases(quick: bool) -> Iterator[Case]:
    """T steps of a sigmoid RNN over B rows, forward and with all gradients."""
    sizes = [(20, 4, 16)] if quick else [(100, 1, 256), (100, 32, 64), (100, 32, 256), (1000, 8, 128)]
    for steps, batch, size in sizes:
        for training in (False, True):
            draw = torch.Generator().manual_seed(steps * size)
            x = torch.randn(steps, batch, size, generator=draw)
            weights = [torch.randn(size, size, generator=draw) / size**0.5 for _ in range(2)]
            U, W = (w.requires_grad_(training) for w in weights)
            boot = torch.zeros(batch, size)
            yield Case(
                name=f"T={steps} B={batch} H={size} {'train' if training else 'forward'}",
                contenders={
                    "stepnet, frame": _contender(frame(U, W, boot, create_whileloop), x, U, W),
                    "stepnet.recurrent": _contender(by_recurrent(U, W, boot), x, U, W),
                    "frame as recorded": _contender(frame(U, W, boot, recorded), x, U, W),
                    "loop in Python": _contender(by_hand(U, W, boot), x, U, W),
                },
                reference="loop in Python",
                ours="stepnet, frame",
                facts={"T": steps, "B": batch, "H": size, "pass": "train" if training else "forward"},
                rtol=1e-3,
                atol=1e-3,
            )


def recorded(loop_vars: Sequence[Tensor]) -> WhileLoop:
    """A loop that is never raised."""
    return WhileLoop(loop_vars, None, run_recorded)


def frame(U: Tensor, W: Tensor, boot: Tensor, make: Callable[..., WhileLoop]) -> States:
    """The loop of the paper."""

    def run(x: Tensor) -> Tensor:
        states, inputs = TensorArray(size=len(x)), TensorArray(unstack_from=x)
        loop = make(loop_vars=[torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == len(x))
            pre_state = states.read(s - 1, boot)
            states.write(s, torch.sigmoid(pre_state @ U + inputs.read(s) @ W))
            loop.update(s, s + 1)
        return states.stack()

    return run


def by_recurrent(U: Tensor, W: Tensor, boot: Tensor) -> States:
    """The step of it."""

    def step(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.sigmoid(state @ U + x @ W)
        return state, state

    return lambda x: stepnet.recurrent(step, x, boot)[0]


def by_hand(U: Tensor, W: Tensor, boot: Tensor) -> States:
    """A list of states."""

    def run(x: Tensor) -> Tensor:
        states, state = [], boot
        for row in x.unbind(0):
            state = torch.sigmoid(state @ U + row @ W)
            states.append(state)
        return torch.stack(states)

    return run


def _contender(run: States, x: Tensor, U: Tensor, W: Tensor) -> Contender:
    def work() -> Mapping[str, Tensor]:
        if not U.requires_grad:
            with torch.no_grad():
                return {"states": run(x)}
        states = run(x)
        gradients = torch.autograd.grad(states.square().mean(), (U, W))
        return {"states": states.detach(), "gradient of U": gradients[0], "gradient of W": gradients[1]}

    return Contender(work)


TOPIC = Topic(
    name="while_loops",
    claim="a while loop over TensorArrays that is a scan runs as one, at the speed of recurrent",
    cases=cases,
)
