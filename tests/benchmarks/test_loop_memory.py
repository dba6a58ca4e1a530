"""The figures on memory of loops: the same on every machine, so they can be asserted."""

from __future__ import annotations

from benchmarks.harness import run_case
from benchmarks.loop_memory import TOPIC, findings


def test_inference_of_the_rnn_op_is_flat_and_checkpoints_grow_like_a_root():
    rows = [run_case(case, TOPIC.efforts[1], measurer=TOPIC.measure) for case in TOPIC.cases(True)]
    assert [row.refused for row in rows] == [None] * 4
    growth = {name.partition(":")[0]: value for name, value in findings(rows).items()}
    assert growth["inference, two scopes"] == 1
    assert growth["training, a scope per step"] > 3
    assert growth["everything kept"] > 3
    assert growth["checkpoint=True"] < 2.5
