"""Steps that keep tensors in attributes: a compiled run leaves there what the plain loop does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from beside_plain import CLOSE
from covering import every
from stepnet import LoDTensor, explain, recurrent
from stepnet.errors import StepError

T, N, D = 12, 4, 3


class Cell(nn.Module):
    kept: Any

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.rec = nn.Linear(D, D), nn.Linear(D, D)
        self.kept = None

    def next(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.inp(x) + self.rec(h))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Written(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.next(x, h)
        self.kept = h.sigmoid()
        return 2 * h, h


class Hidden(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.kept is None:
            self.kept = torch.zeros_like(x)
        self.kept = self.next(x, self.kept)
        return self.kept + h, h + self.kept.detach()


class Twins(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.next(x, h)
        self.kept = self.twin = h
        return h, h


class Spiking(Cell):
    """As snnTorch has it: a buffer that begins anew with rows of another shape."""

    def __init__(self) -> None:
        super().__init__()
        del self.kept
        self.register_buffer("kept", torch.zeros(0))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.kept.shape != x.shape:
            self.kept = torch.zeros_like(x)
        mem = 0.9 * self.kept + self.inp(x)
        self.kept = mem - (mem > 0.5).to(mem.dtype).detach()
        return torch.sigmoid(self.kept) * h, h


class Before(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        change = x if self.kept is None else x - self.kept
        self.kept = x.detach()
        return (h := self.next(change, h)), h


class InDict(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, Tensor] = {}

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.table["h"] = self.next(x, self.table.get("h", h))
        self.kept = h * 2
        return h, h


class Counts(Cell):
    steps = 0

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        self.kept = h = self.next(x, h) / self.steps
        return h, h


class InPlace(Cell):
    """Changes what it kept, which is y of the step before."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.kept is not None:
            self.kept.mul_(0.5)
        self.kept = self.inp(x).detach().clone()
        return self.kept, h + self.rec(x)


