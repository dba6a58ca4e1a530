"""A compiled step as bytes, and back.

Only what the trace gave is kept, as JSON: the joint graph, the numbers that the step made of Python values,
the structure of y. All else follows from it and is made again. What is read is input from outside: every
name, op, attribute and dtype is held against the closed list it comes from, then the graph against the rules
of the IR. The engine then holds the plan against the plain loop, as it does with a new one. Steps with calls
of torch that no rule knows are compiled in each process: they are few, and no file is to say what is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from stepnet.data.dtypes import dtype_name, dtype_of
from stepnet.data.tree import LEAF, Spec
from stepnet.errors import GraphError, Unsupported
from stepnet.ir.graph import ITEM_SIZE, Graph, Node, Value
from stepnet.ir.ops import OPS, RANDOM, SCATTERS
from stepnet.ir.verify import verify

from .passes.rowwise_probe import ROWS
from .pipeline import Compiled, Signature, finish, parameter_names
from .rules.normal import Joint

_MOST_NUMBERS = 1 << 16  # in tensors that a step makes of Python values
_MOST_NODES = 1 << 13
_MOST_BYTES = 1 << 28  # of all values for a few rows, or 16 times what the step is given
_LARGEST = (1 << 63) - 1
_TEXT = 1000  # the longest name or line
# What wrong bytes raise where they are read or made into a plan.
_WRONG = (GraphError, ValueError, RecursionError, RuntimeError, OverflowError)
_KINDS = ("row", "shared", "sum")
TREES: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict, "None": type(None)}
_ATTRS: dict[str, dict[str, str]] = {
    **{op: {"dims": "places"} for op in ("sum", "amax", "amin", "permute", "flip")},
    **{op: {"dim": "place or none"} for op in ("argmax", "argmin")},
    **{op: {"dim": "place"} for op in ("cat", "gather", *SCATTERS)},
    **{op: {"dim": "place"} for op in ("cumsum", "cumprod", "logcumsumexp", "cumargmax", "cumargmin")},
    "argsort": {"dim": "place", "descending": "choice", "stable": "choice"},
    "topk": {"dim": "place", "largest": "choice", "sorted": "choice"},
    **{op: {"check": "choice"} for op in ("lu", "cholesky")},
    "lu_solve": {"transposed": "choice"},
    "solve_triangular": {"upper": "choice", "unit": "choice"},
    "slice": {"dim": "place", "start": "place", "end": "place", "step": "place"},
    "matmul_tn": {"batch": "place"},
    "embed_grad": {"padding": "whole"},
    "full": {"value": "number"},
    "iota": {"start": "number", "step": "number"},
}
_MADE = re.compile(r"v[0-9]+")
_SUM = re.compile(r"(_s[0-9]+)+$")  # what reassociate appends to a name
_CONSTANT = re.compile(r"const_[A-Za-z0-9_]{1,100}")

Weights = Sequence[tuple[int, Tensor, bool]]


def dump(compiled: Compiled, signature: Signature, weights: Weights) -> bytes | None:
    """The bytes; None for what `load` would not read, such as y in structures of the user's own classes."""
    joint = compiled.joint
    graph = joint.graph
    if sum(t.numel() for t in compiled.constants.values()) > _MOST_NUMBERS:
        return None
    try:
        found = {
            "parameters": graph.parameters,
            "values": [[v.name, v.kind, v.shape, v.dtype] for v in graph.values.values()],
            "nodes": [[n.op, n.inputs, n.outputs, dict(n.attrs), n.line] for n in graph.nodes],
            "results": joint.results,
            "constants": {name: t.flatten().tolist() for name, t in compiled.constants.items()},
            "y": _tree_out(compiled.y_spec),
            "flow": joint.flow,
            "requires": joint.requires,
            "paired": joint.paired,
            "as_numbers": joint.as_numbers,
            "by_states": joint.by_states,
        }
        data = json.dumps(found, separators=(",", ":")).encode()
        _read(data, signature, weights)
        return data
    except (Unsupported, TypeError, ValueError):  # a complex number, an object, a key that is no text
        return None


