"""A function of tensors as a graph of aten calls. The only file here that touches torch's tracing."""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import sympy
import torch
import torch.backends.opt_einsum
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node as FxNode
from torch.fx import traceback as fx_traceback
from torch.fx._lazy_graph_module import _use_lazy_graph_module  # nobody runs the program's Python
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._sympy.functions import FloorDiv

from stepnet.compiler.reads.swapped import Swapped
from stepnet.compiler.trace.control import both_branches
from stepnet.compiler.trace.lengths import open_lengths
from stepnet.data.recording import Interned
from stepnet.data.values import note_size, size_in
from stepnet.errors import IRError, LoDError, Unsupported
from stepnet.interrupts import let_through
from stepnet.user_line import Line, raised_at, run_by

from . import size_questions
from .call_log import Asked, Request
from .decompositions import Known, taken_apart
from .keeping_sizes import KEEPING_SIZES, ToldByNumbers
from .math_of_sizes import imports_noted
from .tensor_kinds import PlainParameters


@dataclass(frozen=True)
class Program:
    """A traced function: its inputs and outputs as nodes, the values of those that are constants, what its
    Python asked torch for, and which line of it fixed a size to each number."""

    inputs: tuple[FxNode, ...]
    constants: dict[FxNode, Tensor]
    nodes: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]
    asked: Sequence[Request] = ()
    fixed: Mapping[int, Line] = field(default_factory=dict)


def program(
    run: Callable[..., Sequence[Tensor]], owner: Any, leaves: Sequence[Tensor],
    dynamic: Sequence[dict[int, bool]], where: str, known: Known,
) -> Program:  # fmt: skip
    """Trace a function of tensors.

    Args:
        run: the function.
        owner: the module whose parameters it reads, if it reads any.
        leaves: examples of its arguments.
        dynamic: for each the dynamic dimensions; True: must be, False: where nothing speaks against it.
        where: what is traced, for errors.
        known: whether a call can stay as it is; others are taken apart into simpler ones.

    Raises:
        IRError: it cannot be traced, or a dimension that must be dynamic is not.
    """
    traced = _Traced(run, owner, where)
    parts = taken_apart(_exported(traced, [leaf.detach() for leaf in leaves], dynamic, where), known)
    if parts.changed:
        raise IRError(
            f"{where} cannot be written: it changes buffers or weights of a module as it runs",
            got=", ".join(map(str, parts.changed)),
            remedy="module.eval() first; what stays from call to call as inputs and outputs",
            expected="what stays as it is",
        )
    plain = tuple(n for n in parts.nodes if n.op == "call_function")
    ends, asked = (tuple(parts.inputs), tuple(parts.outputs)), traced.asked
    return Program(ends[0], parts.constants, plain, ends[1], asked.calls, asked.fixed)


class AnyNumber(Interned):
    """A size that is any number in what is written, though it was one number in the trace."""

    class _Expression:
        def __init__(self, expr: Any) -> None:
            self.expr = expr

    def __init__(self, expr: Any) -> None:
        """`expr`: its name, or how it follows from others."""
        self.node = self._Expression(sympy.Symbol(expr, integer=True) if isinstance(expr, str) else expr)

    def __str__(self) -> str:
        return str(self.node.expr)

    def __add__(self, other: Any) -> AnyNumber:
        return AnyNumber(self.node.expr + _expr_of(other))

    def __sub__(self, other: Any) -> AnyNumber:
        return AnyNumber(self.node.expr - _expr_of(other))

    def __mul__(self, other: Any) -> AnyNumber:
        return AnyNumber(self.node.expr * _expr_of(other))

    def __floordiv__(self, other: Any) -> AnyNumber:
        return AnyNumber(FloorDiv(self.node.expr, _expr_of(other)))

    __radd__, __rmul__ = __add__, __mul__


def _expr_of(size: Any) -> Any:
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


BATCH = AnyNumber("sequences")
Numbers = Mapping[int, AnyNumber]  # by the numbers that they were


_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
_OF_PYTHON = "_stepnet_number_of_python"


def of_python(value: Tensor) -> None:
    """Note that a tensor stands for a number of Python's, whose quotients are float64."""
    setattr(value, _OF_PYTHON, True)


def _of_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Tensor:
    """What a call makes of numbers of Python's."""
    real = result.is_floating_point()
    if func in _MADE_OF_NUMBERS:
        return result.to(torch.get_default_dtype()) if real and kwargs.get("dtype") is None else result
    if real:
        result = func(*(arg.double() if isinstance(arg, Tensor) else arg for arg in args), **kwargs)
    if not result.dim():
        of_python(result)
    return result


