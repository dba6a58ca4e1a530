"""Whatever was run under a mode of torch, or failed there, the next ordinary call is that of plain torch."""

from __future__ import annotations

import contextlib
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet
from covering import few
from stepnet import LoDTensor, TensorArray, cells, recurrent
from stepnet.errors import LoDError, Unsupported

DTYPE = torch.float64
FEATURES, HIDDEN = 3, 4
# Each program has lengths that no other one had, so what is kept by them is made by that program.
_batches = itertools.product(range(5), repeat=3)


def lengths() -> list[int]:
    return [*next(_batches), 1]


def weight() -> torch.Tensor:
    return torch.randn(FEATURES, FEATURES, dtype=DTYPE, requires_grad=True)


# Each program: weights, rows, what is called on them, and the same by hand in plain torch.


def dense_module():
    ours, theirs = (
        kind(FEATURES, HIDDEN, bidirectional=True, dtype=DTYPE) for kind in (stepnet.nn.LSTM, nn.LSTM)
    )
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 2, FEATURES, dtype=DTYPE)

    def call(module):
        return lambda v: (lambda y, s: (y, *s))(*module(v))

    return [*ours.parameters()], [*theirs.parameters()], x, call(ours), call(theirs)


def ragged_module():
    ours, theirs = (kind(FEATURES, HIDDEN, dtype=DTYPE) for kind in (stepnet.nn.GRU, nn.GRU))
    theirs.load_state_dict(ours.state_dict())
    sizes = lengths()

    def call(v):
        y, h = ours(LoDTensor.from_lengths(v, [sizes]))
        return y.values, h[0]

    def by_hand(v):
        parts = [theirs(part) if len(part) else (part[:, :0], None) for part in v.split(sizes)]
        zero = v.new_zeros(1, HIDDEN)
        ys = [y for y, h in parts if h is not None]
        return torch.cat(ys), torch.cat([zero if h is None else h for _, h in parts])

    x = torch.randn(sum(sizes), FEATURES, dtype=DTYPE)
    return [*ours.parameters()], [*theirs.parameters()], x, call, by_hand


def ragged_step(reverse=False, backend=None):
    w, sizes = weight(), lengths()
    x, h0 = torch.randn(sum(sizes), FEATURES, dtype=DTYPE), torch.randn(4, FEATURES, dtype=DTYPE)
    kept = LoDTensor.from_lengths(x, [sizes])  # the same structure in every call, as in a data set

    def step(x, h):
        new = torch.tanh(h @ w + x)
        return new * 2, new

    def call(v):
        y, h = recurrent(step, kept.with_values(v), h0, reverse=reverse, backend=backend)
        return y.values, h

    def by_hand(v):
        ys, hs = [], []
        for part, h in zip(v.split(sizes), h0.split(1), strict=True):
            out = []
            for t in range(len(part))[:: -1 if reverse else 1]:
                y, h = step(part[t : t + 1], h)
                out.append(y)
            ys += out[::-1] if reverse else out
            hs.append(h)
        return torch.cat(ys), torch.cat(hs)

    return [w], [w], x, call, by_hand


def two_levels():
    cell, sizes = cells.LSTM(FEATURES, HIDDEN, dtype=DTYPE), lengths()
    x = torch.randn(sum(sizes), FEATURES, dtype=DTYPE)
    kept = LoDTensor.from_lengths(x, [[2, 2], sizes])

    def outer(sentence, h):
        _, (last, _) = recurrent(cell, sentence)
        return h + last, torch.tanh(h + last)

    def call(v):
        y, h = recurrent(outer, kept.with_values(v), v.new_zeros(2, HIDDEN), level=0)
        return y.values, h

    def by_hand(v):
        ys, hs, parts = [], [], v.split(sizes)
        for group in (parts[:2], parts[2:]):
            h = v.new_zeros(1, HIDDEN)
            for part in group:
                state = cell.initial_state(1)
                for t in range(len(part)):
                    _, state = cell(part[t : t + 1], state)
                ys.append(h + state[0])
                h = torch.tanh(ys[-1])
            hs.append(h)
        return torch.cat(ys), torch.cat(hs)

    return [*cell.parameters()], [*cell.parameters()], x, call, by_hand


