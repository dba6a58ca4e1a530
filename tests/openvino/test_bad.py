"""Files that are no models are refused, with the place, what was found and what is expected."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stepnet.errors import IRError
from stepnet.openvino import load

BAD = sorted((Path(__file__).parent / "cases" / "bad").iterdir())
IN_TI = r"model.xml: body of TensorIterator '\w+' \(layer \d+\): "
TI = r"model.xml: TensorIterator layer \d+ '\w+'"
SAYS = {
    "back_edge_duplicate_target": TI + r": back edge .*: Parameter 1 is the target of two back edges",
    "bin_truncated": IN_TI + r"Const layer 5 '\w+': offset \+ size 200 exceeds the .bin length 100",
    "body_shape_mismatch": IN_TI + r"MatMul layer 6 '\w+': \[2, 3\] x \[4, 5\] do not match",
    "const_huge_shape": IN_TI + r"Const layer 5 '\w+': size 192 does not match element_type x shape",
    "const_offset_beyond_bin": IN_TI + r"Const layer 9 '\w+': offset \+ size 524 exceeds the .bin length 520",
    "const_offset_negative": IN_TI + r"Const layer 5 '\w+': offset must be >= 0",
    "const_size_negative": IN_TI + r"Const layer 5 '\w+': size must be >= 0",
    "const_size_too_small": r"size 64 does not match element_type x shape\n.*\n.*192 bytes for f32 \[16x3\]",
    "dangling_edge_layer": IN_TI + r"edge from-layer=77 names no layer",
    "dangling_edge_port": IN_TI + r"Parameter layer 0 'xi': an edge names port 9.* no such output port",
    "dim_negative": TI + r", input port 0: dim -5 is not allowed \(-1 is dynamic\)",
    "duplicate_layer_id": r"model.xml: layer id 0 is used twice",
    "duplicate_layer_id_body": IN_TI + r"layer id 0 is used twice",
    "edge_cycle_body": IN_TI + r"edges form a cycle through layers 3 -> 4 -> 3",
    "edge_missing": IN_TI + r"Multiply layer 3 '\w+': input port 0 is not connected",
    "empty_body": TI + r": body has no layers",
    "entity_expansion": r"model.xml: DTD and entity declarations are refused",
    "ir_version_missing": r"model.xml: <net> has no version attribute",
    "layer_id_missing": r"model.xml: a <layer> has no id",
    "lstm_hidden_size_wrong": IN_TI + r"LSTMCell layer 8 '\w+': hidden_size 5 does not match state \[2, 4\]",
    "lstm_wrong_weight_shape": r"LSTMCell .*: W must be \[4\*hidden, input\] = \[16, 3\], got \[12, 4\]",
    "missing_port_map": TI + r": has no <port_map>",
    "parameter_huge_dim": r"Parameter layer 0 'X': .* too large, 4000000000000 elements",
    "part_size_negative": TI + r": port_map input .*: part_size must be > 0",
    "part_stride_mismatch": r"part_size 2 and \|stride\| 1 differ \(overlapping slices are not defined\)",
    "port_map_missing_output": TI + r": output port 3 has no port_map entry",
    "port_map_output_from_parameter": TI + r": port_map output .*maps to layer 0 'xi', which is a Parameter",
    "port_map_unknown_layer": TI + r": port_map input internal_layer_id=55: names no layer in the body",
    "result_two_inputs": IN_TI + r"Result layer 7 '\w+': must have one input",
    "slice_output_count_mismatch": r"output port 2 declares 7 along axis 1 but 6 iterations x part 1 give 6",
    "start_out_of_range": TI
    + r": the slice of 'xi' along axis 1 lies outside .*\n.*start=-9.*over 6 elements",
    "stride_zero": TI + r": port_map input .*: stride must not be 0",
    "unknown_element_type": r"Parameter layer 0 'X': element_type f33 is unknown",
    "xml_binary": r"model.xml: not XML",
    "xml_empty": r"model.xml: the file is empty: not an OpenVINO IR",
}


@pytest.mark.parametrize("folder", BAD, ids=lambda p: p.name)
def test_refused(folder):
    started = time.process_time()
    with pytest.raises(IRError, match=SAYS[folder.name]):
        load(folder / "model.xml")
    assert time.process_time() - started < 1
