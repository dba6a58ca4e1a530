"""Models in OpenVINO IR with right answers, from tests/openvino/cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

CASES = Path(__file__).parent / "openvino" / "cases"
# Not read: two sources for one Parameter.
GOOD = [
    folder
    for kind in ("corpus", "disputed", "legacy")
    for folder in sorted((CASES / kind).iterdir())
    if folder.name != "back_edge_to_sliced_parameter"
]


def case(name: str) -> Path:
    """The folder of a case."""
    return next(folder for folder in GOOD if folder.name == name)


def answers(folder: Path) -> list[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
    """Inputs by name, and right outputs in order, of each set of them."""
    found = []
    for i in range(settings(folder)["n_input_sets"]):
        tail = f"_{i}" if i else ""
        with (
            np.load(folder / f"inputs{tail}.npz") as inputs,
            np.load(folder / f"outputs{tail}.npz") as outputs,
        ):
            named = {name: inputs[name] for name in inputs.files}
            found.append((named, [outputs[f"out{k}"] for k in range(len(outputs.files))]))
    return found


def settings(folder: Path) -> dict[str, Any]:
    """Tolerances, and the order of the inputs."""
    return json.loads((folder / "case.json").read_text())


def check(folder: Path, model: Any, *, tolerance: float | None = None) -> None:
    """Hold what a model gives against the right answers."""
    limits = settings(folder)
    atol, rtol = (limits["atol"], limits["rtol"]) if tolerance is None else (tolerance, tolerance)
    for named, expected in answers(folder):
        found = model(**named)
        assert len(found) == len(expected)
        for ours, right in zip(found, expected, strict=True):
            assert tuple(ours.shape) == right.shape
            np.testing.assert_allclose(
                ours.detach().double().numpy(), right.astype(np.float64), atol=atol, rtol=rtol
            )
