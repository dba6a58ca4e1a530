"""Calls of one step with resets=, as of acting, are warm as others are, and each gives what the masked loop
gives."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepnet import Resets, api, recurrent
from tables import holds
from torch_since import TOLD, torch_since

D, B, F = torch.float64, 3, 4
NONE, SOME, ALL = ([False] * B, [False, True, False], [True] * B)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = (nn.Linear(F, F, dtype=D) for _ in range(2))
        self.first = nn.Parameter(torch.randn(F, dtype=D))
        self.rate = 0.5

    def initial_state(self, n: int) -> Tensor:
        return self.first.expand(n, -1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.into(x) + self.back(h)) * self.rate
        return h * 2, h


class Pair(Cell):
    def initial_state(self, n: int) -> Any:
        return (super().initial_state(n), torch.zeros(n, dtype=D))

    def forward(self, x: Tensor, h: Any) -> tuple[Tensor, Any]:
        y, new = super().forward(x, h[0])
        return y, (new, h[1] + 1)


def given_of(cell: Cell, n: int) -> Any:
    return torch.randn(n, F, dtype=D, requires_grad=True)


def pair_of(cell: Cell, n: int) -> Any:
    return given_of(cell, n), torch.ones(n, dtype=D)


def nothing(cell: Cell, n: int) -> None:
    return None


def flat(tree: Any) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else [*tree]


def by_hand(cell: Cell, x: Tensor, state: Any, marks: Tensor, after: bool) -> tuple[Tensor, list[Tensor]]:
    """The masked loop, of one step."""
    first = cell.initial_state(x.shape[1])
    state, rows = first if state is None else state, marks.flatten()

    def anew(state: Any) -> Any:
        fresh = cell.initial_state(x.shape[1])
        mixed = [
            torch.where(rows.view(-1, *[1] * (old.dim() - 1)), new, old)
            for new, old in zip(flat(fresh), flat(state), strict=True)
        ]
        return mixed[0] if isinstance(state, Tensor) else tuple(mixed)

    y, state = cell(x[0], state if after else anew(state))
    return y[None], flat(anew(state) if after else state)


def same(cell: Cell, state: Any, *, n: int = B, after: bool = False, kind: Any = SOME) -> None:
    marks = torch.tensor(kind * 3)[:n].view(1, n)
    x = torch.randn(1, n, F, dtype=D)
    given = [*cell.parameters(), *flat(() if state is None else state)]
    needed = [t for t in given if t.requires_grad] if torch.is_grad_enabled() else []
    found = []
    for run in (recurrent, None):
        if run is None:
            y, last = by_hand(cell, x, state, marks, after)
        else:
            y, last = run(cell, x, state, resets=Resets(done=marks) if after else marks, backend="eager")
            last = flat(last)
        out = [y, *last]
        total: Any = sum(t.sin().sum() for t in out)
        for t in needed:  # where all begin anew, nothing comes from what came in
            none = not total.requires_grad
            g = None if none else torch.autograd.grad(total, t, retain_graph=True, allow_unused=True)[0]
            out.append(torch.zeros_like(t) if g is None else g)
        found.append(out)
    torch.testing.assert_close(*found)


CASES: dict[str, tuple[Callable[[], Cell], Callable[[Cell, int], Any], bool]] = {
    f"{kind.__name__} {state.__name__} {'done' if after else 'first'}": (kind, state, after)
    for kind, given in ((Cell, given_of), (Pair, pair_of))
    for state in (given, nothing)
    for after in (False, True)
}


def test_run_change_run() -> None:
    def law(kind: Callable[[], Cell], given: Callable[[Cell, int], Any], after: bool) -> None:
        cell = kind()

        def runs(times: int = 1, n: int = B) -> None:
            for _ in range(times):
                for marks in (SOME, NONE, ALL):
                    same(cell, given(cell, n), n=n, after=after, kind=marks)

        runs(3)
        cell.back.weight.data.mul_(2)
        runs()
        cell.back = nn.Linear(F, F, dtype=D)
        runs()
        cell.rate = 0.25
        runs()
        hook = cell.into.register_forward_hook(lambda module, args, out: out.exp())
        runs()
        hook.remove()
        runs()
        with torch.no_grad():
            runs()
        runs(n=5)
        cell.requires_grad_(False)
        runs()
        other = threading.Thread(target=runs)
        other.start()
        other.join()
        runs()

    holds(law, CASES)


def test_under_autocast() -> None:
    cell, x, marks = Cell().float(), torch.randn(1, B, F), torch.tensor([SOME])
    h = torch.randn(B, F)
    for on in (False, True, False, True) * 3:
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            found, wanted = (recurrent(cell, x, h, resets=marks, backend=b) for b in ("eager", "naive"))
        assert found[0].dtype is wanted[0].dtype
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


class Caching(Cell):
    """Its first call changes it, and goes by the plain loop."""

    @functools.cached_property
    def scale(self) -> float:
        return 0.5

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.into(x) + self.back(h)) * self.scale
        return h * 2, h


@torch_since("2.8", "it does not tell which run of a checkpoint this is")
@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("kind", [NONE, SOME])
def test_in_a_region_that_is_run_again(kind: list[bool]) -> None:
    """The second run of each call goes as the first did."""
    cell, x, marks = Caching(), torch.randn(1, B, F, dtype=D), torch.tensor([kind])
    start = given_of(cell, B)

    def run(h: Tensor) -> Tensor:
        for _ in range(6):
            h = recurrent(cell, x, h, resets=marks)[1]
        return h

    found, wanted = checkpoint(run, start, use_reentrant=False), run(start)
    of = [*cell.parameters(), start]
    grads = [torch.autograd.grad(y.sum(), of, allow_unused=True) for y in (found, wanted)]
    torch.testing.assert_close([found, *grads[0]], [wanted, *grads[1]])


@TOLD
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_none_makes_a_record(train: bool, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, x, h = Cell(), torch.randn(1, B, F, dtype=D), torch.randn(B, F, dtype=D)
    marks = [torch.tensor([kind]) for kind in (NONE, SOME, ALL)]

    def run() -> None:
        for each in marks:
            recurrent(cell, x, h, resets=Resets(done=each) if after else each, backend="eager")

    with torch.set_grad_enabled(train):
        for _ in range(6):
            run()
        monkeypatch.setattr(api, "_recurrent", None)
        run()
