"""Every case: read, saved, read again, the same answers; and in OpenVINO where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from covering import every, few
from ir_cases import GOOD, answers, case, check, settings
from stepnet.openvino import convert, load, save

# A layer that OpenVINO runs wrongly, and that is saved as it is.
WRONG_THERE = {"lstmsequence_seqlens_dynamic"}
IN_OPENVINO = [
    "lstmcell_v4_reverse_time_major", "loop_while", "torch_lstm_dyn_ti_v10", "two_slices_opposite",
    "ti_in_loop", "torch_gru_bi2_seq", "dtype_f16", "one_tensor_two_ports", "positive_end_static_concat",
    "rec_add", "rec_elman_hoisted", "start1_end_minus2", "start2_part2_dynamic", "start_minus3_reverse",
    "shifted_port_ids", "lstmcell_v1_icof", "lstmcell_v1_iofc",
]  # fmt: skip


BACKEND = "naive"


@pytest.mark.parametrize("folder", few(GOOD, [*GOOD][::5]), ids=lambda p: p.name)
def test_a_saved_model_gives_the_same_answers(folder, tmp_path):
    model = load(folder / "model.xml")
    save(model, tmp_path / "saved.xml")
    again = load(tmp_path / "saved.xml")
    assert list(map(str, again.inputs)) == list(map(str, model.inputs))
    assert [o.name for o in again.outputs] == [o.name for o in model.outputs]
    assert again.rt_info == model.rt_info
    assert again.graph.net.version == 11
    check(folder, again)


@pytest.mark.parametrize("name", few(IN_OPENVINO, [*IN_OPENVINO][::4]))
def test_openvino_gives_the_right_answers_for_a_saved_model(name, tmp_path):
    openvino = pytest.importorskip("openvino")
    folder = case(name)
    save(load(folder / "model.xml"), tmp_path / "saved.xml")
    _check_there(openvino, folder, tmp_path / "saved.xml")


@pytest.mark.parametrize(
    "name", every(3, [*sorted(WRONG_THERE), "torch_lstm_bi2_sequence", "onnx_rnn_bi_seq"])
)
def test_openvino_gives_the_right_answers_for_sequences_as_cells(name, tmp_path):
    openvino = pytest.importorskip("openvino")
    convert(case(name) / "model.xml", tmp_path / "cells.xml", unfuse=True)
    _check_there(openvino, case(name), tmp_path / "cells.xml")


def _check_there(openvino, folder, path):
    limits = settings(folder)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    for named, expected in answers(folder):
        found = compiled([named[name] for name in limits["inputs"]])
        for k, right in enumerate(expected):
            np.testing.assert_allclose(
                np.asarray(found[k], np.float64), right.astype(np.float64), limits["rtol"], limits["atol"]
            )


def test_inputs_and_outputs_have_names_that_openvino_finds(tmp_path):
    openvino = pytest.importorskip("openvino")
    folder = case("three_states_v10")
    model = load(folder / "model.xml")
    save(model, tmp_path / "saved.xml")
    read = openvino.Core().read_model(tmp_path / "saved.xml")
    assert [i.any_name for i in read.inputs] == [i.name for i in model.inputs]
    for ours, theirs in zip(model.outputs, read.outputs, strict=True):
        assert ours.name in theirs.names
        assert any("TensorIterator" in name for name in theirs.names)
