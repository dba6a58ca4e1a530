"""The cost model: floating-point operations of a plan's nodes, of torch calls and of the layers of files.

A product that sums over K costs 2 K for each element of its result; exp, tanh and the like cost 10 an
element, other arithmetic 1; a reduction costs 1 for each element that it reads. Moving data costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from stepnet.ir.graph import Graph, Node
from stepnet.ir.ops import OPS, RANDOM, TOTALS, Stage
from stepnet.ir.plan import LoopPlan, Region

from .records import Cost, Weight

TRANSCENDENTAL = 10  # a polynomial of about that many operations
_PER_ELEMENT: dict[Weight, int] = {"costly": TRANSCENDENTAL, "cheap": 1}


def product_flops(contracted: int, elements: int) -> int:
    """Operations of a product: `contracted` multiplications and additions for each element of the result."""
    return 2 * contracted * elements


def pointwise_flops(weight: Weight, elements: int) -> int:
    """Operations of arithmetic, element by element; 0 for moved data."""
    return _PER_ELEMENT.get(weight, 0) * elements


# -- a plan's nodes -----------------------------------------------------------------------------------------

_MOVED_NODES = frozenset({"copy", "cast", "full", "iota"})


def weight(node: Node) -> Weight:
    """The kind of work that a node does."""
    stage = OPS[node.op].stage
    if stage is Stage.OPAQUE:
        return "call"
    if stage is Stage.MATMUL or node.op == "matmul_tn":
        return "matmul"
    if node.op in _MOVED_NODES or stage is Stage.SHAPE:
        return "move"
    return "costly" if OPS[node.op].costly or node.op in RANDOM else "cheap"


def contracts(node: Node, graph: Graph) -> int:
    """The length of the dimension that a matmul sums over, on one row; 0 for other nodes."""
    if node.op == "matmul":
        return graph.values[node.inputs[0]].shape[-1]
    if node.op == "matmul_tn":  # [.., K] and [.., N] of each row: all leading elements are added up
        first, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        return first.size * graph.values[node.inputs[1]].shape[-1] // max(result.size, 1)
    return 0


def node_flops(node: Node, graph: Graph, rows: int, sequences: int) -> int:
    """Floating-point operations of a node over a table of rows, or of what each sequence has."""
    kind, stage = weight(node), OPS[node.op].stage
    result = graph.values[next(name for name in node.outputs if name)]
    over = {graph.values[name].kind for name in node.inputs} if stage is Stage.ROWS else {result.kind}
    times = rows if "row" in over else sequences if "sequence" in over else 1
    if kind == "matmul":
        return product_flops(contracts(node, graph), result.size) * times
    if kind in ("cheap", "costly") and (stage is Stage.REDUCE or node.op in (*TOTALS, "embed_grad")):
        return graph.values[node.inputs[0]].size * times
    return pointwise_flops(kind, result.size) * times


def region_border(loop: LoopPlan, region: Region) -> tuple[list[str], list[str]]:
    """The inputs and the outputs of a region.

    Of a prologue those of the ops that compute: the others are views of weights, and constants.
    """
    if region.kind != "prologue":
        return region.read, loop.outputs(region)
    nodes = [node for node in region.nodes if weight(node) != "move"]
    outputs = dict.fromkeys(name for node in nodes for name in node.outputs)
    inputs = dict.fromkeys(name for node in nodes for name in node.inputs)
    return [name for name in inputs if name not in outputs], list(outputs)


def border_bytes(names: Sequence[str], graph: Graph, rows: int, sequences: int) -> int:
    """Bytes of a region's inputs or outputs: a value of each row or sequence so often, others once."""
    times = {"row": rows, "sequence": sequences}
    values = [graph.values[name] for name in names]
    return sum(value.bytes * times.get(value.kind, 1) for value in values)


# -- torch calls, by the name of the function: for steps of which no graph could be made -------------------


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CALLS: dict[Weight, frozenset[str]] = {
    "matmul": _names("linear matmul rmatmul mm addmm bmm baddbmm mv addmv einsum bilinear"),
    "costly": _names(
        "exp expm1 log log1p sqrt rsqrt sin cos tan tanh sigmoid erf pow rpow softmax log_softmax softplus"
        " gelu silu elu mish logsigmoid layer_norm dropout rand randn rand_like randn_like bernoulli"
        " multinomial"
    ),
    "move": _names(
        "reshape view chunk split unbind cat stack getitem index_select gather transpose permute t T mT clone"
        " detach contiguous expand unsqueeze squeeze flatten to float double zeros ones full empty zeros_like"
        " ones_like full_like empty_like new_zeros new_ones new_full tensor as_tensor arange narrow select"
        " requires_grad"
    ),
    "call": _names("item bool int index tolist numpy nonzero unique contains len iter"),
}


