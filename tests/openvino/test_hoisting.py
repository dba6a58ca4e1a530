"""What a body computes from invariants alone leaves the loop, and gives what the plain loop gives."""

from __future__ import annotations

import itertools

import pytest
import torch

from covering import few
from ir_files import Net, edge, sliced
from stepnet.executors.setting import set_backend
from stepnet.openvino import load

B, T, S, N = 3, 4, 5, 6


def attention(folder, form, trainable=False):
    """h = tanh(x_t + h + context), where context is read from a memory [B, S, N] by the scores of h.

    `form`: (memory left of the product, its transpose attribute, the row's).
    """
    left, turned, row_turned = form
    net = Net()
    x, m = net.parameter("x", f"?,?,{N}"), net.parameter("m", f"?,{S},{N}")
    h = net.parameter("h", f"?,{N}")
    body = net.body()
    xi, mi = body.parameter("xi", f"?,1,{N}"), body.parameter("mi", f"?,{S},{N}")
    hi = body.parameter("hi", f"?,{N}")
    axis = body.const([1], "int64")
    weight = body.const(torch.randn(N, N).numpy())
    keys = body.add("MatMul", [mi, weight], name="keys")
    query = body.add("Unsqueeze", [hi, body.const([-1], "int64")])
    scores = body.add(
        "Tanh", [body.add("MatMul", [keys, query], given=[(-1, S, N), (-1, N, 1)])]
    )  # [B, S, 1]
    if left:  # memory^T x scores, as [N, S] x [S, 1]
        memory = mi if turned else body.add("Transpose", [mi, body.const([0, 2, 1], "int64")])
        shapes = [(-1, S, N) if turned else (-1, N, S), (-1, 1, S) if row_turned else (-1, S, 1)]
        row = body.add("Transpose", [scores, body.const([0, 2, 1], "int64")]) if row_turned else scores
        out = body.add("MatMul", [memory, row], given=shapes, transpose_a=turned, transpose_b=row_turned)
        context = body.add("Squeeze", [out, body.const([2], "int64")])
    else:  # scores^T x memory, as [1, S] x [S, N]
        memory = body.add("Transpose", [mi, body.const([0, 2, 1], "int64")]) if turned else mi
        shapes = [(-1, S, 1) if row_turned else (-1, 1, S), (-1, N, S) if turned else (-1, S, N)]
        row = scores if row_turned else body.add("Transpose", [scores, body.const([0, 2, 1], "int64")])
        out = body.add("MatMul", [row, memory], given=shapes, transpose_a=row_turned, transpose_b=turned)
        context = body.add("Squeeze", [out, axis])
    total = body.add("Add", [body.add("Add", [body.add("Squeeze", [xi, axis]), hi]), context])
    new = body.add("Tanh", [total])
    state = body.result(new)
    y = body.result(body.add("Unsqueeze", [new, axis]))
    rows = sliced("input", 0, xi[0], axis=1) + sliced("input", 1, mi[0]) + sliced("input", 2, hi[0])
    rows += sliced("output", 3, y, axis=1) + sliced("output", 4, state)
    loop, port = net.loop(body, [x, m, h], rows, edge(state, hi[0]), ["FP32", "FP32"])
    net.result((loop, port))
    net.result((loop, port + 1))
    return load(net.write(folder), trainable=trainable)


def body_of(model):
    (runner,) = model.graph.runners()
    return runner.rows.body


FORMS = [pytest.param(form, id=str(form)) for form in itertools.product((False, True), repeat=3)]


