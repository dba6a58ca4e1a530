"""Gradients of a compiled loop that are to be differentiated again, or that are many at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from stepnet.data.autograd_history import history
from stepnet.data.in_graph import end_compiled_backward, not_followed
from stepnet.data.modes import (
    batches,
    has_tangent,
    is_wrapped,
    outside_batches,
    outside_innermost,
    outside_transforms,
    transforms,
    transforms_active,
)
from stepnet.errors import StepError, Unsupported
from stepnet.ir.plan import Plan

from .call import Call, KeptRows, Pull
from .gradient_flow import moved
from .memory import Memory, changed
from .noise import noise_of
from .saved_tensors import as_saved

NEAR = 1000  # nodes between a loop and a loss; further away nobody looks for it


class Node(Protocol):
    """The node of a run in autograd's graph."""

    later: Later  # by number of a backward, second derivatives left to the node's own gradient in it
    ran: int  # the number of the backward that came to it last
    next_functions: Sequence[tuple[Any, int]]  # a node for each input that requires a gradient


@dataclass(frozen=True)
class Moves:
    """The derivative of a loop along directions, as autograd recorded it, or `pull` knows its gradients.

    Attributes:
        own: the inputs of the loop, of which nobody else's history leads here.
        results, along: of the loop; and their derivatives, None for what has none.
        grads: what came in for each result.
    """

    own: Sequence[Tensor]
    results: Sequence[Tensor]
    along: Sequence[Tensor | None]
    grads: Sequence[Tensor | None]
    pull: Pull | None

    @classmethod
    def of(
        cls, call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None],
        directions: Sequence[Tensor | None], whole: bool, create_graph: bool = False,
        kept: KeptRows | None = None,
    ) -> Moves:  # fmt: skip
        """Run it. Raises Unsupported: there is no plan for it."""
        assert call.along is not None
        noise = noise_of(call) if call.ready.plan.random else None
        along, results, pull = call.along()(own, directions, noise, whole, not create_graph, kept)
        has = moved(call.ready.plan, call.layout, [v is not None for v in directions])
        along = [m if moves else None for m, moves in zip(along, has, strict=True)]
        return cls(own, results, along, grads, pull)

    def gradients(
        self, wanted: Sequence[bool], of_results: Sequence[Tensor | None] = (), create_graph: bool = False
    ) -> list[Tensor | None]:
        """The gradients of the gradient by each input; and of the results that something comes in for."""
        both = zip((*self.along, *self.results), (*self.grads, *of_results), strict=False)
        pairs = [(m, g) for m, g in both if m is not None and g is not None]
        if self.pull is not None:
            return self.pull(pairs, wanted[: len(self.own)])
        sources = [t for t, w in zip(self.own, wanted, strict=False) if w]
        found = _grad([m for m, _ in pairs], sources, [g for _, g in pairs], create_graph)
        return at_places(found, wanted[: len(self.own)])


Later = dict[int, list[Moves]]


def total(terms: Iterable[Tensor | None]) -> Tensor | None:
    """Their sum."""
    found = [t for t in terms if t is not None]
    return sum(found[1:], found[0]) if found else None


def at_places(found: Iterable[Any], wanted: Sequence[bool]) -> list[Any]:
    """What was found, one after the other where it is wanted; None elsewhere."""
    rest = iter(found)
    return [next(rest) if want else None for want in wanted]


def differentiable(
    call: Call, compute: Callable[[], list[Tensor | None]], tensors: Sequence[Tensor],
    grads: Sequence[Tensor | None], needed: Sequence[bool], node: Node, kept: KeptRows,
) -> Sequence[Tensor | None]:  # fmt: skip
    """What `compute` gives, with a history: the loop's derivative along what comes in, or the plain loop.

    Args:
        call, compute: the call, and its gradients.
        tensors, grads: its inputs; what came in for each result.
        needed: which inputs get a gradient.
        node: of the call.
        kept: by its run.

    Raises:
        StepError: the step draws noise and has no such plan, or reads something else by now.
    """
    if call.along is None:
        return again(call, tensors, grads, needed)
    along = call.along()
    along.same_step(tensors)
    live = [t is not None and t.requires_grad for t in (*tensors, *grads)]
    has_history = along.has_history([g is not None for g in grads], needed, live)
    nodes = history(None if g is None else g.grad_fn for g in grads)
    follows = any(found is node for found in islice(nodes, NEAR))
    asked = [
        has and edge is not None and is_run(edge, True)
        for has, (edge, _) in zip(has_history, node.next_functions, strict=True)
    ]
    along.expect(tensors, asked, follows)
    how = node, follows, call, compute, kept, tuple(needed), has_history
    return _Gradient.apply(*how, *tensors, *grads)  # pyright: ignore[reportReturnType]


