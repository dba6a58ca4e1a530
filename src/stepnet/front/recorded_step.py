"""The step of a scan that was recorded in a frame, as the body of its loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor

from stepnet.data.bounded_cache import Bounded
from stepnet.data.recording import Interned
from stepnet.data.tree import flatten

from .recorded import Call
from .step import check_joined, failure, next_state
from .template import Ref, resolve

_FIXED = (
    int, float, complex, str, bytes, slice, NoneType, EllipsisType, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class StepForm(Interned):
    """The calls of one step, and the places of what it is given and of what it gives."""

    calls: tuple[Call, ...]
    x: tuple[int, ...]
    state: tuple[int, ...]
    y: tuple[Ref, ...]
    new: tuple[Any, ...]
    constants: tuple[int, ...]

    @cached_property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """What x, the states, the next states and what is written are called."""
        counts = (("x", self.x), ("state", self.state), ("new_state", self.new), ("y", self.y))
        return tuple(tuple(f"{name}[{i}]" for i in range(len(part))) for name, part in counts)

    @cached_property
    def held(self) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The functions, modules and other objects that its calls are given."""
        nothing: Any = defaultdict(lambda: None)
        given = [resolve((call.args, call.kwargs), nothing) for call in self.calls]
        found = [*flatten(given)[0], *(part for call in self.calls for part in _own(call.function))]
        return tuple({id(part): part for part in found if not isinstance(part, _FIXED)}.values())


def _own(function: Any) -> Iterator[Any]:
    """What a call of torch or of stepnet is not known by: `apply` of a class, what a partial holds."""
    if isinstance(function, partial):
        for part in (function.func, *function.args):
            yield from _own(part)
    elif callable(function):
        owner = getattr(function, "__self__", None)
        root = (getattr(function, "__module__", None) or "torch").partition(".")[0]
        if isinstance(owner, type) or root not in ("torch", "stepnet", "_operator", "builtins"):
            yield function


class RecordedStep:
    """The calls of a frame as a body: what is read and carried in, what is written and carried on."""

    name = "the while loop"
    form = None  # the calls are among what it reads

    def __init__(self, step: StepForm, constants: Sequence[Any]) -> None:
        self.step, self.constants = step, list(constants)
        x, states, new, y = step.names
        self.parameters, self.results = (*x, *states), (*y, *new)

    @property
    def function(self) -> RecordedStep:
        """Itself: what it reads are its constants."""
        return self

    def fresh(self) -> RecordedStep:
        """The body: it remembers nothing."""
        return self

    def over(self, function: RecordedStep) -> RecordedStep:
        """The body of other calls."""
        return function

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        _, states, _, y_names = self.step.names
        try:
            y, new = self.run(values)
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            raise failure(self, values, error) from error
        check_joined(self.name, y_names, y)
        return *y, *next_state(self.name, states, values[len(values) - len(states) :], new)

    def run(self, values: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        """What the calls give to be written and to be carried on, whatever that is."""
        step = self.step
        places = (*step.x, *step.state, *step.constants)
        known: dict[int, Any] = dict(zip(places, (*values, *self.constants), strict=True))
        for call in step.calls:
            call.do(known, ())
        return [known[at.place] for at in step.y], [resolve(new, known) for new in step.new]


_forms = Bounded[Any, StepForm](1024)


def interned(form: StepForm) -> StepForm:
    """The one object for forms that are equal."""
    key = (form.calls, form.x, form.state, form.y, form.new, form.constants)
    try:
        known = _forms.get(key)
    except TypeError:  # an argument that does not hash
        return form
    if known is None:
        known = _forms[key] = form
    return known
