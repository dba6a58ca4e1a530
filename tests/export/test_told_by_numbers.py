"""What only numbers in tensors decide is refused in a file, in the words of this package."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet.errors import IRError

BACKEND = "naive"
W = torch.randn(3, 3)
GENERATOR = torch.Generator()


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


def crossed(x):  # of three rows torch takes the first dimension
    return torch.cross(x, x.flip(1))


@pytest.mark.filterwarnings("ignore:Using torch.cross without specifying")
@pytest.mark.parametrize("run", [frame, while_loop, truth, squeezed, crossed])
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


def by_row(x, h):
    h = stepnet.while_loop(lambda h: h[:, 0] > 1, lambda h: (h / 2,), (h + x,))[0]
    return h, h


def by_all(x, h):
    h = h / 2 if bool((h > 5).all()) else h + x
    return h, h


def noisy(x, h):
    h = h + torch.rand(h.shape, generator=GENERATOR)
    return h, h


@pytest.mark.parametrize(
    ("step", "why", "remedy"),
    [
        (by_row, "numbers of its rows decide", "torch.where"),
        (by_all, "numbers of its rows decide", "torch.where"),
        (noisy, "draws random numbers", "what is drawn as an input"),
    ],
)
def test_why_a_step_is_not_written_over_ragged_sequences(step, why, remedy, tmp_path):
    x = stepnet.LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])

    class Model(nn.Module):
        def forward(self, x):
            return stepnet.recurrent(step, x, torch.zeros(len(x), 3))[0]

    with pytest.raises(IRError, match=why) as caught:
        stepnet.onnx.save(Model().eval(), tmp_path / "m.onnx", x)
    assert remedy in str(caught.value)
    assert str(caught.value).count("remedy:") == 1


@pytest.mark.parametrize("where", ["state", "pooled"])
def test_a_fixed_number_of_sequences_is_told_as_such(where, tmp_path):
    class Model(nn.Module):
        def forward(self, x):
            if where == "pooled":
                return torch.cat([stepnet.sequence_pool(x, "sum"), torch.zeros(2, 3)], 1)
            return stepnet.recurrent(lambda x, h: (x + h, x + h), x, torch.zeros(2, 3))[0]

    x = stepnet.LoDTensor.from_lengths(torch.randn(5, 3), [[2, 3]])
    with pytest.raises(IRError, match="repeated to 101") as caught:
        stepnet.onnx.save(Model(), tmp_path / "m.onnx", x)
    assert "len(x)" in str(caught.value)
