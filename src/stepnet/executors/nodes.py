"""Functions of autograd called inside torch.func's transforms, without what takes torch longest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import VmapInfo, custom_function_call
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad

from stepnet.data.in_graph import not_followed
from stepnet.data.modes import outside_innermost, transforms


def one_level_down(function: Callable[..., tuple[Tensor | None, ...]]) -> Any:
    """A `jvp` whose arithmetic has derivatives in forward mode itself: torch switches that mode off around
    it, at all levels of jvp inside jvp, not just at its own."""

    def call(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if transforms().count("Jvp") < 2:
            return function(ctx, *tangents)
        functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
        level = functorch.peek_interpreter_stack().level()

        def below(tensor: Any) -> Any:
            return functorch._unwrap_for_grad(tensor, level) if isinstance(tensor, Tensor) else tensor

        plain = SimpleNamespace(**ctx.__dict__, saved_tensors=tuple(map(below, ctx.saved_tensors)))
        with outside_innermost(), forward_ad._set_fwd_grad_enabled(True):
            moved = function(plain, *map(below, tangents))
        return tuple(None if t is None else functorch._wrap_for_grad(t, level) for t in moved)

    return call


def applied(function: Any, *inputs: Any) -> tuple[Tensor, ...]:
    """`function.apply`, without a look at its signature at each call, inside of transforms without torch's
    way through trees, and where nothing is to be told to autograd without a node."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    inputs, around = unwrap_dead_wrappers(inputs), functorch.peek_interpreter_stack()
    kinds = functorch.TransformType
    if around is not None and around.key() == kinds.Vmap:
        return _of_a_batch(function, inputs, functorch)
    if around is not None and around.key() in (kinds.Grad, kinds.Jvp):
        with enable_single_level_autograd_function():
            return _of_a_level(function).apply(*inputs)
    if around is not None:
        call: Any = custom_function_call
        return call(function, *inputs)
    untold = forward_ad._current_level < 0 and not torch.is_grad_enabled()
    if untold or torch.is_inference_mode_enabled():
        return function.forward(*inputs)
    node: Any = super(torch.autograd.Function, function)
    return node.apply(*(t.clone() if isinstance(t, Tensor) and t.is_inference() else t for t in inputs))


def _of_a_batch(function: Any, inputs: Sequence[Any], functorch: Any) -> tuple[Tensor, ...]:
    """`applied` where the innermost transform is a batch."""
    batch: Any = retrieve_current_functorch_interpreter()
    level, info = batch.level(), VmapInfo(batch.batch_size(), batch.randomness())
    parts = [functorch._unwrap_batched(t, level) if isinstance(t, Tensor) else (t, None) for t in inputs]
    plain, dims = zip(*parts, strict=True)
    with batch.lower():
        if all(d is None for d in dims):
            return applied(function, *plain)
        out, out_dims = function.vmap(info, dims, *plain)
    both = zip(out, out_dims, strict=True)
    return tuple(t if d is None else functorch._add_batch_dim(t, d, level) for t, d in both)


@cache
def _of_a_level(function: Any) -> Any:
    """A function for the innermost transform, a derivative: what it does to a tensor is taken off, and put
    around what is made of it."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

    @not_followed
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        own: Any = retrieve_current_functorch_interpreter()
        level = own.level()
        plain = [functorch._unwrap_for_grad(t, level) if isinstance(t, Tensor) else t for t in inputs]
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), own.lower():
            out = applied(function, *plain)
        of = {id(t): t_in for t, t_in in zip(plain, inputs, strict=True)}  # what is given back stays the same
        return tuple(of[id(t)] if id(t) in of else functorch._wrap_for_grad(t, level) for t in out)

    rules = {"forward": forward}
    rules |= {name: getattr(function, name) for name in ("setup_context", "backward", "jvp")}
    kind: Any = torch.autograd.function._SingleLevelFunction
    return type(function.__name__, (kind,), {name: staticmethod(rule) for name, rule in rules.items()})
