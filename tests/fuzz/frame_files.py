"""Random frames of `create_whileloop`, saved in both formats and read back, at other lengths.

The programs are those of `fuzz.frames` over dense arrays; what they write is stacked. What no file can hold
is refused; what is written gives what the loop by hand gives, wherever that runs.

`python -m fuzz.frame_files [first] [count]` runs those of some seeds.
"""

from __future__ import annotations

import random
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepnet import TensorArray, onnx, openvino
from stepnet.errors import StepnetError

from . import frames, seeds

LENGTHS = (1, 2, 3, 4, 6)
FORMATS = {"onnx": onnx, "xml": openvino}


class Stacked(frames.Program):
    """A program that gives its arrays stacked, from inputs of any length."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        pick = random.Random(seed)
        self.lengths, self.counts, self.shape, self.steps = None, torch.int64, [], 3
        self.first, self.way = 0, "once"
        if self.scan or pick.random() < 0.7:  # others are most often refused
            self.lines = [(pick.choice(frames.ALIKE[:-4]), i, j) for _, i, j in self.lines]
            self.rows, self.twice = [2 for _ in self.rows], False

    def written(self, frame: bool, outs: list[TensorArray]) -> list[Tensor]:
        return [out.stack() for out in outs]


class Module(nn.Module):
    """A program as a module of its inputs."""

    def __init__(self, program: Stacked, w: Tensor) -> None:
        super().__init__()
        self.program, self.w = program, nn.Parameter(w.detach())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        n = self.program.n_in
        return tuple(self.program.run(True, list(inputs[:n]), self.w, list(inputs[n:])))


def difference(seed: int, refused: list[str] | None = None) -> str | None:
    """How a file differs from what its program means; None: not at all, or it is refused."""
    program = Stacked(seed)
    rows, w, variables = program.inputs()
    try:
        program.run(False, rows, w, variables)
    except Exception:
        return None  # what Python cannot run says nothing
    module = Module(program, w).eval()
    steps = {f"input_{i}": (0,) for i in range(len(rows))}  # that are open
    with tempfile.TemporaryDirectory() as folder:
        for ending, format in FORMATS.items():
            path = Path(folder) / f"m.{ending}"
            try:
                with torch.no_grad():
                    format.save(module, path, (*rows, *variables), dynamic=steps)
            except StepnetError as refusal:
                if refused is not None:
                    refused.append(str(refusal))
                continue
            except Exception:
                return f"seed {seed}, {ending}: {traceback.format_exc()}{program}"
            read = format.load(path)
            for length in LENGTHS:
                found = _other(program, read, w, length)
                if found is not None:
                    return f"seed {seed}, {ending}, {length} steps: {found}\n{program}"
    return None


def _other(program: Stacked, read: Any, w: Tensor, length: int) -> str | None:
    program.steps = length
    rows, _, variables = program.inputs()
    program.steps = 3
    try:
        expected = program.run(False, rows, w, variables)
    except Exception:
        return None
    try:
        with torch.no_grad():
            found = list(read(*rows, *variables))
    except Exception:
        return traceback.format_exc()
    pairs = list(zip(found, expected, strict=True))
    wrong = [i for i, (a, b) in enumerate(pairs) if not frames.same(a, b.detach(), 1e-6)]
    return f"{wrong} of {len(pairs)} differ" if wrong else None


if __name__ == "__main__":
    seeds.main(difference, "files of frames")
