"""A recurrence of a graph whose like has run before is found by a look at its tensors: whatever changed
meanwhile, it gives what the long way gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covering import few
from stepnet import LoDTensor, Recurrent
from stepnet.graph import calls
from stepnet.graph.recurrence import Recurrence

from .models import dense, leaves_of, ragged

BACKEND = "auto"  # calls by places are those of generated C


def _spread(t: Tensor) -> Tensor:
    return t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])[..., ::2].copy_(t)


_torch: Any = torch  # with what its types leave out
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda t: t,
    "strides": _spread,
    "the negative of its memory": lambda t: _torch._neg_view(-t),
    "no memory": lambda t: _torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "other numbers": lambda t: t * 2,
}


def _captured(x: Tensor | LoDTensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Recurrence, list[Tensor]]:
    """What a graph calls for a GRU over these, and on which tensors."""
    seen: list[Any] = []
    by_plan = Recurrence.by_plan

    def noted(self: Recurrence, tensors: Any, sizes: Any, needs: Any) -> Any:
        seen.append((self, [*tensors]))
        return by_plan(self, tensors, sizes, needs)

    monkeypatch.setattr(Recurrence, "by_plan", noted)
    torch.compile(Recurrent(nn.GRUCell(3, 4).to(leaves_of(x)[0].dtype)), backend="aot_eager", fullgraph=True)(
        x
    )
    monkeypatch.setattr(Recurrence, "by_plan", by_plan)
    recurrence, tensors = seen[-1]
    return recurrence, [t.detach() for t in tensors]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", few(["ragged", "dense"], ["ragged"]))
def test_what_changed_between_calls(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = ragged([3, 0, 2]) if kind == "ragged" else dense(4, 3).detach().float().requires_grad_()
    recurrence, tensors = _captured(x, monkeypatch)
    (what,) = (text for text, call in calls._CALLS.items() if call is recurrence)
    floats = [t.is_floating_point() for t in tensors]
    run, keeping, backward = (
        getattr(torch.ops.stepnet, name).default for name in ("run", "run_keeping", "run_backward")
    )

    def check(given: list[Tensor]) -> None:
        own = [t.detach().clone().requires_grad_(need) for t, need in zip(given, floats, strict=True)]
        y, final = expected = recurrence.run(own, [])
        torch.testing.assert_close(run(given, [], what), [t.detach() for t in expected])
        *found, kept = keeping(given, [], floats, what)
        torch.testing.assert_close(found, [t.detach() for t in expected])
        wanted = [t for t in own if t.requires_grad]
        more: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        of = [found[0], torch.ones_like(found[1])]
        for at, loss in (([0, 1], y.square().sum() / 2 + final.sum()), ([0], y.square().sum() / 2)):
            if not loss.requires_grad:  # there is no step
                continue
            grads = [*torch.autograd.grad(loss, wanted, **more)]
            came = [of[k] for k in at]
            torch.testing.assert_close(backward(came, at, given, found, kept, [], floats, what), grads)
            some = [need and k > 0 for k, need in enumerate(floats)]
            torch.testing.assert_close(backward(came, at, given, found, kept, [], some, what), grads[1:])

    for _ in range(6):
        check(tensors)
    assert recurrence.likes
    by_places = [looks.like.lately.by_places for looks in recurrence.likes.values()]
    assert any(by_places) if kind == "ragged" else all(by_places)  # products of doubles are torch's
    *found, kept = keeping(tensors, [], floats, what)
    of = found, [0, 1], tensors, found, kept, [], floats, what
    expected = backward(*of)
    with torch.autocast("cpu", torch.bfloat16):  # around backward alone
        torch.testing.assert_close(backward(*of), expected)
    for place in (k for k, is_float in enumerate(floats) if is_float):
        for change in CHANGES.values():
            check([change(t) if k == place else t for k, t in enumerate(tensors)])
    if kind == "ragged":
        known = len(recurrence.likes)
        for lengths in ([1, 6, 0], [0, 0, 0], [0, 1, 0], [2, 2, 1]):  # as many sequences
            more = ragged(lengths)
            check([more.values.detach(), tensors[1], more.lod[0], *tensors[3:]])
        assert len(recurrence.likes) == known
    recurrence.likes.clear()
    with torch.autocast("cpu", torch.bfloat16):
        check(tensors)
    check(tensors)
