"""Bodies of loops know nothing of the padding of ragged sequences: rows of these are refused in them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepnet
from stepnet import BackEdge, InputPort, LoDTensor, OutputPort, TensorArray, TensorIterator, sequence_pool
from stepnet.errors import IRError

pytest.importorskip("onnx_ir")
import stepnet.onnx

BACKEND = "naive"


def in_step(value):
    return lambda x, z: stepnet.recurrent(
        lambda a, h: (h, torch.tanh(a + h) * value(x)), z, sequence_pool(x, "sum")
    )


def rows_in_a_step(x, z):
    rows = x.values
    return stepnet.recurrent(lambda a, h: (h, torch.tanh(a + h) * rows.mean()), z, sequence_pool(x, "sum"))


def rows_in_a_frame(x, z):
    steps, out, rows = TensorArray(unstack_from=z), TensorArray(), x.values
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == steps.size())
        out.write(s, torch.tanh(out.read(s - 1, sequence_pool(x, "sum")) + steps.read(s) * rows.mean()))
        loop.update(s, s + 1)
    return out.stack()


def rows_in_a_body(x, z):
    rows = x.values
    loop = TensorIterator(
        lambda part, h: torch.tanh(part[0] + h) * rows.mean(),
        [InputPort("z", "part", axis=0), InputPort("h0", "h"), OutputPort("h", 0)],
        [BackEdge(0, "h")],
    )
    return loop(z, sequence_pool(x, "sum"))[0]


def rows_in_a_while_loop(x, z):
    rows = x.values
    return stepnet.while_loop(
        lambda h, i: i < 3, lambda h, i: (h + rows.mean(), i + 1), (z[0], torch.tensor(0))
    )[0]


def rows_as_a_loop_variable(x, z):
    return stepnet.while_loop(
        lambda h, i: i < 3, lambda h, i: (h - h.mean(0), i + 1), (x.values, z.sum() * 0)
    )[0]


def rows_as_steps(x, z):
    return stepnet.recurrent(lambda a, h: (h, torch.tanh(a + h)), x.values[:, None], torch.zeros(1, 2))[1]


@pytest.mark.parametrize(
    "run",
    [
        in_step(lambda x: x.lengths().max()),
        in_step(lambda x: x.values.mean()),
        in_step(lambda x: x.lod[-1][-1]),
        rows_in_a_step,
        rows_in_a_frame,
        rows_in_a_body,
        rows_in_a_while_loop,
        rows_as_a_loop_variable,
        rows_as_steps,
    ],
)
def test_what_is_ragged_is_refused_in_the_body_of_a_loop(run, tmp_path):
    module = nn.Module()
    module.forward = run
    x, z = LoDTensor.from_lengths(torch.randn(7, 2), [[4, 3]]), torch.randn(5, 2, 2)
    with pytest.raises(IRError, match=r"(rows of ragged sequences|sequences that are an input)") as caught:
        stepnet.onnx.save(module, tmp_path / "m.onnx", (x, z))
    assert "remedy:" in str(caught.value)
