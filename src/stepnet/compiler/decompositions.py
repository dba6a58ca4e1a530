"""Decompositions that give what torch's kernels give at NaN and zeros, where torch's own do not."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.overrides import TorchFunctionMode

from .simpler import SIMPLER, one_hot, simpler_call

_SIXTH = 0.16666667163372040  # torch's kernel multiplies by 1/6 in float32, for doubles too


def _elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    low = alpha * scale
    slope = x + low if is_result else low * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * slope)


def _softshrink(x: Tensor, most: float = 0.5) -> Tensor:
    near = torch.where(torch.isnan(x), x.detach(), 0.0)
    return torch.where(x > most, x - most, torch.where(x < -most, x + most, near))


def _hardshrink(x: Tensor, most: float = 0.5) -> Tensor:
    near = torch.where(torch.isnan(x), x.detach(), 0.0)
    return torch.where((x < -most) | (x > most), x, near)


def _sgn(x: Tensor) -> Tensor:
    # the gradient that torch's trace gives to sgn names the number of rows
    return torch.sgn(x) if x.is_complex() else torch.sign(x)


def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    scaled = grad / x.numel() if reduction == 1 else grad
    far = x - target
    inner = torch.where(far >= beta, scaled, scaled * far / beta)
    return torch.where(far <= -beta, -scaled, inner)


def _split(x: Tensor, size: int, dim: int = 0) -> Any:
    whole = x.shape[dim]
    if not isinstance(whole, int) or not isinstance(size, int) or size <= 0:
        return NotImplemented
    sizes = [min(size, whole - start) for start in range(0, whole, size)] or [0]
    return torch.ops.aten.split_with_sizes.default(x, sizes, dim)


_OURS: dict[str, Callable[..., Any]] = {
    "hardtanh_backward": lambda grad, x, low, high: torch.where((x > low) & (x < high), grad, 0.0),
    "elu_backward": _elu_backward,
    "hardsigmoid_backward": lambda grad, x: torch.where((x > -3.0) & (x < 3.0), grad * _SIXTH, 0.0),
    "hardswish_backward": lambda grad, x: torch.where(
        x <= -3.0, 0.0, torch.where(x >= 3.0, grad, grad * (x / 3.0 + 0.5))
    ),
    "hardshrink_backward": lambda grad, x, most=0.5: torch.where((x < -most) | (x > most), grad, 0.0),
    "smooth_l1_loss_backward": _smooth_l1_loss_backward,
    # torch's joins rows with rows, then views
    "stack": lambda tensors, dim=0: torch.cat([t.unsqueeze(dim) for t in tensors], dim),
}


def bare(function: Any) -> Any:
    """A decomposition of torch's without its guards against Dynamo, which import all of it: a second."""
    within = getattr(function, "__wrapped__", None)
    if within is None:
        return function
    made = bare(within)
    if function.__code__ is _GUARD:
        return made
    if made is within:
        return function
    code, names, default = function.__code__, function.__globals__, function.__defaults__
    cells = [types.CellType(made) if c.cell_contents is within else c for c in function.__closure__]
    again = types.FunctionType(code, names, function.__name__, default, tuple(cells))
    again.__kwdefaults__ = function.__kwdefaults__
    return again


_GUARD = _disable_dynamo(lambda: None).__code__


def exact() -> dict[Any, Callable[..., Any]]:
    """The decompositions by overload."""
    ours = {getattr(torch.ops.aten, name).default: made for name, made in _OURS.items()}
    return {**ours, torch.ops.aten.split.Tensor: _split}


# torch decomposes these before autograd sees them, whatever table it is given
_EARLY: dict[Any, Callable[..., Tensor]] = {
    torch.nn.functional.softshrink: _softshrink,
    torch.nn.functional.hardshrink: _hardshrink,
    torch.hardshrink: _hardshrink,
    Tensor.hardshrink: _hardshrink,
    torch.sgn: _sgn,
    Tensor.sgn: _sgn,
}


class Exact(TorchFunctionMode):
    """Puts ours in the place of functions that a trace never sees whole, or that mix no rows but seem to."""

    def __init__(self, real: torch.dtype) -> None:
        super().__init__()
        self.simpler = {**SIMPLER, torch.nn.functional.one_hot: functools.partial(one_hot, real)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        simpler = self.simpler.get(func)
        if simpler is not None:
            result = simpler_call(simpler, func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if result is NotImplemented else result
        ours = _EARLY.get(func)
        if ours is None:
            return func(*args, **(kwargs or {}))
        names = {"input": "x", "lambd": "most"}
        return ours(*args, **{names[key]: value for key, value in (kwargs or {}).items()})
