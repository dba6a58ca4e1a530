"""Numbers in C: how they are written and held, and which text or function does an op on them."""

from __future__ import annotations

from math import isinf, isnan

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
TEXTS = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in INFIX.items()},
    "copy": "{0}", "not": "!{0}", "where": "{0} ? {1} : {2}", "isnan": "{0} != {0}",
}  # fmt: skip
# Functions of `sn_math.h`, and of `sn_special.h`, which only a source that calls one of them holds.
_MATH = frozenset(
    {"exp", "expm1", "tanh", "sigmoid", "log", "log1p", "atanh", "erf", "sqrt", "rsqrt", "abs", "floor",
     "ceil", "trunc", "round", "relu", "sign", "maximum", "minimum", "sin", "cos", "pow", "remainder"}
)  # fmt: skip
SPECIAL = frozenset(
    {"tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "exp2", "log2", "log10",
     "erfc", "erfinv", "lgamma", "digamma", "trigamma", "atan2", "hypot", "fmod", "copysign", "floor_divide"}
)  # fmt: skip
CALLS = SPECIAL | _MATH
OF_LIBM = SPECIAL | {"erf", "sin", "cos", "pow", "remainder"}  # which call C's own, in one type or both
START = {
    "sum": "0", "amax": "-INFINITY", "amin": "INFINITY", **dict.fromkeys(("argmax", "argmin"), "INT32_MAX"),
}  # fmt: skip
# What C does with whole numbers in its own way: they wrap around, the first of choices; `bits` has a
# type, `magnitude` of them without its sign.
_REST = "{0} % {1}"
WHOLE_NUMBERS = {
    **{op: f"(int64_t)((uint64_t){{0}} {INFIX[op]} (uint64_t){{1}})" for op in ("add", "sub", "mul")},
    "neg": "(int64_t)-(uint64_t){0}",
    "maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}", "abs": "{0} < 0 ? -{0} : {0}",
    "sign": "({0} > 0) - ({0} < 0)", "relu": "{0} < 0 ? 0 : {0}",
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), "{0}"),
    "floor_divide": f"{{0}} / {{1}} - ({_REST} != 0 && ({_REST} < 0) != ({{1}} < 0))",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "~{0}",
    "bitwise_left_shift": "(uint64_t){1} < {bits} ? (int64_t)((uint64_t){0} << {1}) : 0",
    "bitwise_right_shift": "{0} >> ((uint64_t){1} < {magnitude} ? {1} : {magnitude})",
    "remainder": f"{_REST} != 0 && ({_REST} < 0) != ({{1}} < 0) ? {_REST} + {{1}} : {_REST}",
}  # fmt: skip
# Of a value in a register; others are real.
KINDS = {
    "bool": "int", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
    "uint8": "uint8_t",
}  # fmt: skip
# What makes whole numbers of real ones.
WHOLE = {
    "int64": "sn_to_i64", "int32": "sn_to_i32", "int16": "sn_to_i32", "int8": "sn_to_i32",
    "uint8": "sn_to_i64",
}  # fmt: skip
# The least and the largest of a type: where a search for the largest and the smallest begins.
ENDS = {
    "int64": ("INT64_MIN", "INT64_MAX"), "int32": ("INT32_MIN", "INT32_MAX"),
    "int16": ("INT16_MIN", "INT16_MAX"), "int8": ("INT8_MIN", "INT8_MAX"), "uint8": ("0", "UINT8_MAX"),
}  # fmt: skip


def literal(number: float, real: str) -> str:
    """A number as C writes it.

    >>> literal(0.05, "float"), literal(1, "double")
    ('0.05f', '1.0')
    """
    tail = "f" if real == "float" else ""
    if isnan(number):
        return "NAN"
    if isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(float(number)) + tail
