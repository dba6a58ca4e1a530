"""The joint graph of a function and of its gradients, as torch's tracer records it.

Most functions are recorded by `recorder`, what that does not know by torch's `make_fx`. One that writes into
what it made (`h[:, 0] = 1`) is recorded by torch's ahead-of-time machinery, which makes new values of writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from stepnet.errors import Unsupported

from .recorder import Writes, recorded

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


def joint_graph(
    run: Flat, inputs: Sequence[Tensor], with_gradients: bool, decompositions: Decompositions, fake: Any
) -> tuple[Graph, dict[str, Tensor]]:
    """A graph of (inputs, tangents of the results that need a gradient) -> (results, gradients of inputs),
    and the constants that it reads.

    Args:
        run: a function of tensors; its results share no memory with its inputs.
        inputs: fake tensors.
        with_gradients: whether there are tangents and gradients at all.
        decompositions: what each op is replaced with.
        fake: the mode that made the inputs.
    """
    function = _joint(run) if with_gradients else run
    import torch._dynamo  # which calls torch as it is imported: not under the modes below

    constants: dict[str, Tensor] = {}
    graph = None
    try:
        with _as_traced(with_gradients, fake):
            graph, constants = recorded(function, inputs, decompositions)
    except Unsupported:
        raise
    except Writes:
        pass
    except Exception:  # unusual, or an error: torch's tracer knows, or tells it in its own words
        from torch.fx.experimental.proxy_tensor import make_fx

        with _as_traced(with_gradients, fake):
            module = make_fx(function, decompositions)(*inputs)
        graph, constants = module.graph, _constants(module)
    if graph is None or not _without_copies(graph):
        from torch._functorch.aot_autograd import aot_export_joint_simple

        module: Any = aot_export_joint_simple(
            run, tuple(inputs), trace_joint=with_gradients, decompositions=decompositions
        )
        return module.graph, _constants(module)
    _as_inputs(graph, [n for n in graph.nodes if n.target is torch.ops.stepnet_joint.tangent.default])
    graph.eliminate_dead_code()
    return graph, constants


def _constants(module: GraphModule) -> dict[str, Tensor]:
    return {n.target: getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}


@contextlib.contextmanager
def _as_traced(with_gradients: bool, fake: Any) -> Iterator[None]:
    from torch._dispatch.python import enable_python_dispatcher

    with (
        torch.set_grad_enabled(with_gradients),
        torch.random.fork_rng(devices=[]),
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.detect_anomaly(check_nan=False),  # which keeps the line of each forward call
        fake,
        enable_python_dispatcher(),
    ):
        yield


def _joint(run: Flat) -> Callable[..., tuple[Tensor | None, ...]]:
    """A function that gives the results of another one and the gradients of its inputs."""
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks

    def joint(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        results = run(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        follow = [t for t in results if t.requires_grad]
        with torch.no_grad():
            tangents = [torch.ops.stepnet_joint.tangent(t) for t in follow]
        parts: Any = ()
        if follow and wanted:
            setup_stacktrace_preservation_hooks([t.grad_fn for t in follow if t.grad_fn is not None])
            with torch.autocast("cpu", enabled=False):  # a loss is differentiated outside of it
                parts = torch.autograd.grad(follow, wanted, tangents, allow_unused=True)
        gradients = iter(parts)
        return (*results, *(next(gradients, None) if t.requires_grad else None for t in inputs))

    return joint


def _without_copies(graph: Graph) -> bool:
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
