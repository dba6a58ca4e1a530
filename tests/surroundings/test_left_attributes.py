"""Steps that leave values in attributes which they never read, and that count."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from beside_plain import CLOSE
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, explain, recurrent
from stepnet.errors import Unsupported

D = 3


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """As in a process without other threads, which tests are run by."""
    monkeypatch.setattr("stepnet.engine.attribute_outputs.is_only_thread", lambda: True)


class Leaves(nn.Module):
    loss: Any = None
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inp, self.seen = nn.Linear(D, D), {"gate": None}
        self.double()

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        h = torch.tanh(self.inp(x) + h)
        self.loss = h.square().mean()  # of all rows that are left
        self.seen["gate"] = h.detach()
        return 2 * h, h


class CountsRows(Leaves):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += len(x)
        return super().forward(x, h)


class AsksTheCount(Leaves):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        try:
            late = self.steps > 10
        except TypeError:
            late = False
        return super().forward(2 * x if late else x, h)


class KeepsTheOneBefore(Leaves):
    before: Any = None

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        self.before = (self.loss,)
        return super().forward(x, h)


class RunsAnOp(nn.Module):
    """Its op keeps the scopes of its last run, and its last memories."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inp = nn.Linear(1, 1).double()
        self.op = RecurrentOp(self.net, ["x"], ["h"], [Memory("h", "before", init="boot")])

    def net(self, step: Scope) -> None:
        step["h"] = torch.tanh(self.inp(step["x"]) + step["before"])

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        scope = Scope({"x": x.t().unsqueeze(2), "boot": h[:, :1]})
        self.op.run(scope)
        h = scope["h"][-1] * h
        return 2 * h, h

    @property
    def loss(self) -> Tensor:
        return self.op.last["h"].sum() + self.op.scopes[1]["before"].square().sum()

    @property
    def seen(self) -> dict[str, Tensor]:
        return {"gate": self.op.scopes[-1]["x"]}

    @property
    def steps(self) -> int:
        return len(self.op.scopes)


class AsksItsOp(RunsAnOp):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, h = super().forward(x, h)
        return y, h + self.op.last["h"]


def run(step: Any, backend: str, *, ragged: bool = False, reverse: bool = False) -> list[Any]:
    torch.manual_seed(4)
    x = torch.randn(48, D, dtype=torch.float64, requires_grad=True)
    h = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    given = LoDTensor.from_lengths(x, [[14, 15, 4, 15]]) if ragged else x.view(12, 4, D)
    found: list[Any] = []
    for _ in range(2):
        y, last = recurrent(step, given, h, backend=backend, reverse=reverse)  # pyright: ignore[reportArgumentType]
        y = y.values if isinstance(y, LoDTensor) else y
        loss = y.sin().sum() + last.cos().sum() + 3 * step.loss
        grads = torch.autograd.grad(loss, [x, h, *step.parameters()])
        found += [y, last, *grads, step.loss, step.seen["gate"], torch.tensor(step.steps)]
    return found


@pytest.mark.parametrize(
    ("kind", "ragged", "reverse"),
    [(Leaves, False, True), (Leaves, True, False), (Leaves, True, True), (RunsAnOp, True, False)],
)
def test_the_last_step_leaves_it(kind, ragged, reverse):
    """Named by its executor, no step may run by the plain loop."""
    expected, found = (run(kind(), b, ragged=ragged, reverse=reverse) for b in ("naive", "eager"))
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_pruned_layer_is_made_anew_at_each_step():
    """By a hook, which sets the weight that the layer then reads."""

    def after(backend: str) -> list[Any]:
        step = Leaves()
        prune.l1_unstructured(step.inp, "weight", 0.4)
        found = run(step, backend)
        step.inp.weight_mask.neg_().add_(1)  # pyright: ignore[reportCallIssue]
        return [*found, *run(step, backend), step.inp.weight]

    torch.testing.assert_close(after("eager"), after("naive"), **CLOSE)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("kind", [CountsRows, AsksTheCount, KeepsTheOneBefore, AsksItsOp])
def test_what_is_read_runs_by_the_plain_loop(kind):
    torch.testing.assert_close(run(kind(), "naive"), run(kind(), "auto"), rtol=0, atol=0)
    with pytest.raises(Unsupported, match="changes Python objects"):
        run(kind(), "eager")


def test_explain_says_so_and_leaves_nothing():
    step = Leaves()
    x, h = torch.randn(12, 4, D).double(), torch.zeros(4, D).double()
    told = explain(step, x, h, backend="eager")
    assert told.executor == "eager"
    assert "left by the last step" in told.notes[0]
    assert (step.loss, step.seen, "steps" in vars(step)) == (None, {"gate": None}, False)


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_inside_a_checkpoint_of_torchs_the_plain_loop_runs():
    """Which counts once more in backward, and stops where all is there that was saved."""
    found = []
    for backend in ("auto", "naive"):
        step, x = Leaves(), torch.ones(20, 2, D, dtype=torch.float64, requires_grad=True)
        h = torch.zeros(2, D, dtype=torch.float64)
        y = checkpoint(lambda x: recurrent(step, x, h, backend=backend)[0], x, use_reentrant=False)  # noqa: B023
        found.append((*torch.autograd.grad(y.sin().sum(), [x, *step.parameters()]), torch.tensor(step.steps)))
    torch.testing.assert_close(*found)


class LooksUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows, self.left, self.steps = nn.Embedding(5, D), None, 0

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.rows(x) + h)
        self.steps += 1
        self.left = h
        return h, h


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_step_that_fails_leaves_what_the_steps_before_it_left(at):
    def left(backend):
        module, found = LooksUp(), list[Any]()
        for fails in (False, False, True, False, True):
            x = torch.arange(40).reshape(20, 2) % 4
            x[at] += 9 * fails
            with pytest.raises(IndexError) if fails else nullcontext():
                recurrent(module, x, torch.zeros(2, D), backend=backend)
            found += [module.steps, module.left]
        return found

    torch.testing.assert_close(left("auto"), left("naive"))
