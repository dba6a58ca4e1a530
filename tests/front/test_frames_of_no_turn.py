"""A frame whose loop ends in its first turn: what stands below is never come to, as in Python."""

from __future__ import annotations

import pytest
import torch

import stepnet
from stepnet import LoDTensor, TensorArray
from stepnet.errors import StepError, StepnetError
from stepnet.layers import Dense, data
from stepnet.tape import Tape

WRONG = {
    "a product that does not fit": lambda v: v @ torch.zeros(7, 7),
    "lengths that do not add up": lambda v: LoDTensor.from_lengths(v, [[9, 9]]),
    "a place that is not there": lambda v: v[5],
    "an axis that is not there": lambda v: v.sum(4),
    "the number in a value": lambda v: float(v.sum()),
    "what takes tensors alone": torch.func.grad(lambda v: v.sum()),
    "a value changed in place": lambda v: v.add_(1),
    "the length of what is not known": lambda v: len(TensorArray().read(v.sum().long())),
}
ENDS = {
    "counts up": (3, lambda s: s == 3, lambda s: s + 1),
    "from beyond": (5, lambda s: ~(s < 3), lambda s: s + 1),
    "counts down": (-1, lambda s: s < 0, lambda s: s - 1),
    "at the size": (3, lambda s: s >= TensorArray(size=3).size(), lambda s: s + 1),
}


def frame(first, end, on, wrong, late=False, more=()):
    x, outs = TensorArray(unstack_from=torch.ones(3, 2, 4)), TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(first), *more])
    with loop.frame() as (s, *others):
        if not late:
            loop.break_if(end(s))
        rows = x.read(s, torch.ones(2, 4))
        if late:
            outs.write(0, rows)
            loop.break_if(end(s))
        found = wrong(rows)
        outs.write(s, rows * found)
        loop.update(s, on(s))
        for other in others:
            loop.update(other, other * 2)
    return loop, outs


@pytest.mark.parametrize("wrong", WRONG.values(), ids=[*WRONG])
@pytest.mark.parametrize("way", ENDS.values(), ids=[*ENDS])
def test_nothing_is_said_of_lines_that_are_never_come_to(way, wrong):
    h = torch.ones(2, requires_grad=True)
    for _ in range(2):
        loop, outs = frame(*way, wrong, more=[h])
        assert (outs.size(), loop.results[0]) == (0, way[0])
        (loop.results[1] * 3).sum().backward()
        assert loop.explain() == "run step by step, as recorded: there are no steps"
        assert loop.results[1].data_ptr() != h.data_ptr()
    assert h.grad.tolist() == [6, 6]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=[*WRONG])
def test_what_stands_above_is_done(wrong):
    _, outs = frame(*ENDS["counts up"], wrong, late=True)
    assert [v.sum() for v in outs] == [8]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=[*WRONG])
def test_a_turn_tells_of_them(wrong):
    state = torch.get_rng_state()
    with pytest.raises(StepnetError, match=r"test_frames_of_no_turn\.py"):
        frame(2, *ENDS["counts up"][1:], wrong)
    with pytest.raises(StepnetError) as told:
        frame(2, *ENDS["counts up"][1:], wrong, late=True)
    assert told.value.remedy
    assert torch.equal(torch.get_rng_state(), state)


def test_what_was_written_above_is_not_kept_if_there_is_a_turn():
    outs = TensorArray()

    def written():
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            outs.write(s, s.double())
            loop.break_if(s == 1)
            s.reshape(1, 1) @ torch.zeros(3, 3)

    with pytest.raises(StepError, match="matmul"):
        written()
    assert outs.size() == 0


def test_errors_of_the_users_own_code_are_theirs():
    def written():
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (s,):
            loop.break_if(s == 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written()


@pytest.mark.parametrize("wrong", WRONG.values(), ids=[*WRONG])
def test_in_a_frame_that_has_no_turn(wrong):
    def written(turns):
        outer = stepnet.create_whileloop([torch.tensor(0)])
        with outer.frame() as (s,):
            outer.break_if(s == turns)
            inner = stepnet.create_whileloop([torch.ones(2, 4)])
            with inner.frame() as (v,):
                inner.break_if(v.sum() > 99)
                inner.update(v, v * wrong(v))
            outer.update(s, s + 1)
        return outer.results

    assert written(0) == (torch.tensor(0),)
    with pytest.raises(StepnetError):
        written(1)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_frame_inside_whose_values_are_known_when_it_runs(turns):
    outer, outs = stepnet.create_whileloop([torch.tensor(0), torch.ones(2)]), TensorArray()

    def written():
        with outer.frame() as (s, grown):
            outer.break_if(s == 2)
            inner = stepnet.create_whileloop([torch.tensor(0), grown])
            with inner.frame() as (t, v):
                inner.break_if(t == s * turns)
                inner.update(t, t + 1)
                inner.update(v, v @ torch.ones(2, 2))
            outs.write(s, inner.results[1])
            outer.update(s, s + 1)
            outer.update(grown, torch.cat([grown, grown]))

    if turns:
        with pytest.raises(StepError, match="matmul"):
            written()
    else:
        written()
        assert [v.tolist() for v in outs] == [[1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize("rows", [0, 2])
def test_on_a_tape(rows):
    with Tape() as tape:
        given = data("x", Dense(3))
        steps = TensorArray(unstack_from=given)
        n = steps.size()
        loop = stepnet.create_whileloop([torch.tensor(0), torch.ones(4)])
        with loop.frame() as (s, v):
            loop.break_if(s == n)
            loop.update(s, s + 1)
            loop.update(v, v + steps.read(s).sum())
    (out,), _ = tape.topology([loop.results[1]])(x=torch.ones(rows, 3))
    assert out.tolist() == [1 + 3 * rows] * 4
