"""What a format has no row for, taken apart into simpler calls; the calls that can stay as they are stay."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, backends
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, map_arg
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx, track_tensor_tree
from torch.utils._pytree import tree_map

from . import complex_pairs, small_matrices

Known = Callable[[FxNode], bool]
Table = Mapping[Any, Callable[..., Any]]
_torch: Any = torch  # for what it has and does not tell type checkers of
_DROPOUTS = {
    getattr(torch.ops.aten, kind).default for kind in ("dropout", "feature_dropout", "alpha_dropout")
}
_MAY_SHARE = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)  # what a schema leaves open


class Parts:
    """A traced graph of calls: nodes for the inputs, in their order, the tensors that it holds, and results.

    Args:
        module: of the graph.
        program: what it was traced as; its inputs and results are in the same order.
        changed: nodes of this program for what is written into.
    """

    def __init__(
        self, module: GraphModule, program: ExportedProgram, changed: Collection[FxNode] = ()
    ) -> None:
        signature = program.graph_signature
        held: dict[str, Any] = {**program.constants, **program.state_dict}
        self.nodes = tuple(module.graph.nodes)
        self.inputs: list[FxNode] = []
        self.constants: dict[FxNode, Tensor] = {}
        for node in self.nodes:
            value: Any = getattr(module, str(node.target)) if node.op == "get_attr" else None
            if isinstance(value, Tensor):
                self.constants[node] = value
        for node, spec in zip(_places(module.graph), signature.input_specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                self.inputs.append(node)
            elif spec.target is not None:
                self.constants[node] = held[spec.target]
        results: Any = self.nodes[-1].args[0]
        pairs = list(zip(results, signature.output_specs, strict=True))
        self.outputs = [node for node, spec in pairs if spec.kind == OutputKind.USER_OUTPUT]
        self.changed = [spec.target for _, spec in pairs if spec.kind == OutputKind.BUFFER_MUTATION]
        self.changed += [
            spec.target
            for node, spec in zip(_places(program.graph), signature.input_specs, strict=True)
            if node in changed and spec.kind in (InputKind.BUFFER, InputKind.PARAMETER)
        ]


def _places(graph: Graph) -> list[FxNode]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def taken_apart(program: ExportedProgram, known: Known) -> Parts:
    """A program whose calls are those that can stay as they are, as far as torch can take others apart; none
    changes what it is given."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    checks = _checks(calls)
    unknown = {n for n in calls if n not in checks and not (known(n) and not complex_pairs.makes(n))}
    if not unknown:
        return Parts(program.graph_module, program)
    kept = {n.target for n in calls if n not in unknown}
    simpler = _simpler(len(torch._C._dispatch_get_all_op_names()))
    table = {overload: rule for overload, rule in simpler.items() if overload not in kept}
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")
        if any(n.op == "get_attr" for n in program.graph.nodes):  # a graph inside, which torch inlines
            whole = program.run_decompositions(table)
            return Parts(whole.graph_module, whole)
        if any(map(_changes, unknown)):  # then what shares numbers with its argument is called again, too
            unknown.update(filter(_shares, calls))
        again = _Again(program.graph, unknown, checks, table)
        module = again.module()
        pairs = set(filter(complex_pairs.makes, module.graph.nodes))
        if pairs and all(n.op != "get_attr" for n in module.graph.nodes):
            module = _InPairs(module.graph, pairs, set(), table).module()
        return Parts(module, program, again.changed)


