"""The creations of a topology on padded sequences: what each means there, in plain tensors."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepnet.api import Recurrent, recurrent
from stepnet.data.lod import LoDTensor
from stepnet.data.sequence import sequence_expand, sequence_pool, sequence_reverse, sequence_softmax
from stepnet.data.tree import Spec, flatten, leaves, map_leaves, unflatten
from stepnet.errors import IRError, TapeError
from stepnet.front.step import as_step, boot_state
from stepnet.layers.basic import total
from stepnet.layers.generate import Generator
from stepnet.layers.group_run import GroupRunner
from stepnet.layers.sequences import Layer, expand_rows
from stepnet.tape.creation import Creation, Ref
from stepnet.tape.holding import Holding
from stepnet.watchers import Instead, instead, replaced

from .costs import COSTS
from .groups import run_group
from .padded import PaddedLoD, mirrored


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
    if function is operator.getitem and isinstance(args[0], PaddedLoD):
        raise refusal(creation, "it picks some of the sequences")
    if next(leaves((args, kwargs), PaddedLoD), None) is None or function is operator.getitem:
        return function(*args, **kwargs)
    if isinstance(function, Layer):
        return _layer(creation, function, *args, **kwargs)
    if function in _SEQUENCES:
        return _SEQUENCES[function](creation, *args, **kwargs)
    if function in COSTS:
        return COSTS[function](*args, **kwargs)
    rows = all(isinstance(v, LoDTensor) for v in leaves(creation.example, (Tensor, LoDTensor)))
    if not rows and not isinstance(function, Recurrent):
        raise refusal(creation, "it does more than one thing to each row of its sequences")
    with replaced(_OnGrids(creation)):
        return _rows(function, args, kwargs) if _of_torch(function) else function(*args, **kwargs)


def _rows(function: Any, args: Any, kwargs: Any) -> Any:
    """A function on the rows themselves, which is the same to it, and easier to trace."""
    first = next(leaves((args, kwargs), PaddedLoD), None)
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
        f"{creation.place} cannot be saved: {why}",
        got=creation.kind or creation.name,
        expected="layers that a file can hold",
        remedy="save a topology that ends before it, or skips it",
    )


# Layers of sequences


def _pool(creation: Creation, x: PaddedLoD, how: str) -> Any:
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
    return PaddedLoD(pooled, x.lengths[:-1]) if x.level > 1 else pooled


def _expand(creation: Creation, x: Any, like: PaddedLoD, level: int = -1) -> PaddedLoD:
    at = level % like.level
    grid, known = (x.grid, x.level) if isinstance(x, PaddedLoD) else (x, 0)
    if known != at:
        raise refusal(creation, "its rows are not one for each sequence of that level")
    sizes = like.grid.shape[at + 1]
    spread = grid.unsqueeze(at + 1).expand(*grid.shape[: at + 1], sizes, *grid.shape[at + 1 :])
    return PaddedLoD(spread, like.lengths[: at + 1])


def _softmax(creation: Creation, x: PaddedLoD) -> PaddedLoD:
    inside = x.mask().view(*x.mask().shape, *(1,) * (x.grid.dim() - x.level - 1))
    scores = torch.where(inside, x.grid, torch.full_like(x.grid, torch.finfo(x.grid.dtype).min))
    return PaddedLoD(torch.softmax(scores, x.level), x.lengths)


def _reverse(creation: Creation, x: PaddedLoD) -> PaddedLoD:
    return PaddedLoD(mirrored(x.grid, x.lengths[-1], x.level), x.lengths)


class _OnGrids(Instead):
    """Answers for recurrences over padded sequences that a layer's function calls; others go on as they were.

    They run over all sequences of the last level at once, their padding included, which comes behind.
    """

    def __init__(self, creation: Creation) -> None:
        self.creation, self.around = creation, instead()

    def __call__(
        self, step: Any, x: Any, state: Any, *, reverse: bool, level: int, axis: int, scopes: bool
    ) -> Any:
        given, spec = flatten(x)
        with replaced(self.around):
            if not any(isinstance(leaf, PaddedLoD) for leaf in given):
                return recurrent(step, x, state, reverse=reverse, level=level, axis=axis, scopes=scopes)
            if level != -1 or scopes or not all(_same_grid(given[0], leaf) for leaf in given):
                raise refusal(self.creation, "it does not run over the rows of its inputs, side by side")
            return self._run(step, given, spec, state, reverse)

    def _run(self, step: Any, given: list[PaddedLoD], spec: Spec, state: Any, reverse: bool) -> Any:
        x, function = given[0], as_step(step)
        flat = [_flat(leaf, reverse) for leaf in given]
        first = boot_state(function, flat[0].shape[0]) if state is None else state
        if x.level > 1 and flatten(first)[0]:
            raise refusal(self.creation, "the final state of nested sequences has no place in a grid")

        def held(row: tuple[Any, Tensor], before: Any) -> Any:
            y, after = function(row[0], before)
            kept, kind = flatten(before)
            new, _ = flatten(after)
            inside = (row[1].view(-1, *(1,) * (old.dim() - 1)) for old in kept)
            return y, unflatten(
                kind, [torch.where(m, n, o) for m, n, o in zip(inside, new, kept, strict=True)]
            )

        mask = x.mask().flatten(0, x.level - 1)
        y, last = recurrent(held, (unflatten(spec, flat), mask), first, axis=1)
        return map_leaves(y, Tensor, lambda leaf: _back(leaf, x, reverse)), last

    def loop(self, loop: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.around is not None
        return self.around.loop(loop, feeds)

    def alone(self, decide: Callable[[], str]) -> str:
        return "" if self.around is None else self.around.alone(decide)


def _same_grid(x: PaddedLoD, other: Any) -> bool:
    same = isinstance(other, PaddedLoD) and len(other.lengths) == len(x.lengths)
    return same and all(a is b for a, b in zip(x.lengths, other.lengths, strict=True))


def _flat(x: PaddedLoD, reverse: bool) -> Tensor:
    """The sequences of the last level, [n, time, ...], each from its end if they run backwards."""
    grid = mirrored(x.grid, x.lengths[-1], x.level) if reverse else x.grid
    return grid.flatten(0, x.level - 1)


def _back(y: Tensor, x: PaddedLoD, reverse: bool) -> PaddedLoD:
    """What a recurrence gave for sequences of the last level, in the grid that they came from."""
    grid = y.unflatten(0, x.grid.shape[: x.level])
    return PaddedLoD(mirrored(grid, x.lengths[-1], x.level) if reverse else grid, x.lengths)


def _layer(creation: Creation, layer: Layer, x: Any) -> PaddedLoD:
    """A cell over the last level, whose final states nobody asks for."""
    if layer.level != -1 or layer.scopes or not isinstance(x, PaddedLoD):
        raise refusal(creation, "it does not run over the rows of one input")
    return _back(recurrent(layer.step, _flat(x, layer.reverse), axis=1)[0], x, layer.reverse)


_SEQUENCES = {
    sequence_pool: _pool,
    expand_rows: _expand,
    sequence_expand: _expand,
    sequence_softmax: _softmax,
    sequence_reverse: _reverse,
}
