"""The benchmark of cells that are linear in their state: everyone does the same work."""

from __future__ import annotations

import pytest
import torch
from benchmarks.harness import run_case
from benchmarks.linear_cells import EFFORTS, GOALS, PEERS, TOPIC, WORKS, cases
from benchmarks.peers import compiled_step
from benchmarks.stats import Spread
from benchmarks.work import Setting, Size

from benchmarks import peers, topics


@pytest.mark.exhaustive  # a run of the benchmark refuses rows that differ
@pytest.mark.parametrize("work", list(WORKS), ids=lambda work: work.name)
def test_everyone_computes_what_the_plain_loop_in_float64_does(work):
    setting = Setting(work, Size(6, 3, 16), ragged=False)
    found, absent = peers.contenders(setting, True, [name for name in PEERS if name != "compiled_step"])
    assert not [line for line in absent if "not installed" not in line]
    assert {"loop", "stepnet"} <= found.keys()
    wanted = setting.target(True)
    for name, contender in found.items():
        values = contender.values(contender.run())
        assert values.keys() == wanted.keys(), name
        for key, value in values.items():
            torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-4, msg=f"{name}: {key}")


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_the_compiled_step_is_the_step():
    work = next(work for work in WORKS if work.name == "gated_delta_net")
    setting = Setting(work, Size(4, 3, 16), ragged=False)
    (contender,) = (way.contender(True) for way in compiled_step.ways(setting, backend="aot_eager").values())
    wanted = setting.target(True)
    for key, value in contender.values(contender.run()).items():
        torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-4, msg=key)


@pytest.mark.exhaustive
def test_a_quick_case_is_run_and_judged():
    case = next(iter(cases(True)))
    row = run_case(case, EFFORTS[1])
    assert row.refused is None
    assert {"loop"} <= row.ratios.keys()
    found = TOPIC.findings([row])
    assert found["rows"] == 1
    assert found["smallest ratio to the best of the others"] == min(r.median for r in row.ratios.values())
    fast, slow = Spread.of([3.0]), Spread.of([1.9])
    judged = [type(row)("a", "stepnet", {"goal": 2.0}, ratios={"loop": ratio}) for ratio in (fast, slow)]
    assert TOPIC.findings(judged)["rows that reach their goal"] == 1
    assert TOPIC.findings([])["rows"] == 0


def test_it_is_a_topic_with_goals_for_vectors_and_matrices():
    assert topics.TOPICS["linear_cells"] is TOPIC
    assert set(WORKS.values()) == set(GOALS)
