"""Models with right answers: written by OpenVINO or by hand, old spellings, forms OpenVINO gets wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from covering import few
from stepnet.errors import IRError
from stepnet.executors.setting import set_backend
from stepnet.openvino import load
from ways_of_calling import called

CASES = Path(__file__).parent / "cases"
GOOD = [p for kind in ("corpus", "disputed", "legacy") for p in sorted((CASES / kind).iterdir())]
REFUSED = {"back_edge_to_sliced_parameter"}  # ambiguous: two sources for one Parameter
COMPILED = [  # one of each form that the compiler takes
    "attention_decoder", "lstmcell_v4_reverse_time_major", "part2_rev", "lstm_layernorm",
    "slice_fwd_concat_rev", "start1_end_minus2", "torch_crnn_seq", "lstmsequence_seqlens_dynamic",
    "onnx_gru_seqlens_ti", "onnx_lstm_reverse_ti", "onnx_loop_for", "loop_trip_count_v10", "three_states_v10",
    "no_slice_count_from_output", "slice_axis_last_concat_axis0", "back_edges_fibonacci", "dtype_bool_u8",
]  # fmt: skip


def check(folder: Path, model=None):
    model = load(folder / "model.xml") if model is None else model
    case = json.loads((folder / "case.json").read_text())
    for i in range(case["n_input_sets"]):
        tail = f"_{i}" if i else ""
        with (
            np.load(folder / f"inputs{tail}.npz") as inputs,
            np.load(folder / f"outputs{tail}.npz") as outputs,
        ):
            named = {name: inputs[name] for name in inputs.files}
            expected = [outputs[f"out{k}"] for k in range(len(outputs.files))]
        values = [torch.from_numpy(np.array(named[name])) for name in case["inputs"]]
        for found in (model(**named), *called(model, values)):
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected, strict=True):
                assert tuple(ours.shape) == theirs.shape
                np.testing.assert_allclose(
                    ours.detach().double().numpy(),
                    theirs.astype(np.float64),
                    atol=case["atol"],
                    rtol=case["rtol"],
                )
    return model


READ = [p for p in GOOD if p.name not in REFUSED]
ALONE = [p for p in READ if p.name not in COMPILED]


@pytest.mark.parametrize("folder", few(READ, ALONE[::3]), ids=lambda p: p.name)
def test_right_answers(folder):
    set_backend("naive")
    check(folder)


@pytest.mark.parametrize("name", few(COMPILED, [*COMPILED][::3]))
def test_right_answers_compiled(name):
    model = check(next(p for p in GOOD if p.name == name))
    assert model.loops
    assert all(report.compiled for report in model.loops), model.explain()


def test_gradients_of_a_compiled_loop_are_those_of_the_plain_one():
    folder = CASES / "corpus" / "lstm_layernorm"
    found = []
    for name in ("naive", "auto"):
        set_backend(name)
        model = load(folder / "model.xml", trainable=True).double()
        with np.load(folder / "inputs.npz") as inputs:
            given = [torch.from_numpy(inputs[s.name]).double().requires_grad_() for s in model.inputs]
        total = sum(((i + 1) * y * y).sum() for i, y in enumerate(model(*given)))
        wanted = [*given, *model.parameters()]
        found.append(torch.autograd.grad(total, wanted, allow_unused=True))
        assert model.loops[0].compiled == (name == "auto")
    assert len(found[0]) > 10
    for plain, compiled in zip(*found, strict=True):
        if plain is None:
            assert compiled is None or not compiled.any()
        else:
            torch.testing.assert_close(plain, compiled, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_ambiguous_forms_are_refused(name):
    with pytest.raises(
        IRError, match=r"back edge.*Parameter 0 gets slices from its port_map and cannot be carried"
    ):
        load(CASES / "disputed" / name / "model.xml")
