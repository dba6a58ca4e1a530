"""`stepnet compare`: our answers beside OpenVINO's, or beside an engine that stands for it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from stepnet.commands import versus


def test_without_openvino(stepnet, cases, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    code, out, err = stepnet("compare", cases / "corpus" / "dynamic_batch_time" / "model.xml")
    assert (code, out) == (2, "")
    assert "remedy: pip install openvino" in err


@pytest.fixture
def engine(cases, monkeypatch):
    """An engine that gives the right answers of a case, changed as a test wants it."""

    def install(case, change=lambda array: array):
        folder = cases / "corpus" / case
        with np.load(folder / "outputs.npz") as file:
            answers = [change(file[name].copy()) for name in file.files]
        monkeypatch.setattr(versus, "_openvino", lambda *_: ((lambda inputs: answers), "0.0"))
        return ["compare", folder / "model.xml", "--input", folder / "inputs.npz", "--rounds", 2]

    return install


def first_is(value):
    def change(array):
        array.reshape(-1)[0] = value
        return array

    return change


@pytest.mark.parametrize("case", ["lstmcell_v4", "dtype_bool_u8"])
def test_equal_answers(stepnet, engine, case):
    code, out, err = stepnet(*engine(case))
    assert (code, err) == (0, "")
    assert "agrees" in out
    assert "DIFFERS" not in out
    assert "2 runs each in turns" in out


@pytest.mark.parametrize("value", [7.0, np.nan, np.inf])
def test_one_number_differs(stepnet, engine, value):
    command = engine("lstmcell_v4", first_is(value))
    code, out, _ = stepnet(*command)
    assert code == 1
    assert out.count("DIFFERS") == 3
    found = json.loads(stepnet(*command, "--json").out)
    assert found["agree"] is False
    assert [row["agree"] for row in found["outputs"]] == [False] * 3
    size = found["outputs"][0]["absolute"]
    assert (6 < size < 8) if value == 7 else size is None


def test_tolerances(stepnet, engine):
    command = engine("lstmcell_v4", lambda array: array * np.float32(1.001))
    assert stepnet(*command).code == 1
    assert stepnet(*command, "--rtol", 0.01).code == 0
    assert stepnet(*command, "--rtol", 0, "--atol", 0.1).code == 0


def test_half_precision_may_differ_more(stepnet, engine):
    command = engine("dtype_f16", lambda array: (array * 1.004).astype(array.dtype))
    assert stepnet(*command).code == 0
    assert stepnet(*command, "--rtol", 1e-4).code == 1


def test_other_shapes_differ(stepnet, engine):
    code, out, _ = stepnet(*engine("lstmcell_v4", lambda array: array[:1]))
    assert code == 1
    assert "shapes differ" in out


@pytest.mark.parametrize("kind", [np.nan, np.inf, -np.inf])
def test_equal_values_that_are_no_numbers_agree(kind):
    both = np.array([kind, 1.0], np.float32)
    assert versus._difference("y", both, both.copy(), 0.0, 0.0).agree


def test_openvino_itself(stepnet, cases):
    pytest.importorskip("openvino")
    code, out, _ = stepnet("compare", cases / "corpus" / "lstm_layernorm" / "model.xml", "--rounds", 2)
    assert code == 0, out
    assert "OpenVINO 20" in out
    code, out, _ = stepnet("compare", cases / "disputed" / "rec_add" / "model.xml", "--rounds", 1)
    assert code == 1  # OpenVINO's CPU plugin overwrites the state


def test_inputs_that_are_no_numbers(stepnet, engine, tmp_path):
    command = engine("lstmcell_v4")
    with np.load(command[3]) as file:
        name = file.files[0]
        np.savez(tmp_path / "text.npz", **{**file, name: np.array(["a"])})
    command[3] = tmp_path / "text.npz"
    code, out, err = stepnet(*command)
    assert (code, out) == (2, "")
    assert f"input '{name}' is of a type that torch has none for (got: <U1; expected: " in err
