"""What a module keeps of its calls in attributes: saving starts from what they were, and leaves them so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from file_formats import FORMATS
from stepnet import recurrent
from stepnet.errors import IRError

BACKEND = "naive"


def smooth(x, h):
    h = (h + x) * 0.5
    return h, h


class Keeps(nn.Module):
    """Makes things at its first call, counts, and lets its last state be seen."""

    def __init__(self):
        super().__init__()
        self.mean, self.count, self.seen = None, 0, {}
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean()
        self.count += 1
        self.last = x[-1]
        y, self.seen["h"] = recurrent(smooth, x * self.last, x[0], backend="naive")
        return y + self.mean


class Carries(nn.Module):
    def __init__(self, register):
        super().__init__()
        (self.register_buffer if register else self.__setattr__)("h", torch.zeros(4))

    def forward(self, x):
        y, h = recurrent(smooth, x, self.h.expand(x.shape[1], 4), backend="naive")
        self.h = h.mean(0)
        return y


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return recurrent(smooth, x, x[0], backend="naive")[0] / self.calls


def test_a_call_sees_nothing_of_the_example(tmp_path):
    package, run, name = FORMATS["onnx"]
    module = Keeps()
    package.save(module, tmp_path / name, torch.randn(3, 2, 4))
    assert (module.mean, module.count, module.seen) == (None, 0, {})
    assert not module.last.any()
    x = torch.randn(5, 3, 4)
    (found,) = run(tmp_path / name, [x.numpy()])
    torch.testing.assert_close(torch.from_numpy(found), module(x))


@pytest.mark.parametrize("register", [True, False])
def test_what_the_next_call_would_start_from_is_refused(register, tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match="for its next call\n  got:      h\n"):
        package.save(Carries(register), tmp_path / name, torch.randn(3, 2, 4))


def test_so_is_a_number_that_it_counts(tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match="keeps for its next call\n  got:      calls\n"):
        package.save(Counts(), tmp_path / name, torch.randn(3, 2, 4))


class Parts(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.layer = norm, torch.compile(nn.Linear(4, 4), backend="eager")

    def forward(self, x):
        return recurrent(smooth, self.norm(self.layer(x).mT).mT, x[0], backend="naive")[0]


class Grows(nn.Linear):
    def forward(self, x):
        self.weight.data.add_(1.0)
        return super().forward(x)


def test_a_weight_that_a_call_changes_is_told(tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match=r"changes buffers or weights(?s:.*)got: .*weight"):
        package.save(Grows(4, 4), tmp_path / name, torch.randn(2, 4))


def test_buffers_stay_and_parts_that_torch_compiles_are_what_they_were(tmp_path):
    package, run, name = FORMATS["onnx"]
    module, x = Parts(nn.BatchNorm1d(4)), torch.randn(3, 2, 4)
    with pytest.raises(IRError, match="changes buffers or weights"):
        package.save(module, tmp_path / name, x)
    assert not module.norm.running_mean.any()
    module.eval()
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        package.save(torch.compile(module, backend="eager"), tmp_path / name, x)
    assert module.layer.forward != module.layer._orig_mod.__call__
    (found,) = run(tmp_path / name, [x.numpy()])
    plain = Parts(module.norm)
    plain.layer = module.layer._orig_mod
    torch.testing.assert_close(torch.from_numpy(found), plain.eval()(x))