def sequence_functions():
    sizes = lengths()
    x = torch.randn(sum(sizes), FEATURES, dtype=DTYPE)
    kept = LoDTensor.from_lengths(x, [sizes])

    def call(v):
        x = kept.with_values(v)
        array, indices = TensorArray.unpack(x, level=0)
        sums = stepnet.sequence_pool(x, "sum")
        rows = stepnet.sequence_expand(sums, x), array.pack(0, indices), stepnet.sequence_reverse(x)
        again = LoDTensor.from_padded(*x.to_padded())
        return sums, stepnet.sequence_softmax(x).values, again.values, *(r.values for r in rows)

    def by_hand(v):
        parts = v.split(sizes)
        sums = torch.stack([part.sum(0) for part in parts])
        soft = torch.cat([torch.softmax(part, 0) for part in parts])
        spread = torch.cat([part.sum(0).expand_as(part) for part in parts])
        return sums, soft, v, spread, v, torch.cat([part.flip(0) for part in parts])

    return [], [], x, call, by_hand


PROGRAMS = {
    "dense module": dense_module,
    "ragged module": ragged_module,
    "ragged step": ragged_step,
    "ragged step, torch ops": lambda: ragged_step(True, "eager"),
    "ragged step, plain loop": lambda: ragged_step(True, "naive"),
    "two levels": two_levels,
    "functions of sequences": sequence_functions,
}


# Each mode: runs a program on rows under it.


def within(*contexts):
    def run(call, x, weights):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            call(x)

    return run


def setting(change, value, before):
    def run(call, x, weights):
        change(value)
        try:
            call(x)
        finally:
            change(before)

    return run


def on_fakes(**how):
    def run(call, x, weights):
        with FakeTensorMode(**how):
            call(torch.empty(x.shape, dtype=x.dtype))

    return run


