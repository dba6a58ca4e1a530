"""Index arithmetic apart from torch's modes: what it makes is kept longer than any mode.

Inference mode, a default device, fake tensors, torch.func transforms and traces would each leave something in
a tensor made under them that no later call can use. The offsets of sequences, and all that is computed from
them, are plain tensors on the CPU whatever is around.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from stepnet.data.bounded_cache import Bounded
from stepnet.data.on_meshes import on_mesh_of

_P = ParamSpec("_P")
_R = TypeVar("_R")
_AS_IT_IS = contextlib.nullcontext()
_CPU = torch.device("cpu")
_DISPATCH = "__torch_dispatch__"
_autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
_saving: Any = getattr(_autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.8


def outside_modes(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that runs as if no mode was around. Its tensors must be real ones.

    >>> ones = outside_modes(lambda: torch.ones(2))
    >>> with torch.device("meta"), torch.inference_mode():
    ...     made = ones()
    >>> made.device.type, made.is_inference()
    ('cpu', False)
    """
    return _called(function, _any_mode, _without_modes)


def unrecorded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose calls are no part of what a mode records, such as a trace; its tensors may be fake."""
    return _called(function, _any_dispatch_mode, _without_dispatch_modes)


def _called(
    function: Callable[_P, _R],
    is_any: Callable[[], bool],
    without: Callable[[], contextlib.AbstractContextManager[object]],
) -> Callable[_P, _R]:
    """A function that is called without modes, where there are any."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_any():
            return function(*args, **kwargs)
        with without():
            return function(*args, **kwargs)

    return call


def _any_mode() -> bool:
    if torch.compiler.is_dynamo_compiling():  # Dynamo follows the function, and knows what is around it
        return False
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.is_inference_mode_enabled()
        or transforms_active()
        or torch._C._get_tracing_state() is not None
    )


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if torch._C._get_tracing_state() is not None:
            set_tracing_state: Any = torch._C._set_tracing_state  # pyright: ignore[reportAttributeAccessIssue]
            stack.callback(set_tracing_state, torch._C._get_tracing_state())
            set_tracing_state(None)
        if transforms_active():
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            stack.enter_context(temporarily_clear_interpreter_stack())
            native: Any = torch._C  # Dynamo, between two graphs, would look for the transforms
            set_eval_frame = native._dynamo.eval_frame.set_eval_frame
            stack.callback(set_eval_frame, set_eval_frame(None))
        stack.enter_context(_without_dispatch_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch._C.DisableTorchFunction())
        yield


def _any_dispatch_mode() -> bool:
    return bool(torch._C._len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch())


def _without_dispatch_modes() -> contextlib.AbstractContextManager[object]:
    if not _any_dispatch_mode():
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def in_function_modes() -> bool:
    """Whether a TorchFunctionMode is active that is none of torch's default device, its traces, and ours."""
    if not torch._C._len_torch_function_stack():
        return False
    known = ("torch.utils._device", "torch.fx.experimental.proxy_tensor", "stepnet.")
    return not all(type(m).__module__.startswith(known) for m in _get_current_function_mode_stack())


def noted(tensor: Tensor) -> Tensor:
    """The numbers of a tensor that are to be read outside of modes: where a step is recorded, it is told that
    they are asked for. Raises Unsupported: there they are not known.

    >>> noted(torch.ones(2))
    tensor([1., 1.])
    """
    if torch.compiler.is_dynamo_compiling() or not torch._C._len_torch_function_stack():
        return tensor
    for mode in reversed(_get_current_function_mode_stack()):
        if hasattr(mode, "numbers_of"):
            with torch._C.DisableTorchFunction():  # it is still among the modes
                return _of_numbers(mode.numbers_of(tensor), tensor.dtype)
    return tensor


@outside_modes
def _of_numbers(numbers: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def transforms() -> list[str]:
    """The transforms of torch.func around, the outermost first: Grad, Vmap, Jvp, Functionalize."""
    if not transforms_active():
        return []
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    return [type(i).__name__.removesuffix("Interpreter") for i in retrieve_all_functorch_interpreters()]


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Run on plain tensors as if no transform of torch.func was around."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack(), outside_batches(), _without_dispatch_modes():
        yield


def batches() -> int:
    """How many batches of gradients are computed around, one in the other (`is_grads_batched=True`)."""
    if torch.compiler.is_dynamo_compiling():  # it would write the question into its graph, not its answer
        return 0
    native: Any = torch._C
    depth = native._vmapmode_increment_nesting() - 1
    native._vmapmode_decrement_nesting()
    return depth


@contextlib.contextmanager
def outside_batches() -> Iterator[None]:
    """Run on plain tensors as if no batch of gradients was computed: torch draws no numbers in there."""
    native: Any = torch._C
    depth = batches()
    for _ in range(depth):
        native._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth):
            native._vmapmode_increment_nesting()