def reads_values(name: str) -> bool:
    """True for calls that hand a tensor's values to Python: what a step does next may depend on them."""
    return name in _CALLS["call"]


def weight_of_call(name: str) -> Weight:
    """The kind of work that a torch function does.

    >>> weight_of_call("addmm"), weight_of_call("tanh_"), weight_of_call("add")
    ('matmul', 'costly', 'cheap')
    """
    name = name.strip("_")
    for kind, names in _CALLS.items():
        if name in names:
            return kind
    return "cheap"


def call_flops(name: str, read: Sequence[Tensor], results: Sequence[Tensor]) -> int:
    """Floating-point operations of a torch call; a third operand of a product is a bias, which is added."""
    kind = weight_of_call(name)
    if kind == "matmul":
        contracted = read[0].shape[-1] if read[0].dim() else 0
        return sum(product_flops(contracted, t.numel()) + t.numel() * (len(read) > 2) for t in results)
    return pointwise_flops(kind, max((t.numel() for t in (*results, *read[:1])), default=0))


# -- layers of files, by OpenVINO's name of their type ------------------------------------------------------

VIEWS = _names("identity reshape squeeze unsqueeze shapeof parameter result const assign readvalue")
COSTLY = _names(
    "acos acosh asin asinh atan atanh cos cosh elu erf erfinv exp gelu log mish power selu sigmoid sin sinh"
    " softplus sqrt swish tan tanh"
)
CHEAP = _names(
    "abs add bitwiseand bitwiseleftshift bitwisenot bitwiseor bitwiserightshift bitwisexor bucketize ceiling"
    " clamp divide embeddingbagoffsets embeddingbagoffsetssum embeddingbagpacked embeddingbagpackedsum"
    " embeddingsegmentssum equal floor floormod greater greaterequal hardsigmoid hsigmoid hswish isfinite"
    " isinf isnan searchsorted less lessequal logicaland logicalnot logicalor logicalxor maximum minimum mod"
    " multiply negative notequal prelu relu round sign softsign squareddifference subtract"
)
READS = _names(
    "cumsum reducel1 reducel2 reducelogicaland reducelogicalor reducemax reducemean reducemin reduceprod"
    " reducesum adaptiveavgpool adaptivemaxpool col2im ctcgreedydecoder ctcgreedydecoderseqlen"
    " nonmaxsuppression segmentmax"
)
# Operations for each element of the result, where one pass does not do.
SEVERAL = {
    "softmax": TRANSCENDENTAL + 4,  # the maximum, the difference, exp, the sum, the quotient
    "logsoftmax": TRANSCENDENTAL + 4,
    "mvn": 6,  # mean, difference, square, mean of the squares, product with the root
    "normalizel2": 3,
    "grn": 3,
    "groupnormalization": 6,
    "lrn": TRANSCENDENTAL + 5,
    "batchnorminference": 2,
    "fakequantize": 6,
    # 5 log2 n a complex number, for n = 1,024
    **dict.fromkeys(("dft", "idft", "rdft", "irdft", "stft", "istft"), 25),
    "interpolate": 6,  # of two dimensions: between two numbers of each, a product and a sum
    "gridsample": 12,  # the same, at places of its own: weights, too
    "roialign": 12,  # the same, of one sample
}
GATES = {"lstmcell": 4, "grucell": 3, "rnncell": 1}
SEQUENCES = {"lstmsequence": "lstmcell", "grusequence": "grucell", "rnnsequence": "rnncell"}
_ACTIVATIONS = {  # of a cell, for each element of the state
    "lstmcell": 5 * TRANSCENDENTAL + 12,
    "grucell": 3 * TRANSCENDENTAL + 12,
    "rnncell": TRANSCENDENTAL + 2,
}
PRODUCTS = frozenset({"matmul", "convolution", "groupconvolution", "convolutionbackpropdata",
                      "groupconvolutionbackpropdata", "maxpool", "avgpool", "einsum", "inverse",
                      "scaleddotproductattention", *GATES, *SEQUENCES})  # fmt: skip


