"""Trace a step once, forward and backward together. The only file that touches private torch.

The trace is joint (autograd runs inside it), so detach, no_grad and custom autograd.Functions of the
step keep their meaning. The batch size is one symbol; a step that branches on it is refused.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from stepnet.compiler.reads.numbers import InTheirPlace, Lifted
from stepnet.compiler.reads.ranges import RANGES
from stepnet.compiler.rewritten.decompositions import Exact, bare, exact
from stepnet.compiler.rewritten.light_decompositions import lighter
from stepnet.data.tree import leaves, map_leaves
from stepnet.errors import StepError, Unsupported
from stepnet.interrupts import let_through

from . import sparse
from .data_dependent import ASKS, BY_VALUES, OF_ROWS, Answers, Choices, Guards
from .draws import noise_of
from .forward_mode import by_gradients
from .gradient_ways import by_states, check_nothing_becomes_zeros, is_cut_view, leads_to
from .joint import joint_graph
from .lengths import AsksLength, open_lengths
from .masks import Masks
from .tensor_metadata import OWN_STATE
from .traces import Input
from .unseen_calls import applied
from .untraced_constants import constant_of
from .whole_calls import keep_whole
from .writes import HOOKS_ON, hooks_on_others, written_over

_EXTRA = (
    "native_layer_norm native_layer_norm_backward _softmax _log_softmax _softmax_backward_data "
    "_log_softmax_backward_data addmm addcmul addcdiv baddbmm gelu gelu_backward silu silu_backward "
    "hardtanh hardtanh_backward elu elu_backward leaky_relu leaky_relu_backward softplus softplus_backward "
    "log_sigmoid_forward log_sigmoid_backward native_dropout native_dropout_backward rsub hardsigmoid "
    "hardsigmoid_backward hardswish hardswish_backward mish mish_backward lerp masked_fill glu glu_backward "
    "slice_backward select_backward split tanh_backward sigmoid_backward threshold_backward stack unbind "
    "logaddexp addmv mv dot mse_loss xlogy square std std_mean diagonal_backward unfold_backward "
    "_prelu_kernel _prelu_kernel_backward prelu native_group_norm native_group_norm_backward "
    "linalg_vector_norm upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d native_channel_shuffle"
)


# Casts that a step writes are marked: torch's own, under autocast and in what it computes with, are not.
WRITTEN = "stepnet_written"
_CASTS = {
    Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16,
}  # fmt: skip


@functools.cache
def _decompositions() -> dict[Any, Any]:
    from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions

    table = _core_aten_decompositions_post_autograd()  # of composite ops, autograd has left none
    packets = [getattr(torch.ops.aten, name) for name in _EXTRA.split() if hasattr(torch.ops.aten, name)]
    table.update(get_decompositions(packets))
    kept = (
        torch.ops.aten.embedding_dense_backward,
        torch.ops.aten.bernoulli,
        torch.ops.aten.std,
        torch.ops.aten.empty_like,
        torch.ops.aten.zeros,
        torch.ops.aten.ones,  # so far, normal form has rules for them
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,  # its backward takes what it gives
    )
    for overload in [o for o in table if getattr(o, "overloadpacket", None) in kept]:
        del table[overload]
    light = {overload: lighter(overload, bare(made)) for overload, made in table.items()}
    return keep_whole(light | exact())


@dataclass(frozen=True)
class Example:
    """Shape (without the batch), dtype and whether a gradient is wanted, of one traced input."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    grad: bool


@dataclass
class Captured:
    """A joint trace: `graph` maps (x, state, weights, tangents) to (results, a gradient for each input)."""

    graph: FxGraph
    constants: dict[str, Tensor]
    weights: list[int]  # indices of the reached tensors the step uses
    n_x: int
    n_y: int
    y_spec: Any
    tangent_of: list[int]  # which result each tangent belongs to
    followed: list[int]  # those of them that the trace met
    flow: list[tuple[int, ...]]  # for each result the inputs (x, state, weights) that autograd leads back to
    requires: list[tuple[int, ...]]  # and those that make it require a gradient
    batch: str  # the symbol of the batch size
    paired: tuple[int, ...] = ()  # the results that are complex: pairs of real numbers, as complex inputs are
    by_states: tuple[tuple[int, ...], ...] = ()  # see `Joint`


@contextlib.contextmanager
def _noted(custom: dict[str, Any]) -> Iterator[None]:
    """Note it with every node that is traced in here."""
    meta = fx_traceback.current_meta
    before = meta.get("custom", {})
    meta["custom"] = {**before, **custom}
    try:
        yield
    finally:
        meta["custom"] = before


_annotate = getattr(fx_traceback, "annotate", _noted)  # torch 2.6 has none


