"""Attention over a ragged memory, inside the step: an encoder and a decoder learn to reverse sequences.

The encoder reads words of any number, from the last to the first. At each step the decoder looks at all that
the encoder said of its own sequence, and at nothing else: the memory is a LoDTensor, each sequence as long as
it is, of which the step sees the rows of the sequences that still run. One step trains and generates.

    python examples/06_attention.py          sequences of 1 or 2 words, a few seconds
    python examples/06_attention.py --long   sequences of 1 to 10 words, a quarter of a minute of one core
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor

EDGE = 0  # the word that begins and ends a sequence
WORDS = 10
ROWS = 128  # of a batch


class Reverser(nn.Module):
    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, size)
        self.encoder = nn.GRUCell(size, size)
        self.query = nn.Linear(size, size)
        self.decoder = nn.GRUCell(2 * size, size)
        self.out = nn.Linear(size, WORDS)

    def encode(self, words: LoDTensor) -> tuple[LoDTensor, Tensor]:
        return stepnet.recurrent(self.encoder, words.map(self.embed), reverse=True)

    def step(self, word: Tensor, h: Tensor, memory: Any) -> tuple[Tensor, Tensor]:
        """Scores of each next word. Of the memory a step sees rows, [n, L, size], and a mask, [n, L]."""
        weights = (memory.rows * self.query(h).unsqueeze(1)).sum(2)
        weights = weights.masked_fill(~memory.mask, -torch.inf).softmax(1)
        context = (memory.rows * weights.unsqueeze(2)).sum(1)
        h = self.decoder(torch.cat([self.embed(word), context], 1), h)
        return self.out(h), h

    def forward(self, words: LoDTensor, before: LoDTensor) -> Tensor:
        """Scores of each next word, given the right words before it: [rows of before, WORDS]."""
        memory, last = self.encode(words)
        scores, _ = stepnet.recurrent(self.step, before, last, static=memory)
        return scores.values

    def generate(self, words: LoDTensor, max_length: int) -> LoDTensor:
        memory, last = self.encode(words)
        how = {"bos": EDGE, "eos": EDGE, "max_length": max_length}
        return stepnet.decode.greedy(self.step, last, static=memory, **how)[0]


def draw(count: int, longest: int) -> LoDTensor:
    lengths = torch.randint(1, longest + 1, (count,))
    return LoDTensor.from_lengths(torch.randint(1, WORDS, (int(lengths.sum()),)), [lengths])


def exact(model: Reverser, words: LoDTensor, longest: int) -> float:
    """The share of sequences reversed without a single mistake."""
    with torch.no_grad():
        found = model.generate(words, longest + 1)
    right = [torch.equal(a, b) for a, b in zip(found, stepnet.sequence_reverse(words), strict=True)]
    return sum(right) / len(right)


def main(longest: int, batches: int) -> None:
    torch.manual_seed(0)
    held_out = draw(500, longest)
    model = Reverser()
    optimizer = torch.optim.Adam(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=batches, pct_start=0.1, cycle_momentum=False
    )
    begin = time.perf_counter()
    for _ in range(batches):
        words = draw(ROWS, longest)
        edges = LoDTensor.from_lengths(torch.full((ROWS,), EDGE), [[1] * ROWS])
        mirrored = stepnet.sequence_reverse(words)
        before = stepnet.sequence_concat([edges, mirrored])
        after = stepnet.sequence_concat([mirrored, edges])
        loss = nn.functional.cross_entropy(model(words, before), after.values)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    share = exact(model, held_out, longest)
    print(
        f"{time.perf_counter() - begin:.0f} s: {share:.1%} of {len(held_out)} new sequences are exactly right"
    )
    assert share > 0.99


if __name__ == "__main__":
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # 128 rows at a time are too few to share out
    if "--long" in sys.argv:
        main(longest=10, batches=500)
    else:
        main(longest=2, batches=60)
    torch.set_num_threads(threads)
