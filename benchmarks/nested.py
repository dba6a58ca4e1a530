"""A recurrence inside a step that needs nothing of the outer state: run once, or at each outer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor

from .harness import Case, Contender, Topic


def cases(quick: bool) -> Iterator[Case]:
    """Documents of sentences of words: a GRU reads each sentence, and another what the first said of them."""
    sizes = [(4, 5, 4, 8)] if quick else [(4, 40, 12, 64), (16, 40, 12, 64), (32, 20, 30, 128)]
    for documents, sentences, words, size in sizes:
        draw = torch.Generator().manual_seed(documents * size)
        counts = torch.randint(sentences // 4, sentences + 1, (documents,), generator=draw)
        lengths = torch.randint(1, words + 1, (int(counts.sum()),), generator=draw)
        rows = torch.randn(int(lengths.sum()), size, generator=draw)
        x = LoDTensor.from_lengths(rows, [counts, lengths])
        torch.manual_seed(size)
        inner, outer = nn.GRUCell(size, size), nn.GRUCell(size, size)
        for training in (False, True):
            yield Case(
                name=f"{documents} documents, {len(lengths)} sentences, {len(rows)} words, H={size} "
                f"{'train' if training else 'forward'}",
                contenders={
                    "stepnet": _contender(x, inner, outer, training, lift=True),
                    "at each step": _contender(x, inner, outer, training, lift=False),
                },
                reference="at each step",
                facts={
                    "documents": documents,
                    "steps": int(counts.max()),
                    "sentences": len(lengths),
                    "words": len(rows),
                    "H": size,
                    "pass": "train" if training else "forward",
                },
                rtol=1e-3,
                atol=1e-4,
            )


def _contender(
    x: LoDTensor, inner: nn.GRUCell, outer: nn.GRUCell, training: bool, *, lift: bool
) -> Contender:
    """The same step twice; one stays in the loop, as it reads not the sentences but a copy of the object."""
    weights = [*inner.parameters(), *outer.parameters()]
    start = torch.zeros(len(x), outer.hidden_size)

    def step(sentences: LoDTensor, h: Tensor) -> tuple[Tensor, Tensor]:
        _, said = stepnet.recurrent(inner, sentences if lift else sentences.with_values(sentences.values))
        h = outer(said, h)
        return h, h

    def run() -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(training):
            y, last = stepnet.recurrent(step, x, start, level=0)
            if not training:
                return y.values, last
            return y.values, last, *torch.autograd.grad(y.values.square().mean() + last.mean(), weights)

    def values(done: Any) -> Mapping[str, Tensor]:
        return {f"result {i}": tensor.detach() for i, tensor in enumerate(done)}

    return Contender(run, values)


TOPIC = Topic(
    name="nested",
    claim="an inner recurrence that needs nothing of the outer state: once, against at each outer step",
    cases=cases,
)
