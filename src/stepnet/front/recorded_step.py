"""The step of a scan that was recorded in a frame, as the body of its loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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

_MATMUL = {"matmul", "__matmul__", "mv", "__rmatmul__"}
# Functions of numbers at the same place of their arguments, without the underlines around their names.
_BROADCAST = {
    "add", "radd", "sub", "rsub", "subtract", "mul", "rmul", "multiply", "truediv", "rtruediv",
    "true_divide", "div", "divide", "floordiv", "rfloordiv", "floor_divide", "mod", "rmod", "remainder",
    "fmod", "pow", "rpow", "float_power", "eq", "ne", "lt", "le", "gt", "ge", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "and", "rand", "or", "ror", "xor", "rxor", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "where", "maximum", "minimum",
    "fmax", "fmin", "lerp", "clamp", "clip", "atan2", "arctan2", "hypot", "copysign", "addcmul", "addcdiv",
    "logaddexp", "logaddexp2", "xlogy", "heaviside", "nextafter", "ldexp",
}  # fmt: skip
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

    @cached_property
    def lifted(self) -> StepForm:
        """The step for rows of a batch: a matrix times a vector is written from the other side, and what has
        fewer dimensions than what it is computed with has more of them behind the rows."""
        made = (range(call.out, call.out + call.count) for call in self.calls)
        varying = {*self.x, *self.state, *(place for places in made for place in places)}
        return interned(replace(self, calls=tuple(_lifted(call, varying) for call in self.calls)))


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


def _matvec(vector: Tensor, matrix: Tensor) -> Tensor:
    return vector @ matrix.mT


def _aligned(function: Callable[..., Any], rows: tuple[bool, ...], *args: Any, **kwargs: Any) -> Any:
    """`function` of arguments of which some are rows: each with as many dimensions behind those as others."""
    ranks = [a.dim() - row if isinstance(a, Tensor) else 0 for a, row in zip(args, rows, strict=True)]
    most = max(ranks)
    return function(
        *(
            a.reshape(a.shape[0], *[1] * (most - rank), *a.shape[1:]) if row and rank < most else a
            for a, row, rank in zip(args, rows, ranks, strict=True)
        ),
        **kwargs,
    )


def _lifted(call: Call, varying: set[int]) -> Call:
    """A product of a constant with what varies, from the other side; a comparison with the calls follows."""
    name = getattr(call.function, "__name__", "")
    rows = tuple(isinstance(a, Ref) and a.place in varying for a in call.args)
    if name in _MATMUL and rows == (False, True) and isinstance(call.args[0], Ref):
        return replace(call, function=_matvec, args=call.args[::-1])
    if name.strip("_") in _BROADCAST and len(rows) > 1 and any(rows):
        return replace(call, function=_aligned, args=(call.function, rows, *call.args))
    return call