class _Lines(TorchFunctionMode):
    """Tells torch's tracing which line of the user's code each call is in, and notes what that asks for;
    `where` is its name in errors."""

    def __init__(self, where: str, asked: Asked) -> None:
        super().__init__()
        self.where, self.asked, self.parameters = where, asked, PlainParameters()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled:
            # Done, not traced: no file holds it, and it parts what follows.
            with torch._C.DisableTorchFunction():
                return func(*args)
        func = KEEPING_SIZES.get(func, func)
        args = tuple(map(self.parameters.of, args))
        place = run_by(__file__)
        line = place and place[0]
        if func in _GRADIENTS:
            self.asked.gradient = line
        if kwargs and kwargs.get("generator") is not None:
            raise IRError(
                f"{self.where} cannot be written: '{func.__name__}'"
                + (f" ({line.short})" if line else "")
                + ": it draws random numbers, which a file does not",
                remedy="what is drawn as an input of the module",
                got=f"a call of {func.__name__}",
                expected="the same numbers in each run",
            )
        fx_traceback.set_stack_trace([line.short] if line else [])
        number = _number(func, args, kwargs)  # before args may be changed in place
        with size_questions.passing((*args, *(kwargs or {}).values())):
            result = func(*args, **(kwargs or {}))
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            if isinstance(result, Tensor) and tensors and all(hasattr(t, _OF_PYTHON) for t in tensors):
                result = _of_numbers(func, args, kwargs or {}, result)
        if number is not None and isinstance(result, Tensor) and _is_one(result):
            note_size(result, number)  # else a number that the trace knows nothing of
        self.asked.call(place, func.__name__, (args, kwargs), result)
        return result


_SUMS = {
    operation: run
    for run, names in (
        (operator.add, ("add", "__add__", "__radd__", "add_", "__iadd__")),
        (operator.sub, ("sub", "__sub__", "sub_", "__isub__")),
    )
    for name in names
    for operation in (getattr(Tensor, name), getattr(torch, name, None))
    if operation is not None
}
_FILLED = {torch.zeros: 0, torch.zeros_like: 0, torch.ones: 1, torch.ones_like: 1}


def _is_one(result: Tensor) -> bool:
    return result.numel() == 1 and result.dtype in (torch.int64, torch.int32)


