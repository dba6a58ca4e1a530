"""What a module can reach, as it was before a push: whether that changed any of it, and putting it back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepnet.compiler.reads.reach import Reach, reach
from stepnet.compiler.reads.undo import Snapshot, is_only_thread
from stepnet.data.attributes import attribute
from stepnet.data.modes import in_function_modes
from stepnet.data.storage import same_bits

from .keeper import hooks_of_all, runs_alone

_COMPILED = "_orig_mod", "_torchdynamo_orig_callable"

_NUMBERS = 2**26  # of tensors, which are kept


class Before:
    """What a module can reach, as it was before a push: its tensors are kept, for `.data` and numpy write to
    them past their versions."""

    def __init__(self, found: Reach) -> None:
        self.tensors, self._generators, self._held = found.tensors, found.generators, Snapshot(found.holders)
        self._marks = [_mark(tensor) for tensor in self.tensors]
        self._numbers = [tensor.detach().clone() for tensor in self.tensors]
        self._drawn = self._draws()

    def drew(self) -> bool:
        """Whether anybody drew noise since."""
        return self._draws() != self._drawn

    def holders_changed(self) -> frozenset[int]:
        """The ids of containers that hold something else by now."""
        return self._held.holders_changed()

    def tensors_changed(self) -> set[int]:
        """The ids of those that somebody wrote to since."""
        each = zip(self.tensors, self._marks, self._numbers, strict=True)
        return {id(t) for t, mark, numbers in each if _mark(t) != mark or not same_bits(t, numbers)}

    @classmethod
    def of(cls, module: Any) -> Before | None:
        """None: whether a push changes anything would not be seen, or others would see one more run."""
        if torch._C._len_torch_dispatch_stack() or in_function_modes():
            return None
        if hooks_of_all():
            return None
        for part in module.modules() if isinstance(module, nn.Module) else (module,):
            if any(attribute(part, name) is not None for name in _COMPILED):
                return None  # compiled, for other lengths anew
            if isinstance(part, nn.Module) and not runs_alone(part):
                return None
        found = reach(module, everything=True)
        if found.refused is not None or found.open is not None or not found.complete:
            return None
        if not all(map(_is_plain, found.tensors)):
            return None
        return cls(found) if sum(t.numel() for t in found.tensors) <= _NUMBERS else None

    def changed(self) -> bool:
        """Whether the module, or anybody else, changed something or drew noise since."""
        return self._held.changed() or self.drew() or bool(self.tensors_changed())

    def restore(self) -> None:
        """Put back what a run changed after all."""
        if not is_only_thread():
            return
        self._held.restore()
        for tensor, mark, numbers in zip(self.tensors, self._marks, self._numbers, strict=True):
            if not same_bits(tensor, numbers) and _mark(tensor)[1:] == mark[1:]:
                tensor.data.copy_(numbers)

    def _draws(self) -> list[Any]:
        """The states of all generators."""
        states = [torch.get_rng_state(), *(each.get_state() for each in self._generators)]
        if torch.cuda.is_initialized():
            states += torch.cuda.get_rng_state_all()
        of_numpy: Any = np.random.get_state()
        numbers = [state.numpy().tobytes() for state in states]
        return [numbers, random.getstate(), of_numpy[1].tobytes(), of_numpy[2:]]


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is seen when somebody writes to a tensor."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return not (
        tensor.is_inference() or tensor.is_meta or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    )


def _mark(tensor: Tensor) -> tuple[int, ...]:
    return tensor._version, tensor.data_ptr(), *tensor.shape
