"""Truncated back-propagation in pieces: the loop by hand over each sequence says what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from stepnet import LoDTensor, cells, recurrent, truncated
from stepnet.errors import LoDError, StepError

DTYPE = torch.float64
F, H = 2, 3
CELL = cells.GRU(F, H, dtype=DTYPE)
LENGTHS = {"unsorted": [7, 0, 1, 4, 6], "one": [5], "none": [], "empty": [0, 0], "short": [1, 2]}


def by_hand(sequences, h0, k):
    """The loss, the last states and all gradients, a sequence at a time."""
    loss, finals = torch.zeros((), dtype=DTYPE), []
    for b, rows in enumerate(sequences):
        h = h0[b : b + 1]
        for t in range(len(rows)):
            if t and t % k == 0:
                h = h.detach()
            y, h = CELL(rows[t : t + 1], h)
            loss = loss + (y**3).sum()
        finals.append(h.detach())
    grads = torch.autograd.grad(
        loss + 0 * h0.sum() + 0 * sum(p.sum() for p in CELL.parameters()), [h0, *CELL.parameters()]
    )
    return loss, torch.cat([h0.detach()[:0], *finals]), grads


@pytest.mark.covering(2)
@pytest.mark.parametrize("at_once", [None, 1, 2, 9], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("case", LENGTHS)
def test_pieces_equal_the_loop_by_hand(case, rows, at_once):
    lengths = LENGTHS[case]
    x = LoDTensor.from_lengths(torch.randn(sum(lengths), F, dtype=DTYPE), [lengths])
    h0 = torch.randn(len(lengths), H, dtype=DTYPE, requires_grad=True)
    loss, finals, expected = by_hand(list(x), h0, rows)
    CELL.zero_grad()
    pieces, total = truncated(x, h0, rows=rows, at_once=at_once), 0.0
    for piece in pieces:
        assert len(piece.sequences) <= (at_once or len(lengths))
        y, piece.state = recurrent(CELL, piece.x, piece.state)
        own = (y.values**3).sum()
        own.backward()  # a piece holds a row at least
        total += own.item()
    assert total == pytest.approx(loss.item(), rel=1e-9)
    torch.testing.assert_close(pieces.state, finals, rtol=0, atol=1e-10)
    for leaf, grad in zip([h0, *CELL.parameters()], expected, strict=True):
        torch.testing.assert_close(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, grad)


def test_which_sequences_are_in_a_piece():
    x = LoDTensor.from_lengths(torch.arange(9.0)[:, None], [[2, 5, 2]])
    seen = []
    for piece in truncated(x, torch.zeros(3, 1), rows=2, at_once=2):
        y, piece.state = recurrent(lambda x, s: (x, s + x), piece.x, piece.state)
        seen.append((piece.sequences.tolist(), piece.starts.tolist(), y.values.flatten().tolist()))
    assert seen == [
        ([0, 1], [0, 0], [0.0, 1.0, 2.0, 3.0]),
        ([1, 2], [2, 0], [4.0, 5.0, 7.0, 8.0]),
        ([1], [4], [6.0]),
    ]


@pytest.mark.parametrize("axis", [0, 1])
def test_tensors_a_few_sequences_at_once(axis):
    x, h0 = torch.randn(3, 5, F, dtype=DTYPE), torch.randn(3, H, dtype=DTYPE)
    given = x if axis else x.transpose(0, 1)
    pieces, ys = truncated((given, given), h0, rows=2, at_once=2, axis=axis), [[], [], []]
    for piece in pieces:
        assert piece.x[0].shape[1 - axis] == len(piece.sequences) <= 2
        steps = piece.x[1].transpose(0, 1) if axis else piece.x[1]
        y, piece.state = recurrent(CELL, steps, piece.state)
        for i, sequence in enumerate(piece.sequences.tolist()):
            ys[sequence].append(y[:, i])
    y, last = recurrent(CELL, x.transpose(0, 1), h0)
    torch.testing.assert_close(torch.stack([torch.cat(each) for each in ys], 1), y)
    torch.testing.assert_close(pieces.state, last.detach())


def test_nested_sequences_are_cut_by_their_outermost():
    x = LoDTensor.from_lengths(torch.arange(8.0)[:, None], [[3, 1], [2, 0, 3, 3]])
    got = [piece_of(p) for p in truncated(x, (), rows=2)]
    assert got == [([[2, 1], [2, 0, 3]], [0, 1, 5, 6, 7]), ([[1], [3]], [2, 3, 4])]


def piece_of(piece):
    return piece.x.recursive_sequence_lengths(), piece.x.values.flatten().int().tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_tensors_and_packed_sequences(axis):
    x = torch.randn(2, 5, F, dtype=DTYPE) if axis else torch.randn(5, 2, F, dtype=DTYPE)
    rows = list(x) if axis else list(x.unbind(1))
    model = nn.GRU(F, H, batch_first=bool(axis)).to(DTYPE)
    packed = pack_sequence(rows)
    expected, h = model(x)
    got = []
    for given in (x, packed):
        pieces, ys = truncated({"x": given}, rows=2, axis=axis), []
        for piece in pieces:
            before = None if piece.state is None else piece.state[None]
            y, after = model(piece.x["x"], before)
            piece.state = after[0]
            ys.append(y if given is x else nn.utils.rnn.pad_packed_sequence(y, bool(axis))[0])
        got.append((torch.cat(ys, axis), pieces.state))
    for y, state in got:
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(state, h[0].detach())
        assert not state.requires_grad


def test_where_rows_of_a_packed_sequence_stand_is_found_once(monkeypatch):
    rows, looks, from_packed = torch.ones(9, 1, requires_grad=True), [], LoDTensor.from_packed
    monkeypatch.setattr(LoDTensor, "from_packed", lambda x: looks.append(x) or from_packed(x))
    pieces = truncated(pack_sequence([rows[:5].detach(), rows[5:].detach()])._replace(data=rows), rows=1)
    once = len(looks)
    for piece in pieces:
        piece.state = piece.x.data.detach()
        (2 * piece.x.data).sum().backward()
    assert len(looks) == once
    assert torch.equal(rows.grad, torch.full((9, 1), 2.0))


WRONG = {
    "rows": (lambda x: truncated(x, rows=0), StepError, "'rows' must be a positive whole number"),
    "at_once": (
        lambda x: truncated(x, rows=2, at_once=True),
        StepError,
        "'at_once' must be a positive whole",
    ),
    "no state": (lambda x: truncated(x, rows=2, at_once=1), StepError, "at_once= needs the state"),
    "x": (lambda x: truncated([1], rows=2), StepError, "cuts tensors, LoDTensors and PackedSequences"),
    "state": (lambda x: truncated(x, torch.zeros(3, 1), rows=2), StepError, "one row per sequence"),
    "layers first": (lambda x: truncated(x, torch.zeros(1, 2, 1), rows=2), StepError, r"transpose\(0, 1\)"),
    "lengths": (lambda x: truncated((x, x[:1]), rows=2), LoDError, "the same lengths"),
    "not handed on": (lambda x: list(truncated(x, torch.zeros(2, 1), rows=1)), StepError, "not handed on"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call(LoDTensor.from_lengths(torch.zeros(4, 1), [[3, 1]]))


def test_the_last_state_is_the_callers():
    x, zeros = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]]), torch.zeros(2, 1)
    pieces = truncated(x, zeros, rows=2)
    for piece in pieces:
        pieces_before = pieces.state
        _, piece.state = recurrent(lambda x, s: (s + x, s + x), piece.x, piece.state)
        pieces_before.fill_(9)
    pieces.state.fill_(9)
    assert pieces.state.tolist() == [[3.0], [1.0]]


@pytest.mark.parametrize("at_once", [None, 2])
def test_what_a_piece_says_of_itself_is_the_callers(at_once):
    """To write to: which pieces come next does not stand on it."""
    x = LoDTensor.from_lengths(torch.arange(9.0)[:, None], [[4, 0, 2, 3]])

    def pieces(write):
        seen = []
        for piece in truncated(x, torch.zeros(4, 1), rows=2, at_once=at_once):
            seen.append([piece.sequences.tolist(), piece.starts.tolist(), piece.x.values.tolist()])
            piece.state = piece.state + 1
            if write:
                piece.sequences += 1
                piece.starts += 1
        return seen

    assert pieces(True) == pieces(False)


@pytest.mark.parametrize("first", [torch.int64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("at_once", [None, 2])
def test_a_state_becomes_of_another_type(first, at_once):
    """As in the loop by hand; what was kept was rounded to the type of the initial one."""
    rows = [torch.rand(n, dtype=DTYPE) for n in (5, 2, 0, 3)]
    pieces = truncated(LoDTensor.from_sequences(rows), torch.ones(4, dtype=first), rows=2, at_once=at_once)
    for piece in pieces:
        piece.state = piece.state + torch.stack([each.sum() for each in piece.x])
    assert pieces.state.dtype is DTYPE
    torch.testing.assert_close(pieces.state, torch.stack([1 + each.sum() for each in rows]))


def test_a_state_that_grows():
    """As what attention keeps of the steps before: with tensors, for sequences of one length have as much."""
    x = torch.randn(5, 2, F, dtype=DTYPE)
    pieces: Any = truncated(x, x.new_zeros(2, 0, F), rows=2)
    for piece in pieces:
        piece.state = torch.cat([piece.state, piece.x.transpose(0, 1)], 1)
    assert torch.equal(pieces.state, x.transpose(0, 1))
    pieces = truncated(LoDTensor.from_lengths(torch.zeros(4, 1), [[3, 1]]), torch.zeros(2, 0), rows=2)
    with pytest.raises(StepError, match="has another shape than that of the others"):
        hand_on(pieces, lambda state: state.new_zeros(len(state), state.shape[1] + 1))


def test_a_state_that_is_nested_otherwise():
    pieces: Any = truncated(torch.zeros(4, 2, 1), rows=2)
    with pytest.raises(StepError, match="nested in another way"):
        hand_on(pieces, lambda state: torch.zeros(2) if state is None else (torch.zeros(2),))


def hand_on(pieces, change):
    for piece in pieces:
        piece.state = change(piece.state)
