"""What tests of saved modules share: save one, and hold what is read back, and OpenVINO, against it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor
from stepnet.data.tree import flatten
from stepnet.openvino import OpenVINOModel, Outputs, load, save
from stepnet.openvino.records import Layer, Net

SIZES = ((9, 2), (1, 4), (1, 1))  # steps and sequences
LENGTHS = ([5, 0, 2, 1], [1], [0, 3])


def openvino_model(path: Path) -> Callable[[Sequence[Tensor]], list[Tensor]] | None:
    """The model in OpenVINO, on the CPU in float32; None where it is not installed."""
    if importlib.util.find_spec("openvino") is None:
        return None
    import openvino

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        out = compiled([t.numpy() for t in inputs])
        return [torch.from_numpy(np.array(out[i])) for i in range(len(compiled.outputs))]

    return run


class Beside(nn.Module):
    """Modules of the same inputs in one model: it is traced, written and opened once for all."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: Any) -> list[Any]:
        return [part(*inputs) for part in self.parts]


@contextlib.contextmanager
def plain_loops() -> Iterator[None]:
    """Loops run plainly: what is tested is what is written, and no C is built for it."""
    before = stepnet.get_backend()
    stepnet.set_backend("naive")
    try:
        yield
    finally:
        stepnet.set_backend(before)


def runners(path: Path, model: OpenVINOModel) -> list[Callable[[Sequence[Tensor]], list[Tensor]]]:
    """What runs a saved model: ours, as which it was read, and OpenVINO if it is installed."""

    def here(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad(), plain_loops():
            return list(model(*inputs).tuple())

    ours = [here]
    theirs = openvino_model(path)
    return ours if theirs is None else [*ours, theirs]


def check(
    module: Any, make: Callable[[int, int], tuple[Any, ...]], path: Path, *,
    sizes: Sequence[tuple[int, int]] = SIZES, tolerance: float = 2e-5, dynamic: Any = None,
) -> OpenVINOModel:  # fmt: skip
    """Save a module on the example `make(4, 3)` and compare it at other sizes; the model that was read."""
    if isinstance(module, nn.Module):
        module.eval()
    torch.manual_seed(0)
    save(module, path, make(4, 3), dynamic=dynamic)
    model = load(path)
    every = runners(path, model)
    for steps, batch in sizes:
        given = make(steps, batch)
        with torch.no_grad(), plain_loops():
            out = module(*given)
            expected = list(out.tuple()) if isinstance(out, Outputs) else flatten(out)[0]
        for run in every:
            found = run(flatten(given)[0])
            assert len(found) == len(expected)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return model


def check_ragged(
    module: Any, make: Callable[[list[int]], tuple[Any, ...]], path: Path, *, packed: bool = False
) -> None:
    """Save a module on ragged sequences and compare it, per sequence, on padded ones; the padding is NaN."""
    if isinstance(module, nn.Module):
        module.eval()
    torch.manual_seed(0)
    example = make([4, 2, 3])
    if packed:
        example = tuple(v.to_packed() if isinstance(v, LoDTensor) else v for v in example)
    save(module, path, example)
    every = runners(path, load(path))
    for lengths in LENGTHS:
        given = make(lengths)
        with torch.no_grad(), plain_loops():
            expected = [_padded(v, lengths, 0.0) for v in flatten(module(*given))[0]]
        inputs = [_padded(v, lengths, float("nan")) for v in flatten(given)[0]]
        for run in every:
            for a, b in zip(run([*inputs, torch.tensor(lengths)]), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def _padded(value: Any, lengths: list[int], fill: float) -> Tensor:
    if not isinstance(value, LoDTensor):
        return value
    return value.to_padded(fill if value.values.is_floating_point() else 0)[0]


def layers(model: OpenVINOModel) -> list[Layer]:
    """The layers of the model itself."""
    return list(model.graph.net.layers.values())


def types(net: Net) -> list[str]:
    """The types of a net's layers, but for its constants."""
    return [layer.type for layer in net.layers.values() if layer.type not in ("Const", "Parameter", "Result")]


def loops(model: OpenVINOModel) -> list[Net]:
    """The bodies of the model's TensorIterators."""
    return [layer.bodies[""] for layer in layers(model) if layer.type == "TensorIterator"]
