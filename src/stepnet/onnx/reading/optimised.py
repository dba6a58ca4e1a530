"""Operators of `com.microsoft` that ONNX Runtime puts in the place of several as it optimises a file; and
products with weights of four or eight bits by blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .elementwise import activation
from .info import Info, Misfit, Run, of_inputs, op
from .sums import by_root, convolution, gemm

FUSED = frozenset((
    "BiasGelu", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "MatMulNBits", "QuickGelu",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
))  # fmt: skip


@of_inputs("BiasGelu", "FastGelu", inputs=(1, 2))
def _gelu(x: Tensor, bias: Tensor | None = None, *, kind: str) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh" if kind == "FastGelu" else "none")


@of_inputs("QuickGelu")
def _quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@op("FusedMatMul", inputs=(2, 2))
def _matmul(node: Info) -> Run:
    alpha = node.get("alpha", 1.0)
    turned = [(node.get(f"trans{k}", 0), node.get(f"transBatch{k}", 0)) for k in "AB"]

    def laid(x: Tensor, last: int, batch: int) -> Tensor:
        x = x.movedim(0, -2) if batch else x
        return x.transpose(-2, -1) if last and x.dim() > 1 else x

    def run(a: Tensor, b: Tensor) -> Tensor:
        a, b = (laid(x, *ways) for x, ways in zip((a, b), turned, strict=True))
        out = a @ b
        return out if alpha == 1 else out * alpha

    return run


@op("FusedGemm", inputs=(2, 3))
def _gemm(node: Info) -> Run:
    said = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma")}
    then = _then(node, lambda name, default: node.get(said[name], default))
    product = gemm(node)
    return lambda *xs: then(product(*xs))


@op("FusedConv", inputs=(2, 4))
def _conv(node: Info) -> Run:
    numbers = dict(zip(("alpha", "beta"), node.get("activation_params", []), strict=False))
    then, product = _then(node, lambda name, default: numbers.get(name, default)), convolution(node)

    def run(x: Tensor, w: Tensor, b: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        out = product(x, w, b)
        return then(out if more is None else out + more)

    return run


def _then(node: Info, get: Any) -> Any:
    """The function that follows."""
    name = node.get("activation", "")
    if name == "Clip":
        return lambda x: torch.clamp(x, get("alpha", -torch.inf), get("beta", torch.inf))
    return activation(name, get) if name else lambda x: x


@op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", inputs=(3, 5))
def _of_sum(node: Info) -> Run:
    eps, simple = node.get("epsilon", 1e-12), "Simplified" in node.node.op_type
    if node.wants(1) or node.wants(2):
        raise Misfit("its means and deviations are not given", "outputs 1 and 2", "outputs 0 and 3")

    def run(x: Tensor, skip: Tensor, gamma: Tensor, *more: Tensor | None) -> Any:
        beta, bias = ((None, *more, None) if simple else (*more, None, None))[:2]
        total = x + skip
        total = total if bias is None else total + bias
        if simple:
            out = by_root(total, [-1], eps) * gamma
        else:
            out = F.layer_norm(total, gamma.shape, gamma, beta, eps)
        return (out, out, out, total)[: node.count] if node.count > 1 else out

    return run


@op("MatMulNBits", inputs=(3, 6))
def _by_blocks(node: Info) -> Run:
    depth, columns, bits = node.get("K", 0), node.get("N", 0), node.get("bits", 4)
    size = node.get("block_size", 0)
    if bits not in (4, 8) or size < 1 or min(depth, columns) < 1:
        raise Misfit(
            "no such blocks", f"K={depth}, N={columns}, bits={bits}, block_size={size}", "4 or 8 bits"
        )
    blocks = -(-depth // size)

    def apart(x: Tensor) -> Tensor:
        """Numbers of so many bits, a byte each."""
        return x if bits == 8 else torch.stack([x & 15, x >> 4], -1).flatten(-2)

    def run(
        x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None, order: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if order is not None:
            raise Misfit("blocks in another order are not read", "an input g_idx", "none")
        zero: Any = 1 << (bits - 1)
        if zeros is not None:
            zeros = apart(zeros.reshape(columns, -1)) if zeros.dtype == torch.uint8 else zeros
            zero = zeros.reshape(columns, -1, 1)[:, :blocks].to(x.dtype)
        numbers = apart(w.reshape(columns, blocks, -1)).to(x.dtype) - zero
        weights = (numbers * scales.reshape(columns, blocks, 1)).flatten(1)[:, :depth]
        return F.linear(x, weights, bias)

    return run
