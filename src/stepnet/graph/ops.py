"""The operators that stand for calls in graphs: `stepnet::run`, and the pair that it becomes where gradients
are asked for.

A call is run under autograd, and the graph that autograd records is kept for backward. It is found again by
the number in a tensor that is saved along with it: once that tensor is gone, so is the record, and backward
runs the call anew. Inputs, and the results that backward reads, are not kept in it, as a compiler may use
their memory for something else: backward is handed them. The other results are the caller's to change.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from stepnet.data.in_graph import not_followed
from stepnet.data.modes import is_wrapped, transforms_active, unwrapped
from stepnet.data.storage import apart
from stepnet.errors import StepError, WrittenError
from stepnet.executors.higher_order import one_by_one
from stepnet.executors.memory import are_written, counters

from .calls import Call, find
from .dispatch import from_the_top, on_numbers
from .memory import laid_out, leave_alone, places, taken
from .onnx_exporter import check_translated
from .planned import KINDS, Known, Ran

LIBRARY = torch.library.Library("stepnet", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
LIBRARY.define("run(Tensor[] tensors, SymInt[] sizes, str what) -> Tensor[]", tags=_TAGS)
LIBRARY.define(
    "run_keeping(Tensor[] tensors, SymInt[] sizes, bool[] needs, str what) -> Tensor[]", tags=_TAGS
)
LIBRARY.define(
    "run_backward(Tensor[] gradients, int[] places, Tensor[] tensors, Tensor[] results, Tensor kept, "
    "SymInt[] sizes, bool[] needs, str what) -> Tensor[]",
    tags=_TAGS,
)


class _Record:
    """A call that ran under autograd: its inputs and results there, and what stands for them at backward."""

    @from_the_top
    def __init__(
        self, what: str, tensors: Sequence[Tensor], sizes: Sequence[int], needs: Sequence[bool]
    ) -> None:
        call = find(what)
        self.memory: list[Tensor] = []
        if call.transforms:  # no hook can stand between: what is saved is the record's own
            tensors = [t.clone() for t in tensors]
        own = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
        saved: list[list[Any]] = []

        def pack(tensor: Tensor) -> Any:
            entry = [tensor.detach()]
            saved.append(entry)
            return entry

        hooks = nullcontext() if call.transforms else saved_tensors_hooks(pack, self._unpack)
        with torch.enable_grad(), hooks:
            results = call.run(own, sizes)
        self.inputs = own
        self.outputs = results
        self.results = [laid_out(t.detach()) for t in results]
        if call.transforms:
            self.results = [t.clone() for t in self.results]
        whole = [*own, *self.results[: call.read_back]]
        held = places([entry[0] for entry in saved], whole)
        for entry, one in zip(saved, held, strict=True):
            entry[0] = one
        leave_alone(self.results, call.read_back, held)

    def _unpack(self, entry: list[Any]) -> Tensor:
        return taken(entry, self.memory)[0]

    @from_the_top
    @torch.no_grad()
    def gradients(
        self, memory: Sequence[Tensor], grads: Sequence[Tensor], at: Sequence[int], needs: Sequence[bool]
    ) -> list[Tensor]:
        """The gradient of each input that needs one; see `planned.Ran`."""
        self.memory = [*memory]
        chosen = [(self.outputs[k], g) for k, g in zip(at, grads, strict=True)]
        chosen = [(o, g) for o, g in chosen if o.requires_grad]
        inputs = [t for t, need in zip(self.inputs, needs, strict=True) if need]
        try:
            if not chosen:
                return [t.new_zeros(t.shape) for t in inputs]
            found = torch.autograd.grad(
                [o for o, _ in chosen],
                inputs,
                [g for _, g in chosen],
                allow_unused=True,
                retain_graph=True,
            )
        finally:
            self.memory = []
        found = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]
        return [laid_out(t) for t in apart(found, (*memory, *grads))]


_TICKETS: weakref.WeakValueDictionary[int, _Ticket] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _by_plan(call: Call, tensors: list[Tensor], sizes: Sequence[int], needs: list[bool] | None) -> Ran | None:
    """A run by a plan; None if there is none."""
    known = call.by_plan(tensors, sizes, needs)
    if known is None:
        return None
    return known.by_places(tensors) or _by_names(known, tensors, needs is not None)


@from_the_top
def _by_names(known: Known, tensors: list[Tensor], keep: bool) -> Ran:
    with torch.no_grad():
        return known.by_names(tensors, keep)


@from_the_top
def _at_length(call: Call, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    with torch.no_grad():
        return [laid_out(t.detach()) for t in call.run(tensors, sizes)]


@not_followed
@on_numbers
def _run(tensors: list[Tensor], sizes: list[int] | None, what: str) -> list[Tensor]:
    call, sizes = find(what), sizes or []  # what AOTInductor built gives None for an empty list
    ran = _by_plan(call, tensors, sizes, None)
    return _at_length(call, tensors, sizes) if ran is None else ran.results


def _kept(tensors: list[Tensor], sizes: list[int], needs: list[bool], what: str) -> _Record | Ran:
    """A run, and what its backward needs."""
    return _by_plan(find(what), tensors, sizes, needs) or _Record(what, tensors, sizes, needs)


class _Ticket(bytearray):
    """The memory of a tensor that stands for a record among saved tensors."""

    record: _Record | Ran


@not_followed
@on_numbers
def _run_keeping(tensors: list[Tensor], sizes: list[int], needs: list[bool], what: str) -> list[Tensor]:
    record = _kept(tensors, sizes, needs, what)
    results = [*record.results]
    record.results.clear()  # a compiler may use their memory
    number = next(_numbers)
    ticket = _Ticket(number.to_bytes(8, sys.byteorder))
    ticket.record = record
    _TICKETS[number] = ticket
    return [*results, torch.frombuffer(ticket, dtype=torch.int64)]


@not_followed
def _run_backward(
    gradients: list[Tensor], places: list[int], tensors: list[Tensor], results: list[Tensor], kept: Tensor,
    sizes: list[int], needs: list[bool], what: str,
) -> list[Tensor]:  # fmt: skip
    ticket = _TICKETS.get(int(kept))
    if ticket is not None:
        record = ticket.record
    else:
        if find(what).draws(tensors, sizes, needs):
            raise StepError(
                "backward of a recurrence that draws noise has lost what forward kept",
                remedy="keep saved tensors as they are: no saved_tensors_hooks around compiled code",
            )
        record = _kept(tensors, sizes, needs, what)
    return record.gradients((*tensors, *results), gradients, places, needs)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: list[int], what: str, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        needs, call = [*ctx.needs_input_grad[2:]], find(what)
        ctx.flow = call.flow(tensors, sizes, needs)
        *results, kept = torch.ops.stepnet.run_keeping.default([*tensors], sizes, needs, what)
        _save(ctx, tensors, results[: call.read_back], kept)
        ctx.count, ctx.sizes, ctx.needs, ctx.what = len(tensors), sizes, needs, what
        ctx.set_materialize_grads(False)
        if ctx.flow is None:
            carries = [t.is_floating_point() or t.is_complex() for t in results]
        else:
            carries = ctx.flow.carries
        ctx.mark_non_differentiable(*(t for t, carried in zip(results, carries, strict=True) if not carried))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        tensors, results, kept = _saved(ctx)
        needs = [*ctx.needs_input_grad[2:]]
        places = [i for i, g in enumerate(grads) if g is not None]
        if ctx.flow is not None:
            reached = ctx.flow.reached(places)
            needs = [need and i in reached for i, need in enumerate(needs)]
        found = iter(
            torch.ops.stepnet.run_backward.default(
                [g for g in grads if g is not None], places, tensors, results, kept, ctx.sizes, needs,
                ctx.what,
            )
        )  # fmt: skip
        return (None, None, *(next(found) if need else None for need in needs))


def _save(ctx: Any, tensors: Sequence[Tensor], results: Sequence[Tensor], kept: Tensor) -> None:
    """Save what backward reads. Results may be written to in place, as outside of graphs: autograd would
    refuse those that it saves."""
    ctx.results, ctx.written = [], counters(results, range(len(results)))
    if KINDS.issuperset(map(type, tensors)):
        ctx.save_for_backward(*tensors, *(t.data for t in results), kept)
    else:  # functional ones of a trace: another name of one has what is written to it, and no count of that
        ctx.results = [*results]
        ctx.save_for_backward(*tensors, kept)


def _saved(ctx: Any) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
    """Inputs, results that backward reads, and what was kept: made once more, if results were written to."""
    *saved, kept = ctx.saved_tensors
    tensors, results = saved[: ctx.count], ctx.results or saved[ctx.count :]
    if are_written(ctx.written):
        call = find(ctx.what)
        if call.draws(tensors, ctx.sizes, ctx.needs):
            raise WrittenError(
                "a result of a recurrence that draws noise was written to in place, and a gradient reads it",
                remedy="make a new tensor of it (`y = y * 2`)",
            )
        *results, kept = torch.ops.stepnet.run_keeping.default(tensors, ctx.sizes, ctx.needs, ctx.what)
        results = results[: call.read_back]
    return tensors, results, kept


def _at_once(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing between autograd and the operator itself has to do with a call on these tensors."""
    return (
        not torch._C._len_torch_dispatch_stack()
        and not transforms_active()
        and KINDS.issuperset(map(type, tensors))
    )


