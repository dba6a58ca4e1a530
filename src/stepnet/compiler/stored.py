"""A compiled step as bytes, and back. Only records of this package and plain values are read."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from .normal import Joint
from .pipeline import Compiled

_RECORDS = {
    "stepnet.ir.graph": {"Graph", "Node", "Value"},
    "stepnet.ir.plan": {"Carry", "LoopPlan", "Plan", "Region"},
    "stepnet.data.tree": {"Spec"},
    "builtins": {"tuple", "list", "dict", "type"},  # type(None) is kept as a call
}
_MOST = 1 << 16  # numbers in tensors that a step makes of Python values


class NoPlan(Exception):
    """Bytes that hold no compiled step."""


def dump(compiled: Compiled) -> bytes | None:
    """The bytes; None for what `load` would not read, such as y in structures of the user's own classes."""
    if sum(t.numel() for t in compiled.constants.values()) > _MOST:
        return None
    constants = {name: (str(t.dtype), t.tolist()) for name, t in compiled.constants.items()}
    joint = compiled.joint
    found = (
        compiled.fused, compiled.hoisted, joint.graph, joint.results, constants, compiled.y_spec,
        compiled.weights,
    )  # fmt: skip
    data = pickle.dumps(found, protocol=5)
    try:
        load(data)
    except NoPlan:
        return None
    return data


def load(data: bytes) -> Compiled:
    """The compiled step.

    Raises:
        NoPlan: the bytes hold something else.
    """
    try:
        fused, hoisted, graph, results, numbers, y_spec, weights = _Reader(io.BytesIO(data)).load()
    except (
        Exception
    ) as error:  # what unpickling raises on bytes that are none of its own is not listed anywhere
        raise NoPlan(str(error)) from error
    constants = {
        name: torch.tensor(values, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for name, (dtype, values) in numbers.items()
    }
    joint = Joint(graph, results, constants)
    return Compiled(fused, hoisted, joint, constants, y_spec, weights)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        raise NoPlan(f"{module}.{name} is no part of a plan")
