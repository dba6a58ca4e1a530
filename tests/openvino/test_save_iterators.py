"""TensorIterators built by hand, alone and in modules, written as what they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet.openvino
from saved_modules import check, loops
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator
from stepnet.errors import IRError

BACKEND = "auto"


def _body(x_t, h):
    h = torch.tanh(0.5 * h + x_t.squeeze(1))
    return h, h.unsqueeze(1)


def _loop(**cut):
    return TensorIterator(
        _body,
        [InputPort("x", "x_t", axis=1, **cut), InputPort("h0", "h"), OutputPort("y", 1, axis=1, **cut),
         OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )  # fmt: skip


def _inputs(t, b):
    return torch.randn(b, t, 3), torch.randn(b, 3)


@pytest.mark.exhaustive  # as the others, from the first step to the last
def test_a_loop(tmp_path):
    model = check(_loop(), _inputs, tmp_path / "m.xml")
    assert [i.name for i in model.inputs] == ["x", "h0"]
    assert [o.name for o in model.outputs] == ["y", "h"]


def test_a_loop_backwards(tmp_path):
    check(_loop(start=-1, end=0, stride=-1), _inputs, tmp_path / "m.xml")


def test_blocks_of_two_from_the_second_step_on(tmp_path):
    def body(pair, h):
        h = h + pair.sum(0, keepdim=True)
        return {"h": h, "rows": pair * h}

    loop = TensorIterator(
        body,
        [InputPort("x", "pair", axis=0, start=1, stride=2, part_size=2), InputPort("h0", "h"),
         OutputPort("h", "h"), OutputPort("rows", "rows", axis=0, stride=2, part_size=2)],
        [BackEdge("h", "h")],
    )  # fmt: skip
    sizes = ((5, 3), (3, 1), (9, 2))
    check(
        loop,
        lambda t, b: (torch.randn(2 * t + 1, b, 3), torch.randn(1, b, 3)),
        tmp_path / "m.xml",
        sizes=sizes,
    )


def test_a_state_that_grows_is_refused(tmp_path):
    """The body is traced for one shape: OpenVINO and ONNX Runtime refused the files."""

    def body(x, h):
        return torch.cat([h, x], 1)

    loop = TensorIterator(
        body, [InputPort("x", "x", axis=1), InputPort("h0", "h"), OutputPort("h", 0)], [BackEdge(0, "h")]
    )
    told = (
        r"its state 'h' changes its shape .*\n.*\[2, 1, 3\], then \[2, 2, 3\]\n.*one shape\n.*an output with"
    )
    with pytest.raises(IRError, match=told):
        stepnet.openvino.save(loop, tmp_path / "m.xml", (torch.randn(2, 4, 3), torch.randn(2, 1, 3)))


class _Module(nn.Module):
    """A loop between layers, whose body reads a module's weights and a value of the call."""

    def __init__(self):
        super().__init__()
        self.before, self.cell, self.after = nn.Linear(3, 4), nn.GRUCell(4, 4), nn.Linear(4, 2)

    def forward(self, x, h):
        gain = torch.sigmoid(x.mean(1))

        def body(x_t, h):
            h = self.cell(x_t.squeeze(1), h)
            return h, (h * gain.sum(1, keepdim=True)).unsqueeze(1)

        loop = TensorIterator(
            body,
            [InputPort("x", "x_t", axis=1), InputPort("h0", "h"), OutputPort("y", 1, axis=1)],
            [BackEdge(0, "h")],
            backend="naive",
        )
        (y,) = loop(self.before(x), h)
        return self.after(y)


@pytest.mark.exhaustive
def test_a_loop_inside_a_module(tmp_path):
    def make(t, b):
        return torch.randn(b, t, 3), torch.randn(b, 4)

    assert len(loops(check(_Module(), make, tmp_path / "m.xml"))) == 1
