"""Files that are no models, and options that make no sense: exit code 2, and one line that says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from covering import few

CASES = Path(__file__).parent.parent / "openvino" / "cases"
BAD = sorted((CASES / "bad").iterdir())
MODEL = CASES / "corpus" / "dynamic_batch_time" / "model.xml"


@pytest.mark.parametrize("folder", few(BAD, BAD[::4]), ids=lambda folder: folder.name)
def test_models_that_are_refused(stepnet, folder):
    code, out, err = stepnet("inspect", folder / "model.xml")
    assert (code, out) == (2, "")
    assert err.startswith("stepnet: error: model.xml: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["inspect", "run", "convert", "compare"])
def test_no_such_file(stepnet, tmp_path, command):
    more = [tmp_path / "new.xml"] if command == "convert" else []
    code, out, err = stepnet(command, tmp_path / "none.xml", *more)
    assert (code, out) == (2, "")
    assert err.startswith("stepnet: error: none.xml: cannot be read: No such file or directory (")


@pytest.mark.covering(1)
@pytest.mark.parametrize("command", ["inspect", "run", "compare"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--shape", "X"], "--shape X: is not understood (expected: NAME=2,10,64)"),
        (["--shape", "X=2,-1,2"], "--shape X=2,-1,2: is not understood"),
        (["--shape", "X=2,3"], "--shape X=2,3: does not fit the input (expected: X: float32[?, ?, 2])"),
        (["--shape", "X=2,3,5"], "does not fit the input"),
        (["--shape", f"X={10**17},{10**3},2"], "input 'X' cannot be made: it is too large (got: (1000000"),
        (["--shape", "Z=2,3,2"], "--shape Z: the model has no such input (expected: X, a0)"),
        (["--shape", "X=2,3,2", "--shape", "X=2,3,2"], "input 'X' has two shapes"),
        (["--shape", "X=2,3,2", "--shape", "a0=4,1,2"], "TensorIterator"),
        (["--bin", "none.bin"], "none.bin: cannot be read"),
    ],
)
def test_options_that_do_not_fit(stepnet, tmp_path, monkeypatch, command, options, says):
    monkeypatch.chdir(tmp_path)
    if command == "compare" and "TensorIterator" in says:
        pytest.importorskip("openvino")
    random = ["--random"] if command == "run" else []
    code, out, err = stepnet(command, MODEL, *random, *options)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "run", "convert", "compare"])
def test_unknown_options(stepnet, command):
    assert stepnet(command, MODEL, "--nonsense").code == 2
    assert stepnet(command).code == 2
    assert stepnet(command, "--help").code == 0


def test_a_picture_or_arrays_that_cannot_be_written(stepnet, tmp_path):
    for command in (
        ("inspect", MODEL, "--svg", tmp_path / "no" / "a.svg"),
        ("run", MODEL, "--random", "--output", tmp_path / "no" / "a.npz"),
    ):
        code, out, err = stepnet(*command)
        assert (code, out) == (2, "")
        assert "cannot be written: No such file or directory" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [["inspect", "--json"], ["run", "--random"]], ids=["echo", "table"])
def test_output_that_cannot_be_written(command):
    """Nobody reads it any more, or the disk is full: 1 would say that outputs differ."""
    words = [sys.executable, "-m", "stepnet", *command, str(MODEL)]
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed, open("/dev/full", "wb") as full:
        ended = [
            subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=False) for out in (closed, full)
        ]
    says = [b"", b"stepnet: error: the output cannot be written: No space left on device\n"]
    assert [(it.returncode, it.stderr) for it in ended] == [(2, text) for text in says]


def test_a_seed_that_is_too_large(stepnet):
    assert stepnet("run", MODEL, "--random", "--seed", 2**63).code == 2


def test_a_name_that_is_of_no_format(stepnet, tmp_path):
    code, _, err = stepnet("convert", MODEL, tmp_path / "new.ONNX")
    assert (code, err.startswith("stepnet: error: new.ONNX: the name must end in .xml or .onnx (")) == (
        2,
        True,
    )
