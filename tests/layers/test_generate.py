"""Groups that generate: beam search with the step and the weights that another topology trains."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from stepnet import LoDTensor
from stepnet.errors import TapeError
from stepnet.layers import (
    Dense,
    GeneratedInput,
    Integer,
    Sequence,
    StaticInput,
    addto,
    beam_search,
    classification_cost,
    data,
    embedding,
    expand,
    fc,
    memory,
    pooling,
    recurrent_group,
    sequence_cross_entropy,
)
from stepnet.tape import Tape

WORDS, BOS, EOS = 5, 3, 4
KIND = Sequence(Integer(WORDS))


def translator(**search):
    """At each step the decoder looks at its source sentence again, from where it is, and at a topic.

    Returns the tape, with the cost of given words as "cost", and what is generated as its last two items.
    """
    torch.manual_seed(3)
    with Tape() as tape:
        source, topic = data("source", Sequence(Dense(3))), data("topic", Dense(2))
        start = fc([pooling(source, "mean"), topic], 4, act="tanh", name="start")

        def step(source, word, topic):
            before = memory("h", 4, boot=start)
            seen = pooling(addto([source, expand(fc(before, 3, name="query"), source)], act="tanh"), "sum")
            h = fc([embedding(word, 3, name="table"), seen, topic, before], 4, act="tanh", name="h")
            return fc(h, WORDS, name="scores")

        words = data("words", KIND)
        inputs = [StaticInput(source), GeneratedInput(words), StaticInput(topic)]
        scores = recurrent_group(step, inputs, name="decoder")
        found = beam_search(scores, bos=BOS, eos=EOS, name="search", **search)
        sequence_cross_entropy(scores, data("next", KIND), name="cost")
    return tape, found


def sources():
    rows = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return {
        "source": LoDTensor.from_lengths(rows, [[2, 0, 4]]),
        "topic": torch.tensor([[1.0, 0], [2, -1], [0, 3]], dtype=torch.float64),
    }


def sharp(net):
    """Weights so large that sequences differ in their scores."""
    for value in net.state_dict().values():
        value.mul_(3)
    return net


def test_what_is_generated_costs_what_the_other_topology_says():
    """The given words are read by the same step: each score is minus the cost of its words."""
    tape, found = translator(beam_size=4, max_length=6, n_best=3)
    infer = sharp(tape.topology(found, prune=True).double())
    train = tape.topology("cost", prune=True)
    assert set(infer.inputs) == {"source", "topic"}
    assert set(train.inputs) == {"source", "topic", "words", "next"}
    assert list(infer.state_dict()) == list(train.state_dict())
    (words, scores), _ = infer(**sources())
    assert words.recursive_sequence_lengths()[0] == scores.recursive_sequence_lengths()[0] == [3, 3, 3]
    assert len({tuple(w.tolist()) for row in words for w in row}) > 3
    lengths = set()
    for k, (row, points) in enumerate(zip(words, scores, strict=True)):
        one = {"source": sources()["source"].select_sequences(torch.tensor([k]))}
        one["topic"] = sources()["topic"][k : k + 1]
        for sequence, point in zip(row, points, strict=True):
            ended = sequence.tolist() + [EOS] * (len(sequence) < 6)
            lengths.add(len(ended))
            given, right = (LoDTensor(torch.tensor(w), [[0, len(w)]]) for w in ([BOS, *ended[:-1]], ended))
            cost, _ = train(words=given, next=right, **one)
            torch.testing.assert_close(-cost, point, rtol=1e-12, atol=1e-12)
    assert len(lengths) > 1


def test_a_wide_beam_finds_the_best_of_all_sequences():
    tape, found = translator(beam_size=125, max_length=3, n_best=5)
    infer = sharp(tape.topology(found, prune=True).double())
    (words, scores), _ = infer(**sources())
    going = [w for w in range(WORDS) if w != EOS]
    every = [
        [*start, last]
        for n in (0, 1, 2)
        for start in product(going, repeat=n)
        for last in ([EOS] if n < 2 else range(WORDS))
    ]
    for k in range(3):
        one = [sources()["source"].select_sequences(torch.tensor([k] * len(every)))]
        one.append(sources()["topic"][[k] * len(every)])
        given = LoDTensor.from_sequences([torch.tensor([BOS, *w[:-1]]) for w in every])
        table, _ = tape.topology("decoder")(source=one[0], topic=one[1], words=given)
        costs = [
            float(torch.nn.functional.cross_entropy(a, torch.tensor(w), reduction="sum"))
            for a, w in zip(table.detach(), every, strict=True)
        ]
        best = sorted(range(len(every)), key=costs.__getitem__)[:5]
        assert [w.tolist() for w in words[k]] == [[i for i in every[b] if i != EOS] for b in best]
        torch.testing.assert_close(scores[k], -torch.tensor([costs[b] for b in best]).double())


def test_skipping_the_group_that_reads_leaves_the_one_that_generates():
    tape, found = translator(beam_size=2, max_length=3)
    net = tape.topology(found, skip=["decoder"])
    assert net.inputs == ("source", "topic")
    assert "table.weight" in net.state_dict()
    assert len(net(source=LoDTensor(torch.zeros(0, 3), [[0]]), topic=torch.zeros(0, 2))[0][0]) == 0


def counter(step, *inputs, **search):
    """A decoder of a step of words alone, told by a row what to begin with."""
    with Tape() as tape:
        words, begin = data("words", KIND), data("begin", Dense(2))
        scores = recurrent_group(lambda w, b: step(w, b), [GeneratedInput(words), StaticInput(begin)])
        picked = scores if not isinstance(scores, tuple) else scores[1]
        found = beam_search(picked, bos=BOS, eos=EOS, beam_size=2, max_length=4, **search)
    return tape, found


def test_a_group_of_several_results_generates_by_the_one_that_is_taken():
    def step(word, begin):
        h = fc([begin, memory("h", 4)], 4, act="tanh", name="h")
        return h, fc([embedding(word, 4), h], WORDS, name="scores")

    tape, (words, _) = counter(step)
    got, _ = tape.topology(words, prune=True)(begin=torch.randn(3, 2))
    assert len(got) == 3
    assert all(0 <= w < WORDS and w not in (EOS,) for w in got.values.tolist())


def test_training_changes_what_is_generated():
    """To write 0 1 2 and stop, or 2 0 and stop, as the row says."""

    def step(word, begin):
        h = fc([embedding(word, 8), begin, memory("h", 16)], 16, act="tanh", name="h")
        return fc(h, WORDS, name="scores")

    torch.manual_seed(0)
    tape, (words, points) = counter(step)
    with tape:
        cost = classification_cost(tape["recurrent_group_0"], data("next", KIND))
    train, infer = tape.topology(cost, prune=True), tape.topology([words, points], prune=True)
    begin = torch.eye(2)
    given = LoDTensor.from_sequences([torch.tensor([BOS, 0, 1, 2]), torch.tensor([BOS, 2, 0])])
    right = LoDTensor.from_sequences([torch.tensor([0, 1, 2, EOS]), torch.tensor([2, 0, EOS])])
    optimizer = torch.optim.Adam(train.parameters(), lr=0.05)
    for _ in range(60):
        loss, _ = train(words=given, begin=begin, next=right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (found, score), _ = infer(begin=begin)
    assert [[w.tolist() for w in row] for row in found] == [[[0, 1, 2]], [[2, 0]]]
    assert (score.values.exp() > 0.9).all()
    assert not score.values.requires_grad


def scored(word, begin):
    return fc([embedding(word, 4), begin], WORDS)


def plain_group(words, begin):
    with_rows = recurrent_group(lambda w, b: scored(w, b), [words, StaticInput(begin)])
    beam_search(with_rows, bos=BOS, eos=EOS, beam_size=2, max_length=4)


def generated(words, begin, step=scored, **search):
    scores = recurrent_group(step, [GeneratedInput(words), StaticInput(begin)])
    search = {"bos": BOS, "eos": EOS, "beam_size": 2, "max_length": 4} | search
    beam_search(scores, **search)


def after_the_group(words, begin):
    hidden = recurrent_group(lambda w: embedding(w, 4), GeneratedInput(words))
    beam_search(fc(hidden, WORDS), bos=BOS, eos=EOS, beam_size=2, max_length=4)


def nothing_to_begin_with(words, begin):
    scores = recurrent_group(lambda w: fc(embedding(w, 4), WORDS), GeneratedInput(words))
    beam_search(scores, bos=BOS, eos=EOS, beam_size=2, max_length=4)


def two_sequences(words, begin):
    recurrent_group(lambda w, v: embedding(w, 4), [GeneratedInput(words), words])


def no_ids(words, begin):
    recurrent_group(lambda w: w, GeneratedInput(embedding(words, 4)))


def no_words(words, begin):
    generated(words, begin, step=lambda w, b: fc([embedding(w, 4), b], WORDS + 1))


def softmaxed(words, begin):
    generated(words, begin, step=lambda w, b: fc([embedding(w, 4), b], WORDS, act="softmax"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (plain_group, r"beam_search \(test_generate.py, line (?s:.)*takes what a recurrent group with a Gen"),
        (after_the_group, "make the scores in the step"),
        (nothing_to_begin_with, "nothing tells how many sequences to generate"),
        (two_sequences, "a group with a GeneratedInput has no other sequences"),
        (no_ids, "a GeneratedInput must be ids"),
        (no_words, r"must return a score for each word(?s:.)*floating point \[\*, 5\]"),
        (softmaxed, r"takes scores before softmax(?s:.)*test_generate.py, line"),
        (lambda w, b: generated(w, b, eos=WORDS), "'eos' is no word"),
        (lambda w, b: generated(w, b, beam_size=0), "'beam_size' must be a positive whole number"),
        (lambda w, b: generated(w, b, n_best=3), "'n_best' is at most beam_size"),
        (lambda w, b: generated(w, b, length_penalty=-1), "'length_penalty' must be a number from 0"),
    ],
    ids=[
        "plain group", "after the group", "nothing to begin with", "two sequences", "no ids", "no words",
        "softmaxed", "eos", "beam size", "n best", "length penalty",
    ],
)  # fmt: skip
def test_errors_when_a_search_is_made(make, message):
    with Tape():
        words, begin = data("words", KIND), data("begin", Dense(2))
        with pytest.raises(TapeError, match=message):
            make(words, begin)


def test_inputs_of_different_lengths_are_refused_when_played():
    with Tape() as tape:
        words, a, b = data("words", KIND), data("a", Dense(2)), data("b", Dense(2))
        scores = recurrent_group(
            lambda w, a, b: fc([embedding(w, 4), a, b], WORDS),
            [GeneratedInput(words), StaticInput(a), StaticInput(b)],
        )
        found = beam_search(scores, bos=BOS, eos=EOS, beam_size=2, max_length=4)
    with pytest.raises(TapeError, match=r"beam_search_0.*failed: StaticInputs (?s:.)*\[2, 3\] of them"):
        tape.topology(found, prune=True)(a=torch.zeros(3, 2), b=torch.zeros(2, 2))
