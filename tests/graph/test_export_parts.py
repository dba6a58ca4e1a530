"""Steps that hand a part of themselves to an operator of torch's, exported: its operators, or an error."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as over_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export
from torch.utils.checkpoint import checkpoint

from covering import few
from stepnet import recurrent
from stepnet.errors import StepError
from stepnet.graph import decompositions

from .models import assert_same_gradients, dense

ANY = Dim.AUTO


class Recurred(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.x, self.h, self.part = nn.Linear(3, 4), nn.Linear(4, 4), part

    def forward(self, x: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.part(self, self.x(x), h)
            return h * 2, h

        return recurrent(step, x, x.new_zeros(x.shape[1], 4))


def _of_both(self: Any, x: Tensor, h: Tensor) -> Tensor:
    return checkpoint(lambda x, h: torch.tanh(x + self.h(h)), x, h, use_reentrant=False)


def _without_gradients(self: Any, x: Tensor, h: Tensor) -> Tensor:
    def part(x: Tensor, h: Tensor) -> Tensor:
        with torch.no_grad():
            kept = torch.sigmoid(self.h(h))
        return x * kept + h.detach()

    return h / 2 + checkpoint(part, x, h, use_reentrant=False)


def _twice(self: Any, x: Tensor, h: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x, use_reentrant=False) + x

    return checkpoint(lambda x, h: inner(x) * h.cos(), x, h, use_reentrant=False)


def _two_results(self: Any, x: Tensor, h: Tensor) -> Tensor:
    a, b = checkpoint(lambda x, h: (x * h, self.h(h)), x, h, use_reentrant=False)
    return torch.tanh(a + b + x)


PARTS = [_of_both, _without_gradients, _twice, _two_results]


def _side_by_side(self: Any, x: Tensor, h: Tensor) -> Tensor:
    return torch.stack([part(self, x, h) for part in PARTS]).sum(0)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize("strict", few([False, True], [False]))
@pytest.mark.parametrize("part", few([*PARTS, _side_by_side], [_side_by_side]))
def test_a_checkpoint_in_a_step(part: Any, strict: bool) -> None:
    model = Recurred(part).double()
    program = export(model, (dense(4, 3),), dynamic_shapes=({0: ANY, 1: ANY},), strict=strict)
    kept = io.BytesIO()
    torch.export.save(program, kept)
    kept.seek(0)
    for given in (program, torch.export.load(kept)):
        module = given.module()
        for sizes in ((4, 3), (6, 2)):
            x = dense(*sizes)
            assert_same_gradients(model, _with_weights_of(module, model), [x])
    plain = program.run_decompositions(decompositions()).module()
    assert_same_gradients(model, _with_weights_of(plain, model), [dense(5, 2)])


def _with_weights_of(module: Any, model: nn.Module) -> Any:
    """A program's module, called with the weights of the model."""
    named = dict(module.named_parameters())
    weights = {name: weight for name, weight in model.named_parameters() if name in named}
    return lambda *args: torch.func.functional_call(module, weights, args)


TOLD = {
    "cond": lambda self, x, h: torch.cond(h.sum() > 0, torch.add, torch.sub, (x, h)),
    "while_loop": lambda self, x, h: while_loop(
        lambda i, v: i < 3, lambda i, v: (i + 1, torch.tanh(v + x)), (torch.tensor(0), h)
    )[1],
    "scan": lambda self, x, h: h + scan(lambda c, x: (c + x, c * x), x.sum(0) * 0, x)[1],
    "map_impl": lambda self, x, h: h + over_rows(torch.sin, x),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", TOLD)
def test_other_parts_are_told(name: str) -> None:
    with pytest.raises(StepError, match=rf"'step' cannot be part .*: it calls {name} with a part"):
        export(Recurred(TOLD[name]), (torch.randn(4, 2, 3),), dynamic_shapes=({0: ANY, 1: ANY},))