class Identity(Cell):
    """Asks whether what it kept is the state that it gave."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.next(2 * x if self.kept is h else x, h)
        self.kept = h
        return h, h


class Grows(Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        row = x.unsqueeze(1)
        self.kept = row if self.kept is None else torch.cat([self.kept, row], 1)
        return h + self.kept.mean(1), h


CARRIED = (Written, Hidden, Twins, Spiking, Before, InDict)
PLAIN = (Counts, InPlace, Identity, Grows)


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    x, h = (torch.randn(*size, D, dtype=torch.float64, requires_grad=True) for size in ((T, N), (N,)))
    return x, h


def cell(kind: type[Cell]) -> Cell:
    torch.manual_seed(3)
    return kind().double()


def run(step: Cell, backend: str, **how: Any) -> list[Tensor | None]:
    """y, the final state and what is kept, of two calls, and all gradients."""
    x, h = inputs()
    x = x.transpose(0, how.get("axis", 0))
    y, last = recurrent(step, x, h, backend=backend, **how)  # pyright: ignore[reportArgumentType]
    y, last = recurrent(step, y, last, backend=backend, **how)  # pyright: ignore[reportArgumentType]
    out = [y, last, *(t for t in [step.kept, getattr(step, "twin", None)] if t is not None)]
    loss = sum(t.sin().sum() for t in out if t.requires_grad)
    assert isinstance(loss, Tensor)
    return [*out, *torch.autograd.grad(loss, [x, h, *step.parameters()], allow_unused=True)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", every(2, CARRIED))
@pytest.mark.parametrize("how", [{}, {"reverse": True}, {"axis": 1}])
def test_what_is_kept_is_carried(kind, how):
    """Named by its executor, no step may run by the plain loop."""
    expected, found = (run(cell(kind), backend, **how) for backend in ("naive", "eager"))
    assert [t is None or t.requires_grad for t in found] == [t is None or t.requires_grad for t in expected]
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("kind", PLAIN)
def test_what_else_is_kept_runs_by_the_plain_loop(kind):
    torch.testing.assert_close(run(cell(kind), "naive"), run(cell(kind), "auto"), rtol=0, atol=0)
    assert explain(cell(kind), *inputs()).executor == "naive"


def test_second_derivatives_and_what_is_kept_meanwhile():
    found = []
    for backend in ("naive", "eager"):
        step, (x, h) = cell(Hidden), inputs()
        y, _ = recurrent(step, x, h, backend=backend)  # pyright: ignore[reportArgumentType]
        given = [x, *step.parameters()]
        first = torch.autograd.grad(y.sin().sum() + step.kept.sum(), given, create_graph=True)
        step.kept = None  # it is no longer what ran
        found.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), given)])
    torch.testing.assert_close(*found, **CLOSE)


def test_explain_names_what_is_carried_and_leaves_it():
    step, (x, h) = cell(Hidden), inputs()
    told = explain(step, x, h, backend="eager")
    assert (told.executor, told.notes[0]) == ("eager", "carried as state after the first step: .kept")
    assert step.kept is None


def test_a_flag_that_makes_another_layer_keep_it():
    """The plans of both are alike: what each run carries is of the layer that it ran."""

    class Two(nn.Module):
        at = 0

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([cell(Hidden), cell(Hidden)])

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return self.layers[self.at](x, h)

    found = []
    for backend in ("naive", "eager"):
        step, (x, h) = Two(), inputs()
        with torch.no_grad():
            for step.at in (0, 1, 0, 1, 1, 0):
                y, _ = recurrent(step, x, h, backend=backend)  # pyright: ignore[reportArgumentType]
                found += [y, *(layer.kept for layer in step.layers if layer.kept is not None)]
    torch.testing.assert_close(found[: len(found) // 2], found[len(found) // 2 :], **CLOSE)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_an_executor_that_declines_leaves_what_was_kept():
    step, (x, h) = cell(Counts), inputs()
    with pytest.raises(Exception, match=r"sets \.(steps|kept)"):
        recurrent(step, x, h, backend="eager")
    assert (step.steps, step.kept) == (0, None)
    step = cell(Hidden)
    with pytest.raises(StepError, match="failed at step 0"):
        recurrent(step, torch.randn(T, N, D + 1, dtype=torch.float64), h)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_ragged_sequences_and_few_steps():
    x, h = inputs()
    ragged = LoDTensor.from_lengths(x.flatten(0, 1), [[T, 3, 2 * T - 3, T]])
    for short in (ragged, x[:3]):
        found = []
        for backend in ("auto", "naive"):
            step = cell(Hidden) if short is not ragged else cell(Written)
            _, last = recurrent(step, short, h, backend=backend)  # pyright: ignore[reportArgumentType]
            found.append([last, step.kept])
        torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_a_thread_that_changes_what_the_step_reads_meanwhile():
    """What the step changes as it is tried cannot be told from that, and is not left there."""

    class Watched(Hidden):
        def __init__(self) -> None:
            super().__init__()
            self.notes: dict[str, Any] = {"scale": 1.0}

        def next(self, x: Tensor, h: Tensor) -> Tensor:
            return super().next(x, h) * self.notes["scale"]

    def change() -> None:
        while not done.wait(1e-4):
            step.notes["other"] = object()

    step, done, (x, h) = Watched().double(), threading.Event(), inputs()
    thread = threading.Thread(target=change)
    thread.start()
    try:
        y, _ = recurrent(step, x, h)
    finally:
        done.set()
        thread.join()
    kept, step.kept = step.kept, None
    wanted, _ = recurrent(step, x, h, backend="naive")
    torch.testing.assert_close((y, kept), (wanted, step.kept), **CLOSE)


def test_hooks_that_keep_activations():
    seen: dict[str, Tensor] = {}
    step, (x, h) = cell(Written), inputs()

    def detached(module: Any, given: Any, out: Tensor) -> None:
        seen["rec"] = out.detach()

    def whole(module: Any, given: Any, out: Tensor) -> None:
        module.out = out

    step.rec.register_forward_hook(detached)
    step.inp.register_forward_hook(whole)
    expected, found = (
        [run(step, b), seen["rec"], step.inp.out] for b in ("naive", "auto") if not seen.clear()
    )
    torch.testing.assert_close(found, expected, **CLOSE)
    assert explain(step, x, h, backend="eager").executor == "eager"
