"""Nodes that are one run of a plan, called as that run: with what is fed and read now, whatever is around."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import stepnet
from covering import few
from stepnet.file_model import recording
from threads import at_once
from ways_of_calling import as_nodes

pytest.importorskip("onnx_ir")
import stepnet.onnx


class KnownAndOwn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.own = stepnet.nn.LSTM(4, 3), stepnet.Recurrent(stepnet.cells.MinGRU(3, 3))

    def forward(self, x, h, c):
        y, (h, c) = self.known(x, (h, c))
        return self.own(y, h[0])[0], h, c


@pytest.fixture
def runs(monkeypatch):
    """How often a node was the run of a plan."""
    ran, replayed = [], recording.replayed

    def counted(node, *given):
        run = replayed(node, *given)

        def call(arguments):
            ran.append(run is not node)
            return run(arguments)

        return call

    monkeypatch.setattr(recording, "replayed", counted)
    return ran


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    stepnet.onnx.save(KnownAndOwn().eval(), tmp_path / "m.onnx", given())
    return stepnet.onnx.load(tmp_path / "m.onnx")


def given(steps=4, batch=5):  # of fewer sequences it is part of a line of small calls
    return torch.randn(steps, batch, 4), *torch.randn(2, 1, batch, 3)


def check(model, values):
    with torch.no_grad():
        found = model(*values)
        stepnet.set_backend("naive")
        expected = as_nodes(model, values)
        stepnet.set_backend("auto")
    torch.testing.assert_close([*found], [*expected], rtol=1e-5, atol=1e-6)
    return found


def test_of_other_numbers_and_sizes(model, runs):
    for sizes in ((4, 5), (4, 5), (5, 6), (4, 5), (5, 6), (5, 6), (4, 5), (4, 5), (4, 5), (4, 5)):
        for result in check(model, given(*sizes)):
            result.fill_(9.0)  # it is the caller's
    assert runs == [True] * 2 * 6
    assert not any(loop.compiled for loop in model.loops), "ran by the plain loop last"
    model(*given())
    assert all(loop.compiled for loop in model.loops)


def halved(value):
    return value * 0.5 if value.is_floating_point() else value.clone()


CHANGES = {
    "in place": lambda model: [value.copy_(halved(value)) for value in model.buffers()],
    "unseen": lambda model: [value.data.copy_(halved(value)) for value in model.buffers()],
    "elsewhere": lambda model: [setattr(value, "data", halved(value)) for value in model.buffers()],
    "others": lambda model: model.load_state_dict(
        {name: halved(value) for name, value in model.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize(
    "change", few(CHANGES.values(), [CHANGES["in place"], CHANGES["unseen"]]), ids=CHANGES
)
def test_of_weights_that_change(model, runs, change):
    values = given()
    before = [check(model, values)[0] for _ in range(7)][-1]
    change(model)
    for _ in range(7):
        assert not torch.allclose(check(model, values)[0], before)
    assert len(runs) >= 20
    assert all(runs)


def test_of_what_lies_otherwise(model):
    values = given()
    expected = [*[check(model, values) for _ in range(4)][-1]]
    turned = tuple(torch._neg_view(-value) for value in values)  # pyright: ignore[reportPrivateImportUsage]
    wide = tuple(value.repeat_interleave(2, -1)[..., ::2] for value in values)
    for inputs in (values, turned, wide) * 2:
        torch.testing.assert_close([*check(model, inputs)], expected)


@pytest.mark.exhaustive
def test_of_what_is_around(model, runs):
    values = given()
    expected = [*[check(model, values) for _ in range(7)][-1]]
    stepnet.set_backend("naive")
    torch.testing.assert_close([*model(*values)], expected)
    stepnet.set_backend("auto")
    assert not any(loop.compiled for loop in model.loops)
    for _ in range(3):
        with torch.inference_mode():
            torch.testing.assert_close([*model(*values)], expected)
        x = values[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x, *values[1:])[0].sum(), x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(values[0], torch.ones_like(values[0]))
            tangent = forward_ad.unpack_dual(model(dual, *values[1:])[0]).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent.sum(), slope.sum())
    found = at_once(lambda _: model(*values)[0])
    assert all(torch.allclose(one, expected[0]) for one in found)
    assert True in runs
    assert False in runs, "calls that gradients go through are no such runs"
