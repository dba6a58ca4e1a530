"""Loops that run like one before: what they compute follows all that is fed, and who asks is answered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ir_files import Net, edge, sliced
from stepnet import explain
from stepnet.engine.plans import forget
from stepnet.executors.setting import set_backend
from stepnet.iterator import rows
from stepnet.openvino import load

BACKEND = "auto"


@pytest.fixture
def replays(monkeypatch):
    """How often a loop ran like one before."""
    ran = []

    class Counted(rows.Replay):
        def run(self, fed):
            out = super().run(fed)
            ran.append(out is not None)
            return out

    class Noting(rows.Noting):
        def replay(self, fed, outputs):
            found = super().replay(fed, outputs)
            return None if found is None else Counted(*found)

    monkeypatch.setattr(rows, "Noting", Noting)
    return ran


@pytest.fixture
def model(tmp_path):
    """new = tanh(x W + h) and h + g; y joins the first."""
    net, weights = Net(), np.random.default_rng(0).standard_normal((3, 3)).astype("f4")
    x, h, g = net.parameter("x", "?,?,3"), net.parameter("h", "?,1,3"), net.parameter("g", "?,1,3")
    body = net.body()
    part, old, other = (body.parameter(n, "?,1,3") for n in ("part", "old", "other"))
    product = body.add("MatMul", [part, body.const(weights)])
    new = body.add("Tanh", [body.add("Add", [product, old])])
    states = body.result(new), body.result(body.add("Add", [old, other]))
    port_map = sliced("input", 0, 0, axis=1) + sliced("input", 1, 1) + sliced("input", 2, 2)
    port_map += sliced("output", 3, states[0], axis=1) + sliced("output", 4, states[1])
    edges = edge(states[0], 1) + edge(states[1], 2)
    at, _ = net.loop(body, [x, h, g], port_map, edges, outputs=["FP32", "FP32"])
    net.result((at, 3), "y")
    net.result((at, 4), "last")
    return load(net.write(tmp_path))


def given(seed, batch=2, steps=4):
    torch.manual_seed(seed)
    return torch.randn(batch, steps, 3), torch.randn(batch, 1, 3), torch.randn(batch, 1, 3)


def same(model, inputs):
    with torch.no_grad():
        found = [t.clone() for t in model(*inputs)]
        set_backend("naive")
        expected = [*model(*inputs)]
        set_backend("auto")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    return found


def test_of_other_numbers(model, replays):
    for seed in range(4):
        same(model, given(seed))
    assert replays == [True] * 3
    assert model.loops[0].reason == "the backend is 'naive'"
    with torch.no_grad():
        model(*given(0))
    assert model.loops[0].compiled


def test_of_weights_that_change(model, replays):
    inputs, (name,) = given(0), model.state_dict()
    before = same(model, inputs)[0]
    weights = model.get_buffer(name)
    weights.mul_(2)
    assert not torch.equal(same(model, inputs)[0], before)
    weights.data.add_(1)
    same(model, inputs)
    model.get_submodule("layers.bodies.3").register_buffer(name.split(".")[-1], weights.double().float() - 1)
    same(model, inputs)
    assert replays == [True] * 3


def test_of_one_tensor_twice_and_of_two(model, replays):
    x, h, g = given(0)
    for states in ((h, h), (h, g), (h, h), (g, h)):
        same(model, (x, *states))
    assert replays == [True] * 2  # the second call of each of the two kinds


def test_of_memory_that_lies_otherwise(model, replays):
    x, h, g = given(0, batch=3)
    wide = torch.randn(3, 4, 9)
    for table in (x, x.transpose(0, 1).contiguous().transpose(0, 1), wide[..., 3:6], wide[..., :3], x):
        same(model, (table, h, g))
    both = torch.randn(3, 2, 3)
    same(model, (x, both[:, :1], both[:, 1:]))  # states in one table
    same(model, (x[:, :1], h, g))
    assert any(replays)


def test_results_are_the_callers(model, replays):
    inputs = given(0)
    with torch.no_grad():
        first = [*model(*inputs)]
        kept = [t.clone() for t in first]
        second = [*model(*inputs)]
    assert replays == [True]
    for t in second:
        t.zero_()
    assert all(map(torch.equal, first, kept))
    assert all(map(torch.equal, given(0), inputs))


def test_gradients_and_modes(model, replays):
    inputs = given(0)
    same(model, inputs)
    x = inputs[0].clone().requires_grad_()
    model(x, *inputs[1:])[0].sum().backward()
    assert x.grad.abs().sum() > 0
    with torch.no_grad():  # which looks at what needs a gradient, too
        model(x, *inputs[1:])
    assert not replays
    with torch.inference_mode():
        for _ in range(2):
            model(*inputs)
    assert replays == [True]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        low = model(*inputs)[0]
    assert not torch.equal(low, same(model, inputs)[0])
    grads = torch.func.grad(lambda x: model(x, *inputs[1:])[0].sum())(inputs[0])
    torch.testing.assert_close(grads, x.grad)


def test_forgotten_and_watched(model, replays):
    inputs = given(0)
    same(model, inputs)
    forget()
    same(model, inputs)
    assert replays == [False]
    assert "tanh" in str(explain(model, inputs))
    assert replays == [False]
    same(model, inputs)
    assert replays == [False, True]
