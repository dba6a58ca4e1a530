"""Frames that data end, saved: what they read of the turn before is carried, what they write is joined."""

from __future__ import annotations

import pytest
import torch

from covering import few
from file_formats import FORMATS, Applied
from stepnet import TensorArray, create_whileloop
from stepnet.errors import StepError


def run(x):
    states, sums, zero = TensorArray(), TensorArray(), x.mean(0) * 0
    loop = create_whileloop([torch.tensor(0), x])
    with loop.frame() as (step, h):
        loop.break_if(h.sum() < 0.5)
        states.write(step, h.mean(0))
        new = h * 0.7 + sums.read(step - 1, zero) * 0.1
        sums.write(step, states.read(step - 1, zero + 0.1) + new.mean(0))
        loop.update(step, step + 1)
        loop.update(h, new)
    return states.stack(), sums.stack(), loop.results[1], loop.results[0]


@pytest.mark.parametrize("name", few([*FORMATS], ["openvino"]))
def test_what_was_written_the_turn_before(name, tmp_path):
    model, x, (format, _, file) = Applied(run).eval(), torch.rand(3, 2) + 0.5, FORMATS[name]
    format.save(model, tmp_path / file, (x,))
    read = format.load(tmp_path / file)
    for given in (x, x * 3, x * 0.4):
        torch.testing.assert_close(tuple(read(given)), model(given))


@pytest.mark.parametrize("name", few([*FORMATS], ["openvino"]))
def test_most_steps(name, tmp_path):
    """They end the loop of the file, where a frame raises."""

    def run(x):
        rows = TensorArray()
        loop = create_whileloop([x], max_steps=9)
        with loop.frame() as (h,):
            loop.break_if(h.sum() < 0.5)
            rows.write(h.mean(0))
            loop.update(h, h * 0.7)
        return rows.stack()

    model, x, (format, _, file) = Applied(run).eval(), torch.rand(3, 2) + 0.5, FORMATS[name]
    with pytest.raises(StepError, match="still holds after max_steps=9"):
        format.save(model, tmp_path / file, (x * 1e9,))
    format.save(model, tmp_path / file, (x,))
    read = format.load(tmp_path / file)
    for given in (x, x * 0.4):
        torch.testing.assert_close(read(given)[0], model(given))
    with pytest.raises(StepError, match="did not end"):
        model(x * 1e9)
    assert len(read(x * 1e9)[0]) == 9


def test_two_ends_of_which_one_is_behind_a_read(tmp_path):
    def run(x):
        rows = TensorArray(unstack_from=x)
        loop = create_whileloop([torch.tensor(0), x[0] * 0])
        with loop.frame() as (s, h):
            loop.break_if(s == rows.size())
            new = h + rows.read(s)
            loop.break_if(new.sum() > 5)
            loop.update(h, new)
            loop.update(s, s + 1)
        return loop.results

    model, x, (format, _, file) = Applied(run).eval(), torch.rand(4, 2), FORMATS["openvino"]
    format.save(model, tmp_path / file, (x,))
    read = format.load(tmp_path / file)
    for given in (x, x[:3] * 0.1, x * 3, x[:1] * 9):
        torch.testing.assert_close(tuple(read(given)), tuple(model(given)))
