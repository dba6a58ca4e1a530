"""There is one loop: a record that compiler and engine take, and one plain time loop that is its meaning."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepnet import engine, repeat
from stepnet.compiler import pipeline
from stepnet.compiler.trace import iteration
from stepnet.engine import make, plain, plans, self_check
from stepnet.executors import naive
from stepnet.front import recorded_step, step, while_to_scan
from stepnet.ir import sweep
from stepnet.ir.loop import Body, Loop
from stepnet.iterator import port_map, row_body, tensor_iterator
from stepnet.loops import recurrent_op
from stepnet.onnx.reading import control
from stepnet.openvino import loops
from stepnet.openvino.layers import sequences
from test_imports import imports, package_of

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "stepnet"
FILES = sorted(PACKAGE.rglob("*.py"))

TAKES = [
    engine.run, engine.find_plan, engine.read, plans.lookup, make.make, plain.plain_loop,
    self_check.self_check, pipeline.compile_loop, iteration.iteration, naive.run, naive.PlainRun,
]  # fmt: skip
GIVES = [
    sweep.over_rows, port_map.record, row_body.RowBody.sweep, loops.counted_loop, loops.whole_loop,
    control.whole_loop, recurrent_op._ScopedBody.loop,
    tensor_iterator.TensorIterator.loop.fget, while_to_scan.Raised.loop.fget,
    sequences.CellStep.loop,
]  # fmt: skip
# Calls of `recurrent`, which is given a step.
STEPS = {
    "front/step.py",
    "checks.py",
    "api.py",
    "nested/lifting.py",
    "nested/loop_flattening.py",
    "nested/word_steps.py",
}


@pytest.mark.parametrize("function", TAKES, ids=lambda f: f.__qualname__)
def test_what_compiles_and_runs_takes_the_record(function):
    first = next(iter(inspect.signature(function).parameters))
    called = function.__init__ if inspect.isclass(function) else function
    assert typing.get_type_hints(called)[first] is Loop


@pytest.mark.parametrize("function", GIVES, ids=lambda f: f.__qualname__)
def test_what_a_user_writes_becomes_the_record(function):
    assert typing.get_type_hints(function)["return"] is Loop


def test_compiler_and_engine_know_no_step():
    """Not by an import, and not by a name in their own code."""
    for folder in ("compiler", "engine"):
        for path in (PACKAGE / folder).glob("*.py"):
            source = path.read_text(encoding="utf-8")
            names = [name for _, name in imports(source, package_of(path))]
            assert not [
                name for name in names if name.split(".")[1:2] in (["front"], ["iterator"], ["loops"])
            ]
            assert "StepBody" not in source, path


def test_only_what_is_given_a_step_makes_the_body_of_one():
    """Frames, cells of files and bodies with ports are bodies of their own."""
    users = {
        str(path.relative_to(PACKAGE)) for path in FILES if "StepBody" in path.read_text(encoding="utf-8")
    }
    assert users == STEPS


BODIES = {"body", "stepnet", "run_step", "cond"}
CALLED = re.compile(rf"\b({'|'.join(BODIES)})(\.run)?\s*\(")


def bodies_called(source: str) -> Iterator[int]:
    """The lines of time loops: `for` and `while` statements in which the body of a loop is called."""
    if not CALLED.search(source):
        return  # a tenth of all files: to parse the others takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.For, ast.While)):
            calls = [c.func for c in ast.walk(node) if isinstance(c, ast.Call)]
            runs = [f.value if isinstance(f, ast.Attribute) and f.attr == "run" else f for f in calls]
            names = [f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in runs]
            if BODIES.intersection(names):
                yield node.lineno


def test_there_is_one_time_loop():
    found = {
        str(path.relative_to(PACKAGE)): list(lines)
        for path in FILES
        if (lines := list(bodies_called(path.read_text(encoding="utf-8"))))
    }
    assert len(found.pop("executors/naive.py")) == 1
    compares = found.pop("iterator/rows.py")  # two ways to run a body, each by itself on two steps
    assert len(compares) == 1
    maps = found.pop("onnx/reading/control.py")  # elements and results of a SequenceMap: nothing is carried
    assert len(maps) == 2
    assert found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("for t in x:\n    h = loop.body(h)", 1),
        ("while cond(h):\n    h = self.body(h)", 1),
        ("while cond(h):\n    h = self.body.run(h)", 1),
        ("h = loop.body(h)", 0),
        ("for t in x:\n    t.size()", 0),
    ],
)
def test_the_finder_of_time_loops_sees(source, count):
    assert len(list(bodies_called(source))) == count


@pytest.mark.parametrize(
    "body",
    [
        step.StepBody,
        repeat.WhileBody,
        recurrent_op._ScopedBody,
        loops.GraphBody,
        loops.LoopBody,
        control.LoopBody,
        row_body.RowBody,
        recorded_step.RecordedStep,
        sequences.CellStep,
    ],
)
def test_every_body_is_called_by_its_parameters(body):
    """A body takes what its `parameters` name and gives what its `results` name, by position."""
    assert set(inspect.get_annotations(Body)) == {"name", "parameters", "results"}
    values = [p for p in inspect.signature(body.__call__).parameters.values() if p.kind is p.VAR_POSITIONAL]
    assert len(values) == 1
