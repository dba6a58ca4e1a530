"""Frames inside frames of few turns and of many, one after the other: each says of itself what is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepnet
from stepnet import TensorArray
from stepnet.errors import StepError
from stepnet.loops import unbatched_scans

BACKEND = "auto"
BUILDS = False
LONG = "run step by step, as recorded: a frame inside takes more than 8 turns"


def run(x: Any, weight: Any) -> tuple[Any, str, str]:
    blocks, out, first = TensorArray(unstack_from=x), TensorArray(), x[0, 0] * 0
    outer, loop = stepnet.create_whileloop([torch.tensor(0)]), None
    with outer.frame() as (s,):
        outer.break_if(s == blocks.size())
        block, before = blocks.read(s), out.read(s - 1, first)
        rows, states = TensorArray(unstack_from=block), TensorArray()
        loop = stepnet.create_whileloop([torch.tensor(0)])
        with loop.frame() as (t,):
            loop.break_if(t == rows.size())
            states.write(t, torch.tanh(states.read(t - 1, before) @ weight + rows.read(t)))
            loop.update(t, t + 1)
        out.write(s, states.stack()[-1])
        outer.update(s, s + 1)
    assert loop is not None
    return out.stack(), outer.explain(), loop.explain()


@pytest.mark.parametrize("turns", [(3, 9, 5, 9, 3), (12, 4, 12)], ids=["few first", "many first"])
def test_the_reason_does_not_hang_on_what_ran_before(turns):
    size = 2 + len(turns)  # of which frames remember nothing yet
    weight = torch.randn(size, size) / 3
    for count in turns:
        x = torch.randn(3, count, 2, size)
        y, outer, inner = run(x, weight)
        h = torch.zeros(2, size)
        for block, found in zip(x, y, strict=True):
            for row in block:
                h = torch.tanh(h @ weight + row)
            torch.testing.assert_close(found, h)
        if count > 8:
            assert outer.startswith(LONG)
            assert inner.startswith("raised to a scan")
        else:
            assert outer.startswith("raised to a scan")


@pytest.mark.parametrize("turns", [4, 11])
def test_a_frame_around_is_known_again(turns, monkeypatch):
    """What is found out about it is not found out at each call."""
    weight, x = torch.randn(3, 3) / 3, torch.randn(3, turns, 2, 3)
    for _ in range(2):
        run(x, weight)
    monkeypatch.setattr(unbatched_scans, "_check", lambda *_: pytest.fail("it is tried again"))
    run(x, weight)


@pytest.mark.parametrize("use", [lambda a: a.stack(), lambda a: a.read(0), lambda a: a.size()])
def test_an_array_of_one_step_is_not_read_after_the_frame(use):
    x, kept = TensorArray(unstack_from=torch.randn(3, 2, 4)), []
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        own = TensorArray()
        own.write(x.read(s))
        kept.append(own)
        loop.update(s, s + 1)
    with pytest.raises(StepError, match=r"make it before `with loop.frame\(\)`"):
        use(kept[0])
