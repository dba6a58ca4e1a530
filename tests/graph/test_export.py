"""`torch.export` of models with recurrences: any lengths, saved, run in another process."""

from __future__ import annotations

import functools
import inspect
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import stepnet
from covering import few
from stepnet import LoDTensor, Recurrent, cells, recurrent, sequence_pool, sequence_softmax
from stepnet import nn as snn
from stepnet.errors import LoDError, StepError
from stepnet.graph import decompositions
from stepnet.graph.recurrence_text import load

from .models import gradients, leaves_of

ANY = Dim.AUTO


@dataclass(frozen=True)
class Carried:
    h: Tensor
    c: Tensor


class Dense(nn.Module):
    """A state that is a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x: Tensor) -> Any:
        h = x.new_zeros(x.shape[1], 4)

        def step(x: Tensor, state: Carried) -> Any:
            y, new = self.cell(x, (state.h, state.c))
            with torch.no_grad():
                cut = y * 2
            return y + cut + torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=y.dtype), Carried(y, new)

        y, last = recurrent(step, x, Carried(h, h.exp()), reverse=True)
        return y, last.h, last.c


class Ragged(nn.Module):
    """Rows and offsets in; a number for each sequence out."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = Recurrent(cells.GRU(3, 4), reverse=True)
        self.out = nn.Linear(4, 2)

    def forward(self, rows: Tensor, offsets: Tensor) -> Any:
        y, _ = self.rnn(LoDTensor(rows, [offsets]))
        return self.out(sequence_pool(y, "max"))


def rows_of(*lengths: int) -> tuple[Tensor, Tensor]:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(int(offsets[-1]), 3, dtype=torch.float64), offsets


def dense(steps: int, n: int) -> tuple[Tensor]:
    return (torch.randn(steps, n, 3, dtype=torch.float64),)


class Documents(nn.Module):
    """Steps that are sequences, and write in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sentences = Recurrent(cells.GRU(3, 4)), nn.GRUCell(4, 4)

    def forward(self, rows: Tensor, documents: Tensor, sentences: Tensor, h: Tensor) -> Any:
        def step(x: LoDTensor, h: Tensor) -> Any:
            words, last = self.words(x, h)
            last += sequence_pool(words, "mean")
            last[:, :2].tanh_()
            h = self.sentences(last, h)
            return (h, words), h

        (y, words), h = recurrent(step, LoDTensor(rows, [documents, sentences]), h, level=0)
        return y.values, words.values, h


def documents(*lengths: int) -> tuple[Tensor, ...]:
    rows, offsets = rows_of(*lengths)
    state = torch.randn(3, 4, dtype=torch.float64)
    return rows, torch.tensor([0, len(lengths) - 1, len(lengths) - 1, len(lengths)]), offsets, state


class Memories(nn.Module):
    """Steps that look at memories of any lengths: ragged, and one of all sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.key = nn.GRUCell(6, 4), nn.Linear(3, 4)

    def forward(
        self, rows: Tensor, offsets: Tensor, seen: Tensor, seen_offsets: Tensor, table: Tensor
    ) -> Any:
        def step(x: Tensor, h: Tensor, memory: Any) -> Any:
            keys = self.key(memory.rows)
            scores = (keys @ h.unsqueeze(-1)).squeeze(-1).masked_fill(~memory.mask, -1e9)
            seen = (scores.softmax(1).unsqueeze(1) @ memory.rows).squeeze(1)
            found = (h[:, :3] @ table.T).softmax(-1) @ table
            h = self.cell(torch.cat([x + found, seen], 1), h)
            return h, h

        x, memory = LoDTensor(rows, [offsets]), LoDTensor(seen, [seen_offsets])
        first = self.key(sequence_pool(x, "max"))
        y, h = recurrent(step, x, first, static=memory, reverse=True)
        return y.values, h, sequence_softmax(y).values, y.to_padded(-1.0, batch_first=False)[0]


