"""A good graph and a good plan pass; one broken for each rule does not, and the text says which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepnet.errors import GraphError
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import TOTALS
from stepnet.ir.plan import Carry, LoopPlan, Plan, Region
from stepnet.ir.verify import verify
from tables import holds


def value(text):
    """'h row 3,5 float64' -> Value; the dtype may be left out."""
    name, kind, shape, *dtype = text.split()
    sizes = () if shape == "-" else tuple(int(n) for n in shape.split(","))
    return Value(name, kind, sizes, dtype[0] if dtype else "float32")


def graph(parameters, nodes, results, values):
    return Graph(
        "g", tuple(parameters), tuple(nodes), tuple(results), {v.name: v for v in map(value, values)}
    )


def one(op, inputs, out, result="y", **attrs):
    """A graph of one node: the inputs are its parameters."""
    names = [text.split()[0] for text in inputs]
    node = Node(op, tuple(names), (out.split()[0],), tuple(attrs.items()), "step.py:7")
    return graph(names, [node], [out.split()[0]], [*inputs, out])


GOOD = [
    one("add", ["a row 3,5", "b shared 5"], "y row 3,5"),
    one("add", ["a row 3", "b row 4,1"], "y row 4,3"),
    one("lt", ["a row 3", "b shared -"], "y row 3 bool"),
    one("where", ["c row 3 bool", "a row 3", "b shared -"], "y row 3"),
    one("and", ["a row 3 bool", "b row 3 bool"], "y row 3 bool"),
    one("cast", ["a row 3 int64"], "y row 3"),
    one("sum", ["a row 3,5"], "y row 3,1", dims=(1,)),
    one("argmax", ["a row 3,5"], "y row 3,1 int64", dim=1),
    one("reshape", ["a row 3,5"], "y row 15"),
    one("permute", ["a row 3,5"], "y row 5,3", dims=(1, 0)),
    one("expand", ["a shared 5"], "y row 3,5"),
    one("slice", ["a row 7"], "y row 3", dim=0, start=1, end=7, step=2),
    one("flip", ["a row 7"], "y row 7", dims=(0,)),
    one("cat", ["a row 3,2", "b shared 3,4"], "y row 3,6", dim=1),
    one("gather", ["a row 7", "i row 2 int64"], "y row 2", dim=0),
    one("embed", ["t shared 9,5", "i row 2 int64"], "y row 2,5"),
    one("matmul", ["a row 3", "b shared 3,5"], "y row 5"),
    one("matmul", ["a row 2,3", "b shared 3,5"], "y row 2,5"),
    one("matmul", ["a row 4,2,3", "b shared 4,3,5"], "y row 4,2,5"),
    one("matmul", ["a row 4,2,3", "b row 4,3,5"], "y row 4,2,5"),
    one("matmul_tn", ["a row 3", "b row 5"], "y sum 3,5", batch=0),
    one("matmul_tn", ["a row 2,3", "b row 2,5"], "y sum 2,3,5", batch=1),
    one("sum_rows", ["a row 3"], "y sum 3"),
    one("embed_grad", ["a row 5", "i row - int64"], "y sum 9,5", padding=-1),
    one("mul", ["a sum 3", "b shared -"], "y sum 3"),
    one("full", [], "y row 3", value=0.0),
    one("iota", [], "y shared 3 int64", start=0, step=1),
    one("rand", [], "y row 3"),
    one(
        "opaque",
        ["a row 3", "b shared 3"],
        "y row 3",
        target="aten.f.default",
        args=(("list", (("input", 1), ("input", 0))), ("value", 2), ("torch", "float32")),
        kwargs=(),
    ),
]


def test_a_good_graph_passes():
    holds(lambda good: verify(good, "body"), {f"{i} {g.nodes[0].op}": (g,) for i, g in enumerate(GOOD)})


X = ["x row 3", "w shared 3,5", "y row 5", "z row 5"]
DOT = Node("matmul", ("x", "w"), ("y",))
TANH = Node("tanh", ("y",), ("z",))
BROKEN = {
    "read before it is made": (graph("xw", [TANH, DOT], "z", X), "reads 'y' before it is made"),
    "read and never made": (graph("x", [DOT], "y", X), "reads 'w' before it is made"),
    "made twice": (
        graph("xw", [DOT, replace(TANH, outputs=("y",))], "y", X),
        "y = tanh(y): 'y' is made twice",
    ),
    "a parameter made": (graph("xwy", [DOT], "y", X), "'y' is made twice"),
    "a parameter twice": (graph("xwx", [DOT], "y", X), "parameter 'x' is there twice"),
    "a parameter not declared": (graph("xwq", [DOT], "y", X), "parameter 'q' is not declared"),
    "a result not declared": (graph("xw", [replace(DOT, outputs=("v",))], "v", X), "'v' is not declared"),
    "a result not made": (graph("xw", [DOT], "z", X), "result 'z' is not made"),
    "another name": (
        Graph("g", ("x",), (), ("x",), {"x": value("other row 3")}),
        "value 'other' is declared as 'x'",
    ),
    "a negative size": (graph("x", [], "x", ["x row -3"]), "value 'x' has shape [-3]"),
    "an unknown op": (one("softmax", ["a row 3"], "y row 3"), "'softmax' is not in the list of ops"),
    "too few inputs": (one("add", ["a row 3"], "y row 3"), "takes 2 inputs, not 1"),
    "too many inputs": (one("tanh", ["a row 3", "b row 3"], "y row 3"), "takes 1 inputs, not 2"),
    "two results": (
        graph("xw", [replace(DOT, outputs=("y", "z"))], "y", X),
        "gives 2 results",
    ),
    "no result": (graph("xw", [replace(DOT, outputs=())], "x", X), "gives 0 results"),
    "shift in a body": (one("shift", ["a row 3"], "y row 3"), "only fission makes 'shift'"),
    "a missing attribute": (one("sum", ["a row 3"], "y row 1"), "attribute 'dims' is missing"),
    "row to shared": (one("tanh", ["a row 3"], "y shared 3"), "gives a shared value, expected row"),
    "shared to row": (one("tanh", ["a shared 3"], "y row 3"), "gives a row value, expected shared"),
    "row meets sum": (one("add", ["a row 3", "b sum 3"], "y row 3"), "reads a row and a sum over rows"),
    "tanh of a sum": (one("tanh", ["a sum 3"], "y sum 3"), "is not linear, but reads a sum over rows"),
    "a sum to shared": (one("neg", ["a sum 3"], "y shared 3"), "gives a shared value, expected sum"),
    "sum plus shared": (one("add", ["a sum 3", "b shared 3"], "y sum 3"), "adds a value of every step"),
    "sum times sum": (one("mul", ["a sum 3", "b sum 3"], "y sum 3"), "multiplies two sums over rows"),
    "divided by a sum": (one("div", ["a shared 3", "b sum 3"], "y sum 3"), "divides by a sum over rows"),
    "rows added to a row": (one("sum_rows", ["a row 3"], "y row 3"), "gives a row value, expected sum"),
    "shared added over rows": (
        one("sum_rows", ["a shared 3"], "y sum 3"),
        "adds up over rows, but reads shared values",
    ),
    "shared noise": (one("rand", [], "y shared 3"), "gives a shared value, expected row"),
    "a count for each row": (
        one("iota", [], "y row 3 int64", start=0, step=1),
        "gives a row value, expected shared",
    ),
    "broadcast": (
        one("add", ["a row 3", "b row 4"], "y row 4"),
        "gives shape [4] from [3], [4], expected none: they do not go together",
    ),
    "a shape": (one("add", ["a row 3", "b row 1"], "y row 4"), "gives shape [4] from [3], [1], expected [3]"),
    "a dtype": (one("tanh", ["a row 3"], "y row 3 float64"), "gives float64 from float32"),
    "mixed dtypes": (one("add", ["a row 3", "b row 3 float64"], "y row 3"), "from float32, float64"),
    "a comparison to a float": (one("lt", ["a row 3", "b row 3"], "y row 3"), "gives float32, expected bool"),
    "a comparison of dtypes": (
        one("lt", ["a row 3", "b row 3 int64"], "y row 3 bool"),
        "compares float32 with int64",
    ),
    "logic on floats": (one("and", ["a row 3", "b row 3"], "y row 3"), "gives float32, expected bool"),
    "a condition": (one("where", ["c row 3", "a row 3", "b row 3"], "y row 3"), "has a condition of float32"),
    "reduced dimensions": (one("sum", ["a row 3"], "y row 1", dims=(1,)), "reduces dimensions [1] of 1"),
    "a reduction's shape": (
        one("sum", ["a row 3,5"], "y row 3", dims=(1,)),
        "gives shape [3] from [3, 5], expected [3, 1]",
    ),
    "an argmax of floats": (one("argmax", ["a row 3"], "y row 1", dim=0), "expected whole numbers"),
    "a reshape": (one("reshape", ["a row 3,5"], "y row 14"), "gives shape [14] from [3, 5]"),
    "a permutation": (one("permute", ["a row 3,5"], "y row 5,3", dims=(0, 0)), "permutes dimensions [0, 0]"),
    "an expansion": (one("expand", ["a row 3"], "y row 5"), "gives shape [5] from [3]"),
    "a shrinking expansion": (one("expand", ["a row 3,5"], "y row 1,5"), "gives shape [1, 5] from [3, 5]"),
    "a slice out of range": (
        one("slice", ["a row 3"], "y row 3", dim=0, start=1, end=4, step=1),
        "takes [1:4:1] of dimension 0 of [3]",
    ),
    "a slice's shape": (
        one("slice", ["a row 7"], "y row 2", dim=0, start=1, end=7, step=2),
        "gives shape [2] from [7], expected [3]",
    ),
    "a flip": (one("flip", ["a row 3"], "y row 3", dims=(1,)), "flips dimensions [1] of 1"),
    "a cat": (one("cat", ["a row 3,2", "b row 4,2"], "y row 3,4", dim=1), "joins [3, 2], [4, 2] along"),
    "a cat's shape": (one("cat", ["a row 2", "b row 4"], "y row 5", dim=0), "gives shape [5] from [2], [4]"),
    "an index of floats": (
        one("gather", ["a row 7", "i row 2"], "y row 2", dim=0),
        "has an index of float32",
    ),
    "whole numbers that are none": (one("full", [], "y row 2 int64", value=float("nan")), "is full of nan"),
    "whole numbers too large": (one("full", [], "y row 2 int8", value=1 << 63), "no whole number of 64 bits"),
    "a shared gather": (
        one("gather", ["a shared 7", "i row 2 int64"], "y row 2", dim=0),
        "gathers from a shared value by a row index",
    ),
    "the largest of no dimension": (
        one("topk", ["a row 7"], "y row 7 int64", dim=1, largest=True, sorted=True),
        "works along dimension 1 of 1",
    ),
    "the largest of a number": (
        one("topk", ["a row -"], "y row - int64", dim=-1, largest=True, sorted=True),
        "works along dimension -1 of 0",
    ),
    "a table of rows": (one("embed", ["t row 9,5", "i row - int64"], "y row 5"), "looks up in a row value"),
    "an embedding's shape": (
        one("embed", ["t shared 9,5", "i row 2 int64"], "y row 5"),
        "gives shape [5] from [9, 5], [2], expected [2, 5]",
    ),
    "a contraction": (one("matmul", ["a row 3", "b shared 4,5"], "y row 5"), "multiplies [3] by [4, 5]"),
    "a matrix that meets the batch": (
        one("matmul", ["a row 2,3", "b shared 4,3,5"], "y row 4,2,5"),
        "multiplies [2, 3] by [4, 3, 5]",
    ),
    "a vector by a matrix of each row": (
        one("matmul", ["a row 3", "b row 3,5"], "y row 5"),
        "multiplies a vector of each row",
    ),
    "a product's shape": (one("matmul", ["a row 3", "b shared 3,5"], "y row 3"), "expected [5]"),
    "a product over rows": (
        one("matmul_tn", ["a row 2,3", "b row 4,5"], "y sum 3,5", batch=0),
        "multiplies [2, 3] by [4, 5] over rows",
    ),
    "a product's heads": (
        one("matmul_tn", ["a row 2,3", "b row 2,5"], "y sum 3,5", batch=1),
        "expected [2, 3, 5]",
    ),
    "a gradient of a table": (
        one("embed_grad", ["a row 5", "i row 2 int64"], "y sum 9,5", padding=-1),
        "adds up [5] by [2] to [9, 5]",
    ),
    "full of text": (one("full", [], "y row 3", value="0"), "is full of '0'"),
    "counted in two dimensions": (one("iota", [], "y shared 3,2", start=0, step=1), "along 2 dimensions"),
    "an opaque input too many": (
        one("opaque", ["a row 3", "b row 3"], "y row 3", target="f", args=(("input", 0),), kwargs=()),
        "has 2 inputs, but its arguments name [0]",
    ),
    "an opaque kind": (
        one("opaque", ["a row 3"], "y shared 3", target="f", args=(("input", 0),), kwargs=()),
        "gives a shared value, expected row",
    ),
    "opaque without a target": (one("opaque", [], "y row 3", args=(), kwargs=()), "attribute 'target'"),
}


def caught(broken, words, stage="body"):
    with pytest.raises(GraphError) as error:
        verify(broken, stage)
    assert words in str(error.value)


def test_a_broken_graph_is_caught():
    holds(caught, BROKEN)


def test_every_broken_rule_is_named_with_the_users_line():
    node = Node("add", ("a", "b"), ("y",), (), "step.py:7")
    bad = graph("ab", [node], "q", ["a row 3", "b row 4 float64", "y row 3"])
    with pytest.raises(GraphError) as caught:
        verify(bad, "joint")
    text = str(caught.value)
    assert "graph 'g' breaks a rule of stage 'joint'" in text
    for words in ("y = add(a, b) (step.py:7)", "do not go together", "from float32, float64", "result 'q'"):
        assert words in text


# h' = tanh(x @ w + h @ u); y = h' @ v
VALUES = ["x row 3", "h row 5", "w shared 3,5", "u shared 5,5", "v shared 5,2", "wu shared 5,5"]
VALUES += [
    "xw row 5",
    "hu row 5",
    "s row 5",
    "new row 5",
    "y row 2",
    "total sum 5",
    "twice sum 5",
    "half row 5",
]
XW = Node("matmul", ("x", "w"), ("xw",))
WU = Node("copy", ("u",), ("wu",))
HU = Node("matmul", ("h", "wu"), ("hu",))
S = Node("add", ("xw", "hu"), ("s",))
NEW = Node("tanh", ("s",), ("new",))
Y = Node("matmul", ("new", "v"), ("y",))
TOTAL = Node("sum_rows", ("new",), ("total",))
TWICE = Node("add", ("total", "total"), ("twice",))
BODY = graph("xhwuv", [XW, WU, HU, S, NEW, Y, TOTAL, TWICE], ["y", "new"], VALUES)
TURN = Carry("h", "new")
PRO, PRE = Region("prologue", (WU,)), Region("map", (XW,))
SCAN = Region("scan", (HU, S, NEW), (TURN,))
POST, EPI = Region("map", (Y, TOTAL)), Region("epilogue", (TWICE,))
LOOP = LoopPlan(BODY, (TURN,), (PRO, PRE, SCAN, POST, EPI), ("y", "twice"))


def regions(*parts):
    return replace(LOOP, regions=parts)


def test_a_good_plan_passes():
    verify(LOOP, "plan")
    verify(regions(PRO, PRE, replace(SCAN, nodes=(HU, S, NEW, TOTAL)), Region("map", (Y,)), EPI), "plan")
    verify(regions(PRO, replace(SCAN, nodes=(XW, HU, S, NEW, Y)), Region("map", (TOTAL,)), EPI), "adopted")


BROKEN_PLANS = {
    "a node in two regions": (
        regions(PRO, PRE, SCAN, replace(POST, nodes=(Y, TOTAL, NEW)), EPI),
        "new = tanh(s): is in 2 regions",
    ),
    "a node in no region": (
        regions(PRO, PRE, SCAN, replace(POST, nodes=(TOTAL,)), EPI),
        "y = matmul(new, v): is in 0 regions",
    ),
    "a node from nowhere": (
        regions(PRO, PRE, SCAN, replace(POST, nodes=(Y, TOTAL, Node("neg", ("new",), ("half",)))), EPI),
        "half = neg(new): is in a region, but not in the body",
    ),
    "a map that reads a later region": (
        regions(PRO, SCAN, PRE, POST, EPI),
        "the scan reads 'xw' of a later region",
    ),
    "a region in the wrong order inside": (
        regions(PRO, PRE, replace(SCAN, nodes=(S, HU, NEW)), POST, EPI),
        "the scan reads 'hu' of a later region",
    ),
    "post before the scan": (regions(PRO, PRE, POST, SCAN, EPI), "the map reads 'new' of a later region"),
    "a cycle in a map": (
        regions(PRO, PRE, replace(SCAN, nodes=(HU, S)), Region("map", (NEW, Y, TOTAL)), EPI),
        "new = tanh(s): lies on a cycle, but in a map",
    ),
    "a cycle in two scans": (
        regions(PRO, PRE, replace(SCAN, nodes=(HU, S)), Region("scan", (NEW,)), POST, EPI),
        "lie on one cycle, but in two regions",
    ),
    "a matmul in a scan without need": (
        regions(PRO, PRE, replace(SCAN, nodes=(HU, S, NEW, Y)), Region("map", (TOTAL,)), EPI),
        "y = matmul(new, v): lies on no cycle, but in a scan",
    ),
    "a late prologue": (regions(PRE, PRO, SCAN, POST, EPI), "a prologue is not the first region"),
    "an early epilogue": (regions(PRO, PRE, SCAN, EPI, POST), "an epilogue is not the last region"),
    "rows in the prologue": (
        regions(replace(PRO, nodes=(WU, XW)), SCAN, POST, EPI),
        "xw = matmul(x, w): makes a row value in a prologue",
    ),
    "shared values in a map": (
        regions(replace(PRE, nodes=(WU, XW)), SCAN, POST, EPI),
        "wu = copy(u): makes a shared value in a map",
    ),
    "a sum of rows in the epilogue": (
        regions(PRO, PRE, SCAN, Region("map", (Y,)), Region("epilogue", (TOTAL, TWICE))),
        "total = sum_rows(new): makes a sum value in a epilogue",
    ),
    "sums combined in a map": (
        regions(PRO, PRE, SCAN, replace(POST, nodes=(Y, TOTAL, TWICE))),
        "twice = add(total, total): makes a sum value in a map",
    ),
    "a map that carries": (
        regions(PRO, PRE, SCAN, replace(POST, carries=(TURN,)), EPI),
        "a map carries h",
    ),
    "a carry in two scans": (
        regions(PRO, PRE, SCAN, Region("scan", (), (TURN,)), POST, EPI),
        "'h' turns in two scans",
    ),
    "a scan's own carry": (
        regions(PRO, PRE, replace(SCAN, carries=(TURN, Carry("x", "xw"))), POST, EPI),
        "a scan carries 'x', which the loop does not",
    ),
    "a scan that does not carry": (
        regions(PRO, PRE, replace(SCAN, carries=()), POST, EPI),
        "the scan reads 'h' of a later region",
    ),
    "a carry of another shape": (replace(LOOP, carries=(Carry("h", "y"),)), "carry 'h' is row[5] float32"),
    "a carry to no parameter": (replace(LOOP, carries=(Carry("s", "new"),)), "'s' is no parameter"),
    "a carry from nothing": (
        replace(LOOP, carries=(Carry("h", "q"),)),
        "comes from 'q', which is not declared",
    ),
    "two carries to one parameter": (
        replace(LOOP, carries=(TURN, Carry("h", "s"))),
        "two carries end at 'h'",
    ),
    "linear without a carry": (
        regions(PRO, PRE, replace(SCAN, linear=("x",)), POST, EPI),
        "linear ['x'] are no carries of their scan",
    ),
    "a wanted value that is not made": (replace(LOOP, wanted=("y", "half")), "wanted 'half' is not made"),
    "a broken body": (replace(LOOP, body=replace(BODY, results=("half",))), "result 'half' is not made"),
}


def test_a_broken_plan_is_caught():
    holds(caught, {name: (*case, "plan") for name, case in BROKEN_PLANS.items()})


# of rows and of sequences: which region may add up which, by each op that does
ADDED_UP = {
    "matmul_tn": (["{} 3", "{} 5"], "y sum 3,5", {"batch": 0}),
    "sum_rows": (["{} 3"], "y sum 3", {}),
    "embed_grad": (["{} 5", "{} - int64"], "y sum 9,5", {"padding": -1}),
    "sum_steps": (["{} 3"], "y sequence 3", {}),
}


@pytest.mark.parametrize("op", ADDED_UP)
def test_a_region_adds_up_what_it_runs_over(op):
    inputs, out, attrs = ADDED_UP[op]
    for kind in ("row", "sequence") if op != "sum_steps" else ("row",):
        added = [f"{name} {text.format(kind)}" for name, text in zip("ab", inputs, strict=False)]
        body = one(op, added, out, **attrs)
        for region in ("map", "scan", "sequences"):
            plan = LoopPlan(body, (), (Region(region, body.nodes),), ("y",))
            if (kind == "sequence") == (region == "sequences"):
                if region != "scan" or op in TOTALS:
                    verify(plan, "plan")
                    verify(plan, "adopted")
            else:
                caught(plan, f"adds up {kind} values in a {region}", "plan")
                caught(plan, f"adds up {kind} values in a {region}", "adopted")


# y = x * w; backward: d_x = d_y * w, d_w = sum(d_y * x)
TIMES = [
    "x row 3",
    "w shared 3",
    "y row 3",
    "dy row 3",
    "dx row 3",
    "p row 3",
    "dw sum 3",
    "s row 3",
    "ds row 3",
]
FORWARD = graph("xsw", [Node("mul", ("x", "w"), ("y",))], ["y", "y"], TIMES)
DX, P = Node("mul", ("dy", "w"), ("dx",)), Node("mul", ("dy", "x"), ("p",))
DW = Node("sum_rows", ("p",), ("dw",))
BACKWARD = graph(["x", "w", "dy"], [DX, P, DW], ["dx", "dw"], TIMES)
PLAN = Plan(
    name="step",
    forward=LoopPlan(FORWARD, (Carry("s", "y"),), (Region("map", FORWARD.nodes),), ("y",)),
    backward=LoopPlan(BACKWARD, (), (Region("map", BACKWARD.nodes),), ("dx", "dw")),
    x=("x",),
    states=("s",),
    weights=("w",),
    y=("y",),
    new_states=("y",),
    kept=("x",),
    tangents=("dy", None),
    gradients=("dx", None, "dw"),
)


def test_good_halves_pass():
    verify(PLAN, "plan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": ("q",)}, "input 'q' is no parameter of the forward body"),
        ({"y": ("x",)}, "'x' is no result of the forward body"),
        ({"states": ()}, "the carries of the forward loop are not its states"),
        ({"tangents": ("dy",)}, "not one tangent for each result"),
        ({"kept": ("x", "w")}, "'w' is kept for each row, but is shared"),
        ({"kept": ("x", "p")}, "'p' is kept, but no parameter of the backward body"),
        ({"kept": ()}, "the backward body reads 'x', which nothing gives"),
        ({"tangents": (None, None)}, "the backward body reads 'dy', which nothing gives"),
        ({"shifted": ("x",)}, "shifted values are not kept states"),
        ({"gradients": ("p", None, "dw")}, "the gradient 'p' of 'x' is not given"),
        ({"gradients": ("dw", None, "dx")}, "the gradient 'dw' of 'x' is a sum value"),
        ({"backward": None}, "values are kept for a backward loop that is not there"),
    ],
)
def test_halves_that_do_not_fit_are_caught(change, words):
    with pytest.raises(GraphError) as caught:
        verify(replace(PLAN, **change), "plan")
    assert words in str(caught.value)
