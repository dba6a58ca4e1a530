"""A step need not be a network: a Kalman filter over tracks of any lengths, its noise learnt by gradient.

Each track is a random walk seen through noise. The state is the filter's belief, a mean and a variance. The
step predicts, scores what it sees, and corrects. The two noises are found by making what was seen likely.
"""

from __future__ import annotations

import torch

import stepnet
from stepnet import LoDTensor

WALK, SENSOR = 0.3, 1.2  # the true standard deviations


def tracks(lengths: list[int]) -> LoDTensor:
    walks = LoDTensor.from_sequences([(WALK * torch.randn(n, 1)).cumsum(0) for n in lengths])
    return walks.map(lambda rows: rows + SENSOR * torch.randn_like(rows))


def main() -> None:
    torch.manual_seed(0)
    seen = tracks([30, 7, 50, 0, 45, 1, 20] * 12)
    noise = torch.zeros(2, requires_grad=True)  # logarithms of the two standard deviations

    def kalman(z, belief):
        mean, variance = belief
        walk, sensor = (2 * noise).exp()
        variance = variance + walk  # predict
        spread = variance + sensor
        surprise = 0.5 * ((z - mean) ** 2 / spread + spread.log())
        gain = variance / spread  # correct
        mean, variance = mean + gain * (z - mean), (1 - gain) * variance
        return surprise, (mean, variance)

    start = (torch.zeros(len(seen), 1), torch.zeros(len(seen), 1))
    optimizer = torch.optim.Adam([noise], lr=0.2)
    for _ in range(30):
        surprise, _ = stepnet.recurrent(kalman, seen, start)
        loss = surprise.values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    walk, sensor = noise.detach().exp().tolist()
    print(f"walk   {walk:.2f} (true {WALK})")
    print(f"sensor {sensor:.2f} (true {SENSOR})")
    assert abs(walk - WALK) < 0.1
    assert abs(sensor - SENSOR) < 0.1


if __name__ == "__main__":
    main()
