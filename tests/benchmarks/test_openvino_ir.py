"""The benchmark of models in OpenVINO IR: both sides compute the same, and ours is compiled."""

from __future__ import annotations

import json

import pytest
import torch

from covering import few

pytest.importorskip("openvino")

from benchmarks.harness import Row, check_values
from benchmarks.report import Outcome, as_json
from benchmarks.stats import Spread

from benchmarks import openvino_ir, page
from stepnet.openvino import load, save

models, twins = openvino_ir._import("ir_models"), openvino_ir._import("ir_twins")


@pytest.mark.exhaustive  # a run of the benchmark refuses what differs
def test_both_compute_what_the_plain_loop_in_float64_does():
    names = []
    for case in openvino_ir.cases(quick=True):
        assert check_values(case) is None, case.name
        assert case.contenders.keys() == {"stepnet", "openvino"}
        names.append(case.facts["work"])
    assert names == list(models.WORKS)


@pytest.mark.exhaustive  # as above; what a body holds is in tests/openvino/test_save_structure.py
def test_what_stepnet_writes_computes_the_same_and_has_less_in_its_body(tmp_path):
    names = []
    for case in openvino_ir.written_cases(quick=True):
        assert check_values(case) is None, case.name
        names.append(case.facts["work"])
    assert names == list(twins.TWINS)
    (size,) = models.SMALL
    for name in names:
        weights = models.Weights(size)
        whole = load(models.write(models.WORKS[name], size, tmp_path, weights))
        inputs = tuple(torch.from_numpy(v) for v in models.inputs(models.WORKS[name], size).values())
        save(twins.Twin(twins.TWINS[name](weights.drawn)), tmp_path / "ours.xml", inputs)
        ours = load(tmp_path / "ours.xml")
        found, before = _body_types(ours), _body_types(whole)
        if name == "LSTM":
            assert "LSTMCell" in found
        elif name == "attention GRU":  # of h for the query, the context, and the two of the GRU
            assert (before.count("MatMul"), before.count("GRUCell")) == (3, 1)
            assert found.count("MatMul") == 4
        else:
            assert (before.count("MatMul"), found.count("MatMul")) == (2, 1)


def _body_types(model):
    return [layer.type for outer in model.graph.net.layers.values() for body in outer.bodies.values()
            for layer in body.layers.values()]  # fmt: skip


@pytest.mark.parametrize("name", few(models.WORKS, [*models.WORKS][:1]))
def test_every_model_has_one_loop_and_it_is_compiled(name, tmp_path):
    work, (size,) = models.WORKS[name], models.SMALL
    model = load(models.write(work, size, tmp_path))
    feeds = models.inputs(work, size)
    assert {socket.name for socket in model.inputs} == feeds.keys()
    model(**feeds)
    assert [report.compiled for report in model.loops] == [True], model.explain()


def test_the_page_shows_ratios_by_batch_size():
    rows = [
        Row(
            f"LSTM {size}",
            "stepnet",
            {"work": "LSTM", "title": "LSTM from primitives", **size._asdict(), "goal": 2.0},
            rounds=3,
            times={"stepnet": Spread.of([0.001]), "openvino": Spread.of([0.003])},
            ratios={"openvino": Spread.of([size.B * 3.0])},
        )
        for size in models.SIZES
    ]
    assert openvino_ir.findings(rows)["rows that reach their goal"] == 2
    record = json.loads(as_json([Outcome(openvino_ir.TOPICS[0], rows, {})], quick=False))
    lines = page.measured(record).splitlines()
    assert lines[-1] == "| LSTM from primitives | **3**, 3.0 : 1.0 | **96**, 3.0 : 1.0 |"
    assert "T=100, H=256" in lines[0]
