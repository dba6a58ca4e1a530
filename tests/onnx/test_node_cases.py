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
# Those that are not read, by why; `--exhaustive` takes all others.
LEFT = {
    "operators of other fields": r"flexattention(?!.*expanded)|image_decoder|tfidfvectorizer"
    r"|str(ing_|norm)|regex|ai_onnx_ml|maxunpool|basic_deform|deform_conv|momentum|nesterov|adagrad|adam",
    "noise that ONNX leaves open": r"bernoulli|training_dropout(_default|_mask|$)",
    "of a set of operators before 7": r"not_\dd",
    "an attribute that is not read": r"resize_tf_crop_and_resize",
    "fractions of sizes, here rounded first": r"resize_downsample_scales_(linear|cubic)_align_corners$",
}
OF_NO_TORCH = (  # or with which it does not compute
    "STRING", "UINT4", "INT4", "UINT2", "INT2", "FLOAT4E2M1",
    # older versions lack one, or saturate others
    *(("FLOAT8E8M0", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
      if torch.__version__ < "2.13" else ()),
)  # fmt: skip
# Five seconds of imports, of which none is read here.
SLOW = r"pool$|^(attention|flexattention|image_decoder|resize|affinegrid|softmax_cross|negative|castlike)"


@cache
def cases(every=False):
    from onnx.backend.test.case import base, node

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(base, "process_snippet", lambda *_: ("", ""))  # for its docs; a second
        for module in iter_modules(node.__path__):
            if every or not re.search(SLOW, module.name):
                import_module(f"{node.__name__}.{module.name}")
    return {case.name.removeprefix("test_"): case for case in node._NodeTestCases}


def names(every=False):
    around = [n for n in cases(every) if re.match(rf"{AROUND}(_|\d|$)", n)]
    some = {*around[::12]}  # of the many forms of one operator
    wanted = [n for n in cases(every) if every or re.match(LOOPS, n) or n in some]
    return [n for n in wanted if why_left(n, cases(every)[n].model.graph) is None]


def why_left(name, graph):
    kinds = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    if kinds & {onnx.TensorProto.DataType.Value(kind) for kind in OF_NO_TORCH}:
        return "torch computes with no such element type"
    return next((why for why, pattern in LEFT.items() if re.match(pattern, name)), None)


def tensor(value):
    if isinstance(value, list):
        return [tensor(v) for v in value]
    if value is None:
        return None
    array = (
        onnx.numpy_helper.to_array(value).copy() if isinstance(value, onnx.TensorProto) else np.array(value)
    )
    if array.dtype.isbuiltin != 1:  # of ml_dtypes, by the names that torch has
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def same(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    elif expected is None:
        assert found is None
    else:
        wanted = tensor(expected)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        rough = 2 * torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0
        np.testing.assert_allclose(found.double(), wanted.double(), rtol=max(1e-3, rough), atol=1e-5)


def test_nodes(request, tmp_path):
    """One test: to know their names takes seconds, which each process that collects tests would need."""
    holds(check, {name: (name, tmp_path) for name in names(request.config.getoption("exhaustive"))})


def check(name, tmp_path):
    case = cases(every=name not in cases())[name]
    onnx.save(case.model, tmp_path / "node.onnx")
    model = stepnet.onnx.load(tmp_path / "node.onnx")
    for inputs, outputs in case.data_sets:
        with torch.no_grad():
            given = [*map(tensor, inputs)]
            eight = any(isinstance(v, torch.Tensor) and "float8" in str(v.dtype) for v in given)
            # torch flips no float8, of which it is called in no other way
            ways = [model(*given)] if eight else called(model, given, pickled=len(name) % 4 == 0)
            for found in ways:
                for a, b in zip(found, outputs, strict=True):
                    same(a, b)


def test_there_are_many():
    every = names()
    for kind, count in {"lstm": 6, "gru": 6, "rnn|simple_rnn": 3, "scan": 4, "loop": 3, "if": 2}.items():
        assert len([n for n in every if re.match(kind, n)]) >= count, kind
    assert len(every) > 130


def test_an_operator_made_of_operators_that_are_made_of_others(tmp_path):
    """A loss of class numbers, its weights left out."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[N,C] x, int64[N] y) => (float z) {
      z = SoftmaxCrossEntropyLoss(x, y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x, y = torch.randn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    (found,) = stepnet.onnx.load(tmp_path / "m.onnx")(x, y)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(x, y))


def test_operators_made_of_others_that_read_constants(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,4,T] x) => (float[N,4,T] y, float[N,4,1] z)
      <float[4] s = {1.0, 2.0, 3.0, 4.0}, float[4] b = {0.5, 0.0, -1.0, 2.0}> {
      t = Tanh(x)  y = GroupNormalization <num_groups = 2> (t, s, b)  z = GlobalLpPool <p = 3> (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = torch.randn(3, 4, 5)
    y, z = stepnet.onnx.load(tmp_path / "m.onnx")(x)
    scale, bias = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, 0.0, -1.0, 2.0])
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x.tanh(), 2, scale, bias))
    torch.testing.assert_close(z, x.norm(3, 2, True))