def _number(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """The one integer that a call gives, if it follows from sizes; it is made of numbers, or added to one."""
    if func in _MADE_OF_NUMBERS:
        return args[0] if isinstance(args[0], torch.SymInt) else None
    if func in _FILLED:
        return _FILLED[func]
    if func not in _SUMS or len(args) != 2 or kwargs:
        return None
    parts: list[Any] = [size_in(part) if isinstance(part, Tensor) else part for part in args]
    return _SUMS[func](*parts) if all(isinstance(part, (int, torch.SymInt)) for part in parts) else None


class _Traced(nn.Module):
    """A function of tensors as a module, with `owner` (if it is one) among its own."""

    def __init__(self, run: Callable[..., Sequence[Tensor]], owner: Any, where: str) -> None:
        super().__init__()
        self.run, self.where, self.asked = run, where, Asked()
        if isinstance(owner, nn.Module):
            self.owner = owner

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        self.asked.begin()
        with _Lines(self.where, self.asked):
            try:
                results = tuple(self.run(*leaves))
            except RuntimeError as error:
                if "data-dependent" not in str(error):
                    raise
                raise ToldByNumbers from error  # of torch's own torch.export prints the graph
        self.asked.results(results)
        return results


def _export(
    traced: _Traced,
    leaves: tuple[Tensor, ...],
    shapes: Any,
    lengths: Callable[[], AbstractContextManager[None]],
) -> ExportedProgram:
    # Out of inference mode, whose tensors do not tell that they were changed.
    with (
        warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad(),
        fx_traceback.preserve_node_meta(), _nothing_kept(), size_questions.answered(traced.asked.fixed),
        unsaid("torch._export.non_strict_utils"),
        both_branches(), lengths(), _CAUSAL.inside(), _IN_ORDER.inside(), _no_hooks_left(), _no_strides(),
        _use_lazy_graph_module(True),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        return export(traced, leaves, dynamic_shapes=(shapes,) if leaves else None, strict=False)


def _export_again(*given: Any) -> ExportedProgram:
    """Once more, where code was met that knows a function of `math` by a name of its own."""
    known = imports_noted()
    try:
        made = _export(*given)
    except Exception as error:
        let_through(error)
        if imports_noted() == known:
            raise
    else:
        if imports_noted() == known:
            return made
    return _export(*given)


def _exported(
    traced: _Traced, leaves: Sequence[Tensor], dynamic: Sequence[dict[int, bool]], where: str
) -> ExportedProgram:
    shapes = tuple({d: Dim.DYNAMIC if must else Dim.AUTO for d, must in dims.items()} for dims in dynamic)
    try:
        try:
            return _export_again(traced, tuple(leaves), shapes, open_lengths)
        except (IRError, Unsupported):
            raise
        except Exception as error:  # the user's code may want a number
            let_through(error)
            return _export_again(traced, tuple(leaves), shapes, contextlib.nullcontext)
    except (IRError, Unsupported):
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # torch wraps what the module raised
            if isinstance(cause, IRError):
                raise cause from None
            if isinstance(cause, LoDError):
                raise IRError(f"{where} cannot be written: {cause}") from error
            cause = cause.__cause__ or cause.__context__
        by_numbers = isinstance(error, ToldByNumbers)
        text, line = str(error).strip().splitlines(), raised_at((by_numbers and error.__cause__) or error)
        if traced.asked.gradient is not None or "functorch tensor" in str(error):
            line = traced.asked.gradient
            raise IRError(
                f"{where} cannot be written: it takes gradients as it runs"
                + (f" ({line.short})" if line else "")
                + ", which torch could not trace",
                got="torch.func or torch.autograd" if line is None else "torch.autograd.grad or backward",
                expected="calls of torch that are no gradients, or gradients by x and the state of a step "
                "that is compiled",
                remedy="write the gradient out by its formula",
            ) from error
        raise IRError(
            f"{where} cannot be written: it could not be traced with sizes left open",
            got=(
                "a size or a truth that numbers in tensors decide"
                if by_numbers
                else f"{type(error).__name__}: {text[0] if text else ''}"
            )
            + (f" ({line.short})" if line else ""),
            remedy="let sizes come from tensors (x.shape[0]), and use no Python control flow on values"
            + ("; x[i] is the row of x[i : i + 1]" if by_numbers else ""),
            expected="calls of torch that are the same for all sizes",
        ) from error


# That a mask is causal, which torch asks of its entries, makes what it computes no other.
_CAUSAL = Swapped(
    torch.nn.modules.transformer, "_detect_is_causal_mask", lambda mask, causal=None, size=None: bool(causal)
)
# Nor does the order of a product of three tensors, for which opt_einsum, if it is there, asks their sizes.
_IN_ORDER = Swapped(cast(Any, torch.backends.opt_einsum).m, "enabled", False)


_without = threading.local()
_STRIDES = Swapped(
    proxy_tensor, "_extract_tensor_metadata",
    lambda *value: None if getattr(_without, "strides", False) else _STRIDES.original(*value),
)  # fmt: skip


@contextlib.contextmanager
def _no_strides() -> Iterator[None]:
    """Let this thread's trace not say how each result lies in memory, which nobody reads: of open sizes that
    takes a tenth of its time."""
    with _STRIDES.inside():
        before, _without.strides = getattr(_without, "strides", False), True
        try:
            yield
        finally:
            _without.strides = before


@contextlib.contextmanager
def _no_hooks_left() -> Iterator[None]:
    """Take back the hook on all modules that an export of torch 2.6 leaves behind where it fails."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    except BaseException:
        for key in hooks.keys() - before:
            del hooks[key]
        raise


def repeated_along(value: Tensor, d: int, size: int) -> Tensor:
    """A tensor with a dimension of another size: what it holds there, again and again; zeros, if nothing."""
    own = value.shape[d]
    if not own:
        return value.new_zeros([*value.shape[:d], size, *value.shape[d + 1 :]])
    return value.index_select(d, torch.arange(size, device=value.device) % own)


@contextlib.contextmanager
def unsaid(name: str) -> Iterator[None]:
    """Let one of torch's loggers be silent, in this thread: what it tells here is of no use to the user."""
    thread, log = threading.get_ident(), logging.getLogger(name)

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(elsewhere)
    try:
        yield
    finally:
        log.removeFilter(elsewhere)


def _nothing_kept() -> AbstractContextManager[Any]:
    """What torch keeps of each call of a trace, to know the shapes of the next one like it, is made and
    looked up by open sizes, which takes longer than to work the shapes out."""
    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


def sizes_of(value: Tensor, numbers: Numbers | None = None) -> list[Any]:
    """The shape of a traced tensor. A size that the trace found to be fixed is an int; `numbers` are those
    that stand for any number of sequences."""
    sizes = [
        int(size.node.expr) if isinstance(size, torch.SymInt) and size.node.expr.is_Integer else size
        for size in value.shape
    ]
    return [numbers.get(size, size) if numbers and isinstance(size, int) else size for size in sizes]


def line_of(node: FxNode) -> str | None:
    """The line of the user's code that a traced call came from, as file:line."""
    found = (node.meta.get("stack_trace") or "").strip()
    return found if found and "\n" not in found else None
