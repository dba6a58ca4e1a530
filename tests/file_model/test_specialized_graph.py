"""Graphs of files as functions: they give what the nodes give, whatever changed since they were made."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

import stepnet
from covering import few
from stepnet.errors import IRError
from stepnet.file_model import Recorder, not_in_recordings
from threads import at_once
from torch_since import torch_since
from ways_of_calling import as_nodes, functions

parser = pytest.importorskip("onnx").parser
pytest.importorskip("onnx_ir")
import stepnet.onnx  # noqa: E402

HEAD = '<ir_version: 9, opset_import: ["": 18]>\n'
# Sizes that decide, weights in another order, a choice by a number, a node that reads numbers, a result that
# depends on sizes alone.
GRAPH = """g (float[N, 4] x, int64 way) => (float[N, 3] y, float[M, 3] cut, int64[K] size, float[3] b)
<float[3, 4] w = {WEIGHTS}, float[3] b = {1, 2, 3},
 int64[2] order = {1, 0}, int64[1] zero = {0}, int64 two = {2}>
{
  sizes = Shape(x)
  rows = Gather <axis = 0> (sizes, order)
  size = Mul(rows, order)
  few = Less(rows, two)
  any = ReduceMax <keepdims = 1> (few)
  turned = Transpose <perm = [1, 0]> (w)
  first = If (any) <then_branch = t () => (a) { a = MatMul(x, turned) },
                    else_branch = e () => (c) { p = MatMul(x, turned)  c = Add(p, b) }>
  positive = Greater(way, two)
  y = If (positive) <then_branch = u () => (d) { d = Tanh(first) },
                     else_branch = v () => (f) { f = Neg(first) }>
  end = Unsqueeze(way, zero)
  cut = Slice(y, zero, end)
}
""".replace("WEIGHTS", ", ".join(f"{k / 7 - 1:.3f}" for k in range(12)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    import onnx

    place = tmp_path_factory.mktemp("g") / "g.onnx"
    onnx.save(parser.parse_model(HEAD + GRAPH), place)
    return place


def inputs(rows=2, way=1):
    return torch.randn(rows, 4), torch.tensor(way)


def check(model, *values, tolerance=0.0):
    with torch.no_grad():
        found, expected = model(*values), as_nodes(model, values)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    return found


def test_each_size_and_each_way(path):
    model = stepnet.onnx.load(path)
    for way in (1, 3, 2, 5):
        for rows in (2, 1, 2, 0, 1, 1, 0, 2):
            check(model, *inputs(rows, way))
    assert functions(model.graph) == 6  # of three sizes, and two ways


def change_in_place(model):
    for number in model.buffers():
        number.add_(1)


def load_numbers(model):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def assign_numbers(model):
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)


def to_double(model):
    model.double()


@pytest.mark.parametrize("change", [change_in_place, load_numbers, assign_numbers, to_double])
def test_constants_that_change(path, change):
    model = stepnet.onnx.load(path)
    before = [check(model, *inputs(3, 3)) for _ in range(3)][-1]
    x, way = inputs(3, 3)
    old = check(model, x, way)[0]
    change(model)
    x = x.double() if change is to_double else x
    for _ in range(3):
        new = check(model, x, way)
    assert (new[0].dtype != old.dtype) == (change is to_double)
    assert change is to_double or not torch.equal(new[0], old)
    assert torch.equal(before[2], torch.tensor([4, 0])), "what a call gave stays"


def test_parameters_that_are_trained(path):
    model, twin = stepnet.onnx.load(path, trainable=True), stepnet.onnx.load(path, trainable=True)
    for _ in range(4):
        x, way = inputs(3, 3)
        for out in (model(x, way), as_nodes(twin, (x, way))):
            (out[0].square().sum() + out[1].sum()).backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0)  # accumulated over the calls
            for number in (a, b):
                number.data.sub_(0.1 * number.grad)
    assert functions(model.graph)


def test_results_are_the_callers(path):
    """What depends on sizes alone is part of the function, and no caller can change it."""
    model, values = stepnet.onnx.load(path), inputs(3, 3)
    for _ in range(4):
        out = model(*values)
        assert out["size"].tolist() == [4, 0]
        out["size"].fill_(9)
        assert out["b"].data_ptr() in {number.data_ptr() for number in model.buffers()}


def test_one_tensor_in_two_places(tmp_path):
    """In one call two inputs are one tensor, in the next they are not; and a loop gives what it was given."""
    import onnx

    text = """g (float[N] x, float[N] y, int64 n) => (float[N] z, float[N] s)
    <bool go = {1}> {
      z = Loop (n, go, x) <body = b (int64 i, bool c, float[N] v) => (bool d, float[N] w) {
        d = Identity(c)  w = Add(v, y) }>
      s = Sub(x, y)
    }"""
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.randn(3)
    for trips in (0, 0, 2, 0, 3):
        for y in (x, x, x.clone() * 2, x * 3, x):
            check(model, x, y, torch.tensor(trips))


LAID = {
    "in order": lambda x: x, "turned": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "from the middle": lambda x: torch.cat([x, x, x], 1)[:, 4:8], "each other": lambda x: x.repeat(2, 1)[::2],
    "one row": lambda x: x[:1].expand(x.shape), "elsewhere": lambda x: torch.cat([x, x])[x.shape[0] :],
}  # fmt: skip


def test_a_list_of_the_first_input_alone(tmp_path):
    """It is a list of values of the call, as any other list is."""
    import onnx

    onnx.save(
        parser.parse_model(HEAD + "g (float[N] x) => (float[M] y) { y = Concat <axis = 0> (x, x) }"),
        tmp_path / "g.onnx",
    )
    model = stepnet.onnx.load(tmp_path / "g.onnx")
    for _ in range(3):
        check(model, torch.randn(2))
    assert functions(model.graph) == 1


def test_views_of_views_in_any_memory(tmp_path):
    """Chains of views, of the input, of what is computed and of constants, each in one call; results that
    lie in one another stay so."""
    import onnx

    text = """g (float[N, 4] x) => (float[M] y, float[4, N] a, float[2, N] b, float[K] c, float[4, N] e)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[2] halves = {2, 2},
     int64[1] flat = {-1}, float[2, 2] w = {1, 2, 3, 4}> {
      t = Transpose <perm = [1, 0]> (x)
      a, b0 = Split <axis = 0> (t, halves)
      b = Slice(t, one, three, zero)
      u = Unsqueeze(b, zero)
      v = Transpose <perm = [0, 2, 1]> (u)
      s = Squeeze(v, zero)
      p = MatMul(s, w)
      q = Transpose <perm = [1, 0]> (p)
      r = Slice(q, zero, one, zero)
      c = Reshape(r, flat)
      d = Exp(t)
      e = Transpose <perm = [0, 1]> (d)
      f = Concat <axis = 0> (a, b0, e)
      y = Reshape(f, flat)
    }"""
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for rows in (3, 1, 3, 0):
        for laid in (*LAID.values(), *LAID.values(), *LAID.values()):
            x = laid(torch.randn(rows, 4))
            found = check(model, x)
            expected = as_nodes(model, (x,))
            for one, other in zip(found, expected, strict=True):
                assert one.stride() == other.stride()
                assert one.storage_offset() == other.storage_offset()
    assert functions(model.graph)


@pytest.mark.parametrize("kind", few(["LSTM", "GRU", "RNN"], ["LSTM"]))
def test_streams_follow_their_weights(kind, tmp_path):
    """A step in each call, by a cell of torch: weights are brought to its order once, until they change."""
    module = getattr(stepnet.nn, kind)(4, 3).eval()
    stepnet.onnx.save(module, tmp_path / "m.onnx", (torch.randn(4, 2, 4),))
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for factor in (1.0, 0.5):
        for value in model.buffers():
            value.mul_(factor if value.is_floating_point() else 1)
        for _ in range(4):
            check(model, torch.randn(1, 2, 4), tolerance=1e-6)
    assert functions(model.graph)


def test_errors_name_the_node_in_every_call(tmp_path):
    import onnx

    text = "g (float[N] x, int64[K] at) => (float[K] y) { z = Exp(x)  y = Gather(z, at) }"
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = stepnet.onnx.load(tmp_path / "m.onnx")
    for place in (0, 2, 5, 1, 5, 1):
        if place < 3:
            check(model, torch.randn(3), torch.tensor([place]))
        else:
            with pytest.raises(IRError, match=r"node 1 '' \(Gather\): index out of range"):
                model(torch.randn(3), torch.tensor([place]))


@torch_since("2.10", "no tensor has tolist() inside torch.func")
def test_other_ways_to_call(path):
    """Under autocast, in inference mode, mapped, compiled, exported, on fakes, on meta, and in threads."""
    model, (x, way) = stepnet.onnx.load(path), inputs(3, 3)
    expected = check(model, x, way)[0]
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            assert not torch.equal(check(model, x, way)[0], expected)
        with torch.inference_mode():
            assert torch.equal(model(x, way)[0], expected)
        x_grad = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x_grad, way)[0].sum(), x_grad)
        straight = torch.func.jacrev(lambda v: model(v, way)[0].sum())(x)
        torch.testing.assert_close(slope, straight)
        forward = torch.func.jvp(lambda v: model(v, way)[0].sum(), (x,), (torch.ones_like(x),))[1]
        torch.testing.assert_close(forward, slope.sum())
        assert torch.equal(model(x, way)[0], expected)
    assert all(torch.equal(one, expected) for one in at_once(lambda _: model(x, way)[0]))


def test_swapped_parameters(path):
    model, (x, way) = stepnet.onnx.load(path), inputs(3, 3)
    for k in range(4):
        swapped = {name: value + k for name, value in model.named_buffers() if value.is_floating_point()}
        twin = copy.deepcopy(model)
        twin.load_state_dict(swapped, strict=False)
        found = torch.func.functional_call(model, swapped, (x, way))
        torch.testing.assert_close(found[0], as_nodes(twin, (x, way))[0])


def test_checkpoints(path):
    """What is noted may be the second run, in backward: it saves as much for gradients as the first."""
    from torch.utils.checkpoint import checkpoint

    model, (x, way) = stepnet.onnx.load(path, trainable=True), inputs(3, 3)
    grads = []
    for _ in range(3):
        model.zero_grad()
        checkpoint(lambda v: model(v, way)[0], x, use_reentrant=False).sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for one in grads for a, b in zip(one, grads[0], strict=True))


def test_inputs_are_let_go(path):
    import weakref

    model = stepnet.onnx.load(path)
    for _ in range(3):
        x, way = inputs(3, 3)
        alive = weakref.ref(x)
        model(x, way)
        del x
        gc.collect()
        assert alive() is None


def test_of_constants_written_past_torch(tmp_path):
    text = "g (float[2] x) => (float[2] y) <float[2] b = {1, 2}> { c = Mul(b, b)  y = Add(x, c) }"
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    model, x = stepnet.onnx.load(tmp_path / "m.onnx"), torch.zeros(2)
    for _ in range(3):
        assert model(x)[0].tolist() == [1, 4]
    (constant,) = model.buffers()
    constant.data.copy_(torch.tensor([3.0, 4.0]))  # which counts no change
    for _ in range(3):
        assert model(x)[0].tolist() == [9, 16]
    constant.data = torch.ones(2)
    assert model(x)[0].tolist() == [1, 1]


def test_a_value_that_is_given_on_as_it_is_stays_what_it_was():
    """`x.long()` of int64 is x: a node that turns out to read numbers afterwards still finds it."""
    x = torch.tensor([2, 1])

    def node(given):
        kept = given[0].long()
        not_in_recordings()
        return [kept * 2]

    recorder = Recorder([x], {}, ())
    function = recorder.function(recorder.call(node, [x]))
    torch.testing.assert_close(function.run(x + 1)[0], torch.tensor([6, 4]))
