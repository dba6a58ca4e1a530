"""The harness gives no time for wrong values, and its ratios are those of the clock it is given."""

from __future__ import annotations

import gc
import io
import json
import re

import pytest
import torch
from benchmarks.harness import Case, Contender, Effort, Topic, run_case
from benchmarks.stats import Spread, growth_exponent
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import harness, report
from covering import few

THREE = Effort(rounds=3, warmup=1, shortest=0.0, budget=1e9)


class FakeTime:
    """A clock that only moves when work is done, by as much as a script says for each turn."""

    def __init__(self):
        self.now = 0.0
        self.turns = []

    def __call__(self):
        return self.now

    def work(self, name, seconds, value=None):
        script = iter(seconds)
        value = torch.tensor([1.0]) if value is None else value

        def run():
            self.turns.append(name)
            self.now += next(script)
            return {"y": value}

        return Contender(run)


def case_of(contenders, **options):
    return Case("a case", contenders, **{"reference": "peer", **options})


# --------------------------------------------------------------------------------------- times and ratios


def test_turns_are_interleaved_and_ratios_are_taken_within_a_round():
    clock = FakeTime()
    case = case_of(
        {  # the check of the values, the warm-up, then three rounds; the machine is slow in the second
            "stepnet": clock.work("ours", [9, 9, 1, 10, 2]),
            "peer": clock.work("peer", [9, 9, 3, 20, 8]),
        }
    )
    row = run_case(case, THREE, clock)
    assert row.refused is None
    assert clock.turns[2:] == ["ours", "peer"] * 4
    assert row.times == {"stepnet": Spread(2, 1.5, 6), "peer": Spread(8, 5.5, 14)}
    assert row.ratios == {"peer": Spread(3, 2.5, 3.5)}  # of 3, 2, 4: not 8 / 2
    assert row.rounds == 3


def test_values_are_made_comparable_outside_the_time():
    clock = FakeTime()

    def slow_reading(y):
        clock.now += 1000
        return {"y": y["y"] + 1}

    peer = Contender(clock.work("peer", [1] * 9).run, slow_reading)
    row = run_case(
        case_of({"stepnet": clock.work("ours", [1] * 9, torch.tensor([2.0])), "peer": peer}), THREE, clock
    )
    assert row.refused is None
    assert row.times["peer"].median == 1


def test_short_work_is_repeated_within_a_turn():
    clock = FakeTime()
    runs = {"a": clock.work("a", [1.0] * 99).run, "b": clock.work("b", [0.25] * 99).run}
    turns = harness.measure(runs, Effort(rounds=2, warmup=1, shortest=1.0, budget=1e9), clock)
    assert clock.turns == ["a", "b", *(["a"] + ["b"] * 5) * 2]  # the first of several does not count
    assert turns == {"a": [1.0, 1.0], "b": [0.25, 0.25]}


def test_short_work_is_timed_warm_though_it_is_not_repeated():
    clock = FakeTime()
    runs = {
        "a": clock.work("a", [0.005, *[0.005, 0.001] * 3]).run,  # the first after a pause finds nothing ready
        "b": clock.work("b", [0.5, 0.4, 0.4, 0.4]).run,
    }
    turns = harness.measure(runs, THREE, clock)
    assert clock.turns == ["a", "b", *["a", "a", "b"] * 3]
    assert turns["a"] == pytest.approx([0.001] * 3)
    assert turns["b"] == pytest.approx([0.4] * 3)


def test_first_runs_are_timed_cold():
    clock = FakeTime()
    once = Effort(rounds=1, warmup=0, shortest=0.0, budget=0.0)
    assert harness.measure({"a": clock.work("a", [0.005]).run}, once, clock) == {"a": [0.005]}


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 3), (7.0, 4), (1e9, 10)], ids=["least", "some", "all"])
def test_a_budget_ends_the_rounds(budget, rounds):
    clock = FakeTime()
    turns = harness.measure({"a": clock.work("a", [2.0] * 99).run}, Effort(10, 0, 0.0, budget), clock)
    assert len(turns["a"]) == rounds


def test_no_garbage_is_collected_within_a_turn():
    seen = []
    harness.measure({"a": lambda: seen.append(gc.isenabled())}, THREE)
    assert seen == [False] * (1 + 2 * 3)  # each of the three turns has one that does not count
    assert gc.isenabled()


# --------------------------------------------------------------------------------------------- the check

RIGHT = {"y": torch.tensor([1.0, 2.0])}
WRONG = {
    "a value": ({"y": torch.tensor([1.0, 2.1])}, "'y' differs by up to 0.1 from 'peer'"),
    "a shape": ({"y": torch.tensor([[1.0, 2.0]])}, "'y' has shape [1, 2], expected [2]"),
    "not a number": ({"y": torch.tensor([1.0, torch.nan])}, "'y' is not finite"),
    "a name": ({"z": torch.tensor([1.0, 2.0])}, "returned ['z'], the reference ['y']"),
    "one missing": ({}, "returned [], the reference ['y']"),
}


@pytest.mark.parametrize("which", WRONG, ids=str)
def test_a_planted_wrong_value_is_caught_and_the_row_refused(which):
    values, text = WRONG[which]
    timed = []
    case = case_of(
        {"stepnet": Contender(lambda: timed.append("ours") or values), "peer": Contender(lambda: RIGHT)}
    )
    row = run_case(case, THREE)
    assert row.refused is not None
    assert f"stepnet: {text}" in row.refused
    assert (row.times, row.ratios, timed) == ({}, {}, ["ours"])


