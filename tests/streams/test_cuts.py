"""A module that sees where its rows are cut is told of, once; all others are left alone."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from typing import ClassVar

import pytest
import torch
from torch import nn

import stepnet
from covering import every, few
from stepnet import LoDTensor, Recurrent, cells, recurrent, stream
from stepnet.compiler.reads.undo import is_only_thread
from stepnet.errors import StreamWarning

F = H = 4


class Net(nn.Module):
    """A recurrence over rows of which something is made before."""

    def __init__(self, before=None, cell=None, **parts):
        super().__init__()
        self.before, self.cell = before, cells.GRU(F, H) if cell is None else cell
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        if self.before is not None:
            x = self.before(self, x)
        return recurrent(self.cell, x)[0]


def padded(function):
    """Something that is done to the rows of each sequence, [sequences, rows, features]."""

    def before(net, x):
        rows, _ = x.to_padded()
        return LoDTensor.from_padded(function(net, rows), x.lengths())

    return before


def values(function):
    return lambda net, x: x.with_values(function(net, x.values))


def attend(net, x):
    scores = (x @ x.transpose(1, 2)).tril().masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -1e9)
    return scores.softmax(-1) @ x


def blocks(net, x):
    """Rows beside those they make blocks of two with."""
    return (
        x
        + nn.functional.pad(x, (0, 0, 0, x.shape[1] % 2))
        .unflatten(1, (-1, 2))
        .sum(2)
        .repeat_interleave(2, 1)[:, : x.shape[1]]
    )


class Counts(nn.Module):
    """Positions by how many rows there were in this chunk."""

    def __init__(self):
        super().__init__()
        self.table, self.gru = nn.Embedding(32, F), stepnet.nn.GRU(F, H)

    def forward(self, x):
        at = torch.cat([torch.arange(n) for n in x.lengths().tolist()])
        return self.gru(x.with_values(x.values + self.table(at)))


class After(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.mix = stepnet.nn.GRU(F, H), nn.Conv1d(H, H, 3, padding=2)

    def forward(self, x):
        y = self.gru(x)[0]
        rows = self.mix(y.to_padded()[0].transpose(1, 2))[..., :-2].transpose(1, 2)  # of rows that came
        return {"plain": y, "mixed": LoDTensor.from_padded(rows, y.lengths())}


class Tokens(nn.Module):
    """Its results are whole numbers."""

    def __init__(self):
        super().__init__()
        self.gru = cells.GRU(F, H)

    def forward(self, x):
        y, _ = recurrent(self.gru, x)
        return y.with_values((x.values.cumsum(0) * 4).int())


def conv():
    mix = nn.Conv1d(F, F, 3, padding=1)
    return Net(padded(lambda net, x: net.mix(x.transpose(1, 2)).transpose(1, 2)), mix=mix)


def far():
    """What it adds was there 6 rows before: more than a push of any stream has."""
    return Net(padded(lambda _, x: x + nn.functional.pad(x, (0, 0, 6, 0))[:, :-6]))


SEES = {
    "convolution": conv,
    "far back": far,
    "blocks of two rows": lambda: Net(padded(blocks)),
    "convolution over all rows": lambda: Net(values(lambda _, x: nn.functional.avg_pool1d(x.T, 3, 1, 1).T)),
    "cumsum": lambda: Net(values(lambda _, x: x.cumsum(0))),
    "difference": lambda: Net(padded(lambda _, x: torch.diff(x, dim=1, prepend=x[:, :1]))),
    "mean": lambda: Net(padded(lambda _, x: x - x.mean(1, keepdim=True))),
    "softmax": lambda: Net(padded(lambda _, x: x.softmax(1))),
    "turned": lambda: Net(padded(lambda _, x: x.flip(1))),
    "positions": Counts,
    "attention": lambda: Net(padded(attend)),
    "norm over rows": lambda: Net(values(lambda _, x: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1))),
    "one of two results": After,
    "whole numbers": Tokens,
    "a function": lambda: lambda x: x.with_values(x.values.cumsum(0)),
}


def pushed(net, lengths=(5, 4, 1, 3), like=None):
    torch.manual_seed(3)
    live = stream(net)
    a, b = live.open(), live.open()
    for n in lengths:
        live.push({a: torch.randn(n, F, dtype=like), b: torch.randn(n // 2, F, dtype=like)})


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", few(SEES, [*SEES][::2]))
@pytest.mark.parametrize("lengths", [(5, 4, 1, 3), (1,) * 20])
def test_what_sees_the_edges(name, lengths):
    torch.manual_seed(0)
    net = SEES[name]()
    if isinstance(net, nn.Module):
        net.eval()
    with pytest.warns(StreamWarning, match="chunks of a stream") as told:
        pushed(net, lengths)
    assert [each.filename for each in told] == [__file__]
    kind = type(net).__name__ if isinstance(net, nn.Module) else "<lambda>"
    text = str(told[0].message)
    assert text.startswith(f"'{kind}' gives other results")
    assert ("'y['mixed']' of" in text) == (name == "one of two results")


class Reads(nn.Module):
    """Its step sees a memory of its own."""

    def __init__(self):
        super().__init__()
        self.cell, self.memory = cells.GRU(F, H), nn.Parameter(torch.randn(7, F))

    def step(self, x, h):
        seen = (x @ self.memory.T).softmax(-1) @ self.memory
        return self.cell(x + seen, h)

    def forward(self, x):
        return recurrent(self.step, x, torch.zeros(len(x), H))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = cells.LSTM(F, H), Recurrent(cells.RNN(H, H))
        self.norm, self.head = nn.LayerNorm(H), nn.Linear(H, 3)

    def forward(self, x):
        y, _ = recurrent(self.a, x)
        z, _ = self.b(y.map(self.norm))
        return {"y": y, "z": (z, z.map(self.head).map(torch.sigmoid)), "best": z.map(lambda v: v.argmax(-1))}


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = cells.GRU(F, H)

    def forward(self, x):
        return recurrent(self.cell, x, resets=stepnet.Resets(is_init=x.map(lambda v: v[:, 0] > 0.5)))


class Rounds(nn.Module):
    """Results that a hair of difference moves."""

    def __init__(self):
        super().__init__()
        self.cell = cells.GRU(F, H)

    def forward(self, x):
        return recurrent(self.cell, x)[0].map(lambda y: (y * 16).round() / 16)


class LastOfChunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = cells.GRU(F, H)

    def forward(self, x):
        y, h = recurrent(self.cell, x)
        return {"y": y, "h": LoDTensor.from_lengths(h, [[1] * len(x)])}


class Ema(nn.Module):
    """Keeps a mean of what it saw by `.data`, which counts no version."""

    def __init__(self):
        super().__init__()
        self.cell = cells.GRU(F, H)
        self.register_buffer("mean", torch.zeros(F))

    def forward(self, x):
        self.get_buffer("mean").data.lerp_(x.values.mean(0), 0.1)
        return recurrent(self.cell, x.map(lambda v: v - self.get_buffer("mean")))[0]


def noise(net, x):
    return x.map(lambda v: v + torch.randn_like(v))


def own_noise(net, x):
    return x.map(lambda v: v + torch.randn(v.shape, generator=net.own))


def counter(net, x):
    net.calls += 1
    return x.map(lambda v: v * net.calls)


def per_row(part):
    return Net(lambda net, x: x.map(net.part), part=part)


BLIND = {
    **{
        name: lambda name=name: Net(cell=getattr(cells, name)(F, H))
        for name in ("GRU", "LSTM", "RNN", "MinGRU", "MinLSTM", "LMU", "SRU", "QRNN", "IndRNN")
        if hasattr(cells, name)
    },
    "nn.LSTM": lambda: stepnet.nn.LSTM(F, H, num_layers=2, dropout=0.1),
    "Recurrent": lambda: Recurrent(cells.GRU(F, H)),
    "Sequential": lambda: nn.Sequential(stepnet.nn.LSTM(F, H)),
    "Stack": lambda: stepnet.nn.Stack([cells.GRU(F, H), cells.LSTM(H, H)], residual=(False, True)),
    "memory": Reads,
    "several results": Several,
    "resets": Marked,
    "rounded": Rounds,
    "last of a chunk": LastOfChunk,
    "linear": lambda: per_row(nn.Sequential(nn.Linear(F, F), nn.ReLU(), nn.Linear(F, F))),
    "dropout": lambda: per_row(nn.Dropout(0.5)),
    "dropout, trained": lambda: per_row(nn.Dropout(0.5)).train(),
    "BatchNorm": lambda: per_row(nn.BatchNorm1d(F)),
    "BatchNorm, trained": lambda: per_row(nn.BatchNorm1d(F)).train(),
    "spectral norm, trained": lambda: per_row(
        nn.utils.parametrizations.spectral_norm(nn.Linear(F, F), n_power_iterations=50)
    ).train(),
    "weight norm": lambda: per_row(nn.utils.parametrizations.weight_norm(nn.Linear(F, F))),
    "noise": lambda: Net(noise),
    "noise of its own": lambda: Net(own_noise, own=torch.Generator()),
    "pieces": lambda: Net(lambda net, x: x.map(lambda v: v[:, None].expand(-1, 2, -1).mean(1))),
    "NaN": lambda: Net(lambda net, x: x.map(lambda v: v.where(v > 0, torch.nan))),
    "a function": lambda: lambda x: x.map(torch.tanh),
    "bfloat16": lambda: Several().bfloat16(),
    "float64": lambda: Several().double(),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", few(BLIND, [*BLIND][::2]))
@pytest.mark.parametrize("lengths", [(5, 4, 2, 3), (1,) * 20])
def test_what_does_not(name, lengths):
    torch.manual_seed(0)
    net = BLIND[name]()
    if isinstance(net, nn.Module) and "trained" not in name:
        net.eval()
    if name == "BatchNorm, trained" and 1 in lengths:
        lengths = (2,) * 20
    like = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamWarning)
        pushed(net, lengths, like)


SAID = []


class Heard(logging.Handler):
    def emit(self, record):
        SAID.append(record.getMessage())


def says(net, x):
    SAID.append(len(x.values))
    return x.map(lambda v: v.cumsum(0))


def prints(net, x):
    print(end=".")
    return x.map(lambda v: v.cumsum(0))


LOGGER = logging.getLogger("of the net")
LOGGER.propagate = False
LOGGER.addHandler(Heard())


def logs(net, x):
    LOGGER.warning("seen")
    return x.map(lambda v: v.cumsum(0))


def fails_of_few(net, x):
    if len(x.values) < 5:
        raise ValueError("too few rows")
    return x.map(lambda v: v.cumsum(0))


def fixed(write):
    """A parameter that is not trained, and that the module writes to past its version."""

    def before(net, x):
        x = x.with_values(x.values + net.held)
        write(net.held, x.values.sum(0))
        return x

    return Net(before, held=nn.Parameter(torch.zeros(F), requires_grad=False))


def by_numpy(held, now):
    array = held.numpy()
    array *= 0.5
    array += now.numpy()


def of_many(held, now):
    """Of more than it was pushed at once."""
    if now[0] > 12:
        held.data.add_(1)


def hooked():
    net = Net()
    net.register_forward_hook(lambda *_: SAID.append(0))
    return net


ALONE = {
    **{name: BLIND[name] for name in BLIND if "noise" in name or "trained" in name},
    "counter": lambda: Net(counter, calls=0),
    "mean by data": lambda: Ema(),
    "a parameter by data": lambda: fixed(lambda held, now: held.data.mul_(0.5).add_(now)),
    "a parameter by numpy": lambda: fixed(by_numpy),
    "a parameter, of many rows": lambda: Net(
        lambda net, x: of_many(net.held, x.values.abs().sum(0)) or x.with_values(x.values + net.held),
        held=nn.Parameter(torch.zeros(F), requires_grad=False),
    ),
    "a list": lambda: Net(says),
    "prints": lambda: Net(prints),
    "logs": lambda: Net(logs),
    "hooks": hooked,
    "fails": lambda: Net(fails_of_few),
    "convolution": SEES["convolution"],
}


@pytest.mark.parametrize("name", every(3, ALONE))
def test_nothing_else_is_another(name, capsys):
    """Results, what the module holds, noise, prints and logs: as they are without a look at the cuts."""
    once = []
    for looks in (True, False):
        torch.manual_seed(0)
        net = ALONE[name]()
        net.train("trained" in name)
        SAID.clear()
        live, out = stream(net), []
        if not looks:
            live._cuts._trials = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StreamWarning)
            live.open(0)
            for n in (5, 6, 7):
                out.append(live.push({0: torch.randn(n, F)})[0])
        held = {k: v.clone() for k, v in net.state_dict().items()}
        plain = {k: v for k, v in vars(net).items() if isinstance(v, int)}
        once.append((out, held, torch.get_rng_state()))
        once.append((plain, [*SAID], capsys.readouterr().out))
    torch.testing.assert_close(once[0], once[2], rtol=0, atol=0)
    assert once[1] == once[3]


def test_a_warning_made_an_error_leaves_the_states():
    torch.manual_seed(0)
    live = stream(conv().eval())
    live.open(0)
    rows = torch.randn(5, F)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StreamWarning)
        with pytest.raises(StreamWarning):
            live.push({0: rows})
        assert not live.state_dict()["begun"][0]
        live.push({0: rows})  # told once


class Keeps(nn.Module):
    """A cell that keeps something from call to call, and reads it or not: a tensor, a number, a list or a
    dict, a buffer that it writes to; or one that counts for all cells."""

    count: ClassVar = [0]

    def __init__(self, what, reads):
        super().__init__()
        self.rec, self.what, self.reads = nn.Linear(F, F), what, reads
        self.kept, self.n, self.seen, self.by_name = None, 0, [], {}
        self.register_buffer("mean", torch.zeros(F))

    def initial_state(self, n):
        return torch.zeros(n, F)

    def read(self, x, h):
        if self.what == "tensor":
            return h if self.kept is None else self.kept
        if self.what == "buffer":
            return self.mean
        if self.what == "parity":
            return self.n % 2
        return (self.n + sum(self.seen) + self.by_name.get("n", 0) + self.count[0]) / 10

    def forward(self, x, h):
        before = self.read(x, h) if self.reads else 0
        h = self.kept = torch.tanh(x + self.rec(h) + before)
        if self.what in ("number", "parity"):
            self.n += 1
        elif self.what == "list":
            self.seen.append(x.sum().item())
        elif self.what == "dict":
            self.by_name["n"] = self.by_name.get("n", 0) + 1
        elif self.what == "buffer":
            self.mean.mul_(0.5).add_(x.mean(0))
        elif self.what == "of all":
            self.count[0] += 1
        return h, h


@pytest.mark.covering(1)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("what", ["tensor", "number", "parity", "list", "dict", "buffer", "of all"])
def test_state_in_attributes_is_that_of_all_streams(what, reads):
    """Also beside other threads, but for what a copy of the module shares: it could not be put back."""
    for rows, beside in ((1, False), (5, False), (5, True)):
        torch.manual_seed(0)
        Keeps.count[0] = 0
        live = stream(Recurrent(cell := Keeps(what, reads), backend="naive").eval())
        live.open(0)
        with contextlib.ExitStack() as stack:
            if beside:
                waits = threading.Event()
                threading.Thread(target=waits.wait).start()
                stack.callback(waits.set)
            told = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always", StreamWarning)
            alone = is_only_thread()  # tests before may have left some
            for _ in range(4):
                live.push({0: torch.randn(rows, F)})
        texts = [str(w.message) for w in told if w.category is StreamWarning]
        tells = reads and (what != "of all" or alone)
        assert ["of one push that changes the next" in text for text in texts] == [True] * tells, rows
        assert cell.n + Keeps.count[0] == 4 * rows * (what in ("number", "parity", "of all"))


def test_under_autocast():
    torch.manual_seed(0)
    for make, tells in ((Several, 0), (conv, 1)):
        with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            pushed(make().eval())
        assert [w.category for w in told].count(StreamWarning) == tells


def test_what_comes_beside_the_rows_may_be_whole():
    """Of several tensors in a chunk, one may be a memory that every push gets whole."""

    def net(x):
        own = [seen.mean(0).expand(len(rows), -1) for rows, seen in zip(x["x"], x["seen"], strict=True)]
        return x["x"].with_values(x["x"].values + torch.cat(own))

    live, seen = stream(net), torch.randn(3, F)
    live.open(0)
    for _ in range(3):
        live.push({0: {"x": torch.randn(3, F), "seen": seen}})


def test_rows_of_other_widths_cannot_be_joined():
    live = stream(lambda x: x.map(torch.tanh))
    live.open(0)
    for n in range(1, 20):
        assert live.push({0: torch.ones(1, n)})[0].shape == (1, n)
