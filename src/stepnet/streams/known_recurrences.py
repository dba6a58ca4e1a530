"""The recurrences that a module runs over streams, where that follows from what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from stepnet.api import Recurrent
from stepnet.data.modes import draws_put_back
from stepnet.data.tree import Spec, flatten
from stepnet.errors import StreamError
from stepnet.front.step import as_step, boot_state, step_name
from stepnet.interrupts import let_through

from .keeper import hooks_of_all, runs_alone
from .states import Kept, shown

_FORWARD = {kind: kind.forward for kind in (Recurrent, nn.Sequential)}


class Known(NamedTuple):
    """A recurrence: the name of its step; how its state is nested and its leaves, None for what it is not
    known to be."""

    name: str
    state: tuple[Spec, Sequence[Tensor]] | None

    def is_like(self, kept: Kept) -> bool:
        """Whether what is kept may be its state. The types follow from the weights, and from autocast."""
        if self.name != kept.name or self.state is None:
            return self.name == kept.name
        spec, leaves = self.state
        return spec == kept.spec and [t.shape[1:] for t in leaves] == [shape for shape, _, _ in kept.like]

    def __str__(self) -> str:
        return f"step '{self.name}'" + ("" if self.state is None else f", {shown(*self.state)}")


def check(known: Sequence[Known] | None, loaded: Sequence[Kept]) -> None:
    """Whether states that are loaded may be those of recurrences.

    Raises:
        StreamError: they are of others.
    """
    if not known or not loaded:  # none is kept of loops inside a chunk, or before a first push
        return
    if len(known) != len(loaded) or not all(a.is_like(b) for a, b in zip(known, loaded, strict=True)):
        raise StreamError(
            "this is the state of a stream of another module",
            got="; ".join(str(of_kept(each)) for each in loaded),
            expected="; ".join(map(str, known)),
            remedy="load_state_dict(stream.state_dict()), the stream of a module of the same steps",
        )


def of_kept(kept: Kept) -> Known:
    """A recurrence that was run."""
    return Known(kept.name, (kept.spec, kept.tables))


def recurrences_of(module: Any) -> list[Known] | None:
    """What a module runs: a recurrence, or a Sequential of those and of layers of torch's; None of others."""
    kind: Any = type(module)
    if not isinstance(module, nn.Module) or not runs_alone(module) or hooks_of_all():
        return None
    if "forward" in vars(module):
        return None
    own: Any = module
    if kind is nn.Sequential and kind.forward is _FORWARD[kind]:
        parts = [recurrences_of(part) for part in own]
        return None if any(part is None for part in parts) else [k for part in parts if part for k in part]
    if kind is Recurrent and kind.forward is _FORWARD[kind]:
        return None if own.reverse or own.scopes or own.level != -1 else [_known(own.step)]
    if hasattr(kind, "_by_layer"):  # ours, of torch's names
        found = own._by_layer()
        return None if found is None else [_of(name, state) for name, state in found]
    return [] if kind.__module__.startswith("torch.nn.modules.") and not module._modules else None


def _known(step: Any) -> Known:
    step = as_step(step)
    try:
        with draws_put_back():
            return _of(step_name(step), boot_state(step, 1))
    except Exception as error:  # the next push tells it
        let_through(error)
        return Known(step_name(step), None)


def _of(name: str, state: Any) -> Known:
    leaves, spec = flatten(state)
    return Known(name, (spec, leaves))
