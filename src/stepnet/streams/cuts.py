"""Whether a module sees where its rows were cut: some rows are run whole, and in two pieces. Whether what it
keeps from push to push changes the next: a copy of it is given the same rows twice, others between."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from stepnet.compiler.reads.kinds import shows_attributes
from stepnet.compiler.reads.undo import is_only_thread
from stepnet.compiler.trace.logs_and_prints import no_remarks
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype, draws_put_back
from stepnet.data.tree import Spec, flatten, names, unflatten
from stepnet.errors import StreamWarning
from stepnet.front.step import step_name
from stepnet.interrupts import let_through
from stepnet.user_line import user_level

from .before import Before
from .chunks import joined, parted
from .keeper import Keeper, steps_of
from .states import States

_ROWS = 64  # that are run again at most: of 2, 4, 8 ... rows that came, until so many told
_TRIALS = 8
_LEAST = 1 / 32  # difference that counts: in parts of the largest number of a result
_MORE = 4  # times what rounding makes of the same rows
_Out = TypeVar("_Out")


class Cuts:
    """Looks at the first pushes, until they tell whether the module sees the edges of chunks.

    What the module does is not told from its code, but from what it gives for rows that it was just pushed,
    from the first states on. It is left alone where to run it once more could be noticed: where the push drew
    noise, or changed anything that the module can reach.
    """

    def __init__(self) -> None:
        self._trials = _TRIALS
        self._rows: list[Any] = []  # that came, one after the other
        self._next = 2  # how many are to come until the next trial

    @property
    def wait(self) -> bool:
        """Whether no push has told yet."""
        return self._trials > 0

    def beside(
        self,
        push: Callable[[], _Out],
        module: Any,
        chunks: Mapping[Hashable, Any],
        x: Any,
    ) -> _Out:
        """What a push gives. Warns if the module gives other results for pieces of its rows.

        Args:
            push: runs the module.
            chunks, x: what is pushed, and all as one batch.
        """
        by_rows = isinstance(x, LoDTensor) and steps_of(module, x)[0]  # it sees one row at a time
        spec = self._take(chunks, x)
        if spec is None:
            return push()
        self._trials = 0 if by_rows else self._trials - 1
        before = Before.of(module)
        out = push()
        keeps = before is not None and before.changed()
        if before is None or (before.drew() if keeps else by_rows):
            return out
        try:
            with no_remarks(), draws_put_back():
                if keeps:
                    told, found = True, _told_twice(module, chunks, self._rows, before)
                else:
                    told, found = _told(module, self._rows, spec, before.tensors)
        except Exception as error:  # the module's, for which these rows may be too few; or it logs
            let_through(error)
            return out
        finally:
            if not keeps:
                before.restore()
        if found is not None or (told and self._next > _ROWS):
            self._trials, self._rows = 0, []
        if found is not None:
            warnings.warn(_warning(step_name(module), found, keeps), stacklevel=user_level())
        return out

    def _take(self, chunks: Mapping[Hashable, Any], x: Any) -> Spec | None:
        """Keep rows that came, those of one stream after those of another. How a chunk is nested, if there
        are enough to look at."""
        spec = flatten(next(iter(chunks.values())))[1]
        batch, *others = flatten(x)[0]
        if others:  # which may be whole at every push, as a memory is
            self._trials = 0
            return None
        if self._next > _ROWS:  # those that came were all alike
            self._rows, self._next = [], 2
        rows = batch.values if batch.lod_level == 1 else batch.drop_levels()
        if not len(rows):
            return None
        self._rows.append(_copy(rows[:_ROWS]))
        have = sum(map(len, self._rows))
        if have < self._next:
            return None
        self._next = 2 * have
        return spec


def _copy(rows: Any) -> Any:
    return rows.map(Tensor.clone) if isinstance(rows, LoDTensor) else rows.clone()


def _joined(pieces: Sequence[Any]) -> Any:
    """The rows of pieces that follow each other."""
    return LoDTensor.cat(pieces) if isinstance(pieces[0], LoDTensor) else torch.cat(tuple(pieces))


class _Apart(NamedTuple):
    """How two results of one name differ: how many rows they have, and by how much, in parts of the largest
    number and as it is."""

    name: str
    rows: int
    ratio: float
    difference: float
    largest: float


def _told(module: Any, rows: list[Any], spec: Spec, tensors: list[Tensor]) -> tuple[bool, _Apart | None]:
    """Whether rows tell if a module sees where they are cut, and how its results differ if it does."""
    whole = _joined(rows)[:_ROWS]
    # odd, as few blocks of rows are; early, for what reaches far
    cut = min(max(len(whole) // 2 - 1, 0) | 1, 7)
    numbers = whole if isinstance(whole, Tensor) else whole.values
    if bool((numbers == numbers[:1]).all()):
        return False, None
    once = _outputs(module, [whole], spec)
    found = _apart(once, _outputs(module, [whole[:cut], whole[cut:]], spec))
    rounding = _rounding([*tensors, numbers, *once.values()])
    if found is None or found.ratio <= (least := max(_LEAST, math.sqrt(rounding))):
        return True, None
    for again in (whole, _shaken(whole, rounding)):  # it draws noise, or makes much of a hair of difference
        itself = _apart(once, _outputs(module, [again], spec))
        least = max(least, 0.0 if itself is None else _MORE * itself.ratio)
    return True, None if found.ratio <= least else found


def _told_twice(
    module: Any, chunks: Mapping[Hashable, Any], rows: list[Any], before: Before
) -> _Apart | None:
    """How results of a module that keeps something differ where other rows came before, in a copy of it. What
    the copy shares with others is put back; tensors of others that it writes to could not be."""
    now, written, held = Before.of(module), before.tensors_changed(), before.holders_changed()
    if now is None:
        return None
    twin, copied = module, dict[int, Any]()
    if isinstance(module, nn.Module):
        shared = {id(p): p for p in module.parameters() if id(p) not in written}
        twin = copy.deepcopy(module, copied := shared.copy())
        originals = copied.get(id(copied), ())  # where copy keeps them alive
        own = {id(vars(each)): each for each in originals if shows_attributes(type(each))}
        copied = {place: copied[place] for place in copied.keys() - shared.keys()} | own
    if not written <= copied.keys() or not (is_only_thread() or held <= copied.keys()):
        return None
    others = {id: _others(chunk, _joined(rows)) for id, chunk in chunks.items()}
    try:
        pushes = chunks, others, chunks, chunks  # the last for what counts to two
        once, _, *again = (_pushed(twin, given, States(), False) for given in pushes)
    finally:
        now.restore()
    least = math.sqrt(_rounding([*before.tensors, *once.values()]))
    found = [apart for out in again if (apart := _apart(once, out)) is not None and apart.ratio > least]
    return found[0] if found else None


def _others(chunk: Any, rows: Any) -> Any:
    """As many rows that came before the last, or as a chunk of sequences has them, in another order."""
    [leaf], spec = flatten(chunk)
    if isinstance(leaf, LoDTensor):
        return unflatten(spec, [leaf.with_values(leaf.values.flip(0))])
    rows = rows[:-1].flip(0)
    return unflatten(spec, [rows[torch.arange(len(leaf), device=leaf.device) % len(rows)]])


def _warning(name: str, found: _Apart, keeps: bool) -> StreamWarning:
    """That the module keeps something between pushes; or that it sees where rows are cut."""
    if keeps:
        what = "keeps something of one push that changes the next, of whatever streams"
        how, other = "that come again", "the first time"
        remedy = "carry it as state of a recurrence: each stream has its own then"
    else:
        what = "gives other results for the chunks of a stream than for the whole stream"
        how, other = "in two chunks", "one chunk"
        remedy = (
            "what it does across rows by hand (a convolution, cumsum, mean, to_padded) must be a "
            "state of a recurrence; else push whole sequences"
        )
    return StreamWarning(
        f"'{name}' {what}",
        got=f"'{found.name}' of {found.rows} rows {how}, which differs by up to {found.difference:.2g}",
        expected=f"that of {other}, of up to {found.largest:.2g}",
        remedy=remedy,
    )


def _shaken(rows: Any, rounding: float) -> Any:
    """Rows of which some numbers are larger by a few times the rounding."""

    def shaken(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        some = torch.arange(x.numel(), device=x.device).view(x.shape) % 3 == 0
        return x.where(some, x * (1 + 4 * rounding))

    return shaken(rows) if isinstance(rows, Tensor) else rows.map(shaken)


def _outputs(module: Any, pieces: list[Any], spec: Spec) -> dict[str, Tensor]:
    """What a module gives for the pieces of a stream, a push each."""
    states, out = States(), dict[str, list[Tensor]]()
    for k, piece in enumerate(pieces):
        for name, leaf in _pushed(module, {0: unflatten(spec, [piece])}, states, k > 0).items():
            out.setdefault(name, []).append(leaf)
    return {name: torch.cat(parts) for name, parts in out.items() if len(parts) == len(pieces)}


def _pushed(module: Any, chunks: Mapping[Hashable, Any], states: States, begun: bool) -> dict[str, Tensor]:
    """What a module gives for a push: the results with a row for each row, by their names."""
    x, levels, lengths = joined(chunks)
    keeper = Keeper(states, tuple(range(len(chunks))), [begun] * len(chunks), levels)
    results = [flatten(own) for own in parted(keeper.answer(module, x), levels[0], lengths, module)]
    keeper.done()
    out = dict[str, Tensor]()
    for k, name in enumerate(names(results[0][1], "y")):
        parts = [leaves[k] for leaves, _ in results]
        if [*map(len, parts)] == lengths:
            out[name] = torch.cat([leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in parts])
    return out


def _rounding(beside: list[Tensor]) -> float:
    """Of the coarsest type that takes part."""
    kinds = {t.dtype for t in beside} | {autocast_dtype(t.device.type) for t in beside}
    return max(
        (torch.finfo(k).eps for k in kinds if k and (k.is_floating_point or k.is_complex)), default=0.0
    )


def _apart(whole: dict[str, Tensor], cut: dict[str, Tensor]) -> _Apart | None:
    """The result that differs most between two ways to cut; None: none does."""
    found = None
    for name, a in whole.items():
        b = cut.get(name)
        if b is None or a.shape != b.shape or not a.numel():
            continue
        wide = torch.complex128 if a.is_complex() else torch.float64
        x, y = a.to("cpu", wide), b.to("cpu", wide)
        same = (x == y) | (x.isnan() & y.isnan())
        difference = (x - y).abs().masked_fill(same, 0.0).nan_to_num(math.inf, math.inf).max().item()
        largest = torch.cat([x, y]).abs().nan_to_num(0.0, 0.0).max().item()
        if a.is_floating_point() or a.is_complex():
            ratio = difference / (largest or 1.0)
        else:  # numbers of classes, say, of which none is larger than others
            ratio = 1 - same.double().mean().item()
        if ratio > (0.0 if found is None else found.ratio):
            found = _Apart(name, len(a), ratio, difference, largest)
    return found
