"""The benchmark of recurrences: every contender does the same work, and what is written is what was run."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import functools
import importlib
import io
import json
import mmap
import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks.harness import Case, Contender, Topic, run_case
from benchmarks.peers import FIVE_LINES
from benchmarks.stats import Spread
from benchmarks.work import SIZES, WORKS, Setting, Size, named
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import (
    child,
    first_call,
    goals,
    harness,
    memory,
    page,
    peak,
    peers,
    plot,
    recurrences,
    sixteen_bits,
    topics,
)  # fmt: skip
from covering import few
from forks import in_a_fork

SIZE = Size(6, 3, 16)  # of a quick run, which then needs no further builds
LAYOUTS = {"dense": False, "ragged": True}


@pytest.fixture(autouse=True)
def _small_peak(monkeypatch):
    """The machine's peak of a small matmul: that of a large one takes seconds for each case."""
    monkeypatch.setattr(recurrences, "matmul_peak", functools.partial(recurrences.matmul_peak, n=64))


def run_command(*arguments):
    console = Console(record=True, width=200, file=io.StringIO())
    status = command.main(arguments, console)
    return status, console.export_text()


# ------------------------------------------------------------------------------------------------ the work


WORK_BY_LAYOUT = [(work, layout) for work in WORKS for layout in LAYOUTS]
SOME = [
    ("window_lstm", "ragged")
]  # the quick run below refuses an LSTM that differs, a run of all of them any


@pytest.mark.parametrize(("work", "layout"), few(WORK_BY_LAYOUT, SOME))
def test_everyone_computes_what_the_plain_loop_in_float64_does(work, layout):
    setting = Setting(WORKS[work], SIZE, LAYOUTS[layout])
    for training in (False, True) if work in ("lstm", "min_gru") else (True,):
        found, absent = peers.contenders(setting, training)
        assert not [line for line in absent if "not installed" not in line]
        assert {"loop", "stepnet"} <= found.keys()
        wanted = setting.target(training)
        assert ("gradient of x" in wanted) == training
        for name, contender in found.items():
            values = contender.values(contender.run())
            assert values.keys() == wanted.keys(), name
            for key, value in values.items():
                torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-5, msg=f"{name}: {key}")


