"""Loops that do not end on the example that a module is saved or explained with."""

from __future__ import annotations

import pytest
import torch

import stepnet
from file_formats import Applied
from stepnet import TensorArray, create_whileloop, recurrent, watchers, while_loop
from stepnet.errors import StepnetError


def frame(x, written):
    array, loop = TensorArray(), create_whileloop(loop_vars=[torch.tensor(0), x])
    with loop.frame() as (step, h):
        loop.break_if(step < 0)
        if written:
            array.write(step, h)
        loop.update(step, step + 1)
        loop.update(h, h * 0.5)
    return array.stack() if written else loop.results[1]


def halved(x):
    return while_loop(lambda h: h.sum() > -1, lambda h: (h * 0.5,), (x,))[0]


def in_a_step(x, h):
    return (h + halved(x),) * 2


ENDLESS = {
    "the same again": lambda x: while_loop(lambda h: h.sum() > 0, lambda h: (h + 0,), (x,)),
    "a count": lambda x: while_loop(lambda i, h: i >= 0, lambda i, h: (i + 1, h), (torch.tensor(0), x)),
    "each row": lambda x: while_loop(lambda h: h.sum(1) > -1, lambda h: (h * 0.5,), (x,)),
    "a frame": lambda x: frame(x, False),
    "an array": lambda x: frame(x, True),
    "in a step": lambda x: recurrent(in_a_step, x, x[0] * 0),
}


WAYS = {
    "openvino": lambda module, x, folder: stepnet.openvino.save(module, folder / "m.xml", (x,)),
    "onnx": lambda module, x, folder: stepnet.onnx.save(module, folder / "m.onnx", (x,)),
    "explain": lambda module, x, folder: stepnet.explain(module, x),
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(watchers, "_FEW", 12)


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_end_is_an_error(case, way, tmp_path):
    module, x = Applied(ENDLESS[case]), torch.ones(2, 3, 3)
    x = x if case == "in a step" else x[0]
    with pytest.raises(StepnetError, match="has not ended after 12 steps on an example"):
        WAYS[way](module, x, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["openvino", "onnx"])
def test_what_says_how_long_it_is_may_be_longer(way, tmp_path):
    def counted(x):
        return while_loop(
            lambda i, h: i < 30, lambda i, h: (i + 1, h + x), (torch.tensor(0), x), max_steps=40
        )

    path = tmp_path / f"m.{'onnx' if way == 'onnx' else 'xml'}"
    WAYS[way](Applied(counted), torch.ones(2), tmp_path)
    found = list(getattr(stepnet, way).load(path)(torch.ones(2)))
    torch.testing.assert_close(found, list(counted(torch.ones(2))))
    assert watchers.most_steps() is None
