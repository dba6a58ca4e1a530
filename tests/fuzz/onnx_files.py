"""Random ONNX models, read: they compute what ONNX Runtime does, at two sizes, by plans and by the plain
loop, with the same gradients; and so does what is written of them, as ONNX, as IR, and as ONNX again. Random
models in IR: the same, held against what ONNX Runtime computes of them as ONNX.

`python -m fuzz.onnx_files [first] [count] [backend] [ir]` does so with those of some seeds.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

import stepnet
import stepnet.onnx
import stepnet.openvino
from stepnet.errors import StepnetError

from . import seeds
from .ir_graphs import make_ir, make_ir_inputs
from .onnx_graphs import make_inputs, make_model

SIZES = ((3, 2), (5, 4))  # steps and sequences
IR_SIZES = ((6, 2), (12, 3))
Inputs = dict[str, np.ndarray]


def runtime(path: Path) -> Callable[[Inputs], list[np.ndarray]]:
    """What ONNX Runtime computes of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: [np.asarray(out) for out in session.run(None, inputs)]


def read(path: Path, load: Callable[[Path], Any], backend: str) -> Callable[[Inputs], list[np.ndarray]]:
    """What a file computes here."""
    model = load(path)

    def run(inputs: Inputs) -> list[np.ndarray]:
        stepnet.set_backend(backend)
        try:
            with torch.no_grad():
                return [out.numpy() for out in model(*map(torch.from_numpy, inputs.values()))]
        finally:
            stepnet.set_backend("auto")

    return run


def gradients(
    path: Path, inputs: Inputs, backend: str, load: Callable[[Path], Any] = stepnet.onnx.load
) -> list[Tensor | None]:
    """Those of all floating inputs and weights."""
    stepnet.set_backend(backend)
    try:
        model = load(path)
        given = [torch.from_numpy(value).clone() for value in inputs.values()]
        asked = [t.requires_grad_() for t in given if t.is_floating_point()]
        asked += [p for p in model.parameters() if p.requires_grad]
        total = sum((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in model(*given))
        return [*torch.autograd.grad(total, asked, allow_unused=True)] if total.requires_grad else []
    finally:
        stepnet.set_backend("auto")


def far(found: list[Any], wanted: list[Any], tolerance: float = 2e-4) -> str | None:
    """How results differ; no gradient is one of zeros."""
    if len(found) != len(wanted):
        return f"{len(found)} results, not {len(wanted)}"
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        a, b = (0.0 if t is None else np.asarray(t) for t in (a, b))
        if np.ndim(a) and np.ndim(b) and a.shape != b.shape:
            return f"result {k} is {a.shape}, not {b.shape}"
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"result {k} is off by {np.abs(a - b).max()}"
    return None


def difference(seed: int, backend: str = "auto", form: str = "onnx") -> str | None:
    """What is wrong with what is made of the model of a seed."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"onnx": _difference, "ir": _ir_difference}[form](Path(folder), seed, backend)


def _difference(folder: Path, seed: int, backend: str) -> str | None:
    path, again, xml, back = (folder / name for name in ("m.onnx", "again.onnx", "m.xml", "back.onnx"))
    model = make_model(seed)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())
    inputs = [make_inputs(model, seed + k, *size) for k, size in enumerate(SIZES)]
    theirs = runtime(path)
    wanted = [theirs(given) for given in inputs]

    def held(what: str, run: Callable[[Inputs], list[np.ndarray]]) -> str | None:
        for size, given, out in zip(SIZES, inputs, wanted, strict=True):
            if found := far(run(given), out):
                return f"{what}, at {size}: {found}"
        return None

    example = tuple(map(torch.from_numpy, inputs[0].values()))
    stage = "read"
    try:
        for how in dict.fromkeys(("naive", backend)):
            if found := held(f"read, by {how}", read(path, stepnet.onnx.load, how)):
                return found
        stage = "trained"
        plain, ours = (gradients(path, inputs[1], how) for how in ("naive", backend))
        if found := far(ours, plain, 1e-3):
            return f"gradients: {found}"
        stage = "written as ONNX"
        stepnet.onnx.save(stepnet.onnx.load(path), again, example)
        if found := held(stage, runtime(again)):
            return found
        stage = "written as IR"
        stepnet.openvino.save(stepnet.onnx.load(path), xml, example)
        if found := held(stage, read(xml, stepnet.openvino.load, "naive")):
            return found
        stage = "IR as ONNX"
        stepnet.onnx.save(stepnet.openvino.load(xml), back, example)
        return held(stage, runtime(back))
    except StepnetError as error:
        return f"{stage}: {error}"


def _ir_difference(folder: Path, seed: int, backend: str) -> str | None:
    path, onnx_path, again, back = make_ir(seed, folder), *(folder / n for n in ("m.onnx", "a.xml", "b.xml"))
    stage = "read"
    try:
        names = [socket.name for socket in stepnet.openvino.load(path).inputs]
        inputs = [make_ir_inputs(names, seed + k, *size) for k, size in enumerate(IR_SIZES)]
        example = tuple(map(torch.from_numpy, inputs[0].values()))
        load = stepnet.openvino.load
        stage = "written as ONNX"
        stepnet.onnx.save(load(path), onnx_path, example)
        stage = "written as IR"
        stepnet.openvino.save(load(path), again)
        stage = "ONNX as IR"
        stepnet.openvino.save(stepnet.onnx.load(onnx_path), back, example)
        theirs = runtime(onnx_path)
        runs = {f"read, by {how}": read(path, load, how) for how in dict.fromkeys(("naive", backend))}
        runs |= {what: read(at, load, "naive") for what, at in (("as IR", again), ("by ONNX", back))}
        for size, given in zip(IR_SIZES, inputs, strict=True):
            wanted = theirs(given)
            for stage, run in runs.items():
                if found := far(run(given), wanted):
                    return f"{stage}, at {size}: {found}"
        stage = "trained"
        trainable = partial(load, trainable=True)
        plain, ours = (gradients(path, inputs[1], how, trainable) for how in ("naive", backend))
        return far(ours, plain, 1e-3)
    except StepnetError as error:
        return f"{stage}: {error}"


def told(seed: int, backend: str = "auto", form: str = "onnx") -> str | None:
    """The same, with the model."""
    try:
        found = difference(seed, backend, form)
    except Exception as error:  # whatever it is, it is no answer to a model that is right
        found = repr(error)
    if found is None:
        return None
    if form == "onnx":
        return f"---- seed {seed}: {found}\n{onnx.printer.to_text(make_model(seed))}"
    with tempfile.TemporaryDirectory() as folder:
        return f"---- seed {seed}: {found}\n{make_ir(seed, Path(folder)).read_text()}"


if __name__ == "__main__":
    seeds.main(told, "ONNX models")
