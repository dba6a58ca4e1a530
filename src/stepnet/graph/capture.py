"""A call of `recurrent` as Dynamo meets it: the step is traced, and the call becomes one node.

The node is a higher-order operator around a body that Dynamo speculates, as torch's own scan does it: what
the step reads (weights, closures, globals) is guarded, and its tensors become inputs of the node. The body is
the step between two markers: `stepnet::rows` gives it rows, of which nobody knows how many, and
`stepnet::tables` makes of its results what the call gives. When the graph is run or traced on, the node turns
into `stepnet::run`, which is an operator like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.autograd_function import autograd_function_apply
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from stepnet.compiler.reads.reach import reach
from stepnet.compiler.trace.gradient_ways import THROUGH_CALLER
from stepnet.data import in_graph
from stepnet.data.autograd_history import are_made_of
from stepnet.data.in_graph import CAN_CAPTURE, is_exporting, teach_forms
from stepnet.data.lod import LoDTensor
from stepnet.data.offsets import LoD
from stepnet.errors import Unsupported
from stepnet.front.static import Padded
from stepnet.front.step import TorchCell

from . import autograd_grad, calls, grad_modes
from .checkpoints import is_checkpoint, without_checkpoint
from .flow import Rounding, Way
from .functions import put_together
from .guards import forget_ours
from .ops import LIBRARY
from .records import closed, flat, nested, opened
from .recurrence import Leaf, Recurrence, autocast_now
from .recurrence_text import refused, text_of
from .sizes import open_size, row_shape
from .step_code import TRANSFORMS, function_of

if CAN_CAPTURE:
    from torch._higher_order_ops import BaseHOP
else:
    BaseHOP: Any = object

LIBRARY.define("rows(Tensor[] x, Tensor[] states, Tensor[] inside, int axis, int levels) -> Tensor[]")
LIBRARY.define(
    "tables(Tensor[] y, Tensor[] new, Tensor[] x, Tensor[] states, Tensor[] static, Tensor[] beside, "
    "int axis, int levels, int inside, bool[] whole) -> Tensor[]"
)


def _rows(
    x: list[Tensor], states: list[Tensor], inside: list[Tensor], axis: int, levels: int
) -> list[Tensor]:
    """One step of x and of the states, and of the offsets that it has."""
    n = open_size(1) if states or not inside else open_size(2) - 1  # a step is run where a sequence goes on
    rows = open_size() if inside else n
    return [
        *(t.new_empty((rows, *row_shape(t, axis, levels))) for t in x),
        *(t.new_empty((n, *t.shape[1:])) for t in states),
        *(t.new_empty(((open_size() if k else n) + 1,)) for k, t in enumerate(inside)),
    ]


def _tables(
    y: list[Tensor], new: list[Tensor], x: list[Tensor], states: list[Tensor], static: list[Tensor],
    beside: list[Tensor], axis: int, levels: int, inside: int, whole: list[bool],
) -> list[Tensor]:  # fmt: skip
    leaves = tuple(Leaf(tuple(t.shape[1:]), t.dtype, of) for t, of in zip(y, whole, strict=True))
    way, counts = Way("", axis=axis, levels=levels, inside=inside), (len(x), len(states), len(static), 0)
    return Recurrence(way, _no_step, counts, leaves).empty([*x, *states, *static, *beside], [])


def _no_step(*_: Tensor) -> Sequence[Tensor]:
    raise NotImplementedError


torch.library.register_fake("stepnet::rows", _rows, lib=LIBRARY)
torch.library.register_fake("stepnet::tables", _tables, lib=LIBRARY)


class _Node(BaseHOP):
    """A recurrence in a graph of Dynamo."""

    def __init__(self) -> None:
        super().__init__("stepnet_recurrence")

    def __call__(self, subgraph: Any, *operands: Any, **way: Any) -> Any:
        if not isinstance(subgraph, fx.GraphModule):  # Dynamo gave up on it
            run: Any = torch.compiler.disable(subgraph)
            return run()
        return _lower(subgraph, operands, way)


if CAN_CAPTURE:
    _node = _Node()


def _follow_bodies() -> bool:
    """Let Dynamo hand a body two views of one tensor, such as a weight and its transpose. It refuses them for
    bodies that write, or give what they were given.

    And let it follow products of three tensors, whose order torch's `einsum` asks of all sizes; and, where
    the step is exported, `torch.autograd.grad`.
    """
    from torch._dynamo import exc
    from torch._dynamo.variables import higher_order_ops

    class Node(higher_order_ops.BaseHOPVariable):
        supports_aliasing = True

        def call_function(self, *args: Any, **kwargs: Any) -> Any:
            from torch.backends import opt_einsum

            with contextlib.ExitStack() as stack:
                if opt_einsum.enabled:
                    stack.enter_context(opt_einsum.flags(enabled=False))
                if is_exporting() and hasattr(torch._dynamo.config, "trace_autograd_ops"):
                    stack.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
                return super().call_function(*args, **kwargs)

        def create_wrapped_node(self, *args: Any, **kwargs: Any) -> Any:
            made: Any = super().create_wrapped_node(*args, **kwargs)
            for operand in made[0][1:]:
                value = operand.node.meta["example_value"]
                if is_traceable_wrapper_subclass(value):  # it knows not what to do with an operator of ours
                    kind = type(value).__name__
                    why = f"stepnet: the step reads {kind}, which runs operators in its own way"
                    what = "a recurrence that reads a subclass of Tensor"
                    exc.unimplemented(gb_type=what, context=kind, explanation=why, hints=[])
            return made

    names: Any = higher_order_ops
    names._hop_name_to_variable_class.setdefault(_node.__name__, Node)
    return True


_follow_bodies._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]  # it calls, not traces


def captured(
    outside: Callable[[], Any], step: Callable[..., Any], x: Any, state: Any, static: Any, marks: Any,
    fresh: Any, *, clocked: bool, resets: str, reverse: bool, level: int, axis: int, backend: str | None,
    checkpoint: int | bool | None, detach_every: int | None,
) -> Any:  # fmt: skip
    """A call of `recurrent` as one node of the graph that Dynamo is making.

    Args:
        outside: the call itself; it is made where Dynamo cannot follow the step.
        step: `step(x_t, state)`, or with what is static.
        marks, fresh: of resets, or None.
        clocked: the step is given None in place of its x.

    Returns:
        y and the final state.
    """
    x_leaves, x_spec = flat(x)
    state_leaves, state_spec = flat(opened(state))
    if not all(isinstance(leaf, Tensor) for leaf in state_leaves):
        return out_of_graph(outside, "stepnet: a state in a graph is tensors, nested")
    static_leaves, static_spec = flat(() if static is None else static)
    fresh_leaves, _ = flat(() if fresh is None else fresh)
    first = x_leaves[0]
    ragged = isinstance(first, LoDTensor)
    levels = len(first.structure.levels) if ragged else 0
    inside = levels - 1 - level % levels if ragged else 0
    values = [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in x_leaves]
    offsets = [t for leaf in x_leaves for t in leaf.structure.levels] if ragged else []
    if isinstance(marks, LoDTensor):
        marks = marks.values
    beside = offsets if marks is None else [*offsets, marks, *fresh_leaves]
    n_x, n_state = len(values), len(state_leaves)
    exported = is_exporting()
    autocast = None if exported else autocast_now()
    rounded = _rounded_of(step) if exported else ()
    _follow_bodies()
    teach_forms()

    def body() -> Any:
        if not torch.compiler.is_dynamo_compiling():
            y, final = outside()
            return y, opened(final)
        if not exported or torch.is_grad_enabled():
            return stepped()
        with torch.enable_grad():  # a program is for both, and torch notes no mode that is on already
            return stepped()

    def stepped() -> Any:
        cut = offsets[levels - inside : levels]
        rows = torch.ops.stepnet.rows(values, [*state_leaves, *static_leaves], cut, axis, levels)
        x_leaves_t, lod = rows[:n_x], None
        if inside:
            lod = LoD.trusted(tuple(rows[len(rows) - inside :]), rows[0].shape[0])
            x_leaves_t = [LoDTensor.of(t, lod) for t in x_leaves_t]
        x_t = None if clocked else nested(x_leaves_t, x_spec)
        state_t = closed(nested(rows[n_x : n_x + n_state], state_spec), state)
        if static is None:
            y, new = step(x_t, state_t)
        else:
            y, new = step(x_t, state_t, nested(rows[n_x + n_state :], static_spec))
        y_leaves, whole, y_spec = _flat(y, lod)
        new_leaves, new_spec = flat(opened(new))
        if type(new_spec) is not type(state_spec) or new_spec != state_spec:
            torch._dynamo.graph_break()  # the loop tells it
        tables = torch.ops.stepnet.tables(
            y_leaves, new_leaves, values, state_leaves, static_leaves, beside, axis, levels, inside, whole
        )
        last = tables[len(y_leaves) :]
        cut_as = [{_WHOLE if of else _STEPS: t} for of, t in zip(whole, tables, strict=False)]
        y = nested(cut_as if inside else tables[: len(y_leaves)], y_spec)
        return y, nested(last, state_spec)

    y, final = _node(
        body, name=_name(step), reverse=reverse, axis=axis, levels=levels, inside=inside, backend=backend,
        autocast=autocast, rounded=rounded, resets=resets, checkpoint=checkpoint, detach_every=detach_every,
    )  # fmt: skip
    return (_ragged_as(first.structure, inside, y) if ragged else y), closed(final, state)


def _flat(y: Any, lod: LoD | None) -> tuple[list[Any], list[bool], Any]:
    """The leaves of what a step gave as y, which of them are sequences, those of x at this step, and how they
    were nested."""
    leaves, spec = flat(y)
    whole = [isinstance(leaf, LoDTensor) for leaf in leaves]
    if any(isinstance(leaf, LoDTensor) and leaf.structure is not lod for leaf in leaves):
        torch._dynamo.graph_break()  # entries of other lengths than those of x
    of_steps = [leaf for leaf in leaves if not isinstance(leaf, LoDTensor)]
    if any(map(_is_of_all_rows, of_steps)) and not is_exporting():  # which says itself what is not so
        torch._dynamo.graph_break()  # the loop tells it, or runs it as it is
    return [leaf.values if isinstance(leaf, LoDTensor) else leaf for leaf in leaves], whole, spec


def _is_of_all_rows(leaf: Tensor) -> bool:
    """Whether a leaf of y has a number of rows that is known, as a sum over them has."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # imports sympy, which takes a while

    return not leaf.dim() or has_static_value(leaf.shape[0])