class _Gradient(torch.autograd.Function):
    """The gradient of a loop as a node of its own.

    Where the loop's own gradient is still to come in the same backward, one backward loop gives both. It
    follows where what comes in depends on the results of the loop, as in a penalty on the gradient of a loss;
    of a loss that is linear in them it may have been before.
    """

    @staticmethod
    @not_followed
    def forward(  # pyright: ignore
        ctx: Any, node: Node, follows: bool, call: Call, compute: Callable[[], list[Tensor | None]],
        kept: KeptRows, needed: tuple[bool, ...], history: Sequence[bool], *given: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        ctx.node, ctx.follows, ctx.call, ctx.needed = node, follows, call, needed
        ctx.kept = kept._replace(rows=())
        ctx.set_materialize_grads(False)
        Memory.of(given[: len(needed)], 0).save(ctx, given, kept.rows)
        found = compute()
        ctx.mark_non_differentiable(
            *(g for g, has in zip(found, history, strict=True) if g is not None and not has)
        )
        return tuple(found)

    @staticmethod
    @not_followed
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        end_compiled_backward()
        n, skip, wanted = len(ctx.needed), (None,) * 7, ctx.needs_input_grad[7:]
        found, _, has_moved = ctx.memory.found(as_saved(ctx, ctx.call.ready), differentiated=True)
        if has_moved:
            raise changed("a gradient is differentiated, but a weight or x")
        given, kept = found[: len(wanted)], ctx.kept._replace(rows=found[len(wanted) :])
        tensors, grads = given[:n], given[n:]
        if all(v is None for v in directions):
            return (*skip, *(None,) * len(given))
        if ctx.call.same_backward is not None:  # the plain loop runs such code here, too
            ctx.call.same_backward()
        how, create_graph = (grads, ctx.needed), torch.is_grad_enabled()
        with torch.enable_grad(), of_plain_tensors(tensors):
            own = aliases(tensors, wanted)

        def joined(directions: Sequence[Tensor | None]) -> Moves | None:
            try:
                return Moves.of(ctx.call, own, grads, directions, whole=True, kept=kept)
            except (Unsupported, StepError):
                if ctx.follows:
                    raise
                return None  # the derivative alone may be known, of a step that reads something else by now

        def once(directions: Sequence[Tensor | None], node: Node | None = None) -> Sequence[Tensor | None]:
            with of_plain_tensors():
                try:
                    with torch.enable_grad():
                        moves = None if node is None else joined(directions)
                        if node is None or moves is None:
                            return by_along(ctx.call, own, *how, directions, wanted, create_graph, kept)
                except Unsupported:
                    return second_by_plain_loop(ctx.call, tensors, *how, directions, wanted)
            node.later.setdefault(run, []).append(moves)
            return (*(None,) * n, *_where(moves.along, wanted[n:], create_graph))

        if all(map(is_plain, directions)):
            run = torch._C._current_graph_task_id()
            of_all = all(wants or not needs for wants, needs in zip(wanted, ctx.needed, strict=False))
            is_later = not create_graph and run >= 0 and is_run(ctx.node, False)
            # other devices have threads of their own, which may come to it meanwhile
            is_later &= ctx.follows or (ctx.node.ran != run and all(t.is_cpu for t in tensors))
            is_later &= of_all  # a weight that takes no gradient by now still gets that of the node
            return (*skip, *once(directions, ctx.node if is_later else None))
        many = one_by_one(once, directions)
        if many is None:
            many = second_by_plain_loop(ctx.call, tensors, *how, directions, wanted)
        return (*skip, *many)


def is_run(node: Any, otherwise: bool) -> bool:
    """Whether the backward at hand comes to a node; `otherwise` where torch does not tell: outside of its own
    engine, or of a leaf that `autograd.grad` is asked for."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return otherwise


def _where(
    tensors: Sequence[Tensor | None], wanted: Sequence[bool], create_graph: bool
) -> list[Tensor | None]:
    """Those that are wanted, with their history if that is to be differentiated."""
    found = [t if w else None for t, w in zip(tensors, wanted, strict=True)]
    return found if create_graph else [t if t is None else t.detach() for t in found]


def is_plain(grad: Tensor | None) -> bool:
    """Whether generated code may read it: no batch of gradients, nothing dispatched by rules of its own, and
    no forward-mode tangent, which it would drop."""
    if grad is None:
        return True
    if type(grad) is not Tensor or not torch._C._has_storage(grad):
        return False
    return not has_tangent(grad)


def of_plain_tensors(*groups: Sequence[Tensor | None]) -> AbstractContextManager[None]:
    """Around what computes with these tensors alone, in a backward that a transform of torch.func is around:
    where they are plain, outside of it. In there torch draws no numbers, lets nothing require a gradient, and
    records no history of plain tensors."""
    given = (t for group in groups for t in group if t is not None)
    plain = transforms_active() and not any(is_wrapped(t) or not torch._C._has_storage(t) for t in given)
    return outside_transforms() if plain else nullcontext()


_Gradients = Sequence[Tensor | None]


def one_by_one(compute: Callable[[_Gradients], _Gradients], grads: _Gradients) -> _Gradients | None:
    """What `compute` gives of many gradients at once, as `is_grads_batched` and `torch.vmap` have them, one
    after the other; None if these are others."""
    around = transforms()
    if not around:
        return _of_autograd(compute, grads)
    return _of_vmap(compute, grads) if {*around} == {"Vmap"} and not batches() else None


def _of_autograd(compute: Callable[[_Gradients], _Gradients], grads: _Gradients) -> _Gradients | None:
    """The same of `is_grads_batched`."""
    functions: Any = torch
    level = batches()
    many = [type(g) is Tensor and not torch._C._has_storage(g) for g in grads]
    if level < 1 or not all(a or is_plain(g) for a, g in zip(many, grads, strict=True)):
        return None
    wide: list[Any] = [
        functions._remove_batch_dim(g, level, 1, 0) if a else g for a, g in zip(many, grads, strict=True)
    ]
    count = max(len(g) for a, g in zip(many, wide, strict=True) if a)
    if not count or not all(map(is_plain, wide)):
        return None
    with outside_batches():
        found = [compute([g[k] if a else g for a, g in zip(many, wide, strict=True)]) for k in range(count)]
    return [t if t is None else functions._add_batch_dim(t, 0, level) for t in _stacked(found)]


def _of_vmap(compute: Callable[[_Gradients], _Gradients], grads: _Gradients) -> _Gradients | None:
    """The same of the innermost `torch.vmap`; what is around it comes in the same way."""
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    functions: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    batch: Any = retrieve_current_functorch_interpreter()
    level, found = batch.level(), list[_Gradients]()
    parts = [(None, None) if g is None else functions._unwrap_batched(g, level) for g in grads]
    with outside_innermost():
        for k in range(batch.batch_size()):
            each = [g if g is None or d is None else g.select(d, k) for g, d in parts]
            made = compute(each) if all(map(is_plain, each)) else one_by_one(compute, each)
            if made is None:
                return None
            found.append(made)
        whole = _stacked(found)
    return [t if t is None else functions._add_batch_dim(t, 0, level) for t in whole]


def _stacked(found: Sequence[_Gradients]) -> list[Tensor | None]:
    """What several runs gave, side by side."""
    whole = [[t for t in each if t is not None] for each in zip(*found, strict=True)]
    return [torch.stack(each) if each else None for each in whole]


def by_along(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None], wanted: Sequence[bool], create_graph: bool,
    kept: KeptRows | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the gradient, of each tensor and each of `grads`, by the loop's derivative.

    Args:
        call: the call.
        own: the inputs of the loop, of which nobody else's history leads here.
        grads: what came in for each result.
        needed: which inputs have a gradient.
        directions: what comes in for each gradient.
        wanted: of own and grads, which want one.
        create_graph: whether they are to be differentiated again.
        kept: by the run of the call.

    Raises:
        Unsupported: there is no plan for it.
    """
    moves = Moves.of(call, own, grads, directions, whole=False, create_graph=create_graph, kept=kept)
    return [
        *moves.gradients(wanted, create_graph=create_graph),
        *_where(moves.along, wanted[len(own) :], create_graph),
    ]


def _grad(
    results: Sequence[Tensor], inputs: Sequence[Any], grads: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor | None]:
    """The gradients of inputs, None for one that gets none."""
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if r.requires_grad]
    if not pairs or not inputs:
        return [None] * len(inputs)
    own, seeds = zip(*pairs, strict=True)
    return torch.autograd.grad(own, inputs, seeds, create_graph=create_graph, allow_unused=True)