@not_followed
def _differentiable(keys: Any, tensors: list[Tensor], sizes: list[int] | None, what: str) -> list[Tensor]:
    sizes = sizes or []
    if forward_ad._current_level >= 0 and _at_once(tensors):
        return _as_it_is(tensors, sizes, what)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return [*_Differentiable.apply(sizes, what, *tensors)]  # pyright: ignore[reportGeneralTypeIssues]
    if _at_once(tensors):
        return _run(tensors, sizes, what)
    with torch._C._AutoDispatchBelowAutograd():
        below = keys & torch._C._after_autograd_keyset
        return torch.ops.stepnet.run.default.redispatch(below, tensors, sizes, what)


@from_the_top
def _as_it_is(tensors: list[Tensor], sizes: list[int], what: str) -> list[Tensor]:
    """A call as where no graph holds it: all kinds of derivatives see what it does."""
    return find(what).run(tensors, sizes)


@not_followed
def _transformed(tensors: list[Tensor], sizes: list[int] | None, what: str) -> list[Tensor]:
    """A call under transforms of torch.func."""
    if torch._C._len_torch_dispatch_stack():
        if not any(map(_is_transformed, tensors)):
            with temporarily_clear_interpreter_stack():
                return torch.ops.stepnet.run.default([*map(unwrapped, tensors)], sizes or [], what)
        raise StepError(
            "transforms of torch.func around a recurrence cannot be traced into a graph",
            remedy="compile the function without the transform, or what is around both",
        )
    return _as_it_is(tensors, sizes or [], what)


