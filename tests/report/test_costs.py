"""Costs against counts made by hand, and kept memory against what autograd really saves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet import cells
from stepnet.data.tree import flatten
from stepnet.report import explain

I, H, T, B = 3, 5, 7, 2
N = T * B
W = nn.Parameter(torch.randn(I, 4 * H))
U = nn.Parameter(torch.randn(H, 4 * H))


def lstm(x, state):
    """An LSTM without biases, so that no addition can move."""
    h, c = state
    i, f, g, o = (x @ W + h @ U).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, (h, c)


def zeros(n=B):
    return torch.zeros(n, H), torch.zeros(n, H)


MATMULS = 2 * I * 4 * H + 2 * H * 4 * H
POINTWISE = 4 * H + 5 * 10 * H + 4 * H  # x @ W + h @ U; five of sigmoid and tanh; 3 products and a sum


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_flops_of_an_lstm(backend):
    forward, backward = explain(lstm, torch.randn(T, B, I), zeros(), backend=backend).loops
    assert forward.flops == N * (MATMULS + POINTWISE)
    found = {
        forward.origin(op.inputs[1]): (op.flops, op.contracts) for r in forward.regions for op in r.matmuls
    }
    assert found == {"W": (N * 2 * I * 4 * H, I), "U": (N * 2 * H * 4 * H, H)}
    # backward: the gradients of W and U over all rows, the gradient of h; x needs none
    flops = sorted(op.flops for region in backward.regions for op in region.matmuls)
    assert flops == sorted([N * 2 * I * 4 * H, N * 2 * H * 4 * H, N * 2 * 4 * H * H])


def test_flops_of_the_plain_loop_are_those_of_the_plan():
    x = torch.randn(T, B, I)
    plain = explain(lstm, x, zeros(), backend="naive")
    assert plain.flops == N * (MATMULS + POINTWISE)
    (region,) = plain.regions
    assert (region.kind, region.runs, region.per_step) == ("loop", T, True)
    assert [op.name for op in region.matmuls] == ["matmul", "matmul"]


def test_flops_and_bytes_follow_the_rows():
    ragged = stepnet.LoDTensor.from_lengths(torch.randn(9, I), [[4, 0, 5]])
    told = explain(lstm, ragged, zeros(3))
    assert told.loops[0].flops == 9 * (MATMULS + POINTWISE)
    told = explain(lstm, ragged, zeros(3), backend="eager")
    (region,) = [r for r in told.loops[0].regions if r.kind == "map"]
    assert region.bytes_read == 4 * (9 * I + I * 4 * H)
    assert region.bytes_written == 4 * 9 * 4 * H


def test_flops_of_the_gradient_of_what_is_made_once_for_each_sequence():
    def step(x, h, static):
        h = torch.tanh((static @ U[:, :H]).sum(1) + h)
        return h, h

    memory = torch.randn(B, T, H, requires_grad=True)
    _, backward = explain(step, torch.randn(T, B, I), torch.zeros(B, H), static=memory).loops
    (region,) = [r for r in backward.regions if r.kind == "sequences"]
    assert [op.flops for op in region.matmuls] == [B * 2 * T * H * H] * 2


def test_bytes_of_a_scan_count_initial_and_final_states_once_a_sequence():
    with torch.no_grad():
        told = explain(lstm, torch.randn(T, B, I), zeros(), backend="eager")
    (scan,) = [r for r in told.regions if r.kind == "scan"]
    assert scan.bytes_read == 4 * (N * 4 * H + H * 4 * H + B * 2 * H)  # gates, U, initial h and c
    assert scan.bytes_written == 4 * (N * H + B * 2 * H)  # y, final h and c


def test_a_prologue_costs_once():
    scale = nn.Parameter(torch.randn(H))

    def step(x, h):
        h = torch.tanh(h * torch.exp(scale) + x)
        return h, h

    prologue = explain(step, torch.randn(T, B, H), torch.zeros(B, H)).regions[0]
    assert (prologue.kind, prologue.flops, prologue.bytes_read) == ("prologue", 10 * H, 4 * H)


def saved_by_autograd(step, x, state):
    """Bytes that autograd keeps besides the caller's tensors and the results."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        y, final = stepnet.recurrent(step, x, state)
    weights = step.parameters() if isinstance(step, nn.Module) else (W, U)
    known = {t.data_ptr() for t in (x, y, *flatten(state)[0], *flatten(final)[0], *weights)}
    return sum(t.numel() * t.element_size() for place, t in kept.items() if place not in known)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (lstm, zeros()),
        (cells.LSTM(I, H), zeros()),
        (cells.LayerNormLSTM(I, H), zeros()),
        (cells.GRU(I, H), torch.zeros(B, H)),
        (cells.MinGRU(I, H), torch.zeros(B, H)),
    ],
    ids=["lstm", "LSTM", "LayerNormLSTM", "GRU", "MinGRU"],
)
@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_what_is_kept_is_what_autograd_saves(step, state, backend, monkeypatch):
    monkeypatch.setattr("stepnet.executors.setting._default", backend)
    x = torch.randn(T, B, I)
    told = explain(step, x, state)
    assert told.saved_bytes > 0
    assert told.saved_bytes == saved_by_autograd(step, x, state)


def test_places_of_the_largest_are_kept():
    """To look for them again takes as long as in forward."""

    moves = torch.randn(4, 4, requires_grad=True)

    def viterbi(emitted, scores):
        best, place = (scores.unsqueeze(2) + moves + emitted.unsqueeze(1)).max(1)
        return place, best

    told = explain(viterbi, torch.randn(5, 3, 4), torch.randn(3, 4, requires_grad=True), backend="eager")
    assert told.find("argmax", direction="forward")
    assert not told.find("argmax", direction="backward")
