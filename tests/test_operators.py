"""Every op of the closed list in every table: a rule that works, or the reason why there is none.

STEPNET_UPDATE_GOLDEN=1 prints the table of docs/operators.md anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from stepnet.api import recurrent
from stepnet.compiler.rules.builder import NOT_CAPTURED
from stepnet.engine import plans
from stepnet.errors import GraphError, Unsupported
from stepnet.executors.c.limits import REFUSED as NOT_IN_C
from stepnet.executors.c.source import write as write_c
from stepnet.executors.torch_ops.ops import REFUSED as NOT_IN_TORCH
from stepnet.executors.torch_ops.ops import bind
from stepnet.export.rows import RULES
from stepnet.ir.graph import Graph, Node, Value
from stepnet.ir.ops import OPS, RANDOM, SCATTERS, Stage
from stepnet.ir.plan import Carry, LoopPlan, Region
from stepnet.ir.verify import MADE_BY_FISSION, verify
from stepnet.openvino.writing.from_graph import OPENVINO
from tables import holds

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
BEGIN, END = "<!-- the table -->\n", "<!-- the end of the table -->\n"

# ---- one node of each op

INPUTS = {
    "a": ("row", (4,), "float64"), "b": ("row", (4,), "float64"), "m": ("row", (4,), "bool"),
    "n": ("row", (4,), "bool"), "i": ("row", (4,), "int64"),
    "j": ("row", (4,), "int64"), "t": ("shared", (5, 4), "float64"),
    "w": ("shared", (4, 3), "float64"),
}  # fmt: skip
LIKE_A = ("row", (4,), "float64")
LOGIC, TESTS = ("and", "or", "xor", "not"), ("eq", "ne", "lt", "le", "gt", "ge", "isnan")
# What is not one or two of `a` and `b` to a value like `a`: inputs, the result, attributes.
FORMS = {
    **{op: ("mn"[: OPS[op].arity], ("row", (4,), "bool"), {}) for op in LOGIC},
    **{op: ("ab"[: OPS[op].arity], ("row", (4,), "bool"), {}) for op in TESTS},
    **{op: ("ij"[: OPS[op].arity], INPUTS["i"], {}) for op in OPS if op.startswith("bitwise")},
    "where": ("mab", LIKE_A, {}),
    "cast": ("m", LIKE_A, {}),
    **{op: ("a", ("row", (1,), "float64"), {"dims": (0,)}) for op in ("sum", "amax", "amin")},
    **{op: ("a", ("row", (1,), "int64"), {"dim": 0}) for op in ("argmax", "argmin")},
    "reshape": ("a", ("row", (2, 2), "float64"), {}),
    "permute": ("a", LIKE_A, {"dims": (0,)}),
    "expand": ("a", ("row", (3, 4), "float64"), {}),
    "slice": ("a", ("row", (2,), "float64"), {"dim": 0, "start": 1, "end": 3, "step": 1}),
    "flip": ("a", LIKE_A, {"dims": (0,)}),
    "cat": ("ab", ("row", (8,), "float64"), {"dim": 0}),
    "gather": ("ai", LIKE_A, {"dim": 0}),
    **{op: ("aia", LIKE_A, {"dim": 0}) for op in SCATTERS},
    **{op: ("a", LIKE_A, {"dim": 0}) for op in ("cumsum", "cumprod", "logcumsumexp")},
    **{op: ("a", ("row", (4,), "int64"), {"dim": 0}) for op in ("cumargmax", "cumargmin")},
    "argsort": ("a", ("row", (4,), "int64"), {"dim": 0, "descending": True, "stable": False}),
    "topk": ("a", ("row", (2,), "int64"), {"dim": 0, "largest": True, "sorted": True}),
    "lu": ("q", ("row", (3, 2), "float64"), {"check": False}),
    "cholesky": ("q", ("row", (2, 2), "float64"), {"check": False}),
    "matrix_exp": ("q", ("row", (2, 2), "float64"), {}),
    "matrix_exp_grad": ("qq", ("row", (2, 2), "float64"), {}),
    "lu_solve": ("pq", ("row", (2, 2), "float64"), {"transposed": False}),
    "solve_triangular": ("qq", ("row", (2, 2), "float64"), {"upper": True, "unit": False}),
    "embed": ("ti", ("row", (4, 4), "float64"), {}),
    "matmul": ("aw", ("row", (3,), "float64"), {}),
    "matmul_tn": ("ab", ("sum", (4, 4), "float64"), {"batch": 0}),
    "sum_rows": ("a", ("sum", (4,), "float64"), {}),
    "sum_steps": ("a", ("sequence", (4,), "float64"), {}),
    "embed_grad": ("ei", ("sum", (5, 4), "float64"), {"padding": -1}),
    "full": ("", LIKE_A, {"value": 0.5}),
    "iota": ("", ("shared", (4,), "int64"), {"start": 0, "step": 1}),
    "opaque": (
        "a", LIKE_A, {"target": "aten.cumsum.default", "args": (("input", 0), ("value", -1)), "kwargs": ()}
    ),
}  # fmt: skip
INPUTS["e"] = ("row", (4, 4), "float64")
INPUTS["q"] = ("row", (2, 2), "float64")
INPUTS["p"] = ("row", (3, 2), "float64")


def example(op):
    """A loop of one carried value that holds one node of an op."""
    inputs, result, attributes = FORMS.get(op, ("ab"[: OPS[op].arity], LIKE_A, {}))
    values = {name: Value(name, *form) for name, form in {**INPUTS, "h": LIKE_A, "h_next": LIKE_A}.items()}
    values["y"] = Value("y", *result)
    node = Node(op, tuple(inputs), ("y",), tuple(attributes.items()), "step.py:7")
    turn = Node("add", ("h", "a"), ("h_next",))
    carry = Carry("h", "h_next")
    body = Graph("example", (*INPUTS, "h"), (node, turn), ("y", "h_next"), values)
    region = Region("scan", (node, turn), (carry,))
    return LoopPlan(body, (carry,), (region,), ("y",)), region, node


def test_the_example_keeps_the_rules_of_its_op():
    holds(lambda op: verify(example(op)[0].body, "plan"), {op: (op,) for op in {*OPS} - {*MADE_BY_FISSION}})


# ---- the tables

# One expression for each op that a rule makes: of rows x and h, and weights.
W, TABLE = torch.randn(4, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
WRITTEN = {
    "neg": lambda x, h: -h, "abs": lambda x, h: h.abs(), "sign": lambda x, h: h.sign(),
    "relu": lambda x, h: h.relu(), "floor": lambda x, h: h.floor(), "ceil": lambda x, h: h.ceil(),
    "round": lambda x, h: h.round(), "trunc": lambda x, h: h.trunc(), "not": lambda x, h: ~(h > 0),
    "isnan": lambda x, h: h.isnan(), "cast": lambda x, h: h.float(),
    "reciprocal": lambda x, h: h.reciprocal(), "exp": lambda x, h: h.exp(), "expm1": lambda x, h: h.expm1(),
    "log": lambda x, h: h.log(), "log1p": lambda x, h: h.log1p(), "sqrt": lambda x, h: h.sqrt(),
    "rsqrt": lambda x, h: h.rsqrt(), "sin": lambda x, h: h.sin(), "cos": lambda x, h: h.cos(),
    "tanh": lambda x, h: h.tanh(), "sigmoid": lambda x, h: h.sigmoid(), "erf": lambda x, h: h.erf(),
    "add": lambda x, h: h + x, "sub": lambda x, h: h - x, "mul": lambda x, h: h * x,
    "div": lambda x, h: h / x, "maximum": lambda x, h: torch.maximum(h, x),
    "minimum": lambda x, h: torch.minimum(h, x), "eq": lambda x, h: h == x, "ne": lambda x, h: h != x,
    "lt": lambda x, h: h < x, "le": lambda x, h: h <= x, "gt": lambda x, h: h > x,
    "ge": lambda x, h: h >= x, "and": lambda x, h: (h > 0) & (x > 0), "or": lambda x, h: (h > 0) | (x > 0),
    "xor": lambda x, h: (h > 0) ^ (x > 0), "pow": lambda x, h: h.exp() ** x,
    "remainder": lambda x, h: torch.remainder(h, 3.0), "atan2": lambda x, h: torch.atan2(h, x),
    "bitwise_not": lambda x, h: ~h.long(), "bitwise_and": lambda x, h: h.long() & x.long(),
    "bitwise_or": lambda x, h: h.long() | x.long(), "bitwise_xor": lambda x, h: h.long() ^ x.long(),
    "bitwise_left_shift": lambda x, h: h.long() << 2, "bitwise_right_shift": lambda x, h: h.long() >> 1,
    "where": lambda x, h: torch.where(h > 0, h, x), "sum": lambda x, h: h.sum(-1),
    "amax": lambda x, h: h.amax(-1), "amin": lambda x, h: h.amin(-1), "argmax": lambda x, h: h.argmax(-1),
    "argmin": lambda x, h: h.argmin(-1), "reshape": lambda x, h: h.reshape(-1, 2, 2) * 2,
    "permute": lambda x, h: h.view(-1, 2, 2).transpose(1, 2) * 2,
    "expand": lambda x, h: h[:, None].expand(-1, 3, -1) * 2, "slice": lambda x, h: h[:, 1:3] * 2,
    "flip": lambda x, h: h.flip(1), "cat": lambda x, h: torch.cat([h, x], 1),
    "gather": lambda x, h: h.gather(1, (x > 0).long()),
    "embed": lambda x, h: torch.nn.functional.embedding((x > 0).long(), TABLE),
    "matmul": lambda x, h: h @ W, "full": lambda x, h: h + torch.full_like(x, 0.5),
    "rand": lambda x, h: torch.rand_like(h), "randn": lambda x, h: torch.randn_like(h),
    "iota": lambda x, h: h * torch.arange(4), "opaque": lambda x, h: torch.i0(h),
    "tan": lambda x, h: h.tan(), "acosh": lambda x, h: h.acosh(), "exp2": lambda x, h: h.exp2(),
    "log2": lambda x, h: h.log2(), "log10": lambda x, h: h.log10(), "erfc": lambda x, h: h.erfc(),
    "lgamma": lambda x, h: h.lgamma(), "digamma": lambda x, h: h.digamma(), "asin": lambda x, h: h.asin(),
    "acos": lambda x, h: h.acos(), "atan": lambda x, h: h.atan(), "sinh": lambda x, h: h.sinh(),
    "cosh": lambda x, h: h.cosh(), "asinh": lambda x, h: h.asinh(), "atanh": lambda x, h: h.atanh(),
    "erfinv": lambda x, h: h.erfinv(),
    "trigamma": lambda x, h: torch.polygamma(1, h), "hypot": lambda x, h: torch.hypot(h, x),
    "fmod": lambda x, h: torch.fmod(h, 3.0), "copysign": lambda x, h: torch.copysign(h, x),
    "floor_divide": lambda x, h: torch.floor_divide(h.detach(), 3.0),
    "scatter": lambda x, h: h.scatter(1, (x > 0).long(), x),
    "scatter_add": lambda x, h: h.scatter_add(1, (x > 0).long(), x),
    **{
        op: lambda x, h, how=SCATTERS[op]: h.scatter_reduce(1, (x > 0).long(), x, how)
        for op in ("scatter_amax", "scatter_amin", "scatter_prod")
    },
    "cumsum": lambda x, h: h.cumsum(-1), "cumprod": lambda x, h: h.cumprod(-1),
    "logcumsumexp": lambda x, h: h.logcumsumexp(-1), "cumargmax": lambda x, h: h.cummax(-1)[1],
    "cumargmin": lambda x, h: h.cummin(-1)[1], "argsort": lambda x, h: h.argsort(-1),
    "topk": lambda x, h: h.topk(2)[1], "matrix_exp": lambda x, h: torch.matrix_exp(h.view(-1, 2, 2)),
    "matrix_exp_grad": lambda x, h: torch.matrix_exp(h.view(-1, 2, 2)),
    "lu": lambda x, h: torch.linalg.inv(square(h)), "lu_solve": lambda x, h: torch.linalg.inv(square(h)),
    "cholesky": lambda x, h: torch.linalg.cholesky(square(h)),
    "solve_triangular": lambda x, h: torch.linalg.cholesky(square(h)),
}  # fmt: skip


def square(h):
    """A positive-definite matrix of each row."""
    m = h.view(-1, 2, 2)
    return m @ m.mT + torch.eye(2, dtype=h.dtype)


def captured(expressions):
    """The ops of a step's joint graph, forward and backward."""
    table, w, bias = (t.clone().requires_grad_() for t in (TABLE, W, W[0]))

    def step(x, h):
        y = {name: expression(x, h) for name, expression in expressions.items()}
        y["weights"] = h @ w + bias + torch.nn.functional.embedding((x > 0).long(), table).sum(1)
        return y, torch.tanh(h + x)

    plans.forget()
    recurrent(
        step,
        torch.randn(2, 3, 4, dtype=torch.float64),
        torch.zeros(3, 4, dtype=torch.float64),
        backend="eager",
    )
    (entry,) = plans._entries.values()
    return {node.op for node in entry.compiled.joint.graph.nodes}


