"""collate: samples of every kind to a batch."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch

from stepnet import LoDTensor, recurrent
from stepnet.data import collate
from stepnet.errors import LoDError


class Sample(NamedTuple):
    frames: torch.Tensor
    speaker: torch.Tensor
    text: str


def test_nested_samples():
    samples = [
        {"x": (torch.ones(n, 2), n), "words": ["a"] * n, "ids": list(range(n)), "y": torch.tensor(n / 2)}
        for n in (2, 0, 3)
    ]
    batch = collate(samples)
    x, count = batch["x"]
    assert x.lengths().tolist() == [2, 0, 3]
    assert x.values.shape == (5, 2)
    assert count.tolist() == [2, 0, 3]
    assert batch["words"] == [["a", "a"], [], ["a", "a", "a"]]
    assert batch["ids"].lengths().tolist() == [2, 0, 3]
    assert batch["ids"].values.tolist() == [0, 1, 0, 1, 2]
    assert batch["y"].tolist() == [1, 0, 1.5]


def test_named_tuples_and_what_is_dense():
    samples = [Sample(torch.ones(n, 2), torch.full((3,), float(n)), str(n)) for n in (2, 2)]
    batch = functools.partial(collate, dense=("speaker",))(samples)
    assert isinstance(batch, Sample)
    assert isinstance(batch.frames, LoDTensor)
    assert batch.speaker.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert batch.text == ["2", "2"]
    assert isinstance(collate(samples).speaker, LoDTensor)
    x, place = collate([(torch.ones(2), torch.ones(2))], dense=(1,))
    assert isinstance(x, LoDTensor)
    assert place.shape == (1, 2)
    box = collate([{"box": [[1, 2], [3, 4]]}] * 2, dense=("box",))["box"]
    assert box.tolist() == [[[1, 2], [3, 4]]] * 2


@dataclass(frozen=True)
class Utterance:
    frames: torch.Tensor
    speaker: int
    text: str


def test_dataclasses():
    samples = [Utterance(torch.ones(n, 2), n, str(n)) for n in (2, 0, 1)]
    batch = collate([{"u": sample} for sample in samples])["u"]
    assert isinstance(batch, Utterance)
    assert batch.frames.lengths().tolist() == [2, 0, 1]
    assert batch.speaker.tolist() == [2, 0, 1]
    assert batch.text == ["2", "0", "1"]
    with pytest.raises(LoDError, match=r"sample\.frames cannot be joined"):
        collate([samples[0], Utterance(torch.ones(1, 3), 0, "")])


MAPPINGS = [dict, OrderedDict, UserDict, Counter, lambda given: defaultdict(list, given), MappingProxyType]


@pytest.mark.parametrize("make", MAPPINGS)
def test_mappings_of_any_kind(make):
    samples = [make({"x": torch.ones(n, 2), "n": n}) for n in (2, 1)]
    batch = collate(samples)
    assert type(batch) is (dict if make is MappingProxyType else type(samples[0]))
    assert batch["x"].lengths().tolist() == [2, 1]
    assert batch["n"].tolist() == [2, 1]
    assert samples[0]["x"].shape == (2, 2)
    if isinstance(batch, defaultdict):
        assert batch.default_factory is list


def test_a_level_more():
    nested = collate([[torch.ones(2), torch.ones(1)], [], [torch.ones(3)]])
    assert nested.recursive_sequence_lengths() == [[2, 0, 1], [2, 1, 3]]
    again = collate([nested, nested[:1]])
    assert again.recursive_sequence_lengths() == [[3, 1], [2, 0, 1, 2], [2, 1, 3, 2, 1]]
    jagged = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(1), torch.ones(2)], enforce_sorted=False)
    assert collate([jagged, jagged]).recursive_sequence_lengths() == [[2, 2], [2, 1, 2, 1]]
    assert collate([packed, packed]).recursive_sequence_lengths() == [[2, 2], [1, 2, 1, 2]]


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2], torch.int64),
        ([1, 2.5], torch.float32),
        ([np.float64(1), np.float64(2)], torch.float64),
        ([np.int32(1), np.int32(2)], torch.int32),
        ([1, np.int32(2)], torch.int32),
        ([np.float32(1), np.float64(2)], torch.float64),
        ([torch.tensor(1.0, dtype=torch.bfloat16)] * 2, torch.bfloat16),
        ([np.array(1.0)] * 2, torch.float64),
    ],
    ids=str,
)
def test_numbers(samples, dtype):
    batch = collate(samples)
    assert type(batch) is torch.Tensor
    assert batch.shape == (2,)
    assert batch.dtype == dtype


def test_arrays_and_other_things():
    batch = collate([np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)])
    assert batch.values.dtype == torch.float32
    assert batch.lengths().tolist() == [2, 1]
    assert collate([[np.True_], [np.False_, True]]).values.tolist() == [True, False, True]
    assert collate(["a", "b"]) == ["a", "b"]
    assert collate([None, None]) == [None, None]
    assert collate([{}, {}]) == {}
    assert collate([(), ()]) == ()


@pytest.mark.parametrize("make", [np.ones, torch.ones])
@pytest.mark.parametrize("lengths", [(2, 0), (0, 2, 0)])
def test_an_empty_list_beside_rows_has_none(make, lengths):
    """As Hugging Face's datasets give sequences of no rows, whose shape they do not know."""
    batch = collate([make((n, 3)) if n else [] for n in lengths])
    assert batch.recursive_sequence_lengths() == [list(lengths)]
    assert batch.values.shape == (2, 3)
    with pytest.raises(LoDError, match="another kind"):
        collate([{"x": make((1, 3))}, {"x": []}], dense="x")


