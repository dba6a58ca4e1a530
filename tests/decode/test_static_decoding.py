"""What a step of words sees at every word: of any kind, written, set, refused; and tangents of scores."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from outcomes import tensors
from saved_modules import plain_loops
from stepnet import LoDTensor
from stepnet.data.tree import by_leaf
from stepnet.decode import beam_search, greedy
from stepnet.errors import StepError
from tables import holds

BUILDS = False
V, H, BOS, EOS, B = 6, 4, 0, 5, 4
TWO = functools.partial(beam_search, beam_size=2, n_best=2)
HOW = {"bos": BOS, "eos": EOS, "max_length": 5}
draw = torch.Generator().manual_seed(4)
table, mix, head = (
    torch.randn(n, m, generator=draw, dtype=torch.float64) for n, m in ((V, H), (H, H), (H, V))
)
LENGTHS = [3, 0, 9, 1]


def rows(dtype: torch.dtype = torch.float64) -> Tensor:
    return (2 * torch.randn(B, H, dtype=torch.float64)).to(dtype)


def ragged(dtype: torch.dtype = torch.float64) -> LoDTensor:
    values = 2 * torch.randn(sum(LENGTHS), H, dtype=torch.float64)
    return LoDTensor.from_lengths((values > 0 if dtype == torch.bool else values).to(dtype), [LENGTHS])


def attended(memory: Any, h: Tensor) -> Tensor:
    seen = memory.rows.to(h.dtype)
    weights = torch.einsum("nlh,nh->nl", seen, h).masked_fill(~memory.mask, -1e9).softmax(1) * memory.mask
    return torch.einsum("nl,nlh->nh", weights, seen)


def stepping(seen: Any) -> Any:
    def step(words: Tensor, h: Tensor, static: Any) -> tuple[Tensor, Tensor]:
        h = torch.tanh(table[words] + h @ mix + seen(static, h))
        return h @ head, h

    return step


def writes(memory: Tensor, h: Tensor) -> Tensor:
    return memory.mul_(0.9).add_(0.1 * h)  # what each beam writes is its own


def sets(static: dict[str, Tensor], h: Tensor) -> Tensor:
    memory = static["b"]
    static["b"], static["more"] = memory * 2, memory
    return memory


MEMORIES = {
    **{str(t): (ragged(t), attended) for t in (torch.bool, torch.uint8, torch.int64, torch.bfloat16)},
    "half": (rows(torch.float16), lambda memory, h: memory.to(h.dtype)),
    "nested": ({"a": (ragged(), rows()), "b": [ragged()]}, lambda m, h: attended(m["a"][0], h) + m["a"][1]),
    "wants gradients": (rows().requires_grad_(), lambda memory, h: memory),
    "written": (rows(), lambda memory, h: writes(memory, h) + 0),
    "written ragged": (ragged(), lambda m, h: (writes(m.rows[:, 0], h), attended(m, h))[1]),
}


def sequences(found: tuple[LoDTensor, Any], row: int) -> tuple[list[Any], Tensor]:
    words, scores = found[0][row], found[1][row]
    beams = list(words) if isinstance(words, LoDTensor) else [words]
    return [part.tolist() for part in beams], scores


@pytest.mark.exhaustive  # ragged: test_blocks; steps that write: test_writing_steps
@pytest.mark.filterwarnings("ignore:.* runs by the plain loop")
def test_each_row_sees_its_own_memory_as_alone():
    def alone(leaf: Any, row: int) -> Any:
        return leaf[row : row + 1] if isinstance(leaf, LoDTensor) else leaf[row : row + 1].clone()

    def check(name: str, by: Any) -> None:
        static, seen = MEMORIES[name]
        step, h = stepping(seen), rows()
        before = [t.clone() for t in tensors(static)]
        for _ in range(2):  # the second begins with what was found by the first
            found = by(step, h, static=static, **HOW)
            for row in range(B):
                own = by_leaf(lambda leaf, row=row: alone(leaf, row), static)
                with plain_loops():
                    one = by(step, h[row : row + 1], static=own, **HOW)
                words, scores = sequences(found, row)
                expected, numbers = sequences(one, 0)
                assert words == expected
                torch.testing.assert_close(scores, numbers)
        torch.testing.assert_close(tensors(static), before)

    holds(check, {f"{name}, {by is TWO}": (name, by) for name in MEMORIES for by in (greedy, TWO)})


@pytest.mark.parametrize("by", [greedy, TWO])
def test_what_a_step_sets_in_what_is_static_is_its_own(by):
    static, h = {"b": rows()}, rows()
    for _ in range(2):
        found = by(stepping(sets), h, static=static, **HOW)
        expected = by(stepping(lambda m, h: m["b"]), h, static=static, **HOW)
        assert torch.equal(found[0].values, expected[0].values)
    assert [*static] == ["b"]


@pytest.mark.parametrize("by", [greedy, TWO])
def test_scores_carry_tangents(by):
    step, h, static, moves = stepping(lambda memory, h: memory), rows(), rows(), (rows(), rows())

    def log_probability(h: Tensor, static: Tensor, words: list[int]) -> Tensor:
        total, before = torch.zeros((), dtype=torch.float64), BOS
        for word in [*words, EOS][: HOW["max_length"]]:
            scores, h = step(torch.tensor([before]), h, static)
            total, before = total + scores.log_softmax(1)[0, word], word
        return total

    def scores(h: Tensor, static: Tensor) -> Tensor:
        return tensors(by(step, h, static=static, **HOW)[1])[0]

    found = by(step, h, static=static, **HOW)
    expected = []
    for row in range(B):
        own = [t[row : row + 1] for t in (h, static, *moves)]
        for words in sequences(found, row)[0]:
            of_words = functools.partial(log_probability, words=words)
            expected.append(torch.func.jvp(of_words, (own[0], own[1]), (own[2], own[3]))[1])
    torch.testing.assert_close(torch.func.jvp(scores, (h, static), moves)[1], torch.stack(expected))


@pytest.mark.parametrize("by", [greedy, TWO])
@pytest.mark.parametrize(
    ("step", "static", "words"),
    [
        (lambda words, h: (h, h), rows(), ["too many positional", "(words, state, static) -> (scores"]),
        (lambda words, h, static: (h, h), None, ["'static'", "(words, state) -> (scores", "static="]),
        (lambda words, h, static: (h @ head, (h, h)), rows(), ["structure", "(*, *)", "expected: *\n"]),
        (stepping(attended), torch.nested.nested_tensor([rows()] * B, layout=torch.jagged), ["from_nested"]),
    ],
    ids=["without", "not given", "structure", "nested"],
)
def test_errors(by, step, static, words):
    with pytest.raises(StepError) as caught:
        by(step, rows(), static=static, **HOW)
    told = str(caught.value)
    assert all(part in told for part in words), told
    assert "of x" not in told
