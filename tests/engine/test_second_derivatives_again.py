"""Second derivatives of calls like one before, and of others between them, beside the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outcomes import same
from stepnet import LoDTensor, recurrent
from stepnet.engine import jvp_plan
from stepnet.executors.direct import Direct

BACKEND = "c"


def made(size: int = 3) -> tuple[nn.RNNCell, Tensor, Tensor]:
    torch.manual_seed(5)
    cell = nn.RNNCell(size, size, dtype=torch.float64)
    x = torch.randn(4, 2, size, dtype=torch.float64)
    return cell, x, torch.randn(2, size, dtype=torch.float64)


def run(cell: nn.RNNCell, x: Any, h: Tensor, backend: Any) -> Tensor:
    y, last = recurrent(lambda x, h: (new := cell(x, h), new), x, h, backend=backend)
    return (y.values if isinstance(y, LoDTensor) else y).square().sum() + last.sin().sum()


def along_gradients(loss: Tensor, own: Sequence[Tensor], ways: Sequence[Tensor]) -> list[Tensor]:
    first = torch.autograd.grad(loss, own, create_graph=True)
    return [*torch.autograd.grad(first, own, ways)]


def of_weights(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own = [*cell.parameters()]
    return along_gradients(run(cell, x, h, backend), own, [w.detach().cos() for w in own])


def along_themselves(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own = [*cell.parameters()]
    return along_gradients(run(cell, x, h, backend), own, own)


def along_one_tensor(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own, way = [cell.weight_ih, cell.weight_hh], cell.weight_hh.detach().exp()
    return along_gradients(run(cell, x, h, backend), own, [way, way])


def of_one_frozen(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    cell.bias_ih.requires_grad_(False)
    own = [w for w in cell.parameters() if w.requires_grad]
    return along_gradients(run(cell, x, h, backend), own, [w.detach().cos() for w in own])


def of_inputs(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own = [x.requires_grad_(), h.requires_grad_(), cell.weight_hh]
    return along_gradients(run(cell, x, h, backend), own, [t.detach().cos() for t in own])


def with_the_loss(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own, loss = [*cell.parameters()], run(cell, x, h, backend)
    first = torch.autograd.grad(loss, own, create_graph=True)
    total: Any = loss + sum(g.square().sum() for g in first)
    return [*torch.autograd.grad(total, own)]


def of_ragged(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own, h = list[Tensor](cell.parameters()), h[[0, 1, 0]]
    found: list[Tensor] = []
    for lengths in ([3, 0, 5], [1, 6, 1]):
        rows = LoDTensor.from_lengths(x.flatten(0, 1), [lengths])
        found += along_gradients(run(cell, rows, h, backend), own, [w.detach().cos() for w in own])
    return found


def third(cell: nn.RNNCell, x: Tensor, h: Tensor, backend: str) -> list[Tensor]:
    own = [cell.weight_ih, cell.weight_hh]
    first = torch.autograd.grad(run(cell, x, h, backend), own, create_graph=True)
    second = torch.autograd.grad(first, own, [w.detach().cos() for w in own], create_graph=True)
    return [*torch.autograd.grad(second, own, [w.detach().sin() for w in own])]


WAYS: list[Callable[..., list[Tensor]]] = [
    of_weights, along_themselves, along_one_tensor, of_one_frozen, of_inputs, with_the_loss, of_ragged, third,
]  # fmt: skip


@pytest.mark.parametrize("between", WAYS[1:])
def test_kinds_in_turn(between: Callable[..., list[Tensor]]) -> None:
    plain = {way: way(*made(), "naive") for way in (of_weights, between)}
    for way in [of_weights, between] * 3:
        same(way(*made(), BACKEND), plain[way])


def test_a_call_like_one_before_asks_for_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, x, h = made()
    cell, x, h = cell.float(), x.float(), h.float()  # scans make products of a few rows of these themselves
    own = [*cell.parameters()]

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return (new := cell(x, h)), new

    def found() -> list[Tensor]:
        y, _ = recurrent(step, x, h, backend=BACKEND)
        return along_gradients(y.square().sum(), own, [w.detach().cos() for w in own])

    before = [found() for _ in range(8)][-1]
    monkeypatch.setattr(jvp_plan._Twin, "loop", property(lambda _: pytest.fail("the loop is made")))
    monkeypatch.setattr(jvp_plan._Twin, "looks", lambda *_: pytest.fail("it is looked for"))
    monkeypatch.setattr(Direct, "by_names", lambda *_: pytest.fail("kept rows are made"))
    same(found(), before, 0, 0)


def test_sums_are_put_back_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    shared = jvp_plan.SharedRows

    def noted(step: Any, derivative: Any, weights: Any) -> Any:
        plans.append(derivative.plan)
        return shared(step, derivative, weights)

    monkeypatch.setattr(jvp_plan, "SharedRows", noted)
    of_weights(*made(5), BACKEND)  # whose plan no other test has made
    assert plans
    for plan in plans:
        kinds = plan.backward.body.values
        assert not any(
            node.op == "permute" and kinds[node.output].kind == "sum" for node in plan.backward.body.nodes
        )


def test_numbers_that_became_inputs_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do where another thread runs a step that differs by them: more is read than at the call."""
    expected = of_weights(*made(), BACKEND)
    cell, x, h = made()
    of_weights(cell, x, h, BACKEND)
    own_now = jvp_plan.RunsAlong._now

    def now(self: Any, tensors: Sequence[Tensor]) -> Any:
        reads, changed = own_now(self, tensors)
        return reads._replace(tensors=[*reads.tensors, torch.ones(())]), changed

    monkeypatch.setattr(jvp_plan.RunsAlong, "_now", now)
    same(of_weights(cell, x, h, BACKEND), expected)
