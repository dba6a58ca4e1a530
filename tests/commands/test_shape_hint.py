"""Sizes that a command made up do not fit the model: the error names the option that gives others."""

from __future__ import annotations

import pytest
import torch

from stepnet import BackEdge, InputPort, OutputPort, TensorIterator

PORTS = [InputPort("x", "x", axis=0, stride=3, part_size=3), InputPort("s", "s"), OutputPort("sum", 0)]
TRIPLES = TensorIterator(lambda x, s: s + x.sum(0), PORTS, [BackEdge(0, "s")])  # 8 rows are not three each


@pytest.mark.parametrize(("format", "other"), [("xml", "onnx"), ("onnx", "xml")])
@pytest.mark.parametrize("command", ["run", "convert", "compare"])
def test_shape_is_named(stepnet, tmp_path, format, other, command):
    if format == "xml":
        from stepnet.openvino import save
    else:
        from stepnet.onnx import save
    model = tmp_path / f"m.{format}"
    save(TRIPLES, model, (torch.zeros(6, 2, 4), torch.zeros(2, 4)))
    last = {"run": ["--random"], "convert": [tmp_path / f"n.{other}"], "compare": ["--rounds", 1]}[command]
    code, _, err = stepnet(command, model, *last)
    assert code == 2
    assert "open sizes of x" in err
    assert "--shape x=" in err
    assert stepnet(command, model, *last, "--shape", "x=9,8,4")[0] == 0