@contextlib.contextmanager
def outside_innermost() -> Iterator[None]:
    """Run as if the innermost transform of torch.func was not around."""
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    with retrieve_current_functorch_interpreter().lower():
        yield


def has_tangent(tensor: Tensor) -> bool:
    """Whether forward mode carries a direction along with a tensor, by a level of autograd's own."""
    if forward_ad._current_level < 0 or tensor.is_inference() or torch.is_inference_mode_enabled():
        return False
    with forward_ad._set_fwd_grad_enabled(True):  # it is off inside of a Function
        return forward_ad.unpack_dual(tensor).tangent is not None


def sees_saved_tensors() -> bool:
    """Whether somebody else takes what is saved for backward. `torch.utils.checkpoint` takes that of two
    runs, and asks that tensor for tensor they look alike.

    >>> with torch.autograd.graph.save_on_cpu():
    ...     sees_saved_tensors()
    True
    """
    if _saving is not None:
        return _saving(False) is not None
    try:
        with disable_saved_tensors_hooks("asks whether there are any"):
            return False
    except RuntimeError:
        return True


def is_recorded() -> bool:
    """Whether autograd records what is computed here: nothing in inference mode, whatever is enabled inside.

    >>> with torch.inference_mode(), torch.enable_grad():
    ...     torch.is_grad_enabled(), is_recorded()
    (True, False)
    """
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def is_kept_twice() -> bool:
    """Whether a checkpoint of torch's may hold what a call keeps against what it kept: one of a Parameter
    goes by its plan, and gets a plain tensor in its place where it is made again."""
    return torch.is_grad_enabled() and sees_saved_tensors()


def packs_saved_tensors() -> Any:
    """What takes what is saved for backward here; None: nothing, or it is not known.

    >>> packs_saved_tensors()
    """
    pair = None if _saving is None else _saving(False)
    return None if pair is None else pair[0]


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a transform of torch.func made something else of a tensor.

    >>> is_wrapped(torch.ones(2))
    False
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return functorch.is_functorch_wrapped_tensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that transforms of torch.func made something else of.

    >>> unwrapped(ones := torch.ones(2)) is ones
    True
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def needs_gradient(tensor: Tensor) -> bool:
    """Whether a tensor needs a gradient, of autograd or of any transform of torch.func around.

    >>> needs_gradient(torch.ones(2, requires_grad=True))
    True
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while not tensor.requires_grad and functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def traced() -> bool:
    """Whether what runs is written down instead, or runs on tensors without numbers: `torch.export`, make_fx,
    `torch.jit.trace`, fake tensors. Code that torch does not dispatch would be missed there.

    >>> traced()
    False
    """
    if torch._C._get_tracing_state() is not None or _len_torch_dispatch_stack_pre_dispatch():
        return True
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(key) is not None
        for key in torch._C._TorchDispatchModeKey.__members__.values()
    )


def transforms_active() -> bool:
    """True inside torch.func's vmap, grad or jvp, which a compiled loop cannot take part in."""
    return torch._C._are_functorch_transforms_active()


def nothing_around() -> bool:
    """Whether no mode, transform or trace is around a call.

    >>> with torch.device("cpu"):
    ...     nothing_around()
    False
    """
    return not (
        torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
        or torch.is_anomaly_enabled()
        or torch._C._len_torch_dispatch_stack()
        or transforms_active()
        or traced()
    )


def surely_differ(a: Any, b: Any) -> bool:
    """Whether two sizes differ. Of those that a program leaves open nobody knows before it runs.

    >>> surely_differ(2, 3)
    True
    """
    if type(a) is int and type(b) is int:
        return a != b
    from torch.fx.experimental import symbolic_shapes

    known: Any = getattr(symbolic_shapes, "guard_or_false", None)
    if known is None:  # its name before torch 2.7
        known = symbolic_shapes.definitely_true  # pyright: ignore[reportAttributeAccessIssue]
    return known(a != b)


