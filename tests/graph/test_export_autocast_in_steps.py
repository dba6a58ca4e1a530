"""Exported programs of steps that enter autocast themselves."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import stepnet
from covering import few
from stepnet import recurrent
from stepnet.errors import StepError
from stepnet.graph import decompositions

from .models import leaves_of

ANY = Dim.AUTO
LOW = torch.bfloat16


def low(model: Model, x: Tensor, h: Tensor) -> Any:
    with torch.autocast("cpu", LOW):
        y = model.linear(h)
    h = torch.tanh(y.float() + x)
    return h, h


def off(model: Model, x: Tensor, h: Tensor) -> Any:
    y = model.linear(h)
    with torch.autocast("cpu", enabled=False):
        h = torch.tanh(model.linear(y.float()) + x)
    return model.linear(h).float(), h


def off_in_low(model: Model, x: Tensor, h: Tensor) -> Any:
    with torch.autocast("cpu", LOW):
        y = model.linear(h)
        with torch.autocast("cpu", enabled=False):
            h = torch.tanh(model.linear(y.float()) + x)
        return model.linear(y), h


def without_gradients(model: Model, x: Tensor, h: Tensor) -> Any:
    with torch.autocast("cpu", LOW):
        with torch.no_grad():
            y = model.linear(x)
        return model.cell(y, h), torch.tanh(model.linear(h) + x).float()


class Model(nn.Module):
    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.step, self.linear, self.cell = step, nn.Linear(4, 4), nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            return self.step(self, x, h)

        return recurrent(step, x, x.new_zeros(2, 4))


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "step", few([low, off, off_in_low, without_gradients], [off_in_low, without_gradients])
)
def test_it_is_in_the_program_where_the_step_enters_it(step: Any, strict: bool) -> None:
    stepnet.set_backend("naive")  # others round at other places
    model, file = Model(step), io.BytesIO()
    program = export(model, (torch.randn(5, 2, 4),), dynamic_shapes=({0: ANY, 1: ANY},), strict=strict)
    torch.export.save(program, file)
    own = program.run_decompositions({**torch.export.default_decompositions(), **decompositions()})
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    for around in (None, True, False):
        for run in (program, loaded) if around is not None else (program, loaded, own):
            x = torch.randn(7, 2, 4, requires_grad=True)
            with contextlib.nullcontext() if around is None else torch.autocast("cpu", LOW, enabled=around):
                wanted, found = (leaves_of(of(x)) for of in (model, run.module()))
            bits = 0.03 if run is own else None
            torch.testing.assert_close(found, wanted, rtol=bits, atol=bits)
            got, expected = (
                torch.autograd.grad(torch.stack([t.float().square().sum() for t in results]).sum(), x)
                for results in (found, wanted)
            )
            torch.testing.assert_close(got, expected, rtol=0.03, atol=0.03)  # a sum of bfloat16s


@pytest.mark.parametrize("ends", [[], [1, 2], [2, 1, 1]])
def test_a_text_that_ends_another_is_refused(ends: list[int]) -> None:
    begin = {"call": "autocast", "args": ["cpu", {"dtype": "bfloat16"}, True, None], "named": {}}
    calls = [None, begin, begin, *({"call": "end of autocast", "args": [{"value": i}]} for i in ends)]
    form = {
        "way": {"name": "s", "autocast": None}, "counts": [1, 0, 0, 0], "y": [[[3], "float32", False]],
        "calls": calls, "results": [0],
    }  # fmt: skip
    run = torch.ops.stepnet.run.default
    if not ends:
        (y,) = run([torch.ones(2, 1, 3)], [], f"recurrence {json.dumps(form)}")
        assert y.tolist() == [[[1.0] * 3]] * 2
        return
    with pytest.raises(StepError, match="cannot read"):
        run([torch.ones(2, 1, 3)], [], f"recurrence {json.dumps(form)}")
