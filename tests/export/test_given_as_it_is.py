"""What a body reads of what was computed around its loop: what it gives as it is, or begins with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covering import few
from file_formats import FORMATS, Applied
from stepnet import BackEdge, InputPort, OutputPort, TensorIterator, recurrent, while_loop

BACKEND = "auto"


def by_steps(x):
    y = x[0] * 2
    return recurrent(lambda a, h: ((y, a + h), y), x, x[0], backend="naive")


def by_its_first_state(x):
    h = x.mean(0)
    return recurrent(lambda a, s: (s * h, a + h), x, h, backend="naive")


def by_turns(x):
    y = x.sum(0)
    first = torch.tensor(0), x[0], x[0]
    return while_loop(lambda i, v, w: i < 3, lambda i, v, w: (i + 1, y, v + y), first)[1:]


def by_ports(x):
    y = x[0] * 2
    loop = TensorIterator(
        lambda a, b: (a + b, b, y),
        [InputPort("a", "a", axis=0), InputPort("b", "b"), OutputPort("sums", 0, axis=0), OutputPort("y", 2)],
        [BackEdge(1, "b")],
    )
    return loop(a=x, b=x[:1])


def by_what_a_port_is_fed(x):
    b = x[:1] * 2
    loop = TensorIterator(
        lambda a, s: (a + s * b, s + b),
        [InputPort("a", "a", axis=0), InputPort("s", "s"), OutputPort("sums", 0, axis=0), OutputPort("s", 1)],
        [BackEdge(1, "s")],
    )
    return loop(a=x, s=b)


def by_a_loop_variable(x):
    y = x[0] * 2
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v + y), (torch.tensor(0), y))[1:]


BODIES = [by_steps, by_its_first_state, by_turns, by_a_loop_variable, by_ports, by_what_a_port_is_fed]


@pytest.mark.covering(1)
@pytest.mark.parametrize("function", few(BODIES, BODIES[::2]))
@pytest.mark.parametrize("format", FORMATS)
def test_it_is_that_of_each_call(format, function, tmp_path):
    package, run, name = FORMATS[format]
    package.save(Applied(function), tmp_path / name, torch.randn(3, 2, 4))
    again = package.load(tmp_path / name)
    x = torch.randn(5, 3, 4)
    expected = [value for part in function(x) for value in (part if isinstance(part, tuple) else (part,))]
    for found in (run(tmp_path / name, [x.numpy()]), again(x)):
        for theirs, ours in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(theirs), ours.numpy(), rtol=1e-5, atol=1e-6)