def aliases(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """Tensors of which nobody else's history leads here; with their tangents, which detach drops."""
    both = zip(tensors, wanted, strict=False)
    return [t.view_as(t) if want or not t.requires_grad else t.detach() for t, want in both]


def second_by_plain_loop(
    call: Call, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None], wanted: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """`by_plain_loop` of the inputs of a call, to be differentiated again where autograd records."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        with of_plain_tensors(tensors):
            own = aliases(tensors, wanted)
        return by_plain_loop(call, own, grads, needed, directions, wanted, create_graph)


def by_plain_loop(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    directions: Sequence[Tensor | None], wanted: Sequence[bool], create_graph: bool,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the gradient, by differentiating the plain loop twice."""
    _refuse_noise(call, directions)
    with of_plain_tensors(own, grads):
        own = [
            t if t.requires_grad or not need else t.requires_grad_()
            for t, need in zip(own, needed, strict=True)
        ]
        seeds = [None if g is None else g.view_as(g) for g in grads]
        first = of_plain_loop(call, own, seeds, needed, create_graph=True)
    # a gradient without a derivative is left out where torch is asked for single inputs, as it is below
    nodes = history(None if f is None else f.grad_fn for f in first)
    if any(node.name() == "torch::autograd::Error" for node in nodes):
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
    pairs = [(f, v) for f, v in zip(first, directions, strict=True) if f is not None and v is not None]
    of = [w and t is not None for t, w in zip((*own, *seeds), wanted, strict=True)]
    sources = [t for t, w in zip((*own, *seeds), of, strict=True) if w]
    found = _grad([f for f, _ in pairs], sources, [v for _, v in pairs], create_graph)
    return at_places(found, of)


def leads_to(tensor: Tensor, leaves: Collection[int]) -> bool:
    """Whether the history of a tensor has one of these leaves in it, or is one; told by their numbers."""
    if id(tensor) in leaves:
        return True
    return any(id(getattr(node, "variable", None)) in leaves for node in history([tensor.grad_fn]))


def again(
    call: Call, tensors: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by the plain loop, recorded by autograd.

    The loop runs on aliases of its inputs, and they are what is differentiated: an input may depend on
    another one (a state on a weight that also made x), and only what the loop does with it is its gradient.
    """
    _refuse_noise(call, grads)
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        with of_plain_tensors(tensors):
            own = aliases(tensors, [t.requires_grad for t in tensors])
            own = [t.requires_grad_() if need else t for t, need in zip(own, needed, strict=True)]
        return of_plain_loop(call, own, grads, needed, create_graph)


def asked_again(
    call: Call, found: list[Tensor | None], tensors: Sequence[Tensor], grads: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients that a plan found, or those of the plain loop where they are not finite and may be so for the
    plan alone: zero, which the backward loop has where autograd has nothing, times infinity is NaN."""
    ready = call.ready
    alone = ready.leaves_out([g is not None for g in grads]) or (ready.by_sequence and 0 in call.layout.ends)
    if (call.guarded or (alone and not ready.plan.random)) and not all(map(is_finite, found)):
        return again(call, tensors, grads, needed)
    return found


def is_finite(tensor: Tensor | None) -> bool:
    """Whether all elements are, by their sum, which is found faster. False, too, of a sum that overflows."""
    if tensor is None:
        return True
    few = tensor.dtype.itemsize < 4
    return math.isfinite(tensor.sum(dtype=torch.float32) if few else tensor.sum())


def _refuse_noise(call: Call, grads: Sequence[Tensor | None]) -> None:
    """The plain loop would draw other noise than the plan did. That of the step's own generators it draws
    again, but not in a batch of gradients.

    Raises:
        StepError: the step draws noise.
    """
    if call.ready.forward.noise or (call.ready.plan.random and not all(map(is_plain, grads))):
        raise StepError(
            f"step '{call.ready.plan.name}' draws noise, and its gradient has no plan to differentiate it by",
            remedy="backend='naive' keeps the noise for double backward",
        )


def of_plain_loop(
    call: Call, own: Sequence[Tensor], grads: Sequence[Tensor | None], needed: Sequence[bool],
    create_graph: bool,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of the plain loop's inputs, of which nobody else's history leads here.

    Where they are not linear in what comes in, to differentiate them is a StepError.
    """
    with of_plain_tensors(own):
        results = call.by_loop(own)
    pairs = [(o, g.reshape(o.shape)) for o, g in zip(results, grads, strict=True) if g is not None]
    wanted = [t for t, need in zip(own, needed, strict=True) if need]
    bent = None
    if create_graph and all(map(is_plain, (*own, *grads))):
        try:
            refuse_bent(call.ready.plan, pairs, wanted)
        except StepError as error:
            bent = error.fresh()
    found = _grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph)
    return at_places(found if bent is None else _NotAgain.apply(bent, *found), needed)


class _NotAgain(torch.autograd.Function):
    """Gradients that nobody may differentiate."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, refusal: StepError, *found: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.refusal = refusal
        return tuple(t if t is None else t.view_as(t) for t in found)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ctx.refusal.fresh()


def refuse_bent(plan: Plan, pairs: Iterable[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> None:
    """A second derivative and the gradient beside it run one after the other: what is not linear would be
    applied to each, where torch applies it to their sum. Powers of two scale what is linear to the bit.

    Args:
        plan, inputs: of the step.
        pairs: results of the plain loop, and what comes in for each.

    Raises:
        StepError: the step's gradient is not linear in what comes in.
    """
    moving = [(o, _near_one(g.detach())) for o, g in pairs if o.requires_grad]
    if not (moving and inputs):
        return
    body = plan.forward.body
    # small numbers of float16 have few digits
    rough = any(kind.dtype == "float16" for kind in body.values.values())
    rough |= any(node.op == "matrix_exp" for node in body.nodes)  # its gradient's digits depend on its size
    far, loose = (64.0, 0.05) if rough else (2.0**40, 1e-3)
    outs, seeds = zip(*moving, strict=True)
    small, unit, large = (
        torch.autograd.grad(outs, inputs, [k * g for g in seeds], retain_graph=True, allow_unused=True)
        for k in (1 / far, 1.0, -far)
    )
    for a, b, c in zip(small, unit, large, strict=True):
        if b is not None and not (_about(a * far, b, loose) and _about(c / -far, b, loose)):
            raise StepError(
                f"step '{plan.name}' has a hook or a backward of its own that is not linear "
                "in the gradient (it clips, say), and its gradient is differentiated",
                remedy="use backend='naive', or leave out create_graph=True",
            )


def _near_one(grad: Tensor) -> Tensor:
    """A gradient times a power of two, so that its largest number is about one."""
    return grad * 2.0 ** -max(math.frexp(largest(grad))[1], -99)


def largest(tensor: Tensor) -> float:
    """The largest magnitude of its finite numbers; 0 if there are none."""
    return float(tensor.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _about(scaled: Tensor, unit: Tensor, loose: float) -> bool:
    """Whether two gradients are alike, where numbers are not too large to tell."""
    known = scaled.isfinite() & unit.isfinite()
    off = (scaled - unit).abs()[known]
    return bool((off <= loose * max(largest(unit), 1e-3)).all())
