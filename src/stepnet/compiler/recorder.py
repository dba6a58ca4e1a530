"""What a function of fake tensors calls in torch, recorded as a graph: one node for each aten call.

It records what torch's own tracer records, in half the time, and knows only the plain case: every tensor is
an input or comes from a recorded call, and no call writes into a tensor but a copy over the whole of it.
Anything else is `Unusual`, and left to torch's.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.fx import Graph, Node, Tracer
from torch.utils._python_dispatch import TorchDispatchMode


class Unusual(Exception):
    """A call that this recorder does not know how to record."""


class Writes(Unusual):
    """A call that writes into a tensor."""


def recorded(
    run: Callable[..., Sequence[Tensor | None]],
    inputs: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Graph:
    """The graph of `run(*inputs)`. The value of each node, a fake tensor, is its `meta["val"]`.

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
    return graph


class _Recorder(TorchDispatchMode):
    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.decompositions = decompositions
        self.tracer = Tracer()
        self.tracer.graph = Graph()
        self.nodes: dict[int, Node] = {}  # by the id of a tensor, which the node's meta keeps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise Unusual(str(func))
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        self._check(func)
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
            self.nodes[id(result)] = node
        elif isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                self.note(self.tracer.create_node("call_function", operator.getitem, (node, i), {}), part)
        elif result is not None:
            raise Unusual(f"{node.target} gives {type(result).__name__}")

    def _check(self, func: OpOverload) -> None:
        if func._schema.is_mutable and func is not torch.ops.aten.copy_.default:
            raise Writes(str(func))
        if func in _OF_CONSTANTS or _DEPENDS_ON_VALUES.intersection(func.tags):
            raise Unusual(str(func))


_OF_CONSTANTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_DEPENDS_ON_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    """Whether autograd would have called other ops in the place of this one."""
    return func.has_kernel_for_dispatch_key(
        DispatchKey.CompositeImplicitAutograd
    ) and not func.has_kernel_for_dispatch_key(DispatchKey.CPU)
