"""A network defined once on a tape: one topology trains it, with evaluators, and another one infers.

Documents are sequences of sentences, which are sequences of words. Some words are kind, some unkind, and
"not" turns the one after it around; a document is liked if its kind words are in the majority.
"""

from __future__ import annotations

import random

import torch

from stepnet import LoDTensor, layers
from stepnet.layers import Integer, Sequence
from stepnet.tape import Tape

WORDS, NOT, KIND, UNKIND = 20, 0, range(1, 4), range(4, 7)


def document() -> tuple[list[torch.Tensor], int]:
    """Sentences of random words, and whether the document is liked."""
    while True:
        sentences = [
            random.choices(range(WORDS), k=random.randint(1, 6)) for _ in range(random.randint(1, 5))
        ]
        balance = 0
        for words in sentences:
            for before, word in zip([WORDS, *words], words, strict=False):
                balance += ((word in KIND) - (word in UNKIND)) * (-1 if before == NOT else 1)
        if balance:
            return [torch.tensor(words) for words in sentences], int(balance > 0)


def batch(n: int) -> tuple[LoDTensor, torch.Tensor]:
    documents, liked = zip(*(document() for _ in range(n)), strict=True)
    return LoDTensor.from_sequences(list(documents)), torch.tensor(liked)


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    with Tape() as tape:
        words = layers.data("words", Sequence(Sequence(Integer(WORDS))))
        read = layers.lstm(layers.embedding(words, 8), 16, name="reader")
        sentences = layers.pooling(read, "sum", name="sentences")  # a row for each sentence
        scores = layers.fc(layers.pooling(sentences, "sum", name="documents"), 2, name="scores")
        liked = layers.activation(scores, "softmax", name="liked")

        label = layers.data("label", Integer(2))
        error = layers.classification_error(scores, label, name="error")
        area = layers.auc(liked, label, name="auc")
        cost = layers.classification_cost(scores, label, name="cost")
    print(tape)

    train = tape.topology([cost, error, area])
    optimizer = torch.optim.Adam(train.parameters(), lr=0.02)
    for epoch in range(3):
        train.reset()
        for _ in range(25):
            documents, right = batch(32)
            (loss, *_), metrics = train(words=documents, label=right)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: error {metrics['error']:.3f}, AUC {metrics['auc']:.3f}")

    infer = tape.topology(liked).eval()  # no label, no cost; the same weights
    unseen, right = batch(200)
    with torch.no_grad():
        probabilities, _ = infer(words=unseen)
    accuracy = (probabilities.argmax(1) == right).float().mean().item()
    print(f"unseen documents: {accuracy:.1%} right")
    assert accuracy > 0.85


if __name__ == "__main__":
    main()
