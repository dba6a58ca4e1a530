"""A decoder defined once on a tape: one topology trains it on the words that are given, another one generates
with its step and its weights, by beam search.

The task is to write a sequence of letters in alphabetical order: "dacb" becomes "abcd".
"""

from __future__ import annotations

import torch

from stepnet import LoDTensor, layers
from stepnet.layers import GeneratedInput, Integer, Sequence
from stepnet.tape import Tape

LETTERS, BOS, EOS = 5, 5, 6
WORDS = LETTERS + 2


def batch(n: int) -> tuple[LoDTensor, LoDTensor, LoDTensor]:
    """Unsorted letters; sorted ones behind bos, which the decoder reads; the same before eos, its answers."""
    letters = [torch.randint(LETTERS, (int(k),)) for k in torch.randint(1, 5, (n,))]
    ordered = [x.sort().values for x in letters]
    given = [torch.cat([torch.tensor([BOS]), x]) for x in ordered]
    right = [torch.cat([x, torch.tensor([EOS])]) for x in ordered]
    return tuple(LoDTensor.from_sequences(s) for s in (letters, given, right))  # pyright: ignore[reportReturnType]


def main() -> None:
    torch.manual_seed(0)
    with Tape() as tape:
        letters = layers.data("letters", Sequence(Integer(LETTERS)))
        seen = layers.pooling(layers.embedding(letters, 32), "sum", name="seen")

        def step(word):
            before = layers.memory("h", 64, boot=start)
            h = layers.fc([layers.embedding(word, 16), before], 64, act="tanh", name="h")
            return layers.fc(h, WORDS, name="scores")

        start = layers.fc(seen, 64, act="tanh", name="start")
        words = layers.data("words", Sequence(Integer(WORDS)))
        scores = layers.recurrent_group(step, GeneratedInput(words), name="decoder")
        found, _ = layers.beam_search(scores, bos=BOS, eos=EOS, beam_size=4, max_length=8)

        right = layers.data("right", Sequence(Integer(WORDS)))
        layers.perplexity(scores, right, name="perplexity")
        cost = layers.sequence_cross_entropy(scores, right, name="cost")

    train = tape.topology(cost, prune=True)  # without the search
    generate = tape.topology(found, prune=True)  # without the words that are given
    print(f"trained on {train.inputs}; generates from {generate.inputs}")

    optimizer = torch.optim.Adam(train.parameters(), lr=0.01)
    for epoch in range(3):
        train.reset()
        for _ in range(35):
            x, given, then = batch(32)
            loss, metrics = train(letters=x, words=given, right=then)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: perplexity {metrics['perplexity']:.3f}")

    unsorted, _, _ = batch(200)
    written, _ = generate(letters=unsorted)
    as_text = ["".join("abcde"[i] for i in x.tolist()) for x in unsorted]
    answers = ["".join("abcde"[i] if i < LETTERS else "?" for i in row[0].tolist()) for row in written]
    for before, after in zip(as_text[:4], answers, strict=False):
        print(f"{before:>5} -> {after}")
    share = sum("".join(sorted(a)) == b for a, b in zip(as_text, answers, strict=True)) / len(answers)
    print(f"{share:.1%} right")
    assert share > 0.75


if __name__ == "__main__":
    main()
