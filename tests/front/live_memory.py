"""How many bytes of tensors live at once, counted at every eighth operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveMemory(TorchDispatchMode):
    """`peak` is the most bytes that storages made in this block held together."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.calls = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                storage = value.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.calls += 1
        if self.calls % 8 == 0:
            self._live = {key: held for key, held in self._live.items() if not held[0].expired()}
            self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out
