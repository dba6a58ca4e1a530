"""The plan of a run inside torch.func's transforms: found for plain tensors in the place of wrapped ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.trace.capture import Replaced
from stepnet.compiler.trace.iteration import code_of, reached
from stepnet.data.modes import has_tangent, is_wrapped, outside_transforms, transforms
from stepnet.data.unpatched_torch import contiguous
from stepnet.errors import Unsupported
from stepnet.executors.call import Call
from stepnet.executors.ready import Ready
from stepnet.executors.transformed import Derivative, Run
from stepnet.ir.loop import Code, Loop

from .cached_parametrizations import cached_again
from .ensembles import loop_of_members
from .entries import Entry
from .jvp_plan import Find, RunsAlong
from .plain import plain_loop
from .reads import Reads, asks_for_gradients, closed
from .rows import Sequences, as_rows


@dataclass(frozen=True, eq=False)
class Further:
    """The derivatives of a run, found for plain tensors.

    Attributes:
        along: of the run on plain tensors.
        weights: the plain tensors in the places of its weights.
    """

    along: RunsAlong
    weights: Sequence[Tensor]

    def __call__(self, moves: Sequence[bool], *, forward_mode: bool) -> Derivative:
        with outside_transforms(), torch.enable_grad():
            self.along.fill()
            rows = self.along.sequences
            tensors = (*rows.x_rows, *rows.states, *self.weights)
            directions = [_twin(t) if moves_ else None for t, moves_ in zip(tensors, moves, strict=True)]
            moved = self.along.of(tensors, directions, forward_mode=forward_mode)
        # one tensor may be given twice, as two states: x and states are told by where they stand
        n_x, n_s, n = len(rows.x_rows), len(rows.states), len(tensors)
        at: dict[int, int | Tensor] = {id(t): n + i for i, t in enumerate(directions)}
        at |= {id(t): n_x + n_s + i for i, t in enumerate(self.weights)}
        beside = [at.get(id(t), t) for t in (*moved.x[n_x:], *moved.states[n_s:], *moved.weights)]
        cut = len(moved.x) - n_x
        inputs = [*range(n_x), *beside[:cut], *range(n_x, n_x + n_s), *beside[cut:]]
        along: Any = moved.call.along
        run = Run(moved.call, functools.cache(lambda: Further(along(), moved.weights)))
        results = functools.partial(self.along.derivatives, n_y=len(moved.call.ready.plan.y))
        return Derivative(run, inputs, results)

    def has_history(
        self, given: Sequence[bool], needed: Sequence[bool], live: Sequence[bool]
    ) -> Sequence[bool]:
        with outside_transforms():
            return self.along.has_history(given, needed, live)

    def times(self, k: int) -> Further:
        rows = self.along.sequences
        with outside_transforms():
            self.along.fill()
            x_rows, states = (
                [t.detach().repeat(k, *[1] * (t.dim() - 1)).requires_grad_(t.requires_grad) for t in tables]
                for tables in (rows.x_rows, rows.states)
            )
            wide = rows._replace(layout=rows.layout.times(k), x_rows=x_rows, states=states)
        return Further(replace(self.along, sequences=wide), self.weights)

    def members(self, k: int) -> tuple[Run, Sequence[int | Tensor]]:
        of_all, known = _OfMembers(self, k), self.along.ready.members.get(k)
        if known is None:
            known = of_all.found()
            if all(isinstance(i, int) for i in known[2]):
                self.along.ready.members[k] = known
        ready, constants, inputs = known
        call = Call(ready, self.along.sequences.layout, constants, of_all.plain)
        return Run(call, of_all.further), inputs


@dataclass(frozen=True, eq=False)
class _OfMembers:
    """The run of many calls with weights of their own."""

    of: Further
    k: int

    def found(self) -> tuple[Ready, dict[str, Tensor], Sequence[int | Tensor]]:
        """Its plan, the constants of that, and what it takes; see `transformed.Further.members`."""
        entry, _, found, wide = self._parts
        if entry.ready is None or entry.compiled is None or entry.compiled.fused.random:
            raise Unsupported("no plan runs all members at once")
        rows = self.of.along.sequences
        n = len(rows.x_rows) + len(rows.states)
        places = {id(w): n + i for i, w in enumerate(wide)}
        weights = [found.tensors[place] for place in entry.weights]
        return entry.ready, entry.compiled.constants, [*range(n), *(places.get(id(w), w) for w in weights)]

    @cached_property
    def _parts(self) -> tuple[Entry, tuple[Loop, Sequences], Reads, list[Tensor]]:
        along, rows = self.of.along, self.of.along.sequences

        def twins(tables: Sequence[Tensor], at: int) -> list[Tensor]:
            return [_twin(t.unsqueeze(at).expand(*t.shape[:at], self.k, *t.shape[at:])) for t in tables]

        around, cached = along.ready.around.again(), cached_again(along.reads.cached)
        with outside_transforms(), around, cached, torch.set_grad_enabled(along.ready.backward is not None):
            along.fill()
            wide = twins(self.of.weights, 0)
            loop = loop_of_members(along.loop, self.of.weights, wide)
            beside = rows._replace(x_rows=twins(rows.x_rows, 1), states=twins(rows.states, 1))
            found = along.reader(loop, beside.x_rows, beside.states, beside.shared)
            return along.find(loop, found, beside), (loop, beside), found, wide

    def plain(self, *tables: Any) -> Any:
        """The plain loop."""
        entry, where, found, _ = self._parts
        return plain_loop(*where, found, entry.weights, self.of.along.reader)(*tables)

    def further(self) -> Further:
        """Its derivatives."""
        entry, (loop, rows), found, _ = self._parts
        assert entry.ready is not None
        along = self.of.along
        how = (lambda: loop), entry.ready, rows, found, entry.weights, along.find
        return Further(RunsAlong(*how, reader=along.reader), [found.tensors[i] for i in entry.weights])


def find_transformed(
    loop: Loop, feeds: Mapping[str, Any], find: Find
) -> tuple[Entry, Reads, Sequences, Further | None]:
    """The plan that a run goes by, what its body reads, its inputs as tables of rows, and its derivatives.

    Args:
        loop, feeds: of the run.
        find: the entry of a loop, of what it reads and of its rows.

    Raises:
        Unsupported: no plan takes part in these transforms, or in any.
    """
    around = transforms()
    if any(name not in ("Grad", "Vmap", "Jvp") for name in around):
        raise Unsupported(f"a torch.func transform ({', '.join(around).lower()}) is active")
    sequences = as_rows(loop, feeds, transforms=True)
    found = reached(loop)
    if found.refused is not None or found.open is not None or not found.complete:
        raise Unsupported(found.refused or found.open or "the step reaches more than a key can hold")
    if found.generators:
        raise Unsupported("a torch.func transform is active, and the step has a generator of its own")
    if asks_for_gradients(found.names, "Vmap" in around):
        raise Unsupported(
            "a torch.func transform is active, and the step asks whether tensors want gradients"
        )
    reads = closed(found, [*found.tensors, *sequences.shared])
    groups = (sequences.x_rows, sequences.states, sequences.shared, reads.tensors)
    with outside_transforms():
        both = [t for group in groups for t in group]
        held = [t for t in both if is_wrapped(t) or has_tangent(t)]  # nothing else gets their numbers
        twins = _Twins(held)
        plain = twins.of

        def replaced(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [plain.get(id(t), t) for t in tensors]

        def in_one_piece(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [plain[id(t)] if id(t) in plain else contiguous(t) for t in tensors]

        def reader(derived: Loop, x: Any, states: Any, shared: Sequence[Tensor]) -> Reads:
            now = reached(loop).tensors
            if len(now) == len(found.tensors):  # under functional_call it reads others when that is over
                for then, tensor in zip(found.tensors, now, strict=True):
                    if tensor is not then:
                        plain[id(tensor)] = plain.get(id(then), then)
                        held.append(tensor)
            read_now = reached(derived)
            return closed(read_now, replaced([*read_now.tensors, *shared]))

        body: Any = Swapped(code_of(loop), plain)
        beside = sequences._replace(
            x_rows=in_one_piece(sequences.x_rows),
            states=in_one_piece(sequences.states),
            shared=replaced(sequences.shared),
        )
        read = reads._replace(tensors=replaced(reads.tensors))
        entry = find(loop.around(body), read, beside, fill=twins.fill)
    further = None
    if entry.ready is not None:
        if entry.ready.plan.random or entry.ready.plan.paired:
            raise Unsupported("a torch.func transform is active, and the step draws noise or is complex")
        moved = loop.around(body)
        how = (lambda: moved), entry.ready, beside, read, entry.weights, find
        along = RunsAlong(*how, reader=reader, fill=twins.fill)
        further = Further(along, [read.tensors[place] for place in entry.weights])
    return entry, reads, sequences, further


class _Twins:
    """Plain tensors in the place of wrapped ones, by the identity of those. They look as they are to; a plan
    that is known asks for no more, and what takes long, numbers, they get where they are asked for."""

    def __init__(self, wrapped: Sequence[Tensor]) -> None:
        self.of = {id(t): _outline(t) for t in wrapped}
        self._empty = [*self.of.values()]

    def fill(self) -> None:
        """Give them their numbers."""
        while self._empty:
            twin = self._empty.pop()
            twin.data = _twin(twin).detach()


def _outline(tensor: Tensor) -> Tensor:
    """A plain tensor like a wrapped one, of no batch, with memory for one number."""
    shape, strides = tensor.shape, (0,) * tensor.dim()
    outline = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    # a batch does not tell whether what is in it wants a gradient
    return outline.requires_grad_(tensor.is_floating_point() and torch.is_grad_enabled())


def _twin(tensor: Tensor) -> Tensor:
    """The same with numbers, any."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    numbers = _numbers(tensor.dtype).repeat(-(-tensor.numel() // _PERIOD))
    twin = numbers[: tensor.numel()].reshape(tensor.shape).to(tensor.device)
    return twin.requires_grad_(torch.is_grad_enabled())


_PERIOD = 4099  # a prime, so that rows of a table differ


@functools.cache
def _numbers(dtype: torch.dtype) -> Tensor:
    """Numbers for whatever is checked by some; to draw them takes longer than what they stand for."""
    generator = torch.Generator("cpu").manual_seed(7)
    return torch.randn(_PERIOD, generator=generator, dtype=torch.float64, device="cpu").div_(2).to(dtype)


class Swapped:
    """A body with plain tensors in the place of those that it reads."""

    def __init__(self, body: Code, twins: dict[int, Tensor]) -> None:
        self.body, self.twins = body, twins
        self.name, self.parameters, self.results = body.name, body.parameters, body.results

    @property
    def function(self) -> Any:
        return self.body.function

    @property
    def form(self) -> Any:
        return self.body.form

    def fresh(self) -> Swapped:
        body: Any = self.body.fresh()
        return Swapped(body, self.twins)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with Replaced(self.twins):
            return self.body(*values)