@pytest.mark.parametrize("form", few(FORMS, [form for form in FORMS if sum(form.values[0]) % 2]))
def test_attention_runs_as_generated_code_and_gives_what_the_plain_loop_gives(tmp_path, form):
    model = attention(tmp_path, form).double()
    assert "keys" in [node.layer.name for node in body_of(model).before]
    for batch in (1, B, S):
        inputs = [torch.randn(*shape).double() for shape in ((batch, T, N), (batch, S, N), (batch, N))]
        set_backend("naive")
        wanted = model(*inputs)
        set_backend("c")
        found = model(*inputs)
        assert [report.compiled for report in model.loops] == [True], model.explain()
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_several_heads_over_keys_and_values(tmp_path):
    heads, width, batch = 2, 3, B
    net = Net()
    h = net.parameter("h", f"?,{heads * width}")
    x, k, v = (net.parameter(name, f"?,{n},{m}") for name, n, m in
               (("x", "?", heads * width), ("k", S, heads * width), ("v", S, heads * width)))  # fmt: skip
    body = net.body()
    xi, hi = body.parameter("xi", f"?,1,{heads * width}"), body.parameter("hi", f"?,{heads * width}")
    ki, vi = (body.parameter(name, f"?,{S},{heads * width}") for name in ("ki", "vi"))

    def split(source, rows):
        parts = body.add("Reshape", [source, body.const([0, rows, heads, width], "int64")], special_zero=True)
        return body.add("Transpose", [parts, body.const([0, 2, 1, 3], "int64")])

    query, keys = split(hi, 1), split(ki, S)
    one, many = (-1, heads, 1, width), (-1, heads, S, width)
    scores = body.add("MatMul", [query, keys], given=[one, many], transpose_b=True)
    shares = body.add("SoftMax", [scores], axis=3)
    context = body.add("MatMul", [shares, split(vi, S)], given=[(-1, heads, 1, S), many])
    joined = body.add("Reshape", [context, body.const([-1, heads * width], "int64")], special_zero=False)
    half = body.const([[0.5]], "float32")
    row = body.add("Multiply", [body.add("Squeeze", [xi, body.const([1], "int64")]), half])
    new = body.add("Tanh", [body.add("Add", [joined, row])])
    state, y = body.result(new), body.result(body.add("Unsqueeze", [new, body.const([1], "int64")]))
    rows = sliced("input", 0, xi[0], axis=1) + "".join(
        sliced("input", i, at[0]) for i, at in enumerate((ki, vi, hi), 1)
    )  # fmt: skip
    loop, port = net.loop(body, [x, k, v, h], rows + sliced("output", 4, y, axis=1), edge(state, hi[0]))
    net.result((loop, port))
    model = load(net.write(tmp_path)).double()
    q, k, v = torch.randn(batch, heads * width).double(), *torch.randn(2, batch, S, heads * width).double()
    x = torch.randn(batch, T, heads * width).double()
    wanted, at = [], q
    for t in range(T):
        parts = [z.unflatten(-1, (heads, width)).transpose(-2, -3) for z in (at.unsqueeze(1), k, v)]
        shares = torch.softmax(parts[0] @ parts[1].mT, -1)
        at = torch.tanh((shares @ parts[2]).transpose(1, 2).flatten(1) + x[:, t] / 2)
        wanted.append(at)
    set_backend("c")
    (found,) = model(x=x, k=k, v=v, h=q)
    assert model.loops[0].compiled, model.explain()
    torch.testing.assert_close(found, torch.stack(wanted, 1), rtol=1e-12, atol=1e-12)


def test_gradients_reach_the_memory_and_what_is_computed_of_it(tmp_path):
    model = attention(tmp_path, (False, False, False), trainable=True).double()
    assert "keys" in [node.layer.name for node in body_of(model).before]
    inputs = [torch.randn(*shape).double().requires_grad_() for shape in ((B, T, N), (B, S, N), (B, N))]
    found = []
    for backend in ("naive", "auto"):
        set_backend(backend)
        y, h = model(*inputs)
        ends = [*inputs, *model.parameters()]
        found.append(torch.autograd.grad(y.square().sum() + h.sum(), ends))
    assert model.loops[0].compiled, model.explain()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_an_unread_invariant_is_not_passed_and_results_may_be_invariants(tmp_path):
    net = Net()
    x, m, unread = net.parameter("x", "?,?,2"), net.parameter("m", "?,1,2"), net.parameter("u", "?,9")
    body = net.body()
    xi, mi = body.parameter("xi", "?,1,2"), body.parameter("mi", "?,1,2")
    ui = body.parameter("ui", "?,9")
    results = [body.result(body.add("Add", [xi, mi])), body.result(body.add("Exp", [mi])), body.result(mi)]
    rows = "".join(sliced("input", i, at[0], **cut) for i, (at, cut) in enumerate(
        [(xi, {"axis": 1}), (mi, {}), (ui, {})]))  # fmt: skip
    rows += sliced("output", 3, results[0], axis=1) + sliced("output", 4, results[1], axis=1)
    rows += sliced("output", 5, results[2])
    loop, port = net.loop(body, [x, m, unread], rows, "", ["FP32"] * 3)
    for i in range(3):
        net.result((loop, port + i))
    model = load(net.write(tmp_path))
    assert not any("ui" in name for name in body_of(model).parameters)
    x, m = torch.randn(B, T, 2), torch.randn(B, 1, 2)
    for backend in ("naive", "auto"):
        set_backend(backend)
        added, grown, last = model(x, m, torch.zeros(B, 9))
        torch.testing.assert_close(added, x + m)
        torch.testing.assert_close(grown, m.exp().expand(B, T, 2))
        assert torch.equal(last, m)
    assert model.loops[0].compiled, model.explain()