@pytest.mark.parametrize("work", ["lstm", "gru"])
def test_what_is_expected_is_what_torch_computes_in_float64_for_each_sequence(work):
    setting = Setting(WORKS[work], SIZE, ragged=True)
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[work](SIZE.H, SIZE.H).double()
    module.load_state_dict({f"{name}_l0": weight for name, weight in setting.weights.items()})
    xs = [setting.x[:n, b].double().requires_grad_() for b, n in enumerate(setting.lengths.tolist())]
    ys = [module(x)[0] for x in xs]
    seeds = [setting.seeds[: len(y), b].double() for b, y in enumerate(ys)]
    grads = torch.autograd.grad(ys, [*xs, *module.parameters()], seeds)
    of_weights = dict(zip(setting.weights, grads[len(xs) :], strict=True))
    for name, value in named(torch.cat(ys), torch.cat(grads[: len(xs)]), of_weights).items():
        torch.testing.assert_close(value, setting.expected[name], rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("size", [size for size in SIZES if size.B > 1], ids=str)
def test_ragged_lengths_are_between_a_tenth_and_all_and_the_same_every_time(size):
    setting = Setting(WORKS["min_gru"], size._replace(H=4), ragged=True)
    assert size.T // 10 <= int(setting.lengths.min()) <= int(setting.lengths.max()) <= size.T
    assert len(set(setting.lengths.tolist())) > 1
    again = Setting(WORKS["min_gru"], size._replace(H=4), ragged=True)
    assert torch.equal(setting.lengths, again.lengths)
    assert torch.equal(setting.x, again.x)
    assert setting.rows == len(setting.to_rows(setting.x)) == int(setting.lengths.sum())
    assert not setting.x[~setting.valid].any()


def test_operations_are_counted_for_rows_that_exist():
    dense, ragged = (Setting(WORKS["lstm"], SIZE, ragged) for ragged in (False, True))
    assert dense.flops(training=False) == 2 * (6 * 3) * (4 * 16 * 16 + 4 * 16 * 16)
    assert dense.flops(training=True) == 3 * dense.flops(training=False)
    assert ragged.flops(training=False) * 18 == dense.flops(training=False) * ragged.rows


def test_a_batch_of_one_is_not_ragged():
    chosen = [(s.size, s.ragged) for s in recurrences.settings(WORKS["min_gru"], quick=False)]
    assert len(chosen) == 2 * len(SIZES) - 1
    assert (Size(200, 1, 128), True) not in chosen


# ------------------------------------------------------------------------------------- who is wrong or away


def small_case(training=True):
    return recurrences.case_of(Setting(WORKS["min_gru"], SIZE, ragged=True), training, ("ours",))


@pytest.mark.parametrize("off", ["y", "gradient of x", "gradient of weight_ih"])
def test_a_wrong_value_or_gradient_refuses_the_row(off):
    case = small_case()
    right = case.contenders["stepnet"]

    def wrong(done):
        values = dict(right.values(done))
        values[off] = values[off] + 1e-3
        return values

    row = run_case(
        dataclasses.replace(case, contenders={"stepnet": Contender(right.run, wrong)}), recurrences.EFFORTS[1]
    )
    assert row.refused is not None
    assert f"'{off}' differs by up to 0.001 from the reference" in row.refused
    assert not row.times


@pytest.mark.exhaustive
def test_a_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch, tmp_path):
    needs = {"jax_scan": ("torch", "no_such_package"), "ours": ("stepnet",)}
    monkeypatch.setattr(peers, "PEERS", needs)
    monkeypatch.setattr(recurrences, "SMALL", (SIZE,))
    path = tmp_path / "out.json"
    status, text = run_command("min_gru", "--quick", "--json", str(path))
    assert status == 0, text
    assert text.count("no_such_package not installed: left out (pip install 'stepnet[bench]')") == 1
    rows = json.loads(path.read_text())["topics"][0]["rows"]
    assert [set(row["times"]) for row in rows] == [{"stepnet"}] * 4


def test_a_peer_that_fails_to_set_up_is_left_out_with_its_error(monkeypatch):
    def broken(setting):
        raise OSError("no such library\nand more")

    monkeypatch.setattr(importlib.import_module("benchmarks.peers.eager_loop"), "ways", broken)
    setting = Setting(WORKS["min_gru"], SIZE, ragged=False)
    found, absent = peers.contenders(setting, False, ("eager_loop", "ours"))
    assert set(found) == {"stepnet"}
    assert absent == ["eager_loop could not be set up: OSError: no such library"]


# --------------------------------------------------------------------------------------------- the numbers


def row_of(ratios, **facts):
    times = {"stepnet": Spread(0.5, 0.4, 0.6)}
    ratios = {name: Spread(value, value, value) for name, value in ratios.items()}
    facts = {"work": "lstm", "T": 1, "B": 2, "H": 64, "layout": "dense", "pass": "train"} | facts
    return harness.Row("a case", "stepnet", facts, None, 3, times, ratios)


def test_a_row_is_a_share_of_the_best_peak_of_the_run():
    one, two = "sgemm peak, 1 thread, gflop/s", "sgemm peak, 2 threads, gflop/s"
    rows = [row_of({}, gflop=50.0, **{one: 100.0, two: peak}) for peak in (150.0, 200.0)]
    assert recurrences.limits(rows) == {one: 100.0, two: 200.0}
    assert recurrences.fraction(rows[0], rows) == 0.5  # 50 / 0.5 s of 200