def transformed() -> bool:
    """Whether torch.func or forward mode is around, where nothing can be computed again in backward.

    >>> torch.func.grad(lambda x: x * transformed())(torch.tensor(2.0))
    tensor(1.)
    """
    return forward_ad._current_level >= 0 or transforms_active()


def linearizes() -> bool:
    """Whether torch writes down what happens to tangents at known numbers, as `torch.func.linearize` does: a
    call may stand there as one that only this process knows.

    >>> linearizes()
    False
    """
    keys: Any = torch._C._TorchDispatchModeKey
    return (
        forward_ad._current_level >= 0
        and torch._C._len_torch_dispatch_stack() == 1
        and torch._C._get_dispatch_mode(keys.PROXY) is not None
        and "Jvp" not in transforms()
    )


def as_one_node(compute: Callable[..., _R], node: Callable[..., _R], tensors: Sequence[Tensor]) -> _R:
    """What `compute` gives of tensors; where `linearizes`, in the graph it is a call of `node` on them."""
    if not linearizes():
        return compute(*tensors)
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, track_tensor_tree

    mode: Any = get_proxy_mode()
    places = tuple(mode.tracer.unwrap_proxy(tensor) for tensor in tensors)
    with _without_dispatch_modes():
        results = compute(*tensors)
    proxy = mode.tracer.create_proxy("call_function", node, places, {})
    return track_tensor_tree(results, proxy, constant=None, tracer=mode.tracer)


def default_device() -> torch.device:
    """Where new tensors are made. `torch.get_default_device` would make one to see.

    >>> default_device()
    device(type='cpu')
    """
    return torch.get_default_device() if torch._C._len_torch_function_stack() else _CPU


def is_as_written(device: torch.device) -> bool:
    """Whether torch ops already run as `as_written` lets them."""
    return (
        device.type == "cpu"
        and not torch._C._len_torch_function_stack()
        and not torch.is_autocast_enabled("cpu")
    )


@contextlib.contextmanager
def as_written(device: torch.device) -> Iterator[None]:
    """Run torch ops as they stand: no autocast, no default device but this one, no torch function changed."""
    own = _AS_IT_IS if device.type == "cpu" else device
    with without_function_modes(), uncast({"cpu", device.type}), own:
        yield


def uncast(kinds: Iterable[str]) -> contextlib.AbstractContextManager[Any]:
    """Without autocast for these types of devices from now on, to the end of the block that this opens."""
    on = [kind for kind in kinds if autocast_dtype(kind) is not None]
    if not on:
        return _AS_IT_IS
    stack = contextlib.ExitStack()
    for kind in on:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


@contextlib.contextmanager
def without_any_mode() -> Iterator[None]:
    """Run as if no mode of torch saw or changed what is called, on whatever tensors.

    >>> with torch.device("meta"), without_any_mode():
    ...     torch.ones(2).device
    device(type='cpu')
    """
    with without_function_modes(), _without_dispatch_modes():
        yield


@contextlib.contextmanager
def without_function_modes(*but: type) -> Iterator[None]:
    """Run as if no TorchFunctionMode was around `but` those of some classes."""
    aside = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    kept = [mode for mode in reversed(aside) if isinstance(mode, but)]
    for mode in kept:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in kept:
            _pop_mode()
        for mode in reversed(aside):
            _push_mode(mode)


@contextlib.contextmanager
def for_plans() -> Iterator[None]:
    """Compute what outlives the modes around: no inference tensors, nothing that a dispatch mode sees or
    makes, no refusal of draws, and no casts of weights that autocast keeps, made where gradients are off."""
    with _without_dispatch_modes(), torch.inference_mode(False), outside_batches(), casts_let_go():
        yield


