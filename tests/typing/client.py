"""A program as users write it, with types and no cast: `pyright` and `mypy` in their strict modes take it."""

# pyright: strict

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from typing_extensions import assert_type

import stepnet
from stepnet import LoDTensor, Recurrent, Resets, Scope, recurrent, truncated, while_loop
from stepnet.executors import BackendName

LSTMState = tuple[Tensor, Tensor]


def tanh_step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(x + h)
    return h, h


def two_states(x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
    h, c = state
    return h, (h + x, c)


def attending(x: Tensor, h: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return h, h + x + memory


def two_results(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (x, h), h


def by_sentence(words: LoDTensor, h: Tensor) -> tuple[Tensor, Tensor]:
    _, h = recurrent(tanh_step, words, h)
    return h, h


def counting(_: None, n: Tensor) -> tuple[Tensor, Tensor]:
    return n, n + 1


class Counter:
    """A step with an initial state of its own."""

    def __call__(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x + n, n + 1

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)


x = LoDTensor.from_lengths(torch.ones(4, 1), [[3, 1]])
h0 = torch.zeros(2, 1)

# What comes out is of the kind of what goes in; the state is that of the step.
y, h = recurrent(tanh_step, x, h0)
assert_type(y, LoDTensor)
assert_type(h, Tensor)
assert_type(recurrent(tanh_step, torch.zeros(3, 2, 1), h0), tuple[Tensor, Tensor])
packed = pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
assert_type(recurrent(tanh_step, packed, h0), tuple[PackedSequence, Tensor])
assert_type(recurrent(two_states, x, (h0, h0)), tuple[LoDTensor, LSTMState])
assert_type(recurrent(Counter(), x), tuple[LoDTensor, Tensor])
assert_type(recurrent(stepnet.cells.LSTM(1, 2), x), tuple[LoDTensor, LSTMState])
assert_type(recurrent(stepnet.cells.GRU(1, 2), x, reverse=True), tuple[LoDTensor, Tensor])
assert_type(recurrent(nn.LSTMCell(1, 2), x), tuple[LoDTensor, LSTMState])
assert_type(recurrent(nn.GRUCell(1, 2), x, backend="naive"), tuple[LoDTensor, Tensor])
assert_type(recurrent(attending, x, h0, static=h0), tuple[LoDTensor, Tensor])
assert_type(recurrent(counting, None, h0, steps=3), tuple[Tensor, Tensor])
assert_type(recurrent(counting, state=h0, steps=[3, 1]), tuple[LoDTensor, Tensor])
first: Tensor = recurrent(tanh_step, x, h0, scopes=True)[2][0]["h"]
assert_type(recurrent(two_states, x, (h0, h0), scopes=True), tuple[LoDTensor, LSTMState, list[Scope]])
starts = torch.tensor([True, False, True, True])
assert_type(recurrent(tanh_step, x, h0, resets=starts), tuple[LoDTensor, Tensor])
assert_type(recurrent(tanh_step, x, h0, resets=x.with_values(starts)), tuple[LoDTensor, Tensor])
assert_type(recurrent(tanh_step, x, h0, resets=Resets(done=starts)), tuple[LoDTensor, Tensor])
text = LoDTensor.from_lengths(torch.ones(4, 1), [[2], [3, 1]])
assert_type(recurrent(by_sentence, text, torch.zeros(1, 1), level=0), tuple[LoDTensor, Tensor])
recurrent(tanh_step, x, h0, backend=BackendName("naive"))

# What a step is explained by has an executor; a model has recurrences.
assert_type(stepnet.explain(tanh_step, x, h0), stepnet.Explanation)
assert_type(stepnet.explain(attending, x, h0, static=h0), stepnet.Explanation)
assert_type(stepnet.explain(nn.GRUCell(1, 1), x), stepnet.Explanation)
assert_type(stepnet.explain(Recurrent(stepnet.cells.GRU(1, 1)), x, backend="eager"), stepnet.Explanation)
assert_type(stepnet.explain(stepnet.nn.GRU(1, 1), x), stepnet.Explanation | stepnet.ModelExplanation)

# Modules are called as what they are.
assert_type(Recurrent(tanh_step)(x, h0), tuple[LoDTensor, Tensor])
assert_type(Recurrent(nn.LSTMCell(1, 2))(x), tuple[LoDTensor, LSTMState])
assert_type(Recurrent(stepnet.cells.GRU(1, 2), backend="eager")(x), tuple[LoDTensor, Tensor])
assert_type(Recurrent(tanh_step)(x, h0, resets=starts), tuple[LoDTensor, Tensor])
assert_type(Recurrent(counting)(None, h0, steps=3), tuple[Tensor, Tensor])
assert_type(Recurrent(two_states, scopes=True)(x, (h0, h0))[1:], tuple[LSTMState, list[Scope]])
both: tuple[LoDTensor, LoDTensor] = Recurrent(two_results)(x, h0)[0]
assert_type(stepnet.nn.LSTM(1, 2)(x), tuple[LoDTensor, LSTMState])
assert_type(stepnet.nn.GRU(1, 2)(torch.zeros(3, 2, 1)), tuple[Tensor, Tensor])
assert_type(stepnet.nn.RNN(1, 2)(packed), tuple[PackedSequence, Tensor])
output, _ = stepnet.nn.Stack([stepnet.cells.GRU(1, 2)])(x)
assert_type(output, LoDTensor)


class Layer(Recurrent[Tensor]):
    """A module by its state."""

    def __init__(self) -> None:
        super().__init__(tanh_step, reverse=True)


assert_type(Layer()(x, h0), tuple[LoDTensor, Tensor])

# Pieces are like the batch that they are of.
for piece in truncated(x, h0, rows=2):
    assert_type(piece.x, LoDTensor)
    rows, piece.state = recurrent(tanh_step, piece.x, piece.state)
    assert_type(rows, LoDTensor)
for begun in truncated(x, rows=2):
    rows, begun.state = Recurrent(nn.GRUCell(1, 2))(begun.x, begun.state)

# Loops keep the types of their variables.
step, total = while_loop(
    lambda i, s: i < 3, lambda i, s: (i + 1, s + i), (torch.tensor(0), torch.tensor(0.0))
)
assert_type(step, Tensor)


def framed(x: Tensor, h: Tensor) -> Tensor:
    """What a frame gives stands for tensors."""
    steps, states = stepnet.TensorArray(unstack_from=x), stepnet.TensorArray()
    loop = stepnet.create_whileloop([torch.tensor(0)])
    with loop.frame() as (s,):
        loop.break_if(~(s < steps.size()))
        states.write(torch.tanh(states.read(s - 1, h) + steps.read(s)))
        loop.update(s, s + 1)
    assert_type(loop.results, tuple[Tensor, ...])
    return states.stack()


# A LoDTensor is one after an operator, a slice, a change of rows.
assert_type(y + 1, LoDTensor)
assert_type(2 * -y, LoDTensor)
assert_type(y[1:], LoDTensor)
assert_type((x == y) & (x != 1), LoDTensor)
assert_type(y.masked_fill(y > 0, 0.0).double().detach().requires_grad_(), LoDTensor)
assert_type(y.map(torch.relu).values, Tensor)
assert_type(stepnet.sequence_softmax(y), LoDTensor)
head = nn.Linear(1, 1)
assert_type(y.map(head).with_values(y.values), LoDTensor)


# Parts of the package are seen by its name alone.
assert_type(list(stepnet.data.RowBudgetSampler(x.lengths(), rows=4)), list[list[int]])
assert_type(LoDTensor.from_sequences([[1.0], []]), LoDTensor)


def read_and_run(name: str, x: Tensor) -> Tensor:
    """What is read from a file gives tensors, by place or by name."""
    assert_type(stepnet.openvino.load(name)(x)["y"], Tensor)
    return stepnet.onnx.load(name)(x=x)[0]