def test_a_rule_makes_every_op_or_a_reason_says_who_does():
    made = captured(WRITTEN)
    assert {op for op in OPS if op not in made} == set(NOT_CAPTURED)


EVERY_OP = {op: (op,) for op in OPS}


def test_generated_c_writes_each_op_or_refuses_it():
    holds(written_in_c_or_refused, EVERY_OP)


def written_in_c_or_refused(op):
    loop, region, _ = example(op)
    if op not in NOT_IN_C:
        assert "for (" in write_c(loop, region, "example").text
        return
    with pytest.raises(Unsupported) as caught:
        write_c(loop, region, "example")
    assert caught.value.line == "step.py:7"


def test_torch_computes_each_op_or_refuses_it():
    holds(computed_by_torch_or_refused, EVERY_OP)


def computed_by_torch_or_refused(op):
    loop, _, node = example(op)
    if op in NOT_IN_TORCH:
        with pytest.raises(GraphError, match=f"no torch meaning for op '{op}'"):
            bind(loop.body, node)
        return
    rows, out = 3, loop.body.values["y"]
    given = []
    for value in (loop.body.values[name] for name in node.inputs):
        shape = (rows,) * (value.kind == "row") + value.shape
        given.append(torch.rand(shape, dtype=torch.float64).mul(3).to(getattr(torch, value.dtype)))
    found = bind(loop.body, node)(*given, rows=rows)
    assert found.shape == (rows,) * (out.kind == "row") + out.shape
    assert found.dtype is getattr(torch, out.dtype)


