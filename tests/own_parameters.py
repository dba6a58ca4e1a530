"""Parameters of classes that give calls another meaning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Doubled(nn.Parameter):
    """Of which a product is twice what it is."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            return made * 2 if func is F.linear else made


class Turned(nn.Parameter):
    """Whose method means another thing."""

    def t(self):
        return super().t() * 2