def forward_mode(call, x, weights):
    with torch.autograd.forward_ad.dual_level():
        call(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


class Calls(nn.Module):
    def __init__(self, call, weights):
        super().__init__()
        self.call = call
        self.weights = nn.ParameterList(w for w in weights if isinstance(w, nn.Parameter))

    def forward(self, x):
        return tuple(self.call(x))


MODES = {
    "inference": within(torch.inference_mode),
    "no grad": within(torch.no_grad),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "meta as default device": within(lambda: torch.device("meta")),
    "meta, inference": within(lambda: torch.device("meta"), torch.inference_mode),
    "rows on meta": lambda call, x, weights: call(x.to("meta")),
    "fake": on_fakes(),
    "fake beside real": on_fakes(allow_non_fake_inputs=True),
    "a fake input": lambda call, x, weights: call(FakeTensorMode(allow_non_fake_inputs=True).from_tensor(x)),
    "make_fx": lambda call, x, weights: make_fx(lambda v: tuple(call(v)))(x),
    "make_fx of symbols": lambda call, x, weights: make_fx(lambda v: tuple(call(v)), tracing_mode="symbolic")(
        x
    ),
    "jit.trace": lambda call, x, weights: torch.jit.trace(Calls(call, weights), (x,), check_trace=False),
    "fx": lambda call, x, weights: torch.fx.symbolic_trace(Calls(call, weights)),
    "export": lambda call, x, weights: torch.export.export(Calls(call, weights), (x,), strict=False),
    "func.grad": lambda call, x, weights: torch.func.grad(lambda v: sum(y.sum() for y in call(v)))(x),
    "vmap": lambda call, x, weights: torch.vmap(lambda v: tuple(call(v)))(torch.stack([x, x])),
    "jvp": lambda call, x, weights: torch.func.jvp(lambda v: tuple(call(v)), (x,), (torch.ones_like(x),)),
    "functionalize": lambda call, x, weights: torch.func.functionalize(lambda v: tuple(call(v)))(x),
    "forward mode": forward_mode,
    "float64 as default": setting(torch.set_default_dtype, torch.float64, torch.float32),
    "float16 as default": setting(torch.set_default_dtype, torch.float16, torch.float32),
    "deterministic": setting(torch.use_deterministic_algorithms, True, False),
}


def check_ordinary(program) -> None:
    weights, their_weights, x, call, by_hand = program
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = call(ours), by_hand(theirs)
    for a, b in zip(found, expected, strict=True):
        assert type(a) is torch.Tensor
        assert not a.is_inference()
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    seeds = [torch.randn_like(y) for y in expected]
    gradients = [
        torch.autograd.grad(ys, [rows, *own], seeds, allow_unused=True)
        for ys, rows, own in ((found, ours, weights), (expected, theirs, their_weights))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


MOST = ["ragged step", "functions of sequences"]  # each under every mode, the others under some
SOME = ["inference", "meta as default device", "fake", "func.grad"]
PAIRS = [(m, p) for m in MODES for p in PROGRAMS if p in MOST or m in SOME]
ONCE = [(m, p) for m, p in PAIRS if p == "ragged step" or m in ("inference", "fake")]


@pytest.mark.parametrize(("mode", "program"), few(PAIRS, ONCE[::3]))
def test_an_ordinary_call_after_a_mode(mode, program):
    made = PROGRAMS[program]()
    weights, _, x, call, _ = made
    for _ in range(2):  # first under the mode; then after an ordinary call
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # it may fail in any way
            warnings.simplefilter("ignore")
            MODES[mode](call, x, weights)
        check_ordinary(made)


@pytest.mark.exhaustive  # after an export: above
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_an_ordinary_call_after_a_compiled_one():
    made = ragged_step()
    torch.compile(made[3], backend="eager")(made[2])
    check_ordinary(made)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own
@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "mode", ["rows on meta", "a fake input", "fake beside real", "export", "functionalize"]
)
@pytest.mark.parametrize("program", ["functions of sequences", "ragged step"])
def test_shapes_without_numbers(mode, program):
    """What needs no numbers runs without them."""
    weights, _, x, call, _ = PROGRAMS[program]()
    if program == "ragged step" and mode == "rows on meta":  # its weights are not there
        return
    MODES[mode](call, x, weights)


WRITTEN = {
    "real": lambda call, x: make_fx(call)(x),
    "symbolic": lambda call, x: make_fx(call, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x),
    "functional": lambda call, x: make_fx(torch.func.functionalize(call))(x),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_a_ragged_memory_is_written_down(way):
    """Its lengths are known, whatever records what is made of its rows."""

    def step(x, h, m):
        return x * h, h + (m.rows * m.mask[..., None]).sum(1)

    def call(v):
        memory = LoDTensor.from_lengths(v, [[3, 0, 2]])
        y, h = recurrent(step, memory, v[:3], static=memory)
        return y.values, h

    x = torch.randn(5, 2)
    made = WRITTEN[way](call, x)
    torch.testing.assert_close(made(x + 1), call(x + 1))


def test_a_recurrence_on_meta_has_shapes():
    module = stepnet.nn.LSTM(FEATURES, HIDDEN, device="meta")
    x = LoDTensor.from_lengths(torch.empty(5, FEATURES, device="meta"), [[2, 0, 3]])
    y, (h, c) = module(x)
    assert (y.device.type, y.shape, h.shape, c.shape) == ("meta", (5, HIDDEN), (1, 3, HIDDEN), (1, 3, HIDDEN))


def test_a_named_executor_says_why_it_does_not_run_under_a_mode():
    _, _, x, call, _ = ragged_step(backend="c")
    with pytest.raises(Unsupported, match="on meta, without numbers"):
        call(x.to("meta"))
    with pytest.raises(Unsupported, match="traces what runs, or runs it on fake tensors"), FakeTensorMode():
        call(torch.empty(x.shape))


NO_NUMBERS = {
    "meta": lambda values, sizes: LoDTensor.from_lengths(values, [sizes.to("meta")]),
    "fake": lambda values, sizes: LoDTensor.from_lengths(values, [FakeTensorMode().from_tensor(sizes)]),
    "many": lambda values, sizes: torch.vmap(lambda n: LoDTensor.from_lengths(values, [n]).values)(
        sizes[None]
    ),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_offsets_must_be_numbers(kind):
    with pytest.raises(LoDError, match=r"has no numbers|would give each of the batches"):
        NO_NUMBERS[kind](torch.ones(3), torch.tensor([1, 2]))


def test_lengths_computed_inside_a_transform():
    mask = torch.tensor([[True, True], [True, False]])

    def loss(v):
        return stepnet.sequence_pool(LoDTensor.from_lengths(v, [mask.sum(1)]), "mean").square().sum()

    v = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(torch.func.grad(loss)(v.detach()), torch.autograd.grad(loss(v), v)[0])
