"""Second derivatives of steps that give one value more than once, by what their runs kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outcomes import same, tensors
from stepnet import LoDTensor, recurrent
from stepnet.data.storage import memory_of
from stepnet.engine.jvp_on_saved_rows import SharedRows

LENGTHS = [3, 0, 1, 5]
GIVEN: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {  # y, of x, the old state and the new one
    "the new state twice": lambda x, h, new: (new, new),
    "a result twice": lambda x, h, new: (new.sin(), [new.sin()] * 2),
    "three times": lambda x, h, new: {"a": new, "b": (new, new)},
    "x": lambda x, h, new: (x, new, x),
    "the old state": lambda x, h, new: (h, new, h),
    "parts of one": lambda x, h, new: (*new.exp().chunk(2, -1), new[:, :2]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_value_that_is_given_twice(name: str) -> None:
    """Each of its places has a gradient of its own, which comes in once."""
    torch.manual_seed(5)
    made = [torch.randn(size, dtype=torch.float64) for size in ((9, 4), (4, 4), (4, 4), (4, 4))]
    runs, run = list[Any](), SharedRows.run

    def noted(self: SharedRows, *args: Any) -> Any:
        runs.append(run(self, *args))
        return runs[-1]

    def found(backend: Any) -> list[Tensor | None]:
        x, h, w, u = own = [t.clone().requires_grad_() for t in made]

        def step(x: Tensor, h: Tensor) -> Any:
            new = torch.tanh(x @ w + h @ u)
            return GIVEN[name](x, h, new), new

        y, last = recurrent(step, LoDTensor.from_lengths(x, [LENGTHS]), h, backend=backend)
        results = tensors((y, last))
        came = [torch.randn_like(t).requires_grad_() for t in results]
        first = torch.autograd.grad(results, own, came, create_graph=True)
        moved = [*own, *came]
        second = torch.autograd.grad([g.sin().sum() for g in first], moved, retain_graph=True)
        assert len({*map(memory_of, second)}) == len(second)
        curved = torch.stack([t.square().sum() * (k + 1) for k, t in enumerate(results)]).sum()
        third = torch.autograd.grad(curved, own, create_graph=True)
        penalty = torch.stack([g.square().sum() for g in third]).sum()
        return [*second, *torch.autograd.grad(penalty + curved, own)]

    torch.manual_seed(6)
    expected = found("naive")
    with patch.object(SharedRows, "run", noted):
        for _ in range(2):  # the first makes the plans
            torch.manual_seed(6)
            same(found("eager"), expected, atol=1e-9)
    assert any(made is not None for made in runs)
