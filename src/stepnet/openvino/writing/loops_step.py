"""A step that cannot be cut, whole in the body of a loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node as FxNode

from stepnet.api import replaced
from stepnet.compiler.capture import Replaced
from stepnet.data.tree import flatten
from stepnet.errors import IRError
from stepnet.front.step import StepBody

from .builder import In, Out, To
from .capture_trace import Call, lowered, traced
from .loops import Steps
from .ops import AtenNet, is_known
from .ops_emit import Emit


@dataclass(frozen=True)
class Program:
    """A traced function: its inputs and outputs as nodes, and the values of those that are constants."""

    exported: ExportedProgram
    inputs: tuple[FxNode, ...]
    constants: dict[FxNode, Tensor]
    nodes: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]


def program(
    run: Callable[..., Sequence[Tensor]], owner: Any, leaves: Sequence[Tensor],
    dynamic: Sequence[dict[int, bool]], where: str,
) -> Program:  # fmt: skip
    """A function of tensors as a graph of calls that can be written.

    Raises:
        IRError: it cannot be traced.
    """
    exported = lowered(traced(run, owner, leaves, dynamic, where), is_known)
    signature = exported.graph_signature
    values = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted = signature.inputs_to_lifted_tensor_constants
    constants = {}
    nodes = tuple(exported.graph.nodes)
    for node in nodes:
        if node.op != "placeholder":
            continue
        if node.name in values:
            target = values[node.name]
            found = exported.state_dict.get(target)
            constants[node] = exported.constants[target] if found is None else found
        elif node.name in lifted:
            constants[node] = exported.constants[lifted[node.name]]
    changed = list(signature.buffers_to_mutate.values())
    if changed:
        raise IRError(
            f"{where} cannot be written: it changes buffers of a module as it runs",
            got=", ".join(changed),
            remedy="module.eval() first",
        )
    by_name = {node.name: node for node in nodes}
    inputs = [by_name[str(name)] for name in signature.user_inputs]
    outputs = [by_name[str(name)] for name in signature.user_outputs]
    plain = tuple(n for n in nodes if n.op == "call_function")
    return Program(exported, tuple(inputs), constants, plain, tuple(outputs))


def run_in(net: AtenNet, made: Program, given: Sequence[Out]) -> list[Out]:
    """The layers of a program in a net; its results."""
    for node, value in made.constants.items():
        net.give(node, value.detach())
    for node, value in zip(made.inputs, given, strict=True):
        net.give(node, value)
    net.run(made.nodes, made.outputs)
    return [net.out(node) for node in made.outputs]


def write_step(
    b: AtenNet, call: Call, where: str, x: Sequence[Out], states: Sequence[Out],
    nodes: tuple[Sequence[FxNode], Sequence[FxNode], Sequence[FxNode]], steps: Steps, why: str | None,
) -> tuple[list[Out], list[Out]]:  # fmt: skip
    """A TensorIterator around the whole step. As `write_plan`; `why` is what kept it from being cut.

    Raises:
        IRError: the step cannot be traced, or calls what has no layer.
    """
    x_nodes, state_nodes, weight_nodes = nodes
    free = [i for i, n in enumerate(weight_nodes) if not b.is_constant(n)]
    loose = [call.weights[i] for i in free]
    examples = [*(leaf.select(call.axis, 0) for leaf in call.x), *call.state, *loose]
    n_x, n_state = len(x), len(states)

    def run(*leaves: Tensor) -> Sequence[Tensor]:
        swap = {id(t): leaf for t, leaf in zip(loose, leaves[n_x + n_state :], strict=True)}
        body = StepBody(call.body.step, call.body.x_spec, call.body.state_spec)
        with Replaced(swap), warnings.catch_warnings(), replaced(nested(where)):
            y, new = body.call(leaves[:n_x], leaves[n_x : n_x + n_state])
        return [*flatten(y)[0], *new]

    shapes = [[s for i, s in enumerate(b.shape(n)) if i != steps.time] for n in x_nodes]
    shapes += [b.shape(n) for n in state_nodes] + [b.shape(weight_nodes[i]) for i in free]
    dynamic = [{i: False for i, s in enumerate(shape) if not isinstance(s, int)} for shape in shapes]
    owner = call.body.step if isinstance(call.body.step, nn.Module) else None
    made = program(run, owner, [e.detach() for e in examples], dynamic, where)
    body = b.emit.net.body(f"{call.body.name} body")
    inner = AtenNet(Emit(body), where)
    inner.late.update(made.inputs[n_x : n_x + n_state])
    ins: list[In] = []
    given: list[Out] = []

    def parameter(name: str, example: Tensor, shape: Sequence[Any], cut: bool) -> Out:
        sizes = [s if isinstance(s, int) else -1 for s in shape]
        if cut:
            sizes.insert(steps.time, 1)
        return body.parameter(name, example.dtype, sizes)

    for i, value in enumerate(x):
        part = parameter(call.body.x_names[i], examples[i], shapes[i], True)
        ins.append(In(value, part, **steps.cut()))
        # not a Squeeze: it shares its memory, and OpenVINO then computes the next state in it
        given.append(inner.emit.gather(part, inner.emit.scalar(0), steps.time))
    carried = []
    for i, value in enumerate(states):
        carried.append(parameter(call.body.state_names[i], examples[n_x + i], shapes[n_x + i], False))
        ins.append(In(value, carried[-1]))
    given += carried
    for k, i in enumerate(free):
        at = n_x + n_state + k
        given.append(parameter(f"shared_{k}", examples[at], shapes[at], False))
        ins.append(In(b.out(weight_nodes[i]), given[-1]))
    out = run_in(inner, made, given)
    dtypes = [node.meta["val"].dtype for node in made.outputs]
    out = [inner.emit.apart(o, dtype) for o, dtype in zip(out, dtypes, strict=True)]
    results = [body.result(o) for o in out[len(call.y) :]]
    joined = [body.result(inner.emit.unsqueeze(o, steps.time)) for o in out[: len(call.y)]]
    outs = [*(To(r, **steps.cut()) for r in joined), *(To(r) for r in results)]
    edges = list(zip(results, carried, strict=True))
    found = b.emit.net.tensor_iterator(body, ins, outs, edges, name=call.body.name)
    return list(found[: len(call.y)]), list(found[len(call.y) :])


def nested(where: str) -> Callable[..., Any]:
    """What answers for a recurrence inside a body: an error."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise IRError(
            f"{where} cannot be written: its step runs a recurrence of its own",
            got="a TensorIterator inside a TensorIterator, which OpenVINO refuses",
            remedy="move the inner recurrence in front of the outer one",
        )

    return refuse
