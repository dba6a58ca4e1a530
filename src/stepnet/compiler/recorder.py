"""What a function of fake tensors calls in torch, recorded as a graph: one node for each aten call.

It records what torch's own tracer records, in half the time, and knows only the plain case: every tensor is
an input, a constant or comes from a recorded call, and what is written into shares its memory with nothing.
Anything else is `Unusual`, and left to torch's.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.fx import Graph, Node, Tracer
from torch.utils._python_dispatch import TorchDispatchMode

from stepnet.data.storage import memory_of

_aten: Any = torch.ops.aten


class Unusual(Exception):
    """A call that this recorder does not know how to record."""


class Writes(Unusual):
    """A call that writes into a tensor which others may share memory with."""


def recorded(
    run: Callable[..., Sequence[Tensor | None]],
    inputs: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> tuple[Graph, dict[str, Tensor]]:
    """The graph of `run(*inputs)`, and its constants. What a node gives, fake tensors, is its `meta["val"]`.

    Raises:
        Unusual: it holds a call that is not recorded here. Whatever `run` raises comes through.
    """
    recorder = _Recorder(decompositions)
    graph = recorder.tracer.graph
    for i, tensor in enumerate(inputs):
        recorder.note(graph.placeholder(f"input_{i}"), tensor)
    with recorder:
        results = run(*inputs)
    graph.output(tuple(recorder.placed(results)))
    return graph, recorder.constants


class _Recorder(TorchDispatchMode):
    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.decompositions = decompositions
        self.tracer = Tracer()
        self.tracer.graph = Graph()
        self.nodes: dict[int, Node] = {}  # by the id of a tensor, which the meta of a node keeps
        self.sharing: Counter[int] = Counter()  # how many tensors stand in a piece of memory
        self.constants: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise Unusual(str(func))
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if func is _aten.detach_.default:  # autograd, above, has cut it off
            return args[0]
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func._schema.is_mutable and func is not _aten.copy_.default:
            return self._written(func, args, kwargs)
        if func is _aten.lift_fresh.default:
            return self._constant(args[0])
        if _DEPENDS_ON_VALUES.intersection(func.tags) and not _picks_by_number(func, args):
            raise Unusual(str(func))
        node = self.tracer.create_node("call_function", func, *self.placed((args, kwargs)))
        result = func(*args, **kwargs)
        self.note(node, result)
        return result

    def placed(self, arg: Any) -> Any:
        """Arguments, with nodes in the place of tensors."""
        if isinstance(arg, Tensor):
            node = self.nodes.get(id(arg))
            if node is None:
                raise Unusual("a tensor from outside")
            return node
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
            if id(result) not in self.nodes:
                self.sharing[memory_of(result)] += 1
            self.nodes[id(result)] = node
        elif isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                self.note(self.tracer.create_node("call_function", operator.getitem, (node, i), {}), part)
        elif result is not None:
            raise Unusual(f"{node.target} gives {type(result).__name__}")

    def _written(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """a.op_(b) -> a = a.op(b): autograd adds up gradients so."""
        anew = _without_writing(func)
        target: Any = args[0] if args else None
        own = isinstance(target, Tensor) and self.placed(target).op == "call_function"
        if anew is None or not own or self.sharing[memory_of(target)] > 1:
            raise Writes(str(func))
        with self:
            result = anew(*args, **kwargs)
        if result.dtype != target.dtype or str(result.shape) != str(target.shape):
            raise Writes(str(func))
        self.nodes[id(target)] = self.placed(result)
        return target

    def _constant(self, tensor: Tensor) -> Tensor:
        """A tensor that is made of Python's numbers."""
        if id(tensor) in self.nodes:
            raise Unusual("a traced tensor as a constant")
        name = f"_tensor_constant{len(self.constants)}"
        self.constants[name] = tensor
        place = self.tracer.create_node("get_attr", name, (), {})
        node = self.tracer.create_node("call_function", _aten.lift_fresh_copy.default, (place,), {})
        result = _aten.lift_fresh.default(tensor)
        self.note(node, result)
        return result


_DEPENDS_ON_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def _picks_by_number(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether a call is `x[numbers]`, whose shape is known; `x[mask]` is another."""
    return func is _aten.index.Tensor and all(i is None or i.dtype == torch.int64 for i in args[1])


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    """Whether autograd would have called other ops in the place of this one."""
    return func.has_kernel_for_dispatch_key(
        DispatchKey.CompositeImplicitAutograd
    ) and not func.has_kernel_for_dispatch_key(DispatchKey.CPU)


@functools.cache
def _without_writing(func: OpOverload) -> OpOverload | None:
    """`aten.add` of `aten.add_`; None of what has no such twin, draws noise or makes a view of itself."""
    space, _, name = func._schema.name.partition("::")
    other = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}.intersection(func.tags)
    if space != "aten" or not name.endswith("_") or other:
        return None
    packet = getattr(_aten, name.removesuffix("_"), None)
    return getattr(packet, func._overloadname, None)
