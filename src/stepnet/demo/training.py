"""Train the demo's classifier on the Japanese Vowels data.

The settings below were chosen on the training utterances alone: 20 a speaker to train on, the other 10 to
judge by, the mean over four random splits. The test utterances played no part in it, and no epoch is picked
by them: what counts is the network after the last epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.datasets import JapaneseVowels, Split

from .model import SpeakerNet

HIDDEN = 64
BATCH = 32  # utterances
LEARNING_RATE = 4e-3  # its peak: it rises for a third of the time, then falls to zero along a cosine
WEIGHT_DECAY = 0.01
NOISE = 0.4  # added to the frames in training, in standard deviations of each feature
DROPOUT = 0.3
LABEL_SMOOTHING = 0.1


@dataclass
class Run:
    """What came of training with one seed."""

    seed: int
    loss: list[float] = field(default_factory=list)
    """Mean training loss of each epoch."""
    test_accuracy: list[float] = field(default_factory=list)
    """After each epoch, 0 to 1."""
    predictions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """The speaker named for each test utterance after the last epoch, int64 [utterances]."""

    @property
    def accuracy(self) -> float:
        """On the test utterances, after the last epoch, 0 to 1."""
        return self.test_accuracy[-1]


def normalise(data: JapaneseVowels) -> JapaneseVowels:
    """Each feature less its mean, over its standard deviation; both are those of the training frames."""
    frames = data.train.x.values
    mean, deviation = frames.mean(0), frames.std(0)

    def scaled(split: Split) -> Split:
        return Split(split.x.map(lambda values: (values - mean) / deviation), split.labels)

    return JapaneseVowels(scaled(data.train), scaled(data.test), data.speakers)


def train(
    data: JapaneseVowels, seed: int, epochs: int, *, on_epoch: Callable[[Run], None] = lambda run: None
) -> Run:
    """Train one network on normalised data; `on_epoch` is called with the run so far after each epoch."""
    torch.manual_seed(seed)
    run = Run(seed)
    features = data.train.x.values.shape[1]
    net = SpeakerNet(features, HIDDEN, data.speakers, noise=NOISE, dropout=DROPOUT)
    batches = -(-len(data.train.x) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * batches)

    for _ in range(epochs):
        net.train()
        total = 0.0
        for chosen in torch.randperm(len(data.train.x)).split(BATCH):
            scores = net(data.train.x.select_sequences(chosen))
            loss = F.cross_entropy(scores, data.train.labels[chosen], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)

        net.eval()
        with torch.no_grad():
            run.predictions = net(data.test.x).argmax(dim=1)
        run.loss.append(total / len(data.train.x))
        run.test_accuracy.append((run.predictions == data.test.labels).float().mean().item())
        on_epoch(run)
    return run


def confusion(runs: list[Run], data: JapaneseVowels) -> Tensor:
    """How often each speaker (row) was named as each (column), over all runs: int64 [speakers, speakers]."""
    n = data.speakers
    pairs = torch.cat([data.test.labels * n + run.predictions for run in runs])
    return torch.bincount(pairs, minlength=n * n).view(n, n)
