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
    # pointwise, two and three inputs
    **_ops(Stage.POINTWISE, 2, "add sub mul div maximum minimum eq ne lt le gt ge and or xor"),
    **_ops(Stage.POINTWISE, 2, "pow remainder atan2", costly=True),
    **_ops(Stage.POINTWISE, 3, "where"),
    # over feature dimensions: attributes dims; the result keeps them as size 1
    **_ops(Stage.REDUCE, 1, "sum amax amin"),
    **_ops(Stage.REDUCE, 1, "argmax argmin"),  # attribute dim; None: all features
    # permute, flip: dims; slice: dim, start, end, step; cat: dim; reshape, expand: the result's shape
    **_ops(Stage.SHAPE, 1, "reshape permute expand slice flip"),
    **_ops(Stage.SHAPE, -1, "cat"),
    # made by fission alone: the rows one step earlier; for each row the boot value of its sequence
    **_ops(Stage.SHAPE, 1, "shift"),
    **_ops(Stage.SHAPE, 0, "spread"),
    **_ops(Stage.SHAPE, 2, "gather"),  # attribute dim: along a feature dimension, index per row
    **_ops(Stage.SHAPE, 2, "embed"),  # shared table [rows, ...], integer index per row
    # matmul: [.., K] x shared or per-row [.., K, N]; leading feature dimensions broadcast
    **_ops(Stage.MATMUL, 2, "matmul"),
    # over rows: a^T b of two row values; the sum over rows; attributes of embed_grad: count
    **_ops(Stage.ROWS, 2, "matmul_tn"),
    **_ops(Stage.ROWS, 1, "sum_rows"),
    **_ops(Stage.ROWS, 2, "embed_grad"),
    # full: value; iota: start, step; shape and dtype are the result's
    **_ops(Stage.SOURCE, 0, "full rand randn iota"),
    **_ops(Stage.OPAQUE, -1, "opaque"),
}

RANDOM = frozenset({"rand", "randn"})


def is_cheap(op: str) -> bool:
    """True for ops that a loop over elements can do on the way, without a pass of their own."""
    stage = OPS[op].stage
    return stage in (Stage.POINTWISE, Stage.REDUCE) or op in ("reshape", "expand", "slice", "cat", "full")
