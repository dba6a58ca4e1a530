"""What a module keeps of its calls in attributes: saving starts from what they were, and leaves them so."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from covering import few
from file_formats import FORMATS
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, recurrent
from stepnet.errors import IRError, TapeError
from stepnet.layers import Dense, Integer, auc, classification_cost, data, fc
from stepnet.tape import Tape

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


def scaled(number, x, h):
    return h * number, x + h


COUNTED = {
    "beside the steps": lambda y, calls: y / calls,
    "a tensor": lambda y, calls: y * torch.tensor(float(calls)),
    "an array": lambda y, calls: y * torch.from_numpy(np.array([calls], np.float32)),
    "in a step": lambda y, calls: recurrent(partial(scaled, calls), y, y[0])[0],
    "half in a step": lambda y, calls: recurrent(partial(scaled, calls / 2), y, y[0])[0],
    "a tensor in a step": lambda y, calls: recurrent(partial(scaled, torch.tensor(calls)), y, y[0])[0],
}


class Counts(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.calls, self.use = 0, use

    def forward(self, x):
        self.calls += 1
        return self.use(recurrent(smooth, x, x[0], backend="naive")[0], self.calls)


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


@pytest.mark.parametrize("use", COUNTED)
def test_so_is_a_number_that_it_counts(use, tmp_path):
    package, _, name = FORMATS["onnx"]
    with pytest.raises(IRError, match="keeps for its next call\n  got:      calls\n"):
        package.save(Counts(COUNTED[use]), tmp_path / name, torch.randn(3, 2, 4))


COUNTS = {"outside": 0}


class Settings:
    gain = 1


class CountsInStep(nn.Module):
    """Its step reads what each call changes: of its own, of an object, of a dict, or outside of it."""

    def __init__(self, read):
        super().__init__()
        self.calls, self.seen, self.settings, self.read = 0, [0], Settings(), read

    def step(self, x, h):
        h = torch.tanh(x * self.read(self) + h)
        return h, h

    def forward(self, x):
        self.calls += 1
        self.settings.gain += 1
        self.seen.append(self.calls)
        COUNTS["outside"] += 1
        return recurrent(self.step, x, x[0], backend="naive")[0]


READ = {
    "its own": lambda own: own.calls,
    "what follows": lambda own: 1.0 if own.calls < 2 else 3.0,
    "a length": lambda own: len(own.seen),
    "an object's": lambda own: own.settings.gain,
    "outside": lambda own: COUNTS["outside"],
}


@pytest.mark.parametrize("format", few(list(FORMATS), ["onnx"]))
@pytest.mark.parametrize("read", READ)
def test_so_is_one_that_its_step_reads(format, read, tmp_path):
    package, _, name = FORMATS[format]
    with pytest.raises(
        IRError, match=r"the recurrence of step 'step'.*keeps for its next call\n  got:      calls"
    ):
        package.save(CountsInStep(READ[read]), tmp_path / name, torch.randn(3, 2, 4))


class CountsBeside(Counts):
    def step(self, x, h):
        h = torch.tanh(x + h * self.rate)
        return h, h

    def forward(self, x):
        self.calls += 1
        return self.use(recurrent(self.step, x, x[0])[0], self)


@pytest.mark.parametrize("in_closure", [False, True])
def test_one_that_nothing_reads_does_no_harm(in_closure, tmp_path):
    package, run, name = FORMATS["onnx"]
    module, x = CountsBeside(lambda y, own: y), torch.randn(5, 3, 4)
    module.rate = 0.5
    if in_closure:
        module.use = lambda y, own: recurrent(lambda x, h: (h, x + h * own.rate), y, y[0])[0]
    package.save(module, tmp_path / name, torch.randn(3, 2, 4))
    (found,) = run(tmp_path / name, [x.numpy()])
    torch.testing.assert_close(torch.from_numpy(found), module(x))


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


class Leaves(nn.Module):
    """Its steps leave what they never read: in an attribute, and in an RNN op."""

    def __init__(self):
        super().__init__()
        self.layer, self.left = nn.Linear(1, 1), None
        self.op = RecurrentOp(self.net, ["x"], ["h"], [Memory("h", "before", init="boot")])

    def net(self, step):
        step["h"] = torch.tanh(self.layer(step["x"]) + step["before"])

    def step(self, x, h):
        scope = Scope({"x": x.mT.unsqueeze(2), "boot": h})
        self.op.run(scope)
        self.left = scope["h"][-1]
        return self.left, self.left

    def forward(self, x):
        return recurrent(self.step, x, x.values.new_zeros(len(x), 1))[0]


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
def test_what_steps_leave_is_in_no_file(tmp_path):
    package, run, name = FORMATS["onnx"]
    module = Leaves()
    package.save(module, tmp_path / name, LoDTensor.from_sequences([torch.randn(n, 3) for n in (2, 4)]))
    assert (module.left, len(module.op.scopes), module.op.last) == (None, 0, {})
    x = LoDTensor.from_sequences([torch.randn(n, 3) for n in (1, 5, 2)])
    padded, lengths = x.to_padded()
    (found,) = run(tmp_path / name, [padded.numpy(), lengths.numpy()])
    expected = module(x).to_padded()[0].detach()
    rows = torch.arange(5) < lengths[:, None]
    torch.testing.assert_close(torch.from_numpy(found)[rows], expected[rows])


class Measured(nn.Module):
    """Returns what a topology gives: outputs, and the metrics so far."""

    def __init__(self, topology):
        super().__init__()
        self.topology = topology

    def forward(self, x, label):
        return self.topology(x=x, label=label)


def test_metrics_are_in_no_file(tmp_path):
    package, run, name = FORMATS["onnx"]
    with Tape() as tape:
        scores, label = fc(data("x", Dense(4)), 2), data("label", Integer(2))
        cost = classification_cost(scores, label)
        seen = auc(scores, label, name="seen")
        behind = scores * 2
    module = Measured(tape.topology({"scores": behind, "cost": cost}))
    x, label = torch.randn(3, 4), torch.tensor([0, 1, 1])
    module(x, label)
    before = module.topology.metrics()["seen"]
    package.save(module, tmp_path / name, (x, label))
    assert module.topology.metrics()["seen"] == before
    x, label = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])
    expected, _ = module(x, label)
    for found, value in zip(run(tmp_path / name, [x.numpy(), label.numpy()]), expected.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), value.detach())
    with pytest.raises(TapeError, match=r"evaluators are not exported, and \['seen'\]"):
        package.save(Measured(tape.topology([cost, seen])), tmp_path / name, (x, label))
