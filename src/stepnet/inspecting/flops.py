"""What a layer costs, from the shapes of what it reads and gives.

Counted as `stepnet.explain` counts: 2 K for each element of a product over K, 10 for each exp, tanh and the
like, 1 for other arithmetic and for each element that a reduction reads, 0 for moving data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from stepnet.explaining.cost import TRANSCENDENTAL
from stepnet.openvino.records import Layer

from .records import Cost


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


VIEWS = frozenset({"reshape", "squeeze", "unsqueeze", "shapeof", "parameter", "result", "const"})
MOVES = VIEWS | _names(
    "broadcast concat convert convertlike convertpromotetypes gather gatherelements gathernd nonzero onehot"
    " pad range reversesequence scatterelementsupdate scatterndupdate scatterupdate select slice split"
    " stridedslice tile topk transpose variadicsplit"
)
COSTLY = _names(
    "acos acosh asin asinh atan atanh cos cosh elu erf exp gelu log mish power selu sigmoid sin sinh softplus"
    " sqrt swish tan tanh"
)
CHEAP = _names(
    "abs add ceiling clamp divide equal floor floormod greater greaterequal hardsigmoid hsigmoid hswish"
    " isfinite isnan less lessequal logicaland logicalnot logicalor logicalxor maximum minimum mod multiply"
    " negative notequal prelu relu round sign softsign squareddifference subtract"
)
READS = _names(
    "cumsum reducel1 reducel2 reducelogicaland reducelogicalor reducemax reducemean reducemin reduceprod"
    " reducesum"
)
# Operations for each element of the result, where one pass does not do.
SEVERAL = {
    "softmax": TRANSCENDENTAL + 4,  # the largest, less it, exp, the sum, the quotient
    "logsoftmax": TRANSCENDENTAL + 4,
    "mvn": 6,  # mean, less it, its square, the mean of those, the root's product
    "normalizel2": 3,
    "batchnorminference": 2,
    "fakequantize": 6,
}
GATES = {"lstmcell": 4, "grucell": 3, "rnncell": 1}
SEQUENCES = {"lstmsequence": "lstmcell", "grusequence": "grucell", "rnnsequence": "rnncell"}
_AROUND = {
    "lstmcell": 5 * TRANSCENDENTAL + 12,
    "grucell": 3 * TRANSCENDENTAL + 12,
    "rnncell": TRANSCENDENTAL + 2,
}
PRODUCTS = frozenset({"matmul", "convolution", "groupconvolution", "maxpool", "avgpool", *GATES, *SEQUENCES})


def layer_cost(layer: Layer, given: Sequence[Any], gave: Sequence[Any]) -> Cost:
    """The cost of running a layer once; not of one that has a body."""
    kind = layer.type.lower()
    values = [*given, *gave]
    if kind in VIEWS:
        return Cost()
    if not gave or not all(isinstance(value, Tensor) for value in values):
        return Cost(unknown=1)
    moved = sum(value.numel() * value.element_size() for value in values)
    return Cost(_flops(kind, layer, given, gave[0]), moved)


def _flops(kind: str, layer: Layer, given: Sequence[Tensor], out: Tensor) -> int:
    size = out.numel()
    if kind in MOVES:
        return 0
    if kind in COSTLY:
        return TRANSCENDENTAL * size
    if kind in CHEAP:
        return size
    if kind in READS:
        return given[0].numel()
    if kind in SEVERAL:
        return SEVERAL[kind] * size
    if kind == "matmul":
        a = given[0]
        over = -2 if layer.attributes.get("transpose_a", "false").strip().lower() in ("true", "1") else -1
        return 2 * (a.shape[over] if a.dim() > 1 else a.shape[0]) * size
    if kind == "convolution":
        return 2 * math.prod(given[1].shape[1:]) * size
    if kind == "groupconvolution":
        return 2 * math.prod(given[1].shape[2:]) * size
    if kind in ("maxpool", "avgpool"):
        return math.prod(int(k) for k in layer.attributes["kernel"].split(",")) * size
    both = cell_halves(layer, given)
    steps = 1
    if kind in SEQUENCES:
        steps = given[0].shape[1] * (2 if given[1].shape[1] == 2 else 1)
    return steps * sum(both)


def cell_halves(layer: Layer, given: Sequence[Tensor]) -> tuple[int, int]:
    """What one step of a cell costs: its product with the input, and the rest."""
    kind = SEQUENCES.get(layer.type.lower(), layer.type.lower())
    x, h = given[0], given[1]
    batch, wide, hidden = x.shape[0], x.shape[-1], h.shape[-1]
    gates = GATES[kind] * hidden
    return 2 * batch * wide * gates, 2 * batch * hidden * gates + batch * hidden * _AROUND[kind]
