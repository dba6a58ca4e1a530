"""An error, of a step or of a backward, keeps nothing of its call alive once it is caught and gone.

Whoever catches "out of memory" tries a smaller batch: what the error came by must be free by then, and not
when garbage is collected.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import stepnet
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, TensorArray, recurrent
from stepnet.decode import beam_search, greedy

D = 2
LENGTHS = [3, 0, 2]
W = torch.linspace(-1, 1, D * D).reshape(D, D).requires_grad_()


class OutOfMemory(RuntimeError):
    """As torch's, which is an error of a class of its own."""


def raises(x: Tensor) -> Tensor:
    raise OutOfMemory("no memory is left")


FAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "a class of its own": raises,
    "of torch": lambda x: x @ torch.ones(D + 1, D),
    "of Python": lambda x: x[(), (), ()],
    "a value": lambda x: x * float("none"),
}


def lod(x: Tensor) -> LoDTensor:
    return LoDTensor.from_lengths(x, [LENGTHS])


Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def nested(step: Step, x: Tensor, h: Tensor) -> Any:
    def outer(words: LoDTensor, h: Tensor) -> Any:
        _, h = recurrent(step, words, h)
        return h, h

    return recurrent(outer, LoDTensor.from_lengths(x, [[1, 0, 2], [2, 2, 1]]), h, level=0)


def frame(step: Step, x: Tensor, h: Tensor) -> Any:
    rows, states = TensorArray(unstack_from=x[:, None]), TensorArray()
    loop = stepnet.create_whileloop(loop_vars=[torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == 3)
        states.write(s, step(rows.read(s), states.read(s - 1, h[:1]))[0])
        loop.update(s, s + 1)
    return states.stack()


def stepnet_of(step: Step) -> Callable[[Scope], None]:
    def of_scope(scope: Scope) -> None:
        scope["h"] = step(scope["x"], scope["before"])[1]

    return of_scope


def op(step: Step, x: Tensor, h: Tensor) -> None:
    made = RecurrentOp(stepnet_of(step), ["x"], ["h"], [Memory("h", "before", init="h0")])
    made.run(Scope({"x": x[:, None], "h0": h[:1]}), keep_scopes=False)


def dynamic(step: Step, x: Tensor, h: Tensor) -> None:
    scope = Scope({"x": lod(x), "h0": h})
    stepnet.dynamic_recurrent(stepnet_of(step), scope, ["x"], ["h"], [Memory("h", "before", init="h0")])


def iterator(step: Step, x: Tensor, h: Tensor) -> Any:
    ports = [
        stepnet.InputPort("x", "x_t", axis=1), stepnet.InputPort("h", "before"),
        stepnet.OutputPort("y", 0, axis=1),
    ]  # fmt: skip

    def body(x_t: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        y, h = step(x_t[:, 0], before)
        return y[:, None], h

    return stepnet.TensorIterator(body, ports, [stepnet.BackEdge(1, "before")])(x[None], h=h[:1])


CALLS: dict[str, Callable[[Step, Tensor, Tensor], Any]] = {
    "ragged": lambda step, x, h: recurrent(step, lod(x), h),
    "dense": lambda step, x, h: recurrent(step, x[:, None], h[:1]),
    "one step": lambda step, x, h: recurrent(step, x[None, :3], h),
    "windows": lambda step, x, h: recurrent(step, lod(x), h, checkpoint=1),
    "cut off": lambda step, x, h: recurrent(step, lod(x), h, detach_every=2),
    "resets": lambda step, x, h: recurrent(step, lod(x), h, resets=lod(torch.tensor([1, 0, 1, 1, 0]) > 0)),
    "static": lambda step, x, h: recurrent(lambda x, h, m: step(x + m, h), lod(x), h, static=h * 2),
    "scopes": lambda step, x, h: recurrent(step, lod(x), h, scopes=True),
    "several states": lambda step, x, h: recurrent(
        lambda x, h: (step(x, h[0])[0], (h[1], step(x, h[0])[1])), lod(x), (h, h * 2)
    ),
    "a nested x": lambda step, x, h: recurrent(lambda x, h: step(x["x"], h), {"x": lod(x)}, h),
    "nested": nested,
    "map": lambda step, x, h: stepnet.map_fn(lambda x: step(x, x)[0], lod(x)),
    "while": lambda step, x, h: stepnet.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, step(h, h)[1]), (torch.tensor(0), h)
    ),
    "while each row": lambda step, x, h: stepnet.while_loop(
        lambda i, h: i > 0, lambda i, h: (i - 1, step(h, h)[1]), (torch.tensor([1, 2, 3]), h), checkpoint=True
    ),
    "frame": frame,
    "op": op,
    "dynamic": dynamic,
    "iterator": iterator,
    "greedy": lambda step, x, h: greedy(
        lambda words, h: (step(h, h)[0].repeat(1, 2), h), h, bos=0, eos=3, max_length=3
    ),
    "beams": lambda step, x, h: beam_search(
        lambda words, h: (step(h, h)[0].repeat(1, 2), h), h, bos=0, eos=3, beam_size=2, max_length=3
    ),
}


@pytest.fixture(autouse=True)
def no_garbage_is_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    stepnet.set_backend("auto")


def left(call: Callable[[Tensor, Tensor], Any]) -> list[str]:
    """What is alive after a call that raises."""
    x, h = torch.ones(5, D, requires_grad=True) * 2, torch.ones(3, D, requires_grad=True) * 2
    alive = {"x": weakref.ref(x), "h": weakref.ref(h)}
    try:
        call(x, h)
    except Exception:
        pass
    else:
        pytest.fail("nothing was raised")
    del x, h
    return [name for name, ref in alive.items() if ref() is not None]


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("backend", ["auto", "naive", "eager", "c"])
@pytest.mark.parametrize("error", FAILS)
@pytest.mark.parametrize("name", CALLS)
def test_of_a_step(name: str, error: str, backend: Any) -> None:
    stepnet.set_backend(backend)
    failing = [True]

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ W + h)
        if failing[0]:
            h = FAILS[error](h)
        return h, h

    def call(x: Tensor, h: Tensor) -> None:
        CALLS[name](step, x, h)

    left(call)  # torch imports some of itself
    for _ in range(2):
        assert left(call) == []


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise OutOfMemory("no memory is left")


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("backend", ["auto", "naive"])
@pytest.mark.parametrize("name", ["ragged", "dense", "one step", "cut off", "nested"])
def test_of_a_backward(name: str, backend: Any) -> None:
    """Not in windows: what torch had yet to do of a backward that failed, it keeps, and the nodes with it."""
    stepnet.set_backend(backend)

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(Fails.apply(x) @ W + h)  # pyright: ignore
        return h, h

    def call(x: Tensor, h: Tensor) -> None:
        CALLS[name](step, x, h)[1].sum().backward()

    left(call)
    for _ in range(2):
        assert left(call) == []
