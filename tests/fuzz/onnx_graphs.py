"""Random ONNX models around what repeats: cells, Scans, Loops, branches, lists, inside one another.

Values are of two forms, `rows` of [B, F] and `steps` of [T, B, F] for any T and B; a node takes those of its
graph and of the graphs around it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

F = 3
FLOAT, INT, TRUTH = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPES: dict[str, list[Any]] = {"rows": ["B", F], "steps": ["T", "B", F]}
GATES = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}  # gates, functions


class File:
    """A model being made: what all of its graphs share."""

    def __init__(self, seed: int) -> None:
        self.pick, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.opset = self.pick.choice([13, 14, 17, 18, 20, 21, 22])
        self.constants: list[TensorProto] = []
        self.inputs: list[Any] = []
        self.used = 0
        self.odd = self.pick.choice(["", "", "/", "é ", "::"])  # names are any text

    def name(self, of: str) -> str:
        self.used += 1
        return f"{self.odd}{of}_{self.used}"

    def constant(self, value: Any, kind: str = "float32") -> str:
        """A constant of the outermost graph."""
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), self.name("c")))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant(self.numbers.standard_normal(shape) * 0.5)

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name


class Graph:
    """Nodes, and the values that one more may take."""

    def __init__(self, file: File, around: Graph | None = None) -> None:
        self.file, self.pick, self.around = file, file.pick, around
        self.nodes: list[Any] = []
        self.values: dict[str, list[str]] = {"rows": [], "steps": []}
        self.depth: int = 0 if around is None else around.depth + 1

    def node(self, kind: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """A node; the names of its outputs."""
        names = [self.file.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, self.file.name("n"), **attributes))
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.node(kind, list(inputs), **attributes)[0]

    def visible(self, form: str) -> list[str]:
        return self.values[form] + ([] if self.around is None else self.around.visible(form))

    def any(self, form: str) -> str:
        """A value of this form, more often a late one."""
        found = self.values[form] or self.visible(form)
        return self.pick.choice(found[-3:] if self.pick.random() < 0.6 else self.visible(form))

    def ints(self, *values: int) -> str:
        return self.file.constant(values, "int64")

    def length(self) -> str:
        """T, as a tensor of no dimension."""
        return self.one("Gather", self.one("Shape", "x"), self.file.constant(0, "int64"))

    def grown(self, count: int) -> None:
        """So many more values."""
        for _ in range(count):
            form = "steps" if self.pick.random() < 0.5 and self.visible("steps") else "rows"
            table = {"rows": ROWS, "steps": STEPS}[form]
            deep = self.depth < 2 and (form == "rows" or self.depth == 0)
            makers = [make for make, nests in table if deep or not nests]
            if not self.visible("steps"):
                makers = [make for make in makers if make not in OF_STEPS]
            self.values[form].append(self.pick.choice(makers)(self))

    def proto(self, inputs: list[Any], outputs: list[tuple[str, int, list[Any]]]) -> GraphProto:
        made = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs]
        return helper.make_graph(self.nodes, self.file.name("g"), inputs, made)

    def inner(self) -> Graph:
        return Graph(self.file, self)


# ---- single nodes


def alone(g: Graph, form: str) -> str:
    kind = g.pick.choice(
        ["Tanh", "Sigmoid", "Relu", "Neg", "Softsign", "Clip", "Elu", "LeakyRelu", "Identity"]
    )
    more = [g.file.constant(-0.5), g.file.constant(0.7)] if kind == "Clip" else []
    return g.one(kind, g.any(form), *more)


def pair(g: Graph, form: str) -> str:
    a, b = g.any(form), g.any("rows" if g.values["rows"] and g.pick.random() < 0.4 else form)
    kind = g.pick.choice(["Add", "Sub", "Mul", "Max", "Min"])
    return g.one("Tanh", g.one(kind, a, b)) if kind in ("Add", "Mul") else g.one(kind, a, b)


def product(g: Graph, form: str) -> str:
    return g.one("Tanh", g.one("MatMul", g.any(form), g.file.weight(F, F)))


def choice(g: Graph, form: str) -> str:
    a, b = g.any(form), g.any(form)
    return g.one("Where", g.one("Greater", a, b), a, g.one("Mul", b, g.file.constant(0.3)))


def shifted(g: Graph, form: str) -> str:
    last = g.ints(len(SHAPES[form]) - 1)
    first = g.one("Slice", g.any(form), g.ints(0), g.ints(1), last)
    rest = g.one("Slice", g.any(form), g.ints(1), g.ints(F), last)
    return g.one("Concat", rest, first, axis=-1)


def scaled(g: Graph, form: str) -> str:
    total = g.one("ReduceSum", g.any(form), g.ints(-1), keepdims=1)
    return g.one("Mul", g.any(form), g.one("Sigmoid", total))


def normed(g: Graph, form: str) -> str:
    if g.file.opset < 17:
        return g.one("Softmax", g.any(form), axis=-1)
    return g.one("LayerNormalization", g.any(form), g.file.weight(F), g.file.weight(F), axis=-1)


def split(g: Graph, form: str) -> str:
    more = {"num_outputs": F} if g.file.opset >= 18 else {}
    return g.one("Concat", *reversed(g.node("Split", [g.any(form)], F, axis=-1, **more)), axis=-1)


def of_last(g: Graph) -> str:
    return g.one("Gather", g.any("steps"), g.file.constant(-1, "int64"), axis=0)


def of_mean(g: Graph) -> str:
    if g.file.opset >= 18:
        return g.one("ReduceMean", g.any("steps"), g.ints(0), keepdims=0)
    return g.one("ReduceMean", g.any("steps"), axes=[0], keepdims=0)


# ---- what repeats


def cell(g: Graph) -> str:
    """An LSTM, GRU or RNN with any of its options, back to F columns."""
    pick, file = g.pick, g.file
    kind = pick.choice(list(GATES))
    gates, functions = GATES[kind]
    direction = pick.choice(["forward", "reverse", "bidirectional"])
    d, hidden = 2 if direction == "bidirectional" else 1, pick.choice([1, 2, 4])
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if pick.random() < 0.4:
        names = ["Tanh", "Sigmoid", "Relu", "Softsign", "HardSigmoid", "LeakyRelu", "Elu"]
        how["activations"] = [pick.choice(names) for _ in range(d * functions)]
    if pick.random() < 0.3:
        how["clip"] = pick.choice([0.3, 2.0])
    if kind == "GRU" and pick.random() < 0.5:
        how["linear_before_reset"] = 1
    if kind == "LSTM" and pick.random() < 0.15:
        how["input_forget"] = 1
    state = ""
    if pick.random() < 0.5:  # [B, F] -> [d, B, hidden]
        flat = g.one("MatMul", g.any("rows"), file.weight(F, d * hidden))
        state = g.one("Transpose", g.one("Reshape", flat, g.ints(0, d, hidden)), perm=[1, 0, 2])
    inputs = [
        g.any("steps"), file.weight(d, gates * hidden, F), file.weight(d, gates * hidden, hidden),
        file.weight(d, 2 * gates * hidden) if pick.random() < 0.7 else "",
        "lengths" if pick.random() < 0.4 else "", state,
    ]  # fmt: skip
    if kind == "LSTM":
        inputs += [
            state if pick.random() < 0.5 else "",
            file.weight(d, 3 * hidden) if pick.random() < 0.3 else "",
        ]
    while not inputs[-1]:
        inputs.pop()
    y, last, *_ = g.node(kind, inputs, 3 if kind == "LSTM" else 2, **how)
    rows = g.one("Reshape", g.one("Transpose", last, perm=[1, 0, 2]), g.ints(0, d * hidden))
    g.values["rows"].append(g.one("Tanh", g.one("MatMul", rows, file.weight(d * hidden, F))))
    flat = g.one("Reshape", g.one("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, d * hidden))
    return g.one("MatMul", flat, file.weight(d * hidden, F))


def repeated(g: Graph, count: int) -> tuple[Graph, list[str]]:
    """A body of so many values that are carried on, and their names."""
    body = g.inner()
    names = [g.file.name("state") for _ in range(count)]
    body.values["rows"] += names
    return body, names


def rows_of(names: list[str]) -> list[Any]:
    return [helper.make_tensor_value_info(name, FLOAT, SHAPES["rows"]) for name in names]


def ended(body: Graph, kept: list[str], count: int) -> list[str]:
    """Results of a body: names that no other result has, and no value from around."""
    return [body.one("Identity", body.any("rows")) for _ in range(count)]


def scan(g: Graph) -> str:
    pick, states, sliced, made = g.pick, g.pick.randint(0, 2), g.pick.randint(1, 2), g.pick.randint(1, 2)
    body, carried = repeated(g, states)
    rows = [g.file.name("row") for _ in range(sliced)]
    body.values["rows"] += rows
    body.grown(pick.randint(1, 4))
    results = ended(body, carried, states + made)
    how: dict[str, Any] = {}
    taken = [g.any("steps") for _ in range(sliced)]
    if pick.random() < 0.4:  # rows lie along another axis
        taken = [g.one("Transpose", one, perm=[1, 0, 2]) for one in taken]
        how["scan_input_axes"] = [pick.choice([1, -2])] * sliced
    for key, number in (("scan_input_directions", sliced), ("scan_output_directions", made)):
        if pick.random() < 0.5:
            how[key] = [pick.randint(0, 1) for _ in range(number)]
    across = pick.random() < 0.3
    if across:
        how["scan_output_axes"] = [pick.choice([1, -2])] * made
    first = [g.any("rows") for _ in range(states)]
    graph = body.proto(rows_of(carried + rows), [(name, FLOAT, SHAPES["rows"]) for name in results])
    outs = g.node("Scan", [*first, *taken], states + made, body=graph, num_scan_inputs=sliced, **how)
    g.values["rows"] += outs[:states]
    return g.one("Transpose", outs[-1], perm=[1, 0, 2]) if across else outs[-1]


def _loop(
    g: Graph, trip: str, going: str, *, sliced: bool, until: bool, most: int | None = None
) -> list[str]:
    """A Loop of one or two values; what it gives, of each step too if it is sliced. `most`: the last step
    that there is of what is sliced, where it may have more."""
    states = g.pick.randint(1, 2)
    body, carried = repeated(g, states)
    number, go = g.file.name("i"), g.file.name("go")
    if sliced and g.visible("steps"):
        at = number if most is None else body.one("Min", number, g.file.constant(most, "int64"))
        body.values["rows"].append(body.one("Gather", g.any("steps"), at, axis=0))
    body.grown(g.pick.randint(1, 3))
    results = ended(body, carried, states + sliced)
    if until:
        limit = g.file.constant(g.pick.choice([-2.0, 0.0, 1.0, 3.0]))
        on = body.one("Less", body.one("ReduceSum", results[0], keepdims=0), limit)
    else:
        on = body.one("Identity", go)
    inputs = [
        helper.make_tensor_value_info(number, INT, []),
        helper.make_tensor_value_info(go, TRUTH, []),
        *rows_of(carried),
    ]
    outputs = [(on, TRUTH, []), *((name, FLOAT, SHAPES["rows"]) for name in results)]
    graph = body.proto(inputs, outputs)
    first = [g.any("rows") for _ in range(states)]
    outs = g.node("Loop", [trip, going, *first], states + sliced, body=graph)
    g.values["rows"] += outs[: states - (not sliced)]
    return outs


def loop_of_rows(g: Graph) -> str:
    """A Loop that goes a number of steps from a constant, an input or a condition; its last value."""
    until = g.pick.random() < 0.5
    trip = g.pick.choice([g.file.constant(g.pick.randint(0, 4), "int64"), "count"])
    going = g.pick.choice(["", g.file.constant(True, "bool"), "flag"])
    return _loop(g, trip, going, sliced=g.pick.random() < 0.4, until=until, most=2)[0]


def loop_of_steps(g: Graph) -> str:
    """A Loop over all steps, a Scan written by hand."""
    return _loop(g, g.length(), "", sliced=True, until=False)[-1]


def branches(g: Graph, form: str) -> str:
    graphs = []
    for _ in range(2):
        graph = g.inner()
        for _ in range(g.pick.randint(0, 2)):
            graph.grown(1)
        result = graph.one("Identity", graph.any(form))
        graphs.append(graph.proto([], [(result, FLOAT, SHAPES[form])]))
    asked = "flag"
    if g.pick.random() < 0.5:
        asked = g.one("Greater", g.one("ReduceSum", g.any(form), keepdims=0), g.file.constant(0.1))
    return g.one("If", asked, then_branch=graphs[0], else_branch=graphs[1])


def listed(g: Graph, form: str) -> str:
    """Through a list of tensors."""
    way = g.pick.choice(["at", "joined", "parts"]) if form == "steps" else "at"
    if way == "parts":
        parts = g.one("SplitToSequence", g.any("steps"), axis=0, keepdims=1)
        at = g.file.constant(g.pick.choice([0, 1, -1, -2]), "int64")
        step = g.one("SequenceAt", parts, at)
        parts = g.one("SequenceInsert", g.one("SequenceErase", parts, at), g.one("Neg", step))
        return g.one("ConcatFromSequence", parts, axis=0)
    many = g.one("SequenceConstruct", *(g.any(form) for _ in range(3)))
    if way == "joined":
        flat = g.one("ConcatFromSequence", many, axis=-1)
        return g.one("MatMul", flat, g.file.weight(3 * F, F))
    if g.pick.random() < 0.5:
        many = g.one("SequenceInsert", many, g.any(form), g.file.constant(1, "int64"))
    return g.one("SequenceAt", many, g.file.constant(g.pick.choice([0, 2, -1, -2]), "int64"))


def turned(g: Graph) -> str:
    return g.one("ReverseSequence", g.any("steps"), "lengths64", time_axis=0, batch_axis=1)


def both(*makers: Callable[[Any, str], Any]) -> tuple[list[Any], list[Any]]:
    """What makes a value of either form, as what makes one of rows and what makes one of steps."""

    def of(make: Callable[[Any, str], Any], form: str) -> Callable[[Any], Any]:
        return lambda g: make(g, form)

    return [of(make, "rows") for make in makers], [of(make, "steps") for make in makers]


_SINGLE = both(alone, pair, product, choice, shifted, scaled, normed, split, listed)
_NESTED = both(branches)
OF_STEPS = [of_last, of_mean, cell, scan, loop_of_steps, turned, *_SINGLE[1], *_NESTED[1]]
ROWS: list[tuple[Callable[[Graph], str], bool]] = [
    *((make, False) for make in _SINGLE[0]), (of_last, False), (of_mean, False),
    (_NESTED[0][0], True), (loop_of_rows, True), (loop_of_rows, True),
]  # fmt: skip
STEPS: list[tuple[Callable[[Graph], str], bool]] = [
    *((make, False) for make in _SINGLE[1]), (turned, False), (cell, False), (cell, False), (cell, False),
    (scan, True), (scan, True), (scan, True), (loop_of_steps, True), (loop_of_steps, True),
    (_NESTED[1][0], True),
]  # fmt: skip


def make_model(seed: int) -> ModelProto:
    """The model of a seed; only inputs that it reads are in it."""
    file = File(seed)
    graph = Graph(file)
    graph.values["steps"].append(file.input("x", FLOAT, SHAPES["steps"]))
    graph.values["rows"].append(file.input("h", FLOAT, SHAPES["rows"]))
    file.input("lengths", TensorProto.INT32, ["B"])
    file.input("lengths64", INT, ["B"])
    file.input("count", INT, [])
    file.input("flag", TRUTH, [])
    graph.grown(file.pick.randint(2, 6))
    forms = file.pick.choice([["steps"], ["rows"], ["steps", "rows"], ["steps", "steps"]])
    outputs = [(graph.one("Identity", graph.any(form)), FLOAT, SHAPES[form]) for form in forms]
    used = {name for node in _inside(graph.nodes) for name in node.input}
    proto = graph.proto([i for i in file.inputs if i.name in used or i.name in "xh"], outputs)
    proto.initializer.extend(c for c in file.constants if c.name in used)
    opset = helper.make_opsetid("", file.opset)
    return helper.make_model(proto, opset_imports=[opset], ir_version=9)


def _inside(nodes: Any) -> list[Any]:
    found = list(nodes)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found += _inside(attribute.g.node)
    return found


def make_inputs(model: ModelProto, seed: int, steps: int, batch: int) -> dict[str, np.ndarray]:
    """Inputs of so many steps and sequences."""
    numbers = np.random.default_rng(seed)
    lengths = numbers.integers(1, steps + 1, batch)
    made = {
        "x": numbers.standard_normal((steps, batch, F)).astype(np.float32),
        "h": numbers.standard_normal((batch, F)).astype(np.float32),
        "lengths": lengths.astype(np.int32),
        "lengths64": lengths,
        "count": np.array(numbers.integers(0, 5)),
        "flag": np.array(numbers.random() < 0.6),
    }
    return {value.name: made[value.name] for value in model.graph.input}
