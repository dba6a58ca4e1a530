"""Decompositions that give what torch's kernels give at NaN and zeros, where torch's own do not; and torch's
own, without what they import."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as _KINDS
from torch.overrides import TorchFunctionMode

from .calls import SIMPLER, one_hot, simpler_call

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


# torch's two do the same, but ask sympy whether shapes fit: half a second of imports


def _layer_norm(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    of = tuple(shape)
    if any(t is not None and tuple(t.shape) != of for t in (weight, bias)) or x.is_complex():
        return NotImplemented
    wide = _wide(x)
    var, mean = torch.var_mean(wide, [*range(x.dim() - len(of), x.dim())], correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = (wide - mean) * rstd
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return tuple(t.to(x.dtype) for t in (out, mean, rstd))


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, mask: Any,
) -> Any:  # fmt: skip
    dims, first = [*range(x.dim())], x.dim() - len(shape)
    wide, size = _wide(grad), math.prod(shape)
    hat = (_wide(x) - mean) * rstd
    found: list[Tensor | None] = [None, None, None]
    if mask[0]:
        by_hat = wide if weight is None else wide * _wide(weight)
        of_mean, of_std = by_hat.sum(dims[first:], True), (by_hat * hat).sum(dims[first:], True)
        found[0] = (rstd / size * (by_hat * size - of_mean - hat * of_std)).to(x.dtype)
    for at, given, change in ((1, weight, lambda: wide * hat), (2, bias, lambda: wide)):
        if mask[at] and given is not None:
            found[at] = (change().sum(dims[:first]) if first else change().clone()).to(given.dtype)
    return tuple(found)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


_OURS: dict[str, Callable[..., Any]] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
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
    """A decomposition of torch's without its guards against Dynamo, which import all of it: a second; and, of
    floats of one type, without its promotion of types, which imports sympy: half of one."""
    within = getattr(function, "__wrapped__", None)
    if within is None:
        return function
    made = bare(within)
    if function.__code__ is _GUARD:
        return made
    if function.__code__ in _promoting():
        return _unless_floats(function, made)
    if made is within:
        return function
    code, names, default = function.__code__, function.__globals__, function.__defaults__
    cells = [types.CellType(made) if c.cell_contents is within else c for c in function.__closure__]
    again = types.FunctionType(code, names, function.__name__, default, tuple(cells))
    again.__kwdefaults__ = function.__kwdefaults__
    return again


_GUARD = _disable_dynamo(lambda: None).__code__


@functools.cache
def _promoting() -> tuple[types.CodeType, ...]:
    """The code of torch's functions that promote types and call another one."""
    from torch._decomp.decompositions import type_casts
    from torch._prims_common.wrappers import elementwise_type_promotion_wrapper

    how: Any = {"type_promoting_args": (), "type_promotion_kind": _KINDS.DEFAULT}
    made: Any = elementwise_type_promotion_wrapper(**how)(lambda: None)
    made = inspect.unwrap(made, stop=lambda function: "self" in function.__code__.co_freevars)
    casts: Any = type_casts(lambda: None, _KINDS.DEFAULT)
    return made.__code__, casts.__code__


def _unless_floats(function: Any, within: Callable[..., Any]) -> Callable[..., Any]:
    """A function that promotes types; where there is nothing to promote, what it calls."""
    known = inspect.getclosurevars(function).nonlocals
    of_names = known.get("self")  # what says which arguments are promoted: else, all tensors
    kind = known["type_promotion"] if of_names is None else of_names.type_promotion_kind
    if kind not in (_KINDS.DEFAULT, _KINDS.INT_TO_FLOAT) or known.get("include_non_tensor_args"):
        return function
    signature = inspect.signature(within)

    def promoted(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        names = given if of_names is None else of_names.type_promoting_arg_names
        parts = [given[name] for name in names if name in given]
        dtypes = {part.dtype for part in parts if isinstance(part, Tensor)}
        others = {type(part) for part in parts if not isinstance(part, Tensor)}
        is_plain = dtypes in ({torch.float32}, {torch.float64}) and given.get("dtype") is None
        is_plain &= others <= {float} if of_names is not None else others.isdisjoint({list, tuple, dict})
        return (within if is_plain else function)(*args, **kwargs)

    return promoted


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


def _takes(function: Callable[..., Any], names: Iterable[str]) -> bool:
    """Whether a function has parameters of these names: torch takes some by those of numpy, too."""
    own = inspect.signature(function).parameters
    return any(p.kind is p.VAR_KEYWORD for p in own.values()) or all(name in own for name in names)


class Exact(TorchFunctionMode):
    """Puts ours in the place of functions that a trace never sees whole, or that mix no rows but seem to."""

    def __init__(self, real: torch.dtype) -> None:
        super().__init__()
        self.simpler = {**SIMPLER, torch.nn.functional.one_hot: functools.partial(one_hot, real)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        simpler = self.simpler.get(func)
        if simpler is not None and (not kwargs or _takes(simpler, kwargs)):
            result = simpler_call(simpler, func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if result is NotImplemented else result
        ours = _EARLY.get(func)
        if ours is None:
            return func(*args, **(kwargs or {}))
        names = {"input": "x", "lambd": "most"}
        return ours(*args, **{names[key]: value for key, value in (kwargs or {}).items()})
