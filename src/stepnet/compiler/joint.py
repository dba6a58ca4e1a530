"""The joint graph of a function and of its gradients.

Most functions are recorded by `recorder`, others by torch's tracers (`by_torch`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward  # pyright: ignore[reportPrivateUsage]
from torch.fx import Graph, Node
from torch.fx import traceback as fx_traceback

from stepnet.errors import Unsupported

from .outline import blank
from .recorder import Writes, recorded
from .row_count import NAME, Unusual

Flat = Callable[..., tuple[Tensor, ...]]
Decompositions = dict[Any, Callable[..., Any]]

_LIBRARY = torch.library.Library("stepnet_joint", "DEF")
_LIBRARY.define("tangent(Tensor result) -> Tensor")


_LIBRARY.define("matrix_exp_grad(Tensor matrix, Tensor direction) -> Tensor")


@torch.library.impl(_LIBRARY, "matrix_exp_grad", "CompositeExplicitAutograd")
def _matrix_exp_grad(matrix: Tensor, direction: Tensor) -> Tensor:
    return torch.empty_like(direction)


@torch.library.impl(_LIBRARY, "tangent", "CompositeExplicitAutograd")
def _tangent(result: Tensor) -> Tensor:
    return torch.empty_like(result)


class Input(NamedTuple):
    """One input: its shape, without that of rows; whether a gradient is wanted; whether it has rows."""

    shape: Sequence[int]
    dtype: torch.dtype
    grad: bool
    rows: bool


class Recorded(NamedTuple):
    """A graph of (inputs, tangents of the results that need a gradient) -> (results, gradients of inputs),
    the constants that it reads, and what it calls the number of rows."""

    graph: Graph
    constants: dict[str, Tensor]
    rows: str


def joint_graph(
    run: Flat, inputs: Sequence[Input], with_gradients: bool, decompositions: Decompositions
) -> Recorded:
    """The joint graph of a function of tensors, whose results share no memory with its inputs.

    Args:
        run: the function.
        inputs: what it is given.
        with_gradients: whether there are tangents and gradients at all.
        decompositions: what each op is replaced with.

    Raises:
        Unsupported: it depends on the number of rows. Whatever `run` raises comes through.
    """
    function = _joint(run) if with_gradients else run
    outlines = [blank(i.shape, i.dtype, rows=i.rows).requires_grad_(i.grad) for i in inputs]
    made, writes = None, False
    with _dispatch_kept():
        try:
            with recording(with_gradients):
                graph, constants = recorded(function, outlines, decompositions)
            writes = not without_copies(graph)
            made = None if writes else Recorded(finished(graph), constants, NAME)
        except (Unusual, Exception) as error:  # torch's tracer knows, or tells it in its own words
            if isinstance(error, Unsupported) and not _asked_for_numbers(error):
                raise
            writes = isinstance(error, Writes)
    if made is None:
        from .by_torch import by_torch  # a second of imports

        return by_torch(function, run, inputs, with_gradients, decompositions, writes=writes)
    return made


def _asked_for_numbers(error: BaseException | None) -> bool:
    """Whether an error comes of a function in torch's C++ that wants each size as a number, as matmul does up
    to torch 2.6; its tracer has those in Python."""
    while error is not None:
        if isinstance(error, RuntimeError) and "symbolic sizes/strides" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def finished(graph: Graph) -> Graph:
    """A recorded graph, its tangents inputs behind the others."""
    _as_inputs(graph, [n for n in graph.nodes if n.target is torch.ops.stepnet_joint.tangent.default])
    graph.eliminate_dead_code()
    return graph


def _dispatch_kept() -> contextlib.AbstractContextManager[None]:
    """What torch dispatches to is as before in the end. Frames of torch's that an error ended in may hold
    guards, which put back what was in force in them as they are freed."""
    now = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(*now)


@contextlib.contextmanager
def recording(with_gradients: bool) -> Iterator[None]:
    """What a recording is made under, whoever makes it."""
    with (
        torch.set_grad_enabled(with_gradients),
        torch.random.fork_rng(devices=[]),
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.detect_anomaly(check_nan=False),  # which keeps the line of each forward call
    ):
        yield


def _joint(run: Flat) -> Callable[..., tuple[Tensor | None, ...]]:
    """A function that gives the results of another one and the gradients of its inputs."""

    def joint(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        results = run(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        follow = [t for t in results if t.requires_grad]
        with torch.no_grad():
            tangents = [torch.ops.stepnet_joint.tangent(t) for t in follow]
        parts: Any = ()
        if follow and wanted:
            _keep_lines([t.grad_fn for t in follow if t.grad_fn is not None])
            with torch.autocast("cpu", enabled=False):  # a loss is differentiated outside of it
                # `torch.autograd.grad`, but that imports what torch traces with to compare shapes
                parts = _engine_run_backward(
                    tuple(follow), tuple(tangents), False, False, tuple(wanted), True, accumulate_grad=False
                )
        gradients = iter(parts)
        return (*results, *(next(gradients, None) if t.requires_grad else None for t in inputs))

    return joint


def _keep_lines(roots: Sequence[Any]) -> None:
    """Have calls of a backward pass noted with the line and the number of their forward call."""

    def before(stack: list[str], number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            fx_traceback.set_stack_trace(stack)
            fx_traceback.set_grad_fn_seq_nr(number)

        return note

    def after(*_: Any) -> None:  # gradients that meet are added up behind it, in its line
        fx_traceback.reset_grad_fn_seq_nr()

    todo, seen = list(roots), set(roots)
    while todo:
        node = todo.pop()
        node.register_prehook(before(node.metadata.get("traceback_", []), node._sequence_nr()))
        node.register_hook(after)
        later = [other for other, _ in node.next_functions if other is not None and other not in seen]
        seen.update(later)
        todo += later


def without_copies(graph: Graph) -> bool:
    """Put what is copied over a value in its place: some gradients end so. False for other writes."""
    writes = [
        n for n in graph.nodes if (s := getattr(n.target, "_schema", None)) is not None and s.is_mutable
    ]
    if any(node.target is not torch.ops.aten.copy_.default for node in writes):
        return False
    order = {node: i for i, node in enumerate(graph.nodes)}
    targets = [node.args[0] for node in writes]
    for node in writes:
        old, new = node.args[:2]
        if targets.count(old) > 1 or new in targets:
            return False
        alone = old.op == "call_function" and not any(map(_is_view, (old, *old.users)))
        a, b = old.meta.get("val"), new.meta.get("val")
        if not alone or a is None or b is None or str(a.shape) != str(b.shape) or a.dtype != b.dtype:
            return False
        old.replace_all_uses_with(new, delete_user_cb=lambda user, at=order[node]: order.get(user, at) > at)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return True


def _is_view(node: Node) -> bool:
    schema: Any = getattr(node.target, "_schema", None)
    if schema is None or node.target is torch.ops.aten.copy_.default:
        return False
    return any(result.alias_info is not None for result in schema.returns)


def _as_inputs(graph: Graph, nodes: Sequence[Node]) -> None:
    """Make nodes inputs, behind the others."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    for i, node in enumerate(nodes):
        with graph.inserting_after(last):
            last = graph.placeholder(f"tangents_{i + 1}")
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
