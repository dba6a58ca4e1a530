"""A recurrence over sentences runs over all their words at once, with the loop over sentences' results."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepnet.api import Recurrent, recurrent
from stepnet.cells import GRU
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import sequence_pool
from stepnet.engine import executor_choice, plans, warm_calls
from stepnet.errors import Unsupported
from stepnet.front.memory import Memory
from stepnet.front.scope import Scope
from stepnet.front.static import Padded
from stepnet.loops.dynamic import dynamic_recurrent

BUILDS = False

as_one = sys.modules["stepnet.nested.loop_flattening"]
F64 = torch.float64
TABLES = {
    "ragged": [[2, 3, 1], [3, 1, 4, 2, 1, 5]],
    "a text without sentences": [[0, 2, 0], [1, 3]],
    "one text": [[3], [2, 1, 2]],
    "one word each": [[2, 1], [1, 1, 1]],
    "a sentence without words": [[2, 1], [2, 0, 3]],
}


class Reader(nn.Module):
    """Steps over sentences, as people write them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.word, self.pair = nn.GRUCell(3, 4, dtype=F64), nn.LSTMCell(3, 4, dtype=F64)
        self.over, self.sentence = GRU(4, 4).double(), nn.GRUCell(4, 4, dtype=F64)
        self.out = nn.Linear(4, 4, dtype=F64)

    def forward(self, x: LoDTensor, h: Tensor) -> tuple[object, Tensor]:
        if self.kind == "goes on":
            return recurrent(self.word, x, h)
        if self.kind == "from its own state":
            _, said = recurrent(self.word, x)
            h = self.sentence(said, h)
            return h, h
        if self.kind == "words and sentences":
            y, (said, cell) = recurrent(
                self.pair, x.map(torch.tanh), (torch.sin(self.out(h)), torch.zeros_like(h))
            )
            h = torch.sigmoid(cell) * h + torch.layer_norm(said, (4,))
            return (torch.relu(y), h.unsqueeze(-1)), h
        if self.kind == "a stepnet that sees the state":
            scope = Scope({"x": x, "seen": h})
            memory = Memory("h", "before", shape=(4,))
            said = dynamic_recurrent(self.stepnet, scope, ["x"], ["h"], [memory], static_inputs=["seen"])
            return scope["h"], self.sentence(said["h"], h)
        y, _ = recurrent(self.word, x, h)
        _, said = recurrent(self.over, y)
        return {"y": y}, torch.tanh(self.out(said)) - h

    def stepnet(self, scope: Scope) -> None:
        scope["h"] = self.word(scope["x"], scope["before"]) * torch.sigmoid(self.out(scope["seen"]))


KINDS = [
    "goes on", "from its own state", "words and sentences", "two, one over the other",
    "a stepnet that sees the state",
]  # fmt: skip


