"""Tensors of classes that users make: a trace takes all for plain ones, and knows no other rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from stepnet.compiler.reads.tensor_kinds import rules_of
from stepnet.compiler.reads.trust import is_trusted_class
from stepnet.data.tree import leaves
from stepnet.errors import IRError
from stepnet.user_line import run_by


class PlainParameters:
    """Plain parameters in place of those of classes of users', of which torch's tracers know nothing."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, value: Any) -> Any:
        """An argument of a call, with parameters of torch's own class in it for those of others."""
        kind = type(value)
        if kind is list:
            return [self.of(each) for each in value]
        if kind is nn.Parameter or not issubclass(kind, nn.Parameter) or is_trusted_class(kind):
            return value
        if id(value) not in self.made:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self.made[id(value)] = value, nn.Parameter(value.detach(), value.requires_grad)
        return self.made[id(value)][1]


class PlainTensors(TorchFunctionMode):
    """Refuses calls, as a module is run for real, on tensors that a trace would take for others."""

    def __init__(self, where: str) -> None:
        """`where`: what is run, for errors."""
        super().__init__()
        self.where = where
        self.known: set[type] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in leaves((args, kwargs or {}), Tensor):
            kind = type(tensor)
            if kind not in self.known:
                self._check(kind, func)
                self.known.add(kind)
        return func(*args, **(kwargs or {}))

    def _check(self, kind: type, func: Any) -> None:
        rule = rules_of(kind)
        if rule is None:
            return
        place = run_by(__file__)
        raise IRError(
            f"{self.where} cannot be written: '{getattr(func, '__name__', func)}'"
            + (f" ({place[0].short})" if place else "")
            + f" meets a {kind.__name__}, a tensor class with rules of its own",
            got=f"{kind.__name__}.{rule}, of which a trace knows nothing",
            expected="tensors and parameters of torch",
            remedy="what it computes as calls of torch, in a module or a function; a plain nn.Parameter for "
            "what it holds",
        )
