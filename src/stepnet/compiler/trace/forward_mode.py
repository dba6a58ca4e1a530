"""`torch.func.jvp` and `jacfwd` in a step that is traced: by gradients, for no trace sees dual numbers.

And what Jacobians begin with: torch's own writes into what it made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms

from stepnet.compiler.reads.swapped import Swapped
from stepnet.data.tree import flatten, unflatten
from stepnet.watchers import during

_traced: ContextVar[bool] = ContextVar("stepnet_forward_mode_by_gradients", default=False)


@contextlib.contextmanager
def by_gradients() -> Iterator[None]:
    """Let forward mode be two gradients in here, in this thread."""
    with during(_traced, True), _JVP.inside(), _BASIS.inside():
        yield


def _jvp(
    function: Callable[..., Any],
    primals: Any,
    tangents: Any,
    argnums: Any = None,
    *,
    has_aux: bool,
    **how: Any,
) -> Any:
    """`J u` is the gradient of `<u, J' v>` with respect to v, whatever v is."""
    if not _traced.get():
        return _JVP.original(function, primals, tangents, argnums, has_aux=has_aux, **how)
    moved = primals if argnums is None else eager_transforms._slice_argnums(primals, argnums)
    inputs, spec = flatten(moved)

    def of(*leaves: Any) -> Any:
        args = unflatten(spec, leaves)
        return function(
            *(args if argnums is None else eager_transforms._replace_args(primals, args, argnums))
        )

    out, back, *aux = torch.func.vjp(of, *inputs, has_aux=has_aux)
    leaves, form = flatten(out)

    def gradient(*seeds: Any) -> Any:
        return back(unflatten(form, seeds))

    again = torch.func.vjp(gradient, *(torch.zeros_like(leaf) for leaf in leaves))[1]
    return (out, unflatten(form, again(tuple(flatten(tangents)[0]))), *aux)


_JVP = Swapped(eager_transforms, "_jvp_with_argnums", _jvp)


def _basis(
    tensors: Sequence[Tensor], sizes: Sequence[int], chunk_size: int | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """The rows of a unit matrix, `chunk_size` at a time, a part of each as each tensor is."""
    whole = sum(sizes)
    if not _traced.get() or type(whole) is not int:
        yield from _BASIS.original(tensors, sizes, chunk_size=chunk_size)
        return
    for start in range(0, whole, chunk_size or whole):
        rows, at, parts = min(chunk_size or whole, whole - start), 0, []
        for tensor, size in zip(tensors, sizes, strict=True):
            unit = torch.eye(whole, dtype=tensor.dtype, device=tensor.device)
            parts.append(unit[start : start + rows, at : at + size].reshape(rows, *tensor.shape))
            at += size
        yield tuple(parts)


_BASIS = Swapped(eager_transforms, "_chunked_standard_basis_for_", _basis)
