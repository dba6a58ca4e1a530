"""A user's step function as the body of a loop, with its checks in the user's words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _modules

from stepnet.data.attributes import attribute
from stepnet.data.dtypes import dtype_name, typed_shape
from stepnet.data.lod import LoDTensor
from stepnet.data.modes import autocast_dtype
from stepnet.data.tree import LEAF, Spec, flatten, flatten_as, names, unflatten
from stepnet.errors import StepError, StepIndexError, StepnetError
from stepnet.interrupts import is_by_raise, let_through
from stepnet.ir.loop import Body, Loop
from stepnet.ir.sweep import over_rows


def step_name(step: Callable[..., Any]) -> str:
    """The name a user knows a step by.

    >>> def gru(x, h): ...
    >>> step_name(gru)
    'gru'
    """
    if isinstance(step, TorchCell):
        return _class_name(step.cell)
    if isinstance(step, nn.Module):
        return _class_name(step)
    if isinstance(step, functools.partial):
        return step_name(step.func)
    if isinstance(step, MethodType) and attribute(step, "__name__") is None:  # an object bound to a step
        own: Any = step.__self__
        return step_name(own)
    return attribute(step, "__name__", type(step).__name__)


def _class_name(module: nn.Module) -> str:
    """The class that a module was made of: `register_parametrization` gives it one of its own."""
    kind = type(module)
    before = kind.__bases__[0].__name__
    return before if kind.__name__ == f"Parametrized{before}" else kind.__name__


def signature_of(function: Any) -> inspect.Signature:
    """What a function or an object that is called takes; see `attribute`.

    Raises:
        ValueError: nobody knows, as of a builtin.
    """
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        raise
    except Exception as error:
        let_through(error)
        return inspect.signature(MethodType(type(function).__call__, function))


def describe_leaf(value: Any) -> str:
    """One line on a leaf: shape and dtype of a tensor, else its type."""
    if isinstance(value, LoDTensor):
        return f"LoDTensor rows {tuple(value.values.shape)} {dtype_name(value.values.dtype)}"
    if isinstance(value, Tensor):
        return typed_shape(value)
    return type(value).__name__


def describe_leaves(names: Iterable[str], values: Iterable[Any]) -> str:
    """Leaves with their names: 'x float32[2, 3], h float32[2, 4]'."""
    return ", ".join(f"{name} {describe_leaf(value)}" for name, value in zip(names, values, strict=True))


class WithStatic(NamedTuple):
    """A state, and what the step sees at every step and hands on as it is."""

    state: Any
    static: Any


class Clock(NamedTuple):
    """Steps without an input, of which a step is given None; the rows hold nothing."""

    rows: Any


class StepBody:
    """`step(x_t, state) -> (y_t, new_state)` as a loop body; `step(x_t, state, static)` for a `WithStatic`.

    Parameters are the leaves of x and of the state; results are y, whole, and the leaves of the new
    state. The structure of y is known after the first call and must stay; that of the new state must
    be that of the state.
    """

    def __init__(self, step: Callable[..., Any], x_spec: Spec, state_spec: Spec) -> None:
        self.step = step
        self.name = step_name(step)
        self.x_spec = x_spec
        self.state_spec = state_spec
        self.y_spec: Spec | None = None
        self.x_names, self.state_names, self.new_state_names = _names(x_spec, state_spec)
        self.parameters = (*self.x_names, *self.state_names)
        self.y_names: list[str] = []
        self.results = ("y", *self.new_state_names)
        self.t = 0  # the loop's own count, for messages
        flat = x_spec is LEAF and (state_spec is LEAF or state_spec.is_flat)
        self._is_flat = flat and type(self) is StepBody  # others call in their own way

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        if not self._is_flat or (self.y_spec is not LEAF and self.y_spec is not None):
            n = len(self.x_names)
            y, new_leaves = self.call(values[:n], values[n:])
            self.t += 1
            return (y, *new_leaves)
        # `call` where x, y and the state are tensors, or the state is a tuple of them: at each step of the
        # plain loop, beside a step that may be small
        state: Any = values[1] if self.state_spec is LEAF else values[1:]
        try:
            result = self.step(values[0], state)
        except Exception as error:
            if self._is_told(error):
                raise
            raise failure(self, values, error, self.t) from error
        if type(result) is tuple and len(result) == 2 and type(result[0]) is Tensor:
            y, new = result
            if self.y_spec is None:
                self._check_y([y], LEAF)
            if type(new) is Tensor is type(state):
                if new.dtype is state.dtype and new.shape == state.shape:
                    self.t += 1
                    return result
            elif type(new) is type(state) is tuple and len(new) == len(state):
                for leaf, old in zip(new, state, strict=True):
                    if not (type(leaf) is type(old) is Tensor):
                        break
                    if leaf.dtype is not old.dtype or leaf.shape != old.shape:
                        break
                else:
                    self.t += 1
                    return (y, *new)
        y, new_leaves = self.accept(result, values[1:])
        self.t += 1
        return (y, *new_leaves)

    @property
    def function(self) -> Callable[..., Any]:
        """The step."""
        return self.step

    @property
    def form(self) -> Any:
        """How its values are nested."""
        return self.x_spec, self.state_spec

    def fresh(self) -> StepBody:
        """The same body before its first step."""
        return self.over(self.step)

    def over(self, step: Callable[..., Any]) -> StepBody:
        """The body of another step that takes the same."""
        return StepBody(step, self.x_spec, self.state_spec)

    @property
    def own_states(self) -> int:
        """How many leaves of the state are not static."""
        return own_spec(self.state_spec).count

    def carrying(
        self, step: Callable[..., Any], states: Sequence[Any], more: tuple[Any, ...]
    ) -> tuple[StepBody, list[Any]]:
        """The body of a step that takes the same, and carries more behind its own states; the leaves of its
        state."""
        state = unflatten(self.state_spec, list(states))
        whole: Any = (state, more)
        if isinstance(state, WithStatic):
            whole = WithStatic((state.state, more), state.static)
        leaves, spec = flatten(whole)
        return StepBody(step, self.x_spec, spec), leaves

    def as_loop(
        self, x_leaves: Sequence[Any], state_leaves: Sequence[Any], *, reverse: bool, level: int, axis: int
    ) -> tuple[Loop, dict[str, Any]]:
        """A call of `recurrent` as a loop, and what it is fed."""
        ragged = any(isinstance(leaf, LoDTensor) for leaf in x_leaves)
        loop = over_rows(
            self, self.x_names, self.state_names, self.new_state_names, ("y",),
            axis=axis, level=level if ragged else None, reverse=reverse,
        )  # fmt: skip
        return loop, dict(zip(self.parameters, (*x_leaves, *state_leaves), strict=True))

    def call(self, x_leaves: Sequence[Any], state_leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Run the step once on leaves; returns y and the leaves of the new state, checked."""
        x = unflatten(self.x_spec, x_leaves)
        if self.x_spec.kind is Clock:
            x = None
        state = unflatten(self.state_spec, state_leaves)
        try:
            if self.state_spec.kind is WithStatic:
                result = self.step(x, state.state, state.static)
            else:
                result = self.step(x, state)
        except Exception as error:
            if self._is_told(error):
                raise
            raise failure(self, (*x_leaves, *state_leaves), error, self.t) from error
        return self.accept(result, state_leaves)

    def _is_told(self, error: Exception) -> bool:
        """Whether an error of the step is raised as it is, and not in the user's words. No frame is to keep
        either by name: a cycle would hold what the call was given until garbage is collected."""
        if isinstance(error, RuntimeError):
            return type(error) is not RuntimeError
        if isinstance(error, StepnetError) or not isinstance(error, TypeError | ValueError | IndexError):
            return True
        self._check_parameters(static=self.state_spec.kind is WithStatic)
        self._check_nesting()
        return isinstance(error, ValueError) or is_by_raise(error)

    def accept(self, result: Any, state_leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What the step gave, checked: y and the leaves of the new state."""
        if self.y_spec is not None and type(result) is tuple and len(result) == 2:
            y_leaves, y_spec = flatten(result[0])
            new_leaves, new_spec = flatten(result[1])
            as_before = y_spec is self.y_spec and new_spec is self.state_spec
            if as_before and all(map(_is_plain, y_leaves)) and all(map(_looks_as, new_leaves, state_leaves)):
                return result[0], new_leaves
        if not (isinstance(result, tuple) and len(result) == 2):
            raise StepError(
                f"step '{self.name}' must return a pair (y, new_state)",
                got=_describe_result(result),
                expected=f"(y, new_state) with new_state shaped like the state, {own_spec(self.state_spec)}",
                remedy="return (y, new_state); a step without a state returns (y, ()) and takes state=()",
            )
        y_leaves, y_spec = flatten(result[0])
        new = result[1]
        if self.state_spec.kind is WithStatic:
            new = WithStatic(new, unflatten(self.state_spec, list(state_leaves)).static)
        new_leaves, new_spec = flatten_as(self.state_spec, new)
        self._check_y(y_leaves, y_spec)
        if new_spec is not self.state_spec and new_spec != self.state_spec:
            self._check_nesting()
            raise StepError(
                f"step '{self.name}' changed the structure of the state at step {self.t}",
                got=f"new_state {own_spec(new_spec)}",
                expected=f"state {own_spec(self.state_spec)}",
                remedy="return the new state nested as the state that came in",
            )
        return result[0], next_state(self.name, self.state_names, state_leaves, new_leaves, self.t)

    def _check_parameters(self, *, static: bool) -> None:
        """Refuse a step that does not take what a loop hands it."""
        handed = ("x_t", "state", "static") if static else ("x_t", "state")
        if (misfit := why_not_taken(self.step, handed)) is not None:
            why, parameters = misfit
            remedy = "take both x_t and state: x_t is None where there are only steps=, and the state "
            remedy += "is () where there is none"
            if len(parameters.parameters) > len(handed):
                remedy = "several inputs, or several states, come as one tuple: `h, c = state` in the step; "
                remedy += "what is the same at all steps is closed over, or an attribute of the module"
            raise StepError(
                f"step '{self.name}' does not take what it is called with: {why}",
                got=f"{self.name}{parameters}",
                expected=f"{self.name}({', '.join(handed)}) -> (y_t, new_state)",
                remedy=remedy,
            ) from None

    def _check_nesting(self) -> None:
        """Refuse a state that is nested in another way than the step's own first one."""
        first = attribute(self.step, "initial_state")
        if first is not None:
            given, own = own_spec(self.state_spec), flatten(first(1))[1]
            if given != own:
                raise StepError(
                    f"the initial state of step '{self.name}' is nested in another way than its own",
                    got=given,
                    expected=own,
                    remedy="nest it as its initial_state(n), which is taken where there is no state=",
                )

    def _check_y(self, y_leaves: list[Any], y_spec: Spec) -> None:
        if self.y_spec is None:
            self.y_spec = y_spec
            self.y_names = names(y_spec, "y")
        elif y_spec is not self.y_spec and y_spec != self.y_spec:
            raise StepError(
                f"step '{self.name}' returned y with another structure at step {self.t}",
                got=y_spec,
                expected=self.y_spec,
                remedy="return the same nesting of tuples, lists and dicts at every step",
            )
        check_joined(self.name, self.y_names, y_leaves)


def check_rows_of(what: str, leaf: Any, n: int) -> None:
    """Refuse an initial state without one row per sequence."""
    if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != n:
        raise StepError(
            f"the initial {what} must have one row per sequence",
            got=describe_leaf(leaf),
            expected=f"{n} rows",
            remedy="the first dimension of every state counts sequences, in the order of x",
        )


def check_joined(body: str, names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse results that are joined, of a body with this name, and are no tensors."""
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, (Tensor, LoDTensor)):
            raise StepError(
                f"step '{body}' returned {name} that is no tensor",
                got=type(value).__name__,
                remedy="return tensors (or nested tuples, lists, dicts of them)",
            )


def failure(body: Body, values: Sequence[Any], error: Exception, t: int = 0) -> StepError:
    """What a body is told of that torch declines at step t: with other sizes than it expects, the first."""
    let_through(error)
    what = (str(error).splitlines() or [type(error).__name__])[0]
    sizes = "check the sizes the step expects against the features of x and of the state"
    rows = [leaf.shape[0] for leaf in values if isinstance(leaf, Tensor) and leaf.dim() > 1]
    if isinstance(body, StepBody) and rows and min(rows) < max(rows):
        sizes = (
            "give each state a row per sequence; x is [time, sequences, ...], or the other way with axis=1"
        )
    got, remedy = describe_leaves(body.parameters, values), sizes
    if "same dtype" in what:
        remedy = "give x, the state and the weights one dtype"
    elif what.startswith("vmap: "):
        remedy = None  # its own text has one
    elif isinstance(error, TypeError):
        remedy = "check how the step uses x and the state: they are nested as they were given"
    elif "same device" in what or "expected device" in what:
        homes = {str(leaf.device) for leaf in values if isinstance(leaf, Tensor)}
        got += f", on {' and '.join(sorted(homes))}"
        remedy = "move x, the state, the weights and what the step makes to one device: .to(x.device)"
    kind = StepIndexError if isinstance(error, IndexError) else StepError
    return kind(f"step '{body.name}' failed at step {t}: {what}", got=got, remedy=remedy)


def next_state(body: str, names: Sequence[str], old: Sequence[Any], new: list[Any], t: int = 0) -> list[Any]:
    """What is carried to the next step, in the dtypes that it came in.

    Raises:
        StepError: a shape or a dtype is another.
    """
    if len(new) == len(old) and all(map(_looks_as, new, old)):  # as they mostly do
        return new
    new = kept_dtypes(old, new)
    changed, grown = [], False
    for name, before, after in zip(names, old, new, strict=True):
        if not isinstance(after, Tensor) or isinstance(after, LoDTensor):
            changed.append(f"{name} became {describe_leaf(after)} (was {describe_leaf(before)})")
        elif before.shape != after.shape or before.dtype != after.dtype:
            changed.append(f"{name} was {describe_leaf(before)}, became {describe_leaf(after)}")
            grown |= before.dim() == after.dim() > 1 and before.shape[1:].numel() < after.shape[1:].numel()
    if changed:
        raise StepError(
            f"step '{body}' changed the state's shape or dtype at step {t}",
            got="; ".join(changed),
            expected="a new state with the shape and dtype of the state that came in",
            remedy="give an initial state of the final shape and dtype, or cast in the step (.to(...))"
            + grown
            * "; a state that grows with the rows seen: start it with a place for each, and write there "
            "with torch.where and a step number that is state, too, or keep the last k: "
            "torch.cat([h[:, 1:], x[:, None]], 1)",
        )
    return new


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is Tensor


def _looks_as(new: Any, old: Any) -> bool:
    return type(new) is type(old) is Tensor and new.dtype is old.dtype and new.shape == old.shape


def kept_dtypes(old: Sequence[Any], new: list[Any]) -> list[Any]:
    """What is carried keeps its dtype: autocast makes some results of lower precision, and some float32.

    Where it is around the step, that is. Within the step it leaves results of lower precision only, which any
    state holds without loss.
    """
    first = next((leaf for leaf in old if isinstance(leaf, Tensor)), None)
    if first is None:
        return new
    came, held = (_LOW, _HIGH) if autocast_dtype(first.device.type) is None else (_FLOATS, _FLOATS)
    return [
        b.to(a.dtype)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and b.dtype in came and a.dtype in held
        else b
        for a, b in zip(old, new, strict=False)
    ] + new[len(old) :]


_LOW = (torch.bfloat16, torch.float16)
_HIGH = (torch.float32, torch.float64)
_FLOATS = _LOW + _HIGH


@functools.lru_cache(maxsize=256)
def _names(x_spec: Spec, state_spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The leaves of x, of the state and of the new state, as a user writes them."""
    own = own_spec(state_spec)
    static = () if own is state_spec else tuple(names(state_spec.children[1], "static"))
    return (
        tuple(names(x_spec, "x")),
        (*names(own, "state"), *static),
        (*names(own, "new_state"), *(f"new_{name}" for name in static)),
    )


def why_not_taken(step: Any, handed: Sequence[str]) -> tuple[str, inspect.Signature] | None:
    """Why a step does not take what a call hands it, and what it takes; None if it does."""
    try:
        parameters = signature_of(attribute(step, "forward", step))
    except ValueError:  # of a builtin
        return None
    try:
        parameters.bind(*handed)
    except TypeError as error:
        return str(error), parameters
    return None


def own_spec(state_spec: Spec) -> Spec:
    """The structure of a state without what the step is given beside it."""
    return state_spec.children[0] if state_spec.kind is WithStatic else state_spec


def _describe_result(result: Any) -> str:
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return describe_leaf(result)


class TorchCell(nn.Module):
    """A torch.nn cell as a step: y is h, the state is what the cell carries.

    >>> cell = TorchCell(nn.GRUCell(3, 4))
    >>> y, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> y.shape
    torch.Size([2, 4])
    """

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return _call_cell(self.cell, x, state)

    def initial_state(self, n: int) -> Any:
        """Zeros for n sequences: `h`, or `(h, c)` for an LSTMCell."""
        zeros = self.cell.weight_hh.new_zeros(n, self.cell.hidden_size)
        return (zeros, zeros.clone()) if isinstance(self.cell, nn.LSTMCell) else zeros


def as_step(step: Any) -> Callable[..., Any]:
    """Accept a function, a module or a torch.nn cell as a step; what torch compiled as what it was, for the
    loop is compiled with all its steps."""
    step = original_of(step)
    if isinstance(step, nn.RNNCellBase):
        return TorchCell(step)
    of_modules = isinstance(step, type) and issubclass(step, nn.Module)
    if of_modules or not callable(step):
        raise StepError(
            "a step must be callable: step(x_t, state) -> (y_t, new_state)",
            got=f"the class {step.__name__}" if of_modules else type(step).__name__,
            remedy="give a function, an nn.Module (not its class), or a torch.nn cell",
        )
    return step


def as_called(step: Any) -> Callable[..., Any]:
    """`as_step` of a step that is only called, once: of a cell of torch no module, which takes longer to make
    than to call, unless there are hooks of all modules to see it."""
    if isinstance(step, nn.RNNCellBase) and not _all_modules_have_hooks():
        return functools.partial(_call_cell, step)
    return as_step(step)


def _all_modules_have_hooks() -> bool:
    of = _modules
    before = of._global_forward_pre_hooks or of._global_backward_pre_hooks
    return bool(before or of._global_forward_hooks or of._global_backward_hooks)


def _call_cell(cell: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    new = cell(x, state)
    return (new[0] if isinstance(new, tuple) else new), new


def original_of(step: Any) -> Any:
    """A function or a module as it was before `torch.compile`."""
    if isinstance(step, nn.Module):
        compiled = type(step).__module__ == "torch._dynamo.eval_frame"
        return step._orig_mod if compiled else step
    return attribute(step, "_torchdynamo_orig_callable", step)


def boot_state(step: Callable[..., Any], n: int) -> Any:
    """The initial state for n sequences where the caller gave none: the cell says.

    Raises:
        StepError: the step has no `initial_state`.
    """
    initial = attribute(step, "initial_state")
    if initial is None:
        if attribute(step, "flatten_parameters") and attribute(step, "num_layers"):  # torch.nn's, and ours
            name = type(step).__name__
            raise StepError(
                f"'{step_name(step)}' is no step: it runs over whole sequences by itself",
                expected="step(x_t, state) -> (y_t, new_state)",
                remedy=f"stepnet.nn.{name}(...)(x), or its cell as the step: torch.nn.{name}Cell(...)",
            )
        raise StepError(
            f"step '{step_name(step)}' has no initial state",
            got="state=None and a step without an `initial_state(n)` method",
            remedy="pass state=..., one row per sequence (state=() for a step without state), "
            "or give the step an `initial_state(n)` method",
        )
    return initial(n)


def loop_of(
    step: Callable[..., Any], x: Sequence[Any], state: Sequence[Tensor], form: tuple[Spec, Spec], *,
    reverse: bool, level: int, axis: int,
) -> tuple[Loop, dict[str, Any]]:  # fmt: skip
    """A call of a step as a loop, and what it is fed. `form`: how leaves of x and of the state are nested."""
    return StepBody(step, *form).as_loop(x, state, reverse=reverse, level=level, axis=axis)


def as_they_are(form: tuple[Spec, Spec]) -> bool:
    """Whether a step is called on x and a state nested like these as they are, and on nothing else."""
    return form[0].kind is not Clock and form[1].kind is not WithStatic
