"""What only numbers in tensors decide is refused in a file, in the words of this package."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet.errors import IRError

BACKEND = "naive"
W = torch.randn(3, 3)


def frame(x):
    loop = stepnet.create_whileloop([torch.tensor(0), x[0]])
    with loop.frame() as (s, h):
        loop.break_if(s >= x.shape[0])
        loop.update(h, torch.tanh(h @ W + x[s : s + 1].squeeze(0)))
        loop.update(s, s + 1)
    return loop.results[1]


def while_loop(x):
    def body(s, h):
        return s + 1, torch.tanh(h @ W + x[s : s + 1].squeeze(0))

    return stepnet.while_loop(lambda s, h: s < x.shape[0], body, (torch.tensor(0), x[0]))[1]


def truth(x):
    return x + 1 if x.sum() > 0 else x * 2


def squeezed(x):  # to torch's trace no size that is not known is 1
    return x[x.argmax() : x.argmax() + 1].squeeze(0)


@pytest.mark.parametrize("run", [frame, while_loop, truth, squeezed])
def test_what_numbers_decide_is_refused_without_words_of_torch(run, tmp_path, capfd):
    module = nn.Module()
    module.forward = run
    with pytest.raises(IRError, match="numbers in tensors decide") as caught:
        stepnet.onnx.save(module, tmp_path / "m.onnx", torch.randn(4, 3), dynamic={"x": [0]})
    said = str(caught.value) + "".join(capfd.readouterr())
    assert "Could not guard" not in said
    assert "def forward" not in said  # no graph is printed
    if run is not frame:  # whose lines are recorded
        line = run.__code__.co_firstlineno + (2 if run is while_loop else 1)
        assert f"test_told_by_numbers.py:{line})" in str(caught.value).splitlines()[1]
