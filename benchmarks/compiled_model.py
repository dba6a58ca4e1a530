"""Small ragged models compiled by torch, their recurrences in the graph, against the models as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from stepnet import LoDTensor, Recurrent, cells, sequence_pool, sequence_softmax

from .harness import Case, Contender, Row, Topic
from .warm_call import EFFORTS, on_one_thread

LENGTHS = (5, 11, 2, 4, 7, 1, 9, 3)
FEATURES = 32
WORDS, CLASSES = 50, 5


class Block(nn.Module):
    """A gated layer beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.wide, self.narrow = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.wide(self.norm(x)).chunk(2, -1)
        return x + self.narrow(nn.functional.gelu(value) * torch.sigmoid(gate))


class Gated(nn.Module):
    """Blocks, a recurrence, blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(Block(), Block())
        self.rnn = Recurrent(cells.GRU(FEATURES, FEATURES))
        self.after = nn.Sequential(Block(), Block())

    def forward(self, x: LoDTensor) -> Tensor:
        y, _ = self.rnn(x.map(self.before))
        return self.after(y.values).square().mean()


class Classifier(nn.Module):
    """An embedding, a periodic gate, a recurrence beside its input, attention over time, a layer, a loss."""

    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, FEATURES), Recurrent(cells.GRU(FEATURES, FEATURES))
        self.first, self.second = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.score, self.out = nn.Linear(FEATURES, 1), nn.Linear(FEATURES, CLASSES)
        self.phase, self.gate = nn.Parameter(torch.rand(FEATURES)), nn.Parameter(torch.rand(FEATURES))
        self.register_buffer("target", torch.randint(CLASSES, (len(LENGTHS),)))

    def _gated(self, x: Tensor) -> Tensor:
        return self.first(x + torch.sin(x * self.phase) * torch.sigmoid(x * self.gate))

    def forward(self, words: LoDTensor) -> Tensor:
        x = words.map(self.embed).map(self._gated)
        y, _ = self.rnn(x)
        y = y.map(lambda rows: self.second(nn.functional.gelu(rows) + x.values / 2))
        weights = sequence_softmax(y.map(self.score))
        pooled = sequence_pool(y.map(lambda rows: rows * weights.values), "sum")
        return nn.functional.cross_entropy(self.out(nn.functional.silu(pooled)), self.target)


class Tagger(nn.Module):
    """An embedding, a recurrence, a layer, a loss: as little as there can be around it."""

    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, FEATURES), Recurrent(cells.GRU(FEATURES, FEATURES))
        self.out = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("target", torch.randint(CLASSES, (len(LENGTHS),)))

    def forward(self, words: LoDTensor) -> Tensor:
        y, _ = self.rnn(words.map(self.embed))
        return nn.functional.cross_entropy(self.out(torch.tanh(sequence_pool(y, "max"))), self.target)


MODELS = {"gated layers": Gated, "classifier": Classifier, "tagger": Tagger}


def cases(quick: bool) -> Iterator[Case]:
    """Forward, and with gradients."""
    torch.manual_seed(0)
    for name, make in MODELS.items():
        if quick and make is not Tagger:
            continue
        rows = sum(LENGTHS)
        values = torch.randn(rows, FEATURES) if make is Gated else torch.randint(WORDS, (rows,))
        yield from _cases(name, make(), LoDTensor.from_lengths(values, [list(LENGTHS)]), quick)


def _cases(name: str, model: nn.Module, x: LoDTensor, quick: bool) -> Iterator[Case]:
    calls: dict[str, Callable[[LoDTensor], Tensor]] = {
        "stepnet": torch.compile(model, fullgraph=True),
        "not compiled": model,
    }
    weights = dict(model.named_parameters())

    def forward(call: Callable[[LoDTensor], Tensor]) -> Mapping[str, Tensor]:
        with torch.no_grad():
            return {"loss": call(x)}

    def training(call: Callable[[LoDTensor], Tensor]) -> Mapping[str, Tensor]:
        loss = call(x)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        return {"loss": loss.detach(), **dict(zip(weights, gradients, strict=True))}

    for mode, run in (("forward", forward), ("training", training)):
        if quick and mode == "forward":
            continue
        yield Case(
            name=f"{name}, {mode}",
            contenders={kind: Contender(lambda c=call, r=run: r(c)) for kind, call in calls.items()},
            reference="not compiled",
            facts={"B": len(LENGTHS), "rows": sum(LENGTHS), "F": FEATURES},
        )


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """How many times as fast the compiled models are."""
    return {
        f"{row.case}: times as fast": row.times["not compiled"].median / row.times["stepnet"].median
        for row in rows
    }


TOPIC = Topic(
    name="compiled_model",
    claim="small ragged models, recurrences in the graph of torch.compile, against the models as they are",
    cases=cases,
    findings=findings,
    measure=on_one_thread,
    efforts=EFFORTS,
    on_request=True,
)