_WHOLE, _STEPS = "entries of steps", "steps"  # what a leaf of y holds, in the place of the leaf


def _is_cut(leaf: Any) -> bool:
    known = isinstance(leaf, dict) and len(leaf) == 1 and (_WHOLE in leaf or _STEPS in leaf)
    return isinstance(leaf, LoDTensor) or (known and isinstance(next(iter(leaf.values())), Tensor))


def _ragged_as(lod: LoD, inside: int, y: Any) -> Any:
    """The tables of all steps with the sequences of x, or, where steps are sequences, those they are of."""
    if not inside:
        leaves, spec = flat(y)
        return nested([t if isinstance(t, LoDTensor) else LoDTensor.of(t, lod) for t in leaves], spec)
    outer, below = lod.levels[:-inside], lod.levels[-inside]
    lods = {_WHOLE: lod, _STEPS: LoD.trusted(tuple(outer), below.shape[0] - 1)}
    return _pytree.tree_map(lambda leaf: _of_steps(leaf, lods), y, is_leaf=_is_cut)


def _of_steps(leaf: Any, lods: dict[str, LoD]) -> LoDTensor:
    """A leaf of y, which is one already if Python ran the call."""
    if isinstance(leaf, LoDTensor):
        return leaf
    ((kind, table),) = leaf.items()
    return table if isinstance(table, LoDTensor) else LoDTensor.of(table, lods[kind])


