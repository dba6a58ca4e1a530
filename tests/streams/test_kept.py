"""What streams go on from: after pushes of other streams, that fail, and without a call of the module."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import stepnet
from covering import every, examples
from stepnet import LoDTensor, Recurrent, cells, recurrent, stream
from stepnet.errors import StepError, StreamError
from torch_since import torch_since

DTYPE = torch.float64
F, H = 2, 3
CLOSE = {"rtol": 0, "atol": 1e-10}


def double(module):
    return module.to(DTYPE).eval()


def whole(net, x):
    with torch.no_grad():
        return net(x)[0]


def _hooked(net, monkeypatch):
    net.register_forward_hook(lambda module, x, out: (out[0] * 2, out[1]))


def _hooked_everywhere(net, monkeypatch):
    hooks = nn.modules.module._global_forward_hooks
    monkeypatch.setitem(hooks, -1, lambda module, x, out: (out[0] * 2, out[1]) if module is net else None)


def _own_forward(net, monkeypatch):
    net.forward = lambda x: type(net).forward(net, x * 2)


def _replaced_forward(net, monkeypatch):
    before = type(net).forward
    monkeypatch.setattr(type(net), "forward", lambda self, x, *a, **k: before(self, x * 2, *a, **k))


def _replaced_call(net, monkeypatch):
    before = nn.Module.__call__
    monkeypatch.setattr(
        nn.Module, "__call__", lambda self, *a: before(self, a[0] * 2) if self is net else before(self, *a)
    )


def _compiled(net, monkeypatch):
    net.compile(backend="eager")


def _other_parameters(net, monkeypatch):
    for name, parameter in [*net.named_parameters()]:
        owner, _, name = name.rpartition(".")
        setattr(net.get_submodule(owner), name, nn.Parameter(torch.randn_like(parameter)))


def _torch_cell(net, monkeypatch):
    if type(net) is Recurrent:
        net.step = nn.GRUCell(F, H, dtype=DTYPE)


def _eager(net, monkeypatch):
    net.backend = "eager"


def _as_it_is(net, monkeypatch):
    pass


ALONE = [
    _as_it_is, _hooked, _hooked_everywhere, _own_forward, _replaced_forward, _replaced_call,
    _other_parameters, _torch_cell, _eager,
]  # fmt: skip
MODULES = [
    lambda: Recurrent(cells.GRU(F, H)),
    lambda: stepnet.nn.LSTM(F, H, num_layers=2, dropout=0.5),
    lambda: stepnet.nn.GRU(F, H),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("change", every(2, ALONE), ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("make", MODULES, ids=["recurrent", "lstm", "gru"])
def test_a_module_that_only_runs_steps_is_what_it_was_made(make, change, monkeypatch):
    """It is pushed to without a call of the module: where nothing else would happen in it."""
    as_it_was_made(make, change, monkeypatch)


@torch_since("2.13", "its Dynamo fails where layers are put together")
@pytest.mark.exhaustive  # seconds of Dynamo for one change of many
def test_a_module_that_is_compiled_is_what_it_was_made(monkeypatch):
    as_it_was_made(MODULES[1], _compiled, monkeypatch)


def as_it_was_made(make, change, monkeypatch):
    net, x = double(make()), torch.randn(2, 6, F, dtype=DTYPE)
    live = stream(net)
    live.push({live.open(k): x[k, :2] for k in (0, 1)})
    change(net, monkeypatch)
    live.reset(0)
    live.reset(1)
    parts = [live.push({k: rows[k] for k in (0, 1)}) for rows in x.split((2, 3, 1), 1)]
    parts = [torch.stack([part[0], part[1]]) for part in parts]
    torch.testing.assert_close(torch.cat(parts, 1), whole(net, x.transpose(0, 1)).transpose(0, 1), **CLOSE)


@pytest.mark.parametrize("make", MODULES[::2], ids=["recurrent", "gru"])
def test_weights_that_are_parametrized_between_pushes(make):
    """As a changed weight is: the state goes on, and is loaded, under the weights that there are now."""
    net, x, expected, h = double(make()), torch.randn(4, 1, 1, F, dtype=DTYPE), [], None
    name, of = next((name, of) for of in net.modules() for name in of._parameters if "weight_hh" in name)
    live, got = stream(net), []
    live.open(0)
    for k, row in enumerate(x):
        if k == 1:
            parametrize.register_parametrization(of, name, nn.Tanh())
        elif k == 2:
            saved, live = live.state_dict(), stream(net)
            parametrize.remove_parametrizations(of, name)
            live.load_state_dict(saved)
        with torch.no_grad():
            y, h = net(row, h)
        expected.append(y[0])
        got.append(live.push({0: row[0]})[0])
    torch.testing.assert_close(torch.cat(got), torch.cat(expected), **CLOSE)


def test_rows_that_do_not_fit_the_layers():
    live = stream(stepnet.nn.LSTM(F, H))
    live.push({live.open(): torch.zeros(1, F)})
    for rows in (torch.zeros(1, F + 1), torch.zeros(1, F, dtype=DTYPE), torch.zeros(1, F, 1)):
        with pytest.raises(StepError, match="LSTM"):
            live.push({0: rows})


def test_a_recurrent_alone_that_was_turned():
    net = Recurrent(cells.GRU(F, H))
    live = stream(net)
    live.push({live.open(): torch.zeros(1, F)})
    net.reverse = True
    with pytest.raises(StreamError, match="backwards"):
        live.push({0: torch.zeros(1, F)})


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_any_order_of_opening_pushing_resetting_closing_and_failing(data):
    """Each stream gives what its rows since it was opened or reset give, whatever became of the others."""
    fails = []

    def step(x, s):
        if fails:
            raise ValueError("no")
        return s + x, s + x

    live = stream(lambda x: recurrent(step, x, torch.zeros(len(x), 1, dtype=DTYPE), backend="naive"))
    totals: dict[int, float] = {}
    opened = 0
    for _ in range(data.draw(st.integers(1, 14))):
        what = data.draw(st.sampled_from(["open", "push", "push", "push", "fail", "reset", "close", "save"]))
        ids = data.draw(st.lists(st.sampled_from([*totals]), unique=True)) if totals else []
        if what == "open":
            totals[opened] = 0.0
            live.open(opened)
            opened += 1
        elif what in ("push", "fail"):
            chunks = {k: torch.full((data.draw(st.integers(0, 2)), 1), k + 1.0, dtype=DTYPE) for k in ids}
            if what == "fail" and any(len(rows) for rows in chunks.values()):
                fails.append(1)
                with pytest.raises(ValueError, match="no"):
                    live.push(chunks)
                fails.clear()
                continue
            out = live.push(chunks)
            for k in chunks:
                y = out[k]
                expected = totals[k] + (k + 1) * torch.arange(1, len(y) + 1, dtype=DTYPE)
                assert torch.equal(y[:, 0], expected)
                totals[k] += (k + 1) * len(y)
        elif what == "save":
            again = stream(live.module)
            again.load_state_dict(live.state_dict())
            live = again
        else:
            for k in ids:
                getattr(live, what)(k)
                totals[k] = 0.0
                if what == "close":
                    del totals[k]


class Halving(nn.Module):
    """Hands a part of the state on as it is; may write to it, and fail after that."""

    writes = fails = False

    def forward(self, x, state):
        h, same = state
        h = h.mul_(0.5) if self.writes else h * 0.5
        if self.fails:
            raise ValueError("after the write")
        h = h + x
        return (h, same), (h, same)

    def initial_state(self, n):
        return torch.ones(n, F, dtype=DTYPE), torch.ones(n, F, dtype=DTYPE)


@pytest.mark.parametrize("backend", ["auto", "c", "eager", "naive"])
def test_what_is_kept_is_written_to_by_nobody(backend):
    """Nor is it what the caller gets."""
    net = Recurrent(Halving(), backend=backend)
    net.step.writes = backend == "naive"  # which no other runs
    live, x = stream(net), torch.randn(6, F, dtype=DTYPE)
    a, expected = live.open(), torch.ones(F, dtype=DTYPE)
    for k, row in enumerate(x):
        if k and backend == "naive":
            _, before = live.state_dict()["recurrences"][0]
            net.step.fails = True
            with pytest.raises(ValueError, match="after the write"):
                live.push({a: row[None]})
            net.step.fails = False
            torch.testing.assert_close(live.state_dict()["recurrences"][0][1], before)
        expected = expected * 0.5 + row
        y, same = live.push({a: row[None]})[a]
        torch.testing.assert_close(y[0], expected, **CLOSE)
        assert torch.equal(same, torch.ones(1, F, dtype=DTYPE)), k
        y.zero_(), same.zero_()


class Doubles(nn.Module):
    """A step that writes to the rows it gets."""

    def initial_state(self, n):
        return torch.zeros(n, 2)

    def forward(self, x, s):
        return x.mul_(2) + s, s + 1


def test_a_step_may_write_to_the_rows_it_gets():
    chunk, live = torch.ones(1, 2), stream(Recurrent(Doubles(), backend="naive"))
    live.open(0)
    assert [live.push({0: chunk})[0].tolist() for _ in range(3)] == [[[k, k]] for k in (2, 3, 4)]
    assert chunk.eq(1).all()


def test_kinds_of_chunks():
    """At pushes like those before, which read a lone chunk where it lies."""
    net, x = double(stepnet.nn.LSTM(F, H, num_layers=2)), torch.randn(6, F, dtype=DTYPE)
    with torch.inference_mode():
        apart = x[4:5].clone()
    kinds = x[2:3], x[3:4].clone().requires_grad_(), apart, x[5:].t().contiguous().t()
    live = stream(net)
    live.open(0)
    first = [live.push({0: row})[0] for row in x[:2].split(1)]
    got = torch.cat([*first, *(live.push({0: chunk})[0] for chunk in kinds)])
    torch.testing.assert_close(got, whole(net, x[:, None])[:, 0], **CLOSE)
    assert not got.requires_grad


@pytest.mark.parametrize("when", ["pushed", "saved", "loaded"])
def test_inference_mode_around_what_is_kept(when):
    net, x = double(stepnet.nn.LSTM(F, H, num_layers=2)), torch.randn(6, F, dtype=DTYPE)
    live = stream(net)
    live.open(0)
    live.open(1)
    with torch.inference_mode(when == "pushed"):
        live.push({0: x[:2].clone(), 1: x[:1].clone()})
    with torch.inference_mode(when == "saved"):
        state = live.state_dict()
    other = stream(net)
    with torch.inference_mode(when == "loaded"):
        other.load_state_dict(state)
    parts = [other.push({0: x[2:3]})[0], other.push({1: x[1:3], 0: x[3:4]})[0], other.push({0: x[4:]})[0]]
    torch.testing.assert_close(torch.cat(parts), whole(net, x[:, None])[2:, 0], **CLOSE)


def test_autocast_keeps_the_states_of_one_type():
    net = stepnet.nn.LSTM(F, H).eval()
    live = stream(net)
    live.open(0)
    x = torch.randn(4, F)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.cat([live.push({0: x[:1]})[0], live.push({0: x[1:]})[0]])
        expected = whole(net, LoDTensor.from_sequences([x])).values
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    linear = nn.Linear(F, F)
    live = stream(lambda x: net(x.map(linear)))
    live.open(0)
    live.push({0: x[:1]})
    with pytest.raises(StreamError, match="under the same autocast"), torch.autocast("cpu", torch.bfloat16):
        live.push({0: x[1:]})


@torch.no_grad()
def test_a_module_whose_getattr_raises_a_key_error():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.known = {"scale": 2.0}

        def __getattr__(self, name):
            return self.__dict__["known"][name]

        def forward(self, x):
            return recurrent(lambda x, h: (h * self.scale, x + h), x, torch.zeros(len(x), 1))[0]

    live = stream(Scaled())
    live.open(0)
    got = torch.cat([live.push({0: torch.ones(n, 1)})[0] for n in (2, 1)])
    assert got.flatten().tolist() == [0, 2, 4]
