"""What Python computes of sizes that stay open: written as computed, or for the size of the example alone."""

from __future__ import annotations

import math
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from file_formats import FORMATS, IN_PARTS, in_part
from stepnet import TensorArray, create_whileloop, recurrent
from stepnet.errors import StepnetError
from torch_since import torch_since

since = torch_since("2.13", "its export fixes sizes that are computed with")


def every_other(n):
    table = torch.zeros(n, 5)
    table[:, ::2], table[:, 1::2] = torch.arange(n)[:, None], torch.ones(n, 2)
    return table


def of_sizes(x):
    """x [n, m, 3], n at least 3."""
    n, m = x.shape[:2]
    q, ones = x.transpose(0, 1), torch.ones(n, n)
    return {
        "split": lambda: torch.cat(x.split([2, n - 2])[::-1]),
        "chunk": lambda: torch.cat([part * k for k, part in enumerate(x.chunk(2))]),
        "parts": lambda: torch.cat([part * k for k, part in enumerate(x.tensor_split(3))]),
        "rounded up": lambda: x[: -(-n // 2)],
        "below zero": lambda: x * ((3 - n) // 2) + abs(3 - n) - n % 3 * (-n % 4),
        "powers": lambda: x.sum() * torch.ones(n**2, m),
        "numbers, to Python": lambda: x * (2 if isinstance(n, int) and isinstance(n / 2, float) else 1),
        "length": lambda: x / len(x) + torch.arange(len(x))[:, None, None] * isinstance(len(x), int),
        "ratio": lambda: x * (n / m) + math.ceil(n / 4) - math.floor(n / 4) + round(n / 4),
        "root": lambda: x / n**0.5 * (1 / n) ** 2,
        "of math": lambda: (
            x / math.sqrt(n) + math.isqrt(n) - math.log(m + 1) * math.log(n, 3) + math.log2(n)
            + math.log10(m + 1) * math.log1p(m) + math.exp(-n)
            - math.pow(n, 0.3) * math.fabs(-m) + math.prod(x.shape)
        ),
        "of math, by its own name": lambda: x / sqrt(n),
        "of numpy": lambda: x / np.sqrt(n) + np.log(m + 1) * np.log2(n / 2) - np.exp(-n) * np.ceil(m / 2),
        "classes": lambda: F.one_hot(x.argmax(0), n) * 2,
        "picked": lambda: x.sort(0).values[n // 2] + x.select(0, n - 1) + x.median(0).values,
        "padded": lambda: F.pad(x, (0, 0, 0, 0, 0, -n % 4)) * 2,
        "spaced": lambda: x * torch.linspace(-1, 2, n)[:, None, None] - x.data.mean(0),
        "every other": lambda: every_other(n),
        "filled": lambda: x.new_full((m,), n),
        "rolled": lambda: x.roll(n // 2, 0),
        "backwards": lambda: x[torch.arange(n - 1, -1, -1)] + torch.arange(3 * n, 0, -3)[:, None, None],
        "spread": lambda: torch.stack([x.var((0, 2)), x.std((0, 2)), *torch.var_mean(x, (0, 2))]),
        "causal": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "masked": lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=ones.triu().bool()),
    }  # fmt: skip


class OfSizes(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return tuple(in_part(of_sizes(x), self.part).values())


@since
@pytest.mark.parametrize(("name", "part"), IN_PARTS)
@pytest.mark.usefixtures("one_trace")
def test_computed_from_open_sizes(name, part, tmp_path):
    form, runtime, file = FORMATS[name]
    path = tmp_path / file
    form.save(OfSizes(part), path, torch.randn(6, 2, 3))
    read = form.load(path)
    for n, m in ((9, 3), (7, 1), (4, 2)):
        x = torch.randn(n, m, 3)
        run = [torch.as_tensor(np.asarray(t)) for t in runtime(path, [x.numpy()])]
        for found in (run, read(x)):
            found = list(found.values()) if isinstance(found, dict) else found
            for (what, want), got in zip(in_part(of_sizes(x), part).items(), found, strict=True):
                torch.testing.assert_close(
                    got, want, rtol=1e-4, atol=1e-4, check_dtype=False, msg=lambda m, w=what: f"{w}: {m}"
                )


COUNTED = {
    "int": lambda x: x * int(x.shape[0] / 2),
    "a truth as a number": lambda x: x.sum(0) * (x.shape[0] // 4 + (x.shape[0] % 4 > 0)),
    "truths that are counted": lambda x: x.sum(0) * sum(x.shape[0] > n for n in (2, 4, 8)),
    "range": lambda x: sum(x[i] for i in range(x.shape[0] // 2)),
    "an element": lambda x: [x, x * 2][x.shape[0] % 2],
    "parts": lambda x: torch.stack([part.sum(0) for part in x.split(2)]),
    "an argument": lambda x: F.avg_pool1d(x.t()[None], x.shape[0] // 3),
}


@since
@pytest.mark.parametrize("what", COUNTED)
def test_what_python_counts_by_is_that_of_the_example(what, tmp_path):
    class Counts(nn.Module):
        def forward(self, x):
            return COUNTED[what](x)

    form, _, file = FORMATS["openvino"]
    x = torch.randn(6, 2)
    form.save(Counts(), tmp_path / file, x)
    torch.testing.assert_close(form.load(tmp_path / file)(x)[0], Counts()(x))
    with pytest.raises(StepnetError, match="does not fit"):
        form.load(tmp_path / file)(torch.randn(9, 2))


@since
def test_as_many_rows_as_a_frame_has(tmp_path):
    """The batch stays open, although zeros are made before the loop, and what is cut at a size is one."""

    class Framed(nn.Module):
        def forward(self, x):
            steps, states = TensorArray(unstack_from=x), TensorArray()
            loop = create_whileloop([torch.tensor(0)])
            s: Any
            with loop.frame() as (s,):
                loop.break_if(s >= steps.size())
                row = steps.read(s)
                before = states.read(s - 1, x[0] * 0)[: row.shape[0]]
                states.write(s, torch.tanh(row + before) + torch.zeros(row.shape[0], 3))
                loop.update(s, s + 1)
            return states.stack()

    form, runtime, file = FORMATS["openvino"]
    form.save(Framed(), tmp_path / file, torch.randn(4, 2, 3))
    x = torch.randn(6, 5, 3)
    (found,) = runtime(tmp_path / file, [x.numpy()])
    torch.testing.assert_close(torch.as_tensor(np.asarray(found)), Framed()(x))


@since
def test_a_step_of_two_rows_cut_at_sizes_from_outside(tmp_path):
    class Halves(nn.Module):
        def forward(self, x):
            n, half = x.shape[1], (x.shape[1] + 1) // 2
            x = x.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)

            def step(row, h):
                h = torch.cat([torch.tanh(row[:half] + h[:half] / n), h[half:]])
                return h * n, h

            return recurrent(step, x, torch.zeros(n, 6), backend="naive")[0]  # which tells no refusal

    form, runtime, file = FORMATS["onnx"]
    form.save(Halves(), tmp_path / file, torch.randn(4, 2, 3))  # of two rows a half is one, which torch fixes
    x = torch.randn(6, 5, 3)
    (found,) = runtime(tmp_path / file, [x.numpy()])
    torch.testing.assert_close(torch.as_tensor(np.asarray(found)), Halves()(x))


@since
def test_a_step_asks_for_its_length_beside_other_dimensions_as_long(tmp_path):
    """No dimension of the example is known to be the batch by its size."""

    class Heads(nn.Module):
        def forward(self, x, h):
            def step(x, h):
                return h[torch.arange(len(x))] / len(x), torch.tanh(x + h)

            return recurrent(step, x, h, backend="naive")  # which tells no refusal

    form, runtime, file = FORMATS["onnx"]
    form.save(Heads(), tmp_path / file, (torch.randn(3, 3, 3, 2), torch.randn(3, 3, 2)))
    x, h = torch.randn(5, 4, 3, 2), torch.randn(4, 3, 2)
    for found, want in zip(runtime(tmp_path / file, [x.numpy(), h.numpy()]), Heads()(x, h), strict=True):
        torch.testing.assert_close(torch.as_tensor(np.asarray(found)), want)
