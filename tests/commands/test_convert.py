"""`stepnet convert`: the new files say the same."""

from __future__ import annotations

import numpy as np
import pytest

from stepnet.openvino import load


def outputs(path, folder):
    with np.load(folder / "inputs.npz") as inputs:
        return [value.numpy() for value in load(path)(**{name: inputs[name] for name in inputs.files})]


@pytest.mark.parametrize(
    ("case", "options", "tolerance"),
    [
        ("rnncell_tanh_v10", [], 0),
        ("torch_gru_bi2_seq", ["--unfuse"], 1e-6),
        ("torch_gru_bi2_seq", ["--f16"], 3e-3),
    ],
)
def test_the_answers_stay(stepnet, cases, tmp_path, case, options, tolerance):
    folder, new = cases / "corpus" / case, tmp_path / "new.xml"
    code, out, err = stepnet("convert", folder / "model.xml", new, *options)
    assert (code, err) == (0, "")
    assert out.startswith(f"written: {new}, {new.with_suffix('.bin')}, ")
    assert 'version="11"' in new.read_text()[:200]
    was_fused = 'type="GRUSequence"' in (folder / "model.xml").read_text()
    assert ('type="GRUSequence"' in new.read_text()) == (was_fused and "--unfuse" not in options)
    for ours, theirs in zip(outputs(new, folder), outputs(folder / "model.xml", folder), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    if "--f16" in options:
        sizes = [path.with_suffix(".bin").stat().st_size for path in (new, folder / "model.xml")]
        assert sizes[0] < sizes[1]


def test_it_cannot_be_written(stepnet, cases, tmp_path):
    code, out, err = stepnet(
        "convert", cases / "corpus" / "rnncell_tanh" / "model.xml", tmp_path / "no" / "new.xml"
    )
    assert (code, out) == (2, "")
    assert err.startswith("stepnet: error: ")