def load(data: bytes, signature: Signature, weights: Weights) -> Compiled:
    """The compiled step; the arguments are those that `compile_loop` would be given.

    Raises:
        Unsupported: the bytes hold something else.
    """
    joint, y_spec = _read(data, signature, weights)
    try:
        compiled = finish(joint, signature, weights, y_spec)
        for plan in (compiled.fused, compiled.hoisted):
            verify(plan, "plan")
        return compiled
    except _WRONG as error:
        raise Unsupported(str(error)) from error


def _read(data: bytes, signature: Signature, weights: Weights) -> tuple[Joint, Spec]:
    """The joint graph and the structure of y.

    Raises:
        Unsupported: the bytes hold something else.
    """
    try:
        found = json.loads(data)
        fields = (
            "parameters", "values", "nodes", "results", "constants", "y", "flow", "requires", "paired",
            "as_numbers", "by_states",
        )  # fmt: skip
        _check(isinstance(found, dict) and tuple(found) == fields, "its fields")
        y_spec = _tree(found["y"])
        outputs = y_spec.count + len(signature.states)
        joint = _joint(found, signature, weights, outputs)
        inputs = len(signature.x) + len(signature.states) + len(weights)
        training = any(grad for _, _, grad in weights) or any(e.grad for e in signature.x)
        training |= any(signature.boots)
        for rows in (joint.flow, joint.requires):
            _check(_flow_fits(rows, outputs, inputs if training else 0), "how gradients flow")
        _check(_flow_covers(joint, outputs), "how gradients flow")
        _check(_pairs_fit(joint, outputs), "which results are complex")
        _check(_numbers_fit(joint, range(inputs - len(weights), inputs)), "what it reads as numbers")
        _check(all(i < inputs for places in joint.by_states for i in places), "by what it asks for gradients")
        tangents = {name for name in joint.graph.parameters if name.startswith("d_")}
        _check(training or len(joint.results) == outputs, "its gradients")
        forward = joint.graph.needed([name for name in joint.results[:outputs] if name is not None])
        _check(all(tangents.isdisjoint(node.inputs) for node in forward), "what the forward loop reads")
        verify(joint.graph, "joint")
        return joint, y_spec
    except _WRONG as error:
        raise Unsupported(str(error)) from error


def _check(right: bool, what: str) -> None:
    if not right:
        raise Unsupported(f"{what} cannot be what a step was compiled to")


def _joint(found: dict[str, Any], signature: Signature, weights: Weights, outputs: int) -> Joint:
    constants = found["constants"]
    _check(isinstance(constants, dict) and all(_CONSTANT.fullmatch(n) for n in constants), "its constants")
    inputs = parameter_names(signature, weights)
    parameters = tuple(_texts(found["parameters"]))
    tangents = parameters[len(inputs) : len(parameters) - len(constants)]
    _check(parameters == (*inputs, *tangents, *constants), "its inputs")
    numbers = [int(t[2:]) for t in tangents if re.fullmatch(r"d_[0-9]{1,6}", t)]
    _check(len(numbers) == len(tangents) and numbers == sorted(set(numbers)), "its tangents")
    results = tuple(None if n is None else _text(n) for n in _list(found["results"]))
    # gradients, all of them None where no result carries any, or none
    many = len(results) == outputs + len(inputs) or (len(results) == outputs and not numbers)
    _check(many, "how many results there are")
    _check(not numbers or numbers[-1] < outputs, "its tangents")
    values = dict(_value(entry, parameters) for entry in _list(found["values"]))
    _check(len(values) == len(found["values"]), "its values")
    nodes = tuple(_node(entry, values) for entry in _list(found["nodes"]))
    _check(len(nodes) <= _MOST_NODES, "how many ops there are")
    _check(set(values) == {*parameters, *(n for node in nodes for n in node.outputs if n)}, "its values")
    _ends_fit(values, signature, weights, (*tangents, *constants), results[:outputs], results[outputs:])
    _sizes_fit(values, parameters)
    live = tuple(name for name in results if name is not None)
    graph = Graph("step", parameters, nodes, live, values)
    flow, requires, by_states = (
        tuple(tuple(_whole(item, 0) for item in _list(entry)) for entry in _list(found[field]))
        for field in ("flow", "requires", "by_states")
    )
    made = {name: _tensor(values[name], constants[name]) for name in constants}
    paired = tuple(_whole(item, 0) for item in _list(found["paired"]))
    as_numbers = tuple(_whole(item, 0) for item in _list(found["as_numbers"]))
    return Joint(graph, results, made, flow, requires, paired, as_numbers, by_states)