def test_arrays_of_any_memory():
    fixed = np.arange(3.0)
    fixed.setflags(write=False)  # as those of np.load(mmap_mode="r")
    for array in (np.arange(3)[::-1], np.arange(3, dtype=">i4"), fixed, np.array(3, dtype=">f8")):
        batch = collate([{"x": array}] * 2, dense=("x",))["x"]
        assert batch.tolist() == [array.tolist()] * 2
        batch[0] = 7
        assert 7 not in array
    with torch.device("meta"):  # as all that is made there
        assert collate([{"x": np.ones(3)}, {"x": fixed}], dense="x")["x"].is_meta


def test_one_name_of_what_is_dense():
    batch = collate([{"speaker": torch.ones(2), "s": torch.ones(n), 0: [n]} for n in (1, 2)], dense="speaker")
    assert batch["speaker"].shape == (2, 2)
    assert batch["s"].lengths().tolist() == [1, 2]
    assert batch[0].lengths().tolist() == [1, 1]


def test_gradients_pass():
    rows = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    (collate(rows).values * torch.arange(5.0)).sum().backward()
    assert rows[1].grad.tolist() == [2, 3, 4]


def _within_itself(kind):
    sample = {} if kind is dict else []
    if kind is dict:
        sample["a"] = sample
    else:
        sample.append(sample)
    return collate([sample, sample])


ERRORS = {
    "a mapping in itself": (lambda: _within_itself(dict), "deep, or that hold themselves"),
    "a list in itself": (lambda: _within_itself(list), "deep, or that hold themselves"),
    "masked": (lambda: collate([{"x": np.ma.array([1, 2], mask=[0, 1])}]), "masked numbers"),
    "masked, dense": (
        lambda: collate([{"x": np.ma.array([1, 2], mask=[0, 1])}], dense="x"),
        "masked numbers",
    ),
    "masked lengths": (
        lambda: LoDTensor.from_lengths(torch.ones(3), [np.ma.array([1, 2], mask=[0, 1])]),
        "1-D list",
    ),
    "none": (lambda: collate([]), "takes a list of samples, one or more"),
    "kinds": (lambda: collate([(1, 2), [1, 2]]), "sample of sample 1 is of another kind.*\n.*\n.*tuple"),
    "keys": (
        lambda: collate([{"a": 1}, {"b": 1}]),
        r"sample of sample 1 has other parts than in sample 0\n.*\['b'\]\n.*\['a'\]",
    ),
    "parts": (lambda: collate([(1, 2), (1,)]), "other parts than in sample 0\n.*1\n.*2"),
    "rows": (
        lambda: collate([{"x": torch.ones(2, 3)}, {"x": torch.ones(2, 4)}]),
        r"sample\['x'\] cannot be joined",
    ),
    "dense": (
        lambda: collate([(torch.ones(2),), (torch.ones(3),)], dense=(0,)),
        r"dense sample\[0\] of sample 1 does not fit",
    ),
    "dense lists": (lambda: collate([([1],), ([1, 2],)], dense=(0,)), r"sample\[0\] cannot be joined"),
    "levels": (
        lambda: collate([{"x": LoDTensor(torch.ones(2), lod)} for lod in ([[0, 2]], [[0, 1], [0, 2]])]),
        r"sample\['x'\] cannot be joined: .*batch 1 does not fit batch 0",
    ),
    "large numbers": (lambda: collate([{"n": 2**64}, {"n": 1}]), r"sample\['n'\] cannot be joined"),
    "small types": (lambda: collate([np.int8(1), 300]), "sample cannot be joined"),
    "arrays of texts": (
        lambda: collate([{"x": np.array(["a"])}] * 2, dense=("x",)),
        r"sample\['x'\] cannot be joined",
    ),
    "number and tensor": (lambda: collate([1, torch.tensor(1)]), "another kind"),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(call, text):
    with pytest.raises(LoDError, match=text):
        call()


@pytest.mark.parametrize("use", ["collate", "collate_dict", "run", "lengths"])
def test_what_holds_itself_is_an_error(use):
    endless: list = [torch.ones(2)]
    endless.append([endless])
    uses = {
        "collate": lambda: collate([endless, endless]),
        "collate_dict": lambda: collate([{"a": endless}]),
        "run": lambda: recurrent(lambda x, h: (x, h), torch.ones(2, 1, 3), endless),
        "lengths": lambda: LoDTensor.from_lengths(torch.ones(2, 2), endless),  # torch ended the process
    }
    with pytest.raises(ValueError, match=r"hold themselves|deep in each other|1-D list|3 levels"):
        uses[use]()