@pytest.mark.parametrize("value", [{}, {"y": torch.tensor([torch.inf])}], ids=["nothing", "infinite"])
def test_a_reference_that_proves_nothing_is_refused(value):
    row = run_case(case_of({"stepnet": Contender(lambda: value), "peer": Contender(lambda: value)}), THREE)
    assert row.refused is not None
    assert not row.times


def test_a_contender_that_fails_is_named_in_the_row():
    def broken():
        raise RuntimeError("no such kernel")

    row = run_case(case_of({"stepnet": Contender(broken), "peer": Contender(lambda: RIGHT)}), THREE)
    assert row.refused == "stepnet raised RuntimeError: no such kernel"


@pytest.mark.parametrize(("off", "refused"), [(0.5e-3, False), (2e-3, True)])
def test_tolerance_is_that_of_the_case(off, refused):
    near = {"y": RIGHT["y"] * (1 + off)}
    contenders = {"stepnet": Contender(lambda: near), "peer": Contender(lambda: RIGHT)}
    row = run_case(case_of(contenders, rtol=1e-3, atol=0.0), THREE)
    assert (row.refused is not None) == refused


@pytest.mark.parametrize(
    ("contenders", "text"),
    [
        ({"stepnet": Contender(dict)}, "'peer' is none of ['stepnet']"),
        ({"peer": Contender(dict)}, "'stepnet'"),
    ],
)
def test_a_case_needs_us_and_a_reference(contenders, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        case_of(contenders)


# -------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(
    ("values", "spread"),
    [([5], (5, 5, 5)), ([2, 1], (1.5, 1.25, 1.75)), ([4, 1, 3, 2], (2.5, 1.75, 3.25))],
    ids=str,
)
def test_spread_is_median_and_quartiles(values, spread):
    assert Spread.of(values) == Spread(*spread)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_growth_exponent(power):
    sizes = [3.0, 10.0, 50.0, 1000.0]
    assert growth_exponent(sizes, [0.1 * size**power for size in sizes]) == pytest.approx(power)


def test_growth_needs_two_sizes():
    with pytest.raises(ValueError, match="two different sizes"):
        growth_exponent([4, 4], [1, 2])


# ------------------------------------------------------------------------------------------- the command


def run_command(*arguments):
    console = Console(record=True, width=200, file=io.StringIO())
    status = command.main(arguments, console)
    return status, console.export_text()


@pytest.fixture
def planted(monkeypatch):
    """A topic with one right case and one whose peer is wrong."""

    def cases(quick):
        for name, off in (("right", 0.0), ("wrong [x]", 1.0)):
            peer = {"y": RIGHT["y"] + off}
            yield Case(
                name,
                {"stepnet": Contender(lambda: RIGHT), "p[t]": Contender(lambda peer=peer: peer)},
                reference="stepnet",
                facts={"size": 2},
            )

    topic = Topic("planted", "shows a refusal", cases, lambda rows: {"rows that count": len(rows)})
    monkeypatch.setattr(command, "TOPICS", {"planted": topic})


def test_a_refused_row_is_shown_without_times_and_fails_the_run(planted, tmp_path):
    path = tmp_path / "deep" / "out.json"
    status, text = run_command("planted", "--quick", "--json", str(path))
    assert status == 1
    assert "refused: p[t]: 'y' differs by up to 1 from 'stepnet'" in " ".join(text.split())
    assert "rows that count: 1" in text
    (topic,) = json.loads(path.read_text())["topics"]
    right, wrong = topic["rows"]
    assert right["refused"] is None
    assert set(right["times"]) == {"stepnet", "p[t]"}
    assert right["ratios"]["p[t]"].keys() == {"median", "low", "high"}
    assert wrong["times"] == {}
    assert topic["findings"] == {"rows that count": 1}


def test_the_file_says_what_the_numbers_depend_on_and_no_names_of_places(planted, tmp_path):
    path = tmp_path / "out.json"
    run_command("--quick", "--json", str(path))
    text = path.read_text()
    record = json.loads(text)
    assert record["quick"] is True
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["date"])
    assert {"cpu", "threads", "torch"} <= record["machine"].keys()
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["machine"]["torch"] == torch.__version__
    assert all(name not in text for name in (report.platform.node(), str(tmp_path), str(command.OUT)))


def test_an_unknown_topic_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["no_such"])
    assert "no topic no_such; there are: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topic", "contenders"),
    few(
        [
            ("read_cost", {"stepnet", "unbind", "x[t]"}),
            ("unpack_pack", {"stepnet", "torch, padded", "torch, list"}),
            ("warm_call", {"stepnet", "plain loop"}),
            ("onnx_models", {"stepnet", "onnx runtime"}),
        ],
        [("read_cost", {"stepnet", "unbind", "x[t]"})],
    ),
)
def test_a_quick_run_of_a_real_topic(topic, contenders, tmp_path):
    if topic == "onnx_models":
        pytest.importorskip("onnxruntime")
    path = tmp_path / "out.json"
    status, text = run_command(topic, "--quick", "--json", str(path))
    assert status == 0, text
    (record,) = json.loads(path.read_text())["topics"]
    assert record["rows"]
    for row in record["rows"]:
        assert row["refused"] is None
        assert set(row["times"]) - {"stepnet, read"} == contenders
        assert all(time["median"] > 0 for time in row["times"].values())
    if topic == "read_cost":
        assert set(record["findings"]) == {f"growth exponent of {name}" for name in contenders}
