"""Costs take scores: what went through softmax is refused, whatever made it, and nothing else is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    Integer,
    Sequence,
    activation,
    apply,
    classification_cost,
    classification_error,
    concat,
    ctc_cost,
    data,
    dropout,
    fc,
    memory,
    perplexity,
    recurrent_group,
    sequence_cross_entropy,
)
from stepnet.tape import Tape


def by_hand(v):
    e = (v - v.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


class InInference(nn.Module):
    """As many models: scores while training, probabilities after."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        scores = self.linear(x)
        return scores if self.training else scores.softmax(-1)


PROBABILITIES = {
    "act by name": lambda x: fc(x, 4, act="softmax"),
    "act, a module": lambda x: fc(x, 4, act=nn.Softmax(-1)),
    "act, a module of dim 1": lambda x: fc(x, 4, act=nn.Softmax(1)),
    "act, a lambda": lambda x: fc(x, 4, act=lambda v: v.softmax(-1)),
    "act, by hand": lambda x: fc(x, 4, act=by_hand),
    "act with dropout": lambda x: fc(x, 4, act=lambda v: F.dropout(F.softmax(v, -1), 0.3)),
    "by hand with dropout": lambda x: fc(x, 4, act=lambda v: F.dropout(by_hand(v), 0.3)),
    "gumbel": lambda x: fc(x, 4, act=F.gumbel_softmax),
    "softmin": lambda x: fc(x, 4, act=nn.Softmin(-1)),
    "a layer": lambda x: activation(fc(x, 4), "softmax"),
    "a layer by hand": lambda x: activation(fc(x, 4), by_hand),
    "a function": lambda x: torch.softmax(fc(x, 4), -1),
    "a method": lambda x: fc(x, 4).softmax(dim=1),
    "dropout after": lambda x: dropout(fc(x, 4, act=nn.Softmax(-1))),
    "dropout twice": lambda x: dropout(dropout(fc(x, 4, act=by_hand), 0.3), 0.2),
    "in a module": lambda x: apply(nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1), nn.Dropout()), x),
    "in inference alone": lambda x: apply(InInference(), x),
    "clamped": lambda x: fc(x, 4, act="softmax").clamp(min=1e-6),
    "shifted": lambda x: dropout(fc(x, 4, act="softmax") + 1e-3),
    "scaled": lambda x: fc(x, 4, act="softmax") * 0.5,
    "mixed": lambda x: (fc(x, 4, act="softmax") + fc(x, 4, act="softmax")) / 2,
    "half": lambda x: fc(x, 4, act="softmax").half().float(),
}
SCORES = {
    "plain": lambda x: fc(x, 4),
    "act": lambda x: fc(x, 4, act="relu"),
    "positive": lambda x: fc(x, 4, act="sigmoid"),
    "zeros": lambda x: fc(x, 4) * 0,
    "dropout": lambda x: dropout(fc(x, 4)),
    "a layer behind": lambda x: fc(fc(x, 5, act="softmax"), 4),
    "attention": lambda x: fc(x, 4) * fc(x, 4, act="softmax"),
    "log": lambda x: fc(x, 4, act="softmax").log(),
    "sharpened": lambda x: fc(x, 4, act="softmax") * 10,
    "divided by a temperature": lambda x: apply(lambda v: v.softmax(-1) / torch.tensor(0.1), fc(x, 4)),
    "log_softmax": lambda x: fc(x, 4, act=nn.LogSoftmax(-1)),
    "log_softmax by name": lambda x: fc(x, 4, act="log_softmax"),
    "one-hot": lambda x: apply(lambda v: F.one_hot(v.argmax(-1), 4).float() * 9, fc(x, 4)),
    "normalized": lambda x: apply(nn.LayerNorm(4), fc(x, 4)),
}
OF_ZEROS = {  # as examples of data are
    "a sigmoid": lambda x: activation(x, "sigmoid"),
    "a sigmoid without bias": lambda x: fc(x, 2, act=nn.Sigmoid(), bias=False),
    "a sigmoid of an item": lambda x: torch.sigmoid(fc(x, 2, bias=False)),
    "half": lambda x: x + 0.5,
    "a gate": lambda x: x * fc(x, 2, act="softmax"),
    "a sum": lambda x: x + fc(x, 2, act="softmax"),
    "a quotient": lambda x: fc(x, 2, act="softmax") / x.exp(),
}
SHARES = {
    "p and 1 - p": lambda x: concat([p := fc(x, 1, act="sigmoid"), 1 - p]),
    "gated": lambda x: (g := fc(x, 1, act="sigmoid")) * fc(x, 2, act="softmax") + (1 - g) * x.softmax(-1),
    "of sums": lambda x: (p := torch.sigmoid(x)) / p.sum(-1, keepdim=True),
}
KINDS = {"rows": (Dense(3), Integer(4)), "sequences": (Sequence(Dense(3)), Sequence(Integer(4)))}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("make", PROBABILITIES.values(), ids=PROBABILITIES)
def test_probabilities_are_refused(make, kind):
    with Tape() as tape:
        x, label = data("x", kind[0]), data("label", kind[1])
        out = make(x)
        with pytest.raises(TapeError, match=r"takes scores before softmax(?s:.)*remedy"):
            classification_cost(out, label)
        classification_error(out, label)  # of which probabilities are as good
    assert all(m.training for c in tape if c.module is not None for m in c.module.modules())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("make", SCORES.values(), ids=SCORES)