def memories(*lengths: int) -> tuple[Tensor, ...]:
    seen = rows_of(*[n + 1 for n in lengths])
    return *rows_of(*lengths), *seen, torch.randn(len(lengths) + 2, 3, dtype=torch.float64)


class Layers(nn.Module):
    """Steps that hold layers of torch's, over the words of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.LSTM(3, 2, bidirectional=True), nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            words, _ = self.words(x.transpose(0, 1))
            h = self.cell(words.mean(0), h)
            return h, h

        return recurrent(step, x, x.new_zeros(x.shape[1], 4))


def words(steps: int, n: int) -> tuple[Tensor]:
    return (torch.randn(steps, n, 3, 3, dtype=torch.float64),)


CASES: dict[str, tuple[type[nn.Module], Any, Sequence[tuple[Tensor, ...]]]] = {
    "dense": (Dense, ({0: ANY, 1: ANY},), [dense(5, 3), dense(2, 4)]),
    "documents": (
        Documents,
        ({0: ANY}, {}, {0: ANY}, {}),
        [documents(2, 4, 1), documents(3, 0, 1, 5, 2)],
    ),
    "memories": (Memories, ({0: ANY},) * 5, [memories(2, 4), memories(3, 0, 1, 5)]),
    "layers": (Layers, ({0: ANY, 1: ANY},), [words(5, 3), words(2, 4)]),
}
RAGGED = ({0: ANY}, {0: ANY}), [rows_of(2, 4), rows_of(3, 0, 1, 5)]


def assert_same_without_stepnet(
    program: torch.export.ExportedProgram, model: nn.Module, batches: Sequence[tuple[Tensor, ...]]
) -> None:
    """In torch's own operators it gives the same; the docs show it with torch's table, too."""
    plain = program.run_decompositions(decompositions())
    assert not [n for n in plain.graph.nodes if "stepnet" in str(n.target)]
    module = plain.module()
    for args in batches:
        with torch.no_grad():
            found, expected = leaves_of(module(*args)), leaves_of(model(*args))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def loaded(folder: Path) -> None:
    from torch.utils._pytree import tree_leaves

    for path in sorted(folder.glob("*.pt2")):
        stepnet.set_backend("naive" if path.stem == "documents" else "eager")
        program = torch.export.load(path).module()
        for args, expected in torch.load(path.with_suffix(".pt")):
            found = tree_leaves(program(*args))
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        print(path.stem, "equal")


LOADED = f"""
import sys, torch, stepnet
from pathlib import Path
{inspect.getsource(loaded)}
loaded(Path(sys.argv[1]))
"""


@functools.cache
def exported(case: str) -> tuple[nn.Module, torch.export.ExportedProgram]:
    torch.manual_seed(0)
    make, open_sizes, batches = CASES[case]
    model = make().double()
    with torch.set_grad_enabled(case != "dense"):  # that they were off is no part of a program
        return model, export(model, batches[0], dynamic_shapes=open_sizes)


def save(case: str, path: Path) -> None:
    """A program that gives what its model gives, and what that is."""
    batches = CASES[case][2]
    model, program = exported(case)
    ops = [n for n in program.graph.nodes if n.target is torch.ops.stepnet.run.default]
    assert len(ops) == {"dense": 1, "documents": 2, "memories": 7, "layers": 1}[case]
    module = program.module()
    for args in batches:
        for a, b in zip(gradients(model, model, args), gradients(model, module, args), strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if case != "documents":  # sequences of sequences stay an operator of stepnet
        assert_same_without_stepnet(program, model, batches)
    torch.export.save(program, path.with_suffix(".pt2"))
    if case == "documents":  # by generated C; the other process, which would build it anew, has none
        loaded = torch.export.load(path.with_suffix(".pt2")).module()
        for args in batches:
            torch.testing.assert_close(
                leaves_of(loaded(*args)), leaves_of(model(*args)), rtol=1e-9, atol=1e-9
            )
    with torch.no_grad():
        torch.save([(args, leaves_of(model(*args))) for args in batches], path.with_suffix(".pt"))


class Rounded(nn.Module):
    """A step that autocast runs in a type of fewer bits."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        def step(x: Tensor, h: Tensor) -> Any:
            h = torch.tanh(self.x(x) + self.h(h))
            return h, h

        with torch.autocast("cpu", torch.bfloat16):
            y, _ = recurrent(step, x, x.new_zeros(x.shape[1], 4))
        return y.float()  # torch asserts of what type it is


