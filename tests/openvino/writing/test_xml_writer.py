"""The two files: names of any spelling, bad places, and never a pair that does not belong together."""

from __future__ import annotations

import os

import pytest
import torch

from stepnet.errors import IRError
from stepnet.openvino import load
from stepnet.openvino.writing import files
from stepnet.openvino.writing.builder import NetBuilder
from stepnet.openvino.writing.xml_writer import write

ODD = [
    "a<b>&\"c'",
    "tab\tline\nend\r",
    "ünï-码-🎉",
    "a,b",
    "back\\slash",
    " spaces ",
    "]]>",
    "-1",
    "x" * 5000,
]


def doubled(name="x", output="y", rt_info=None, layer=None):
    b = NetBuilder("net", rt_info=rt_info)
    x = b.parameter(name, torch.float32, (-1, 2))
    b.result(b.layer("Add", [x, b.constant(torch.ones(2))], name=layer), (output,))
    return b.net()


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_names_of_any_spelling_come_back(name, tmp_path):
    write(doubled(name, f"{name}!", {name: {name: name}}, name), tmp_path / "m.xml")
    model = load(tmp_path / "m.xml")
    assert model.inputs[0].name == name
    assert model.outputs[0].name == f"{name}!"
    assert model.rt_info == {name: {name: name}}
    assert name in {layer.name.removesuffix("_1") for layer in model.graph.net.layers.values()}
    assert torch.equal(model(**{name: torch.zeros(1, 2)})[f"{name}!"], torch.ones(1, 2))


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_openvino_reads_names_of_any_spelling(name, tmp_path):
    openvino = pytest.importorskip("openvino")
    write(doubled(name, f"{name}!", {name: name}), tmp_path / "m.xml")
    read = openvino.Core().read_model(tmp_path / "m.xml")
    assert read.inputs[0].names == {name}
    assert read.outputs[0].names == {f"{name}!"}
    assert read.get_rt_info([name]).astype(str) == name


@pytest.mark.parametrize("name", ["bell\a", "nul\0", "\ud800", "\ufffe", "esc\x1b[0m"])
def test_characters_that_xml_does_not_hold_are_refused(name, tmp_path):
    for net in (doubled(name), doubled(output=name), doubled(rt_info={"k": name}), doubled(layer=name)):
        with pytest.raises(IRError, match="XML cannot hold the character"):
            write(net, tmp_path / "m.xml")
    assert not list(tmp_path.iterdir())


def test_tensor_names_that_ir_does_not_hold_are_refused(tmp_path):
    with pytest.raises(IRError, match="cannot hold the tensor name"):
        write(doubled(output=" "), tmp_path / "m.xml")
    b = NetBuilder("net")
    x = b.parameter("x", torch.float32, (2,))
    b.result(b.layer("ReLU", [x]), ("ends with\\", "z"))
    with pytest.raises(IRError, match="a backslash before a comma"):
        write(b.net(), tmp_path / "m.xml")


def test_rt_info_is_text(tmp_path):
    for value in (1, None, ["a"], {"k": 2.0}, {3: "v"}):
        with pytest.raises(IRError, match=r"rt_info: '.*' cannot be written"):
            write(doubled(rt_info={"key": value}), tmp_path / "m.xml")
    deep: dict = {}
    for _ in range(40):
        deep = {"k": deep}
    with pytest.raises(IRError, match="nested too deeply"):
        write(doubled(rt_info=deep), tmp_path / "m.xml")


@pytest.mark.parametrize("name", ["m", "m.bin", "m.XML", "m.xml.gz", ".xml"])
def test_the_name_must_end_in_xml(name, tmp_path):
    with pytest.raises(IRError, match=r"must end in \.xml"):
        write(doubled(), tmp_path / name)


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(IRError, match=r"m\.xml: cannot be written: No such file or directory"):
        write(doubled(), tmp_path / "missing" / "m.xml")
    (tmp_path / "file").write_text("")
    with pytest.raises(IRError, match=r"m\.xml: cannot be written: Not a directory"):
        write(doubled(), tmp_path / "file" / "m.xml")
    (tmp_path / "m.bin").mkdir()
    with pytest.raises(IRError, match=r"m\.xml: cannot be written: is a folder"):
        write(doubled(), tmp_path / "m.xml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "m.bin"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(IRError, match="Permission denied"):
        write(doubled(), tmp_path / "closed" / "m.xml")


@pytest.mark.parametrize("failing", range(4))
def test_when_a_file_cannot_be_moved_the_old_pair_stays(failing, tmp_path, monkeypatch):
    write(doubled(output="old"), tmp_path / "m.xml")
    before = [(tmp_path / name).read_bytes() for name in ("m.xml", "m.bin")]
    moves = []

    def replace(a, b):
        moves.append(a)
        if len(moves) == failing + 1:
            raise OSError(5, "Input/output error")
        real(a, b)

    real = os.replace
    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(IRError, match="Input/output error"):
        write(doubled(output="new"), tmp_path / "m.xml")
    assert [(tmp_path / name).read_bytes() for name in ("m.xml", "m.bin")] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.bin", "m.xml"]


def test_constants_are_aligned_and_shared_memory_is_stored_once(tmp_path):
    shared = torch.randn(5)
    b = NetBuilder("net")
    x = b.parameter("x", torch.float32, (5,))
    for value in (shared, torch.randn(1)[0], shared, shared.view(1, 5)):
        x = b.layer("Add", [x, b.constant(value)])
    b.result(x, ("y",))
    write(b.net(), tmp_path / "m.xml")
    read = load(tmp_path / "m.xml").graph.net.layers.values()
    places = [int(layer.attributes["offset"]) for layer in read if layer.type == "Const"]
    assert places == [0, 64, 0, 0]
    assert (tmp_path / "m.bin").stat().st_size == 64 + 4


def test_a_constant_without_data_is_refused(tmp_path):
    b = NetBuilder("net")
    b.result(b.constant(torch.ones(2, device="meta"), name="w"), ("y",))
    with pytest.raises(IRError, match="'w': the constant has no data"):
        write(b.records(), tmp_path / "m.xml")