def _is_transformed(tensor: Tensor) -> bool:
    """Whether transforms do anything to a tensor: batches to all, derivatives to those that have one."""
    if not is_wrapped(tensor):
        return False
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    differs = tensor.is_floating_point() or tensor.is_complex()
    below = functorch.get_unwrapped(tensor)
    return differs or not functorch.is_gradtrackingtensor(tensor) or _is_transformed(below)


def _once() -> StepError:
    return StepError(
        "the gradient of a recurrence in a graph cannot be differentiated again",
        remedy="call the recurrence outside of compiled and exported code",
    )


class _Once(torch.autograd.Function):
    """Backward of a call, which has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., list[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        return tuple(run(*tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore
        raise _once()


@not_followed
def _backward(
    keys: Any, gradients: list[Tensor], places: list[int], tensors: list[Tensor], results: list[Tensor],
    kept: Tensor, sizes: list[int], needs: list[bool], what: str,
) -> list[Tensor]:  # fmt: skip
    first, second = len(gradients), len(gradients) + len(tensors)

    def run(*flat: Tensor) -> list[Tensor]:
        if _at_once(flat):
            return _run_backward(gradients, places, tensors, results, kept, sizes, needs, what)
        parts = [*flat[:first]], places, [*flat[first:second]], [*flat[second:]], kept, sizes, needs, what
        with torch._C._AutoDispatchBelowAutograd():
            below = keys & torch._C._after_autograd_keyset
            return torch.ops.stepnet.run_backward.default.redispatch(below, *parts)

    flat = (*gradients, *tensors, *results)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in flat):
        raise _once()
    if torch.is_grad_enabled() and any(t.requires_grad for t in flat):
        return [*_Once.apply(run, *flat)]  # pyright: ignore[reportGeneralTypeIssues]
    return run(*flat)


@from_the_top
def _many_gradients(gradients: list[Tensor], *others: Any) -> list[Tensor]:
    """Gradients of a batch (`is_grads_batched`), one after the other."""

    def one(grads: Sequence[Tensor | None]) -> list[Tensor]:
        return torch.ops.stepnet.run_backward.default([*grads], *others)

    found = one_by_one(one, gradients)
    if found is None:
        raise _once()
    return [t for t in found if t is not None]


def _empty(tensors: list[Tensor], sizes: list[int], what: str) -> list[Tensor]:
    check_translated()
    return find(what).empty(tensors, sizes)


for _name, _real, _fake in (
    ("run", _run, _empty),
    (
        "run_keeping", _run_keeping, lambda tensors, sizes, _, what:
        [*_empty(tensors, sizes, what), torch.empty(1, dtype=torch.int64, device="cpu")],
    ),
    (
        "run_backward", _run_backward, lambda gradients, places, tensors, results, kept, sizes, needs, what:
        [t.new_empty(t.shape) for t, need in zip(tensors, needs, strict=True) if need],
    ),
):  # fmt: skip
    LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"stepnet::{_name}", _fake, lib=LIBRARY)
LIBRARY.impl("run", _differentiable, "Autograd", with_keyset=True)
LIBRARY.impl("run", _transformed, "FuncTorchDynamicLayerFrontMode")
for _key in ("Batched", "FuncTorchBatched"):
    LIBRARY.impl("run_backward", _many_gradients, _key)
LIBRARY.impl("run_backward", _backward, "Autograd", with_keyset=True)
