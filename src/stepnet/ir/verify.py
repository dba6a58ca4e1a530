"""Rules that hold between passes. Tests verify every graph and plan they make; of users', those from disk.

joint    from capture: parameters to results and gradients
body     a forward or a backward body: one step
plan     a body cut by fission
adopted  a plan whose executor moved ops into its scans
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from stepnet.errors import GraphError

from .graph import Graph, Node, Value
from .op_rules import broken_op
from .ops import OPS, VIEWS, Stage, is_cheap
from .plan import LoopPlan, Plan, Region

GraphStage = Literal["joint", "body", "plan", "adopted"]
MADE_BY_FISSION = frozenset({"shift", "spread"})
_PER_ROW = ("row", "sequence")


def verify(thing: Graph | LoopPlan | Plan, stage: GraphStage) -> None:
    """Check a graph, or a loop cut into regions, or a whole plan.

    Raises:
        GraphError: names every broken rule, with the node and where the user wrote it.

    >>> from .graph import Value
    >>> x, y = Value("x", "row", (3,), "float32"), Value("y", "row", (4,), "float32")
    >>> verify(Graph("g", ("x",), (Node("tanh", ("x",), ("y",)),), ("y",), {"x": x, "y": y}), "body")
    Traceback (most recent call last):
    stepnet.errors.GraphError: graph 'g' breaks a rule of stage 'body'
      got:      y = tanh(x): gives shape [4] from [3], expected [3]
    """
    if isinstance(thing, Graph):
        broken = list(_graph(thing))
    elif isinstance(thing, LoopPlan):
        broken = [*_graph(thing.body), *_loop(thing, stage)]
    else:
        loops = [loop for loop in (thing.forward, thing.backward, thing.again) if loop is not None]
        broken = [rule for loop in loops for rule in (*_graph(loop.body), *_loop(loop, stage))]
        broken += _plan(thing)
    if broken:
        name = thing.body.name if isinstance(thing, LoopPlan) else thing.name
        raise GraphError(f"graph '{name}' breaks a rule of stage '{stage}'", got="; ".join(broken))


def _text(node: Node) -> str:
    line = f" ({node.line})" if node.line else ""
    return f"{', '.join(n or '_' for n in node.outputs)} = {node.op}({', '.join(node.inputs)}){line}"


def _graph(graph: Graph) -> Iterator[str]:
    values = graph.values
    for name, value in values.items():
        if value.name != name:
            yield f"value '{value.name}' is declared as '{name}'"
        if any(size < 0 for size in value.shape):
            yield f"value '{name}' has shape {list(value.shape)}"
    made: set[str] = set()
    for name in graph.parameters:
        if name in made:
            yield f"parameter '{name}' is there twice"
        if name not in values:
            yield f"parameter '{name}' is not declared"
        made.add(name)
    for node in graph.nodes:
        text = _text(node)
        yield from (f"{text}: {rule}" for rule in _node(node, made, values))
        made |= {name for name in node.outputs if name}
    for name in graph.results:
        if name not in made:
            yield f"result '{name}' is not made"


def _node(node: Node, made: AbstractSet[str], values: Mapping[str, Value]) -> Iterator[str]:
    """A node behind those that made `made`."""
    unmade = [name for name in node.inputs if name not in made]
    outputs = [name for name in node.outputs if name]
    yield from (f"reads '{name}' before it is made" for name in unmade)
    for at, name in enumerate(outputs):
        if name in made or name in outputs[:at]:
            yield f"'{name}' is made twice"
        if name not in values:
            yield f"'{name}' is not declared"
    op = OPS.get(node.op)
    if op is None:
        yield f"'{node.op}' is not in the list of ops"
    elif node.op in MADE_BY_FISSION:
        yield f"only fission makes '{node.op}'"
    elif op.arity not in (-1, len(node.inputs)):
        yield f"takes {op.arity} inputs, not {len(node.inputs)}"
    elif not outputs or (op.stage is not Stage.OPAQUE and len(node.outputs) != 1):
        yield f"gives {len(node.outputs)} results"
    elif not unmade and all(name in values for name in (*node.inputs, *outputs)):
        yield from broken_op(node, [values[name] for name in node.inputs], [values[name] for name in outputs])


def _loop(loop: LoopPlan, stage: GraphStage) -> Iterator[str]:
    body = loop.body
    yield from _carries(loop)
    yield from _order(loop, stage)
    placed: dict[tuple[str, ...], int] = {}
    for region in loop.regions:
        for node in region.nodes:
            placed[node.outputs] = placed.get(node.outputs, 0) + 1
    for node in body.nodes:
        count = placed.pop(node.outputs, 0)
        if count != 1:
            yield f"{_text(node)}: is in {count} regions"
    moved = {c.parameter for c in loop.carries}
    for region in loop.regions:
        for node in region.nodes:
            moves = node.op in MADE_BY_FISSION and (node.outputs[0] in moved or node.op == "spread")
            if node.outputs in placed and not moves:
                yield f"{_text(node)}: is in a region, but not in the body"
    yield from _reads(loop)
    yield from _cycles(loop, stage)
    made = {name for region in loop.regions for name in region.made}
    made |= {*body.parameters} | {c.parameter for c in loop.carries}
    for name in loop.wanted:
        if name not in made:
            yield f"wanted '{name}' is not made"


def _carries(loop: LoopPlan) -> Iterator[str]:
    body, seen = loop.body, set()
    for carry in loop.carries:
        if carry.parameter in seen:
            yield f"two carries end at '{carry.parameter}'"
        seen.add(carry.parameter)
        if carry.parameter not in body.parameters:
            yield f"carry '{carry.parameter}' is no parameter of the body"
            continue
        if carry.result not in body.values:
            yield f"carry '{carry.parameter}' comes from '{carry.result}', which is not declared"
            continue
        a, b = body.values[carry.parameter], body.values[carry.result]
        if (a.shape, a.dtype, a.kind) != (b.shape, b.dtype, b.kind) or a.kind not in ("row", "sequence"):
            yield (
                f"carry '{a.name}' is {a.kind}{list(a.shape)} {a.dtype}, "
                f"but comes from {b.kind}{list(b.shape)} {b.dtype}"
            )
    turned = [c for region in loop.regions for c in region.carries]
    for region in loop.regions:
        if region.carries and region.kind != "scan":
            yield f"a {region.kind} carries {', '.join(c.parameter for c in region.carries)}"
        if not set(region.linear) <= {c.parameter for c in region.carries}:
            yield f"linear {list(region.linear)} are no carries of their scan"
    for carry in turned:
        if carry not in loop.carries:
            yield f"a scan carries '{carry.parameter}', which the loop does not"
        if turned.count(carry) > 1:
            yield f"'{carry.parameter}' turns in two scans"


def _order(loop: LoopPlan, stage: GraphStage) -> Iterator[str]:
    kinds = [region.kind for region in loop.regions]
    if "prologue" in kinds[1:]:
        yield "a prologue is not the first region"
    if "epilogue" in kinds[:-1]:
        yield "an epilogue is not the last region"
    for region in loop.regions:
        for node in region.nodes:
            if node.op not in OPS:
                continue
            found = {loop.body.values[n].kind for n in node.outputs if n in loop.body.values}
            joins = OPS[node.op].stage is Stage.ROWS
            fits = {
                "sequences": found <= {"sequence"} or (joins and found <= {"sum"}),
                "prologue": found <= {"shared"},
                "epilogue": found <= {"sum"} and not joins,
                "map": found <= {"row"} or joins,
                "scan": found <= {"row"}
                or joins
                or (found == {"sequence"} and node.op in VIEWS)
                or (found == {"shared"} and node.op == "add" and stage == "adopted"),
            }[region.kind]
            if not fits:
                yield f"{_text(node)}: makes a {' and a '.join(sorted(found))} value in a {region.kind}"
            over = "sequence" if region.kind == "sequences" else "row"  # what there is one table row of
            others = {loop.body.values[n].kind for n in node.inputs if n in loop.body.values} - {over}
            if fits and joins and others:
                yield f"{_text(node)}: adds up {' and '.join(sorted(others))} values in a {region.kind}"


def _reads(loop: LoopPlan) -> Iterator[str]:
    """Everything a region reads is a parameter, or made before: in the region or in an earlier one."""
    carried = {c.parameter for c in loop.carries if loop.body.values[c.parameter].kind == "row"}
    at_hand = {name for name in loop.body.parameters if name not in carried}
    for region in loop.regions:
        turning = {c.parameter for c in region.carries}
        at_hand |= turning
        for node in region.nodes:
            for name in node.inputs:
                if name not in at_hand:
                    yield f"{_text(node)}: the {region.kind} reads '{name}' of a later region"
            at_hand.update(node.outputs)
        for carry in region.carries:
            if carry.result not in at_hand:
                yield f"the scan of '{carry.parameter}' turns on '{carry.result}' of a later region"
    turned = {c.parameter for region in loop.regions for c in region.carries}
    for carry in loop.carries:
        if carry.parameter not in turned and carry.result not in at_hand and carry.parameter != carry.result:
            yield f"the last '{carry.result}' is asked for, and not made"


def _cycles(loop: LoopPlan, stage: GraphStage) -> Iterator[str]:
    """Scans hold exactly what lies on a cycle, besides cheap ops that were moved to it."""
    after, bit = _followers(loop)
    for region in loop.regions:
        for node in region.nodes:
            turning = any(after.get(n, 0) & bit[n] for n in node.outputs if n)
            if region.kind != "scan" and turning and node.op not in MADE_BY_FISSION:
                yield f"{_text(node)}: lies on a cycle, but in a {region.kind}"
            between = node.op == "matmul" and _is_between(region, node, after, bit)
            if region.kind == "scan" and not (turning or between or _movable(loop, node, stage)):
                yield f"{_text(node)}: lies on no cycle, but in a scan"
    cycles: dict[int, tuple[str, int]] = {}  # by what follows from one: a value on it, its region
    for at, region in enumerate(loop.regions):
        for name in region.made:
            if after.get(name, 0) & bit[name]:
                other, there = cycles.setdefault(after[name], (name, at))
                if there != at:
                    yield f"'{other}' and '{name}' lie on one cycle, but in two regions"


def _movable(loop: LoopPlan, node: Node, stage: GraphStage) -> bool:
    shared = any(loop.body.values[n].kind == "shared" for n in node.inputs)
    lines = node.op == "matmul" and len(loop.body.values[node.inputs[0]].shape) > 1
    if is_cheap(node.op) or node.op in VIEWS or lines or (node.op == "matmul" and not shared):
        return True
    moved = stage == "adopted" and OPS[node.op].stage in (Stage.SHAPE, Stage.MATMUL)
    return node.op in ("sum_rows", "sum_steps") or moved


def _is_between(region: Region, node: Node, after: Mapping[str, int], bit: Mapping[str, int]) -> bool:
    """Whether a node follows from a cycle of its scan, and others of the scan wait for it."""
    follows = any(after[carry.parameter] & bit[node.output] for carry in region.carries)
    return follows and any(node.output in other.inputs for other in region.nodes)


def _followers(loop: LoopPlan) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """For each value everything that depends on it, through carries too, as bits; and the bit of each."""
    next_to: dict[str, set[str]] = {name: set() for name in loop.body.values}
    for node in loop.body.nodes:
        for name in node.inputs:
            next_to.setdefault(name, set()).update(n for n in node.outputs if n)
    for carry in loop.carries:
        if carry.parameter != carry.result:
            next_to.setdefault(carry.result, set()).add(carry.parameter)
    bit: defaultdict[str, int] = defaultdict(lambda: 1 << len(bit))
    after, known = dict.fromkeys(next_to, 0), None
    while after != known:
        known = dict(after)
        for name in reversed(next_to):
            for follower in next_to[name]:
                after[name] |= bit[follower] | after.get(follower, 0)
    return after, bit


def _plan(plan: Plan) -> Iterator[str]:
    """Forward and backward loops fit together."""
    forward, backward = plan.forward.body, plan.backward.body if plan.backward else None
    for name in (*plan.x, *plan.states, *plan.weights):
        if name not in forward.parameters:
            yield f"input '{name}' is no parameter of the forward body"
    for name in (*plan.y, *plan.new_states):
        if name not in forward.results:
            yield f"'{name}' is no result of the forward body"
    if tuple(c.parameter for c in plan.forward.carries) != plan.states:
        yield "the carries of the forward loop are not its states"
    if len(plan.tangents) != len(plan.y) + len(plan.states):
        yield "there is not one tangent for each result"
    if backward is None:
        if plan.kept or any(plan.tangents) or any(plan.gradients):
            yield "values are kept for a backward loop that is not there"
        return
    yield from _kept(plan, backward)
    yield from _gradients(plan, backward)


def _kept(plan: Plan, backward: Graph) -> Iterator[str]:
    """What backward reads is given."""
    forward = plan.forward.body
    shown = {*plan.forward.wanted, *plan.x, *plan.states}
    for name in plan.kept:
        if name in forward.values and forward.values[name].kind not in _PER_ROW:
            yield f"'{name}' is kept for each row, but is {forward.values[name].kind}"
        if name not in backward.parameters:
            yield f"'{name}' is kept, but no parameter of the backward body"
        if name not in shown:
            yield f"'{name}' is kept, but the forward loop does not give it"
    at_hand = {*plan.kept, *plan.weights, *(t for t in plan.tangents if t)}
    for name in backward.parameters:
        if name not in at_hand:
            yield f"the backward body reads '{name}', which nothing gives"
    if not set(plan.shifted) <= set(plan.kept) & set(plan.states):
        yield "shifted values are not kept states"


def _gradients(plan: Plan, backward: Graph) -> Iterator[str]:
    """Each is given, in the shape of what it is a gradient of."""
    forward = plan.forward.body
    carried = {c.result for c in plan.backward.carries} if plan.backward else set()
    wanted = set(plan.backward.wanted) if plan.backward else set()
    for source, name in zip((*plan.x, *plan.states, *plan.weights), plan.gradients, strict=False):
        if name is None or source not in forward.values:
            continue
        if name not in wanted | carried:
            yield f"the gradient '{name}' of '{source}' is not given"
        elif backward.values[name].size != forward.values[source].size:
            yield f"the gradient '{name}' of '{source}' has another size"
        elif (backward.values[name].kind in _PER_ROW) != (forward.values[source].kind in _PER_ROW):
            yield f"the gradient '{name}' of '{source}' is a {backward.values[name].kind} value"
