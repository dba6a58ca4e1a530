"""Saving models that were read: what was trained, what is shared, what is compressed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from covering import every
from ir_cases import answers, case, check
from stepnet.errors import IRError
from stepnet.openvino import load, save
from stepnet.openvino.writing.builder import In, NetBuilder, To
from stepnet.openvino.writing.xml_writer import write

BACKEND = "naive"


def trained(folder, **options):
    """A model after a step of training, and its inputs."""
    model = load(folder / "model.xml", trainable=True)
    named = answers(folder)[0][0]
    torch.stack([y.double().square().sum() for y in model(**named)]).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad / (1 + parameter.grad.abs().max())
    return model, named


@pytest.mark.parametrize(
    "name", every(2, ["lstmcell_v4", "lstm_layernorm", "loop_while", "torch_gru_bi2_seq"])
)
def test_trained_weights_are_saved(name, tmp_path):
    model, named = trained(case(name))
    save(model, tmp_path / "m.xml")
    before, after = load(case(name) / "model.xml")(**named), load(tmp_path / "m.xml")(**named)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for ours, again in zip(model(**named), after, strict=True):
        assert torch.equal(ours, again)


def compressed(path, count=2, scale=False):
    """y = x W + x W', both W a Convert of one f16 constant, as OpenVINO compresses weights; times one."""
    b = NetBuilder("compressed")
    x = b.parameter("x", torch.float32, (-1, 3))
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).half()
    outs = []
    for _ in range(count):
        wide = b.layer("Convert", [b.constant(weight)], {"destination_type": torch.float32})
        b.layers[wide.layer].rt_info = (("attribute", {"name": "decompression", "version": "0"}),)
        outs.append(b.layer("MatMul", [x, wide], {"transpose_a": False, "transpose_b": False}))
    out = b.layer("Add", outs)
    if scale:
        wide = b.layer("Convert", [b.constant(torch.tensor(0.3).half())], {"destination_type": torch.float32})
        out = b.layer("Multiply", [out, wide])
    b.result(out, ("y",))
    write(b.net(), path)


@pytest.mark.parametrize("scale", [False, True])
def test_compressed_weights_stay_compressed_where_they_are_not_trained(scale, tmp_path):
    compressed(tmp_path / "m.xml", scale=scale)
    save(load(tmp_path / "m.xml", trainable=True), tmp_path / "n.xml")
    text = (tmp_path / "n.xml").read_text()
    assert text.count('name="decompression"') == 2
    assert (tmp_path / "n.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()


def test_trained_compressed_weights_become_constants_of_their_own_and_stay_shared(tmp_path):
    compressed(tmp_path / "m.xml")
    model = load(tmp_path / "m.xml", trainable=True)
    (weight,) = model.parameters()
    with torch.no_grad():
        weight += 1e-4  # not a number of f16
    save(model, tmp_path / "n.xml")
    again = load(tmp_path / "n.xml", trainable=True)
    (found,) = again.parameters()
    assert torch.equal(found, weight)
    assert 'type="Convert"' not in (tmp_path / "n.xml").read_text()
    assert (tmp_path / "n.bin").stat().st_size == 9 * 4


def test_equal_constants_of_two_layers_are_not_tied(tmp_path):
    b = NetBuilder("two")
    x = b.parameter("x", torch.float32, (-1, 2))
    one, other = (b.layer("Add", [x, b.constant(torch.zeros(2))]) for _ in range(2))
    b.result(b.layer("Multiply", [one, other]), ("y",))
    write(b.net(), tmp_path / "m.xml")
    assert len(list(load(tmp_path / "m.xml", trainable=True).parameters())) == 2


def test_a_weight_that_a_body_and_the_model_share_is_one_after_saving(tmp_path):
    weight = torch.randn(3, 3)
    b = NetBuilder("shared")
    x, h = b.parameter("x", torch.float32, (-1, -1, 3)), b.parameter("h", torch.float32, (-1, 1, 3))
    inner = b.body()
    x_t, state = (inner.parameter(n, torch.float32, (-1, 1, 3)) for n in "xh")
    product = {"transpose_a": False, "transpose_b": False}
    summed = inner.layer("Add", [inner.layer("MatMul", [state, inner.constant(weight)], product), x_t])
    result = inner.result(summed)
    start = b.layer("MatMul", [h, b.constant(weight)], product)
    outs = b.tensor_iterator(inner, [In(x, x_t, 1), In(start, state)], [To(result, 1)], [(result, state)])
    b.result(outs[0], ("y",))
    write(b.net(), tmp_path / "m.xml")
    model = load(tmp_path / "m.xml", trainable=True)
    assert len(list(model.parameters())) == 1
    save(model, tmp_path / "n.xml")
    assert len(list(load(tmp_path / "n.xml", trainable=True).parameters())) == 1
    assert (tmp_path / "n.bin").stat().st_size == 9 * 4


def test_a_model_in_double_is_saved_in_the_types_of_its_file(tmp_path):
    folder = case("lstmcell_v4")
    save(load(folder / "model.xml").double(), tmp_path / "m.xml")
    check(folder, load(tmp_path / "m.xml"))


def test_a_copy_can_be_saved(tmp_path):
    folder = case("torch_lstm_dyn_ti")
    save(copy.deepcopy(load(folder / "model.xml")), tmp_path / "m.xml")
    check(folder, load(tmp_path / "m.xml"))


def test_a_model_can_be_saved_over_its_own_files(tmp_path):
    folder = case("lstmcell_v4")
    save(load(folder / "model.xml"), tmp_path / "m.xml")
    model = load(tmp_path / "m.xml")
    for _ in range(2):
        save(model, tmp_path / "m.xml")
    check(folder, model)
    check(folder, load(tmp_path / "m.xml"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.bin", "m.xml"]


def test_layers_keep_what_a_file_notes_of_them(tmp_path):
    folder = case("torch_script_for_loop")
    model = load(folder / "model.xml")
    save(model, tmp_path / "m.xml")
    again = load(tmp_path / "m.xml")
    noted = {layer.name: layer.rt_info for layer in model.graph.net.layers.values() if layer.rt_info}
    assert noted
    found = {layer.name: layer.rt_info for layer in again.graph.net.layers.values()}
    assert {name: found[name] for name in noted} == noted
    assert again.rt_info["conversion_parameters"]["framework"] == "pytorch"


def test_a_model_that_was_read_takes_no_examples(tmp_path):
    model = load(case("lstmcell_v4") / "model.xml")
    with pytest.raises(IRError, match=r"m\.xml: a model that was read is saved as it is"):
        save(model, tmp_path / "m.xml", torch.ones(1))
    with pytest.raises(IRError, match=r"got: +dynamic"):
        save(model, tmp_path / "m.xml", dynamic={"x": (0,)})
    assert not list(tmp_path.iterdir())


def test_constants_of_every_type_come_back(tmp_path):
    b = NetBuilder("types")
    values = [torch.tensor([0, 1, 7]).to(d) for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool,
    )] + [torch.tensor(float("-inf")), torch.zeros(0, 2), torch.arange(6.0).reshape(2, 3).t()]  # fmt: skip
    for i, value in enumerate(values):
        b.result(b.constant(value), (f"y{i}",))
    write(b.net(), tmp_path / "m.xml")
    save(load(tmp_path / "m.xml"), tmp_path / "n.xml")
    for value, found in zip(values, load(tmp_path / "n.xml")(), strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found.float().numpy(), value.float().numpy())
