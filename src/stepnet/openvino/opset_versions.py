"""The set of operators that each type of layer came with; OpenVINO reads none of an older one.

MVN came with the second, and OpenVINO reads it of the first, too.
"""

from __future__ import annotations

_FROM: dict[int, tuple[str, ...]] = {
    2: (
        "BatchToSpace",
        "Gelu",
        "SpaceToBatch",
    ),
    3: (
        "Assign",
        "Bucketize",
        "CumSum",
        "EmbeddingBagOffsetsSum",
        "EmbeddingBagPackedSum",
        "EmbeddingSegmentsSum",
        "GRUCell",
        "NonZero",
        "ROIAlign",
        "ReadValue",
        "ScatterElementsUpdate",
        "ScatterUpdate",
    ),
    4: (
        "Acosh",
        "Asinh",
        "Atanh",
        "HSwish",
        "Mish",
        "ReduceL1",
        "ReduceL2",
        "ScatterNDUpdate",
        "SoftPlus",
        "Swish",
    ),
    5: (
        "GRUSequence",
        "GatherND",
        "HSigmoid",
        "LSTMSequence",
        "LogSoftmax",
        "Loop",
        "RNNSequence",
        "Round",
    ),
    6: (
        "CTCGreedyDecoderSeqLen",
        "GatherElements",
    ),
    7: (
        "DFT",
        "Einsum",
        "IDFT",
        "Roll",
    ),
    8: (
        "AdaptiveAvgPool",
        "AdaptiveMaxPool",
        "If",
        "Slice",
    ),
    9: (
        "Eye",
        "GridSample",
        "IRDFT",
        "RDFT",
        "SoftSign",
    ),
    10: (
        "IsFinite",
        "IsInf",
        "IsNaN",
        "Unique",
    ),
    12: ("GroupNormalization",),
    13: (
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "ScaledDotProductAttention",
    ),
    14: (
        "ConvertPromoteTypes",
        "Inverse",
    ),
    15: (
        "BitwiseLeftShift",
        "BitwiseRightShift",
        "Col2Im",
        "EmbeddingBagOffsets",
        "EmbeddingBagPacked",
        "STFT",
        "SearchSorted",
        "SliceScatter",
    ),
    16: (
        "ISTFT",
        "Identity",
        "SegmentMax",
    ),
    17: ("ErfInv",),
}
SINCE = {name.lower(): number for number, names in _FROM.items() for name in names}