class _Again:
    """A graph of which only the calls that must be are traced again; torch would trace all of them, twice.

    Args:
        unknown: calls that are traced again.
        checks: calls that are left out.
        table: what others are taken apart into.
    """

    def __init__(self, graph: Graph, unknown: set[FxNode], checks: set[FxNode], table: Table) -> None:
        self.graph, self.unknown, self.checks, self.table = graph, unknown, checks, table
        self.places = _places(graph)
        self.changed: set[FxNode] = set()

    def module(self) -> GraphModule:
        examples = [n.meta.get("val") for n in self.places]
        mode = detect_fake_mode([e for e in examples if e is not None])
        assert mode is not None
        plain = backends.mkldnn.flags(enabled=False), backends.nnpack.flags(enabled=False)
        with mode, enable_python_dispatcher(), plain[0], plain[1]:  # no calls of libraries
            return make_fx(self._run, decomposition_table=dict(self.table))(*examples)

    def _run(self, *values: Any) -> Any:
        mode = get_proxy_mode()
        assert mode is not None
        self.tracer = mode.tracer
        _torch._enable_functionalization(reapply_views=True)
        try:
            env = dict(zip(self.places, tree_map(_wrapped, values), strict=True))
            for node in self.graph.nodes:
                if node.op == "call_function" and node not in self.checks:
                    last = next(iter(reversed(self.tracer.graph.nodes)))
                    env[node] = self._called(node, *map_arg((node.args, node.kwargs), env.__getitem__))
                    _said(last, node)
            for node, value in zip(self.places, values, strict=True):
                if isinstance(value, Tensor) and _inside(env[node]) is not value:
                    self.changed.add(node)
            results = map_arg(self.graph.output_node().args[0], env.__getitem__)
            return tree_map(_inside, self._checked(results))
        finally:
            _torch._disable_functionalization()

    def _checked(self, results: Any) -> Any:
        return results

    def _called(self, node: FxNode, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node in self.unknown:
            if target in _DROPOUTS and not args[2]:
                return args[0]  # itself, of which torch's own rule makes a copy
            made = self.table[target](*args, **kwargs) if target in self.table else NotImplemented
            return target(*args, **kwargs) if made is NotImplemented else made
        if getattr(target, "__name__", "") == "getitem":
            return args[0][args[1]]
        args, kwargs = tree_map(lambda part: self.tracer.unwrap_proxy(_inside(part)), (args, kwargs))
        result = node.meta.get("val")
        proxy = self.tracer.create_proxy("call_function", target, args, kwargs)
        track_tensor_tree(result, proxy, constant=None, tracer=self.tracer)
        return tree_map(_wrapped, result)


class _InPairs(_Again):
    """A graph that is traced again with pairs of real numbers in the place of complex ones."""

    def _called(self, node: FxNode, args: Any, kwargs: Any) -> Any:
        if complex_pairs.is_complex(node.target, (args, kwargs)):
            return complex_pairs.called(node.target, args, kwargs)
        return super()._called(node, args, kwargs)

    def _checked(self, results: Any) -> Any:
        complex_pairs.check_results(results)
        return results


def _changes(node: FxNode) -> bool:
    """Whether a call changes what it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _shares(node: FxNode) -> bool:
    """Whether the result of a call may share numbers with what it is given."""
    if node.target in _DROPOUTS or _MAY_SHARE in getattr(node.target, "tags", ()):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _wrapped(value: Any) -> Any:
    """A tensor as one that notes what is written into it."""
    return _torch._to_functional_tensor(value) if isinstance(value, Tensor) else value


def _inside(value: Any) -> Any:
    if not isinstance(value, Tensor) or not _torch._is_functional_tensor(value):
        return value
    _torch._sync(value)
    return _torch._from_functional_tensor(value)


def _said(last: FxNode, node: FxNode) -> None:
    """Let all calls after `last` say the line of the one that they are made for."""
    text = node.meta.get("stack_trace")
    while (last := last.next).op != "root":
        last.meta["stack_trace"] = text


def _checks(calls: Sequence[FxNode]) -> set[FxNode]:
    """Calls that ask what holds of the example, and what is made for them alone: none of it is written."""
    checks: set[FxNode] = set()
    for node in reversed(calls):
        if str(node.target).startswith("aten._assert_") or (node.users and checks.issuperset(node.users)):
            checks.add(node)
    return checks


@functools.lru_cache(maxsize=1)
def _simpler(operators: int) -> dict[Any, Callable[..., Any]]:
    """What calls are taken apart into, when torch has so many operators: to list them takes it 0.03 s."""
    resized = get_decompositions([torch.ops.aten.upsample_bilinear2d.vec])
    return {**torch.export.default_decompositions(), **resized, **small_matrices.TABLE}
