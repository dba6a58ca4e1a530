"""Steps as users write them, each with the verdict of every executor: it runs right, or says why not.

A refusal names the line of the step. What no executor takes runs by the plain loop, with one warning.
"""

from __future__ import annotations

import inspect
import itertools
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from plans import entry_of, plan_of
from stepnet import cells
from stepnet.api import recurrent
from stepnet.data.lod import LoDTensor
from stepnet.errors import SlowPathWarning, Unsupported
from stepnet.testing import FLOAT32, FLOAT64, check_step

PLANS_ON_DISK = True  # what is recorded once runs in both executors
DTYPE = torch.float64
D = 4
SIZES = [2, 0, 5, 1, 3]
torch_of = torch.Generator().manual_seed(8)


def weight(*shape):
    return torch.randn(shape, generator=torch_of, dtype=DTYPE).mul_(0.5).requires_grad_()


GLOBAL, SCALE = weight(D, D), 0.7
W, U, V, B = weight(D, D), weight(D, D), weight(D, D), weight(D)
TABLE, HEADS, WIDE = weight(D, D), weight(2, 2, 2), weight(D, 3 * D)


class Steps:
    """Each a step on x [n, 4] and a state [n, 4], unless STATES says otherwise."""

    def closure_and_global(x, h):
        h = torch.tanh(x @ W + h @ GLOBAL * SCALE)
        return h, h

    def defaults(x, h, scale=0.5, *, w=W):
        h = torch.tanh(x @ w + h) * scale
        return h, h

    def detached_state(x, h):
        h = torch.tanh(x @ W + h.detach() @ U)
        return h, h

    def detached_input(x, h):
        h = torch.tanh(x.detach() @ W + h @ U)
        return h * x, h

    def detached_y(x, h):
        h = torch.tanh(x @ W + h @ U)
        return h.detach(), h

    def no_grad_inside(x, h):
        with torch.no_grad():
            gate = torch.sigmoid(x @ V + h)
        h = gate * h + (1 - gate) * (x @ W)
        return h, h

    def the_gradient_of_each_row(x, h):
        def loss(h, target):
            return 0.5 * (torch.tanh(h) - target).square().sum()

        h = h - torch.func.vmap(torch.func.grad(loss))(h, x @ W)
        return h, h

    def fractions_of_a_weight(x, h):
        h = torch.tanh(x * (B - B.floor()) + h)
        return h, h

    def custom_function(x, h):
        h = _Sign.apply(x @ W + h @ U) + 0.5 * h
        return h, h

    def in_place_on_its_own(x, h):
        z = x @ W + h
        z[:, :3] += 1
        z.mul_(0.5)
        z[:, 1] = x[:, 0]
        z[:, 2:] *= h[:, :2]
        z += x
        return z.tanh_(), z

    def in_place_on_a_copy(x, h):
        h = h.clone()
        h.add_(x).clamp_(-1, 1)
        return h, h

    def built_by_parts(x, h):
        out = torch.zeros_like(h)
        out[:, ::2] = x[:, ::2] * h[:, 1::2]
        out[:, 1::2] = h[:, ::2] - x[:, 1::2]
        return out, torch.tanh(out)

    def zeros_of_the_batch(x, h):
        blank = torch.zeros(x.shape[0], 2, dtype=DTYPE)
        ones = x.new_ones(x.shape[0], 2)
        h = torch.tanh(h + x + torch.cat([blank, ones], 1))
        return h, h

    def a_tensor_made_inside(x, h):
        h = torch.tanh(h * torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=DTYPE) + x)
        return h, h

    def a_range_made_inside(x, h):
        h = torch.tanh(h / torch.arange(1, 5) + x * torch.linspace(0, 1, 4, dtype=DTYPE))
        return h, h

    def attention_over_slots(x, memory):
        score = torch.softmax(memory @ V[:3, :2].sum(1), -1)
        read = (score[:, :, None] * memory).sum(1)
        memory = memory + score[:, :, None] * (x @ W[:, :3])[:, None, :]
        return read, torch.tanh(memory)

    def einsum_of_heads(x, h):
        heads = torch.einsum("nhd,hde->nhe", h.view(-1, 2, 2), HEADS)
        h = torch.tanh(heads.reshape(-1, 4) + x)
        return h, h

    def blocks_by_bmm(x, h):
        blocks = torch.bmm(h.view(-1, 2, 2).transpose(0, 1), HEADS).transpose(0, 1)
        h = torch.tanh(blocks.flatten(1) + x)
        return h, h

    def gates_by_chunk(x, h):
        i, f, g = (x @ WIDE + h.repeat(1, 3)).chunk(3, -1)
        h = torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(g)
        return h, h

    def stacked_cells(x, state):
        a, b = state
        a = torch.tanh(x @ W + a @ U)
        b = torch.tanh(a @ V + b @ GLOBAL)
        return b, (a, b)

    def a_cell_of_cells(x, state):
        y, h = GRU(x, state[0])
        z, g = NN_GRU(y), state[1]
        return z + g, (h, torch.tanh(z * g))

    def normalised(x, h):
        h = F.layer_norm(x @ W + h @ U, (D,), GLOBAL[0], B)
        return h, torch.tanh(h)

    def softmaxes(x, h):
        y = F.log_softmax(x @ W + h, -1)
        h = F.softmax(h - x, -1)
        return y, h

    def linear_interpolation(x, h):
        h = torch.lerp(h, x, torch.sigmoid(h + B))
        return h, h

    def addmm(x, h):
        h = torch.addmm(B, h, U, beta=0.5, alpha=2.0).sigmoid()
        return torch.addcmul(x, h, h, value=0.3), h

    def where_and_comparisons(x, h):
        h = torch.where((x > 0) & (h < 0.5) | (x == h), h * 0.5, x - h)
        return (x >= h).to(DTYPE) * x, h.clamp(-1, 2)

    def a_python_loop(x, h):
        for k in range(3):
            h = torch.tanh(h + x * (0.5**k))
        return h, h

    def a_python_branch(x, h):
        h = torch.tanh(h) if x.shape[1] == 4 and x.dtype is DTYPE else h
        return h + x if h.dim() == 2 else h, h

    def python_math(x, h):
        h = torch.sin(h * math.pi / 3) + x / math.sqrt(x.shape[-1])
        return h, h

    def nested_functions(x, h):
        def gate(v, w):
            return torch.sigmoid(v @ w)

        act = {"tanh": torch.tanh}["tanh"]
        h = gate(x, W) * act(h)
        return h, h

    def complex_inside(x, h):
        z = torch.complex(x[:, :2] + h[:, :2], x[:, 2:]) * torch.complex(h[:, 2:], h[:, :2])
        h = torch.cat([z.real, z.imag], -1).tanh()
        return h, h

    def float32_inside(x, h):
        h = torch.tanh((x.float() @ W.float()).double() + h)
        return h, h

    def float32_in_the_loop(x, h):
        h = torch.tanh((h.float() @ W.float()).double() + x)
        return h, h

    def solve(x, h):
        a = torch.eye(2, dtype=DTYPE) * 3 + h.view(-1, 2, 2)
        h = torch.linalg.solve(a, x.view(-1, 2, 2)).reshape(-1, 4).tanh()
        return h, h

    def cumulated(x, h):
        h = torch.tanh(torch.cumsum(x * 0.3 + h, -1))
        return h, h

    def sorted_features(x, h):
        values, order = torch.sort(h + x, -1)
        return values, torch.tanh(values * order)

    def top_two(x, h):
        best = torch.topk(h + x, 2, -1).values
        h = torch.tanh(h + best.sum(-1, keepdim=True) * x)
        return best, h

    def convolution(x, h):
        h = torch.tanh(F.conv1d((h + x)[:, None, :], HEADS[:1, :1, :].contiguous(), padding=1)[:, 0, :4])
        return h, h

    def grouped_convolution(x, h):
        both = F.conv1d(torch.stack([h, x], 1), HEADS[:2, :1, :].contiguous(), padding=1, groups=2)
        h = torch.tanh(both.sum(1)[:, :4])
        return h, h

    def filters_of_each_row(x, h):
        both = F.conv1d((h + x)[None], x[:, None, :3], padding=1, groups=x.shape[0])[0]
        h = torch.tanh(both[:, :4])
        return h, h

    def filters_of_each_row_over_two(x, h):
        two = torch.stack([h + x, h - x])  # [2, rows, features]
        both = F.conv1d(two, x[:, None, :3], padding=1, groups=x.shape[0]).sum(0)
        h = torch.tanh(both[:, :4])
        return h, h

    def embedding_of_its_argmax(x, h):
        word = (h + x).argmax(-1)
        h = torch.tanh(F.embedding(word, TABLE) + h @ U)
        return h, h

    def one_hot_of_its_argmax(x, h):
        hot = F.one_hot((h + x).argmax(-1), D).to(DTYPE)
        h = torch.tanh(hot @ TABLE + h @ U)
        return h, h

    def one_hot_of_a_count(x, h):
        hot = F.one_hot((x > 0).sum(-1), D + 1).to(DTYPE)
        h = torch.tanh(hot[:, :D] @ TABLE + h @ U)
        return h, h

    def one_hot_of_too_few(x, h):
        hot = F.one_hot((h + x)[:, :2].argmax(-1), 3)[:, 1:].to(DTYPE)
        h = torch.tanh(h @ U + hot[:, :1] - hot[:, 1:])
        return h, h

    def gathered(x, h):
        index = (x > 0).long()
        h = torch.tanh(torch.gather(h, 1, index) + x)
        return h, h

    def a_mask_by_where(x, h):
        h = h.masked_fill(x > 0.3, 0.0) + x * torch.ones_like(x).masked_fill_(h > 0, 0.5)
        return h, h

    def einsum_outer(x, memory):
        memory = 0.9 * memory + torch.einsum("ni,nj->nij", x, torch.tanh(x @ W))
        return torch.einsum("nij,nj->ni", memory, x), memory

    def maxima(x, h):
        best = torch.maximum(h, x).amax(-1, keepdim=True)
        low, _ = torch.min(h + x, -1, keepdim=True)
        h = torch.minimum(h + 1, x) - best + 0.1 * low
        return h, torch.tanh(h)

    def statistics_of_a_row(x, h):
        z = x @ W + h
        h = (z - z.mean(-1, keepdim=True)) / (z.var(-1, keepdim=True) + 1e-3).sqrt() + z.std(-1)[:, None]
        return h, torch.tanh(h)

    def norms(x, h):
        h = F.normalize(h + x, dim=-1) + 0.1 * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return h, h

    def shapes(x, h):
        z = torch.stack([x, h], 1).flip(1).roll(1, -1).transpose(1, 2).reshape(-1, 8)
        a, b = z.split([3, 5], -1)
        h = torch.cat([a, b[:, 1:2]], -1).unsqueeze(1).expand(-1, 2, -1).permute(0, 2, 1)[..., 0]
        return z.unflatten(1, (2, 4)).select(1, 0), torch.tanh(h.contiguous().view(x.shape))

    def repeated_rows_of_features(x, h):
        h = torch.tanh(h.repeat_interleave(2, -1)[:, :4] + x.tile(1, 2)[:, 3:7])
        return h, h

    def padded(x, h):
        h = torch.tanh(F.pad(h[:, 1:], (1, 0)) + F.pad(x, (-1, 1), value=0.5))
        return h, h