@contextlib.contextmanager
def casts_let_go() -> Iterator[None]:
    """Keep no casts of weights for what is called under the same autocast afterwards."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def autocast_dtype(kind: str) -> torch.dtype | None:
    """What autocast makes of ops on this type of device; None where it is off.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype("cpu")
    torch.bfloat16
    """
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


class Around(NamedTuple):
    """What is set around a call that a step computes by: what autocast makes of ops on the CPU, and what
    torch makes tensors of and where."""

    autocast: torch.dtype | None
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def now(cls) -> Around:
        """What is set here."""
        return cls(autocast_dtype("cpu"), torch.get_default_dtype(), default_device())

    def again(self) -> contextlib.AbstractContextManager[None]:
        """Set it for what is run later on, as a derivative is.

        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     around = Around.now()
        >>> with around.again():
        ...     autocast_dtype("cpu")
        torch.bfloat16
        """
        return contextlib.nullcontext() if self == Around.now() else self._set()

    @contextlib.contextmanager
    def _set(self) -> Iterator[None]:
        dtype = torch.get_default_dtype()
        autocast = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)
        with autocast, self.device if self.device != default_device() else contextlib.nullcontext():
            torch.set_default_dtype(self.dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(dtype)


def settings() -> tuple[Any, ...]:
    """What numbers and their gradients depend on of what is set around a call: whether there are gradients,
    what autocast makes, and the dtype of what is made from numbers of Python's."""
    return torch.is_grad_enabled(), autocast_dtype("cpu"), torch.get_default_dtype()


@contextlib.contextmanager
def gradients_set(enabled: bool) -> Iterator[None]:
    """Gradients on or off, of which no function mode is told: a trace would note it, and a program that sets
    them around nothing is one that `torch.export.load` cannot read.

    >>> with gradients_set(False):
    ...     torch.is_grad_enabled()
    False
    """
    before = torch.is_grad_enabled()
    _set_unseen(enabled)
    try:
        yield
    finally:
        _set_unseen(before)


def _set_unseen(enabled: bool) -> None:
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(enabled)


def draws_put_back() -> contextlib.AbstractContextManager[None]:
    """Put torch's own generators, those of GPUs in use too, back to where they are.

    >>> with draws_put_back():
    ...     drawn = torch.rand(3)
    >>> torch.equal(torch.rand(3), drawn)
    True
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.random.fork_rng(devices=gpus)


# Whether a step is recorded that is recorded again at each call, and must then be seen to read the same.
FOUND_AGAIN: ContextVar[bool] = ContextVar("stepnet_indices_are_found_again", default=False)
_found = Bounded[tuple[torch.dtype, bytes], Tensor](128)
_MOST_FOUND = 1 << 17  # bytes of one


def found_again(index: Tensor) -> Tensor:
    """Numbers made outside of modes; in a step that is recorded at each call, of equal numbers the same
    tensor, which nobody writes to: there it is something that the step did not make.

    >>> index = torch.arange(2)
    >>> found_again(index) is index
    True
    """
    if torch.compiler.is_dynamo_compiling() or not FOUND_AGAIN.get() or type(index) is not Tensor:
        return index
    return _found_again(index)


@outside_modes  # which are told of attributes that are asked for, too
def _found_again(index: Tensor) -> Tensor:
    if not index.is_cpu or index.nbytes > _MOST_FOUND or index.dim() != 1 or index.requires_grad:
        return index
    key = index.dtype, index.numpy().tobytes()
    known = _found.pop(key, None)  # put behind all others: what this step met stays until it is seen again
    if known is None or known.numpy().tobytes() != key[1]:  # as a step can write past torch
        known = index.clone()
    _found[key] = known
    return known


def beside(index: Tensor, values: Tensor) -> Tensor:
    """An index made outside of modes, as an op takes it together with `values`: on their device, fake where
    they are, and on all processes that they are spread over.

    >>> beside(torch.arange(2), torch.empty(2, device="meta")).device.type
    'meta'
    """
    if type(values) is not Tensor:
        fake: Any = getattr(values, "fake_mode", None)
        if fake is not None and not fake.allow_non_fake_inputs:
            index = fake.from_tensor(index)
        index = on_mesh_of(values, index)
    return found_again(index) if values.is_cpu else index.to(values.device)


def real(tensor: Tensor) -> Tensor | None:
    """The tensor of numbers in what torch.func's grad, jvp or vjp made of one; None if there is none.

    >>> real(torch.ones(2))
    tensor([1., 1.])
    """
    if torch.compiler.is_dynamo_compiling():
        return tensor
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_gradtrackingtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    # a subclass that only overrides torch functions holds numbers
    dispatched = getattr(type(tensor), _DISPATCH) is not getattr(Tensor, _DISPATCH)
    return None if dispatched or tensor.is_meta or functorch.is_functorch_wrapped_tensor(tensor) else tensor
