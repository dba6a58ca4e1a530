"""A small ragged model compiled by torch, its recurrence in the graph, against the model as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, Recurrent, cells

from .harness import Case, Contender, Row, Topic
from .warm_call import EFFORTS, on_one_thread

LENGTHS = (5, 11, 2, 4, 7, 1, 9, 3)
FEATURES = 32


class Block(nn.Module):
    """A gated layer beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.wide, self.narrow = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.wide(self.norm(x)).chunk(2, -1)
        return x + self.narrow(nn.functional.gelu(value) * torch.sigmoid(gate))


class Model(nn.Module):
    """Blocks, a recurrence, blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(Block(), Block())
        self.rnn = Recurrent(cells.GRU(FEATURES, FEATURES))
        self.after = nn.Sequential(Block(), Block())

    def forward(self, x: LoDTensor) -> Tensor:
        y, _ = self.rnn(x.map(self.before))
        return self.after(y.values)


def cases(quick: bool) -> Iterator[Case]:
    """Forward, and with gradients."""
    torch.manual_seed(0)
    model = Model()
    x = LoDTensor.from_lengths(torch.randn(sum(LENGTHS), FEATURES), [list(LENGTHS)])
    calls: dict[str, Callable[[LoDTensor], Tensor]] = {
        "stepnet": torch.compile(model, fullgraph=True),
        "not compiled": model,
    }
    weights = dict(model.named_parameters())

    def forward(call: Callable[[LoDTensor], Tensor]) -> Mapping[str, Tensor]:
        with torch.no_grad():
            return {"y": call(x)}

    def training(call: Callable[[LoDTensor], Tensor]) -> Mapping[str, Tensor]:
        y = call(x)
        gradients = torch.autograd.grad(y.square().mean(), list(weights.values()))
        return {"y": y.detach(), **dict(zip(weights, gradients, strict=True))}

    for name, run in (("forward", forward), ("training", training)):
        if quick and name == "forward":
            continue
        yield Case(
            name=name,
            contenders={kind: Contender(lambda c=call, r=run: r(c)) for kind, call in calls.items()},
            reference="not compiled",
            facts={"B": len(LENGTHS), "rows": sum(LENGTHS), "F": FEATURES},
        )


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """How many times as fast the compiled model is."""
    return {
        f"{row.case}: times as fast": row.times["not compiled"].median / row.times["stepnet"].median
        for row in rows
    }


TOPIC = Topic(
    name="compiled_model",
    claim="a small ragged model, its recurrence in the graph of torch.compile, against the model as it is",
    cases=cases,
    findings=findings,
    measure=on_one_thread,
    efforts=EFFORTS,
    on_request=True,
)
