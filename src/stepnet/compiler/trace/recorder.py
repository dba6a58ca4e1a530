"""What a function of tensors calls in torch, recorded as a graph: one node for each aten call.

It records what torch's own tracer records, in a tenth of the time, and knows only the plain case: every
tensor is an input, a constant or comes from a recorded call. A write is a new value: of what is written
into, of what that is a view of, and of other views of it once they are read. Anything else is `Unusual`, and
left to torch's.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.fx import Graph, Node, Tracer
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.autograd_history import history
from stepnet.data.storage import memory_of

from .row_count import Unusual
from .symbolic_rows import NUMBERS, numbers, opened, outline_of, outlined
from .writes import refuse_other_memory

_aten: Any = torch.ops.aten


class Writes(Unusual):
    """A call that writes into a tensor which others may share memory with."""


class WritesIntoGiven(Unusual):
    """A call that writes into what the function is given, which torch's tracers refuse, too."""


def recorded(
    run: Callable[..., Sequence[Tensor | None]],
    inputs: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> tuple[Graph, dict[str, Tensor]]:
    """The graph of `run(*inputs)`, of outlines, and its constants. What a node gives is its `meta["val"]`.

    Raises:
        Unusual: it holds a call that is not recorded here. Whatever `run` raises comes through.
    """
    recorder = _Recorder(decompositions)
    graph = recorder.tracer.graph
    for i, tensor in enumerate(inputs):
        recorder.note(graph.placeholder(f"input_{i}"), tensor)
    try:
        # Gradients of writes into views go through those views anew, and not by strides.
        with torch.autograd.grad_mode._force_original_view_tracking(True), recorder:
            results = run(*inputs)
    finally:
        _let_go(graph)
    graph.output(tuple(recorder.placed(results)))
    return graph, recorder.constants


def _let_go(graph: Graph) -> None:
    """Keep nothing of the backward that a graph is recorded in, as that of a call which makes the plan of its
    second derivative: in anomaly mode nodes of autograd know the one that ran as they were made, and graphs
    are freed when garbage is collected."""
    ends: list[Any] = []
    for node in graph.nodes:
        made = node.meta.get("val")
        with contextlib.suppress(Unusual):  # a view of what was written to asks torch to make its node anew
            ends.append(made.grad_fn if isinstance(made, Tensor) else None)
    for node in history(ends):
        node.metadata.pop("parent_", None)


class _View(NamedTuple):
    """The call that made a view."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def put_back(self, new: Tensor) -> Tensor:
        """What it is a view of, where the view is `new`."""
        return _VIEWS[self.func](new, *self.args, **self.kwargs)


class _Recorder(TorchDispatchMode):
    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.decompositions = decompositions
        self.tracer = Tracer()
        self.tracer.graph = Graph()
        self.nodes: dict[int, Node] = {}  # by the id of a tensor, which the meta of a node keeps
        self.sharing: defaultdict[int, set[int]] = defaultdict(set)  # tensors that stand in a piece of memory
        self.stale: set[int] = set()  # those of which another one in their memory was written into
        self.views: dict[int, _View] = {}
        self.other_views: set[int] = set()  # some of whose numbers may be one in memory
        self.pieces: dict[int, tuple[Any, int]] = {}  # which part a tensor is, of what was split
        self.constants: dict[str, Tensor] = {}
        self.numbered = False  # whether torch was told a number of rows

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to have it skipped, torch imports all that it compiles with

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise Unusual(str(func))
        if func in NUMBERS:
            self.numbered = True
            return numbers(func, args[0])
        if self.numbered:
            args, kwargs = opened((args, kwargs))
        if func is _aten.detach_.default:  # autograd, above, has cut it off
            return args[0]
        if func is _aten.fill_.Scalar:  # torch's own `number - tensor` ends so
            return self._written(func, args, kwargs)
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable:
            refuse_other_memory(func)
            return self._written(func, args, kwargs)
        if func is _aten.lift_fresh.default:
            return self._constant(args[0])
        if _DEPENDS_ON_VALUES.intersection(func.tags) and not _picks_by_number(func, args):
            raise Unusual(str(func))
        node = self._call(func, *self.placed((args, kwargs)))
        result = outlined(func, args, kwargs)
        self.note(node, result)
        if func in _VIEWS:
            self.views[id(result)] = _View(func, args, kwargs)
        elif func in _SPLITS and args[0].is_contiguous():  # else parts may overlap
            self.pieces |= {id(part): (node, i) for i, part in enumerate(result)}
        elif any(value.alias_info is not None for value in func._schema.returns):
            self.other_views.update(map(id, result if isinstance(result, (list, tuple)) else (result,)))
        return result

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """A node; its arguments come after it, for torch looks among them for open sizes, to warn of each."""
        node = self.tracer.create_node("call_function", func, (), {})
        node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node

    def placed(self, arg: Any) -> Any:
        """Arguments, with nodes in the place of tensors."""
        if isinstance(arg, Tensor):
            node = self.nodes.get(id(arg))
            if node is None:
                raise Unusual("a tensor from outside")
            return self._seen_anew(arg) if id(arg) in self.stale else node
        if isinstance(arg, (list, tuple)):
            return type(arg)([self.placed(a) for a in arg])
        if isinstance(arg, dict):
            return {name: self.placed(a) for name, a in arg.items()}
        if isinstance(arg, (torch.SymFloat, torch.SymBool)):
            raise Unusual("a number that follows from values")
        return arg

    def note(self, node: Node, result: Any) -> None:
        """Remember what a node gives."""
        node.meta["val"] = result
        if isinstance(result, Tensor):
            self.sharing[memory_of(result)].add(id(result))
            self.nodes[id(result)] = node
        elif isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                self.note(self._call(operator.getitem, (node, i), {}), part)
        elif result is not None:
            raise Unusual(f"{node.target} gives {type(result).__name__}")

    def _seen_anew(self, tensor: Tensor) -> Node:
        """The node of a view, after a write into what it is a view of."""
        view = self.views.get(id(tensor))
        if view is None:
            raise Writes("what shares memory with it was written into")
        node = self._call(view.func, *self.placed((view.args, view.kwargs)))
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = node
        self.stale.discard(id(tensor))
        return node

    def _written(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """a.op_(b) -> a = a.op(b), and of what a is a view of, a new value with a new part."""
        anew = _without_writing(func)
        target: Any = args[0] if args else None
        if anew is None or not isinstance(target, Tensor):
            raise Writes(str(func))
        self.placed(target)
        beside = self.sharing[memory_of(target)] - {id(target)}
        made = ("call_function",) * (1 + len(beside))
        ops = tuple(self.nodes[key].op for key in (id(target), *beside))
        if "placeholder" in ops:
            raise WritesIntoGiven
        if ops != made:
            raise Writes(str(func))
        with self:
            result = anew(*args, **kwargs)
            if result.dtype != target.dtype or str(result.shape) != str(target.shape):
                raise Writes(str(func))
            chain = [(target, result)]
            while (view := self.views.get(id(chain[-1][0]))) is not None:
                chain.append((view.args[0], view.put_back(chain[-1][1])))
        root = id(chain[-1][0])
        if len(chain) > 1 and root in self.other_views:
            raise Writes(str(func))
        whole, part = self.pieces.get(root, (None, 0))
        self.stale |= beside - {key for key, (of, i) in self.pieces.items() if of is whole and i != part}
        for tensor, value in chain:
            self.nodes[id(tensor)] = self.placed(value)
            self.stale.discard(id(tensor))
        return target

    def _constant(self, tensor: Tensor) -> Tensor:
        """A tensor that is made of Python's numbers."""
        if id(tensor) in self.nodes:
            raise Unusual("a traced tensor as a constant")
        name = f"_tensor_constant{len(self.constants)}"
        self.constants[name] = tensor
        place = self.tracer.create_node("get_attr", name, (), {})
        node = self._call(_aten.lift_fresh_copy.default, (place,), {})
        result = outline_of(tensor)
        self.note(node, result)
        return result


_DRAWS: dict[OpOverload, Callable[..., Tensor]] = {  # whose twins go by other names
    _aten.cauchy_.default: _aten.cauchy.default,
    _aten.geometric_.default: _aten.geometric.default,
    _aten.log_normal_.default: _aten.log_normal.default,
    _aten.bernoulli_.float: lambda into, p=0.5, **how: _aten.bernoulli.p(into, p, **how),
    _aten.exponential_.default: _aten.exponential.default,
    _aten.normal_.default: _aten.normal_functional.default,
    _aten.random_.to: lambda into, to, **how: _aten.randint_like(into, to, **how),
    getattr(_aten.random_, "from"): lambda into, low, high, **how: _aten.randint_like(into, low, high, **how),
    _aten.uniform_.default: _aten.uniform.default,
}
_VIEWS: dict[OpOverload, Callable[..., Tensor]] = {
    _aten.alias.default: lambda new, base: new,
    _aten.detach.default: lambda new, base: new,
    _aten.select.int: lambda new, base, *at: _aten.select_scatter(base, new, *at),
    _aten.slice.Tensor: lambda new, base, *at: _aten.slice_scatter(base, new, *at),
    _aten.transpose.int: lambda new, base, *dims: _aten.transpose(new, *dims),
    _aten.t.default: lambda new, base: _aten.t(new),
    _aten.permute.default: lambda new, base, dims: _aten.permute(new, _inverse(dims)),
    _aten.unsqueeze.default: lambda new, base, dim: _aten.squeeze.dim(new, dim),
    _aten.squeeze.dim: lambda new, base, dim: _aten.view(new, base.shape),
    _aten.squeeze.dims: lambda new, base, dims: _aten.view(new, base.shape),
    _aten.view.default: lambda new, base, size: _aten.view(new, base.shape),
}
_SPLITS = frozenset((_aten.split.Tensor, _aten.split_with_sizes.default))
_DEPENDS_ON_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def _picks_by_number(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether a call is `x[numbers]`, whose shape is known; `x[mask]` is another."""
    return func is _aten.index.Tensor and all(i is None or i.dtype == torch.int64 for i in args[1])


def _inverse(dims: Sequence[int]) -> list[int]:
    places = [dim % len(dims) for dim in dims]
    return [places.index(i) for i in range(len(dims))]


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    """Whether autograd would have called other ops in the place of this one.

    Raises:
        Unusual: it is a question of torch 2.6 for a size as a number, and no op.
    """
    try:
        return func.has_kernel_for_dispatch_key(
            DispatchKey.CompositeImplicitAutograd
        ) and not func.has_kernel_for_dispatch_key(DispatchKey.CPU)
    except RuntimeError as error:
        raise Unusual(str(func)) from error


@functools.cache
def _without_writing(func: OpOverload) -> Callable[..., Tensor] | None:
    """`aten.add` of `aten.add_`; None of what has no such twin, or makes a view of itself."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return _DRAWS.get(func)
    space, _, name = func._schema.name.partition("::")
    if space != "aten" or not name.endswith("_") or torch.Tag.inplace_view in func.tags:
        return None
    packet = getattr(_aten, name.removesuffix("_"), None)
    return getattr(packet, func._overloadname, None)