def test_the_best_peer_decides_about_a_goal_and_five_lines_are_no_peer():
    limit = {"gflop": 60.0, "sgemm peak, 2 threads, gflop/s": 200.0}  # we: 120 gflop/s
    row = row_of({"nn": 1.4, "jax": 3.0, FIVE_LINES: 1.02}, goal=2.4, **limit)
    assert recurrences.best_peer(row) == ("nn", Spread(1.4, 1.4, 1.4))
    assert recurrences.bound(row, [row]) == pytest.approx(1.4 / 0.6)
    other = row_of({"nn": 1.6, FIVE_LINES: 1.0}, goal=1.5, **limit)
    found = recurrences.findings([row, other, row_of({"nn": 0.1})])
    assert (found["rows with a goal"], found["rows that reach it"]) == (2, 1)
    assert found["rows where a matmul at the peak would miss it"] == 1
    assert found[f"{FIVE_LINES} / stepnet.nn.LSTM: largest"] == 1.02


@pytest.mark.parametrize(
    ("work", "size", "ragged", "training", "dtype", "expected"),
    [
        ("lstm", Size(100, 32, 64), True, True, "float32", 3.0),
        ("lstm", Size(500, 32, 64), False, True, "float32", 2.2),
        ("lstm", Size(200, 1, 128), False, False, "float32", 1.5),
        ("lstm", Size(200, 1, 128), False, True, "bfloat16", 2.5),
        ("lstm", Size(100, 32, 64), False, False, "bfloat16", None),
        ("gru", Size(50, 128, 512), False, True, "float32", 1.05),
        ("gru", Size(200, 1, 128), False, False, "float32", 2.0),
        ("gru", Size(1000, 8, 128), False, False, "float32", 1.15),
        ("gru", Size(1000, 8, 128), False, False, "bfloat16", None),
        ("slstm", Size(100, 32, 256), True, True, "float32", 5.0),
        ("slstm", Size(100, 32, 256), True, False, "float32", None),
        ("lstm", Size(12, 5, 16), True, True, "float32", None),
    ],
    ids=str,
)
def test_goals(work, size, ragged, training, dtype, expected):
    assert goals.goal(work, size, ragged, training, dtype) == expected


@pytest.mark.parametrize("name", ["goals", "memory", "peak", "stats"])
def test_examples_in_docstrings(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(("rate", "sizes"), [(9e9, [256]), (11e9, [256, 1536])])
def test_a_large_matmul_only_of_what_is_multiplied_fast(rate, sizes, monkeypatch):
    tried = []
    monkeypatch.setattr(peak, "_rate", lambda n, turns, dtype: tried.append(n) or rate)
    assert peak.matmul_peak(1, dtype=torch.bfloat16) == rate
    assert tried == sizes


@pytest.mark.parametrize("has", [True, False])
def test_under_autocast_where_torch_has_no_bfloat16_its_floats_are_the_peer(has, monkeypatch):
    monkeypatch.setattr(sixteen_bits, "matmul_peak", lambda threads, dtype: 1e9)
    monkeypatch.setattr(sixteen_bits, "torch_has_bfloat16", lambda: has)
    asked = []
    who = Contender(lambda: asked.append(torch.is_autocast_enabled("cpu")))
    found = dict.fromkeys(("nn", "nn packed", "stepnet"), who)
    monkeypatch.setattr(peers, "contenders", lambda *_: (found, []))
    case = sixteen_bits.case_of(Setting(WORKS["lstm"], SIZE, True), training=False)
    for run in case.runs.values():
        run()
    assert asked == [has, has, True]
    assert ("float32" in str(case.facts["absent"])) is not has
    threads = torch.get_num_threads()
    assert {f"{name} peak, {threads} threads, gflop/s" for name in ("sgemm", "bfloat16")} <= {*case.facts}


# --------------------------------------------------------------------------------------------- the command


@pytest.mark.exhaustive  # `make bench` does
def test_a_quick_run_writes_table_file_and_picture(tmp_path):
    path = tmp_path / "out.json"
    status, text = run_command("lstm", "--quick", "--json", str(path))
    assert status == 0, text
    for heading in ("T,B,H", "% peak", "nn", "loop", "five", "best/goal"):
        assert heading in text
    (topic,) = json.loads(path.read_text())["topics"]
    assert [row["case"] for row in topic["rows"]] == [
        f"12,5,16 {layout} {kind}" for layout in LAYOUTS for kind in ("forward", "train")
    ]
    for row in topic["rows"]:
        assert row["refused"] is None
        assert {"nn", "loop", "stepnet", FIVE_LINES} <= row["times"].keys()
        assert ("nn packed" in row["times"]) == (row["facts"]["layout"] == "ragged")
        assert row["times"].keys() - {"stepnet"} == row["ratios"].keys()
        assert row["facts"][f"sgemm peak, {command.THREADS} threads, gflop/s"] > 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_without_recurrences(tmp_path):
    assert plot.draw([], tmp_path / "out.json") == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["recurrences"], list(WORKS)),
        (["gru", "recurrences", "gru"], list(WORKS)),
        (["kept_heap", "lstm"], ["lstm", "kept_heap"]),
        (["lstm", "no_such"], ["lstm", "no_such"]),
    ],
    ids=str,
)
def test_names_of_topics_and_groups(names, expected):
    assert topics.resolve(names) == expected


