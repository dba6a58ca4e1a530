"""Checkpoints of torch's in an exported step: a program has their operators, and does not say what backward
computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator


def is_checkpoint(target: Any) -> bool:
    """Whether a node with this target is one."""
    return isinstance(target, HigherOrderOperator) and target.name() == "tag_activation_checkpoint"


def without_checkpoint(body: fx.GraphModule) -> Callable[..., Any]:
    """What a checkpoint runs, and those inside of it, as a function that a graph can name."""

    def called(*args: Any) -> Any:
        return _Plainly(body).run(*args)

    return called


class _Plainly(fx.Interpreter):
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_checkpoint(target):
            return _Plainly(args[0]).run(*args[1:])
        return super().call_function(target, args, kwargs)
