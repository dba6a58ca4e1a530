"""What masks pick of rows, change and put back, in generated C: numbers and gradients of the plain loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covering import few
from outcomes import as_the_plain_loop, outcome, same
from stepnet import LoDTensor, explain, recurrent

D, LENGTHS = torch.float64, [3, 0, 1, 4]
torch.manual_seed(5)
W = (torch.randn(4, 4, dtype=D) * 0.5).requires_grad_()
SHIFT = torch.randn(4, dtype=D, requires_grad=True)
CELL = nn.GRUCell(4, 4).double()


class Half(torch.autograd.Function):
    """A value, of which half the gradient is handed on."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def scaled(x, h):
    z = x @ W + h
    z[z < 0] *= 0.1
    z[z > 0.5] = torch.log(z[z > 0.5])
    return z


def some_rows_by_a_cell(x, h):
    on, h = x[:, 0] > 0, h.clone()
    h[on] = CELL(x[on], h[on])
    h[~on] = F.layer_norm(h[~on] @ W, [4])
    return h


def parts_of_rows(x, h):
    on, h = x[:, 1] > 0, h.clone()
    h[on, 1:3] = x[on, 2:] * 2
    h[on, 0] += x[on, 3]
    h[x[:, 2] > 0] = SHIFT
    return h


def places_of_matrices(x, h):
    outer = torch.einsum("bi,bj->bij", x, h)
    on = outer.sum(-1) > 0
    outer[on] = outer[on].softmax(-1) * SHIFT
    lines = outer[x[:, 0] > 0].view(-1, 8, 2).mT.reshape(-1, 4, 4)
    outer[x[:, 0] > 0] = lines
    return outer.sum(1)


def by_functions(x, h):
    z = x + h
    on = z.abs() > 0.3
    z = z.masked_scatter(on, torch.masked_select(z, on).sin())
    z = z.index_put((on,), Half.apply(h[on]))
    return z.index_put_((z > 1,), x[z > 1], accumulate=True)


def masks_of_masks(x, h):
    on = x[:, 0] > -1
    picked = (x + h)[on]
    picked[picked > 0.5] = 0.5
    picked[picked < 0] *= 2
    z = h.clone()
    z[on] = picked
    return z


def numbers_and_truths(x, h):
    counts, truths = (x * 3).long(), x > 0
    counts[counts < 0] = counts[counts < 0].abs() % 5
    truths[h > 0] = ~truths[h > 0]
    return h + counts + truths.to(D)


def experts_by_numbers(x, h):
    chosen, out = (x @ W).argmax(-1), torch.zeros_like(h)
    rows = torch.where(chosen == 0)[0]
    out[rows] = torch.tanh(x[rows] @ W) * h[rows, 1, None]
    rows = (chosen == 1).nonzero().squeeze(-1)
    out.index_add_(0, rows, x.index_select(0, rows) * 2, alpha=0.5)
    (rows,) = (chosen == 2).nonzero(as_tuple=True)
    out[rows, 1:3] = 0.5
    return out.index_copy(0, rows, h[rows] + SHIFT)


def experts_by_places(x, h):
    weights, chosen = torch.softmax(x @ W, -1).topk(2, -1)
    out, mask = torch.zeros_like(h), F.one_hot(chosen, 4).permute(2, 1, 0)
    for i in range(2):  # as Mixtral has it
        place, row = torch.where(mask[i])
        given = x[None, row].reshape(-1, 4)
        out.index_add_(0, row, torch.tanh(given @ W * (i + 1)) * weights[row, place, None])
    row, place = torch.where(chosen == 2)  # as DeepSeek has it
    out[row] += torch.sin(x[row]) * weights[row, place, None]
    row, place = (chosen > 2).nonzero(as_tuple=True)
    out[row] = out.index_select(0, row) * h[row, 1:2]
    often = torch.stack([x[:, 0] > 0, x[:, 1] > 0], 1)
    row, place = torch.where(often)  # some rows twice
    out.index_add_(0, row, h[row] * 2, alpha=0.5)
    out[row] = torch.stack([x, h], 1)[row, place]
    return out


# Those that write into parts of what they made are recorded by torch's tracers, in ten times the time.
WRITING = [scaled, parts_of_rows, masks_of_masks, experts_by_numbers, experts_by_places]
STEPS = [some_rows_by_a_cell, places_of_matrices, by_functions, numbers_and_truths]


def given():
    torch.manual_seed(6)
    x, h = torch.randn(8, 4, dtype=D, requires_grad=True), torch.randn(4, 4, dtype=D, requires_grad=True)
    return LoDTensor.from_lengths(x, [LENGTHS]), h


@pytest.mark.parametrize("functions", [WRITING, STEPS], ids=["writing", "others"])
def test_as_the_plain_loop(functions):
    def step(x, h):
        made = {f.__name__: f(x, h) for f in functions}
        return made, torch.tanh(sum(made.values()) * 0.3)

    as_the_plain_loop(step, *given(), weights=[W, SHIFT, *CELL.parameters()], atol=1e-9)


def test_a_gradient_of_what_is_not_picked_is_none_of_infinity():
    def step(x, h):
        z = x.detach() * h
        z[z > 0] = torch.sqrt(z[z > 0])
        return z, torch.relu(h)

    x, h = given()
    ours, plain = (outcome(step, x, torch.zeros_like(h).requires_grad_(), name) for name in ("c", "naive"))
    same(ours[0] + ours[1], plain[0] + plain[1])