class OnScopes(nn.Module):
    """A stepnet over sentences that runs one over their words, with a memory and a static input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Reader("a stepnet that sees the state")

    def forward(self, scope: Scope) -> None:
        scope["y"], scope["h"] = self.inner(scope["x"], scope["before"] - scope["topic"])


def run_stepnet(step: nn.Module, lengths: list[list[int]], backend: str) -> list[Tensor]:
    """As `run`."""
    torch.manual_seed(0)
    values = torch.randn(sum(lengths[1]), 3, dtype=F64, requires_grad=True)
    h, topic = torch.randn(2, len(lengths[0]), 4, dtype=F64, requires_grad=True)
    out: list[Tensor] = []
    for _ in range(3):
        scope = Scope({"x": LoDTensor.from_lengths(values, lengths), "boot": h, "topic": topic})
        memory, how = Memory("h", "before", init="boot"), {"level": 0, "backend": backend}
        last = dynamic_recurrent(step, scope, ["x"], ["y"], [memory], static_inputs=["topic"], **how)["h"]
        loss = scope["y"].values.sin().sum() + last.square().sum()
        out += [scope["y"].values, last, *torch.autograd.grad(loss, [values, h, topic, *read_by(step)])]
    return out


def read_by(step: nn.Module) -> list[Tensor]:
    return [*step.inner.word.parameters(), *step.inner.out.parameters(), *step.inner.sentence.parameters()]


@pytest.mark.exhaustive
def test_a_stepnet_over_sentences(monkeypatch):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    as_one._kinds.clear()
    step = OnScopes()
    for a, b in zip(*(run_stepnet(step, TABLES["ragged"], by) for by in ("auto", "naive")), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert known(step) == [None]


def run(step: nn.Module, lengths: list[list[int]], backend: str) -> list[Tensor]:
    """Results, whether they carry gradients, and gradients of everything, three times in a row."""
    torch.manual_seed(0)
    values = torch.randn(sum(lengths[1]), 3, dtype=F64, requires_grad=True)
    h = torch.randn(len(lengths[0]), 4, dtype=F64, requires_grad=True)
    out: list[Tensor] = []
    for _ in range(3):
        x = LoDTensor.from_lengths(values, lengths)
        y, last = recurrent(step, x, h, level=0, backend=backend)
        leaves = [
            *(
                leaf.values
                for leaf in torch.utils._pytree.tree_leaves(
                    y, is_leaf=lambda leaf: isinstance(leaf, LoDTensor)
                )
            ),
            last,
        ]
        read = [values, h, *step.parameters()]
        loss = sum((leaf.sin() * (k + 1)).sum() for k, leaf in enumerate(leaves))
        grads = torch.autograd.grad(loss, read, allow_unused=True)
        out += [leaf.detach() for leaf in leaves]
        out += [torch.zeros_like(t) if g is None else g for g, t in zip(grads, read, strict=True)]
    return out


def known(step: object) -> list[object]:
    """What is known of the calls of a step: None where they run over words, else why not."""
    whose = step if isinstance(step, nn.Module) else step.__code__
    return [kind.declined for kind in as_one._kinds[whose].values()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", TABLES)
def test_as_by_the_loop_over_sentences(kind, table, monkeypatch):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)  # both take as long
    as_one._kinds.clear()
    step = Reader(kind)
    if table == "one word each":  # of which nothing is learned
        run(step, TABLES["ragged"], "auto")
    for a, b in zip(run(step, TABLES[table], "auto"), run(step, TABLES[table], "naive"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if table != "a sentence without words":
        assert known(step) == [None]


word, sentence = nn.GRUCell(3, 4, dtype=F64), nn.GRUCell(4, 4, dtype=F64)


def last_of(x: LoDTensor, h: Tensor, **how: object) -> Tensor:
    return recurrent(word, x, h, **how)[1]


def asserts(x: LoDTensor, h: Tensor) -> tuple[Tensor, Tensor]:
    assert x.values.device.type == "cpu"
    return h, last_of(x, h)


def scaled(x: Tensor, h: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    return h, word(x, h) * by


def looks(x: Tensor, h: Tensor, at: Padded) -> tuple[Tensor, Tensor]:
    return h, word(x + at.rows.sum(1), h)


# What a step may not do over words: what it asks of its sentences, and what is not so before a sentence ends.
DECLINED = {
    "an assertion of its own": asserts,
    "an average": lambda x, h: (h, last_of(x, h) + sequence_pool(x, "mean")[:, :1]),
    "their lengths": lambda x, h: (h, last_of(x, h) / x.lengths().clamp(min=1)[:, None]),
    "rows of one text": lambda x, h: (h, last_of(x, h) + x.values[: len(x), :1]),
    "a mean of rows": lambda x, h: (h, last_of(x, h) + x.values.mean(0)[:1]),
    "words backwards": lambda x, h: (h, last_of(x, h, reverse=True)),
    "noise": lambda x, h: (h, nn.functional.dropout(last_of(x, h), 0.5)),
    "a logarithm": lambda x, h: (h, torch.log(last_of(x, h).abs())),
    "sees at each word how another ends": lambda x, h: (
        h,
        recurrent(scaled, x, h, static=last_of(x, h))[1],
    ),
    "sees sentences of its own": lambda x, h: (h, recurrent(looks, x, h, static=x)[1]),
    "one begins where another ends": lambda x, h: (h, recurrent(word, x, last_of(x, h))[1]),
    "begins from what is made of that": lambda x, h: (h, last_of(x, torch.tanh(last_of(x, h)) * 2)),
    "gradients cut off": lambda x, h: (h, last_of(x, h, detach_every=1)),
    "no words": lambda x, h: (h, torch.tanh(h)),
    "words and sentences": lambda x, h: (h, last_of(x.map(lambda rows: rows + h[:, :3]), h)),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_not_so_of_words_is_left(name, monkeypatch):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    lengths = [[2], [2, 1]] if name == "words and sentences" else [[2, 2], [3, 1, 2, 3]]  # fits for one text
    x = LoDTensor.from_lengths(torch.randn(sum(lengths[1]), 3, dtype=F64), lengths)
    h, found = torch.zeros(len(x), 4, dtype=F64), []
    for backend in ("auto", "auto", "naive"):
        torch.manual_seed(0)
        y, last = recurrent(DECLINED[name], x, h, level=0, backend=backend)
        found.append((y.values, last))
    for other in found[:2]:
        torch.testing.assert_close(other, found[2], equal_nan=True)
    assert None not in known(DECLINED[name])


@pytest.mark.parametrize("name", ["words backwards", "one begins where another ends"])
def test_it_is_not_taken_for_words_by_sentences_of_one_word(name, monkeypatch):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    as_one._kinds.clear()
    h = torch.zeros(2, 4, dtype=F64)
    for lengths in ([[2, 1], [1, 1, 1]], [[2, 1], [1, 1, 1]], [[2, 1], [3, 1, 2]]):
        x = LoDTensor.from_lengths(torch.randn(sum(lengths[1]), 3, dtype=F64), lengths)
        found = [
            recurrent(DECLINED[name], x, h, level=0, backend=backend)[1] for backend in ("auto", "naive")
        ]
        torch.testing.assert_close(*found)


def test_after_a_change(monkeypatch):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    as_one._kinds.clear()
    step = Reader("goes on")
    for kind in ("goes on", "from its own state", "two, one over the other", "goes on"):
        step.kind = kind
        with torch.no_grad():
            step.out.weight.mul_(2)
        for a, b in zip(
            run(step, TABLES["ragged"], "auto"), run(step, TABLES["ragged"], "naive"), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", ["auto", "c"])
def test_inside_a_checkpoint_of_torchs(monkeypatch, backend):
    """Which saves what the first run saved, and ends the second by an exception of its own."""
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    step, lengths = Reader("goes on"), TABLES["ragged"]
    values = torch.randn(sum(lengths[1]), 3, dtype=F64, requires_grad=True)
    h = torch.zeros(3, 4, dtype=F64, requires_grad=True)

    def last(values: Tensor, h: Tensor) -> Tensor:
        return recurrent(step, LoDTensor.from_lengths(values, lengths), h, level=0, backend=backend)[1]

    expected = torch.autograd.grad(last(values, h).sin().sum(), [values, h])
    as_one._kinds.clear()
    for meanwhile in (False, True):
        if meanwhile:
            as_one._kinds.clear()
        again = checkpoint(last, values, h, use_reentrant=False)
        if meanwhile:
            last(values, h)
        torch.testing.assert_close(torch.autograd.grad(again.sin().sum(), [values, h]), expected)


def test_c_by_name_runs_over_words_and_says_why_not():
    x, h = LoDTensor.from_lengths(torch.ones(3, 3, dtype=F64), [[2], [2, 1]]), torch.zeros(1, 4, dtype=F64)
    y, _ = Recurrent(Reader("goes on"), level=0, backend="c")(x, h)
    assert y.values.shape == (3, 4)
    with pytest.raises(Unsupported, match="whole sequences"):
        recurrent(DECLINED["their lengths"], x, h, level=0, backend="c")


FACTOR = 1.0


def made(cell: nn.Module, weight: Tensor) -> object:
    def step(x: LoDTensor, h: Tensor) -> tuple[Tensor, Tensor]:
        _, said = recurrent(cell, x, torch.tanh(h @ weight))
        return said * FACTOR, said

    return step


@pytest.mark.exhaustive
@pytest.mark.parametrize("train", [False, True])
def test_a_step_that_is_made_anew_is_walked_where_it_reads_something_else(monkeypatch, train):
    monkeypatch.setattr(executor_choice, "stopwatch", lambda call: 0.0)
    plans.forget()
    walks: list[object] = []
    reach = warm_calls.reach
    monkeypatch.setattr(warm_calls, "reach", lambda *of: (walks.append(of), reach(*of))[1])
    as_one._kinds.clear()
    torch.manual_seed(0)
    cells = [nn.GRUCell(3, 4, dtype=F64) for _ in range(2)]
    weights = [torch.randn(4, 4, dtype=F64) for _ in range(3)]
    values = torch.randn(16, 3, dtype=F64, requires_grad=train)
    x, h = (
        LoDTensor.from_lengths(values, TABLES["ragged"]),
        torch.zeros(3, 4, dtype=F64),
    )

    def found(backend: str, cell: nn.Module, weight: Tensor) -> list[Tensor]:
        y, last = recurrent(made(cell, weight), x, h, level=0, backend=backend)
        out = [y.values, last]
        if train:
            (g,) = torch.autograd.grad(y.values.sin().sum() + last.sum(), values, create_graph=True)
            out += [g, *torch.autograd.grad(g.square().sum(), [values, *cell.parameters()])]
        return out

    def other_bias() -> None:
        cells[1].bias_hh = nn.Parameter(torch.randn(12, dtype=F64))

    changes = [
        lambda: None,
        lambda: None,
        lambda: cells.reverse(),
        lambda: cells[0].weight_hh.data.mul_(2),
        other_bias,
        lambda: cells.reverse(),
        lambda: weights.pop(0),
        lambda: weights[0].mul_(-1),
        lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0),
        lambda: cells[0].register_forward_hook(lambda module, given, out: out * 2),
    ]
    with torch.set_grad_enabled(train):
        for change in changes:
            change()
            for _ in range(4):
                before = len(walks)
                for ours, plain in zip(
                    *(found(b, cells[0], weights[0]) for b in ("auto", "naive")), strict=True
                ):
                    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
            if change is changes[1]:
                assert len(walks) == before
    gone = weakref.ref(weights[0])
    del weights[0], ours, plain
    gc.collect()
    assert gone() is None
