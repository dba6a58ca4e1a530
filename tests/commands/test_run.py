"""`stepnet run`: inputs from files or random, outputs to a file, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest

from covering import every
from ir_files import Net

CASES = Path(__file__).parent.parent / "openvino" / "cases"
MODEL = CASES / "corpus" / "dynamic_batch_time"


@pytest.mark.parametrize("case", ["lstmcell_v4", "dtype_bool_u8", "loop_while", "torch_crnn_seq"])
def test_right_answers_from_an_npz(stepnet, tmp_path, case):
    folder, output = CASES / "corpus" / case, tmp_path / "out.npz"
    code, out, err = stepnet(
        "run", folder / "model.xml", "--input", folder / "inputs.npz", "--output", output
    )
    assert (code, err) == (0, "")
    assert re.search(r"first run .* ms .*, second .* ms", out)
    with np.load(output, allow_pickle=False) as found, np.load(folder / "outputs.npz") as expected:
        assert len(found.files) == len(expected.files)
        for ours, theirs in zip(found.files, expected.files, strict=True):
            assert found[ours].dtype == expected[theirs].dtype
            np.testing.assert_allclose(found[ours], expected[theirs], rtol=1e-4, atol=1e-5)
            assert ours in out


def test_inputs_from_files_of_their_own(stepnet, tmp_path):
    x, a = np.ones((3, 4, 2), np.float32), np.zeros((3, 1, 2), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "a=1.npy", a)
    out = tmp_path / "out.npz"
    files = ("--input", f"X={tmp_path / 'x.npy'}", "--input", f"a0={tmp_path / 'a=1.npy'}")
    assert stepnet("run", MODEL / "model.xml", *files, "--output", out).code == 0
    with np.load(out) as found:
        assert [found[name].shape for name in found.files] == [(3, 4, 2), (3, 1, 2)]


def test_the_rest_may_be_random(stepnet, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 4, 2), np.float32))
    given = ("--input", f"X={tmp_path / 'x.npy'}", "--shape", "a0=3,1,2")
    code, _, err = stepnet("run", MODEL / "model.xml", *given)
    assert code == 2
    assert "input 'a0' is not given (expected: a0: float32[?, 1, 2]; remedy: --input a0=FILE.npy" in err
    results = []
    for seed in (1, 1, 2):
        out = tmp_path / "out.npz"
        assert (
            stepnet("run", MODEL / "model.xml", *given, "--random", "--seed", seed, "--output", out).code == 0
        )
        with np.load(out) as found:
            results.append(found[found.files[1]])
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


@pytest.mark.parametrize("case", ["torch_crnn_seq", "torch_gru_bi2_seq", "dtype_bool_u8", "onnx_loop_for"])
def test_random_inputs_fit_what_weights_ask_for(stepnet, case):
    """Files of torch leave every dimension open; no shape is given here."""
    assert stepnet("run", CASES / "corpus" / case / "model.xml", "--random").code == 0


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "good.npy", np.zeros((3, 4, 2), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((3, 4, 2)))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", X=np.array([{}], dtype=object))
    np.savez(tmp_path / "both.npz", X=np.zeros((3, 4, 2), np.float32), other=np.zeros(1))
    np.savez(tmp_path / "X.npz", X=np.zeros((3, 4, 2), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps([1, 2]))
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "empty.npy").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.npy")
    whole = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-8])
    (tmp_path / "odd.npy").write_bytes(whole.replace(b"(3, 4, 2)", b"(3,4,1<<6"))
    huge = b"(3, 4, 2000000000000), }"
    (tmp_path / "huge.npy").write_bytes(whole.replace(b"(3, 4, 2), }".ljust(len(huge)), huge))
    large = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (3, 4, 10**9)}
    np.lib.format.write_array_header_1_0(large, header)
    (tmp_path / "large.npy").write_bytes(large.getvalue() + bytes(16))
    for name, method in {"stored": ZIP_STORED, "deflated": ZIP_DEFLATED, "odd": ZIP_BZIP2}.items():
        with ZipFile(tmp_path / f"{name}.npz", "w", method) as file:
            file.writestr("X.npy", large.getvalue() + bytes(16))
    with ZipFile(tmp_path / "unknown.npz", "w") as file:
        file.writestr("Z.npy", large.getvalue())
    return tmp_path


@pytest.mark.parametrize(
    ("given", "says"),
    every(
        3,
        [
            ("X=objects.npy", "objects.npy holds Python objects, which are never loaded"),
            ("objects.npz", "objects.npz: 'X' holds Python objects, which are never loaded"),
            ("X=pickled.npy", "pickled.npy holds Python objects, which are never loaded"),
            ("X=text.npy", "text.npy"),
            ("text.npz", "text.npz"),
            ("X=empty.npy", "empty.npy cannot be read"),
            ("X=short.npy", "short.npy cannot be read"),
            ("X=odd.npy", "odd.npy cannot be read"),
            ("X=huge.npy", "huge.npy cannot be read"),
            ("X=large.npy", "large.npy cannot be read: it promises 48000000000 bytes"),
            ("stored.npz", "stored.npz: 'X' cannot be read: it promises 48000000000 bytes"),
            ("deflated.npz", "deflated.npz: 'X' cannot be read: it promises 48000000000 bytes"),
            ("odd.npz", "odd.npz: 'X' cannot be read: it is compressed in a way that numpy does not write"),
            ("unknown.npz", "unknown.npz: the model has no input 'Z'"),
            ("X=pipe.npy", "pipe.npy cannot be read: it is a pipe or a device"),
            ("X=none.npy", "none.npy cannot be read: No such file or directory"),
            ("X=.", "cannot be read: Is a directory"),
            ("good.npy", "good.npy: names no input (expected: NAME=FILE.npy or FILE.npz, NAME of X, a0"),
            ("Z=good.npy", "Z=good.npy: names no input"),
            ("both.npz", "both.npz: the model has no input 'other'"),
            ("X=both.npz", "both.npz: holds several arrays"),
            ("X=wide.npy", "input 'X' does not fit (got: float64[3, 4, 2]; expected: X: float32[?, ?, 2]; "),
            ("X=flat.npy", "input 'X' does not fit (got: float32[3]"),
        ],
    ),
)
def test_arrays_that_are_refused(stepnet, files, monkeypatch, given, says):
    monkeypatch.chdir(files)
    code, out, err = stepnet("run", MODEL / "model.xml", "--random", "--input", given)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("stepnet: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--input", "X=good.npy", "--input", "X.npz"], "input 'X' is given twice"),
        (["--input", "X=good.npy", "--shape", "X=3,4,2"], "input 'X' has an array and a --shape"),
        (["--output", "out.txt"], "--output out.txt: should end in .npz"),
    ],
)
def test_options_that_contradict(stepnet, files, monkeypatch, options, says):
    monkeypatch.chdir(files)
    code, _, err = stepnet("run", MODEL / "model.xml", "--random", *options)
    assert code == 2
    assert says in err


def test_odd_names(stepnet, odd, tmp_path):
    out = tmp_path / "out.npz"
    code, told, _ = stepnet("run", odd, "--random", "--output", out)
    assert code == 0
    assert "\x9b" not in told
    with np.load(out) as found:
        assert [name[0] for name in found.files] == ["y"]
        assert found[found.files[0]].shape == (2, 5, 3)


def test_numbers_that_are_not_finite_are_told(stepnet, tmp_path):
    net = Net()
    net.result(net.add("Log", [net.parameter("x", "3")]), name="y")
    np.save(tmp_path / "x.npy", np.array([0, 1, 1], np.float32))
    out = stepnet("run", net.write(tmp_path), "--input", f"x={tmp_path / 'x.npy'}").out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("y "))
    assert row == ["y", "float32[3]", "0", "0", "0", "1"]