_ONNX = {  # operators of another name
    "and": "logicaland", "averagepool": "avgpool", "batchnormalization": "batchnorminference",
    "ceil": "ceiling", "clip": "clamp", "conv": "convolution", "convtranspose": "convolutionbackpropdata",
    "div": "divide", "gemm": "matmul",
    "greaterorequal": "greaterequal", "gru": "grusequence", "hardswish": "hswish",
    "instancenormalization": "mvn", "layernormalization": "mvn", "leakyrelu": "prelu",
    "lessorequal": "lessequal", "lstm": "lstmsequence", "max": "maximum", "mean": "add", "min": "minimum",
    "mul": "multiply", "neg": "negative", "not": "logicalnot", "or": "logicalor", "pow": "power",
    "reciprocal": "divide", "reducelogsum": "reducesum", "reducelogsumexp": "reducesum",
    "reducesumsquare": "reducesum", "rnn": "rnnsequence", "sub": "subtract", "sum": "add", "where": "select",
    "xor": "logicalxor",
}  # fmt: skip


def kind_of(type: str) -> str:
    """What the tables here call a type of layer, of either format.

    >>> kind_of("MatMul"), kind_of("Gemm")
    ('matmul', 'matmul')
    """
    kind = type.lower()
    return _ONNX.get(kind, kind)


def layer_cost(
    type: str, attributes: Mapping[str, str], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Cost:
    """The cost of running a layer without a body once; its attributes as OpenVINO has them."""
    kind = kind_of(type)
    if kind in VIEWS:
        return Cost()
    if not outputs or not all(isinstance(value, Tensor) for value in (*inputs, *outputs)):
        return Cost(unknown=1)
    flops = _layer_flops(kind, attributes, inputs, outputs[0].numel())
    return Cost(flops, tensor_bytes(*inputs, *outputs))


def tensor_bytes(*values: Tensor) -> int:
    """Bytes of tensors' elements."""
    return sum(value.numel() * value.element_size() for value in values)


def _layer_flops(kind: str, attributes: Mapping[str, str], inputs: Sequence[Tensor], size: int) -> int:
    if kind in COSTLY or kind in CHEAP:
        return pointwise_flops("costly" if kind in COSTLY else "cheap", size)
    if kind in READS:
        return inputs[0].numel()
    if kind in SEVERAL:
        return SEVERAL[kind] * size
    if kind == "matmul":
        a = inputs[0]
        transposed = attributes.get("transpose_a", "false").strip().lower() in ("true", "1")
        return product_flops(a.shape[-2 if transposed and a.dim() > 1 else -1], size)
    if kind in ("convolution", "groupconvolution"):
        return product_flops(math.prod(inputs[1].shape[1 if kind == "convolution" else 2 :]), size)
    if kind in (
        "convolutionbackpropdata",
        "groupconvolutionbackpropdata",
    ):  # each number of x, by its weights
        first = 1 if kind == "convolutionbackpropdata" else 2
        return product_flops(math.prod(inputs[1].shape[first:]), inputs[0].numel())
    if kind == "einsum":
        return product_flops(1, _counted(attributes["equation"], inputs))
    if kind == "inverse":
        return product_flops(inputs[0].shape[-1], size)
    if kind == "scaleddotproductattention":
        key, value = inputs[1:3]
        scores = size // max(value.shape[-1], 1) * key.shape[-2]
        return product_flops(key.shape[-1] + value.shape[-1], scores) + SEVERAL["softmax"] * scores
    if kind in ("maxpool", "avgpool"):
        return math.prod(int(k) for k in attributes["kernel"].split(",")) * size
    if kind in GATES:
        x, h = inputs[:2]
        return sum(cell_flops(kind, x.shape[0], x.shape[-1], h.shape[-1]))
    return 0  # data that is moved, or an operator of which nothing is known


def _counted(equation: str, inputs: Sequence[Tensor]) -> int:
    """How many products an einsum adds up: one for each choice of all of its indices."""
    sizes: dict[str, int] = {}
    for term, value in zip(equation.replace(" ", "").split("->")[0].split(","), inputs, strict=True):
        first, _, last = term.partition("...")
        shape = list(value.shape)
        named = dict(zip(first, shape, strict=False)) | dict(zip(last[::-1], shape[::-1], strict=False))
        rest = shape[len(first) : len(shape) - len(last)]
        named |= {f"...{place}": size for place, size in enumerate(rest[::-1])}
        sizes |= {name: max(size, sizes.get(name, 1)) for name, size in named.items()}
    return math.prod(sizes.values())


def cell_flops(type: str, batch: int, features: int, hidden: int) -> tuple[int, int]:
    """Operations of a step of a cell or a sequence layer: of its product with the input, and of the rest."""
    kind = SEQUENCES.get(kind_of(type), kind_of(type))
    gates = batch * GATES[kind] * hidden
    return product_flops(features, gates), product_flops(hidden, gates) + batch * hidden * _ACTIVATIONS[kind]
