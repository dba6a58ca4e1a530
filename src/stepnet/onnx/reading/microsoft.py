"""Operators of `com.microsoft` that ONNX Runtime's quantisation puts into models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.data.modes import traced
from stepnet.file_model import axis_in

from .cells import Cell
from .elementwise import activation
from .info import Info, Misfit, Run, of_inputs, op
from .spaces import each
from .whole_numbers import in_bytes, rounded

DOMAIN = "com.microsoft"
OWN = frozenset((
    "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "QLinearAdd",
    "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid",
    "QLinearSoftmax",
))  # fmt: skip


def _meant(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = -1) -> Tensor:
    """The numbers that whole numbers stand for."""
    out = x.double() if zero is None else x.double() - each(zero, x, axis % max(x.dim(), 1)).double()
    return out * each(scale, x, axis % max(x.dim(), 1)).double()


def _said(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Numbers as the whole numbers that stand for them."""
    zero = torch.zeros((), dtype=torch.uint8) if zero is None else zero
    return rounded(x / scale.double(), zero)


@op("QLinearAdd", "QLinearMul", inputs=(7, 8))
def _of_two(node: Info) -> Run:
    function = torch.add if node.node.op_type == "QLinearAdd" else torch.mul

    def run(
        a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor, b_zero: Tensor | None,
        scale: Tensor, zero: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return _said(function(_meant(a, a_scale, a_zero), _meant(b, b_scale, b_zero)), scale, zero)

    return run


@op("QLinearSigmoid", "QLinearLeakyRelu", inputs=(4, 5))
def _of_one(node: Info) -> Run:
    function = activation(node.node.op_type.removeprefix("QLinear"), node.get)

    def run(
        x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None
    ) -> Tensor:
        return _said(function(_meant(x, x_scale, x_zero)), scale, zero)

    return run


@op("QLinearSoftmax", "QLinearGlobalAveragePool", inputs=(5, 5))
def _of_many(node: Info) -> Run:
    pool, axis = node.node.op_type == "QLinearGlobalAveragePool", node.get("axis", -1)
    old, last = node.get("opset", 13) < 13, node.get("channels_last", 0)

    def function(x: Tensor) -> Tensor:
        if pool:
            return x.mean(tuple(range(1, x.dim() - 1) if last else range(2, x.dim())), True)
        if old:  # over all axes from this one on
            return x.flatten(axis_in(axis, x.dim())).softmax(-1).reshape(x.shape)
        return x.softmax(axis_in(axis, x.dim()))

    def run(x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None) -> Tensor:
        return _said(function(_meant(x, x_scale, x_zero)), scale, zero)

    return run


@of_inputs("QGemm", inputs=(6, 9))
def _gemm(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    c: Tensor | None = None, scale: Tensor | None = None, zero: Tensor | None = None, *, alpha: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    if a.dim() != 2 or b.dim() != 2:
        raise Misfit("must be two matrices", f"{[*a.shape]} and {[*b.shape]}", "two dimensions of each")
    one = torch.ones((), dtype=torch.float64)
    a, b = (
        _meant(x, one, by, 1)
        for x, by in ((a.t() if transA else a, a_zero), (b.t() if transB else b, b_zero))
    )
    out = a @ b  # whole numbers: exact
    out = (out if c is None else out + c.double()) * (alpha * a_scale.double() * b_scale.double())
    return out.float() if scale is None else _said(out, scale, zero)


@of_inputs("QLinearConcat", inputs=(5, 2**16))
def _concat(scale: Tensor, zero: Tensor, *given: Tensor, axis: int = 0) -> Tensor:
    if len(given) % 3:
        raise Misfit("must have a tensor, a scale and a zero point of each part", len(given))
    parts = [_meant(given[k], given[k + 1], given[k + 2]) for k in range(0, len(given), 3)]
    return _said(torch.cat(parts, axis_in(axis, parts[0].dim())), scale, zero)


def quantised(x: Tensor, dim: int | None = None) -> Tensor:
    """Numbers as 256 steps between the least and the largest of them can say; of each row along `dim`."""
    low, high = (x.amin(), x.amax()) if dim is None else (x.amin(dim, True), x.amax(dim, True))
    scale, zero = in_bytes(low, high)
    return (((x / scale).round() + zero).clamp(0, 255) - zero) * scale


def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    out = (a.double() @ b).float()
    return out if bias is None else out + bias


@of_inputs("DynamicQuantizeMatMul", inputs=(3, 5))
def _quantising_matmul(
    a: Tensor, b: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    return _product(quantised(a) if a.numel() else a, _meant(b, scale, zero), bias)


@of_inputs("MatMulIntegerToFloat", inputs=(4, 7))
def _matmul_to_float(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None,
    b_zero: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _product(_meant(a, a_scale, a_zero, -2), _meant(b, b_scale, b_zero), bias)


@op("DynamicQuantizeLSTM", inputs=(12, 12))
def _lstm(node: Info) -> Run:
    """X is quantised as a whole, the state of each step by rows: ONNX Runtime does the rows of a thread
    together."""
    cell = Cell(node, 4, ["Sigmoid", "Tanh", "Tanh"], 2)
    coupled = node.get("input_forget", 0)
    last: list[list[Tensor]] = [[], []]  # matrices as they came, and what they mean

    def matrices(inputs: list[Any]) -> list[Tensor]:
        given = [inputs[k] for k in (1, 2, 8, 9, 10, 11)]
        w, r, w_scale, w_zero, r_scale, r_zero = given
        for name, matrix in (("W", w), ("R", r)):
            if matrix.dim() != 3:
                wanted = "three dimensions: directions, features, 4*hidden"
                raise Misfit(f"{name} must have {wanted}", [*matrix.shape], wanted)
        for name, matrix, scale, zero in (("W", w, w_scale, w_zero), ("R", r, r_scale, r_zero)):
            fits = {(matrix.shape[0],), (matrix.shape[0], matrix.shape[2])}
            for what, part in (("scale", scale), ("zero_point", zero)):
                if tuple(part.shape) not in fits:
                    raise Misfit(
                        f"{name}_{what} does not fit {name}",
                        [*part.shape],
                        "[directions] or [directions, 4*hidden]",
                    )
        compared = not traced()  # what is written computes them
        if compared and last[0] and all(map(_same, last[0], given)):
            return last[1]
        made = [
            (matrix.float() - _of_columns(zero).float()) * _of_columns(scale)
            for matrix, scale, zero in ((w, w_scale, w_zero), (r, r_scale, r_zero))
        ]
        made = [matrix.transpose(1, 2).contiguous() for matrix in made]
        if compared:
            last[:] = [value.clone() for value in given], made
        return made

    def step_of(d: int, inputs: Any) -> Any:
        w, r, b, p = inputs[1][d], inputs[2][d], inputs[3], inputs[7]
        bias = None if b is None else b[d][: w.shape[0]] + b[d][w.shape[0] :]
        peep = (0.0,) * 3 if p is None else p[d].chunk(3)
        f, g, out = cell.functions[d]

        def step(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            h, c = state
            gates = torch.nn.functional.linear(x, w, bias) + torch.nn.functional.linear(quantised(h, -1), r)
            i, o, forget, new = gates.chunk(4, -1)
            i = f(i + peep[0] * c)
            forget = 1 - i if coupled else f(forget + peep[2] * c)
            c = forget * c + i * g(new)
            h = f(o + peep[1] * c) * out(c)
            return h, (h, c)

        return step

    def run(x: Tensor, *more: Any) -> Any:
        inputs = [x, *more]
        w, r = matrices(inputs)
        b, lengths, h, c, p = inputs[3:8]
        x = quantised(x) if x.numel() else x
        return cell.run(step_of, [x, w, r, b, lengths, h, c, p])

    return run


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _of_columns(part: Tensor) -> Tensor:
    """One of each direction, or of each of its columns."""
    return part.reshape(-1, 1, 1) if part.dim() == 1 else part.unsqueeze(1)
