"""`torch.compile` of models with recurrences: one graph, the same values, no new graph for new lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import stepnet
from stepnet import LoDTensor, Recurrent, cells, recurrent
from stepnet.data.tree import flatten

LENGTHS = ([2, 5], [3, 0, 1, 4], [4, 2, 7], [6, 2])


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def leaves_of(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in flatten(result)[0]]


def ragged(lengths: Sequence[int], features: int = 3) -> LoDTensor:
    """Random rows, double, that want a gradient."""
    rows = torch.randn(sum(lengths), features, dtype=torch.float64, requires_grad=True)
    return LoDTensor.from_lengths(rows, [lengths])


def dense(steps: int, n: int, features: int = 3) -> Tensor:
    return torch.randn(steps, n, features, dtype=torch.float64, requires_grad=True)


def gradients(model: nn.Module, call: Callable[..., Any], args: Sequence[Any]) -> list[Tensor | None]:
    """Values, then the gradients of the arguments and of the parameters."""
    outs = leaves_of(call(*args))
    wanted = [t for t in (*leaves_of(list(args)), *model.parameters()) if t.requires_grad]
    weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view_as(t) for t in outs]
    loss = torch.stack([(t * w).sum() for t, w in zip(outs, weights, strict=True)]).sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True) if torch.is_grad_enabled() else ()
    return [*(t.detach() for t in outs), *grads]


def assert_alike(model: nn.Module, compiled: Any, args: Sequence[Any]) -> None:
    """Values and gradients of a compiled model are those of the model."""
    expected, found = gradients(model, model, args), gradients(model, compiled, args)
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        zero = b is not None and a is None and not b.any()
        assert zero or (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


class Closure(nn.Module):
    """A step that is a closure over parameters, and cuts a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Any, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            h = self.cell(x, h) * self.scale + torch.zeros(x.shape[0], 4, dtype=x.dtype)
            with torch.no_grad():
                cut = h * 2
            return {"y": cut + h, "z": x.detach()}, h

        return recurrent(step, x, h)


class Modules(nn.Module):
    """Cells of both kinds, one after the other and backwards, state handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Recurrent(cells.GRU(3, 4))
        self.second = Recurrent(nn.LSTMCell(4, 4), reverse=True)

    def forward(self, x: Any) -> Any:
        y, h = self.first(x)
        return self.second(y, (h, torch.tanh(h)))


class Layers(nn.Module):
    """The drop-in layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(stepnet.nn, kind)(3, 4, num_layers=2, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)


class Static(nn.Module):
    """A step that sees a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: LoDTensor, h: Tensor, memory: Tensor) -> Any:
        def step(x: Tensor, h: Tensor, memory: Tensor) -> Any:
            h = self.cell(x, h)
            return h * memory.mean(1), h

        return recurrent(step, x, h, static=memory)


class Restarted(nn.Module):
    """Episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: LoDTensor, h: Tensor, marks: Tensor) -> Any:
        return recurrent(self.cell, x, h, resets=marks)


class Counted(nn.Module):
    """Steps without an input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, h: Tensor) -> Any:
        def step(x: None, h: Tensor) -> Any:
            h = torch.tanh(self.cell(h))
            return h, h

        return recurrent(step, steps=5, state=h)


class Nested(nn.Module):
    """A recurrence in the step of another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.GRUCell(3, 4), nn.GRUCell(4, 4)

    def forward(self, x: LoDTensor, h: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            parts = torch.stack([x, x * 2, x.sin()])
            _, last = recurrent(self.inner, parts, h)
            h = self.outer(last, h)
            return h, h

        return recurrent(step, x, h)


def state(n: int, *sizes: int) -> Tensor:
    return torch.randn(n, *(sizes or (4,)), dtype=torch.float64, requires_grad=True)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[list[int]], Sequence[Any]]]] = {
    "closure": (Closure, lambda n: (ragged(n), state(len(n)))),
    "closure, dense": (Closure, lambda n: (dense(sum(n), len(n)), state(len(n)))),
    "modules": (Modules, lambda n: (ragged(n),)),
    "modules, dense": (Modules, lambda n: (dense(sum(n), len(n)),)),
    "LSTM": (lambda: Layers("LSTM"), lambda n: (ragged(n),)),
    "GRU": (lambda: Layers("GRU"), lambda n: (ragged(n),)),
    "RNN, dense": (lambda: Layers("RNN"), lambda n: (dense(sum(n), len(n)),)),
    "static": (Static, lambda n: (ragged(n), state(len(n)), state(len(n), 3, 4))),
    "resets": (Restarted, lambda n: (ragged(n), state(len(n)), torch.rand(sum(n)) < 0.3)),
    "steps": (Counted, lambda n: (state(sum(n)),)),
    "nested": (Nested, lambda n: (ragged(n), state(len(n)))),
}


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # a nested one, not compiled
@pytest.mark.parametrize("case", CASES)
def test_one_graph_with_the_same_values_and_gradients(case: str) -> None:
    torch.manual_seed(0)
    make, arguments = CASES[case]
    model = make().double()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for k, lengths in enumerate(LENGTHS):
        with torch._dynamo.config.patch(error_on_recompile=k > 1):
            assert_alike(model, compiled, arguments(lengths))
    assert counter.frame_count <= 2
