"""Random models in OpenVINO IR around what repeats: sequences, TensorIterators, Loops, branches.

Values are of two forms, `rows` of [B, F] and `steps` of [T, B, F] for any B and any T of whole sixes; a body
takes those of the graphs around it by ports.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ir_files import Net, Ref, edge, sliced

from .onnx_graphs import both

F = 3
SHAPES = {"rows": "?,3", "steps": "?,?,3"}
ROWS_OF = (-1, F)
JOINED = {0: (-1, -1, F), 1: (-1, -1, F), 2: (-1, F, -1)}  # steps, with T along an axis
GATES = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}  # gates, functions
SINCE = {"LSTM": "opset4", "GRU": "opset3", "RNN": "opset1"}


class File:
    """A model being made: what all of its graphs share."""

    def __init__(self, seed: int) -> None:
        self.pick, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.odd = self.pick.choice(["", "", "/", "é ", "::", "a<b>&"])  # names are any text
        self.untyped = self.pick.random() < 0.2  # Parameters of bodies have no <data>
        self.used = 0
        self.inputs: dict[str, Ref] = {}

    def name(self, of: str) -> str:
        self.used += 1
        return f"{self.odd}{of}_{self.used}"

    def weight(self, *shape: int) -> Any:
        return (self.numbers.standard_normal(shape) * 0.5).astype(np.float32)


class Graph:
    """Layers, and the values that one more may take."""

    def __init__(self, file: File, net: Net, around: Graph | None = None) -> None:
        self.file, self.pick, self.net, self.around = file, file.pick, net, around
        self.values: dict[str, list[Ref]] = {"rows": [], "steps": []}
        self.taken: dict[Ref, Ref] = {}  # values of the graph around it, and the Parameters that they are
        self.depth: int = 0 if around is None else around.depth + 1

    def one(self, kind: str, *inputs: Ref, out: str = "FP32", version: str = "opset1", **how: Any) -> Ref:
        return self.net.add(kind, list(inputs), [out], version, self.file.name(kind), **how)

    def many(self, kind: str, inputs: list[Ref], outs: list[str], version: str, **how: Any) -> list[Ref]:
        layer, port = self.net.add(kind, inputs, outs, version, self.file.name(kind), **how)
        return [(layer, port + k) for k in range(len(outs))]

    def const(self, value: Any, dtype: str = "float32") -> Ref:
        return self.net.const(value, dtype)

    def ints(self, *values: int) -> Ref:
        return self.const(values, self.pick.choice(["int64", "int32"]))

    def number(self, value: int) -> Ref:
        return self.const(value, "int64")

    def parameter(self, name: str, shape: str, dtype: str = "float32") -> Ref:
        if self.around is not None and self.file.untyped:
            kind = {"float32": "FP32", "int64": "I64", "bool": "BOOL"}[dtype]
            dims = [tuple(-1 if d == "?" else int(d) for d in shape.split(",") if d)]
            return self.net.add("Parameter", outputs=[kind], name=self.file.name(name), dims=dims)
        return self.net.parameter(self.file.name(name), shape, dtype)

    def input(self, name: str, shape: str, dtype: str) -> Ref:
        """An input of the model, made as it is first read; inside of a body by a port."""
        if self.around is not None:
            return self.take(self.around.input(name, shape, dtype), shape, dtype)
        if name not in self.file.inputs:
            self.file.inputs[name] = self.net.parameter(name, shape, dtype)
        return self.file.inputs[name]

    def flag(self) -> Ref:
        return self.input("flag", "", "bool")

    def take(self, value: Ref, shape: str, dtype: str = "float32") -> Ref:
        """A value of the graph around this one, as a Parameter."""
        if value not in self.taken:
            self.taken[value] = self.parameter("p", shape, dtype)
        return self.taken[value]

    def visible(self, form: str) -> bool:
        return bool(self.values[form]) or (self.around is not None and self.around.visible(form))

    def any(self, form: str) -> Ref:
        """A value of this form, more often a late one."""
        found = self.values[form]
        outside = self.around is not None and self.around.visible(form)
        if outside and (not found or self.pick.random() < 0.3):
            return self.take(self.around.any(form), SHAPES[form])
        return self.pick.choice(found[-3:] if self.pick.random() < 0.6 else found)

    def length(self, of: Ref | None = None, at: int = 0) -> Ref:
        """T, as a tensor of no dimension."""
        shape = self.one("ShapeOf", of or self.any("steps"), out="I64", version="opset3", output_type="i64")
        return self.one("Gather", shape, self.number(at), self.number(0), out="I64", version="opset8")

    def grown(self, count: int) -> None:
        """So many more values."""
        for _ in range(count):
            form = "steps" if self.pick.random() < 0.5 and self.visible("steps") else "rows"
            deep = self.depth < 2 and (form == "rows" or self.depth == 0)
            table = {"rows": ROWS, "steps": STEPS}[form]
            makers = [make for make, nests in table if deep or not nests]
            if not self.visible("steps"):
                makers = [make for make in makers if make not in OF_STEPS]
            self.values[form].append(self.pick.choice(makers)(self))

    def inner(self) -> Graph:
        return Graph(self.file, self.net.body(), self)

    def turned(self, value: Ref, *order: int) -> Ref:
        return self.one("Transpose", value, self.ints(*order))


# ---- single layers


def alone(g: Graph, form: str) -> Ref:
    kind, version, how = g.pick.choice([
        ("Tanh", "opset1", {}), ("Sigmoid", "opset1", {}), ("ReLU", "opset1", {}),
        ("Negative", "opset1", {}), ("SoftSign", "opset9", {}),
        ("Clamp", "opset1", {"min": -0.5, "max": 0.7}),
        ("Elu", "opset1", {"alpha": 0.7}), ("Mish", "opset4", {}), ("HSwish", "opset4", {}),
        ("HSigmoid", "opset5", {}), ("SoftPlus", "opset4", {}), ("Gelu", "opset2", {}),
        ("Gelu", "opset7", {"approximation_mode": "TANH"}), ("Abs", "opset1", {}), ("Sin", "opset1", {}),
        ("Swish", "opset4", {}),
    ])  # fmt: skip
    return g.one(kind, g.any(form), version=version, **how)


def pair(g: Graph, form: str) -> Ref:
    a = g.any(form)
    b = g.any("rows" if g.values["rows"] and g.pick.random() < 0.4 else form)
    kind = g.pick.choice(["Add", "Subtract", "Multiply", "Maximum", "Minimum", "SquaredDifference"])
    how = {"auto_broadcast": "numpy"} if g.pick.random() < 0.5 else {}
    made = g.one(kind, a, b, **how)
    return made if kind in ("Maximum", "Minimum") else g.one("Tanh", made)


def product(g: Graph, form: str) -> Ref:
    turn = g.pick.random() < 0.5
    how = {"transpose_a": "false", "transpose_b": str(turn).lower()} if turn or g.pick.random() < 0.5 else {}
    made = g.one("MatMul", g.any(form), g.const(g.file.weight(F, F)), **how)
    return g.one("Tanh", g.one("Add", made, g.const(g.file.weight(F))) if g.pick.random() < 0.5 else made)


def choice(g: Graph, form: str) -> Ref:
    a, b = g.any(form), g.any(form)
    asked = g.one(g.pick.choice(["Greater", "LessEqual"]), a, b, out="BOOL")
    if g.pick.random() < 0.3:
        asked = g.one("LogicalNot", asked, out="BOOL")
    return g.one("Select", asked, a, g.one("Multiply", b, g.const(0.3)))


def shifted(g: Graph, form: str) -> Ref:
    x, way = g.any(form), g.pick.choice(["slice", "split", "variadic", "gather", "roll"])
    last = g.pick.choice([-1, len(SHAPES[form].split(",")) - 1])
    if way == "roll":
        return g.one("Roll", x, g.ints(1), g.ints(last), version="opset7")
    if way == "gather":
        version = g.pick.choice(["opset1", "opset7", "opset8"])
        return g.one("Gather", x, g.ints(1, 2, 0), g.number(last), version=version)
    if way == "slice":
        parts = [
            g.one("Slice", x, g.ints(a), g.ints(b), g.ints(1), g.ints(last), version="opset8")
            for a, b in ((1, F), (0, 1))
        ]
    elif way == "split":
        parts = g.many("Split", [x, g.number(last)], ["FP32"] * F, "opset1", num_splits=F)[::-1]
    else:
        sizes = g.ints(*g.pick.choice([(1, 2), (2, -1), (-1, 1)]))
        parts = g.many("VariadicSplit", [x, g.number(last), sizes], ["FP32"] * 2, "opset1")[::-1]
    return g.one("Concat", *parts, axis=last)


def scaled(g: Graph, form: str) -> Ref:
    kind = g.pick.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
    version = "opset4" if kind == "ReduceL2" else "opset1"
    total = g.one(kind, g.any(form), g.ints(-1), version=version, keep_dims="true")
    return g.one("Multiply", g.any(form), g.one("Sigmoid", total))


def normed(g: Graph, form: str) -> Ref:
    x, way = g.any(form), g.pick.choice(["SoftMax", "MVN", "LogSoftmax", "CumSum", "NormalizeL2"])
    if way == "SoftMax":
        return g.one(way, x, version="opset8", axis=-1)
    if way == "LogSoftmax":
        return g.one(way, x, version="opset5", axis=-1)
    if way == "CumSum":
        return g.one("Tanh", g.one(way, x, g.number(-1), version="opset3", exclusive="true"))
    if way == "NormalizeL2":
        return g.one(way, x, g.ints(-1), eps=0.1, eps_mode="add")
    how = {
        "eps": 0.01,
        "normalize_variance": "true",
        "eps_mode": g.pick.choice(["inside_sqrt", "outside_sqrt"]),
    }
    return g.one("MVN", x, g.ints(-1), version="opset6", **how)


def ordered(g: Graph, form: str) -> Ref:
    axis = len(SHAPES[form].split(",")) - 1
    how = {"axis": axis, "mode": g.pick.choice(["max", "min"]), "sort": "value", "index_element_type": "i64"}
    return g.many("TopK", [g.any(form), g.number(F)], ["FP32", "I64"], g.pick.choice(["opset3", "opset11"]),
                  **how)[0]  # fmt: skip


def spread(g: Graph, form: str) -> Ref:
    """A row of numbers as large as a value."""
    shape = g.one("ShapeOf", g.any(form), out="I64", version="opset3", output_type="i64")
    wide = g.one("Broadcast", g.const(g.file.weight(F)), shape, version="opset3", mode="numpy")
    return g.one("Add", g.any(form), wide)


def of_last(g: Graph) -> Ref:
    if g.pick.random() < 0.5:
        return g.one("Gather", g.any("steps"), g.number(-1), g.number(0), version="opset8")
    masks = {"begin_mask": "0", "end_mask": "1", "shrink_axis_mask": "1", "new_axis_mask": "0",
             "ellipsis_mask": "0"}  # fmt: skip
    begin, end, by = g.const([-1], "int64"), g.const([0], "int64"), g.const([1], "int64")
    return g.one("StridedSlice", g.any("steps"), begin, end, by, **masks)


def of_mean(g: Graph) -> Ref:
    return g.one(g.pick.choice(["ReduceMean", "ReduceMax"]), g.any("steps"), g.ints(0), keep_dims="false")


def backwards(g: Graph) -> Ref:
    x = g.any("steps")
    return g.one("ReverseSequence", x, each(g, x, 0, 1), seq_axis=0, batch_axis=1)


def each(g: Graph, x: Ref, time: int, batch: int) -> Ref:
    """T for each sequence."""
    steps, sequences = (g.one("Unsqueeze", g.length(x, at), g.number(0), out="I64") for at in (time, batch))
    return g.one("Broadcast", steps, sequences, out="I64", version="opset3", mode="numpy")


# ---- what repeats


def options(g: Graph, kind: str) -> dict[str, Any]:
    _, functions = GATES[kind]
    how: dict[str, Any] = {}
    if g.pick.random() < 0.4:
        names = ["tanh", "sigmoid", "relu"]
        how["activations"] = ",".join(g.pick.choice(names) for _ in range(functions))
    if g.pick.random() < 0.3:
        how["clip"] = g.pick.choice([0.3, 2.0])
    if kind == "GRU" and g.pick.random() < 0.5:
        how["linear_before_reset"] = "true"
    return how


def weights(g: Graph, kind: str, hidden: int, lead: tuple[int, ...], how: dict[str, Any]) -> list[Ref]:
    gates = GATES[kind][0]
    biases = gates + ("linear_before_reset" in how)
    shapes = [(gates * hidden, F), (gates * hidden, hidden), (biases * hidden,)]
    return [g.const(g.file.weight(*lead, *shape)) for shape in shapes]


def step(g: Graph) -> Ref:
    """One step of a cell."""
    kind = g.pick.choice(list(GATES))
    how = options(g, kind)
    states = [g.any("rows") for _ in range(2 if kind == "LSTM" else 1)]
    inputs = [g.any("rows"), *states, *weights(g, kind, F, (), how)]
    made = g.many(f"{kind}Cell", inputs, ["FP32"] * len(states), SINCE[kind], hidden_size=F, **how)
    g.values["rows"] += made[1:]
    return made[0]


def sequence(g: Graph) -> Ref:
    """An LSTM, GRU or RNN over all steps, back to F columns."""
    kind = g.pick.choice(list(GATES))
    direction = g.pick.choice(["forward", "reverse", "bidirectional"])
    d, hidden, how = 2 if direction == "bidirectional" else 1, g.pick.choice([1, 2, 4]), options(g, kind)
    x = g.turned(g.any("steps"), 1, 0, 2)
    states = []
    for _ in range(2 if kind == "LSTM" else 1):
        flat = g.one("MatMul", g.any("rows"), g.const(g.file.weight(F, d * hidden)))
        states.append(g.one("Reshape", flat, g.const([0, d, hidden], "int64"), special_zero="true"))
    inputs = [x, *states, each(g, x, 1, 0), *weights(g, kind, hidden, (d,), how)]
    y, last, *_ = g.many(f"{kind}Sequence", inputs, ["FP32"] * (1 + len(states)), "opset5",
                         hidden_size=hidden, direction=direction, **how)  # fmt: skip
    rows = g.one("Reshape", last, g.const([0, d * hidden], "int64"), special_zero="true")
    g.values["rows"].append(g.one("Tanh", g.one("MatMul", rows, g.const(g.file.weight(d * hidden, F)))))
    flat = g.one(
        "Reshape", g.turned(y, 2, 0, 1, 3), g.const([0, 0, d * hidden], "int64"), special_zero="true"
    )
    return g.one("MatMul", flat, g.const(g.file.weight(d * hidden, F)))


ORDERS = {0: (0, 1, 2), 1: (1, 0, 2), 2: (1, 2, 0)}  # of steps, with T along an axis
BACK = {0: (0, 1, 2), 1: (1, 0, 2), 2: (2, 0, 1)}
FORWARD, REVERSE = {"start": 0, "end": -1}, {"start": -1, "end": 0}


def cut(g: Graph, part: int) -> dict[str, int]:
    """All steps, some at a time, from the first or from the last."""
    if g.pick.random() < 0.5:
        return FORWARD | {"stride": part, "part_size": part}
    return REVERSE | {"stride": -part, "part_size": part}


def sliced_input(g: Graph, body: Graph, part: int) -> tuple[Ref, Ref, int]:
    """A value that a loop slices: it, the Parameter, and the axis; the rows of a part go to the body."""
    axis = g.pick.choice([0, 0, 1, 1, 2])
    shape = ["?", "?", "?"]
    shape[axis] = str(part) if g.pick.random() < 0.7 else "?"
    if axis != 2:
        shape[2] = str(F)
    else:
        shape[1] = str(F)
    value = g.any("steps")
    if axis:
        value = g.turned(value, *ORDERS[axis])
    inside = body.parameter("slice", ",".join(shape))
    if part == 1 and g.pick.random() < 0.6:
        way = g.pick.choice(["Squeeze", "Squeeze", "Reshape"]) if axis != 2 else "Squeeze"
        if way == "Squeeze":
            rows = body.one(
                "Squeeze", inside, body.number(axis) if g.pick.random() < 0.5 else body.ints(axis)
            )
        else:
            rows = body.one("Reshape", inside, body.const([-1, F], "int64"), special_zero="false")
        body.values["rows"].append(rows)
    else:
        for k in g.pick.sample(range(part), g.pick.randint(1, part)):
            at = k if g.pick.random() < 0.5 else k - part
            body.values["rows"].append(
                body.one("Gather", inside, body.number(at), body.number(axis), version="opset8")
            )
        if g.pick.random() < 0.3:
            body.values["rows"].append(body.one("ReduceMean", inside, body.ints(axis), keep_dims="false"))
    return value, inside, axis


def joined(g: Graph, body: Graph, part: int) -> tuple[Ref, int]:
    """What a body makes of `part` of its rows, to be joined along an axis."""
    axis = g.pick.choice([0, 0, 1, 1, 2])
    rows = [body.one("Unsqueeze", body.any("rows"), body.ints(axis)) for _ in range(part)]
    whole = body.one("Concat", *rows, axis=axis) if part > 1 or g.pick.random() < 0.1 else rows[0]
    return whole, axis


def ports_of(body: Graph, first: int, inputs: list[Ref]) -> str:
    """Rows of a port map for what a body takes of the graph around it."""
    rows = ""
    for value, parameter in body.taken.items():
        rows += sliced("input", first + len(inputs), parameter[0])
        inputs.append(value)
    return rows


def unfolded(g: Graph, *, loop: bool) -> Ref:
    """A TensorIterator, or a Loop over all steps: slices, states, what is invariant; outputs that are joined,
    of the last step, or both."""
    body, pick = g.inner(), g.pick
    part = 1 if loop else pick.choice([1, 1, 1, 2, 3])
    inputs: list[Ref] = []
    rows, edges = "", ""
    if loop:
        inputs += [g.length(), g.const(True, "bool")]
    for _ in range(pick.choice([0, 1, 1, 2]) if loop else pick.choice([1, 1, 2, 3])):
        value, inside, axis = sliced_input(g, body, part)
        how = FORWARD | {"stride": 1, "part_size": 1} if loop else cut(g, part)
        rows += sliced("input", len(inputs), inside[0], axis=axis, **how)
        inputs.append(value)
    states = []
    for _ in range(pick.choice([0, 1, 1, 2, 3])):
        inside = body.parameter("state", SHAPES["rows"])
        rows += sliced("input", len(inputs), inside[0])
        inputs.append(g.any("rows"))
        states.append(inside)
        body.values["rows"].append(inside)
    if loop and (pick.random() < 0.4 or not body.values["rows"]):
        number = body.parameter("number", "", "int64")
        rows += sliced("input", -1, number[0], purpose="current_iteration")
        body.values["rows"].append(body.one("Gather", body.any("steps"), number, body.number(0),
                                            version="opset8"))  # fmt: skip
    body.grown(pick.randint(1, 4))
    results, made = [], []
    for state in states:
        if results and pick.random() < 0.15:  # one result is that of two states
            results.append(results[-1])
        else:
            new = body.one("Tanh", body.any("rows"))
            results.append(body.net.result(new, body.file.name("r")))
        edges += edge(results[-1], state[0])
    whole = []
    for _ in range(pick.choice([1, 1, 2])):
        value, axis = joined(g, body, part)
        whole.append((body.net.result(value, body.file.name("r")), axis))
    if loop:
        going = body.net.result(body.const(True, "bool"))
        rows += sliced("output", -1, going, purpose="execution_condition")
    rows += ports_of(body, 0, inputs)
    count = len(inputs)
    for result in dict.fromkeys(results):
        if pick.random() < 0.7:
            rows += sliced("output", count + len(made), result)
            made.append("rows")
    for result, axis in whole:
        how = FORWARD | {"stride": 1, "part_size": 1} if loop else cut(g, part)
        rows += sliced("output", count + len(made), result, axis=axis, **how)
        made.append(axis)
    layer, port = g.net.loop(body.net, inputs, rows, edges, ["FP32"] * len(made),
                             "Loop" if loop else "TensorIterator", "opset5" if loop else "opset1",
                             dims=[ROWS_OF if what == "rows" else JOINED[what] for what in made])  # fmt: skip
    found = []
    for k, what in enumerate(made):
        if what == "rows":
            g.values["rows"].append((layer, port + k))
        else:
            value = (layer, port + k)
            found.append(g.turned(value, *BACK[what]) if what else value)
    g.values["steps"] += found[1:]
    return found[0]


def iterated(g: Graph) -> Ref:
    return unfolded(g, loop=False)


def counted(g: Graph) -> Ref:
    return unfolded(g, loop=True)


def until(g: Graph) -> Ref:
    """A Loop that goes a number of steps, or until its body says so; its last values."""
    body, pick = g.inner(), g.pick
    ended = pick.random() < 0.5
    trips = pick.choice([g.number(pick.randint(0, 4)), g.input("count", "", "int64")])
    inputs = [trips, pick.choice([g.const(True, "bool"), g.flag()])]
    rows, edges, states = "", "", []
    for _ in range(pick.randint(1, 2)):
        inside = body.parameter("state", SHAPES["rows"])
        rows += sliced("input", len(inputs), inside[0])
        inputs.append(g.any("rows"))
        states.append(inside)
        body.values["rows"].append(inside)
    if pick.random() < 0.5:
        number = body.parameter("number", "", "int64")
        rows += sliced("input", -1, number[0], purpose="current_iteration")
        scale = body.one("Convert", number, destination_type="f32")
        body.values["rows"].append(body.one("Sin", body.one("Add", body.any("rows"), scale)))
    body.grown(pick.randint(1, 3))
    results = []
    for state in states:
        results.append(body.net.result(body.one("Tanh", body.any("rows")), body.file.name("r")))
        edges += edge(results[-1], state[0])
    if ended:
        total = body.one("ReduceSum", body.any("rows"), body.ints(0, 1), keep_dims="false")
        goes = body.one("Less", total, body.const(pick.choice([-2.0, 0.0, 1.0, 3.0])), out="BOOL")
    else:
        goes = body.const(True, "bool")
    rows += sliced("output", -1, body.net.result(goes), purpose="execution_condition")
    rows += ports_of(body, 0, inputs)
    rows += "".join(sliced("output", len(inputs) + k, result) for k, result in enumerate(results))
    layer, port = g.net.loop(body.net, inputs, rows, edges, ["FP32"] * len(results), "Loop", "opset5",
                             dims=[ROWS_OF] * len(results))  # fmt: skip
    g.values["rows"] += [(layer, port + k) for k in range(1, len(results))]
    return layer, port


def branches(g: Graph, form: str) -> Ref:
    asked = g.flag()
    if g.pick.random() < 0.5:
        axes = g.ints(*range(len(SHAPES[form].split(","))))
        total = g.one("ReduceSum", g.any(form), axes, keep_dims="false")
        asked = g.one("Greater", total, g.const(0.1), out="BOOL")
    inputs, inner = [asked], ""
    for prefix in ("then", "else"):
        body = g.inner()
        for _ in range(g.pick.randint(0, 2)):
            body.grown(1)
        result = body.net.result(body.one("Negative", body.any(form)))
        made = sliced("output", 0, result)
        ports = ""
        for value, parameter in body.taken.items():
            if value not in inputs:
                inputs.append(value)
            ports += sliced("input", inputs.index(value), parameter[0])
        inner += f"<{prefix}_port_map>{ports}{made}</{prefix}_port_map>"
        inner += f"<{prefix}_body>{body.net.content()}</{prefix}_body>"
    inner = inner.replace('output external_port_id="0"', f'output external_port_id="{len(inputs)}"')
    dims = [{"rows": ROWS_OF, "steps": JOINED[0]}[form]]
    return g.net.add("If", inputs, ["FP32"], "opset8", g.file.name("If"), inner, dims)


_SINGLE = both(alone, pair, product, choice, shifted, scaled, normed, ordered, spread)
_NESTED = both(branches)
OF_STEPS = [of_last, of_mean, sequence, iterated, counted, backwards, *_SINGLE[1], *_NESTED[1]]
ROWS: list[tuple[Callable[[Graph], Ref], bool]] = [
    *((make, False) for make in _SINGLE[0]), (of_last, False), (of_mean, False), (step, False), (step, False),
    (_NESTED[0][0], True), (until, True), (until, True),
]  # fmt: skip
STEPS: list[tuple[Callable[[Graph], Ref], bool]] = [
    *((make, False) for make in _SINGLE[1]), (backwards, False), (sequence, False), (sequence, False),
    (iterated, True), (iterated, True), (iterated, True), (iterated, True), (counted, True), (counted, True),
    (_NESTED[1][0], True),
]  # fmt: skip


def make_ir(seed: int, folder: Path) -> Path:
    """The model of a seed."""
    file = File(seed)
    g = Graph(file, Net())
    g.values["steps"].append(g.input("x", SHAPES["steps"], "float32"))
    g.values["rows"].append(g.input("h", SHAPES["rows"], "float32"))
    g.grown(file.pick.randint(2, 6))
    for form in file.pick.choice([["steps"], ["rows"], ["steps", "rows"], ["steps", "steps"]]):
        g.net.result(g.any(form), file.name("out"))
    return g.net.write(folder)


def make_ir_inputs(names: Iterable[str], seed: int, steps: int, batch: int) -> dict[str, np.ndarray]:
    """Inputs of so many steps and sequences."""
    numbers = np.random.default_rng(seed)
    made = {
        "x": numbers.standard_normal((steps, batch, F)).astype(np.float32),
        "h": numbers.standard_normal((batch, F)).astype(np.float32),
        "count": np.array(numbers.integers(0, 5)),
        "flag": np.array(numbers.random() < 0.6),
    }
    return {name: made[name] for name in names}
