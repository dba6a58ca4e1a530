"""The node tests that ONNX's own wheel holds: each model is read, and computes what it says."""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
import stepnet.onnx  # noqa: E402
from tables import holds  # noqa: E402
from ways_of_calling import called  # noqa: E402

LOOPS = (
    r"lstm|gru|simple_rnn|rnn_seq|scan|loop|if_|if$|sequence|split_to"
    r"|linear_attention.*expanded|causal_conv.*expanded"
)
AROUND = (
    r"(add|and|argmax|argmin|ceil|clip|concat|cumsum|div|einsum|elu|equal|erf|exp|expand|flatten|floor|gather"
    r"|gathernd|gather_elements|gelu|gemm|hardsigmoid|hardswish|identity|layer_normalization|leakyrelu|log"
    r"|logsoftmax|matmul|max|mean|min|mod|mul|neg|not|onehot|pow|prelu|range|reduce|relu|reshape|round|scatter"
    r"|selu|shape|sigmoid|sign|size|slice|softmax|softplus|split|sqrt|squeeze|sub|sum|tanh|tile|top_k|transpose"
    r"|tril|triu|unsqueeze|where|constant_pad|edge_pad|reflect_pad|wrap_pad|basic_conv|conv_with|convtranspose"
    r"|lrn|gridsample|col2im|batchnorm|dropout|training_dropout|roialign|nonmaxsuppression|melweightmatrix|cumprod|det|dequantizelinear|quantizelinear|unique|matmulinteger|qlinearmatmul|convinteger|qlinearconv"
    r"|tensorscatter|bitcast|dft|stft|(hann|hamming|blackman)window"
    # which ONNX says in terms of others
    r"|group_normalization|mvn|swiglu|rotary_embedding|depthtospace|spacetodepth|linear_attention|causal_conv)"
)
# What torch computes with no such type, or draws noise.
LEFT = (
    r"uint(16|32|64)|bfloat16|float8|float4|int4|int2|string|training_dropout(_default|_mask|$)|isinf|_pad_axes|linear_attention.*fp16"
    r"|expanded_ver|_mask|not_\dd|e4m3|e5m2|blocked|_q?int2"
)
# Five seconds of imports, of which none is read here.
SLOW = r"pool$|^(attention|flexattention|image_decoder|resize|affinegrid|softmax_cross|negative|castlike)"


@cache
def cases():
    from onnx.backend.test.case import base, node

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(base, "process_snippet", lambda *_: ("", ""))  # for its docs; a second
        for module in iter_modules(node.__path__):
            if not re.search(SLOW, module.name):
                import_module(f"{node.__name__}.{module.name}")
    return {case.name.removeprefix("test_"): case for case in node._NodeTestCases}


def names():
    wanted = [n for n in cases() if re.match(LOOPS, n) or re.match(rf"{AROUND}(_|\d|$)", n)]
    return [n for n in wanted if not re.search(LEFT, n)]


def tensor(value):
    if isinstance(value, list):
        return [tensor(v) for v in value]
    return None if value is None else torch.from_numpy(np.array(value))


def same(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    elif expected is None:
        assert found is None
    else:
        assert found.numpy().dtype == np.asarray(expected).dtype
        assert found.shape == np.shape(expected)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-5)


def groups():
    """The cases of each first word, digits left out."""
    found = {}
    for name in names():
        found.setdefault(re.match("[a-z]*", name)[0], []).append(name)
    return found


@pytest.mark.parametrize("names", groups().values(), ids=groups())
def test_nodes(names, tmp_path):
    holds(check, {name: (name, tmp_path) for name in names})


def check(name, tmp_path):
    case = cases()[name]
    onnx.save(case.model, tmp_path / "node.onnx")
    model = stepnet.onnx.load(tmp_path / "node.onnx")
    for inputs, outputs in case.data_sets:
        with torch.no_grad():
            for found in called(model, [*map(tensor, inputs)], pickled=len(name) % 4 == 0):
                for a, b in zip(found, outputs, strict=True):
                    same(a, b)


def test_there_are_many():
    every = names()
    for kind, count in {"lstm": 6, "gru": 6, "rnn|simple_rnn": 3, "scan": 4, "loop": 3, "if": 2}.items():
        assert len([n for n in every if re.match(kind, n)]) >= count, kind
    assert len(every) > 300


def test_an_operator_made_of_operators_that_are_made_of_others(tmp_path):
    """A loss of class numbers, its weights left out."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[N,C] x, int64[N] y) => (float z) {
      z = SoftmaxCrossEntropyLoss(x, y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x, y = torch.randn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    (found,) = stepnet.onnx.load(tmp_path / "m.onnx")(x, y)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(x, y))