def test_scores_are_not_and_cost_what_torch_says(make, kind):
    with Tape() as tape:
        out = make(data("x", kind[0]))
        cost = classification_cost(out, data("label", kind[1]))
    rows, label = torch.randn(6, 3), torch.randint(4, (6,))
    feeds = {"x": rows, "label": label}
    if kind[0].level:
        feeds = {key: LoDTensor.from_lengths(value, [[2, 0, 4]]) for key, value in feeds.items()}
    net = tape.topology([out, cost]).eval()
    (scores, loss), _ = net(**feeds)
    scores = scores.values if isinstance(scores, LoDTensor) else scores
    torch.testing.assert_close(loss, F.cross_entropy(scores, label))


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("make", [*OF_ZEROS.values(), *SHARES.values()], ids=[*OF_ZEROS, *SHARES])
def test_what_adds_up_to_one_by_chance_is_none(make, level):
    with Tape():
        kinds = (Dense(2), Integer(2)) if not level else (Sequence(Dense(2)), Sequence(Integer(2)))
        x, label = data("x", kinds[0]), data("label", kinds[1])
        if make in SHARES.values():
            with pytest.raises(TapeError, match="takes scores before softmax"):
                classification_cost(make(x), label)
        else:
            classification_cost(make(x), label)


def test_softmax_over_rows_is_no_probability_of_classes():
    with Tape():
        x, label = data("x", Dense(3)), data("label", Integer(4))
        classification_cost(fc(x, 4, act=lambda v: v.softmax(0)), label)


@pytest.mark.parametrize("cost", [classification_cost, sequence_cross_entropy, ctc_cost, perplexity])
def test_all_that_take_scores_refuse(cost):
    with Tape():
        x, label = data("x", Sequence(Dense(3))), data("label", Sequence(Integer(4)))
        with pytest.raises(TapeError, match=f"{cost.__name__}.*takes scores before softmax"):
            cost(dropout(fc(x, 4, act=nn.Softmax(-1))), label)
        cost(fc(x, 4), label)


@pytest.mark.parametrize("act", ["softmax", "tanh"])
def test_what_a_group_returns(act):
    def step(word):
        return dropout(fc([word, memory("h", 4)], 4, act=act, name="h"), 0.2)

    with Tape():
        x, label = data("x", Sequence(Dense(3))), data("label", Sequence(Integer(4)))
        out = recurrent_group(step, x, name="group")
        if act == "softmax":
            with pytest.raises(TapeError, match=r"takes scores before softmax(?s:.)*'group'"):
                classification_cost(out, label)
        else:
            classification_cost(out, label)


def test_trying_changes_neither_statistics_nor_the_random_state():
    norm = nn.BatchNorm1d(4)
    with Tape():
        x, label = data("x", Dense(3)), data("label", Integer(4))
        out = dropout(apply(norm, fc(x, 4)))
        before, seen = torch.get_rng_state(), int(norm.num_batches_tracked)
        classification_cost(out, label)
    assert torch.equal(torch.get_rng_state(), before)
    assert int(norm.num_batches_tracked) == seen


@pytest.mark.parametrize("ignore", few([None, 3], [3]))
def test_a_cost_of_rows_is_saved_at_any_number_of_rows(ignore, tmp_path):
    import stepnet

    with Tape() as tape:
        cost = classification_cost(fc(data("x", Dense(3)), 4), data("label", Integer(4)), ignore=ignore)
    assert cost.to_ir().xml
    net = tape.topology(cost)
    net.save(tmp_path / "cost.xml")
    again = stepnet.load(tmp_path / "cost.xml")
    for n in (1, 4, 7):
        feeds = {"x": torch.randn(n, 3), "label": torch.randint(4, (n,))}
        torch.testing.assert_close(again(**feeds)[0], net(**feeds)[0].detach())