def side_by_side(static: Any) -> Any:
    """What is static, ragged memories of one level as steps see them."""

    def seen(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            leaf = LoDTensor.from_packed(leaf)
        if not isinstance(leaf, LoDTensor) or len(leaf.structure.levels) != 1:
            return leaf
        return Padded(*in_graph.call("beside", [leaf.values], [leaf.structure]))

    return None if static is None else _pytree.tree_map(seen, static, is_leaf=_is_whole)


TAKES = (
    "tensors, or LoDTensors, and static tensors; where steps are sequences, LoDTensors of the same offsets"
)


def out_of_graph(call: Callable[[], Any], why: str) -> Any:
    """Make a call out of the region that Dynamo follows."""
    torch._dynamo.graph_break(msg=why)
    run: Any = torch.compiler.disable(call)
    return run()


def traced_step(step: Any, call: Callable[[], Any]) -> Any:
    """A call of a step that Dynamo is to follow, where an export follows tensors only."""
    from torch._dynamo.exc import Unsupported, UserError
    from torch._functorch import config
    from torch._higher_order_ops.utils import _maybe_compile_and_run_fn
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    graph = fx.Graph() if mode is None else mode.tracer.graph
    before = {*graph.nodes}
    with warnings.catch_warnings():  # Dynamo looks for gradients of weights that export has replaced
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor", UserWarning)
        try:
            # a draft of a program has numbers beside its tensors, Dynamo follows tensors without
            with _weights_noted(step), config.patch(fake_tensor_propagate_real_tensors=False):
                out = _maybe_compile_and_run_fn(_anew(call))
        except (Unsupported, UserError) as error:
            # it asks for numbers, indexes sequences, calls what is no torch
            said = re.search(r"stepnet: .*", str(error))  # why a call of ours ends the graph
            why = said[0] if said else str(error).partition("\n")[0].rstrip(".:")
            raise refused(Way(_name(step)), f"Dynamo does not follow it ({why})") from error
    # Offsets that are known here were asked for their number alone: export fails if nothing uses them.
    for node in reversed([n for n in graph.nodes if n not in before]):
        if not node.users and (node.op == "get_attr" or node.target is torch.ops.aten.sym_size.int):
            graph.erase_node(node)
    return out


@contextlib.contextmanager
def _weights_noted(step: Any) -> Iterator[None]:
    """Let recurrent modules of torch in a step know the weights that they have now, those of the export: they
    would note them as they are called, in attributes, which no body of a graph may write."""
    holders = [step] if isinstance(step, nn.Module) else reach(step).holders
    modules = {m for each in holders if isinstance(each, nn.Module) for m in each.modules()}
    noted = [(m.__dict__, {**m.__dict__}) for m in modules if isinstance(m, nn.RNNBase)]
    try:
        for module in modules:
            if isinstance(module, nn.RNNBase):
                module._update_flat_weights()
        yield
    finally:
        for now, before in noted:
            now.update((k, before[k]) for k in ("_flat_weights", "_flat_weight_refs") if k in before)


def _anew(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call that Dynamo has not met: it would ask the guards of other calls, kept with their code, for the
    sizes of this one, and an export fixes what is asked for."""
    written: Any = call
    return FunctionType(written.__code__.replace(), written.__globals__, closure=written.__closure__)


def can_be_node(x: Any, static: Any, level: int, plain: bool) -> bool:
    """Whether a call cuts tensors of equal lengths, or LoDTensors into rows, beside static tensors; or, where
    it is `plain`, which is without resets and windows, LoDTensors of the same offsets into sequences."""
    leaves = [x] if isinstance(x, (Tensor, LoDTensor)) else _pytree.tree_leaves(x, is_leaf=_is_whole)
    for leaf in leaves:
        if isinstance(leaf, LoDTensor):
            above = (level + 1) % len(leaf.structure.levels) != 0
            if not isinstance(leaves[0], LoDTensor):
                return False
            if above and (not plain or static is not None or leaf.structure is not leaves[0].structure):
                return False
            if len(leaf.structure.levels) != len(leaves[0].structure.levels):
                return False
        elif not isinstance(leaf, Tensor) or leaf.dim() < 2 or isinstance(leaves[0], LoDTensor):
            return False
    if not leaves or static is None:
        return bool(leaves)
    return all(isinstance(leaf, Tensor) for leaf in _pytree.tree_leaves(static, is_leaf=_is_whole))


def first_leaf(x: Any) -> Any:
    """The first leaf of a nesting of tensors and LoDTensors."""
    return flat(x)[0][0]


def _is_whole(leaf: Any) -> bool:
    return isinstance(leaf, (LoDTensor, PackedSequence))


def _rounded_of(step: Any) -> tuple[bool, ...]:
    return step.rounded if isinstance(step, Rounding) else ()


def _name(step: Any) -> str:
    """As `step_name`, of what Dynamo follows."""
    if isinstance(step, TorchCell):
        return type(step.cell).__name__
    return type(step).__name__ if isinstance(step, nn.Module) else getattr(step, "__name__", "step")


_CALLED = "_stepnet_call"
_ordinals = itertools.count()


def _lower(subgraph: fx.GraphModule, operands: Sequence[Any], way: dict[str, Any]) -> Any:
    """The node as `stepnet::run` on its operands."""
    forget_ours()
    lowered = subgraph.__dict__.get(_CALLED)
    if lowered is None:
        lowered = subgraph.__dict__[_CALLED] = _Lowered(subgraph, Way(**way))
    return lowered(operands)


def _in_order(operands: Sequence[Any]) -> list[Any]:
    """Operands as the operator is given them: tensors, and then sizes."""
    return sorted(operands, key=lambda n: not isinstance(n.meta["example_value"], Tensor))


class _Lowered:
    """A body of Dynamo without its markers, as an entry of the table of calls."""

    def __init__(self, subgraph: fx.GraphModule, way: Way) -> None:
        nodes: list[Any] = [*subgraph.graph.nodes]
        (tables,) = (n for n in nodes if n.target is torch.ops.stepnet.tables)
        y, _, x, states, static, beside, _, _, _, whole = tables.args
        operands = [n for n in nodes if n.op == "placeholder"]
        gradients = is_exporting() and autograd_grad.asks(nodes)
        self._by_states = tuple[int, ...]()
        graph, known, inner = self._copied(subgraph, operands, tables, way, gradients)
        place = {n: i for i, n in enumerate(operands)}
        self._inputs = [place[n] for n in (*x, *states, *static, *beside)]
        self._reads = [place[n] for n in _in_order(operands) if known[n].users]
        for n in operands:
            if not known[n].users:
                graph.erase_node(known[n])
        (out,) = nodes[-1].args
        self._results = [n.args[1] for n in out]
        code = graph.python_code("self")
        rows_of_y = [n.meta["example_value"] for n in y]
        leaves = tuple(Leaf(tuple(t.shape[1:]), t.dtype, of) for t, of in zip(rows_of_y, whole, strict=True))
        n_fresh = len(beside) - len(x) * way.levels - bool(way.resets)
        counts = len(x), len(states), len(static), n_fresh
        held = {str(n.target): getattr(subgraph, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
        transforms = gradients or TRANSFORMS in code.src or any(i._recurrence.transforms for i in inner)
        if transforms and way.autocast is None:  # its text is of what ran here, casts and all
            way = replace(way, autocast=autocast_now())
        self._recurrence = Recurrence(way, function_of(code, held), counts, leaves, transforms)
        self._digest = hashlib.sha256(repr((code.src, way)).encode()).hexdigest()[:16]
        self._what = f"compiled {self._digest}#{next(_ordinals)}"  # two calls stay two, however alike

    def _copied(
        self, subgraph: fx.GraphModule, operands: Sequence[Any], tables: Any, way: Way, gradients: bool
    ) -> tuple[fx.Graph, dict[Any, Any], list[_Lowered]]:
        """The graph of one step: its rows, then the operands, to y and the new state.

        Args:
            subgraph: the body, whose markers `rows` and `tables` stand for what the loop cuts and joins.
            operands: of the body.
            tables: that marker.
            way: how the loop runs.
            gradients: whether it holds calls of `torch.autograd.grad`.

        Returns:
            The graph, the node of each node that was copied, and the recurrences inside.
        """
        nodes: list[Any] = [*subgraph.graph.nodes]
        (rows,) = (n for n in nodes if n.target is torch.ops.stepnet.rows)
        y, new, x, states, static, _, _, _, inside, _ = tables.args
        graph, inner = fx.Graph(), list[_Lowered]()
        given = [graph.placeholder(f"row_{i}") for i in range(len(x) + len(states) + len(static) + inside)]
        known: dict[Any, Any] = {n: graph.placeholder(n.name) for n in _in_order(operands)}
        modes = grad_modes.GradModes() if is_exporting() else None
        for n in nodes[len(operands) :]:
            if gradients and autograd_grad.marks(n):
                continue
            if modes is not None and grad_modes.sets(n):
                modes.copy(n, graph)
                continue
            if gradients and n.target is torch.autograd.grad:
                known[n] = self._gradient(n, graph, known, way)
            elif n.target is operator.getitem and n.args[0] is rows:
                known[n] = given[n.args[1]]
            elif n is tables:
                graph.output(tuple(known[n] for n in (*y, *new)))
                break
            elif n.target is _node:
                inner.append(_Lowered(getattr(subgraph, n.args[0].target), Way(**n.kwargs)))
                known[n] = graph.call_function(inner[-1].inside(), tuple(known[m] for m in n.args[1:]))
            elif n.target is autograd_function_apply:
                forth, back = (getattr(subgraph, str(body.target)) for body in n.args[:2])
                applied = put_together(forth, back, n.kwargs)
                known[n] = graph.call_function(applied, tuple(fx.map_arg(n.args[2:], known.__getitem__)))
            elif modes is not None and is_checkpoint(n.target):
                body = without_checkpoint(getattr(subgraph, str(n.args[0].target)))
                known[n] = graph.call_function(body, tuple(fx.map_arg(n.args[1:], known.__getitem__)))
            elif n.target is torch.ops.aten.sym_size.int:
                known[n] = graph.call_method("size", (known[n.args[0]], n.args[1]))
            elif n is not rows and not _is_size_check(n):
                known[n] = graph.node_copy(n, known.__getitem__)
        if gradients:
            start = given[len(x) : len(x) + len(states)]
            try:
                asked = autograd_grad.by_states(nodes, known, start, [known[n] for n in new])
                self._by_states = tuple(len(x) + i for i in asked)
            except Unsupported as error:
                raise refused(way, f"it calls {error.reason}", error.remedy) from error
        graph.eliminate_dead_code(_is_to_stay)
        for n in graph.nodes:
            n.target = _PUBLIC.get(n.target, n.target)
        return graph, known, inner

    @staticmethod
    def _gradient(node: fx.Node, graph: fx.Graph, known: dict[fx.Node, fx.Node], way: Way) -> fx.Node:
        """A call of `torch.autograd.grad`."""
        try:
            return autograd_grad.differentiated(
                node, graph, known, lambda body: function_of(body.python_code("self"), {})
            )
        except ValueError as error:
            raise refused(way, f"it calls {error}") from error

    def __call__(self, operands: Sequence[Any]) -> Any:
        """Its results for the operands of the node, as one operator."""
        tensors, sizes = self._arguments(operands)
        what = self._what
        if is_exporting():
            self._check_first_gradients(tensors)
            what = text_of(self._recurrence, tensors, [operands[i] for i in self._reads])
        elif not calls.is_known(what):
            calls.add(what, self._recurrence)
        return self._results_of(torch.ops.stepnet.run.default(tensors, sizes, what))

    def _check_first_gradients(self, tensors: Sequence[Tensor]) -> None:
        """As the engine does before it runs a plan."""
        for i in self._by_states:
            if are_made_of((*tensors[:i], *tensors[i + 1 :]), tensors[i]):
                why, remedy = f"it calls {THROUGH_CALLER.reason}", THROUGH_CALLER.remedy
                raise refused(self._recurrence.way, why, remedy)

    def inside(self) -> Callable[..., Any]:
        """A function of its operands, for the step of another one."""

        def recurrence(*operands: Any) -> Any:
            if is_exporting():
                return self(operands)
            return self._results_of(self._recurrence.run(*self._arguments(operands)))

        recurrence.__name__ += f"_{self._digest}"
        return recurrence

    def _arguments(self, operands: Sequence[Any]) -> tuple[list[Tensor], list[int]]:
        reads = [operands[i] for i in self._reads]
        tensors = [*(operands[i] for i in self._inputs), *(t for t in reads if isinstance(t, Tensor))]
        return tensors, [t for t in reads if not isinstance(t, Tensor)]

    def _results_of(self, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(results[i] for i in self._results)


def _is_to_stay(node: fx.Node) -> bool:
    """Whether a node that nothing uses has a part in what a step does: any call on tensors may write in place
    or draw noise, and Dynamo's graphs do not tell. What counts rows or takes a result apart does not."""
    counts = isinstance(node.meta.get("example_value"), (int, torch.SymInt, torch.SymFloat, torch.SymBool))
    idle = node.op == "get_attr" or node.target in (operator.getitem, "size", torch._C._log_api_usage_once)
    return node.is_impure() or not (counts or idle)


def _is_size_check(node: fx.Node) -> bool:
    """Whether a node tells that there are rows."""
    if node.target is not torch.ops.aten._assert_scalar.default:
        return False
    (holds, *_) = node.args
    return isinstance(holds, fx.Node) and holds.target is operator.ge and holds.args[1:] in ((0,), (1,))


_PUBLIC = {torch._C._set_grad_enabled: torch.set_grad_enabled}
