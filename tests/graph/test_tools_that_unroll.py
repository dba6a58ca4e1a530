"""Tools that write down the steps of an example: every loop tells them so, and names torch.export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from covering import few
from stepnet import (
    BackEdge,
    InputPort,
    LoDTensor,
    Memory,
    OutputPort,
    RecurrentOp,
    Scope,
    TensorArray,
    TensorIterator,
    layers,
)
from stepnet.errors import StepnetError
from stepnet.tape import Tape
from torch_since import torch_since

CELL = nn.Parameter(torch.randn(2, 2))


def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(x + h @ CELL)
    return h, h


def _framed(x: Tensor, h: Tensor, update: Callable[[Any, Any], Any]) -> Any:
    steps, loop = TensorArray(unstack_from=x), stepnet.create_whileloop([torch.tensor(0), h])
    with loop.frame() as (s, before):
        loop.break_if(s == steps.size())
        loop.update(s, s + 1)
        loop.update(before, update(steps.read(s), before))
    return loop.results[1]


def in_frame(x: Tensor, h: Tensor) -> Any:
    return _framed(x, h, lambda x, h: torch.tanh(x + h @ CELL))


def in_frame_that_grows(x: Tensor, h: Tensor) -> Any:
    return _framed(x, h, lambda x, h: torch.cat([h, x]))


def by_condition(x: Tensor, h: Tensor) -> Any:
    return stepnet.while_loop(lambda z: z.sum() < 30, lambda z: (z * 2 + x[0].abs(),), (h,))[0]


def by_condition_of_rows(x: Tensor, h: Tensor) -> Any:
    return stepnet.while_loop(lambda z: z.sum(1) < 30, lambda z: (z * 2,), (h,), checkpoint=2)[0]


def counted(x: Tensor, h: Tensor) -> Any:
    return stepnet.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z @ CELL), (0, h))[1]


def _scoped(x: Tensor, h: Tensor, **how: bool) -> Any:
    def net(step: Scope) -> None:
        step["h"] = torch.tanh(step["pre"] + step["x"])

    scope = Scope({"x": x, "boot": h})
    RecurrentOp(net, ["x"], ["h"], [Memory("h", pre_name="pre", init="boot")]).run(scope, **how)
    return scope["h"]


def in_scopes(x: Tensor, h: Tensor) -> Any:
    return _scoped(x, h)


def in_scopes_compiled(x: Tensor, h: Tensor) -> Any:
    return _scoped(x, h, keep_scopes=False)


def recurrence(x: Tensor, h: Tensor) -> Any:
    return stepnet.recurrent(step, x, h, axis=0)


def map_of_rows(x: Tensor, h: Tensor) -> Any:
    return stepnet.map_fn(lambda v: torch.tanh(v @ CELL), x)


def _topology() -> nn.Module:
    with Tape() as tape:
        made = in_frame(layers.data("x", layers.Dense(2)), torch.zeros(2))  # pyright: ignore
    return tape.topology([made])


PORTS = TensorIterator(
    lambda x, h: h + x,
    [InputPort("x", "x", axis=0), InputPort("h", "h"), OutputPort("last", 0)],
    [BackEdge(0, "h")],
)
TOPOLOGY = _topology()


def ports(x: Tensor, h: Tensor) -> Any:
    return PORTS(x, h[None])["last"]


def taped(x: Tensor, h: Tensor) -> Any:
    return TOPOLOGY(x=x[:, 0])[0]


LOOPS = (
    in_frame, in_frame_that_grows, by_condition, by_condition_of_rows, counted, in_scopes, in_scopes_compiled,
    recurrence, map_of_rows, ports, taped,
)  # fmt: skip


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.weight = function, CELL
        self.ports, self.topology = PORTS, TOPOLOGY

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.function(torch.relu(x), h * 2)


ARGS = torch.randn(3, 3, 2), torch.ones(3, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", few(["auto", "eager", "naive"], ["auto"]))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_trace_of_any_loop_is_an_error(loop: Any, backend: Any) -> None:
    stepnet.set_backend(backend)
    model = Model(loop)
    model(*ARGS)
    for _ in range(2):
        with pytest.raises(StepnetError, match=r"(?s)torch\.jit\.trace .*torch\.export\.export"):
            torch.jit.trace(model, ARGS)
    model(*ARGS)


@torch_since("2.6", "dynamo=False")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("loop", LOOPS)
def test_an_onnx_export_by_a_trace_is_an_error(loop: Any, tmp_path: Path) -> None:
    with pytest.raises(StepnetError, match=r"torch\.export\.export"):
        torch.onnx.export(Model(loop), ARGS, str(tmp_path / "model.onnx"), dynamo=False)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_symbolic_trace_of_any_loop_is_an_error(loop: Any) -> None:
    with pytest.raises(StepnetError, match=r"(?s)torch\.fx\.symbolic_trace .*torch\.export\.export"):
        torch.fx.symbolic_trace(Model(loop))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_function_in_a_loop_is_no_trace_of_the_loop() -> None:
    traced = torch.jit.trace(lambda x: torch.tanh(x), (torch.ones(2),))
    y = stepnet.while_loop(lambda z: z.sum() > 1, lambda z: (traced(z) / 2,), (torch.ones(2),))[0]
    assert y.sum() <= 1
    rows = LoDTensor.from_lengths(torch.ones(3, 2), [[2, 1]])
    stepnet.recurrent(lambda x, h: (traced(x) + h,) * 2, rows, torch.zeros(2, 2), backend="naive")
