"""What every step sees whole, `static=`: by hand, then every executor against the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from covering import examples, few
from outcomes import as_the_plain_loop, same, wanting
from stepnet import Explanation, LoDTensor, Recurrent, explain, recurrent
from stepnet.engine import plans
from stepnet.errors import SlowPathWarning, StepError
from stepnet.front.static import Padded, length_of_padded

F64 = torch.float64
E, H, L, A = 3, 4, 5, 6
LENGTHS = [3, 0, 5, 1]


class Decoder(nn.Module):
    """Attention over a memory [n, L, H] by additive or dot-product scores, of the state or of the input."""

    def __init__(self, scores: str = "additive", asks: str = "state") -> None:
        super().__init__()
        self.scores, self.asks = scores, asks
        self.keys = nn.Linear(H, A)
        self.query = nn.Linear(H if asks == "state" else E, A, bias=False)
        self.v = nn.Linear(A, 1)
        self.cell = nn.GRUCell(E + H, H)
        self.double()

    def forward(self, x: Tensor, h: Tensor, memory: Any) -> tuple[Any, Tensor]:
        rows, mask = memory if isinstance(memory, Padded) else (memory, None)
        keys, query = self.keys(rows), self.query(h if self.asks == "state" else x)
        if self.scores == "additive":
            scores = self.v(torch.tanh(keys + query.unsqueeze(1))).squeeze(-1)
        elif self.scores == "dot":
            scores = torch.bmm(keys, query.unsqueeze(2)).squeeze(2)
        else:
            scores = torch.einsum("nla,na->nl", torch.tanh(keys), query)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, 1)
        context = torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
        h = self.cell(torch.cat([x, context], 1), h)
        return {"h": h, "weights": weights}, h


def data(lengths: list[int], seed: int = 0) -> tuple[LoDTensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), E, dtype=F64, generator=generator)
    return LoDTensor.from_lengths(x, [lengths]), torch.randn(len(lengths), H, dtype=F64, generator=generator)


def check(
    step: Any, x: LoDTensor, h: Tensor, static: Any, backend: str, *, boot: bool = True, **how: Any
) -> None:
    """Values of y, the final state and every gradient are those of the plain loop."""
    x, static, h = *wanting((x, static)), h.clone().requires_grad_(boot)
    as_the_plain_loop(step, x, h, backend, static=static, rtol=1e-7, atol=1e-7, **how)


def test_the_plain_loop_gives_each_sequence_its_own_memory():
    step, (x, h) = Decoder("dot"), data(LENGTHS)
    memory = LoDTensor.from_lengths(torch.randn(10, H, dtype=F64), [[2, 4, 1, 3]])
    y, final = recurrent(step, x, h, static=memory, backend="naive")
    for b, own in enumerate(memory):
        state = h[b : b + 1]
        for t, row in enumerate(x[b]):
            out, state = step(row[None], state, own[None])
            torch.testing.assert_close(out["h"][0], y["h"][b][t])
            torch.testing.assert_close(out["weights"][0], y["weights"][b][t, : len(own)])
        torch.testing.assert_close(state[0], final[b])


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize(
    ("scores", "asks"),
    few([("additive", "state"), ("dot", "x"), ("einsum", "state")], [("additive", "state"), ("dot", "x")]),
)
def test_attention_is_that_of_the_plain_loop(scores, asks, backend):
    step, (x, h) = Decoder(scores, asks), data(LENGTHS)
    dense = torch.randn(4, L, H, dtype=F64)
    ragged = LoDTensor.from_lengths(torch.randn(9, H, dtype=F64), [[2, 3, 1, 3]])
    for memory, how in ((dense, {}), (ragged, {"reverse": True}), (ragged, {"boot": False})):
        check(step, x, h, memory, backend, **how)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scores", few(["additive", "dot"], ["dot"]))
def test_attention_under_autocast(scores):
    step, (x, h) = Decoder(scores).float(), data(LENGTHS)
    memory = LoDTensor.from_lengths(torch.randn(9, H), [[2, 3, 1, 3]])
    x, h = x.map(torch.Tensor.float), h.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert explain(step, x, h, static=memory).executor == "c"
        as_the_plain_loop(step, *wanting((x, h)), "c", static=wanting(memory), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("after", few([False, True], [False]))
def test_keys_of_16_bits_from_outside(after):
    """Additive attention, before the cell and after it, over keys that autocast made in bfloat16."""
    v, w = wanting([torch.randn(H, dtype=F64).float(), torch.randn(2 * H, H)])

    def step(x: Tensor, h: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.tanh(x + h)
        asked = torch.nn.functional.linear(new if after else h, w[:H])
        weights = torch.softmax((torch.tanh(static + asked[:, None]) @ v[:, None])[..., 0], -1)
        context = torch.einsum("nm,nmh->nh", weights, static)
        both = torch.cat([new, context.float()], 1)
        return both, new if after else torch.tanh(both @ w).float()

    x, h = LoDTensor.from_lengths(torch.randn(9, H), [LENGTHS]), torch.zeros(4, H)
    keys = torch.randn(4, L, H).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        compiled = explain(step, x, h, static=keys)
        assert compiled.executor == "c"
        assert "spread" not in str(compiled)
        as_the_plain_loop(step, *wanting((x, h)), "c", static=keys, rtol=0.05, atol=0.05)


def scaled(x: Tensor, h: Tensor, static: Any) -> tuple[Tensor, Tensor]:
    scale, index = static
    h = torch.tanh(x[:, :1] * scale + h) + index[:, None]
    return h * scale, h


def only_memory(x: Tensor, h: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
    return static.sum((1, 2))[:, None] * 2, torch.tanh(h) * static[:, 0]


def normalised(x: Tensor, h: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
    flat = torch.nn.functional.layer_norm(static, (H,)).flatten(1)
    kept = torch.where(flat > 0, flat, flat * 0.1).view(-1, L, H)
    h = torch.tanh((kept * h[:, None]).sum(1) + x.sum(1, keepdim=True))
    return h, h


def next_from_memory(x: Tensor, h: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
    return h + x[:, :1], static[:, 0]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a.view_as(a)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return -grad


def reversed_gradient(x: Tensor, h: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h + Reversed.apply(static).sum(1))  # pyright: ignore[reportOptionalMemberAccess]
    return h * x[:, :1], h


MEMORIES: list[tuple[Callable[..., Any], Any]] = [
    (scaled, (torch.randn(4, H, dtype=F64), torch.tensor([0, 1, 0, 2]))),
    *((step, torch.randn(4, L, H, dtype=F64)) for step in (only_memory, normalised, next_from_memory)),
    (reversed_gradient, torch.randn(4, L, H, dtype=F64)),
]


@pytest.mark.covering(1)
@pytest.mark.parametrize("backend", ["eager", "c", "auto"])
@pytest.mark.parametrize(("step", "static"), MEMORIES, ids=lambda v: getattr(v, "__name__", ""))
def test_what_steps_do_with_it(step, static, backend):
    x, h = data(LENGTHS)
    check(step, x, h, static, backend)


@settings(max_examples=examples(25))
@given(
    lengths=st.lists(st.integers(0, 4), min_size=0, max_size=5),
    memory=st.integers(0, 9),
    reverse=st.booleans(),
    seed=st.integers(0, 3),
)
def test_ragged_memories_of_any_lengths(lengths, memory, reverse, seed):
    step, (x, h) = Decoder("additive"), data(lengths, seed)
    sizes = [(memory * (b + 3)) % 7 for b in range(len(lengths))]
    rows = LoDTensor.from_lengths(torch.randn(sum(sizes), H, dtype=F64), [sizes])
    for how in ({"reverse": reverse}, {"reverse": reverse, "boot": False}):
        check(step, x, h, rows, "eager", **how)


# ---- a state that a step hands on as it is


def carried(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, memory = state
    h = torch.tanh(h + (memory * x[:, :1, None]).sum(1))
    return h, (h, memory)


def turned(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, memory = state
    return carried(x, (h, memory))[0], (h + 1, Reversed.apply(memory))  # pyright: ignore


def cut(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, memory = state
    return carried(x, (h, memory))[0], (h, memory.detach())


def cut_and_unused(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, memory = state
    return x[:, :1] * h, (h + 1, memory.detach())


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", ["eager", "c"])
@pytest.mark.parametrize("used", [("y",), ("memory",), ("y", "memory")])
@pytest.mark.parametrize("step", [carried, turned, cut, cut_and_unused])
def test_a_state_that_is_handed_on_gets_the_gradient_of_every_way(step, used, backend):
    def run(backend: str) -> list[Tensor | None]:
        x, h = data([2, 0, 3])
        memory = torch.randn(3, L, H, dtype=F64, generator=torch.Generator().manual_seed(4)).requires_grad_()
        y, (_, last) = recurrent(step, x, (h, memory), backend=backend)
        assert last.data_ptr() != memory.data_ptr()
        parts = {"y": y.values, "memory": last}
        if not any(parts[name].requires_grad for name in used):
            return [None]
        total = sum((parts[name] ** 2).sum() for name in used if parts[name].requires_grad)
        assert isinstance(total, Tensor)
        return [y.values, last, *torch.autograd.grad(total, [memory], allow_unused=True)]

    same(run(backend), run("naive"), rtol=1e-7, atol=1e-7)


# ---- more calls, other ways


@pytest.mark.exhaustive
def test_again_with_other_values_shapes_and_without_gradients():
    step, (x, h) = Decoder("dot"), data(LENGTHS)
    for seed, size in ((0, 5), (1, 5), (2, 7)):
        memory = torch.randn(4, size, H, dtype=F64, generator=torch.Generator().manual_seed(seed))
        check(step, x, h, memory, "c")
        with torch.no_grad():
            found, wanted = (recurrent(step, x, h, static=memory, backend=b)[1] for b in ("c", "naive"))
        torch.testing.assert_close(found, wanted)


def test_tensors_and_the_module():
    step = Decoder("additive")
    x, h, memory = torch.randn(6, 3, E).double(), torch.zeros(3, H).double(), torch.randn(3, L, H).double()
    y, last = Recurrent(step, backend="c")(x, h, static=memory)
    expected, final = Recurrent(step, backend="naive")(x, h, static=memory)
    torch.testing.assert_close(y["h"], expected["h"])
    torch.testing.assert_close(last, final)


@pytest.mark.exhaustive
def test_second_derivatives():
    step, (x, h) = Decoder("dot"), data([2, 1])

    def second(backend: str) -> Tensor:
        memory = torch.ones(2, L, H, dtype=F64).requires_grad_()
        y, _ = recurrent(step, x, h, static=memory, backend=backend)
        (first,) = torch.autograd.grad(y["h"].values.pow(3).sum(), memory, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), memory)[0]

    torch.testing.assert_close(second("c"), second("naive"))


def test_explain_names_it():
    step, (x, h) = Decoder("additive"), data(LENGTHS)
    memory = torch.randn(4, L, H, dtype=F64)
    told = explain(step, x, h, static=memory, backend="eager")
    assert isinstance(told, Explanation)
    forward = told.loops[0]
    assert [(port.name, port.role) for port in forward.enters][1:3] == [
        ("state", "state"),
        ("static", "static"),
    ]
    (once,) = [r for r in forward.regions if r.kind == "sequences"]
    assert "matmul" in [op.name for op in once.ops]
    assert "once, on 4 sequences" in str(told)
    told.to_svg()


def test_a_longer_padding_serves_more_batches():
    sizes = [length_of_padded(n) for n in range(1, 400)]
    assert all(n <= size <= max(8, n * 1.25 + 8) for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 25


@pytest.mark.parametrize(
    ("static", "words"),
    [
        (torch.zeros(3, 2), "must have one row per sequence"),
        (torch.tensor(1.0), "must have one row per sequence"),
        (LoDTensor.from_lengths(torch.zeros(4, 2), [[2, 2]]), "must have one sequence of rows per sequence"),
        (LoDTensor.from_lengths(torch.zeros(4, 2), [[1, 1, 1, 1], [1, 1, 1, 1]]), "has 2 levels"),
        (3, "must be a tensor or a LoDTensor"),
    ],
)
def test_what_does_not_fit_is_told(static, words):
    x, h = data(LENGTHS)
    with pytest.raises(StepError, match=r"static\['m'\] of step 'Decoder'") as caught:
        recurrent(Decoder(), x, h, static={"m": static})
    assert words in str(caught.value)


@pytest.mark.parametrize("sequences", [3, 5])  # as many as the step is tried on, or not
def test_a_memory_that_a_step_closes_over_is_told_of(sequences):
    plans.forget()
    memory, x, h = torch.randn(sequences, L, H), torch.randn(6, sequences, E), torch.zeros(sequences, H)

    def closes_over(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + torch.bmm(memory.transpose(1, 2), memory).sum(1) + x[:, :1])
        return h, h

    with pytest.warns(SlowPathWarning, match="one row for each sequence"):
        y, _ = recurrent(closes_over, x, h)
    expected, _ = recurrent(lambda x, h, memory: closes_over(x, h), x, h, static=memory, backend="naive")
    torch.testing.assert_close(y, expected)
    recurrent(closes_over, x, h)  # told once


def test_a_changed_structure_is_told_without_it():
    x, h = data(LENGTHS)
    with pytest.raises(StepError, match=r"expected: state \*"):
        recurrent(lambda x, h, m: (h, (h, h)), x, h, static=torch.zeros(4, 1))


def attended(q, memory):
    weights = torch.softmax(torch.einsum("nh,nmh->nm", q, memory), -1)
    return torch.einsum("nm,nmh->nh", weights, memory)


@pytest.mark.parametrize("asks", few(["x", "state", "twice"], ["twice"]))
def test_memory_read_beside_no_state_is_never_spread(asks):
    """Nor does a row hold its part of the gradient: it is summed in the scan, in one pass."""
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def step(x, h, memory):
        h = torch.tanh(x + h @ weight)
        context = attended((x if asks == "x" else h) @ weight, memory)
        return (attended(context @ weight, memory) if asks == "twice" else context), h

    x = LoDTensor.from_lengths(torch.randn(6, 4, dtype=torch.float64), [[4, 2]])
    h, memory = torch.zeros(2, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    as_the_plain_loop(step, *wanting((x, h)), "c", static=wanting(memory), rtol=1e-9, atol=1e-9)
    compiled = explain(step, x, h, static=memory.requires_grad_(), backend="c", source=True)
    assert compiled.executor == "c"
    assert "spread" not in str(compiled)
    assert compiled.source.count("= sum_steps(") == 1


def test_a_result_of_another_type_stays_out_of_the_scan():
    """Generated C computes in one type."""
    x, h = torch.randn(6, 4), torch.zeros(2, 4)
    x = LoDTensor.from_lengths(x, [[4, 2]])
    as_the_plain_loop(
        lambda x, h: (torch.tanh(x + h).double() * 2, torch.tanh(x + h)), x, h, "c", rtol=1e-6, atol=1e-6
    )
