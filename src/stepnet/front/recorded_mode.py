"""What torch is asked for while a frame is written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from stepnet.data.in_graph import is_exporting
from stepnet.data.modes import gradients_set
from stepnet.data.recording import RECORDER
from stepnet.data.tree import leaves
from stepnet.errors import StepError
from stepnet.user_line import user_line

from .examples import in_place
from .program import Program
from .symbolic import Symbolic, at_home

# The last is what generated C does with its own results.
_TWICE_AS_ONCE = {"requires_grad_", "share_memory_", "resize_"}


class Recorded(TorchFunctionMode):
    """In a frame: torch functions that meet a symbolic value anywhere, such as in a slice, are recorded.

    Others are called, once. So they must not change what was there before the frame, such as a module's count
    of its calls: a loop would change it at every step.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        program.with_gradient = self._around = torch.is_grad_enabled()
        self._made: dict[Any, Tensor] = {}  # by their memory, which stays theirs while they are held

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__":  # an attribute, such as a dtype
            return func(*args, **kwargs)
        first = next(leaves((args, kwargs), Symbolic), None)
        if first is not None:
            return at_home(first).call(func, args, kwargs)
        if name == "_set_grad_enabled":
            return self._set_gradients(func, *args)
        if RECORDER.get() is None:  # an example is tried
            return func(*args, **kwargs)
        changed = args[:1] if in_place(func, name) and name not in _TWICE_AS_ONCE else kwargs.get("out")
        if changed is not None and any(_memory(leaf) not in self._made for leaf in leaves(changed, Tensor)):
            raise StepError(
                f"'{name}' changes a tensor from outside the frame once, and not at each step",
                got=user_line().short,
                remedy="make it a loop variable, or change it before the frame",
            )
        result = self._once(func, args, kwargs)
        made = {_memory(leaf): leaf for leaf in leaves(result, Tensor)}
        if made:
            given = {_memory(leaf) for leaf in leaves((args, kwargs), Tensor)}
            self._made.update((at, leaf) for at, leaf in made.items() if at not in given)
        return result

    def _set_gradients(self, func: Callable[..., Any], enabled: bool) -> None:
        """For the lines that are recorded, of which a program that torch exports is not told: of a block that
        is empty for it, `torch.export.load` makes no program."""
        with torch._C.DisableTorchFunction() if is_exporting() else contextlib.nullcontext():
            func(enabled)
        if RECORDER.get() is not None:
            self._program.with_gradient = torch.is_grad_enabled()

    def _once(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that is no part of the loop; an exported program is told whether its gradients are off."""
        if torch.is_grad_enabled() is self._around or not is_exporting():
            return func(*args, **kwargs)
        with gradients_set(self._around), torch.no_grad() if self._around else torch.enable_grad():
            return func(*args, **kwargs)


@contextlib.contextmanager
def sharded_refused() -> Iterator[None]:
    """In this block no module may gather weights that `fully_shard` spreads: the loop runs after it.

    Raises:
        StepError: one is called, and what is around the frame has not gathered them.
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)  # slow to import
    if kind is None or not kind.__subclasses__():
        yield
        return

    def refuse(module: Any, _: Any) -> None:
        if isinstance(module, kind) and module._get_fsdp_state()._training_state.name != "FORWARD":
            raise StepError(
                "a frame calls a module whose weights `fully_shard` spreads: they are gathered as the frame "
                "is written, not when it runs",
                got=f"{type(module).__name__}, {user_line().short}",
                remedy="fully_shard the module whose forward holds the frame, and none that the frame calls; "
                "or stepnet.recurrent, which gathers once for all steps",
            )

    hook = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def _memory(tensor: Tensor) -> Any:
    """What two views of one tensor have in common; of a tensor without memory of its own, itself."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse, or inside torch.func
        return id(tensor)
