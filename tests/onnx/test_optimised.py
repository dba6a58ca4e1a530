"""Files that ONNX Runtime has optimised, and weights of a few bits: what it makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import numpy_helper, parser  # noqa: E402

import stepnet.onnx  # noqa: E402
from stepnet.errors import IRError  # noqa: E402
from stepnet.onnx.reading.optimised import FUSED  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> g (float[A,B,C] x) => (float y) '
OPS = {
    "gelu": "y = com.microsoft.Gelu(x)",
    "gelu of a sum": "y = com.microsoft.BiasGelu(x, k)",
    "fast gelu": "y = com.microsoft.FastGelu(x)",
    "fast gelu of a sum": "y = com.microsoft.FastGelu(x, k)",
    "quick gelu": "y = com.microsoft.QuickGelu<alpha = 1.5>(x)",
    "a product, turned": "y = com.microsoft.FusedMatMul<transA = 1, transB = 1, alpha = 0.5>(x, m)",
    "a product of batches": """y = com.microsoft.FusedMatMul
        <transBatchA = 1, transBatchB = 1, transB = 1>(x, x)""",
    "a gemm": """n = Constant<value = int64[2] {-1, 4}>()  r = Reshape(x, n)
        y = com.microsoft.FusedGemm<activation = "LeakyRelu", activation_alpha = 0.3, transB = 1>(r, w, k)""",
    "a convolution": """y = com.microsoft.FusedConv
        <kernel_shape = [1], activation = "HardSigmoid", activation_params = [0.3, 0.4]>(x, c)""",
    "a convolution between bounds": """y = com.microsoft.FusedConv
        <kernel_shape = [1], activation = "Clip", activation_params = [-0.1, 0.2]>(x, c)""",
    "a norm of a sum": "y = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(x, x, k, k, k)",
    "a norm of a sum without biases": "y = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(x, x, k)",
    "a norm and its sum": """n, , , t = com.microsoft.SkipLayerNormalization(x, x, k, k)
        y = Add(n, t)""",
    "a simple norm of a sum": """n, , , t = com.microsoft.SkipSimplifiedLayerNormalization(x, x, k, k)
        y = Add(n, t)""",
    "a simple norm": "y = SimplifiedLayerNormalization<axis = -1>(x, k)",
    "four bits": """b = Concat<axis = 2>(x, x, x, x, x)
        y = com.microsoft.MatMulNBits<K = 20, N = 3, block_size = 16>(b, q, s)""",
    "four bits from zeros": """b = Concat<axis = 2>(x, x, x, x, x)
        y = com.microsoft.MatMulNBits<K = 20, N = 3, bits = 4, block_size = 16>(b, q, s, z)""",
    "eight bits": """b = Concat<axis = 2>(x, x, x, x, x)
        y = com.microsoft.MatMulNBits<K = 20, N = 3, bits = 8, block_size = 16>(b, e, s)""",
}


def constants():
    rng = np.random.default_rng(0)
    numbers = {"k": [4], "m": [2, 5, 3], "w": [4, 4], "c": [2, 3, 1], "s": [6]}
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in numbers.items()}
    whole = {"q": [3, 2, 8], "z": [3], "e": [3, 2, 16]}
    return found | {name: rng.integers(0, 256, shape).astype(np.uint8) for name, shape in whole.items()}


@pytest.mark.parametrize("name", OPS)
def test_as_onnx_runtime_has_it(name, tmp_path):
    model = parser.parse_model(f"{HEAD} {{ {OPS[name]} }}")
    read = {value for node in model.graph.node for value in node.input}
    used = {key: value for key, value in constants().items() if key in read}
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in used.items())
    onnx.save(model, tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(stepnet.onnx.load(tmp_path / "m.onnx")(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_all_are_tried():
    assert all(any(f"microsoft.{kind}" in text for text in OPS.values()) for kind in FUSED)


def test_blocks_in_another_order_are_refused(tmp_path):
    text = f"""b = Concat<axis = 2>(x, x, x, x, x)
        g = Constant<value = int32[20] {{{", ".join("0" * 20)}}}>()
        y = com.microsoft.MatMulNBits<K = 20, N = 3, block_size = 16>(b, q, s, , g)"""
    model = parser.parse_model(f"{HEAD} {{ {text} }}")
    kept = {key: constants()[key] for key in "qs"}
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in kept.items())
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(IRError, match=r"node \d+ .*\(MatMulNBits\): blocks in another order are not read"):
        stepnet.onnx.load(tmp_path / "m.onnx")(torch.randn(2, 3, 4))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.gelu, self.norm = nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)
        self.rnn, self.after = stepnet.nn.GRU(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        y, _ = self.rnn(self.norm(self.gelu(self.before(x)) + x))
        return self.after(y).relu()


def test_an_optimised_file_is_read_and_written(tmp_path):
    stepnet.onnx.save(Tagger().eval(), tmp_path / "m.onnx", torch.randn(4, 3, 4))
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}
    assert kinds & {"Gelu", "BiasGelu", "SkipLayerNormalization", "FusedGemm", "FusedMatMul"}
    model, x = stepnet.onnx.load(tmp_path / "o.onnx").eval(), torch.randn(7, 2, 4)
    (expected,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(model(x)[0], expected, rtol=1e-4, atol=1e-5)
    stepnet.onnx.save(model, tmp_path / "again.onnx", torch.randn(4, 3, 4))
    np.testing.assert_allclose(
        stepnet.onnx.load(tmp_path / "again.onnx")(x)[0], expected, rtol=1e-4, atol=1e-5
    )
