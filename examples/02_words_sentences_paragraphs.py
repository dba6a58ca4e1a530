"""Recurrences inside recurrences: words make a sentence, sentences make a paragraph.

A batch of paragraphs is one table of words with two levels of offsets. The outer step gets one sentence of
every paragraph; it runs an inner recurrence over the words, which starts from the paragraph's own state. So
the words see all that came before them, and the whole is the same as one flat recurrence over all the words
of each paragraph.
"""

from __future__ import annotations

import torch
from torch import nn

import stepnet
from stepnet import LoDTensor


def main() -> None:
    torch.manual_seed(0)
    words = torch.randn(14, 5)
    # three paragraphs, of 2, 0 and 3 sentences; the sentences have 3, 1, 4, 0 and 6 words
    paragraphs = LoDTensor.from_lengths(words, [[2, 0, 3], [3, 1, 4, 0, 6]])
    cell = nn.GRUCell(5, 7)
    start = torch.zeros(3, 7)

    def read_sentence(sentences, state):
        outputs, state = stepnet.recurrent(cell, sentences, state)
        return outputs, state

    nested, last_nested = stepnet.recurrent(read_sentence, paragraphs, start, level=0)

    flat = LoDTensor.from_lengths(words, [[4, 0, 10]])  # the same words, sentence ends forgotten
    plain, last_plain = stepnet.recurrent(cell, flat, start)

    print(nested)
    torch.testing.assert_close(nested.values, plain.values)
    torch.testing.assert_close(last_nested, last_plain)
    print("nested and flat agree")


if __name__ == "__main__":
    main()
