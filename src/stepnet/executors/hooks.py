"""Hooks of tensors are called where a gradient comes, as in the plain loop.

torch's engine calls those of what a node of several tensors takes and gives with None where none comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from stepnet.data.autograd_history import history

_NEAR = 100  # operations before a recurrence, of whose leaves the hooks are seen to


class _Called:
    """A hook that is not called with None."""

    def __init__(self, hook: Callable[[Tensor], Any]):
        self.hook = hook

    def __call__(self, grad: Tensor | None) -> Any:
        return None if grad is None else self.hook(grad)


def _called(hook: Any) -> Any:
    """The hook, not called with None; those of `register_multi_grad_hook` count the calls, and take None."""
    counts = getattr(hook, "__module__", None) == torch.autograd.graph.__name__
    return hook if counts or isinstance(hook, _Called) else _Called(hook)


class _Accumulated:
    """A hook after the gradient of a leaf is accumulated that is not called where nothing came to it."""

    def __init__(self, hook: Callable[[Tensor], None]):
        self.hook = hook
        self.before: tuple[Tensor | None, int] | None = None

    def expect(self, leaf: Tensor) -> None:
        """Note what the leaf has before the engine comes to it, perhaps with nothing."""
        self.before = _accumulated(leaf)

    def __call__(self, leaf: Tensor) -> None:
        before, self.before = self.before, None
        now = _accumulated(leaf)
        if before is None or before[0] is not now[0] or before[1] != now[1]:
            self.hook(leaf)


def _accumulated(leaf: Tensor) -> tuple[Tensor | None, int]:
    """The gradient of a leaf, and how often it was written to."""
    grad = leaf.grad
    return grad, 0 if grad is None else grad._version


class _Hooks(OrderedDict[int, Any]):
    def __setitem__(self, key: int, hook: Any) -> None:
        super().__setitem__(key, _called(hook))


def guarded_results(function: type[torch.autograd.Function]) -> None:
    """See to the hooks of what this function gives, from when one is registered."""
    node: Any = function._backward_cls  # pyright: ignore[reportAttributeAccessIssue]
    registered = node._register_hook_dict

    def register(self: Any, tensor: Tensor) -> None:
        tensor._backward_hooks = _Hooks(tensor._backward_hooks or {})
        registered(self, tensor)

    node._register_hook_dict = register


def guard_inputs(
    node: Any, inputs: Iterable[Tensor], gradients: Iterable[Tensor | None], needed: Iterable[bool]
) -> None:
    """See to the hooks of those of a node's inputs, and of what they are views or are made of, for which a
    backward of it has no gradient, though they `needed` one: the engine leads to no others."""
    for k, (tensor, gradient, leads) in enumerate(zip(inputs, gradients, needed, strict=False)):
        if leads and gradient is None:
            before = islice(history([node.next_functions[k][0]]), _NEAR)
            leaves = [getattr(each, "variable", None) for each in before]
            for each in (tensor, tensor._base, *leaves):
                if each is not None:
                    _guard(each)


def _guard(tensor: Tensor) -> None:
    if hooks := tensor._backward_hooks:
        for key, hook in hooks.items():
            hooks[key] = _called(hook)
    if tensor.is_leaf and (hooks := tensor._post_accumulate_grad_hooks):
        for key, hook in hooks.items():
            hooks[key] = hook = hook if isinstance(hook, _Accumulated) else _Accumulated(hook)
            hook.expect(tensor)
