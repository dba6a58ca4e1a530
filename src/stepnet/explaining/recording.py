"""The torch calls of one step as they come, for a step that no plan could be made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reach import reach
from stepnet.compiler.record import written
from stepnet.compiler.undo import Snapshot
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.executors import naive
from stepnet.front.step import StepBody, loop_over

from .calls import looks, weight_of_call
from .cost import TRANSCENDENTAL
from .names import tensor_names
from .records import Op


class _Done(Exception):
    """The step has run once; the loop around it need not go on."""


@dataclass
class Recorded:
    """Torch calls of a step; names and tensors of the new state and of y; tensors of the user's it read."""

    ops: list[Op] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    y: list[tuple[str, Tensor]] = field(default_factory=list)
    outside: dict[str, Tensor] = field(default_factory=dict)
    tried: bool = True


class _Recorder(TorchFunctionMode):
    """Notes each torch call of a step, with the names of the values it read and made."""

    def __init__(self, here: Callable[[], str | None]) -> None:
        super().__init__()
        self.here = here
        self.found = Recorded()
        self.names: dict[int, str] = {}
        self.alive: list[Tensor] = []  # ids in `names` must stay taken
        self.rows = 0

    def give(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        """Values that the step gets."""
        for name, leaf in zip(names, leaves, strict=True):
            for tensor in _tensors(leaf):
                self._keep(tensor, name)
                self.rows = max(self.rows, len(tensor) if tensor.dim() else 0)

    def _keep(self, tensor: Tensor, name: str) -> None:
        self.names[id(tensor)] = name
        self.alive.append(tensor)

    def name_of(self, tensor: Tensor) -> str:
        """The name of a value; a new one if the step has it from outside."""
        if id(tensor) not in self.names:
            name = f"outside {len(self.found.outside)}"
            self.found.outside[name] = tensor
            self._keep(tensor, name)
        return self.names[id(tensor)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "call")
        if name == "__get__":  # x.shape and the like
            return func(*args, **kwargs)
        read = list(_tensors((args, kwargs)))
        if _traced(read):
            return func(*args, **kwargs)
        line = self.here()
        inputs = tuple(dict.fromkeys(map(self.name_of, read)))
        if any(self.names.get(id(t)) in self.found.outside for t in written(func, args, kwargs)):
            raise _Done  # or a tensor of the user's would change once more than by the loop
        out = func(*args, **kwargs)
        made = list(_tensors(out))
        if _traced(made):
            return out
        if made or looks(name.strip("_")):
            self._note(name.strip("_"), inputs, read, made, line)
        return out

    def _note(
        self, name: str, inputs: tuple[str, ...], read: list[Tensor], made: list[Tensor], line: str | None
    ) -> None:
        outputs = tuple(f"t{len(self.alive) + i}" for i in range(1, len(made) + 1))
        for tensor, output in zip(made, outputs, strict=True):
            self._keep(tensor, output)  # a new name, even if written in place
        kind = weight_of_call(name)
        contracts = read[0].shape[-1] if kind == "matmul" and read[0].dim() else 0
        if kind == "matmul":
            adds = len(read) > 2  # a bias
            cost = (2 * contracts + adds) * sum(t.numel() for t in made)
        else:
            each = {"costly": TRANSCENDENTAL, "cheap": 1}.get(kind, 0)
            cost = each * max((t.numel() for t in (*made, *read[:1])), default=0)
        first = made[0] if made else None
        rows = first is not None and first.dim() > 0 and len(first) == self.rows
        shape = () if first is None else tuple(first.shape[1:] if rows else first.shape)
        self.found.ops.append(
            Op(name, inputs, outputs, "row" if rows else "shared", shape, contracts, kind, line, cost)
        )


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, LoDTensor):
        yield tree.values
    elif isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)


def record(
    body: StepBody, feeds: Mapping[str, Any], here: Callable[[], str | None], times: float, **cut: Any
) -> Recorded:
    """Run the first step of a loop and note its torch calls; fewer if one would change a tensor outside, none
    if running it would use up what it reads. Objects that it changes are put back.

    Args:
        body: the step.
        feeds: its x and initial states, by name.
        here: tells the user's line being run.
        times: how often the rows of the first step go into those of the whole run.
        cut: how x is cut into steps, as `loop_over` takes it.
    """
    recorder = _Recorder(here)
    found = recorder.found

    def step(x: Any, state: Any) -> Any:
        recorder.give(body.x_names, flatten(x)[0])
        recorder.give(body.state_names, flatten(state)[0])
        with recorder:
            result = body.step(x, state)
        if not (isinstance(result, tuple) and len(result) == 2):
            return result  # for StepBody to complain of
        found.y = [(recorder.name_of(t), t) for t in _tensors(result[0])]
        found.states = [recorder.name_of(t) for t in _tensors(result[1])]
        raise _Done

    reached = reach(body.step, everything=True)
    if reached.refused is not None:  # to run it would use something up
        found.tried = False
        return found
    before = Snapshot(reached.holders)
    watched = StepBody(step, body.x_spec, body.state_spec)
    with torch.random.fork_rng(devices=[]), contextlib.suppress(_Done):
        try:
            naive.run(loop_over(watched, **cut), feeds)
        finally:
            before.restore()
    named = dict(zip(found.outside, tensor_names(body.step, found.outside.values()), strict=True))
    found.outside = {named[name]: tensor for name, tensor in found.outside.items()}
    found.states = [named.get(name, name) for name in found.states]
    found.y = [(named.get(name, name), tensor) for name, tensor in found.y]
    found.ops = [
        replace(op, flops=round(op.flops * times), inputs=tuple(named.get(n, n) for n in op.inputs))
        for op in found.ops
    ]
    return found


def _traced(tensors: list[Tensor]) -> bool:
    """True for the tensors of an inner recurrence that is being captured: not the step's own arithmetic."""
    return any(type(tensor) is not Tensor and not isinstance(tensor, nn.Parameter) for tensor in tensors)