def test_autocast_in_the_model() -> None:
    model, (x,) = Rounded(), (t.float() for t in dense(3, 2))
    torch.testing.assert_close(export(model, (x,)).module()(x), model(x))


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize(
    "anew", few([False, True], [False]), ids=["here", "in a process that imports torch anew"]
)
@pytest.mark.parametrize("cases", few([["dense"], ["documents", "layers", "memories"]], [["dense"]]))
def test_saved_and_loaded_at_other_lengths(
    cases: list[str], anew: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for case in cases:
        stepnet.set_backend("auto" if case == "documents" else "eager")
        save(case, tmp_path / case)
    run = None
    if anew:
        run = subprocess.run([sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True)
    else:
        loaded(tmp_path)
    said = capsys.readouterr().out if run is None else run.stdout
    assert said == "".join(f"{case} equal\n" for case in cases), run


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch's own
@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")  # for the write to its state
def test_a_step_makes_rows_turns_its_state_and_writes_in_place() -> None:
    """Tensors made from a number of rows; a state that a step gives in another order of its memory; writes to
    the state, into new tensors, through a view."""
    stepnet.set_backend("auto")

    class Turned(nn.Module):
        def forward(self, x: Tensor, m: Tensor) -> Any:
            def step(x: Tensor, m: Tensor) -> Any:
                ones = torch.ones(x.shape[0], 1, dtype=x.dtype) + torch.zeros(x.size(0), 3).type_as(x)
                m += x[:, None]
                m[:, :2].sin_()
                y = torch.zeros_like(x)
                y[:, 1:] = m[:, 0, :2]
                return y + ones, 0.5 * m.transpose(1, 2) + (x * ones)[:, None]

            return recurrent(step, x, m)

    x, m = torch.randn(4, 2, 3), torch.randn(2, 3, 3)
    program = export(Turned(), (x, m), dynamic_shapes=({0: ANY, 1: ANY}, {0: ANY}))
    batches = [(torch.randn(t, b, 3), torch.randn(b, 3, 3)) for t, b in ((4, 2), (5, 3))]
    for args in batches:
        own, others = ([t.clone() for t in args] for _ in range(2))  # which the step writes to
        torch.testing.assert_close(leaves_of(program.module()(*own)), leaves_of(Turned()(*others)))
    assert_same_without_stepnet(program, Turned(), batches)


@pytest.mark.exhaustive  # half a minute of C++
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_compiled_ahead_of_time(tmp_path: Path) -> None:
    open_sizes, batches = RAGGED
    model = Ragged().double()
    with torch.no_grad():
        program = export(model, batches[0], dynamic_shapes=open_sizes)
        plain = program.run_decompositions({**torch.export.default_decompositions(), **decompositions()})
        inductor: Any = torch._inductor
        path = inductor.aoti_compile_and_package(plain, package_path=str(tmp_path / "model.pt2"))
        packaged = inductor.aoti_load_package(path)
        for args in (*batches, rows_of(0), rows_of()):
            torch.testing.assert_close(packaged(*args), model(*args), rtol=1e-9, atol=1e-9)


@pytest.mark.exhaustive  # C++
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_compiled_ahead_of_time_as_an_operator(tmp_path: Path) -> None:
    """What is not written as a while_loop is called as an operator, here without sizes."""
    model, x = Dense().double(), torch.randn(4, 2, 3, dtype=torch.float64)
    inductor: Any = torch._inductor
    with torch.no_grad():
        program = export(model, (x,))
        packaged = inductor.aoti_load_package(
            inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        )
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            torch.testing.assert_close(leaves_of(packaged(x)), leaves_of(model(x)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        '{"call": "torch.load", "args": ["x"], "named": {}}',
        '{"call": "aten.from_file.default", "args": ["x"], "named": {}}',
        '{"call": "operator.attrgetter", "args": ["x"], "named": {}}',
        '{"call": "aten.sin.default", "args": [{"value": 0}], "named": {"a)+print(": 1}}',
        '{"call": "aten.sin.default", "args": [{"dtype": "nn"}], "named": {}}',
        '{"call": "aten.no_such_op.default", "args": [], "named": {}}',
        '{"call": "aten.sin.default", "args": [{"value": 0}], "named": {"lambda": 1}}',
        '{"call": "aten.sin.default", "args": [{"value": 1}], "named": {}}',
        '{"call": "aten.sin.default", "args": [{"value": 1e999}], "named": {}}',
        '{"call": "aten.sin.default", "args": [{"device": "evil"}], "named": {}}',
        '{"call": "aten.sin.default", "args": ' + "[" * 3000 + "]" * 3000 + ', "named": {}}',
    ],
)
def test_a_text_names_nothing_but_operators(call: str) -> None:
    with pytest.raises(StepError, match="cannot read"):
        load(_text(call))


_SIN = '{"call": "aten.sin.default", "args": [{"value": 0}], "named": {}}'


def _text(call: str = _SIN) -> str:
    return (
        '{"way": {"name": "s", "autocast": []}, "counts": [1, 0, 0, 0], "y": [[[3], "float32"]], '
        f'"calls": [null, {call}], "results": [1]}}'
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"name": "s"', '"name": []'),
        ('"autocast": []', '"autocast": [["cpu"]]'),
        ('"autocast": []', '"autocast": [], "levels": -1'),
        ('"autocast": []', '"autocast": [], "resets": {}'),
        ("[1, 0, 0, 0]", '[1, "0", 0, 0]'),
        ("[1, 0, 0, 0]", "[0, 0, 0, 0]"),
        ("[1, 0, 0, 0]", "[1, 1, 0, 0]"),
        ("[[[3]", "[[[-3]"),
        ('"results": [1]', '"results": [2]'),
        ('"results": [1]', '"results": []'),
    ],
)
def test_a_text_of_other_forms_is_none(old: str, new: str) -> None:
    text = _text()
    load(text)
    assert old in text
    with pytest.raises(StepError, match="cannot read"):
        load(text.replace(old, new))
    for unknown in ("", "evil {}", "recurrence", "sequence ends (1,)"):
        with pytest.raises(StepError, match="cannot read"):
            torch.ops.stepnet.run.default([torch.zeros(2, 1, 3)], [], unknown)


EVIL = ([0, 100, 6], [5, 3, 6], [-500, 2, 6], [], [0, 2, 10**12], [0, 2, 5], [0.0, 6.0])


def test_offsets_that_a_program_hands_on_are_checked() -> None:
    """The nodes of a program are anybody's to change; what reads rows by offsets trusts them."""
    open_sizes, batches = RAGGED
    program = export(Ragged().double(), batches[0], dynamic_shapes=open_sizes).module()
    nodes = [n for n in program.graph.nodes if n.target is torch.ops.stepnet.run.default]
    given = [n for n in nodes if str(n.args[2]).startswith(("recurrence", "sequence pool"))]
    assert len(given) == 2
    for backend in ("c", "eager"):
        stepnet.set_backend(backend)
        tensors = torch.fx.Interpreter(program, garbage_collect_values=False)
        tensors.run(*batches[0])
        for node, evil in itertools.product(given, EVIL):
            values = [tensors.env[n] for n in node.args[0]]
            wrong = [torch.tensor(evil) if v.dtype == torch.int64 else v for v in values]
            for _ in range(3):  # by the long way, then by a plan
                with pytest.raises(LoDError, match="must"):
                    torch.ops.stepnet.run.default(wrong, [], node.args[2])


def _stack() -> nn.Module:
    return snn.Stack([cells.GRU(3, 4), cells.LSTM(4, 4)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "tool", [torch.jit.script, torch.fx.symbolic_trace, lambda m: torch.jit.trace(m, dense(3, 2))]
)
@pytest.mark.parametrize("made", [lambda: Recurrent(cells.GRU(3, 4)), lambda: snn.LSTM(3, 4), _stack])
def test_tools_that_cannot_follow_a_loop_name_one_that_can(made: Any, tool: Any) -> None:
    stepnet.set_backend("auto")
    for model in (made().double(), nn.Sequential(nn.Linear(3, 3), made()).double()):
        with pytest.raises(StepError, match=r"torch\.export\.export"):
            tool(model)


def test_sizes_of_rows_are_fixed_where_all_are_left_open() -> None:
    """As torch fixes those of a Linear; also where y alone has such rows, after exports of other sizes."""

    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return recurrent(lambda x, h: (x + h, torch.tanh(x + h)), x, x.new_zeros(x.shape[1:]))

    every = ((Dim.AUTO,) * 3,)
    models: list[tuple[nn.Module, int]] = [(Dense().double(), 3), (Sums(), 5), (Sums(), 4)]
    for model, width in models:
        args = (torch.randn(3, 2, width, dtype=torch.float64),)
        program = export(model, args, dynamic_shapes=every)
        (made,) = (node.meta["val"][0] for node in program.graph.nodes if node.name == "run")
        assert made.shape[2] == model(*args)[0].shape[2]
        more = torch.randn(4, 5, width, dtype=torch.float64)
        torch.testing.assert_close(program.module()(more), model(more))


class Structure(nn.Module):
    """Offsets, lengths and what is made of them, as results."""

    def __init__(self, written: Any = None) -> None:
        super().__init__()
        self.rnn = Recurrent(cells.GRU(3, 4))
        self.written = written

    def forward(self, rows: Tensor, offsets: Tensor) -> Any:
        x = LoDTensor(rows, [offsets]) if self.written is None else self.written(rows)
        y, _ = self.rnn(x)
        lengths = y.lengths()
        late = torch.arange(3) < lengths[:, None]
        joined = LoDTensor.cat([y, y.map(torch.relu)])
        mean = sequence_pool(y, "sum") / lengths[:, None].clamp(min=1)
        parts = sequence_softmax(y).values
        return y.lod, lengths, late, joined.lod, joined.values, mean, parts, y.to_padded()


@pytest.mark.parametrize("strict", few([False, True], [False]))
def test_a_lod_tensor_of_open_lengths_is_no_result(strict: bool) -> None:
    class Model(nn.Module):
        def forward(self, rows: Tensor, offsets: Tensor) -> Any:
            return LoDTensor(rows * 2, [offsets])

    with pytest.raises(LoDError, match=r"return x\.values and x\.lod"):
        export(Model(), rows_of(2, 4), dynamic_shapes=({0: ANY}, {0: ANY}), strict=strict)


class Stages(nn.Module):
    """A layer with states given, then a dynamic recurrence with one value for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.cell = snn.RNN(3, 4), nn.GRUCell(4, 4)

    def forward(self, rows: Tensor, offsets: Tensor, h: Tensor) -> Tensor:
        y, _ = self.rnn(LoDTensor(rows, [offsets]), h[None])

        def step(s: stepnet.Scope) -> None:
            s["new"] = self.cell(s["y"] + s["h"], s["before"])

        scope = stepnet.Scope({"y": y, "h": h})
        memory = stepnet.Memory("new", "before", init="h")
        last = stepnet.dynamic_recurrent(step, scope, ["y"], ["new"], [memory], static_inputs=["h"])
        return scope["new"].values.sum() + last["new"]


@pytest.mark.exhaustive
def test_sequences_are_not_counted_where_a_program_leaves_them_open() -> None:
    model = Stages()
    args = torch.randn(6, 3), torch.tensor([0, 2, 6]), torch.randn(2, 4)
    program = export(model, args, dynamic_shapes=({0: ANY},) * 3)
    args = torch.randn(7, 3), torch.tensor([0, 3, 3, 7]), torch.randn(3, 4)
    torch.testing.assert_close(program.module()(*args), model(*args))


def test_offsets_and_lengths_are_tensors_of_the_program() -> None:
    model = Structure().double()
    program = export(model, rows_of(3, 2), dynamic_shapes=({0: ANY}, {0: ANY})).module()
    for lengths in ((3, 2), (1, 0, 4), (2, 5, 1, 1)):
        args = rows_of(*lengths)
        torch.testing.assert_close(program(*args), model(*args))
    rows, _ = rows_of(2, 4)
    for wrong in ([0, 5, 2, 6], [0, 2, 7], [1, 2, 6]):  # they are checked as it runs
        with pytest.raises(LoDError):
            program(rows, torch.tensor(wrong))


@pytest.mark.exhaustive  # as in test_sequences.py
def test_offsets_that_are_written_down() -> None:
    ways: list[Any] = [
        lambda rows: LoDTensor(rows, [[0, 3, 3, 5]]), lambda rows: LoDTensor.from_lengths(rows, [[3, 0, 2]]),
        lambda rows: LoDTensor.from_padded(rows[None], [5]),
        lambda rows: LoDTensor.from_sequences([rows[:4], rows[4:]]),
    ]  # fmt: skip

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Structure(ways[0])

        def forward(self, rows: Tensor, offsets: Tensor) -> Any:
            others = [written(rows) for written in ways[1:]]
            parts = [(x.lod, x.lengths(), sequence_pool(x, "sum"), x.to_padded()) for x in others]
            return self.first(rows, offsets), parts

    model, args = All().double(), rows_of(3, 2)
    torch.testing.assert_close(export(model, args).module()(*args), model(*args))


@pytest.mark.parametrize("strict", few([False, True], [False]))
def test_a_lodtensor_as_an_argument(strict: bool) -> None:
    """A program of its lengths, and of a state that a step makes for as many sequences; one as result."""

    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = Recurrent(nn.GRUCell(3, 4))

        def forward(self, x: LoDTensor) -> Any:
            return self.rnn(x)

    model, x = Of(), LoDTensor.from_lengths(torch.randn(5, 3), [[3, 0, 2]])
    program = export(model, (x,), strict=strict).module()
    found, expected = program(x), model(x)
    assert found[0].structure == expected[0].structure
    torch.testing.assert_close((found[0].values, found[1]), (expected[0].values, expected[1]))
    with pytest.raises(ValueError, match="LoD"):
        program(LoDTensor.from_lengths(torch.randn(5, 3), [[1, 2, 2]]))


@pytest.mark.parametrize(
    "asks",
    [len, list, lambda y: y[0], lambda y: y[:1], lambda y: y.recursive_sequence_lengths(),
     lambda y: y.to_packed(), lambda y: y.select_sequences([0])],
)  # fmt: skip
def test_a_program_for_any_lengths_has_no_numbers_of_them(asks: Any) -> None:
    class Asks(nn.Module):
        def forward(self, rows: Tensor, offsets: Tensor) -> Any:
            asks(LoDTensor(rows, [offsets]))
            return rows

    with pytest.raises(LoDError, match=r"(?s)cannot count, index or take apart.*x\.lengths\(\)"):
        export(Asks(), rows_of(3, 2), dynamic_shapes=({0: ANY}, {0: ANY}))
