"""Exported programs follow the autocast around their run, or that which `forward` enters."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn.utils.rnn import pack_sequence

from stepnet import LoDTensor, recurrent, sequence_pool
from stepnet import nn as snn
from stepnet.errors import StepError

from .models import leaves_of

ANY = Dim.AUTO


def autocast(on: bool | None) -> Any:
    return contextlib.nullcontext() if on is None else torch.autocast("cpu", torch.bfloat16, enabled=on)


def text(**way: Any) -> str:
    """A step that is a product of its rows with a matrix."""
    eye = {"constant": torch.eye(3).tolist(), "dtype": "float32"}
    linear = {"call": "aten.linear.default", "args": [{"value": 0}, {"value": 1}], "named": {}}
    form = {
        "way": {"name": "s", "autocast": None, **way}, "counts": [1, 0, 0, 0], "y": [[[3], "float32", False]],
        "calls": [None, eye, linear], "results": [2],
    }  # fmt: skip
    return f"recurrence {json.dumps(form)}"


@pytest.mark.parametrize(
    ("way", "under", "on"),
    [
        ({}, torch.bfloat16, torch.float32),
        ({"autocast": []}, torch.float32, torch.float32),
        ({"autocast": [["cpu", "bfloat16"]]}, torch.bfloat16, torch.bfloat16),
        ({"rounded": [True]}, torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_a_text_under_autocast_and_outside(way: dict[str, Any], under: torch.dtype, on: torch.dtype) -> None:
    x, what = torch.randn(4, 2, 3), text(**way)
    for cast, dtype in ((True, under), (False, on)):
        with autocast(cast):
            (y,) = torch.ops.stepnet.run.default([x], [], what)
        torch.testing.assert_close(y, x.bfloat16().to(dtype) if dtype == torch.bfloat16 else x)


def test_a_text_that_rounds_what_it_has_not() -> None:
    for rounded in ([1], [True, False]):
        with pytest.raises(StepError, match="cannot read"):
            torch.ops.stepnet.run.default([torch.zeros(2, 1, 3)], [], text(rounded=rounded))


class Dense(nn.Module):
    """Layers of torch around a module; or a step of its own."""

    def __init__(self, kind: Callable[..., Any] | None, inside: bool | None) -> None:
        super().__init__()
        self.first, self.last, self.inside = nn.Linear(3, 4), nn.Linear(8, 2), inside
        self.rnn = None if kind is None else kind(4, 4, bidirectional=True)
        self.x, self.h = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            y = self.x(x) + self.h(h)
            return y, torch.tanh(y)

        with autocast(self.inside):
            x = self.first(x)
            if self.rnn is None:
                y, last = recurrent(step, x, x.new_zeros(x.shape[1], 8))
            else:
                y, last = self.rnn(x)
            return self.last(y), y, last


class Ragged(nn.Module):
    def __init__(self, inside: bool | None) -> None:
        super().__init__()
        self.lstm, self.gru, self.inside = snn.LSTM(3, 4, num_layers=2), snn.GRU(4, 4), inside

    def forward(self, rows: Tensor, offsets: Tensor) -> Any:
        with autocast(self.inside):
            y, last = self.lstm(LoDTensor(rows, [offsets]))
            y, _ = self.gru(y)
            return sequence_pool(y, "max"), y.values, last


@pytest.mark.exhaustive
@pytest.mark.parametrize("inside", [None, True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "own", "ragged"])
def test_exported_and_run_outside_and_under_autocast(kind: str, inside: bool | None) -> None:
    model = Ragged(inside) if kind == "ragged" else Dense(getattr(snn, kind, None), inside)
    if kind == "ragged":
        args, sizes = (torch.randn(7, 3), torch.tensor([0, 2, 2, 7])), ({0: ANY}, {0: ANY})
    else:
        args, sizes = (torch.randn(5, 2, 3),), ({0: ANY, 1: ANY},)
    for exported, run in itertools.product((False, True), (False, True)):
        if kind == "RNN" and inside is None and exported and not run:
            continue  # its step has in it the type that its state had in the export
        with autocast(exported):
            program = export(model, args, dynamic_shapes=sizes)
        module = program.module()
        with autocast(run):
            expected, found = leaves_of(model(*args)), leaves_of(module(*args))
        torch.testing.assert_close(found, expected)
        of = dict(model.named_parameters())
        names, weights = zip(*module.named_parameters(), strict=True)
        losses = [torch.stack([t.float().sum() for t in results]).sum() for results in (found, expected)]
        got, wanted = (
            torch.autograd.grad(loss, given, allow_unused=True)
            for loss, given in zip(losses, (weights, [of[name] for name in names]), strict=True)
        )
        # what an RNN carries back is rounded at other places of the two: each is as near to float32
        bits = 0.05 if kind == "RNN" and run else None
        torch.testing.assert_close(got, wanted, rtol=bits, atol=bits)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
def test_casts_stand_in_what_is_decomposed_under_autocast() -> None:
    model, x = Dense(snn.LSTM, True), torch.randn(5, 2, 3)
    program = export(model, (x,), dynamic_shapes=({0: ANY, 1: ANY},)).run_decompositions()
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
def test_a_packed_sequence_goes_into_a_program() -> None:
    model, x = snn.GRU(3, 4), pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    program, expected, file = export(model, (x,)), model(x), io.BytesIO()
    torch.export.save(program, file)
    for found in (program.module()(x), torch.export.load(io.BytesIO(file.getvalue())).module()(x)):
        torch.testing.assert_close(found[0].data, expected[0].data)
        torch.testing.assert_close(found[1], expected[1])
