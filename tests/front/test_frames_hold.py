"""In a frame: what arrays of a frame inside hold, arrays of one step, topologies; a few turns unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor, Memory, RecurrentOp, Scope, Tape, TensorArray, layers, sequence_pool
from stepnet.errors import StepError, TapeError
from stepnet.layers import Dense, Integer, Sequence

BUILDS = False
LENGTHS = [[2, 0, 3], [3, 6, 2, 1, 4]]


def frame(turns: Any, body: Callable[..., None]) -> Any:
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(s == (turns() if callable(turns) else turns))
        body(s)
        loop.update(s, s + 1)
    return loop


def nested(inner: Any, outer: Any, x: Tensor, ends: Callable[[Any, int], Any]) -> tuple[Any, Any, Any]:
    """A recurrence over the end states of others: outer states, and the two loops."""
    blocks, states, loops = TensorArray(unstack_from=x), TensorArray(), []
    boot, first = x.new_zeros(x.shape[2], 4), x.new_zeros(x.shape[2], 5)

    def block(s: Any) -> None:
        rows, own = TensorArray(unstack_from=blocks.read(s)), TensorArray()

        def word(t: Any) -> None:
            own.write(t, inner(rows.read(t), own.read(t - 1, boot)))

        loops.append(frame(rows.size, word))
        states.write(s, outer(ends(own, x.shape[1]), states.read(s - 1, first)))

    loop = frame(blocks.size(), block)
    return states.stack(), loop, loops[0]


def by_hand(inner: Any, outer: Any, x: Tensor) -> Tensor:
    h, states = x.new_zeros(x.shape[2], 5), []
    for block in x:
        g = x.new_zeros(x.shape[2], 4)
        for row in block:
            g = inner(row, g)
        h = outer(g, h)
        states.append(h)
    return torch.stack(states)


def check(found: Tensor, expected: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    grads = [torch.autograd.grad((y * weights).sum(), wanted) for y in (found, expected)]
    torch.testing.assert_close(*grads)


CELLS = {"GRUCell": nn.GRUCell, "RNNCell": nn.RNNCell}
ENDS: dict[str, Any] = {
    "stack": lambda own, turns: own.stack()[-1],
    "read": lambda own, turns: own.read(turns - 1),
    "concat": lambda own, turns: own.concat()[-own.read(0).shape[0] :],
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("turns", [3, 9])
def test_cells_that_ask_for_the_rank_take_what_an_inner_frame_wrote(cell, ends, turns):
    inner, outer = cell(3, 4).double(), cell(4, 5).double()
    x = torch.randn(5, turns, 2, 3, dtype=torch.float64, requires_grad=True)
    found, loop, within = nested(inner, outer, x, ends)
    check(found, by_hand(inner, outer, x), (x, *inner.parameters(), *outer.parameters()))
    assert "step by step" not in within.explain()
    if turns > 8:
        assert "step by step, as recorded" in loop.explain()
    elif ends is not ENDS["concat"]:
        assert "raised to a scan" in loop.explain()


def test_an_inner_array_holds_other_values_than_in_the_same_frame_before():
    """Frames are remembered, with what their calls give: also by what an inner frame reads from outside."""
    for size in (2, 3):
        table, found = TensorArray(unstack_from=torch.ones(4, size)), TensorArray()

        def turn(s: Any, table: Any = table, found: Any = found) -> None:
            own = TensorArray()
            frame(4, lambda t: own.write(t, table.read(t) * 2))
            found.write(s, own.stack().sum(0) + torch.zeros(own.read(0).shape[0]))

        frame(3, turn)
        torch.testing.assert_close(found.stack(), torch.full((3, size), 8.0))


def test_a_hierarchy_over_nested_sequences():
    inner, outer = nn.GRUCell(3, 4).double(), nn.GRUCell(4, 5).double()
    rows = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    sentences, at = TensorArray.unpack(LoDTensor.from_lengths(rows, LENGTHS), 0)
    states = TensorArray()

    def sentence(s: Any) -> None:
        words, places = TensorArray.unpack(sentences.read(s), 0)
        own = TensorArray()

        def word(t: Any) -> None:
            row = words.read(t)
            own.write(t, inner(row, own.read(t - 1, rows.new_zeros(3, 4))[: row.shape[0]]))

        frame(words.size, word)
        read = sequence_pool(own.pack(0, places), "sum")
        states.write(s, outer(read, states.read(s - 1, rows.new_zeros(3, 5))[: read.shape[0]]))

    frame(sentences.size(), sentence)
    expected, parts = [], iter(rows.split(LENGTHS[1]))
    for count in LENGTHS[0]:
        h = rows.new_zeros(1, 5)
        for _ in range(count):
            g, total = rows.new_zeros(1, 4), rows.new_zeros(1, 4)
            for row in next(parts):
                g = inner(row[None], g)
                total = total + g
            h = outer(total, h)
            expected.append(h)
    wanted = rows, *inner.parameters(), *outer.parameters()
    check(states.pack(0, at).values, torch.cat(expected), wanted)


def test_sizes_of_what_an_inner_frame_wrote_are_those_of_each_step():
    blocks, found = TensorArray(unstack_from=torch.ones(3, 4, 2)), TensorArray()

    def turn(s: Any) -> None:
        own, rows = TensorArray(), TensorArray(unstack_from=blocks.read(s))
        frame(s + 1, lambda t: own.write(t, rows.read(t)))
        found.write(s, own.stack().sum(0) / own.size() + own.concat().shape[0])

    frame(3, turn)
    assert found.stack()[:, 0].tolist() == [3, 5, 7]


def test_an_array_is_made_and_written_in_one_step():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    rows, found = TensorArray(unstack_from=x), TensorArray()

    def turn(s: Any) -> None:
        row, own = rows.read(s), TensorArray()
        own.write(x.new_zeros(3))
        own.write(row)
        own[3] = row.sin()
        own.write(2, row * 2, False)
        found.write(s, own.stack(1).sum(1) * own.size() + own.read(2))
        own.unstack(row)  # filled anew
        found.write(s, found.read(s) + own.read(0))

    frame(5, turn)
    check(found.stack(), (x * 3 + x.sin()) * 4 + x * 2 + x[:, :1], (x,))


def test_a_frame_inside_goes_on_with_an_array_that_the_step_began():
    x = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
    blocks, found = TensorArray(unstack_from=x), TensorArray()

    def turn(s: Any) -> None:
        rows, own = TensorArray(unstack_from=blocks.read(s)), TensorArray()
        own.write(0, rows.read(0) * 3)
        frame(3, lambda t: own.write(t + 1, own.read(t) * 0.5 + rows.read(t + 1)))
        found.write(s, own.stack())

    frame(5, turn)
    h = [x[:, 0] * 3]
    for t in range(3):
        h.append(h[-1] * 0.5 + x[:, t + 1])
    check(found.stack(), torch.stack(h, 1), (x,))


def test_an_array_that_is_made_inside_and_written_at_the_step_is_refused():
    with pytest.raises(StepError, match="made outside the frame that fills it"):
        frame(3, lambda s: TensorArray().write(s, torch.ones(1)))


def test_a_topology_is_called_in_a_frame():
    with Tape() as tape:
        word, before = layers.data("word", Integer(9)), layers.data("before", Dense(4))
        state = layers.fc([layers.embedding(word, 3), before], 4, act="tanh")
        layers.classification_error(state, layers.data("label", Integer(4)), name="error")
        cost = layers.fc(state, 2)
    net, words = tape.topology(state), torch.randint(9, (5, 2))
    steps, states = TensorArray(unstack_from=words), TensorArray()

    def turn(s: Any) -> None:
        h, _ = net(word=steps.read(s), before=states.read(s - 1, torch.zeros(2, 4)))
        states.write(s, h)

    frame(5, turn)
    h, expected = torch.zeros(2, 4), []
    for row in words:
        h, _ = net(word=row, before=h)
        expected.append(h)
    check(states.stack(), torch.stack(expected), tuple(net.parameters()))
    wide = TensorArray(unstack_from=torch.zeros(5, 2, 3))
    with pytest.raises(TapeError, match=r"'before' is Dense\(size=4"):
        frame(5, lambda s: net(word=steps.read(s), before=wide.read(s)))
    with pytest.raises(TapeError, match=r"an evaluator takes in numbers.*\n.*skip=\['error'\]"):
        frame(
            5,
            lambda s: tape.topology(cost)(word=steps.read(s), before=torch.zeros(2, 4), label=steps.read(s)),
        )


def test_a_topology_with_a_group_is_called_in_a_frame():
    def step(word: Any) -> Any:
        return layers.fc([word, layers.memory("h", size=4)], 4, act="tanh", name="h")

    with Tape() as tape:
        words = layers.data("words", Sequence(Dense(3)))
        net = tape.topology(layers.last(layers.recurrent_group(step, words)))
    x = LoDTensor.from_lengths(torch.randn(16, 3, requires_grad=True), LENGTHS)
    sentences, at = TensorArray.unpack(x, 0)
    found = TensorArray()
    frame(sentences.size(), lambda s: found.write(s, net(words=sentences.read(s))[0]))
    expected, _ = net(words=LoDTensor.from_lengths(x.values, LENGTHS[1:]))
    check(found.pack(0, at).values, expected, (x.values, *net.parameters()))


def test_scopes_of_an_op_in_a_frame_are_not_kept_and_it_says_so():
    def stepnet_(scope: Scope) -> None:
        scope["h"] = scope["x"] + scope["before"]

    op = RecurrentOp(stepnet_, ["x"], ["h"], [Memory("h", "before", "boot")])

    def turn(s: Any) -> None:
        op.run(Scope({"x": torch.ones(5, 2, 3), "boot": torch.ones(2, 3) * s}))
        op.scopes[2]["h"]

    with pytest.raises(StepError, match="this run kept no scopes of its steps"):
        frame(3, turn)


class Hierarchy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.GRUCell(3, 4), nn.GRUCell(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return nested(self.inner, self.outer, x, ENDS["stack"])[0]


def test_frames_with_cells_are_saved_as_loops_of_any_length(tmp_path):
    model = Hierarchy()
    stepnet.openvino.save(model, tmp_path / "model.xml", (torch.randn(5, 4, 2, 3),))
    again = stepnet.openvino.load(tmp_path / "model.xml")
    for sizes in ((5, 4), (3, 11), (7, 1)):
        x = torch.randn(*sizes, 2, 3)
        torch.testing.assert_close(again(x)[0], by_hand(model.inner, model.outer, x), rtol=1e-4, atol=1e-5)
