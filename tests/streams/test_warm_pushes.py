"""One stream, frame after frame: a push like the one before takes what that found out, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet import Recurrent, cells, stream
from stepnet.errors import StreamError
from stepnet.streams import streams
from torch_since import TOLD

F, H = 2, 3


def frames(live, x, id=0):
    return torch.cat([live.push({id: row})[id] for row in x.split(1)])


def whole(net, x):
    with torch.no_grad():
        return net(x[:, None])[0][:, 0]


def in_front(net):
    """A stream whose next frame is like the one before, and what it was pushed."""
    live, x = stream(net), torch.randn(12, F)
    live.open(0)
    frames(live, x)
    return live, x


@pytest.fixture
def net():
    return Recurrent(cells.GRU(F, H), backend="c")


@TOLD
@pytest.mark.parametrize("layers", [1, 2])
def test_what_is_known_is_not_found_out(layers, monkeypatch):
    net = stepnet.nn.LSTM(F, H, num_layers=layers)
    live, x = in_front(net)
    more = torch.randn(4, F)
    with monkeypatch.context() as patch:
        patch.setattr(streams, "joined", None)
        y = frames(live, more)
    torch.testing.assert_close(y, whole(net, torch.cat([x, more]))[12:])
    assert not y.requires_grad


def closed(live, x):
    live.close(0)
    live.open(0)
    return x[:0]


def reset(live, x):
    live.reset(0)
    return x[:0]


def another(live, x):
    live.push({live.open("other"): torch.ones(1, F)})
    return x


def both(live, x):
    live.open("other")
    rows = torch.randn(1, F)
    live.push({0: rows, "other": rows})
    return torch.cat([x, rows])


def longer(live, x):
    rows = torch.randn(3, F)
    live.push({0: rows})
    return torch.cat([x, rows])


def loaded(live, x):
    state = live.state_dict()
    live.push({0: torch.ones(1, F)})
    live.load_state_dict(state)
    return x


def failed(live, x):
    for wrong in (torch.zeros(1, F + 1), torch.zeros(1, F, dtype=torch.int64), torch.zeros(()), None):
        with pytest.raises((stepnet.errors.StepnetError, RuntimeError)):
            live.push({0: wrong})
    return x


def other_rows(live, x):
    rows = torch.randn(4, F)
    kinds = [rows[:1].requires_grad_(), rows[1:2].clone().t().contiguous().t(), rows[2:3]]
    for row in kinds:
        live.push({0: row})
    with torch.inference_mode():
        live.push({0: rows[3:].clone()})
    return torch.cat([x, rows.detach()])


@pytest.mark.parametrize(
    "event", [closed, reset, another, both, longer, loaded, failed, other_rows], ids=lambda e: e.__name__
)
def test_what_happens_between_two_frames(event, net):
    live, x = in_front(net)
    x = event(live, x)
    more = torch.randn(5, F)
    torch.testing.assert_close(frames(live, more), whole(net, torch.cat([x, more]))[len(x) :])


def test_a_module_that_changes(net):
    live, x = in_front(net)
    more = torch.randn(3, F)
    handle = net.register_forward_hook(lambda module, x, out: (out[0] * 2, out[1]))
    twice = 2 * whole(Recurrent(net.step), torch.cat([x, more]))[12:]
    torch.testing.assert_close(frames(live, more), twice)
    handle.remove()
    live.reset(0)
    frames(live, x)
    net.step = cells.GRU(F, H)
    with torch.no_grad():
        first = whole(net, more)
    live.reset(0)
    torch.testing.assert_close(frames(live, more), first)
    net.reverse = True
    with pytest.raises(StreamError, match="backwards"):
        live.push({0: more[:1]})


def test_outputs_and_states_are_apart(net):
    live, x = in_front(net)
    more = torch.randn(4, F)
    for row in more.clone().split(1):
        live.push({0: row})[0].fill_(7.0)
        row.fill_(7.0)
    torch.testing.assert_close(live.push({0: x[:1]})[0], whole(net, torch.cat([x, more, x[:1]]))[16:])


def test_noise_is_drawn_once_a_frame():
    net = Recurrent(Noisy(), backend="eager").train()
    live = stream(net)
    live.open(0)
    rows = torch.ones(1, F)
    for _ in range(8):
        torch.manual_seed(0)
        live.push({0: rows})
        here = torch.get_rng_state()
        torch.manual_seed(0)
        net(rows[:, None])
        assert torch.equal(here, torch.get_rng_state())


class Noisy(nn.Module):
    def forward(self, x, s):
        s = s * 0.5 + x * torch.rand_like(x)
        return s, s

    def initial_state(self, n):
        return torch.zeros(n, F)
