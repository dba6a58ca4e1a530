"""Models in ONNX, run by stepnet and by ONNX Runtime: our own cells, and models that others trained."""

from __future__ import annotations

import runpy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stepnet
from stepnet import cells

from .harness import QUICK, Case, Contender, Effort, Topic
from .onnx_cells import OWN, Layer, check_installed, findings, one, session_of

EXAMPLES = Path(__file__).parent.parent / "examples"
KNOWN = {"LSTM": cells.LSTM, "GRU": cells.GRU}
WORDS = ["ragged", "sequences", "of", "any", "length", "recurrence", "a", "step", "xylophone", "tokyo"]


def cases(quick: bool) -> Iterator[Case]:
    """Cells as operators and as Scans; then each model whose wheel is installed."""
    check_installed()
    for name, make in {**KNOWN, **OWN}.items():
        for steps, batch, size in [(6, 3, 8)] if quick else [(100, 1, 64), (100, 1, 256), (100, 32, 256)]:
            yield _cell(name, make, steps, batch, size)
    for package, model_cases in (("silero_vad", _speech), ("g2p_en", _letters)):
        if find_spec(package) is None:
            print(f"skipped: {package} is not installed (pip install 'stepnet[examples]')")
        else:
            yield from model_cases(quick)


def _cell(name: str, make: Callable[[int, int], Any], steps: int, batch: int, size: int) -> Case:
    torch.manual_seed(size)
    layer = Layer(make(size, size)).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        stepnet.onnx.save(layer, path, (torch.randn(4, 2, size), *layer.states(2)))
        ours, session = stepnet.onnx.load(path), session_of(path)
    x = torch.randn(steps, batch, size), *layer.states(batch)
    feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), x, strict=True)}
    return Case(
        name=f"{name} T={steps} B={batch} H={size}",
        contenders={
            "stepnet": Contender(_inferring(lambda: ours(*x)[0]), one),
            "onnx runtime": Contender(lambda: session.run(None, feed)[0], one),
        },
        reference="onnx runtime",
        facts={"T": steps, "B": batch, "H": size},
        rtol=1e-2,
        atol=2e-3,  # of float32, after a hundred steps
    )


def _speech(quick: bool) -> Iterator[Case]:
    """Sound frame by frame, each with the state of the one before."""
    it = runpy.run_path(str(EXAMPLES / "11_speech_or_not.py"))
    frames = it["frames"](it["sound"](1 if quick else 4))
    for path in it["files"]():
        if "sequence" in path.name or "half" in path.name:
            continue
        ours, session = stepnet.onnx.load(path), session_of(path)
        rate = {"sr": np.array(it["RATE"])} if "sr" in {i.name for i in session.get_inputs()} else {}

        def by_us(ours: Any = ours, rate: Mapping[str, Any] = rate) -> Tensor:
            state, found, more = torch.zeros(2, 1, 128), [], {k: torch.from_numpy(v) for k, v in rate.items()}
            for frame in frames:
                likely, state = ours(input=frame, state=state, **more)
                found.append(likely)
            return torch.cat(found)

        def by_runtime(session: Any = session, rate: Mapping[str, Any] = rate) -> np.ndarray:
            state, found = np.zeros((2, 1, 128), np.float32), []
            for frame in frames.numpy():
                likely, state = session.run(None, {"input": frame, "state": state, **rate})
                found.append(likely)
            return np.concatenate(found)

        yield Case(
            name=f"{path.stem}, {len(frames)} frames",
            contenders={
                "stepnet": Contender(_inferring(by_us), one),
                "onnx runtime": Contender(by_runtime, one),
            },
            reference="onnx runtime",
            facts={"frames": len(frames)},
            rtol=1e-2,
            atol=1e-3,
        )


def _letters(quick: bool) -> Iterator[Case]:
    """The encoder of g2p-en over words of all lengths: ragged, and as the padded model that is written."""
    it = runpy.run_path(str(EXAMPLES / "10_letters_to_sounds.py"))
    speller, words = it["speller"](), it["letters_of"](WORDS if quick else WORDS * 4)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.speller = speller

        def forward(self, words: Any) -> Tensor:
            return self.speller.encode(words)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        stepnet.onnx.save(Encoder(), path, words)
        ours, session = stepnet.onnx.load(path), session_of(path)
    padded = words.to_padded(0)
    feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), padded, strict=True)}
    yield Case(
        name=f"g2p-en, the encoder of {len(words)} words",
        contenders={
            "stepnet": Contender(_inferring(lambda: speller.encode(words)), one),
            "stepnet, read": Contender(_inferring(lambda: ours(*padded)[0]), one),
            "onnx runtime": Contender(lambda: session.run(None, feed)[0], one),
        },
        reference="onnx runtime",
        facts={"words": len(words)},
        rtol=1e-3,
        atol=1e-4,
    )


def _inferring(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return torch.no_grad()(run)


TOPIC = Topic(
    name="onnx_models",
    claim="models read from ONNX: ONNX Runtime's time over ours",
    cases=cases,
    findings=findings,
    efforts=(Effort(rounds=15, warmup=2, shortest=0.02, budget=5.0), QUICK),
)
