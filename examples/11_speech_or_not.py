"""A trained model from a file: silero-vad says whether a frame of 32 ms holds speech.

Its wheel holds ONNX files: convolutions, an LSTM cell, branches for two sampling rates. One is read as a
torch module, and runs over sound frame by frame; its state is carried from frame to frame. It needs the
extras `examples` and `onnx`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

RATE, FRAME, BEFORE = 16000, 512, 64  # samples a second, in a frame, and of the frame before that go with it


def files() -> list[Path]:
    """The ONNX files of the wheel; nothing of the package is run."""
    package = find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("this example reads the wheel of silero-vad: pip install 'stepnet[examples]'")
    return sorted(Path(package.submodule_search_locations[0]).glob("data/*.onnx"))


def sound(seconds: int) -> Tensor:
    """A voice of sorts: vowels of a moving pitch with breaks between them, and noise."""
    time = torch.arange(seconds * RATE) / RATE
    pitch = 2 * torch.pi * torch.cumsum(120 + 30 * torch.sin(1.3 * time), 0) / RATE
    voice = sum(torch.sin(k * pitch) / k * (1 + torch.sin(k + 5 * time)) for k in range(1, 20))
    speaks = (torch.sin(0.7 * time) > 0) * torch.sin(9 * time).clamp(min=0)
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(0))
    return 0.1 * voice * speaks + 0.003 * noise


def frames(wave: Tensor) -> Tensor:
    """[frames, 1, samples], each with the end of the one before."""
    padded = torch.cat([wave.new_zeros(BEFORE), wave])
    return padded.unfold(0, BEFORE + FRAME, FRAME).unsqueeze(1)


def listen(model: nn.Module, wave: Tensor) -> tuple[Tensor, Tensor]:
    """How likely each frame holds speech, and the last state."""
    state, found = torch.zeros(2, 1, 128), []
    more = {"sr": torch.tensor(RATE)} if "sr" in {i.name for i in model.inputs} else {}
    with torch.no_grad():
        for frame in frames(wave):
            likely, state = model(input=frame, state=state, **more)
            found.append(likely[0, 0])
    return torch.stack(found), state


def main() -> None:
    import stepnet.onnx

    path = next(path for path in files() if path.name == "silero_vad.onnx")
    likely, _ = listen(stepnet.onnx.load(path), sound(6))
    for k, second in enumerate(likely.split(RATE // FRAME)):
        print(f"{k:3} s  {'#' * round(40 * second.mean().item())}")


if __name__ == "__main__":
    main()
