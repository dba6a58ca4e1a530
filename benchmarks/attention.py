"""A decoder that attends to a ragged memory, and decoding word by word, against loops over padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import stepnet
from stepnet import LoDTensor

from .harness import Case, Contender, Topic


class Decoder(nn.Module):
    """A GRU over its input and what it attends to; scores are additive or dot products."""

    def __init__(self, size: int, additive: bool) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(size, size, bias=False), nn.Linear(size, size)
        self.v = nn.Linear(size, 1, bias=False) if additive else None
        self.cell = nn.GRUCell(2 * size, size)

    def step(self, x: Tensor, h: Tensor, keys: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        query = self.query(h)
        if self.v is None:
            scores = torch.bmm(query.unsqueeze(1), keys.transpose(1, 2)).squeeze(1)  # what torch does fastest
        else:
            scores = self.v(torch.tanh(keys + query.unsqueeze(1))).squeeze(2)
        weights = scores.masked_fill(~mask, -1e9).softmax(1)
        context = torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
        return self.cell(torch.cat([x, context], 1), h)

    def forward(self, x: Tensor, h: Tensor, memory: Any) -> tuple[Tensor, Tensor]:
        h = self.step(x, h, self.key(memory.rows), *memory)
        return h, h


def cases(quick: bool) -> Iterator[Case]:
    """Memories and targets of 10 to 60 rows, as in translation; then words for a vocabulary."""
    batch, size, most = (3, 8, 6) if quick else (32, 128, 60)
    draw = torch.Generator().manual_seed(size)
    for additive in (True, False):
        sizes, lengths = (torch.randint(most // 6, most + 1, (batch,), generator=draw) for _ in range(2))
        memory = [torch.randn(int(n), size, generator=draw) for n in sizes]
        x = [torch.randn(int(n), size, generator=draw) for n in lengths]
        for training in (True, False):
            torch.manual_seed(size)
            decoder = Decoder(size, additive)
            name = "additive" if additive else "dot product"
            yield Case(
                name=f"{name} attention, {batch} sequences, H={size} {'train' if training else 'forward'}",
                contenders={
                    "stepnet": _ragged(decoder, x, memory, training),
                    "padded loop": _padded(decoder, x, memory, training),
                },
                reference="padded loop",
                facts={"attention": name, "sequences": batch, "H": size, "longest": most},
                rtol=1e-3,
                atol=1e-4,
            )
    size, steps = (8, 5) if quick else (128, 40)
    for words in (12,) if quick else (100, 1000):
        for rows in (2,) if quick else (1, 16, 64):
            yield _greedy(rows, words, size, steps)
        for rows in (2,) if quick else (1, 16):
            yield _beam(rows, words, size, steps)


def _ragged(decoder: Decoder, x: list[Tensor], memory: list[Tensor], training: bool) -> Contender:
    rows = LoDTensor.from_sequences(memory)
    inputs, start = LoDTensor.from_sequences(x), torch.zeros(len(x), memory[0].shape[1])

    def run() -> list[Tensor]:
        leaf = rows.values.detach().requires_grad_(training)
        with torch.set_grad_enabled(training):
            y, _ = stepnet.recurrent(decoder, inputs, start, static=rows.with_values(leaf))
            return _with_gradients(y.values, leaf, decoder, training)

    return Contender(run, _named)


def _padded(decoder: Decoder, x: list[Tensor], memory: list[Tensor], training: bool) -> Contender:
    lengths, sizes = (torch.tensor([len(s) for s in part]) for part in (x, memory))
    inputs = pad_sequence(x)
    there = torch.arange(len(inputs))[None] < lengths[:, None]
    mask = torch.arange(int(sizes.max()))[None] < sizes[:, None]
    start = torch.zeros(len(x), memory[0].shape[1])

    def run() -> list[Tensor]:
        leaf = torch.cat(memory).requires_grad_(training)
        with torch.set_grad_enabled(training):
            rows = pad_sequence(list(leaf.split(sizes.tolist())), batch_first=True)
            keys, h, out = decoder.key(rows), start, []
            for row in inputs:
                h = decoder.step(row, h, keys, rows, mask)
                out.append(h)
            return _with_gradients(torch.stack(out, 1)[there], leaf, decoder, training)

    return Contender(run, _named)


def _with_gradients(y: Tensor, memory: Tensor, decoder: Decoder, training: bool) -> list[Tensor]:
    if not training:
        return [y]
    return [y, *torch.autograd.grad(y.square().sum(), [memory, *decoder.parameters()])]


def _named(done: Any) -> Mapping[str, Tensor]:
    return {f"result {i}": tensor.detach() for i, tensor in enumerate(done)}


def _greedy(rows: int, words: int, size: int, steps: int) -> Case:
    step, state = _words(rows, words, size)

    def ours() -> tuple[Tensor, Tensor]:
        found, scores = stepnet.decode.greedy(step, state, bos=1, eos=0, max_length=steps)
        return found.values.view(rows, steps), scores

    def by_hand() -> tuple[Tensor, Tensor]:
        word, h, score, out = torch.ones(rows, dtype=torch.int64), state, torch.zeros(rows), []
        running = torch.ones(rows, dtype=torch.bool)
        with torch.no_grad():
            for _ in range(steps):
                scores, h = step(word, h)
                best, word = scores.log_softmax(1).max(1)
                score = torch.where(running, score + best, score)
                running = running & (word != 0)
                out.append(word)
                if not running.any():
                    break
        return torch.stack(out, 1), score

    return Case(
        name=f"greedy, {rows} sequences of {steps} of {words} words, H={size}",
        contenders={"stepnet": Contender(ours, _named), "loop by hand": Contender(by_hand, _named)},
        reference="loop by hand",
        facts={"sequences": rows, "steps": steps, "words": words, "H": size},
        rtol=1e-4,
        atol=1e-4,
    )


def _beam(rows: int, words: int, size: int, steps: int, beams: int = 4) -> Case:
    step, state = _words(rows, words, size)

    def ours() -> tuple[Tensor, Tensor]:
        found, scores = stepnet.decode.beam_search(
            step, state, bos=1, eos=0, beam_size=beams, max_length=steps, n_best=beams
        )
        # of equal scores either may come first: the best alone is held against the other's
        return found.values.view(rows, beams, steps)[:, 0], scores.values.view(rows, beams)

    def by_hand() -> tuple[Tensor, Tensor]:
        first = beams * torch.arange(rows)[:, None]
        h, word = state.repeat_interleave(beams, 0), torch.ones(rows * beams, dtype=torch.int64)
        score, out = torch.full((rows, beams), -torch.inf), torch.zeros((rows * beams, 0), dtype=torch.int64)
        score[:, 0] = 0
        nothing = torch.full((words,), -torch.inf)
        nothing[0] = 0  # what follows the end of a sequence
        with torch.no_grad():
            for _ in range(steps):
                ended = (word == 0)[:, None]
                scores, h = step(word, h)
                log_p = torch.where(ended, nothing, scores.log_softmax(1)).view(rows, beams, words)
                score, chosen = (score[:, :, None] + log_p).flatten(1).topk(beams, 1)
                parent, word = (chosen // words + first).flatten(), (chosen % words).flatten()
                h, out = h[parent], torch.cat([out[parent], word[:, None]], 1)
                if not word.any():
                    break
        return out.view(rows, beams, -1)[:, 0], score

    return Case(
        name=f"beam search, {rows} sequences of {steps} of {words} words, {beams} beams, H={size}",
        contenders={"stepnet": Contender(ours, _named), "loop by hand": Contender(by_hand, _named)},
        reference="loop by hand",
        facts={"sequences": rows, "steps": steps, "words": words, "beams": beams, "H": size},
        rtol=1e-4,
        atol=1e-4,
    )


def _words(rows: int, words: int, size: int) -> tuple[Callable[..., tuple[Tensor, Tensor]], Tensor]:
    """A step that no sequence ends by before its last word, and a state."""
    torch.manual_seed(words)
    table, cell, head = nn.Embedding(words, size), nn.GRUCell(size, size), nn.Linear(size, words)
    with torch.no_grad():
        head.bias[0] = -1e4
    state = torch.randn(rows, size)

    def step(word: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = cell(table(word), h)
        return head(h), h

    return step, state


TOPIC = Topic(
    name="attention",
    claim="a decoder over a ragged memory, and decoding word by word, against loops over padded tensors",
    cases=cases,
)
