"""The node of a while loop in a traced module as a Loop that computes its condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from stepnet.api import replaced
from stepnet.compiler.capture import Replaced
from stepnet.data.tree import flatten, unflatten
from stepnet.errors import IRError

from .builder import In, Out, To
from .capture_iterator import answered
from .capture_while import Picked, WhileCall, refused, while_call, whiles
from .loops_step import nested, program, run_in
from .ops import AtenNet, rule
from .ops_emit import Emit

_ENDLESS = -1


@rule("stepnet.while_loop")
def _while_loop(
    b: AtenNet, number: int, state: Sequence[FxNode], weights: Sequence[FxNode], sizes: Sequence[FxNode]
) -> list[Out]:
    call = while_call(number)
    free = [i for i, node in enumerate(weights) if not b.is_constant(node)]
    loose = [call.weights[i] for i in free]
    nodes = [*state, *(weights[i] for i in free), *sizes]
    examples = [*call.first, *loose, *(torch.tensor(2) for _ in sizes)]
    count = len(state)

    def run(*leaves: Tensor, first: bool) -> list[Tensor]:
        swap = {id(t): leaf for t, leaf in zip(loose, leaves[count:], strict=False)}
        cond, body = call.functions(leaves[count + len(loose) :])
        refuse = nested(call.where)
        with Picked(), Replaced(swap), replaced(refuse), answered(refuse), whiles(refused(call.where)):
            values = list(leaves[:count])
            if not first:
                made = body(*unflatten(call.spec, values))
                values = _same(call, tuple(made) if type(made) is list else made)
            going = _condition(call, cond(*unflatten(call.spec, values)))
        return [going] if first else [going, *values]

    shapes = [b.shape(node) for node in nodes]
    dynamic = [{d: False for d, s in enumerate(shape) if not isinstance(s, int)} for shape in shapes]
    bare = [example.detach() for example in examples]
    begin = program(lambda *leaves: run(*leaves, first=True), None, bare, dynamic, call.where)
    turn = program(lambda *leaves: run(*leaves, first=False), None, bare, dynamic, call.where)
    given = [b.out(node) for node in nodes]
    (goes,) = run_in(AtenNet(b.emit, call.where), begin, given)
    body = b.emit.net.body("while_loop body")
    inner = AtenNet(Emit(body), call.where)
    parameters = [
        body.parameter(f"value_{i}", example.dtype, [s if isinstance(s, int) else -1 for s in shape])
        for i, (example, shape) in enumerate(zip(examples, shapes, strict=True))
    ]
    inner.late.update(turn.inputs[:count])
    out = run_in(inner, turn, parameters)
    new = [inner.emit.apart(o, example.dtype) for o, example in zip(out[1:], examples, strict=False)]
    results = [body.result(o) for o in new]
    condition = body.result(inner.emit.apart(out[0], torch.bool))
    ins = [In(value, parameter) for value, parameter in zip(given, parameters, strict=True)]
    edges = list(zip(results, parameters, strict=False))
    trips = _ENDLESS if call.max_steps is None else call.max_steps
    made = b.emit.net.loop(
        body, b.emit.scalar(trips), goes, ins, [To(r) for r in results], edges,
        execution_condition=condition, name="while_loop",
    )  # fmt: skip
    return list(made)


def _condition(call: WhileCall, going: Any) -> Tensor:
    if not isinstance(going, Tensor) or going.dtype != torch.bool:
        raise IRError(
            f"{call.where} cannot be written: its condition is no tensor",
            got=type(going).__name__,
            remedy="compare a loop variable, or what was computed from one",
        )
    return going.reshape(())


def _same(call: WhileCall, made: Any) -> list[Tensor]:
    leaves, _ = flatten(made)
    return [
        leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf, dtype=like.dtype)
        for leaf, like in zip(leaves, call.first, strict=True)
    ]
