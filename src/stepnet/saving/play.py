"""The creations of a topology on padded sequences: what each means there, in plain tensors."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.api import Recurrent, recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import sequence_expand, sequence_pool, sequence_reverse, sequence_softmax
from stepnet.data.tree import flatten, leaves, map_leaves, unflatten
from stepnet.errors import IRError, TapeError
from stepnet.front.step import boot_state
from stepnet.layers.basic import total
from stepnet.layers.generate import Generator
from stepnet.layers.group_run import GroupRunner
from stepnet.layers.sequences import Layer, expand_rows
from stepnet.tape.creation import Creation, Ref
from stepnet.tape.holding import Holding

from .groups import run_group
from .padded import Padded, mirrored


def run_padded(creation: Creation, values: Mapping[int, Any]) -> Any:
    """The value of one creation.

    Raises:
        TapeError: it has no meaning on padded sequences.
    """
    args, kwargs = map_leaves((creation.args, creation.kwargs), Ref, lambda ref: values[ref.index])
    function = creation.function
    if isinstance(function, Generator):
        raise refusal(creation, "what a beam search generates has no length that is known before")
    try:
        result = _result(creation, function, args, kwargs)
    except (TapeError, IRError):
        raise
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
        said = (str(error) or repr(error)).splitlines()[0]
        raise refusal(creation, f"it does not run on padded sequences: {said}") from error
    if creation.act is None:
        return result
    return _rows(creation.act, (result,), {}) if _of_torch(creation.act) else creation.act(result)


def _result(creation: Creation, function: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(function, GroupRunner):
        return run_group(function, run_padded, *args)
    if function is operator.getitem and isinstance(args[0], Padded):
        raise refusal(creation, "it picks some of the sequences")
    if next(leaves((args, kwargs), Padded), None) is None or function is operator.getitem:
        return function(*args, **kwargs)
    if isinstance(function, Recurrent):
        return _recurrent(creation, function, *args, **kwargs)
    if function in _SEQUENCES:
        return _SEQUENCES[function](creation, *args, **kwargs)
    if not all(isinstance(v, LoDTensor) for v in leaves(creation.example, (Tensor, LoDTensor))):
        raise refusal(creation, "it does more than one thing to each row of its sequences")
    return _rows(function, args, kwargs) if _of_torch(function) else function(*args, **kwargs)


def _rows(function: Any, args: Any, kwargs: Any) -> Any:
    """A function on the rows themselves, which is the same to it, and easier to trace."""
    first = next(leaves((args, kwargs), Padded), None)
    return function(*args, **kwargs) if first is None else first.by_rows(function, *args, **kwargs)


def _of_torch(function: Any) -> bool:
    """Whether torch alone is behind a function, so that it cannot tell rows from LoDTensors."""
    if isinstance(function, Holding):
        return _of_torch(function.function)
    if isinstance(function, functools.partial):
        return _of_torch(function.func)
    if isinstance(function, nn.Module):
        return all(type(module).__module__.startswith("torch.") for module in function.modules())
    if isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType)) or function is total:
        return True
    return (getattr(function, "__module__", None) or "").startswith("torch.")


def refusal(creation: Creation, why: str) -> TapeError:
    """The error for a layer that has no place in a saved topology."""
    return TapeError(
        f"{creation.place} cannot be saved: {why}", remedy="save a topology that ends before it, or skips it"
    )


# Layers of sequences


def _pool(creation: Creation, x: Padded, how: str) -> Any:
    mask, lengths = x.mask(), x.lengths[-1]
    axis, features = x.level, (1,) * (x.grid.dim() - x.level - 1)
    inside = mask.view(*mask.shape, *features)
    counts = lengths.view(*lengths.shape, *features)
    if how in ("first", "last"):
        if how == "first":
            row = x.grid.select(axis, 0)
        else:
            ends = (lengths - 1).clamp(min=0).view(*lengths.shape, 1, *features)
            row = x.grid.gather(axis, ends.expand(*lengths.shape, 1, *x.grid.shape[axis + 1 :])).squeeze(axis)
        pooled = torch.where(counts > 0, row, torch.zeros_like(row))
    elif how == "max":
        dtype = x.grid.dtype
        least = -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
        low = torch.where(inside, x.grid, torch.full_like(x.grid, least)).amax(axis)
        pooled = torch.where(counts > 0, low, torch.zeros_like(low))
    else:
        pooled = torch.where(inside, x.grid, torch.zeros_like(x.grid)).sum(axis)
        if how != "sum":
            divisor = counts.clamp(min=1).to(pooled.dtype)
            pooled = pooled / (divisor if how == "mean" else divisor.sqrt())
    return Padded(pooled, x.lengths[:-1]) if x.level > 1 else pooled


def _expand(creation: Creation, x: Any, like: Padded, level: int = -1) -> Padded:
    at = level % like.level
    grid, known = (x.grid, x.level) if isinstance(x, Padded) else (x, 0)
    if known != at:
        raise refusal(creation, "its rows are not one for each sequence of that level")
    sizes = like.grid.shape[at + 1]
    spread = grid.unsqueeze(at + 1).expand(*grid.shape[: at + 1], sizes, *grid.shape[at + 1 :])
    return Padded(spread, like.lengths[: at + 1])


def _softmax(creation: Creation, x: Padded) -> Padded:
    inside = x.mask().view(*x.mask().shape, *(1,) * (x.grid.dim() - x.level - 1))
    scores = torch.where(inside, x.grid, torch.full_like(x.grid, torch.finfo(x.grid.dtype).min))
    return Padded(torch.softmax(scores, x.level), x.lengths)


def _reverse(creation: Creation, x: Padded) -> Padded:
    return Padded(mirrored(x.grid, x.lengths[-1], x.level), x.lengths)


def _recurrent(creation: Creation, layer: Recurrent, x: Any, state: Any = None) -> Any:
    """A cell over the last level: over all sequences at once, their padding included, which comes behind."""
    if layer.level != -1 or layer.scopes or not isinstance(x, Padded):
        raise refusal(creation, "it does not run over the rows of one input")
    grid, lengths = x.grid, x.lengths[-1]
    if layer.reverse:
        grid = mirrored(grid, lengths, x.level)
    flat = grid.flatten(0, x.level - 1)

    def back(y: Tensor) -> Padded:
        out = y.unflatten(0, grid.shape[: x.level])
        return Padded(mirrored(out, lengths, x.level) if layer.reverse else out, x.lengths)

    if isinstance(layer, Layer):
        return back(recurrent(layer.step, flat, axis=1)[0])
    if x.level > 1:
        raise refusal(creation, "the final state of nested sequences has no place in a grid")

    def held(given: tuple[Tensor, Tensor], before: Any) -> Any:
        row, inside = given
        y, after = layer.step(row, before)
        kept, spec = flatten(before)
        new, _ = flatten(after)
        wide = (inside.view(-1, *(1,) * (old.dim() - 1)) for old in kept)
        return y, unflatten(spec, [torch.where(m, n, o) for m, n, o in zip(wide, new, kept, strict=True)])

    first = boot_state(layer.step, flat.shape[0]) if state is None else state
    y, last = recurrent(held, (flat, x.mask()), first, axis=1)
    return map_leaves(y, Tensor, back), last


_SEQUENCES = {
    sequence_pool: _pool,
    expand_rows: _expand,
    sequence_expand: _expand,
    sequence_softmax: _softmax,
    sequence_reverse: _reverse,
}