def test_what_takes_minutes_to_compile_runs_only_where_it_is_named():
    assert "compiled_loop" in topics.TOPICS
    assert "compiled_loop" not in topics.resolve([])
    assert topics.resolve([])[-1] == "kept_heap"  # it changes the process


@pytest.fixture
def planted(monkeypatch):
    """A topic that stops in the middle, and one after it."""

    def case(name):
        one = Contender(lambda: {"y": torch.ones(1)})
        return Case(name, {"stepnet": one, "peer": one}, reference="peer")

    def stops(error):
        def cases(quick):
            yield case("the first")
            raise error

        return cases

    def plant(error):
        found = {
            "stops": Topic("stops", "stops in the middle", stops(error)),
            "after": Topic("after", "comes after", lambda quick: iter([case("the last")])),
        }
        monkeypatch.setattr(command, "TOPICS", found)

    return plant


def test_a_topic_that_stops_does_not_stop_the_others(planted, tmp_path):
    planted(RuntimeError("out of ideas"))
    path = tmp_path / "out.json"
    status, text = run_command("--quick", "--json", str(path))
    assert status == 1
    assert "making the next case raised RuntimeError: out of ideas" in " ".join(text.split())
    stopped, after = json.loads(path.read_text())["topics"]
    assert [row["case"] for row in stopped["rows"]] == ["the first", "all that follow"]
    assert [row["case"] for row in after["rows"]] == ["the last"]


def test_the_file_is_written_as_the_run_goes(planted, tmp_path):
    planted(KeyboardInterrupt())
    path = tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt):
        run_command("--quick", "--json", str(path))
    (stopped,) = json.loads(path.read_text())["topics"]
    assert [row["case"] for row in stopped["rows"]] == ["the first"]


# ------------------------------------------------------------------------------------- the page of the docs


def record_of(**options):
    spread = {"median": 0.001, "low": 0.001, "high": 0.001}
    facts = {"work": "gru", "T": 100, "B": 32, "H": 64, "layout": "ragged", "pass": "train", "gflop": 0.1}
    row = {
        "case": "100,32,64 ragged train",
        "ours": "stepnet",
        "refused": None,
        "facts": facts | {"sgemm peak, 2 threads, gflop/s": 200.0},
        "times": {"stepnet": spread},
        "ratios": {"nn packed": spread | {"median": 2.54}, "loop": spread | {"median": 11.0}},
    }
    return {"quick": False, "topics": [{"name": "gru", "rows": [row | options]}]}