class Replaced(TorchFunctionMode):
    """Puts other tensors in the place of those of these ids, wherever torch is called."""

    def __init__(self, swap: dict[int, Tensor]) -> None:
        super().__init__()
        self.swap = swap
        self._functions = applied(self.replaced, self.made)

    @staticmethod
    def by(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> Replaced:
        """Others in the place of some tensors, one for each."""
        return Replaced({id(tensor): other for tensor, other in zip(tensors, others, strict=True)})

    def __enter__(self) -> Any:
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in OWN_STATE:
            args, kwargs = self.replaced(args, kwargs)
        if func is Tensor.tolist:  # torch's own is of tensors that hold numbers
            return args[0].tolist()
        return func(*args, **(kwargs or {}))

    def replaced(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a call with the other tensors."""
        return map_leaves((args, kwargs or {}), Tensor, lambda tensor: self.swap.get(id(tensor), tensor))

    def results(self, made: Sequence[Any]) -> list[Any]:
        """What code in here gave, with the other tensors: those that it gives as they are met no call."""
        return [self.swap.get(id(value), value) for value in made]

    def made(self, args: Any, result: Any) -> None:
        """Meets what a custom Function made."""


class _Swap(Replaced):
    """Puts traced tensors in the place of real ones, and notes where in the user's code each call is."""

    def __init__(
        self, swap: dict[int, Tensor], here: Callable[[], str | None], notes: list[Any], followed: set[int],
        answers: Answers,
    ) -> None:  # fmt: skip
        super().__init__(swap)
        self.asked: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []  # of torch.autograd.grad, by what
        self.followed = followed
        self.answers = answers
        self.masks = Masks(answers)
        self.bases: dict[Any, list[Tensor]] = {}  # by what made a result: bases of views, see leads_to
        self.here = here
        self.notes = notes

    def replaced(self, args: Any, kwargs: Any) -> Any:
        """The same, and notes which tensors it met."""
        self.followed |= {id(t) for t in leaves((args, kwargs), Tensor) if id(t) in self.swap}
        return map_leaves((args, kwargs or {}), Tensor, self._placed)

    def _placed(self, tensor: Tensor) -> Tensor:
        other = self.swap.get(id(tensor))
        return constant_of(tensor) if other is None else other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RANGES:
            return func  # a range that nothing asks for
        if func in OWN_STATE:
            return func(*args, **(kwargs or {}))
        args, kwargs = self.replaced(args, kwargs)
        # of numbers that .item() gave: asked for, as `if` asks, for no op computes with a truth value
        args, kwargs = map_leaves((args, kwargs), torch.SymBool, bool)
        if (made := sparse.call(func, args, kwargs)) is not NotImplemented:
            return made
        line = self.here()
        if line is not None:
            self.notes.append(line)
            fx_traceback.set_stack_trace([line])
        if func is Tensor.__len__ and not isinstance(args[0].shape[0], int):
            raise AsksLength(
                "len() of the rows is a fixed number to a compiled step",
                line=line,
                remedy="write x.shape[0] where tensors are made; do not compute with the number of rows",
            )
        if func is Tensor.__deepcopy__ and not args[0].requires_grad:
            return args[0].clone()
        if func in HOOKS_ON and args[0].is_leaf:  # what the step is given or reads
            raise hooks_on_others()
        if func is torch.autograd.grad:
            self.asked.append(args[:2])
        if (noise := noise_of(func, args, kwargs)) is not None:
            return noise
        if self.answers.passes(func, args):
            return True
        if func in ASKS and (answer := self.answers.answer(args, kwargs)) is not OF_ROWS:
            return answer
        if func is Tensor.tolist:  # torch's own gives numbers that it leaves open
            raise Unsupported(BY_VALUES, line=line, remedy=_BY_ROWS)
        args = self.answers.decided(func, args)
        written = func in _CASTS
        with _annotate({WRITTEN: True}) if written else contextlib.nullcontext():
            result = self.masks.call(func, args, kwargs)
            if result is NotImplemented:
                result = func(*args, **kwargs)
        self.masks.name(func, args, kwargs, result)
        self.answers.follow(func, args, kwargs, result)
        self.made((args, kwargs), result)
        return result

    def numbers_of(self, tensor: Tensor) -> Any:
        """The numbers of a tensor, for what reads them outside of modes."""
        return self.__torch_function__(Tensor.tolist, (), (tensor,))

    def made(self, args: Any, result: Any) -> None:
        """Note the bases of the views without a history that a result was made of, and the mask of what it is
        made of."""
        self.masks.follow(args, result)
        bases = [t._base for t in leaves(args, Tensor) if is_cut_view(t)]
        for t in leaves(result, Tensor) if bases else ():
            if t.grad_fn is not None:
                self.bases.setdefault(t.grad_fn, []).extend(b for b in bases if b is not None)


def trace(
    call: Callable[[list[Tensor], list[Tensor]], tuple[Any, list[Tensor], list[Tensor]]],
    x: Sequence[Example],
    state: Sequence[Example],
    weights: Sequence[tuple[int, Tensor, bool]],
    *,
    here: Callable[[], str | None],
    answers: Sequence[Any] | Guards | Choices = (),
    lifted: Lifted | None = None,
) -> Captured:
    """Trace `call(x, state) -> (y_spec, y leaves, new state leaves)` on a symbolic batch.

    Args:
        call: the step on flat leaves.
        x, state: what its leaves look like.
        weights: (place among the reached tensors, the tensor, whether its gradient is wanted).
        here: tells the user's line being run.
        answers: what the step's Python asks of tensors, in that order; `OF_ROWS` for what no trace knows.
        lifted: numbers of Python's that are among the weights.

    Raises:
        Unsupported: the step cannot be traced, or depends on the batch size; names the line.
    """
    with_grad = any(e.grad for e in (*x, *state)) or any(grad for _, _, grad in weights)
    rows = [_input(e.shape, e.dtype, e.grad, rows=True) for e in (*x, *state)]
    shared = [_input(t.shape, t.dtype, grad, rows=False) for _, t, grad in weights]
    step = _FlatStep(call, x, state, weights, here, answers, lifted)
    try:
        with warnings.catch_warnings(), _clean_modes(), fx_traceback.preserve_node_meta():
            warnings.simplefilter("ignore")
            given = step, rows + shared, with_grad, _decompositions()
            try:
                graph, constants, batch = joint_graph(*given)
            except AsksLength:
                with open_lengths():
                    graph, constants, batch = joint_graph(*given)
    except Unsupported:
        raise
    except Exception as error:
        let_through(error)
        raise _untraced(error, next((n for n in reversed(step.lines) if n), None)) from error
    _note_lines(graph)
    assert step.shown is not None
    tangents = [i for i, grad in enumerate(step.shown.grads) if grad] if with_grad else []
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    if len(placeholders) != len(rows) + len(shared) + len(tangents):
        raise Unsupported("the trace has inputs that could not be told apart")
    return Captured(
        graph=graph,
        constants=constants,
        weights=[place for place, _, _ in weights],
        n_x=len(x),
        n_y=step.shown.n_y,
        y_spec=step.shown.y_spec,
        tangent_of=tangents,
        followed=[place for place, t, _ in weights if id(t) in step.followed],
        flow=[reached for reached, _ in step.shown.ways],
        requires=[requires for _, requires in step.shown.ways],
        batch=batch,
        paired=step.shown.paired,
        by_states=step.shown.by_states,
    )


class _Shown(NamedTuple):
    """What the first run of a step in its trace shows of its results.

    Attributes:
        grads: which of them require a gradient.
        ways: see `leads_to`.
        paired: which are complex.
        by_states: see `Joint`.
    """

    y_spec: Any
    n_y: int
    grads: list[bool]
    ways: list[tuple[tuple[int, ...], tuple[int, ...]]]
    paired: tuple[int, ...]
    by_states: tuple[tuple[int, ...], ...]


class _FlatStep:
    """A step as a function of all its inputs, traced, that gives the leaves of its results."""

    def __init__(
        self, call: Callable[..., Any], x: Sequence[Example], state: Sequence[Example],
        weights: Sequence[tuple[int, Tensor, bool]], here: Callable[[], str | None],
        answers: Sequence[Any] | Guards | Choices, lifted: Lifted | None,
    ) -> None:  # fmt: skip
        self.call, self.weights, self.here = call, weights, here
        self.answers, self.lifted = answers, lifted
        self.n_x, self.n_rows = len(x), len(x) + len(state)
        self.of_pairs = [e.dtype.is_complex for e in (*x, *state)] + [t.is_complex() for _, t, _ in weights]
        floats = [e.dtype.to_real() for e in (*x, *state) if e.dtype.is_floating_point or e.dtype.is_complex]
        self.real = floats[0] if floats else torch.get_default_dtype()
        self.lines: list[str | None] = []
        self.followed: set[int] = set()
        self.shown: _Shown | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        both = zip(inputs, self.of_pairs, strict=True)
        given = [torch.view_as_complex(t) if paired else t for t, paired in both]
        rows, shared = given[: self.n_rows], given[self.n_rows :]
        swap = {id(t): traced for (_, t, _), traced in zip(self.weights, shared, strict=True)}
        self.lines.clear()
        known = Answers(self.answers, rows)
        numbers = None if self.lifted is None else InTheirPlace(self.lifted, swap, self.followed)
        with (
            _Swap(swap, self.here, self.lines, self.followed, known) as mode,
            Exact(self.real),
            by_gradients(),
            numbers or contextlib.nullcontext(),
        ):
            y_spec, y, new = self.call(rows[: self.n_x], rows[self.n_x :])
        if numbers is not None:
            numbers.check()
        mode.masks.refuse((y, new))
        results = [t if isinstance(t, Tensor) else torch.as_tensor(t) for t in (*y, *new)]
        asked = by_states(mode.asked, given, range(self.n_x, self.n_rows), results[len(y) :], mode.bases)
        ways = [leads_to(t, inputs, mode.bases) for t in results]
        if any(t.requires_grad and not requires for t, (_, requires) in zip(results, ways, strict=True)):
            raise Unsupported("a result requires a gradient for tensors alone that the step makes")
        check_nothing_becomes_zeros(results, ways, inputs, range(self.n_x, self.n_rows), len(y))
        paired = tuple(i for i, t in enumerate(results) if t.is_complex())
        grads = [t.requires_grad for t in results]
        self.shown = self.shown or _Shown(y_spec, len(y), grads, ways, paired, asked)
        return tuple(torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.clone() for t in results)


def _untraced(error: Exception, line: str | None) -> Unsupported:
    """Why a step cannot be traced, by what it raised at a line of the user's."""
    if (refusal := written_over(error, None)) is not None:
        return refusal
    why = _why(error)
    remedy = "write the step with torch ops on whole rows; stepnet runs it by the plain loop"
    if "torch.distributions" in why:
        remedy = "make the distribution with validate_args=False"
    elif why == _SIZED_BY_VALUES:
        remedy = "h[mask] = f(h[mask]), which is compiled, or torch.where(mask, a, b) on whole rows"
    elif why == _BY_COUNT:
        remedy = "leave x.shape[0] out of numbers: rows of all sequences come together"
    elif why == BY_VALUES:
        remedy = _BY_ROWS
    kind = FailsOnAnyRows if isinstance(error, StepError) and why != _BY_COUNT else Unsupported
    return kind(why, line=line, remedy=remedy)


def _input(shape: Sequence[int], dtype: torch.dtype, grad: bool, *, rows: bool) -> Input:
    """An input of the trace; complex numbers as pairs of real ones."""
    return Input((*shape, *((2,) if dtype.is_complex else ())), dtype.to_real(), grad, rows)


@contextlib.contextmanager
def _clean_modes() -> Iterator[None]:
    """Trace as if nothing was around: no autocast cache, no outer compile."""
    with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu"), cache_enabled=False):
        yield


def _note_lines(graph: FxGraph) -> None:
    """Give every traced call the user's line; a backward call gets that of its forward call."""
    by_sequence: dict[Any, str] = {}
    for node in graph.nodes:
        trace = (node.meta.get("stack_trace") or "").split("Gradient addition")[0].strip()
        number = node.meta.get("seq_nr")
        if trace:
            node.meta["stepnet_line"] = trace
            by_sequence.setdefault(number, trace)
        elif number in by_sequence:
            node.meta["stepnet_line"] = by_sequence[number]


class FailsOnAnyRows(Unsupported):
    """The step runs on sample rows, and fails where their number is left open."""


def _checked_by_a_distribution(error: BaseException | None) -> bool:
    """Whether an error comes from the check of its arguments that a distribution makes."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if any(f.name == "__init__" and f.filename.endswith("distributions/distribution.py") for f in frames):
            return True
        error = error.__cause__
    return False


_BY_ROWS = "torch.where(condition, a, b), or a stepnet.while_loop with a condition for each row"
_BY_COUNT = "the step computes with the number of rows"
_SIZED_BY_VALUES = "an op makes a result whose shape depends on values (nonzero, unique, lstsq, a mask)"


def _why(error: Exception) -> str:
    kind = type(error).__name__
    text = str(error)
    if _checked_by_a_distribution(error):
        return "a distribution of torch.distributions checks its arguments"
    if "DataDependent" in kind or "data-dependent" in text:
        return BY_VALUES
    if "DynamicOutputShape" in kind or "dynamic shape" in text:
        return _SIZED_BY_VALUES
    if "SymInt" in text:  # which numpy does not know
        return _BY_COUNT
    if kind == "UnsupportedOperatorException":
        return f"torch does not say of which shape the result of {text.strip()} is"
    if "non-Fake" in text or "convert all Tensors to FakeTensors" in text:
        return "the step uses a tensor in a way that the trace cannot follow"
    if type(error).__module__.startswith("torch._dynamo"):
        return "the step calls a compiled function, which no step can hold"
    if "mutat" in text:
        return "the step changes one of its inputs or a captured tensor in place"
    if "alias" in text:
        return "a result of the step shares memory with one of its inputs in a way that cannot be traced"
    first = text.strip().splitlines()
    return f"the step could not be traced: {kind}: {first[0] if first else ''}"
