"""While loops under torch.export: those whose steps are numbered are in the program, others an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from stepnet import recurrent, repeat, while_loop
from stepnet.errors import StepError


class Looped(nn.Module):
    def __init__(self, holds: Callable[..., Any], first: Callable[[], Any], **options: Any) -> None:
        super().__init__()
        self.linear, self.holds, self.first, self.options = nn.Linear(4, 4, bias=False), holds, first, options

    def forward(self, x: Tensor) -> Tensor:
        def body(h: Tensor, i: Any) -> Any:
            return torch.tanh(self.linear(h)) / 4, i + 1

        return while_loop(self.holds, body, (x, self.first()), **self.options)[0]


def zero() -> int:
    return 0


@pytest.mark.parametrize("options", [{}, {"checkpoint": 2}])
@pytest.mark.parametrize(
    "holds",
    [
        lambda h, i: h.norm() > 0.1,
        lambda h, i: h.norm(dim=-1) > 0.1,
        lambda h, i: bool(h.norm() > 0.1),
        lambda h, i: h.norm().item() > 0.1,
    ],
    ids=["one", "for each row", "told", "a number"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_its_numbers_end_says_so(holds: Any, options: Any) -> None:
    model = Looped(holds, zero, **options)
    with pytest.raises(StepError, match=r"a program cannot hold 'body'(.|\n)*stepnet\.onnx\.save"):
        export(model, (torch.randn(3, 4),))
    model(torch.randn(3, 4))


@pytest.mark.parametrize("first", [zero, lambda: torch.tensor(0)])
def test_what_counts_is_written_step_by_step(first: Any) -> None:
    model, x = Looped(lambda h, i: i < 3, first), torch.randn(3, 4)
    torch.testing.assert_close(export(model, (x,)).module()(x), model(x))


def test_how_many_steps_may_be_a_size() -> None:
    model, x = Looped(lambda h, i: i < h.shape[0], zero), torch.randn(3, 4)
    program = export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("first", [zero, lambda: torch.tensor(0)])
def test_one_without_end_takes_no_memory_without_end(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat, "_WRITTEN_OUT", 5)
    x = torch.randn(3, 4)
    with pytest.raises(StepError, match=r"'<lambda>' still holds after 5(.|\n)*stepnet\.onnx\.save"):
        export(Looped(lambda h, i: True, first), (x,))
    longer = Looped(lambda h, i: i < 7, first)
    with pytest.raises(StepError, match="max_steps= for more"):
        export(longer, (x,))
    longer(x)
    export(Looped(lambda h, i: i < 7, first, max_steps=7), (x,))


def test_one_in_a_step_tells_why_dynamo_ends_there() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            def step(x: Tensor, h: Tensor) -> Any:
                (h,) = while_loop(lambda h: h.norm(dim=-1) > 0.5, lambda h: (h / 2,), (h + x,))
                return h, h

            return recurrent(step, x, h)

    with pytest.raises(StepError, match=r"does not follow it \(stepnet: a while loop runs until"):
        export(Model(), (torch.randn(5, 2, 4), torch.zeros(2, 4)))
