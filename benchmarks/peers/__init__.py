"""Who takes part: one file for each, all with `contenders(setting, training)`.

What is done once (building a model, packing the input) is done before the clock runs, for all of them alike:
each gets its input in the form it likes best.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from benchmarks.harness import Contender, said_by
from benchmarks.work import Setting

# The packages that each file needs, in the order of turns. Ours comes last, next to the five lines.
PEERS: dict[str, tuple[str, ...]] = {
    "torch_nn": ("torch",),
    "eager_loop": ("torch",),
    "compiled_step": ("torch",),
    "jax_scan": ("jax",),
    "openvino_op": ("openvino", "onnx"),
    "onnxruntime_op": ("onnxruntime", "onnx"),
    "unrolled_loop": ("torch",),
    "ours": ("stepnet",),
}
ON_REQUEST = ("unrolled_loop", "compiled_step")  # they take long to compile

# The names of contenders, in the order of tables and pictures.
FIVE_LINES = "five lines"
ORDER = ("nn", "nn packed", "loop", "jax", "openvino", "onnx runtime", "torch.compile", FIVE_LINES)


def contenders(
    setting: Setting, training: bool, only: Sequence[str] | None = None
) -> tuple[dict[str, Contender], list[str]]:
    """Who of some files can do this work, by name, and a line for each who should be here and is not."""
    found: dict[str, Contender] = {}
    absent = []
    for name in only if only is not None else [name for name in PEERS if name not in ON_REQUEST]:
        missing = [package for package in PEERS[name] if importlib.util.find_spec(package) is None]
        if missing:
            absent.append(f"{' and '.join(missing)} not installed: left out (pip install 'stepnet[bench]')")
            continue
        try:
            found |= importlib.import_module(f".{name}", __name__).contenders(setting, training)
        except Exception as error:  # a peer that cannot be set up must not take the others with it
            absent.append(f"{name} could not be set up: {said_by(error)}")
    return found, absent
