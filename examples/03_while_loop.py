"""The while loop of Paddle's TensorArray documents (2017), almost as it was written there.

    step = Var(1)
    wloop = paddle.create_whileloop(loop_vars=[step])
    with wloop.frame():
        wloop.break_if(pd.equal(step, num_steps)
        pre_state = states.read(step - 1, default_state)
        step_input = step_inputs.read(step)
        state = pd.sigmoid(pd.matmul(U, pre_state) + pd.matmul(W, step_input))
        states.write(step, state)
        step_outputs.write(step, state)  # output state
    output = step_outputs.stack()

It departs from the document where that could not run: the frame gives the step a name, `with loop.frame() as
(s,)`; `loop.update(s, s + 1)` counts it, which nothing did there; and the step starts at 0, as the arrays do.

The frame is recorded once. It counts a step, reads at `step` and `step - 1` and writes at `step`, so it is a
scan and runs like one; a loop that is not runs step after step. Both can be trained.
"""

from __future__ import annotations

import torch
from torch import Tensor

import stepnet
from stepnet import TensorArray


def rnn(x: Tensor, U: Tensor, W: Tensor, default_state: Tensor) -> tuple[Tensor, str]:
    n = len(x)
    states = TensorArray(size=n)
    outputs = TensorArray(size=n)
    inputs = TensorArray(unstack_from=x)
    step = torch.tensor(0)
    loop = stepnet.create_whileloop(loop_vars=[step])
    with loop.frame() as (s,):
        loop.break_if(s == n)
        pre_state = states.read(s - 1, default_state)
        state = torch.sigmoid(torch.matmul(U, pre_state) + torch.matmul(W, inputs.read(s)))
        states.write(s, state)
        outputs.write(s, state)
        loop.update(s, s + 1)
    return outputs.stack(), loop.explain()


def collatz(start: Tensor) -> Tensor:
    """How many steps each number takes to reach 1: a condition per row stops each row for itself."""

    def body(n: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return stepnet.while_loop(lambda n, steps: n > 1, body, (start, torch.zeros_like(start)))[1]


def main() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(12, 3), torch.rand(12, 4)
    U = torch.randn(4, 4, requires_grad=True)
    W = torch.randn(4, 3, requires_grad=True)
    optimizer = torch.optim.Adam([U, W], lr=0.05)
    losses = []
    for _ in range(60):
        output, how = rnn(x, U, W, torch.zeros(4))
        loss = (output - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {how}")
    assert losses[-1] < 0.6 * losses[0]

    steps = collatz(torch.tensor([1, 6, 7, 27]))
    print(f"steps to 1: {steps.tolist()}")
    assert steps.tolist() == [0, 8, 16, 111]


if __name__ == "__main__":
    main()
