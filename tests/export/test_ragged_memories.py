"""What steps see of a ragged memory (`static=`): padded, with a mask, of any length in what is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from file_formats import FORMATS
from stepnet import LoDTensor, Memory, Scope, dynamic_recurrent, recurrent
from stepnet.errors import IRError

BACKEND = "naive"

pytestmark = pytest.mark.exhaustive  # each is traced three times
EXAMPLE = [4, 3, 2], [3, 6, 2]
OTHERS = [([1], [1]), ([5, 1, 0, 7], [9, 1, 20, 0])]


class Attends(nn.Module):
    """A decoder that gives its attention, over what an encoder made of a source; or by a stepnet."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.encoder, self.cell = nn.GRUCell(2, 4), nn.GRUCell(7, 4)
        self.key, self.query, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4))

    def step(self, x, h, memory):
        scores = torch.tanh(self.key(memory.rows) + self.query(h)[:, None]) @ self.v
        shares = torch.softmax(scores.masked_fill(~memory.mask, -1e9), 1) * memory.mask
        h = self.cell(torch.cat([x, (shares[..., None] * memory.rows).sum(1)], 1), h)
        return (h, shares), h

    def forward(self, x, source):
        memory, h = recurrent(self.encoder, source)
        if self.kind != "a stepnet":
            reverse = self.kind == "backwards"
            (y, shares), last = recurrent(self.step, x, h, static=memory, reverse=reverse)
            return y, last, shares
        scope = Scope({"x": x, "m": memory, "boot": h})
        init = Memory("h", "before", init="boot")
        last = dynamic_recurrent(
            self.on_scopes, scope, ["x"], ["h"], [init], static_inputs=["m"], padded=["m"]
        )
        return scope["h"], last["h"]

    def on_scopes(self, scope):
        scope["h"] = self.step(scope["x"], scope["before"], scope["m"])[1]


def sequences(lengths, features):
    return LoDTensor.from_lengths(torch.randn(sum(lengths), features), [lengths])


def given(kind, targets, sources):
    dense = kind == "dense steps"
    x = torch.randn(max(targets), len(targets), 3) if dense else sequences(targets, 3)
    return x, sequences(sources, 2)


def arrays(values):
    """The inputs of a file: padded by numbers that nothing may read, and lengths."""
    tables = [v.to_padded(float("nan"))[0] if isinstance(v, LoDTensor) else v for v in values]
    return [*tables, *(v.lengths() for v in values if isinstance(v, LoDTensor))]


KINDS = ["forwards", "backwards", "a stepnet", "dense steps"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_any_length(kind, format, tmp_path):
    package, runtime, name = FORMATS[format]
    module = Attends(kind).eval()
    package.save(module, tmp_path / name, given(kind, *EXAMPLE))
    read = package.load(tmp_path / name)
    for lengths in OTHERS:
        values = given(kind, *lengths)
        with torch.no_grad():
            wanted = module(*values)
            found = (
                [*read(*arrays(values)).tuple()],
                runtime(tmp_path / name, [*map(np.asarray, arrays(values))]),
            )
        for one in found:
            for a, b in zip(one, wanted, strict=True):
                padded = b.to_padded()[0] if isinstance(b, LoDTensor) else b
                a = torch.as_tensor(a)[tuple(map(slice, padded.shape))]
                shown = padded[tuple(map(slice, a.shape))]  # a file's memory is as long as it is given
                torch.testing.assert_close(a, shown, rtol=1e-5, atol=1e-5)


def test_what_is_of_one_length_is_refused(tmp_path):
    package, _, name = FORMATS["onnx"]
    weight = torch.randn(8 * 2, 3)

    def module(x, source):
        return recurrent(lambda r, s, m: (r + m.rows.flatten(1) @ weight, s), x, (), static=source)[0]

    with pytest.raises(IRError, match=r"ragged memories of any length: .* became 8"):
        package.save(as_module(module), tmp_path / name, given("", *EXAMPLE))


def as_module(function):
    module = nn.Module()
    module.forward = function
    return module