# ---- the page


def columns(op):
    """Why a table has no rule for an op, by table; None where it has one."""
    backward_alone = "it adds up over rows, which gradients of weights do alone"
    forward = backward_alone if OPS[op].stage is Stage.ROWS else NOT_IN_C.get(op)
    return {
        "captured": NOT_CAPTURED.get(op),
        "C, forward": forward,
        "C, backward": NOT_IN_C.get(op),
        "torch ops": NOT_IN_TORCH.get(op),
        "OpenVINO": not_in_a_file(op),
    }


def not_in_a_file(op):
    if op in RANDOM:
        return "a written model draws no noise"
    if OPS[op].stage is Stage.ROWS:
        return "it belongs to backward bodies, which are not written"
    written = op in RULES or op in MADE_BY_FISSION  # those are written with the loop
    return OPENVINO.refused.get(op, None if written else "the step is written whole")


def table():
    """The page's table, a row for each op, and the reasons below it."""
    reasons, lines = {}, []
    for op, properties in OPS.items():
        cells = []
        for reason in columns(op).values():
            cells.append("yes" if reason is None else str(reasons.setdefault(reason, len(reasons) + 1)))
        lines.append(f"| `{op}` | {properties.stage.value} | " + " | ".join(cells) + " |")
    heads = ["op", "kind", *columns("add")]
    text = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines, ""]
    return "\n".join([*text, *(f"{at}. {reason}" for reason, at in reasons.items())]) + "\n"


def test_the_page_shows_the_tables():
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "STEPNET_UPDATE_GOLDEN" in os.environ:
        PAGE.write_text(wanted, encoding="utf-8")
        text = wanted
    assert text == wanted, "STEPNET_UPDATE_GOLDEN=1 prints it anew"


def test_reasons_are_of_ops():
    for reasons in (NOT_CAPTURED, NOT_IN_C, NOT_IN_TORCH):
        assert set(reasons) <= set(OPS)
