"""What tests of ONNX files share: a file is checked, run by ONNX Runtime, and held against the module."""

from __future__ import annotations

import warnings

import pytest
import torch

from saved_modules import LENGTHS, plain_loops
from stepnet import LoDTensor
from stepnet.data.outputs import Outputs
from stepnet.data.tree import flatten

SIZES = ((1, 1), (7, 5))  # steps and sequences


class Written:
    """An ONNX file, and what ONNX Runtime makes of it."""

    def __init__(self, path):
        onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
        self.model = onnx.load(path)
        onnx.checker.check_model(str(path), full_check=True)
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # others spin while they wait
        self.session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        import stepnet.onnx

        self.read = stepnet.onnx.load(path)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    @property
    def types(self):
        """The types of the graph's nodes."""
        return [node.op_type for node in self.model.graph.node]

    @property
    def bodies(self):
        """The types of the nodes of each loop's body."""
        graphs = [a.g for node in self.model.graph.node for a in node.attribute if a.name == "body"]
        return [[node.op_type for node in graph.node] for graph in graphs]

    def __call__(self, *values):
        feeds = {name: value.numpy() for name, value in zip(self.inputs, values, strict=True)}
        found = [torch.from_numpy(out.copy()) for out in self.session.run(None, feeds)]
        with torch.no_grad(), plain_loops():
            again = self.read(*values)
        for a, b in zip(again, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        return found


def results(module, example):
    with torch.no_grad(), plain_loops(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = module(*example)
    return list(out.tuple()) if isinstance(out, Outputs) else flatten(out)[0]


def padded(value, fill):
    if not isinstance(value, LoDTensor):
        return value
    return value.to_padded(fill if value.values.is_floating_point() else 0)[0]


@pytest.fixture
def opened():
    """What opens an ONNX file in ONNX Runtime, and here."""
    return Written


@pytest.fixture
def check(tmp_path):
    """Write a module on the example `make(4, 3)` and compare it at other sizes; what was written."""
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    def check(module, make, *, sizes=SIZES, tolerance=1e-5, **options):
        torch.manual_seed(0)
        if isinstance(module, torch.nn.Module):
            module.eval()
        stepnet.onnx.save(module, tmp_path / "m.onnx", make(4, 3), **options)
        written = Written(tmp_path / "m.onnx")
        for steps, batch in sizes:
            example = make(steps, batch)
            expected, found = results(module, example), written(*flatten(example)[0])
            for a, b, name in zip(found, expected, written.outputs, strict=True):
                torch.testing.assert_close(
                    a, b, rtol=tolerance, atol=tolerance, equal_nan=True, msg=f"{name}: {{}}".format
                )
        return written

    return check


@pytest.fixture
def check_ragged(tmp_path):
    """Write a module on ragged sequences and compare it on padded ones; the padding is NaN."""
    pytest.importorskip("onnx_ir")
    import stepnet.onnx

    def check(module, make):
        torch.manual_seed(0)
        stepnet.onnx.save(module.eval(), tmp_path / "m.onnx", make([4, 2, 3]))
        written = Written(tmp_path / "m.onnx")
        for lengths in LENGTHS:
            example = make(lengths)
            expected = [padded(value, 0.0) for value in results(module, example)]
            inputs = [padded(value, float("nan")) for value in flatten(example)[0]]
            for a, b in zip(written(*inputs, torch.tensor(lengths)), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        return written

    return check
