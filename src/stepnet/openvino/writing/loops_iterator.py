"""A TensorIterator that was built by hand: its ports as they are, its body traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import Node as FxNode

from stepnet.api import replaced
from stepnet.compiler.capture import Replaced
from stepnet.iterator.ports import OutputPort, Port

from .builder import In, Out, To
from .capture_iterator import answered, loop_call
from .loops_step import nested, program, run_in
from .ops import AtenNet, rule
from .ops_emit import Emit


@rule("stepnet.iterator")
def _iterator(
    b: AtenNet, number: int, inputs: Sequence[FxNode], weights: Sequence[FxNode]
) -> tuple[Out, ...]:
    call = loop_call(number)
    fed = dict(zip(call.loop.inputs, inputs, strict=True))
    free = [i for i, node in enumerate(weights) if not b.is_constant(node)]
    loose = [call.weights[i] for i in free]
    examples = [*call.parts, *loose]
    count = len(call.parts)

    def run(*leaves: Tensor) -> Sequence[Tensor]:
        swap = {id(t): leaf for t, leaf in zip(loose, leaves[count:], strict=True)}
        refuse = nested(call.where)
        with Replaced(swap), replaced(refuse), answered(refuse):
            return call.body(*leaves[:count])

    shapes = [_part(b.shape(fed[port.external]), port) for port in call.ports]
    shapes += [b.shape(weights[i]) for i in free]
    dynamic = [{d: False for d, s in enumerate(shape) if not isinstance(s, int)} for shape in shapes]
    owner = call.loop.body if isinstance(call.loop.body, nn.Module) else None
    made = program(run, owner, [e.detach() for e in examples], dynamic, call.where)
    body = b.emit.net.body(f"{call.body.name} body")
    inner = AtenNet(Emit(body), call.where)
    names = [*call.body.parameters, *(f"shared_{i}" for i in range(len(free)))]
    parameters = [
        body.parameter(name, example.dtype, [s if isinstance(s, int) else -1 for s in shape])
        for name, example, shape in zip(names, examples, shapes, strict=True)
    ]
    carried = {edge.to_parameter for edge in call.loop.back_edges}
    inner.late.update(n for n, name in zip(made.inputs, names, strict=True) if name in carried)
    out = run_in(inner, made, parameters)
    results = {key: body.result(value) for key, value in zip(call.body.keys, out, strict=True)}
    ins = [
        In(b.out(fed[port.external]), parameter, **_cut(port, len(b.shape(fed[port.external]))))
        for port, parameter in zip(call.ports, parameters, strict=False)
    ]
    ins += [In(b.out(weights[i]), p) for i, p in zip(free, parameters[count:], strict=True)]
    ranks = {key: node.meta["val"].dim() for key, node in zip(call.body.keys, made.outputs, strict=True)}
    outs = [
        To(results[port.internal], **_cut(port, ranks[port.internal]))
        for port in call.loop.port_map
        if isinstance(port, OutputPort)
    ]
    by_name = dict(zip(names, parameters, strict=True))
    edges = [(results[edge.from_result], by_name[edge.to_parameter]) for edge in call.loop.back_edges]
    return b.emit.net.tensor_iterator(body, ins, outs, edges, name=call.body.name)


def _part(shape: list[Any], port: Port) -> list[Any]:
    """The shape of a slice."""
    if port.axis is not None:
        shape[port.axis] = port.part_size
    return shape


def _cut(port: Port, rank: int) -> dict[str, Any]:
    if port.axis is None:
        return {}
    return {"axis": port.axis % rank, "start": port.start, "end": port.end, "stride": port.stride}
