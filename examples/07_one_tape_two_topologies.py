"""A network defined once on a tape: one topology trains it, with evaluators; another one infers, is saved,
and gives the same numbers in OpenVINO, for documents of any lengths.

Documents are sequences of sentences, which are sequences of words. Some words are kind, some unkind, and
"not" turns the one after it around; a document is liked if its kind words are in the majority.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import torch

import stepnet
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


def padded(documents: LoDTensor) -> dict[str, np.ndarray]:
    """What OpenVINO takes: words [documents, sentences, words], and how many of each are no padding."""
    per_document, per_sentence = documents.recursive_sequence_lengths()
    words = np.zeros((len(per_document), max(per_document), max(per_sentence)), dtype=np.int64)
    lengths = np.zeros(words.shape[:2], dtype=np.int64)
    for i, document in enumerate(documents):
        for k, sentence in enumerate(document):
            words[i, k, : len(sentence)] = sentence
            lengths[i, k] = len(sentence)
    return {"words": words, "words.lengths_0": np.array(per_document), "words.lengths_1": lengths}


def run_in_openvino(path: Path, documents: LoDTensor) -> np.ndarray | None:
    """The probabilities by OpenVINO itself; None where it is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(padded(documents))["liked"]


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

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "liked.xml"
        infer.save(path)  # OpenVINO IR: liked.xml and liked.bin
        loaded = stepnet.load(path)
        for n in (1, 7, 40):  # lengths that were never seen
            documents, _ = batch(n)
            expected = infer(words=documents)[0].detach().numpy()
            assert np.abs(loaded(words=documents)[0].detach().numpy() - expected).max() < 1e-5
            found = run_in_openvino(path, documents)
            if found is None:
                print("OpenVINO is not installed (pip install openvino), so it was not asked")
                break
            difference = np.abs(found - expected).max()
            print(f"{n} documents in OpenVINO: the largest difference is {difference:.1e}")
            assert difference < 1e-5


if __name__ == "__main__":
    main()
