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


def doubled(x):
    while x.sum() > 0:
        x = x * 1.0
    return x


def goes_on(x):
    return x.sum() > 0


def asked_by_another(x, h):
    while goes_on(x):
        x = x * 1.0
    return (x + h,) * 2


IN_PYTHON = {"a while": doubled, "in a step": lambda x: recurrent(asked_by_another, x[None], x * 0)}


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


@pytest.mark.parametrize("case", IN_PYTHON)
def test_a_while_of_python_that_does_not_end_is_an_error(case, tmp_path):
    with pytest.raises(StepnetError, match=r"while .*: it has asked tensors 120 times whether to go on"):
        WAYS["onnx"](Applied(IN_PYTHON[case]), torch.ones(2, 3), tmp_path)


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