def _numbers_fit(joint: Joint, weights: range) -> bool:
    """Whether those are weights of one element, in order."""
    places, values, names = joint.as_numbers, joint.graph.values, joint.graph.parameters
    right = list(places) == sorted(set(places)) and all(k in weights for k in places)
    return right and all(prod(values[names[k]].shape) == 1 for k in places)


def _flow_fits(flow: Sequence[Sequence[int]], outputs: int, inputs: int) -> bool:
    """One row a result, of inputs in order; none where no gradient is wanted."""
    right = all(list(row) == sorted(set(row)) and all(i < inputs for i in row) for row in flow)
    return right and len(flow) == outputs


def _flow_covers(joint: Joint, outputs: int) -> bool:
    """Whether a gradient flows wherever the graph computes one, and what one flows from carries one."""
    of = {name: {int(name[2:])} for name in joint.graph.parameters if name.startswith("d_")}
    for node in joint.graph.nodes:
        found = set[int]().union(*(of.get(name, ()) for name in node.inputs))
        of |= dict.fromkeys(node.outputs, found)
    ways = [(k, i) for k, name in enumerate(joint.results[outputs:]) if name for i in of.get(name, ())]
    pairs = zip(joint.flow, joint.requires, strict=True)
    return all(k in joint.flow[i] for k, i in ways) and all(set(a) <= set(b) for a, b in pairs)


def _pairs_fit(joint: Joint, outputs: int) -> bool:
    """Results in order, each of pairs of real numbers."""
    paired = joint.paired
    if list(paired) != sorted(set(paired)) or any(i >= outputs for i in paired):
        return False
    values = [joint.graph.values.get(joint.results[i] or "") for i in paired]
    return all(v is not None and v.shape[-1:] == (2,) and v.dtype in ("float32", "float64") for v in values)


def _in_reals(shape: Sequence[int], dtype: torch.dtype) -> tuple[tuple[int, ...], str]:
    """The shape and the dtype of a tensor as a graph has it: complex numbers are pairs."""
    return (*shape, *((2,) if dtype.is_complex else ())), dtype_name(dtype.to_real())


def _ends_fit(
    values: dict[str, Value], signature: Signature, weights: Weights, others: Sequence[str],
    outputs: Sequence[str | None], gradients: Sequence[str | None],
) -> None:  # fmt: skip
    """Inputs are what the step is given now; a new state is like the state, a tangent like its result, a
    gradient like its input."""

    def seen(name: str | None) -> tuple[Any, ...] | None:
        value = values.get(name or "")
        return None if value is None else (value.kind == "row", value.shape, value.dtype)

    inputs = parameter_names(signature, weights)
    expected = [(True, *_in_reals(e.shape, e.dtype)) for e in (*signature.x, *signature.states)]
    expected += [(False, *_in_reals(t.shape, t.dtype)) for _, t, _ in weights]
    for name, wanted in zip(inputs, expected, strict=True):
        _check(seen(name) == wanted and values[name].kind != "sum", f"'{name}'")
    for name, result in zip(
        signature.state_names, outputs[len(outputs) - len(signature.states) :], strict=True
    ):
        _check(seen(result) == seen(name), f"the new '{name}'")
    for name, gradient in zip(inputs, gradients, strict=len(gradients) > 0):
        _check(gradient is None or seen(gradient) == seen(name), f"the gradient of '{name}'")
    for name in others:
        like = outputs[int(name[2:])] if name.startswith("d_") else name
        _check(seen(name) == seen(like), f"'{name}'")
        _check(values[name].kind == ("row" if like is not name else "shared"), f"'{name}'")


