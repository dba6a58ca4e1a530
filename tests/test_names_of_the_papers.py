"""The page "From Paddle, from OpenVINO" has every name of the five documents, and can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "from_paddle_and_openvino.md").read_text(encoding="utf-8")

NAMES = {
    "RNN design": """
        RNNOp recurrent_op stepnet memory pre-memory init_memory Scope InferShape CreateScopes InitMemories
        Run infer_shape_mode step_scopes DeviceContext framework::Scope platform::DeviceContext""",
    "Tape": """
        data_layer Dense Integer fc_layer fc_layer_v2 Softmax classification_cost paddle.train evaluators
        memory group Tape append call end gTape TapeItem idx to_proto bind skip topology search
        __creations__ layer a b c d e f g img hidden prediction cost label""",
    "TensorArray": """
        TensorArray size unstack_from stack unstack concat write read index value data_shared axis unpack pack
        level sort_by_length indices_map states input_segments output_segments seq_len boot_state rnnstep
        step_outputs indice_map sentence_input rnn_output Parameter W U step
        LoDTensor RecurrentGradientMachine dynamic_recurrent while_loop map_fn recurrent_op
        dynamic_recurrent_op Array""",
    "its Python API": """
        create_whileloop loop_vars frame break_if equal sigmoid matmul num_steps default_state pre_state
        step_input tensor_array_stack tensor_array_unstack tensor_array_write tensor_array_read
        tensor_array_size name Var values_ TensorArrayDesc desc WhileLoop Tensor some_op""",
    "TensorIterator": """
        body port_map input output external_port_id internal_layer_id internal_port_id axis start end stride
        part_size back_edges edge from-layer to-layer Parameter Result Concat IR layers edges from-port
        to-port Const data offset Reshape LSTMCell precision dim hidden_size""",
}


@pytest.mark.parametrize("document", NAMES)
def test_every_name_is_on_the_page(document):
    code = " ".join(re.findall(r"`+[^`]+`+", PAGE))
    assert not [
        name for name in NAMES[document].split() if not re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", code)
    ]


@pytest.mark.parametrize("place", ["../mkdocs.yml", "index.md", "tensor_array.md", "tape.md", "loops.md"])
def test_it_can_be_found(place):
    assert "from_paddle_and_openvino.md" in (DOCS / place).read_text(encoding="utf-8")
