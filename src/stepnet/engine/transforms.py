"""The plan of a run inside torch.func's transforms: found for plain tensors in the place of wrapped ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stepnet.compiler.capture import Replaced
from stepnet.compiler.iteration import code_of
from stepnet.compiler.reach import reach
from stepnet.data.modes import is_wrapped, outside_transforms, transforms
from stepnet.errors import Unsupported
from stepnet.ir.loop import Code, Loop

from .make import Entry
from .reads import Reads
from .rows import Sequences, as_rows

Find = Callable[[Loop, Reads, Sequences], Entry]


def find_transformed(loop: Loop, feeds: Mapping[str, Any], find: Find) -> tuple[Entry, Reads, Sequences]:
    """The plan that a run goes by, what its body reads, and its inputs as tables of rows.

    Args:
        loop, feeds: of the run.
        find: the entry of a loop, of what it reads and of its rows.

    Raises:
        Unsupported: no plan takes part in these transforms, or in any.
    """
    around = transforms()
    if any(name not in ("Grad", "Vmap") for name in around) or around.count("Grad") > 1:
        raise Unsupported(f"a torch.func transform ({', '.join(around).lower()}) is active")
    sequences = as_rows(loop, feeds, transforms=True)
    found = reach(code_of(loop).function)
    if found.refused is not None or found.open is not None or not found.complete:
        raise Unsupported(found.refused or found.open or "the step reaches more than a key can hold")
    if found.generators:
        raise Unsupported("a torch.func transform is active, and the step has a generator of its own")
    reads = Reads(found, ("reach", *found.key), [*found.tensors, *sequences.shared])
    groups = (sequences.x_rows, sequences.states, sequences.shared, reads.tensors)
    with outside_transforms():
        twins = {id(t): _twin(t) for group in groups for t in group if is_wrapped(t)}
        x, states, shared, tensors = ([twins.get(id(t), t) for t in group] for group in groups)
        body: Any = _Swapped(code_of(loop), twins)
        entry = find(
            loop.around(body),
            reads._replace(tensors=tensors),
            sequences._replace(x_rows=x, states=states, shared=shared),
        )
    if entry.ready is not None and (entry.ready.plan.random or entry.ready.plan.paired):
        raise Unsupported("a torch.func transform is active, and the step draws noise or is complex")
    return entry, reads, sequences


def _twin(tensor: Tensor) -> Tensor:
    """A plain tensor like a wrapped one: of no batch, with any numbers."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / 2
    # a batch does not tell whether what is in it wants a gradient
    return numbers.to(tensor.device, tensor.dtype).requires_grad_(torch.is_grad_enabled())


class _Swapped:
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

    def fresh(self) -> _Swapped:
        body: Any = self.body.fresh()
        return _Swapped(body, self.twins)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with Replaced(self.twins):
            return self.body(*values)