def _sizes_fit(values: dict[str, Value], parameters: Sequence[str]) -> None:
    """What a run takes is bounded by what it is given; products of sizes stay numbers of C."""
    total = sum(value.bytes * (ROWS + 1 if value.kind == "row" else 1) for value in values.values())
    given = sum(values[name].bytes for name in parameters)
    _check(total <= max(_MOST_BYTES, 16 * given), "the size of its values")


# ---- one thing after the other


def _list(found: Any) -> list[Any]:
    _check(isinstance(found, list), "a list")
    return found


def _text(found: Any) -> str:
    _check(isinstance(found, str) and len(found) <= _TEXT, "a name")
    return found


def _texts(found: Any) -> list[str]:
    return [_text(item) for item in _list(found)]


def _whole(found: Any, least: int = -_LARGEST) -> int:
    _check(type(found) is int and least <= found <= _LARGEST, "a whole number")
    return found


def _number(found: Any) -> bool | int | float:
    _check(type(found) in (bool, float) or (type(found) is int and abs(found) <= _LARGEST), "a number")
    return found


def _value(entry: Any, parameters: Sequence[str]) -> tuple[str, Value]:
    _check(isinstance(entry, list) and len(entry) == 4, "a value")
    name, kind, shape, dtype = entry
    base = _SUM.sub("", _text(name))
    _check(
        name in parameters or base in parameters or _MADE.fullmatch(base) is not None, "the name of a value"
    )
    _check(_text(kind) in _KINDS and _text(dtype) in ITEM_SIZE, f"'{name}'")
    return name, Value(name, kind, tuple(_whole(size, 0) for size in _list(shape)), dtype)


def _node(entry: Any, values: dict[str, Value]) -> Node:
    _check(isinstance(entry, list) and len(entry) == 5, "an op")
    op, inputs, outputs, attrs, line = entry
    _check(isinstance(op, str) and op in OPS and op not in (*RANDOM, "opaque"), "an op")
    kinds = _ATTRS.get(op, {})
    if op == "cast" and attrs == {"written": 1}:
        kinds = {"written": "place"}
    _check(isinstance(attrs, dict) and tuple(attrs) == tuple(kinds), f"the attributes of '{op}'")
    node = Node(
        op,
        tuple(_texts(inputs)),
        tuple(_texts(outputs)),
        tuple((key, _attribute(attrs[key], kind)) for key, kind in kinds.items()),
        None if line is None else _text(line),
    )
    _check(all(name in values for name in (*node.inputs, *filter(None, node.outputs))), f"what '{op}' reads")
    return node


def _attribute(found: Any, kind: str) -> Any:
    if kind == "place":
        return _whole(found, 0)
    if kind == "places":
        return tuple(_whole(item, 0) for item in _list(found))
    if kind == "place or none":
        return None if found is None else _whole(found, 0)
    if kind == "whole":
        return _whole(found)
    if kind == "number":
        return _number(found)
    _check(isinstance(found, bool), "a choice")
    return found


def _tensor(value: Value, numbers: Any) -> Tensor:
    numbers = [_number(item) for item in _list(numbers)]
    _check(len(numbers) == value.size and len(numbers) <= _MOST_NUMBERS, "its constants")
    return torch.tensor(numbers, dtype=dtype_of(value.dtype), device="cpu").reshape(value.shape)


def _tree_out(spec: Spec) -> Any:
    if spec.kind is None:
        return 0
    name = next((name for name, kind in TREES.items() if kind is spec.kind), None)
    if name is None or any(type(key) not in (str, int, float, bool) for key in spec.keys):
        raise Unsupported("y holds structures of other classes")
    return [name, list(spec.keys), [_tree_out(child) for child in spec.children]]


def _tree(found: Any) -> Spec:
    if found == 0:
        return LEAF
    _check(isinstance(found, list) and len(found) == 3 and _text(found[0]) in TREES, "the structure of y")
    kind, keys, children = TREES[found[0]], tuple(_list(found[1])), _list(found[2])
    if kind is dict:
        right = all(type(key) is str or _number(key) == key for key in keys) and len(set(keys)) == len(keys)
    else:
        right = keys == tuple(range(len(keys))) and (kind is not type(None) or not keys)
    _check(right and len(keys) == len(children), "the structure of y")
    return Spec(kind, keys, tuple(_tree(child) for child in children))
