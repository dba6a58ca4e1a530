"""Calls of the C functions that work on whole features of a row: `sn_picks.h` and `sn_factors.h`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stepnet.executors.schedule.program import Program
from stepnet.executors.schedule.views import contiguous
from stepnet.ir.graph import Node
from stepnet.ir.ops import OPS, SCATTERS, Stage

from .build import header
from .numbers import ENDS, SPECIAL
from .places import Places

# By the dtype of the elements: the suffix of their functions, their type in C, and that of their totals.
_ELEMENTS = {
    "float64": ("f64", "double", "double"), "float32": ("f32", "float", "double"),
    "int64": ("i64", "int64_t", "int64_t"), "int32": ("i32", "int32_t", "int64_t"),
    "int16": ("i16", "int16_t", "int64_t"), "int8": ("i8", "int8_t", "int64_t"),
    "uint8": ("u8", "uint8_t", "int64_t"), "bool": ("u8", "uint8_t", "int64_t"),
}  # fmt: skip
_LEAST = {
    "double": "-INFINITY",
    "float": "-INFINITY",
    **{f"{name}_t": least for name, (least, _) in ENDS.items()},
}
_FACTORS = frozenset(
    {"lu", "lu_solve", "cholesky", "solve_triangular", "matrix_exp", "matrix_exp_grad", "logcumsumexp"}
)


def headers(programs: Sequence[Program]) -> str:
    """What a source of these scans stands on besides math, products and threads."""
    nodes = [(p, node) for p in programs for node in p.nodes]
    whole = [(p, node) for p, node in nodes if OPS[node.op].stage is Stage.WHOLE]
    picked = {_ELEMENTS[p.value(n.inputs[0]).dtype] for p, n in whole if n.op not in _FACTORS}
    parts = [
        f"#define SN_T {kind}\n#define SN_TOTAL {total}\n#define SN_P(name) name##_{suffix}\n"
        f"#define SN_LEAST {_LEAST[kind]}\n" + header("sn_picks.h")
        for suffix, kind, total in sorted(picked)
    ]
    for suffix, kind, _ in sorted({_ELEMENTS[p.real] for p, node in whole if node.op in _FACTORS}):
        parts.append(_reals(kind, suffix) + header("sn_factors.h"))
    for suffix, kind, _ in sorted({_ELEMENTS[p.real] for p, node in nodes if node.op in SPECIAL}):
        libm = "#define SN_LIBM(name) name" + ("##f" if kind == "float" else "")
        parts.append(_reals(kind, suffix) + libm + "\n" + header("sn_special.h"))
    return "\n".join(parts)


def _reals(kind: str, suffix: str) -> str:
    return f"#define SN_REAL {kind}\n#define SN_(name) name##_{suffix}\n"


_SPARE = frozenset({"argsort", "topk", "matrix_exp", "matrix_exp_grad"})
_FEW_ITEMS, _FEW_NUMBERS, _ITEM = 512, 256, 16  # as in `sn_picks.h` and `sn_factors.h`


def spare_bytes(p: Program, node: Node) -> int:
    """What a call needs besides its operands: 0 if it has room for that on the stack."""
    if node.op not in _SPARE:
        return 0
    value = p.value(node.inputs[0])
    if node.op in ("argsort", "topk"):
        n = value.shape[node.attr("dim")]
        return 0 if n <= _FEW_ITEMS else n * _ITEM * (2 if node.op == "argsort" else 1)
    times, n = (3, value.shape[-1]) if node.op == "matrix_exp" else (5, 2 * value.shape[-1])
    return (
        0
        if n * n <= _FEW_NUMBERS
        else times * n * n * p.value(node.output).bytes // p.value(node.output).size
    )


def call_text(w: Places, node: Node) -> list[str]:
    """The lines of one call, and of copies to other places where its result is kept."""
    p, op = w.p, node.op
    homes = w.homes[node.output] if not w.lanes else [None]
    to = w.pointer(node.output, homes[0])
    side, apart = ((w.lanes,), (1,)) if w.lanes else ((), ())  # rows abreast: one more dimension, the last
    given = [_pointer(w, name) for name in node.inputs]
    first = p.value(node.inputs[0])
    suffix = _ELEMENTS[first.dtype][0]
    shared = next((name for name in ("cumarg", "scatter") if op.startswith(name)), op)
    name = f"sn_{shared}_{suffix}"
    last: list[object]
    if op == "gather" or op in SCATTERS:
        index, dim = p.value(node.inputs[1]).shape, node.attr("dim")
        sizes = _numbers((*index, *side, first.shape[dim]))
        steps = _numbers((*(step * prod(side) for step in contiguous(first.shape)), *apart))
        walk = [sizes, len(index) + len(side), dim, steps]
        whole = [] if op == "gather" else [first.size * prod(side)]
        last = [*whole, *walk, *([] if op == "gather" else [list(SCATTERS).index(op)]), "&wrong"]
    elif op in _FACTORS and op != "logcumsumexp":
        n = first.shape[-1]
        count = prod(first.shape[:-2])
        last = [count, n]
        if op in ("lu_solve", "solve_triangular"):
            last.append(p.value(node.inputs[1]).shape[-1])
        last += [int(value) for _, value in node.attrs]
        if op in ("lu", "cholesky"):
            last.append("&wrong")
    else:
        dim = node.attr("dim")
        last = [prod(first.shape[:dim]), first.shape[dim], prod((*first.shape[dim + 1 :], *side))]
        if op == "topk":
            last.append(p.value(node.output).shape[dim])
        if op.startswith("cumarg"):
            last.append(int(op == "cumargmax"))
        last += [int(value) for key, value in node.attrs if key != "dim"]
    if op in _SPARE:
        last.append("sn_spare" if spare_bytes(p, node) else 0)
    lines = [f"{name}({', '.join(map(str, (to, *given, *last)))});"]
    for home in homes[1:]:
        there = w.pointer(node.output, home)
        lines.append(f"memcpy({there}, {to}, {p.value(node.output).size} * sizeof *{to});")
    return lines


def _pointer(w: Places, name: str) -> str:
    """Where the elements of an operand begin: they stand one after the other."""
    seen = w.p.seen(name)
    offset = seen.offset * max(w.lanes, 1)
    return f"{w.pointer(seen.base, None)} + {offset}" if offset else w.pointer(seen.base, None)


def _numbers(numbers: Sequence[int]) -> str:
    return f"(const int64_t[]){{{', '.join(map(str, numbers))}}}"
