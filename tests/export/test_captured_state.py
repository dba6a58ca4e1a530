"""What a body refers to when it runs is what is written, whatever that is by the time that it is traced."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from file_formats import FORMATS, Applied
from stepnet import recurrent, while_loop
from stepnet.errors import IRError


def bound_anew(x):
    """Steps that are written whole, as they look at all rows; each variable is another one at the end."""
    k, z, out = 2.0, x[1], []

    def scaled(row, h):
        return (row * k).cumsum(0), torch.tanh(row + h)

    out.append(recurrent(scaled, x, x[0] * 0, backend="naive")[0])
    k = 3.0
    out.append(while_loop(lambda i, n: i < 3, lambda i, n: (i + 1, n * k + z), (torch.tensor(0), x[0]))[1])

    def mixed(row, h):
        h = torch.tanh(row + h) + x.mean((0, 1))
        return h.cumsum(0), h

    x, _ = recurrent(mixed, x, x[0] * 0, backend="naive")
    k, z = 5.0, x[0]
    return (*out, x, z)


def an_item(x):
    numbers = [2.0]
    y, _ = recurrent(lambda row, h: ((row * numbers[0]).cumsum(0), h), x, x[0] * 0, backend="naive")
    numbers[0] = 3.0
    return y


def test_what_is_another_by_then_is_refused(tmp_path):
    form, _, file = FORMATS["onnx"]
    with pytest.raises(IRError, match="changed after it ran"):
        form.save(Applied(an_item), tmp_path / file, torch.randn(3, 2, 3))


def one_tensor_that_is_two_in_a_trace(x):
    first, second = x[0], x[1]
    again = torch.dropout(first, 0.5, False)

    def step(row, h):
        return (row * again + first * second).cumsum(0), h

    return (recurrent(step, x, x[0] * 0, backend="naive")[0],)


@pytest.mark.parametrize("run", [bound_anew, one_tensor_that_is_two_in_a_trace])
def test_what_a_body_refers_to(run, tmp_path):
    form, runtime, file = FORMATS["onnx"]
    form.save(Applied(run), tmp_path / file, torch.randn(3, 2, 3))
    x = torch.randn(5, 4, 3)
    for found, want in zip(runtime(tmp_path / file, [x.numpy()]), run(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(np.asarray(found)), want, rtol=1e-4, atol=1e-4)
