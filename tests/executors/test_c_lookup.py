"""Whole numbers in generated C: argmax, rows of tables by an index of the step, counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepnet
from covering import every, few
from outcomes import outcome, same
from stepnet.errors import StepIndexError, Unsupported
from stepnet.executors.c import build as c_build

pytestmark = pytest.mark.skipif(c_build.available() is not None, reason="no C compiler")
OPTIMISED = False
LENGTHS = [[5, 0, 1, 9, 3]]
WORDS, H = 11, 6
NAN, INF = float("nan"), float("inf")


def weights(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def agree(step, x, state, wanted, rtol=1e-12, backend="c", reverse=False):
    """Values and gradients as the plain loop has them; whole numbers to the last."""
    ours, plain = (outcome(step, x, state, by, weights=wanted, reverse=reverse) for by in (backend, "naive"))
    same(ours[0], plain[0], rtol, rtol)
    same(ours[1], plain[1], 100 * rtol, 100 * rtol)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_a_word_fed_back(dtype, rtol, reverse):
    table, inner, back, out = weights((WORDS, 4), (4, H), (H, H), (H, WORDS), dtype=dtype)

    def step(x, state):
        h, word = state
        h = torch.tanh(F.embedding(word, table) @ inner + h @ back + x)
        word = (h @ out).argmax(-1)
        return (h @ out, word), (h, word)

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, H, dtype=dtype), LENGTHS)
    start = torch.tensor([0, 3, 10, 2, 2])
    assert stepnet.explain(step, x, (torch.zeros(5, H, dtype=dtype), start)).executor == "c"
    agree(step, x, (torch.zeros(5, H, dtype=dtype), start), [table, inner, back, out], rtol, reverse=reverse)


@pytest.mark.parametrize(
    "dtype",
    few([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], [torch.int64, torch.uint8]),
    ids=str,
)
def test_bit_by_bit(dtype):
    """Of all numbers of the type, shifts below none and beyond its width; what is too large wraps around."""

    def step(x, s):
        shifted = (x << s, x >> s, s << 3, s >> 70, 1 << (x & 3), torch.bitwise_right_shift(100, s & 7))
        s = s ^ (s << 5)
        s = s ^ (s >> 3)
        return (shifted, x | 5, ~x & s, s * 107 + 3, -x - s), s

    ends = torch.iinfo(dtype)
    x = torch.cat([torch.arange(-5, 70), torch.randint(ends.min, ends.max, (77,))])
    x = stepnet.LoDTensor.from_lengths(x.to(dtype).view(-1, 4), [[17, 0, 1, 20]])
    state = torch.tensor([[1, 2, 7, 63], [64, 8, 31, 32], [3, 127, 15, 16], [ends.max, ends.min, 0, 5]])
    assert stepnet.explain(step, x, state.to(dtype)).executor == "c"
    agree(step, x, state.to(dtype), [])


def test_an_automaton():
    """Tables of whole numbers and of truths, by a state and a sign."""
    following, ends = torch.randint(0, 4, (4, 3)), torch.tensor([True, False, False, True])

    def step(x, state):
        state = following[state[0], x]
        return (ends[state], following.to(torch.int32)[state]), (state,)

    x, start = torch.randint(0, 3, (6, 2)), (torch.tensor([3, 1]),)
    assert stepnet.explain(step, x, start).executor == "c"
    agree(step, x, start, [])


def test_several_words_of_a_row():
    """As beams have them: looked up as if each was a row."""
    table, back = weights((WORDS, H), (H, H))
    table.requires_grad_(False)

    def step(x, state):
        h, words = state
        h = (
            torch.tanh(F.embedding(words.flatten(), table) + h.flatten(0, 1) @ back).view(-1, 3, H)
            + x[:, None]
        )
        return (h, words), (h, h[:, :, :5].argmax(2))

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, H, dtype=torch.float64), LENGTHS)
    start = torch.tensor([[0, 3, 10], [2, 2, 1], [0, 0, 0], [4, 5, 6], [1, 9, 8]])
    agree(step, x, (torch.zeros(5, 3, H, dtype=torch.float64), start), [back])


@pytest.mark.parametrize("many", [3, 8])
def test_words_of_a_row_and_what_is_computed_of_them(many):
    """Eight lines and more, of eight numbers and more, are looked up within the loop that reads them."""
    (table,) = weights((WORDS, 9))

    def step(x, state):
        word, h = state
        h = torch.tanh(F.embedding(word, table) * h + x[:, None])
        return (h,), ((word + 3 * h.argmax(2)) % WORDS, h)

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, 9, dtype=torch.float64), LENGTHS)
    start = torch.randint(WORDS, (5, many)), torch.randn(5, many, 9, dtype=torch.float64)
    agree(step, x, start, [table])


def test_gradients_of_a_table_are_the_same_every_time():
    (table,) = weights((3, H))

    def fed(x, state):
        (h,) = state
        h = torch.tanh(h + x + F.embedding((h[:, :3] + x[:, :3]).argmax(-1), table))
        return (h,), (h,)

    x, state = torch.randn(40, 16, H, dtype=torch.float64), (torch.zeros(16, H, dtype=torch.float64),)
    found = []
    for _ in range(3):
        (y,), _ = stepnet.recurrent(fed, x, state, backend="c")
        found.append(torch.autograd.grad(y.sum(), table)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    agree(fed, x, state, [table])


ARGUMENTS = {
    "ties": [2.0, 5.0, 5.0, 1.0, 5.0, 0.0],
    "first": [5.0, 5.0, 0.0, 0.0, 0.0, 0.0],
    "nan": [2.0, NAN, 9.0, NAN, INF, 0.0],
    "nan last": [2.0, -INF, 9.0, 1.0, INF, NAN],
    "all nan": [NAN] * 6,
    "all least": [-INF] * 6,
    "all most": [INF] * 6,
    "zeros": [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0],
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_argmax_and_argmin_are_torchs(name, dtype):
    def step(x, s):
        v = x + s
        flat = v.reshape(-1, 2, 3)
        found = v.argmax(-1), v.argmin(-1, keepdim=True), flat.argmax(-1), flat.argmin(2, keepdim=True)
        s = torch.where(found[0][:, None] > 99, s, torch.zeros_like(s))
        return found, (s,)

    def whole(x, state):
        y, new = step(x, state[0])
        return y, new

    x = torch.tensor([ARGUMENTS[name], ARGUMENTS["ties"]], dtype=dtype).expand(3, 2, 6)
    state = (torch.zeros(2, 6, dtype=dtype),)
    y, _ = stepnet.recurrent(whole, x, state, backend="c")
    expected, _ = stepnet.recurrent(whole, x, state, backend="naive")
    for a, b in zip(y, expected, strict=True):
        assert torch.equal(a[0], b[0])


@pytest.mark.parametrize("backend", ["c", "eager"])
def test_many_indices_a_row_and_tables_of_other_ranks(backend):
    table, one = weights((5, 4), (5, 1))

    def step(x, state):
        s, index = state
        picked = F.embedding(index, table)  # [n, 2, 4]
        s = torch.tanh(s + x + picked[:, 0] - picked[:, 1])
        first = (s @ table.T).argmax(-1)
        index = torch.stack([first, index[:, 0]], 1)
        more = F.embedding(first[:, None], one)[:, 0]
        return (s * more, index), (s, index)

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, 4, dtype=torch.float64), LENGTHS)
    start = torch.tensor([[0, 4], [1, 1], [2, 0], [3, 3], [4, 2]])
    agree(step, x, (torch.zeros(5, 4, dtype=torch.float64), start), [table, one], backend=backend)


def test_a_table_that_is_a_matrix_too():
    """Of any layout: its rows are looked up, and states are multiplied by it and by its transpose."""
    wide = torch.randn(H, WORDS, dtype=torch.float64).requires_grad_()
    table = wide.t()

    def step(x, state):
        h, word = state
        h = torch.tanh(F.embedding(word, table) + (h @ table.T) @ table + x)
        word = (h @ table.T).argmax(-1)
        return (h,), (h, word)

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, H, dtype=torch.float64), LENGTHS)
    start = torch.zeros(5, H, dtype=torch.float64), torch.tensor([0, 3, 10, 2, 2])
    agree(step, x, start, [wide])


PLACES = torch.tensor([3, 0, 5, 3, 1, 2])
MADE = {  # of a weight; the gradient of each is a sum over rows that is put at places
    "rows": lambda w: w[PLACES],
    "columns": lambda w: w[:, PLACES],
    "pairs": lambda w: w[PLACES[:, None], PLACES.flip(0)],
    "rows of flipped rows": lambda w: w[PLACES] + w[4:].flip(0).repeat(3, 1)[PLACES],
    "put": lambda w: w.index_put((PLACES,), w.flip(1), accumulate=True),
    "index_add": lambda w: w.index_add(1, PLACES, w),
    "diagonal": lambda w: w - torch.diag(w.diagonal()),
    "diagonal_scatter": lambda w: w.diagonal_scatter(w[0]),
    "qr": lambda w: torch.linalg.qr(w + 3 * torch.eye(H)).Q,
}


TOGETHER = [name for name in MADE if name != "qr"]
SETS = [TOGETHER, *([name] for name in MADE)]


@pytest.mark.parametrize("names", few(SETS, [TOGETHER]), ids=["together", *MADE])
def test_places_of_a_weight_before_rows_meet_it(names):
    (w,) = weights((H, H))

    def step(x, h):
        made = [MADE[name](w) for name in names]
        for m in made[:2]:
            x = x + (m @ h.T).T + (m @ h.unsqueeze(-1)).squeeze(-1)
        h = torch.tanh(sum((h @ m + (m * h.unsqueeze(1)).sum(-1) for m in made), x) / len(made))
        return h, h

    x, h = torch.randn(4, 3, H, dtype=torch.float64), torch.zeros(3, H, dtype=torch.float64)
    assert stepnet.explain(step, x, h).executor == "c"
    agree(step, x, h, [w], 1e-10)


@pytest.mark.parametrize("at", [-1, WORDS, 2**62])
def test_an_index_of_no_row(at):
    (table,) = weights((WORDS, H))

    def step(x, state):
        h, word = state
        h = torch.tanh(F.embedding(word, table) + h + x)
        return (h,), (h, torch.where(h[:, 0] > 2, word, word))

    x = torch.randn(6, 3, H, dtype=torch.float64)
    h = torch.zeros(3, H, dtype=torch.float64)
    stepnet.recurrent(step, x, (h, torch.tensor([0, 1, 2])), backend="c")
    with pytest.raises(IndexError):
        stepnet.recurrent(step, x, (h, torch.tensor([0, at, 2])), backend="naive")
    with pytest.raises(IndexError) as caught:
        stepnet.recurrent(step, x, (h, torch.tensor([0, at, 2])), backend="c")
    if isinstance(caught.value, StepIndexError):
        assert f"outside one of {WORDS} rows (test_c_lookup.py:" in str(caught.value)


def test_an_index_that_leaves_the_table_on_the_way():
    (table,) = weights((4, H))

    def step(x, state):
        h, count = state
        h = torch.tanh(F.embedding(torch.where(h[:, 0] > 9, count - 1, count), table) + h + x)
        return (h,), (h, count + torch.where(h[:, 0] > 9, 2, 1))

    h, count = torch.zeros(2, H, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    x = torch.randn(9, 2, H, dtype=torch.float64)
    agree(step, x[:4], (h, count), [table])
    with pytest.raises(StepIndexError, match="found no such row"):
        stepnet.recurrent(step, x, (h, count), backend="c")
    agree(step, x[:4], (h, count), [table])  # nothing is left of the error


def test_counts_and_choices():
    def step(x, state):
        h, count, last = state
        up = h[:, 0] > 0
        count = torch.where(up, count + 1, -count)
        last = torch.where((count > 2) & (last != 7), 7, count - last)
        h = torch.tanh(h + x / (2 + (count[:, None] > last[:, None]).to(x.dtype)))
        return (h, count, last), (h, count, last)

    x = stepnet.LoDTensor.from_lengths(torch.randn(18, 3, dtype=torch.float64), LENGTHS)
    zeros = torch.zeros(5, dtype=torch.int64)
    agree(step, x, (torch.zeros(5, 3, dtype=torch.float64), zeros, zeros + 3), [])


WHOLE = {
    "remainder": (lambda h, i: (i - 4) % 3, torch.int64),
    "int32": (lambda h, i: torch.where(h[:, 0] > 0, i, i + 1), torch.int32),
    "bytes that wrap": (lambda h, i: i * 3 + 50, torch.uint8),
    "small ones that wrap": (lambda h, i: i * 3 - 50, torch.int8),
    "argmax of counts": (lambda h, i: torch.stack([i, i + 1], 1).argmax(1) + (h[:, 0] > 0), torch.int64),
    "largest of counts": (lambda h, i: torch.stack([i, i * 2 - 5], 1).amax(1), torch.int64),
    "sums of counts": (lambda h, i: (h > 0).sum(1) + torch.stack([i, i], 1).sum(1), torch.int64),
}


@pytest.mark.parametrize("name", every(2, WHOLE))
def test_whole_numbers(name):
    change, dtype = WHOLE[name]

    def step(x, state):
        h, i = state
        i = change(h, i).to(dtype)
        h = torch.tanh(h + x * i[:, None])
        return (h,), (h, i)

    x, state = torch.randn(5, 2, 3), (torch.zeros(2, 3), torch.zeros(2, dtype=dtype))
    agree(step, x, state, [], 1e-5)


def test_a_divisor_that_may_be_0_is_left_to_torch():

    def step(x, state):
        h, i = state
        i = torch.remainder(i + 7, i + 2)
        h = torch.tanh(h + x * i[:, None])
        return (h,), (h, i)

    x, state = torch.randn(5, 2, 3), (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(Unsupported, match="may be 0"):
        stepnet.recurrent(step, x, state, backend="c")
    agree(step, x, state, [], 1e-5, backend="eager")


def test_picks_of_more_dimensions_than_c_counts_along_are_left_to_torch():
    def step(x, h):
        index = (x > 0).long().reshape(-1, *(1,) * 15, 2, 3)
        h = torch.tanh(h.reshape(index.shape).gather(-1, index).flatten(1) + x)
        return (h,), h

    x, h = torch.randn(5, 2, 6), torch.randn(2, 6)
    with pytest.raises(Unsupported, match="a gather of 17 dimensions"):
        stepnet.recurrent(step, x, h, backend="c")
    agree(step, x, h, [], 1e-5, backend="eager")


def test_names_that_the_text_uses_itself():
    (table,) = weights((4, H))

    def step(x, state):
        h = torch.tanh(F.embedding(state["h_row"], table) + state["wrong"] + x)
        word = h[:, :4].argmax(-1)
        return (h,), {"wrong": h, "h_row": word, "v_first": state["v_first"] * h}

    state = {
        "wrong": torch.zeros(2, H, dtype=torch.float64),
        "h_row": torch.tensor([3, 0]),
        "v_first": torch.ones(2, H, dtype=torch.float64),
    }
    x = torch.randn(5, 2, H, dtype=torch.float64)
    y, final = stepnet.recurrent(step, x, state, backend="c")
    expected, last = stepnet.recurrent(step, x, state, backend="naive")
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(final, last)
