"""Modules copied, pickled and saved: each twin is equal, and its own."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import nn


def _by_torch_save(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


DUPLICATES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": _by_torch_save,
}


def check_duplicate(module: nn.Module, twin: nn.Module, x: Any) -> None:
    before = module(x)[0]
    assert torch.equal(twin(x)[0], before)
    with torch.no_grad():
        for values in twin.parameters():
            values.zero_()
    assert torch.equal(module(x)[0], before)
    assert not torch.equal(twin(x)[0], before)
