"""Steps that read a LoDTensor from outside: its offsets are constants of a plan, its rows are read anew."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from outcomes import outcome
from plans import entry_of
from stepnet import LoDTensor, recurrent
from stepnet.engine.unsteady_steps import MOST_CUTS
from stepnet.errors import SlowPathWarning, Unsupported
from tables import holds

BACKEND = "eager"
H = 3
weight = torch.randn(H, H, dtype=torch.float64, requires_grad=True)


def ragged(*lengths: int) -> LoDTensor:
    return LoDTensor.from_lengths(torch.randn(sum(lengths), H, dtype=torch.float64), [list(lengths)])


def pooled(x: LoDTensor, how: Any = "sum") -> Tensor:
    return stepnet.sequence_pool(x, how).sum(0)


def expanded(x: LoDTensor) -> LoDTensor:
    return x * stepnet.sequence_expand(stepnet.sequence_pool(x, "mean"), x)


PLACES = torch.tensor([2, 0, 2])
READS = {
    "select, list": lambda m: pooled(m.select_sequences([2, 0])),
    "select, tensor": lambda m: pooled(m.select_sequences(PLACES)),
    "select, computed": lambda m: pooled(m.select_sequences((PLACES + 1) % 3)),
    "index": lambda m: m[2].sum(0),
    "slice": lambda m: pooled(m[1:]),
    "iterate": lambda m: sum(part.square().sum(0) for part in m),
    "cat": lambda m: pooled(LoDTensor.cat([m[1:], m]), "max"),
    "concat": lambda m: pooled(stepnet.sequence_concat([m, m]), "sqrt"),
    "reverse": lambda m: pooled(stepnet.sequence_reverse(m), "first"),
    "first": lambda m: pooled(m, "first"),
    "last": lambda m: pooled(m, "last"),
    "max": lambda m: pooled(m, "max"),
    "mean": lambda m: pooled(m, "mean"),
    "softmax": lambda m: pooled(stepnet.sequence_softmax(m @ weight) * m),
    "expand": lambda m: pooled(expanded(m)),
    "sequence_slice": lambda m: pooled(stepnet.sequence_slice(m, [0, 0, 1], [1, 0, 2])),
    "padded": lambda m: m.to_padded()[0].square().sum((0, 1)),
    "lengths": lambda m: m.values.sum(0) / m.lengths().sum(),
    "counts": lambda m: m.values.sum(0) * max(m.lengths().tolist()),
    "tolist": lambda m: m.values[PLACES.tolist()].sum(0),
    "map": lambda m: pooled(m.map(torch.tanh)),
}


def over(memory: Any, read):
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h @ weight + read(memory))
        return h, h

    return step


def test_what_is_made_of_a_ragged_tensor_is_that_of_the_plain_loop():
    x, h = ragged(2, 3, 1), torch.randn(3, H, dtype=torch.float64)

    def check(name: str) -> None:
        memory = ragged(2, 0, 4)
        memory = memory.with_values(memory.values.requires_grad_())
        known = {"weights": [weight, memory.values]}
        ours, plain = (outcome(over(memory, READS[name]), x, h, by, **known) for by in (BACKEND, "naive"))
        for a, b in zip((*ours[0], *ours[1]), (*plain[0], *plain[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)

    holds(check, {name: (name,) for name in READS})


def opened(read):
    return lambda memory: read(memory) * eval("1.0")  # no walk sees what it reads


OPEN = {
    "ends": lambda m: pooled(stepnet.sequence_reverse(m.select_sequences(PLACES)), "first"),
    "made": lambda m: pooled(LoDTensor.from_lengths(m.to_padded()[0][0], [[3, 1]]), "last"),
    "offsets": lambda m: m.values.sum(0) * m.lod[0].sum(),
}


def test_what_an_open_step_makes_of_one_is_found_again():
    x, h, memory = ragged(2, 3, 1), torch.randn(3, H, dtype=torch.float64), ragged(2, 0, 4)
    memory = memory.with_values(memory.values.requires_grad_())

    def check(name: str) -> None:
        step, known = over(memory, opened(OPEN[name])), {"weights": [weight, memory.values]}
        ours, plain = (outcome(step, x, h, by, **known) for by in (BACKEND, "naive"))
        for a, b in zip((*ours[0], *ours[1]), (*plain[0], *plain[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)

    holds(check, {name: (name,) for name in OPEN})


@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_what_an_open_step_writes_past_torch_is_no_index_of_another():
    x, h, memory = ragged(2, 3, 1), torch.randn(3, H, dtype=torch.float64), ragged(5, 0, 4)

    def writes(m: LoDTensor) -> Tensor:
        lengths = m.lengths()
        storage: Any = lengths.untyped_storage()
        storage.fill_(1)
        return m.values.sum(0) * lengths.sum().sign()

    recurrent(over(memory, opened(writes)), x, h, backend="auto")
    step = over(memory, opened(lambda m: m.values.sum(0) * m.lengths().sum() / 100))
    got, by_loop = (recurrent(step, x, h, backend=by)[1] for by in (BACKEND, "naive"))
    torch.testing.assert_close(got, by_loop)


def test_other_rows_offsets_and_places_are_seen():
    x, h = ragged(2, 3, 1), torch.randn(3, H, dtype=torch.float64)
    places, lengths, memory = torch.tensor([1, 0]), torch.tensor([1, 3, 2]), ragged(1, 3, 2)
    marks, table = torch.tensor([True, False] * 3), torch.randn(6, H, dtype=torch.float64)

    def one(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h @ weight + pooled(memory))
        return h, h

    def same() -> None:
        steps = {
            "one": one,
            "select": over(memory, lambda m: pooled(m.select_sequences(places), "mean")),
            "split": over(memory, lambda m: stepnet.sequence_pool(m.split_at(marks), "max").values.sum(0)),
            "made": over(table, lambda t: pooled(LoDTensor.from_lengths(t, [lengths]), "mean")),
            "cut": over(memory, lambda m: pooled(stepnet.sequence_slice(m, [0, 0, 0], lengths))),
        }

        def check(name: str) -> None:
            for _ in range(2):
                got, by_loop = (recurrent(steps[name], x, h, backend=by)[1] for by in (BACKEND, "naive"))
                torch.testing.assert_close(got, by_loop, rtol=1e-9, atol=1e-9)

        holds(check, {name: (name,) for name in steps})

    same()
    memory.values[0] += 1  # rows, in place
    same()
    places[0] = 2  # numbers of tensors that the steps ask for
    marks[1] = True
    lengths.copy_(torch.tensor([0, 3, 3]))
    memory = LoDTensor(memory.values, [[0, 0, 3, 6]])  # as many rows, cut otherwise
    same()


@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_lengths_that_a_step_writes_are_its_own():
    memory, x, h = ragged(1, 3), ragged(2, 1), torch.zeros(2, H, dtype=torch.float64)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        n = memory.lengths()
        n += 1
        return x * n.sum(), h + n.max()

    y, last = recurrent(step, x, h, backend="naive")
    ours, our_last = recurrent(step, x, h, backend="auto")
    assert torch.equal(y.values, ours.values)
    assert torch.equal(last, our_last)
    assert memory.lengths().tolist() == [1, 3]


def test_sequences_by_numbers_of_rows_are_refused_with_the_remedy():
    memory = ragged(1, 3, 2)

    def step(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, place = state
        h = h + x + stepnet.sequence_pool(memory.select_sequences(place), "mean")
        return h, (h, place)

    state = torch.zeros(3, H, dtype=torch.float64), torch.arange(3)
    with pytest.raises(Unsupported, match="depends on the values of a tensor") as told:
        recurrent(step, ragged(2, 3, 1), state, backend=BACKEND)
    assert "static=" in str(told.value)


def test_a_memory_of_each_sequence_that_fails_on_sample_rows_names_the_remedy():
    memory = ragged(1, 3, 2)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + x + stepnet.sequence_pool(memory * stepnet.sequence_expand(h, memory), "sum")
        return h, h

    x, h = torch.randn(4, 3, H, dtype=torch.float64), torch.randn(3, H, dtype=torch.float64)
    with pytest.warns(SlowPathWarning, match="static="):
        y, _ = recurrent(step, x, h, backend="auto")
    torch.testing.assert_close(y, recurrent(step, x, h, backend="naive")[0])


def test_a_memory_cut_otherwise_at_each_call_is_not_compiled_for_ever():
    class Decoder(torch.nn.Module):
        memory: LoDTensor

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + h + pooled(self.memory, "mean"))
            return h, h

    step, x, h = Decoder(), ragged(2, 1), torch.zeros(2, H, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SlowPathWarning)
        for n in range(6):
            step.memory = ragged(n, 2)
            got, by_loop = (recurrent(step, x, h, backend=by)[1] for by in ("auto", "naive"))
            torch.testing.assert_close(got, by_loop)
            assert len(told) == (n >= MOST_CUTS)
    assert "static=" in str(told[0].message)
    for n in (4, 5):  # what comes again is compiled
        step.memory = ragged(n, 2)
        assert entry_of(step, x, h, backend="auto").ready is not None