GRU = cells.GRU(D, D, dtype=DTYPE)
NN_GRU = nn.Sequential(nn.Linear(D, D, dtype=DTYPE), nn.ReLU(), nn.Linear(D, D, bias=False, dtype=DTYPE))


class _Sign(torch.autograd.Function):
    """The sign; its gradient is that of the identity within [-1, 1]."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


STEPS = {k: v for k, v in vars(Steps).items() if inspect.isfunction(v)}
if torch.__version__ < "2.8":  # its torch.func refuses the hooks that a step is tried with
    del STEPS["the_gradient_of_each_row"]
# Where generated C declines: words of the refusal, and of the line it names.
NOT_IN_C = {"float32_in_the_loop": ("the loop computes in float32, float64", "")}
PLAIN_LOOP_ONLY = {
    "filters_of_each_row_over_two": ("convolution.default on values whose rows are not first", "F.conv1d"),
}
LOOSE = dict.fromkeys(("float32_inside", "float32_in_the_loop"), FLOAT32)
STATES = {
    "attention_over_slots": [(4, 3)],
    "einsum_outer": [(4, 4)],
    "stacked_cells": [(D,), (D,)],
    "a_cell_of_cells": [(D,), (D,)],
}


def state_of(step, n):
    shapes = STATES.get(step.__name__, [(D,)])
    leaves = tuple(torch.randn(n, *shape, dtype=DTYPE, requires_grad=True) for shape in shapes)
    return leaves if len(leaves) > 1 else leaves[0]


def rows(grad=True, sizes=SIZES):
    return LoDTensor.from_lengths(torch.randn(sum(sizes), D, dtype=DTYPE, requires_grad=grad), [sizes])


def line_of(step, text):
    """'test_odd_steps.py:7' for the line of a step that holds a text."""
    source, first = inspect.getsourcelines(step)
    (at,) = [first + i for i, line in enumerate(source) if text in line]
    return f"(test_odd_steps.py:{at})"


def refused_by(name, backend):
    return PLAIN_LOOP_ONLY.get(name) or (NOT_IN_C.get(name) if backend == "c" else None)


# What writes into what it made is recorded by torch's tracers, in ten times the time, as is all beside it.
WRITING = [
    "in_place_on_its_own",
    "in_place_on_a_copy",
    "built_by_parts",
    "linear_interpolation",
    "where_and_comparisons",
    "a_mask_by_where",
]
ALONE = [name for name in LOOSE if refused_by(name, "c") is None]
IN_C = [name for name in STEPS if refused_by(name, "c") is None and name not in (*WRITING, *ALONE)]
GROUPS = [*(IN_C[first : first + 8] for first in range(0, len(IN_C), 8)), WRITING, ALONE]


BY_TORCH_OPS = [GROUPS[0], WRITING, ALONE]
PAIRS = list(itertools.product(["eager", "c"], GROUPS))
IN_TURN = [("c" if k % 6 == 3 else "eager", names) for k, names in enumerate(GROUPS) if k % 3 < 2]


@pytest.mark.parametrize(
    ("backend", "names"),
    few(PAIRS, IN_TURN),
    ids=[f"{backend} {' '.join(names)}" for backend, names in PAIRS],
)
def test_right_side_by_side(names, backend):
    """Some at a time in one step: then they are recorded once, and are one build."""
    steps = {name: STEPS[name] for name in names}

    def side_by_side(x, states):
        pairs = {name: step(x, states[name]) for name, step in steps.items()}
        return {name: y for name, (y, _) in pairs.items()}, {name: new for name, (_, new) in pairs.items()}

    state = {name: state_of(step, len(SIZES)) for name, step in steps.items()}
    weights = {"W": W, "U": U, "V": V, "B": B, "GLOBAL": GLOBAL, "HEADS": HEADS}
    weights |= dict(GRU.named_parameters()) | dict(NN_GRU.named_parameters())
    tolerance = LOOSE.get(names[0], FLOAT64)
    check_step(side_by_side, rows(), state, weights=weights, backend=backend, tolerance=tolerance)


@pytest.mark.parametrize("name", NOT_IN_C)
def test_right_by_torch_ops(name):
    step = STEPS[name]
    check_step(step, rows(), state_of(step, len(SIZES)), backend="eager", tolerance=LOOSE.get(name, FLOAT64))


@pytest.mark.parametrize(
    ("name", "backend"),
    [(n, b) for n in (*NOT_IN_C, *PLAIN_LOOP_ONLY) for b in ("eager", "c") if refused_by(n, b)],
)
def test_refused_with_the_line(name, backend):
    step = STEPS[name]
    x, state = rows(), state_of(step, len(SIZES))
    refusal = refused_by(name, backend)
    with pytest.raises(Unsupported) as caught:
        recurrent(step, x, state, backend=backend)
    words, line = refusal
    assert words in str(caught.value)
    if line:
        assert line_of(step, line) in str(caught.value)


@pytest.mark.parametrize("name", [*NOT_IN_C, *PLAIN_LOOP_ONLY])
def test_auto_finds_a_way(name):
    """Torch ops where generated C declines; the plain loop, with one warning, where both do."""
    step = STEPS[name]
    x, state = rows(), state_of(step, len(SIZES))
    if name in PLAIN_LOOP_ONLY:
        with pytest.warns(SlowPathWarning) as warned:
            check_step(step, x, state, backend="auto")
        assert len(warned) == 1
        assert PLAIN_LOOP_ONLY[name][0] in str(warned[0].message)
    check_step(step, x, state, backend="auto", tolerance=LOOSE.get(name, FLOAT64))
    entry = entry_of(step, x, state, backend="auto")
    assert (entry.ready.executor.name if entry.ready else None) == (
        None if name in PLAIN_LOOP_ONLY else "eager"
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", ["stacked_cells", "in_place_on_its_own", "detached_state", "solve"])
def test_in_other_layouts(name, reverse):
    step = STEPS[name]
    x = torch.randn(3, 2, D, dtype=DTYPE, requires_grad=True)
    check_step(step, x, state_of(step, 2), reverse=reverse, backend="eager")
    check_step(step, x, state_of(step, 3), reverse=reverse, axis=1, backend="eager")
    check_step(step, rows(sizes=[]), state_of(step, 0), reverse=reverse, backend="eager")


def test_stacked_cells_are_two_scans_with_one_matmul_between():
    step = STEPS["stacked_cells"]
    plan = plan_of(step, rows(), state_of(step, len(SIZES)))
    kinds = [region.kind for region in plan.forward.regions]
    assert kinds.count("scan") == 2
    first, second = (i for i, kind in enumerate(kinds) if kind == "scan")
    between = [n.op for region in plan.forward.regions[first + 1 : second] for n in region.nodes]
    assert between == ["matmul"]
    assert [n.op for n in plan.forward.regions[first].nodes].count("matmul") == 1
    assert [n.op for n in plan.forward.regions[second].nodes].count("matmul") == 1


class Scales(nn.Module):
    def forward(self, x, h):
        return x * SCALE, h


def test_a_step_that_is_a_weak_proxy():
    step, x = Scales(), torch.randn(3, 2, D)
    y, _ = recurrent(weakref.proxy(step), x, x[0], backend="eager")
    torch.testing.assert_close(y, x * SCALE)
