"""The joint graph of a function as torch's own tracers record it: what `recorder` does not know.

Its `make_fx` records most; what writes into what it made (`h[:, 0] = 1`) is recorded by torch's
ahead-of-time machinery, which makes new values of writes. The number of rows is a symbol of sympy: what a
function asks of it is looked at in the end.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import torch
import torch._dynamo  # which calls torch as it is imported: not under the modes of a trace
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from stepnet.errors import Unsupported

from .traces import Decompositions, Flat, Input, Recorded, finished, recording


def by_torch(
    joint: Callable[..., Any], run: Flat, inputs: Sequence[Input], with_gradients: bool,
    decompositions: Decompositions, *, writes: bool = False, numbered_at: str | None = None,
) -> Recorded:  # fmt: skip
    """The joint graph of `run`; `joint` gives its gradients, too. `writes`: it is known to write into values.
    `numbered_at`: the line where it asks for the number of rows as a plain number, as far as that is known.

    Raises:
        Unsupported: it depends on the number of rows. Whatever it raises comes through.
    """
    env = ShapeEnv()
    fake = FakeTensorMode(shape_env=env)
    fake.cache_enabled = False  # a trace meets few calls twice, and keeping each takes as long as running it
    seed = fake.from_tensor(
        torch.empty(7, 1),
        symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC]),
    )
    batch: Any = seed.shape[0]
    with fake:
        given = [_blank((batch, *i.shape) if i.rows else i.shape, i) for i in inputs]
    graph, constants = None, {}
    if not writes:
        with recording(with_gradients), fake, enable_python_dispatcher():
            module = make_fx(joint, decompositions)(*given)
        graph, constants = module.graph, _constants(module)
    if graph is not None and _without_copies(graph):
        graph = finished(graph)
    else:
        module: Any = aot_export_joint_simple(
            run, tuple(given), trace_joint=with_gradients, decompositions=decompositions
        )
        graph, constants = module.graph, _constants(module)
    if not batch.node.expr.free_symbols:
        raise Unsupported(
            "the step makes a plain Python number out of the number of rows, as a loop over rows does",
            remedy="torch.func.vmap(f)(x, h), for a function of one row, in place of a loop over "
            "range(x.shape[0]); x.shape[0] // 4 in place of int(x.shape[0] / 4); -1 in a view for what "
            "depends on it",
            line=numbered_at,
        )
    _check_guards(env, batch)
    _strip_effects(graph)
    return Recorded(graph, constants, str(batch.node.expr))


@functools.cache
def warm() -> None:
    """Trace something once: torch sets environment variables of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = Input((1,), torch.float32, False, True)
        by_torch(lambda x: (x * 2,), lambda x: (x * 2,), [row], False, {})


def _blank(shape: Sequence[Any], of: Input) -> Tensor:
    return torch.empty(shape, dtype=of.dtype, device="cpu", requires_grad=of.grad)


def _constants(module: GraphModule) -> dict[str, Tensor]:
    return {n.target: getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}


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


def _strip_effects(graph: Graph) -> None:
    """Remove the tokens that order side effects such as the error check of linalg.solve."""
    calls = [n for n in graph.nodes if "with_effects" in str(n.target)]
    tokens = {n.args[0] for n in calls if isinstance(n.args[0], Node)}
    spent = {user for n in calls for user in n.users if user.args[1] == 0}
    for node in reversed(list(graph.nodes)):
        if node.op == "output":
            outs = [out for out in node.args[0] if out not in spent]
            node.args = (outs,)
        elif node in spent or node in calls or (node in tokens and node.op == "placeholder"):
            if node.users:
                raise Unsupported("an op with side effects gives a value that the step uses")
            graph.erase_node(node)


def _check_guards(env: Any, batch: Any) -> None:
    symbol = batch.node.expr
    for guard in env.guards:
        expr = guard.expr
        if symbol in expr.free_symbols and not _harmless(expr, symbol):
            raise Unsupported(
                f"the step depends on how many rows it is given ({str(expr).replace(str(symbol), 'rows')})",
                remedy="do not branch on x.shape[0]; rows of all sequences come together",
            )


_MOST_ROWS = 1 << 40  # more than any memory holds


def _harmless(expr: Any, symbol: Any) -> bool:
    """True for a condition that every batch size from 2 on meets, up to sizes that no memory holds.

    It can change only near a number that follows from its constants: those, their quotients and roots.
    """
    named = {abs(int(c)) for c in expr.atoms() if getattr(c, "is_Integer", False)} - {0}
    named |= {abs(int(c)) for c in expr.atoms() if getattr(c, "is_number", False) and c.is_finite} - {0}
    near = named | {a // b for a in named for b in named} | {a * b for a in named for b in named}
    near |= {isqrt(c) for c in near} | {round(c ** (1 / 3)) for c in near if c < _MOST_ROWS**3}
    sizes = {*range(2, 70), *(1 << k for k in range(41)), *(10**k for k in range(13)), 99991}
    sizes |= {c + d for c in near for d in range(-2, 3)}
    try:
        return all(bool(expr.subs(symbol, n)) for n in sorted(sizes) if 2 <= n < _MOST_ROWS)
    except TypeError:
        return False
