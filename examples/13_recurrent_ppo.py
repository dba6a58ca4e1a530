"""Recurrent PPO: the episodes of a rollout run side by side, as sequences of their own.

The usual update loops over the steps of the rollout and sets the states of environments that began anew to
zero. Here both are written, compared, and timed; then an agent is trained that must remember a sign until its
episode ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import stepnet
from stepnet import Resets, cells

STEPS, ENVIRONMENTS, HIDDEN = 64, 8, 32
LONGEST = 8  # steps of an episode

State = tuple[Tensor, Tensor]


class Remember:
    """Many episodes at once: a sign at the first step, a bell at the last, which asks for the sign."""

    def __init__(self, n: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.sign, self.left = torch.zeros(n), torch.zeros(n, dtype=torch.int64)
        self.first = torch.ones(n, dtype=torch.bool)
        self._begin()

    def _begin(self) -> None:
        new = torch.randint(0, 2, self.sign.shape, generator=self.generator) * 2.0 - 1.0
        length = torch.randint(2, LONGEST + 1, self.left.shape, generator=self.generator)
        self.sign, self.left = self.sign.where(~self.first, new), self.left.where(~self.first, length)

    def see(self) -> Tensor:
        """[n, 2]: the sign, in the first step only; the bell, in the last."""
        return torch.stack([self.sign * self.first, (self.left == 1).float()], -1)

    def act(self, action: Tensor) -> Tensor:
        """The rewards. `first` says then which episodes are new."""
        reward = (self.left == 1) * self.sign * (action * 2.0 - 1.0)
        self.left = self.left - 1
        self.first = self.left == 0
        self._begin()
        return reward


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.heads = cells.LSTM(2, HIDDEN), nn.Linear(HIDDEN, 3)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, state = self.cell(x, state)
        return self.heads(h), state  # two logits and a value

    def initial_state(self, n: int) -> State:
        return self.cell.initial_state(n)


class Rollout(NamedTuple):
    """Of every step of every environment, [STEPS, ENVIRONMENTS, ...]; the states at its beginning; what the
    agent expects to come after it, [ENVIRONMENTS]."""

    x: Tensor
    first: Tensor
    last: Tensor
    action: Tensor
    chance: Tensor
    value: Tensor
    reward: Tensor
    state: State
    beyond: Tensor


Unroll = Callable[[Agent, Rollout], Tensor]


def by_loop(agent: Agent, rollout: Rollout) -> Tensor:
    """Step after step; where an episode begins, the state is set to zero."""
    state, out = rollout.state, []
    for x, first in zip(rollout.x, rollout.first, strict=True):
        h, c = (leaf * (~first)[:, None] for leaf in state)
        y, state = agent(x, (h, c))
        out.append(y)
    return torch.stack(out)


def by_resets(agent: Agent, rollout: Rollout) -> Tensor:
    """All episodes side by side."""
    return stepnet.recurrent(agent, rollout.x, rollout.state, resets=Resets(is_init=rollout.first))[0]


@torch.no_grad()
def play(agent: Agent, world: Remember, state: State) -> tuple[Rollout, State]:
    steps, begin = [], state
    for _ in range(STEPS):
        x, first = world.see(), world.first
        h, c = (leaf * (~first)[:, None] for leaf in state)
        y, state = agent(x, (h, c))
        chances = y[:, :2].log_softmax(-1)
        action = chances.exp().multinomial(1)
        reward = world.act(action[:, 0])
        steps.append((x, first, world.first, action, chances.gather(-1, action), y[:, 2], reward))
    beyond = agent(world.see(), state)[0][:, 2]
    return Rollout(*map(torch.stack, zip(*steps, strict=True)), begin, beyond), state


def returns(rollout: Rollout) -> Tensor:
    """What comes from each step to the end of its episode, later rewards for less."""
    gain, gains = rollout.beyond, []
    for reward, last in zip(rollout.reward.flip(0), rollout.last.flip(0), strict=True):
        gain = reward + 0.95 * gain * ~last
        gains.append(gain)
    return torch.stack(gains[::-1])


def loss_of(agent: Agent, rollout: Rollout, wanted: Tensor, unroll: Unroll) -> Tensor:
    """The clipped loss of PPO."""
    y = unroll(agent, rollout)
    chances, value = y[..., :2].log_softmax(-1), y[..., 2]
    better = wanted - rollout.value
    better = ((better - better.mean()) / better.std())[..., None]
    ratio = (chances.gather(-1, rollout.action) - rollout.chance).exp()
    gained = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
    entropy = -(chances.exp() * chances).sum(-1).mean()
    return (value - wanted).square().mean() / 2 - gained - 0.01 * entropy


def timed(agent: Agent, rollout: Rollout, unroll: Unroll) -> tuple[float, list[Tensor]]:
    """Seconds of one loss and its gradients, the best of some; and the gradients."""
    seconds, grads, wanted = [], [], returns(rollout)
    for _ in range(4):  # the first one compiles the step
        start = time.perf_counter()
        grads = list(torch.autograd.grad(loss_of(agent, rollout, wanted, unroll), list(agent.parameters())))
        seconds.append(time.perf_counter() - start)
    return min(seconds), grads


def main() -> None:
    torch.manual_seed(0)
    agent, world = Agent(), Remember(ENVIRONMENTS, seed=0)
    state = agent.initial_state(ENVIRONMENTS)
    rollout, state = play(agent, world, state)
    (slow, expected), (fast, got) = (timed(agent, rollout, unroll) for unroll in (by_loop, by_resets))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
    print(
        f"an update of {STEPS} steps of {ENVIRONMENTS} environments: {1e3 * slow:.1f} ms by the masked loop,"
    )
    print(f"{1e3 * fast:.1f} ms by resets: {slow / fast:.1f} times as fast, the same gradients")
    optimizer = torch.optim.Adam(agent.parameters(), 1e-2)
    for update in range(1, 7):
        rollout, state = play(agent, world, state)
        wanted = returns(rollout)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(agent, rollout, wanted, by_resets).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if update in (1, 6):
            bells = (rollout.x[..., 1] == 1).sum()
            print(f"update {update}: a reward of {(rollout.reward.sum() / bells).item():+.2f} an episode")


if __name__ == "__main__":
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a step of 8 rows is too small for more
    main()
    torch.set_num_threads(threads)