def test_the_page_gets_the_best_peer_and_the_share_of_the_peak(monkeypatch, tmp_path):
    results, text = tmp_path / "run.json", tmp_path / "page.md"
    results.write_text(json.dumps(record_of()))
    text.write_text(f"above\n\n{page.BEGIN}\nold\n{page.END}\n\nbelow\n")
    monkeypatch.setattr(sys, "argv", ["page", str(results), str(text)])
    page.main()
    assert text.read_text() == (
        f"above\n\n{page.BEGIN}\n\n"
        "The machine's peak in this run: 200 gflop/s (a float32 matmul, two threads).\n\n"
        "**Ragged, forward and backward**\n\n"
        "| T, B, H | 100, 32, 64 |\n| --- | ---: |\n| GRU | **2.5** packed, 50 % |\n\n"
        f"{page.END}\n\nbelow\n"
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (record_of(refused="nn: 'y' differs"), "refused rows: 100,32,64 ragged train"),
        (record_of() | {"quick": True}, "a quick run shows"),
    ],
    ids=["refused", "quick"],
)
def test_the_page_takes_no_run_that_proves_nothing(record, message):
    with pytest.raises(ValueError, match=message):
        page.measured(record)


def test_the_page_has_its_marks():
    text = (command.OUT.parents[1] / "docs" / "speed.md").read_text(encoding="utf-8")
    assert text.count(page.BEGIN) == text.count(page.END) == 1


# -------------------------------------------------------------------------------------------------- memory


def test_memory_held_is_counted_once_a_storage_and_without_leaves():
    x = torch.ones(100, requires_grad=True)
    w = torch.ones(100, requires_grad=True)

    def forward():
        a = x * w  # keeps x and w, both leaves
        return a.sin() + a.cos() + a.view(10, 10).sin().sum()  # each keeps a, or a view of it

    assert memory.held_bytes(forward, [x, w]) == 400


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_run_is_what_it_had_at_once():
    def block(size):  # from the system itself, which has it back at once
        pages = mmap.mmap(-1, size)
        np.frombuffer(pages, np.uint8)[:] = 1
        return pages

    def run():
        block(40 << 20)
        return block(40 << 20), block(60 << 20)

    assert 99 << 20 < memory.peak_of(run) < 120 << 20


@pytest.mark.exhaustive
def test_a_quick_run_of_memory_held(tmp_path):
    path = tmp_path / "out.json"
    status, text = run_command("memory_held", "--quick", "--json", str(path))
    assert status == 0, text
    (topic,) = json.loads(path.read_text())["topics"]
    assert topic["unit"] == "bytes"
    (row,) = topic["rows"]
    setting = next(memory.settings(quick=True))
    y = setting.rows * setting.size.H * 4  # y alone is kept by all of them
    assert all(spent["median"] >= y for spent in row["times"].values())


# ---------------------------------------------------------------------------------------------- first call


def forked(command, *, env, **_):
    """A command of Python's that runs a module, by a fork of this process, which has imported torch."""

    def said():
        os.environ.update(env)
        sys.argv = command[2:]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        return out.getvalue()

    assert command[:2] == [sys.executable, "-m"]
    return subprocess.CompletedProcess(command, 0, in_a_fork(said), "")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("run", few([subprocess.run, forked], [forked]))
def test_a_first_call_in_a_new_process(run, monkeypatch, tmp_path):
    monkeypatch.setattr(child, "subprocess", SimpleNamespace(run=run))  # builds run the real one
    seconds, values = first_call._in_child("min_gru", str(tmp_path))
    assert 0 < seconds < 60
    wanted = Setting(WORKS["min_gru"], first_call.SIZE, ragged=False).target(training=True)
    assert values.keys() == wanted.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (0, '{"seconds": 1.0, "compiled again": 2}', "other sizes compiled 2 times more"),
        (1, "", "the process failed: KeyError: 'no_such'"),
    ],
    ids=["compiled again", "failed"],
)
def test_a_first_call_that_is_not_right_is_an_error(monkeypatch, tmp_path, status, said, message):
    done = subprocess.CompletedProcess([], status, said, "Traceback:\nKeyError: 'no_such'")
    monkeypatch.setattr(child.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        first_call._in_child("lstm", str(tmp_path))