def experts(x, h):
    chosen, out = (x @ W).argmax(-1), torch.zeros_like(h)
    for i in range(3):
        on = chosen == i
        rows = on.nonzero().squeeze(1)
        if i == 1 and rows.numel() == 0:
            continue
        if i == 2 and x[on].shape[0] < 1:
            continue
        if i or on.any():
            out[rows] = torch.tanh(x[rows] @ W * (i + 1))
    if (chosen == 3).any():
        out = torch.where((chosen == 3)[:, None], h, out) * (1 - 0.5 * (chosen == 3).to(D))[:, None]
    return out


def test_code_behind_any_that_does_nothing_for_other_rows():
    def step(x, h):
        high = x[:, 0] > 100  # of no row
        if high.any():
            h = h.clone()
            h[high] = SHIFT
        return x * h, torch.tanh(x + h)

    assert explain(step, *given()).executor == "c"
    as_the_plain_loop(step, *given(), weights=[W], atol=1e-9)
    x, h = given()
    x = x.with_values((x.values.detach() * 100).requires_grad_())
    as_the_plain_loop(step, x, h, weights=[W, SHIFT], atol=1e-9)


def test_a_while_that_begins_with_what_is_true_of_every_row():
    def step(x, h):
        done, out, n = torch.zeros_like(h[:, :1]), torch.zeros_like(h), 0
        while (on := done < 0.6).any() and n < 2:
            h = torch.where(on, torch.tanh(x @ W + h), h)
            out, n = torch.where(on, out + h, out), n + 1
            done = torch.where(on, done + torch.sigmoid(h[:, 1:2]), done)
        return out, h

    assert explain(step, *given()).executor == "c"
    as_the_plain_loop(step, *given(), weights=[W], atol=1e-9)


def pondered(x, h):
    """A break when no row goes on, and what a truth value as a number makes 0."""
    going, out, new = torch.ones_like(h[:, 0]), torch.zeros_like(h), h + x
    for _ in range(3):
        new = torch.sinh((0.4 * new @ W + x) / 4)
        out = out + new * going.unsqueeze(1)
        going = going * (x[:, 0] <= 1.0).to(D)
        if (going == 0).all():
            break
    first = (x[:, 1] > 0.5).to(D)
    if torch.sum(first) > 0:
        out = out * (1.0 - first)[:, None] + (first[:, None] * torch.tanh(W[0])).exp() * first[:, None]
    if (x[:, 2] > 2.5).sum() == 0:
        return out, torch.tanh(out)
    return out, torch.tanh(torch.where((x[:, 2] > 2.5)[:, None], -out, out))


def test_a_break_where_no_row_goes_on():
    assert explain(pondered, *given()).executor == "c"
    as_the_plain_loop(pondered, *given(), weights=[W], atol=1e-9)
    x, h = given()
    large = x.with_values(torch.full_like(x.values, 60.0).requires_grad_())
    recurrent(pondered, x, h)
    ours, plain = (outcome(pondered, large, h, name) for name in ("auto", "naive"))
    assert ours[0][0].isfinite().all()  # another turn of what the plain loop leaves out is infinite
    same(ours[0], plain[0])


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize("count", few([1, 2, 3], [2]))
def test_code_behind_any_that_does_more_is_left_to_the_plain_loop(count):
    def step(x, h):
        some = [(x[:, i] > 0).any() for i in range(count)]
        h = h + x if any(map(bool, some)) else h * 0.5
        return h, torch.tanh(h)

    # one question alone is traced both ways, with the answer of each row
    assert explain(step, *given()).executor == ("c" if count == 1 else "naive")
    as_the_plain_loop(step, *given(), "auto")


PLACES = torch.tensor([True, False, True, False])
GRID = torch.tensor([[True, False], [True, True]])


def test_masks_that_are_the_same_at_every_step():
    def step(x, h):
        h = h.clone()
        h[:, PLACES] = 0.9 * h[:, PLACES] + x[:, ~PLACES] @ W[PLACES][:, :2]
        h.view(-1, 2, 2)[:, GRID] += 0.1
        return h[:, torch.arange(4) > 0], torch.tanh(h)

    try:
        for _ in range(2):  # a mask whose numbers change is another step
            assert explain(step, *given()).executor == "c"
            as_the_plain_loop(step, *given(), weights=[W], atol=1e-9)
            PLACES.copy_(PLACES.flip(0))
    finally:
        PLACES.copy_(torch.tensor([True, False, True, False]))


def picked_alone(x, h):
    return x[x > 0].sum() + h


def as_many_as_picked(x, h):
    return h + x[x[:, 0] > 0].shape[0]


def in_another_order(x, h):
    h = h.clone()
    h[x > 0] = x[x > 0].flip(0)
    return h


def returned(x, h):
    return x[torch.ones_like(x, dtype=torch.bool)].reshape(-1, 4) + h


def of_all_that_is_picked(x, h):
    h = h.clone()
    h[x > 0] = x[x > 0].softmax(0)
    return h


def by_numbers_of_places(x, h):
    row, place = torch.where(x > 0)
    return h.index_add(0, row, W[place])


@pytest.mark.filterwarnings("ignore::stepnet.errors.SlowPathWarning")
@pytest.mark.parametrize(
    "make",
    [
        by_numbers_of_places,
        picked_alone,
        as_many_as_picked,
        in_another_order,
        returned,
        of_all_that_is_picked,
    ],
    ids=lambda f: f.__name__,
)
def test_what_depends_on_how_many_are_picked_is_left_to_the_plain_loop(make):
    def step(x, h):
        z = make(x, h)
        return z, torch.tanh(z)

    assert explain(step, *given()).executor == "naive"
    as_the_plain_loop(step, *given(), "auto")
