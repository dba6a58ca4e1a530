"""The closed list of ops a body graph may hold, by stage.

Every executor and writer has a rule or a stated refusal for each op; what capture meets that is not in
the list becomes one `opaque` op, which calls torch: slower, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """How an op treats the features of a row."""

    POINTWISE = "pointwise"  # element by element, broadcasting
    REDUCE = "reduce"  # over feature dimensions, kept as size 1
    SHAPE = "shape"  # moves elements, computes nothing
    MATMUL = "matmul"  # contracts features
    WHOLE = "whole"  # an algorithm on whole features: picks, running totals, sorts, factors of matrices
    ROWS = "rows"  # sums over rows: legal only where the loop adds up over its steps
    SOURCE = "source"  # makes a value from nothing
    OPAQUE = "opaque"  # a torch call


@dataclass(frozen=True)
class Op:
    """One op: its stage, how many inputs it takes (-1: any), and whether it costs a transcendental."""

    name: str
    stage: Stage
    arity: int
    costly: bool = False


def _ops(stage: Stage, arity: int, names: str, costly: bool = False) -> dict[str, Op]:
    return {name: Op(name, stage, arity, costly) for name in names.split()}


OPS: dict[str, Op] = {
    # pointwise, one input; `cast` takes the dtype of its result; written: a step's own, which rounds
    **_ops(Stage.POINTWISE, 1, "neg abs sign relu floor ceil round trunc not isnan cast copy reciprocal"),
    **_ops(Stage.POINTWISE, 1, "exp expm1 log log1p sqrt rsqrt sin cos tanh sigmoid erf", costly=True),
    **_ops(Stage.POINTWISE, 1, "tan asin acos atan sinh cosh asinh acosh atanh exp2 log2 log10", costly=True),
    **_ops(Stage.POINTWISE, 1, "erfc erfinv lgamma digamma trigamma", costly=True),
    # of whole numbers, bit by bit; a shift by less than none or beyond the width leaves no bits, as torch's
    **_ops(Stage.POINTWISE, 1, "bitwise_not"),
    **_ops(Stage.POINTWISE, 2, "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"),
    # pointwise, two and three inputs
    **_ops(Stage.POINTWISE, 2, "add sub mul div maximum minimum eq ne lt le gt ge and or xor"),
    **_ops(Stage.POINTWISE, 2, "pow remainder atan2 hypot fmod copysign floor_divide", costly=True),
    **_ops(Stage.POINTWISE, 3, "where"),
    # over feature dimensions: attributes dims; the result keeps them as size 1
    **_ops(Stage.REDUCE, 1, "sum amax amin"),
    **_ops(Stage.REDUCE, 1, "argmax argmin"),  # attribute dim; None: all features
    # permute, flip: dims; slice: dim, start, end, step; cat: dim; reshape, expand: the result's shape
    **_ops(Stage.SHAPE, 1, "reshape permute expand slice flip"),
    **_ops(Stage.SHAPE, -1, "cat"),
    # made by fission alone: the rows one step earlier; for each row the value of its sequence, by default the
    # boot value of the carry that it names
    **_ops(Stage.SHAPE, 1, "shift"),
    **_ops(Stage.SHAPE, -1, "spread"),
    **_ops(Stage.SHAPE, 2, "embed"),  # shared table [rows, ...], integer index per row
    # along a feature dimension, attribute dim: x and an index; x, an index and what is put there
    **_ops(Stage.WHOLE, 2, "gather"),
    **_ops(Stage.WHOLE, 3, "scatter scatter_add scatter_amax scatter_amin scatter_prod"),
    # running totals; where the largest and the smallest so far are
    **_ops(Stage.WHOLE, 1, "cumsum cumprod"),
    **_ops(Stage.WHOLE, 1, "logcumsumexp", costly=True),
    **_ops(Stage.WHOLE, 1, "cumargmax cumargmin"),
    # places in order, as torch orders equals: descending, stable; of the first k: largest, sorted
    **_ops(Stage.WHOLE, 1, "argsort topk"),
    # of matrices, the last two dimensions. lu: the factors, and a last row of what rows were swapped with
    **_ops(Stage.WHOLE, 1, "lu cholesky matrix_exp"),
    **_ops(Stage.WHOLE, 2, "lu_solve solve_triangular matrix_exp_grad"),
    # matmul: [.., K] x shared or per-row [.., K, N]; leading feature dimensions broadcast
    **_ops(Stage.MATMUL, 2, "matmul"),
    # over rows: a^T b of two row values; the sum over rows; attributes of embed_grad: count
    **_ops(Stage.ROWS, 2, "matmul_tn"),
    **_ops(Stage.ROWS, 1, "sum_rows"),
    **_ops(Stage.ROWS, 1, "sum_steps"),  # over the rows of each sequence
    **_ops(Stage.ROWS, 2, "embed_grad"),
    # full: value; iota: start, step; shape and dtype are the result's
    **_ops(Stage.SOURCE, 0, "full rand randn iota"),
    **_ops(Stage.OPAQUE, -1, "opaque"),
}

# What is put into a value, and what becomes of both where they meet, in torch's words; none: it is replaced.
SCATTERS = {
    "scatter": "", "scatter_add": "sum", "scatter_amax": "amax", "scatter_amin": "amin",
    "scatter_prod": "prod",
}  # fmt: skip
ROUNDED = frozenset({"bfloat16", "float16"})
FLOATS = ROUNDED | {"float32", "float64"}
VIEWS = frozenset({"slice", "permute", "expand", "reshape", "flip"})
TOTALS = frozenset({"sum_rows", "sum_steps"})  # what a scan adds up to as it goes
RANDOM = frozenset({"rand", "randn"})


def is_cheap(op: str) -> bool:
    """True for ops that a loop over elements can do on the way, without a pass of their own."""
    stage = OPS[op].stage
    return stage in (Stage.POINTWISE, Stage.REDUCE) or op in ("reshape", "expand", "slice", "cat", "full")
