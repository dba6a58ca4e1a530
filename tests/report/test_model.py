"""Whole models: every recurrence that runs is explained, in order, as it runs."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import stepnet
import stepnet.nn
from stepnet.engine.plans import _entries
from stepnet.errors import StepError
from stepnet.report import ModelExplanation, explain
from stepnet.report.text import WIDTH

T, B, I, H = 4, 2, 3, 5
RAGGED = stepnet.LoDTensor.from_lengths(torch.ones(6, I), [[2, 0, 4]])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = stepnet.nn.GRU(I, H, bidirectional=True)
        self.decoder = nn.Sequential(stepnet.Recurrent(stepnet.cells.MinGRU(2 * H, H), reverse=True))
        self.noise = nn.Dropout(0.5)

    def forward(self, x):
        y, _ = self.encoder(self.noise(x))
        y, h = self.decoder(y)
        for _ in range(2):
            y, _ = stepnet.recurrent(total, y, h)
        return y


def total(x, s):
    return s + x, s + x


def test_layers_and_directions_of_an_lstm():
    model = stepnet.nn.LSTM(I, H, num_layers=2, bidirectional=True)
    told = explain(model, RAGGED)
    assert isinstance(told, ModelExplanation)
    names = ["LSTM l0", "LSTM l0_reverse", "LSTM l1", "LSTM l1_reverse"]
    assert [it.name for it in told.recurrences] == names
    assert [it.reverse for it in told.recurrences] == [False, True, False, True]
    assert {(it.steps, it.sequences, it.rows) for it in told.recurrences} == {(4, 3, 6)}
    assert all(it.training for it in told.recurrences)
    weights = [{port.name for port in it.loops[0].enters if port.role == "weight"} for it in told.recurrences]
    for name, found in zip(names, weights, strict=True):
        assert {f"weight_ih_{name[5:]}", f"weight_hh_{name[5:]}"} <= found
    assert told.flops == sum(it.flops for it in told.recurrences) > 0


def test_the_plans_are_those_that_a_run_uses():
    model, x = Tagger().eval(), torch.randn(T, B, I)
    told = explain(model, x)
    before = len(_entries)
    model(x)
    assert len(_entries) == before
    assert {it.executor for it in told.recurrences} <= {"c", "eager"}


def test_recurrences_are_named_by_the_module_that_runs_them():
    told = explain(Tagger(), torch.randn(T, B, I))
    assert [it.name for it in told.recurrences] == [
        "encoder: GRU l0", "encoder: GRU l0_reverse", "decoder.0: MinGRU", "total", "total",
    ]  # fmt: skip
    assert told.recurrences[2].reverse
    assert told.recurrences[2].linear == ("state",)


def test_explaining_draws_no_noise_of_the_callers():
    model = Tagger()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    explain(model, torch.ones(T, B, I))
    assert torch.equal(torch.rand(3), expected)


def test_text():
    told = explain(Tagger(), torch.randn(T, B, I))
    text = str(told)
    assert max(map(len, text.splitlines())) <= WIDTH
    for number, it in enumerate(told.recurrences[:4], 1):
        assert f"{number}  {it}" in text
    assert "5  total: as 4" in text
    assert repr(told) == text


def test_data_is_json():
    told = explain(stepnet.nn.RNN(I, H), RAGGED)
    data = json.loads(json.dumps(told.to_dict()))
    (it,) = told.recurrences
    (one,) = data["recurrences"]
    assert one == json.loads(json.dumps(it.to_dict()))
    assert (data["flops"], one["flops"], one["executor"]) == (it.flops, it.flops, it.executor)
    found = [op["name"] for loop in one["loops"] for region in loop["regions"] for op in region["ops"]]
    assert found == [op.name for op in it.find()]


def test_picture(tmp_path):
    told = explain(Tagger(), torch.randn(T, B, I))
    path = tmp_path / "model.svg"
    drawn = told.to_svg(path)
    assert path.read_text(encoding="utf-8") == drawn
    root = ElementTree.fromstring(drawn)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for number, it in enumerate(told.recurrences, 1):
        assert f"{number}  {it.name}" in texts
    assert texts.count("total") == 1  # the second is the same
    _, _, width, height = map(float, root.get("viewBox").split())
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


def test_a_state_is_the_models_second_argument():
    model = stepnet.nn.LSTM(I, H)
    state = torch.zeros(1, B, H, requires_grad=True), torch.zeros(1, B, H)
    (it,) = explain(model, torch.randn(T, B, I), state).recurrences
    assert "gradient of state[0]" in {port.name for port in it.loops[1].leaves}


def test_a_function_of_x_alone_is_a_model():
    rnn = stepnet.Recurrent(nn.GRUCell(I, H))
    (it,) = explain(lambda x: rnn(x)[0], torch.randn(T, B, I)).recurrences
    assert it.name == "GRUCell"


def test_a_recurrence_inside_a_step_belongs_to_its_step():
    def outer(x, h):
        y, _ = stepnet.recurrent(total, x, torch.zeros(len(x.lengths()), I))
        h = h + stepnet.sequence_pool(y, "sum")
        return h, h

    def model(x):
        return stepnet.recurrent(outer, x, torch.zeros(2, I), level=0)

    x = stepnet.LoDTensor.from_lengths(torch.ones(6, I), [[2, 1], [2, 1, 3]])
    assert [it.name for it in explain(model, x).recurrences] == ["outer"]


def test_packed_sequences():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, I), torch.ones(1, I)])
    (it,) = explain(stepnet.nn.RNN(I, H), packed).recurrences
    assert (it.steps, it.shortest, it.rows) == (3, 1, 4)


def test_what_meets_no_recurrence():
    with pytest.raises(StepError, match="met no recurrence"):
        explain(nn.Linear(I, H), torch.ones(T, B, I))


def test_settings_of_a_recurrence_are_not_the_models():
    with pytest.raises(StepError, match="have their own reverse, backend"):
        explain(stepnet.nn.RNN(I, H), RAGGED, reverse=True, backend="c")


def test_a_failing_model_fails_as_itself_and_leaves_nothing_watched():
    def model(x):
        stepnet.recurrent(total, x, torch.zeros(B, I))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        explain(model, torch.ones(T, B, I))
    stepnet.recurrent(total, torch.ones(T, B, I), torch.zeros(B, I))
    with pytest.raises(KeyError, match="mine"):
        explain(model, torch.ones(T, B, I))
