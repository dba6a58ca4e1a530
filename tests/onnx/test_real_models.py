"""Models from wheels of the extra `examples`: what they are read as is what they are."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import stepnet

pytest.importorskip("onnx_ir")
import stepnet.onnx

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def example(package, name):
    if find_spec(package) is None:
        pytest.skip(f"the extra `examples` is not installed: no {package}")
    return runpy.run_path(str(EXAMPLES / name))


NAMES = [
    "silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_16k_sequence.onnx", "silero_vad_half.onnx",
    "silero_vad_op18_ifless.onnx", "silero_vad_openvino_16k.onnx",
]  # fmt: skip


def speech(name):
    it = example("silero_vad", "11_speech_or_not.py")
    assert [path.name for path in it["files"]()] == NAMES
    path = next(path for path in it["files"]() if path.name == name)
    return it, path, stepnet.onnx.load(path)


@pytest.fixture(scope="module")
def minute():
    """Of sound, which takes as long to make as a model to hear it."""
    return example("silero_vad", "11_speech_or_not.py")["sound"](60)


@pytest.mark.parametrize("name", NAMES)
def test_speech_or_not(name, minute, pytestconfig):
    """A minute of sound, each with the state that it had itself; an ordinary run hears a quarter of it."""
    sound = minute if pytestconfig.getoption("exhaustive") else minute[: len(minute) // 4]
    runtime = pytest.importorskip("onnxruntime")
    it, path, model = speech(name)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    frames = it["frames"](sound)
    if "sequence" in name:  # which takes all frames at once
        zero = torch.zeros(1, 1, 128)
        found = [t.detach() for t in model(frames[:, 0], zero, zero)]
        inputs = {"input": frames[:, 0].numpy(), "h": zero.numpy(), "c": zero.numpy()}
        expected = session.run(None, inputs)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-4)
        return
    found, state = it["listen"](model, sound)
    more = {"sr": np.array(16000)} if "sr" in {i.name for i in session.get_inputs()} else {}
    last, expected = np.zeros((2, 1, 128), np.float32), []
    for frame in frames.numpy():
        likely, last = session.run(None, {"input": frame, "state": last, **more})
        expected.append(likely[0, 0])
    tolerance = 1e-2 if "half" in name else 1e-3
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance / 10)
    np.testing.assert_allclose(state.numpy(), last, rtol=tolerance, atol=tolerance / 10)
    assert max(expected) > 0.5 > min(expected)


def test_speech_is_written_again(tmp_path, opened):
    """Branches for two rates, and for axes that go: those of the example, and so are its sizes."""
    it, _, model = speech("silero_vad.onnx")
    frame, *more = it["frames"](it["sound"](1))[5:8]
    state, rate = torch.randn(2, 1, 128) / 9, torch.tensor(it["RATE"])
    given = {"input": frame, "state": state, "sr": rate}
    stepnet.onnx.save(model, tmp_path / "m.onnx", tuple(given[i.name] for i in model.inputs))
    written = opened(tmp_path / "m.onnx")
    for other in more:
        given["input"] = other
        found = written(*(given[name] for name in written.inputs))
        for a, b in zip(found, model(**given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_letters_to_sounds():
    """The sounds that the arrays give in numpy, word by word; and the encoder in ONNX Runtime."""
    it = example("g2p_en", "10_letters_to_sounds.py")
    words = ["stepnet", "a", "recurrence", "xyzzy", "tokyo"]
    speller, letters = it["speller"](), it["letters_of"](words)
    with torch.no_grad():
        found = speller(letters)
    with np.load(Path(find_spec("g2p_en").submodule_search_locations[0]) / "checkpoint20.npz") as arrays:
        expected = [_in_numpy(arrays, letters[k].numpy()) for k in range(len(words))]
    assert [found[k].tolist() for k in range(len(words))] == expected


def _in_numpy(arrays, letters):
    def cell(x, h, kind):
        i = x @ arrays[f"{kind}_w_ih"].T + arrays[f"{kind}_b_ih"]
        j = h @ arrays[f"{kind}_w_hh"].T + arrays[f"{kind}_b_hh"]
        r, z = (
            1 / (1 + np.exp(-(a + b))) for a, b in zip(np.split(i, 3)[:2], np.split(j, 3)[:2], strict=True)
        )
        n = np.tanh(np.split(i, 3)[2] + r * np.split(j, 3)[2])
        return (1 - z) * n + z * h

    h, sounds, sound = np.zeros(256, np.float32), [], 2
    for letter in letters:
        h = cell(arrays["enc_emb"][letter], h, "enc")
    for _ in range(20):
        h = cell(arrays["dec_emb"][sound], h, "dec")
        sound = int((arrays["fc_w"] @ h + arrays["fc_b"]).argmax())
        if sound == 3:
            break
        sounds.append(sound)
    return sounds


def test_the_encoder_is_written(tmp_path, opened):
    it = example("g2p_en", "10_letters_to_sounds.py")
    speller, letters = it["speller"](), it["letters_of"](["stepnet", "a", "recurrence"])

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.speller = speller

        def forward(self, words):
            return self.speller.encode(words)

    stepnet.onnx.save(Encoder(), tmp_path / "m.onnx", letters)
    written = opened(tmp_path / "m.onnx")
    assert "GRU" in written.types
    other = it["letters_of"](["ragged", "words"])
    padded, lengths = other.to_padded(0)
    with torch.no_grad():
        torch.testing.assert_close(written(padded, lengths)[0], speller.encode(other), rtol=1e-5, atol=1e-5)
