"""What LoDTensor.from_sequences takes: tensors, numpy arrays, numbers, and lists of all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from stepnet import LoDTensor
from stepnet.errors import LoDError


def read_only() -> np.ndarray:
    array = np.arange(3.0)
    array.flags.writeable = False
    return array


def objects(*items) -> np.ndarray:
    column = np.empty(len(items), dtype=object)
    column[:] = items
    return column


TAKEN = {
    "arrays": ([np.zeros((2, 3)), np.zeros((0, 3))], [[2, 0]], torch.zeros(2, 3, dtype=torch.float64)),
    "arrays read backwards": ([np.arange(3)[::-1], np.arange(1)], [[3, 1]], torch.tensor([2, 1, 0, 0])),
    "read-only, big-endian": (
        [read_only(), read_only().astype(">f8")],
        [[3, 3]],
        torch.tensor([0.0, 1, 2, 0, 1, 2], dtype=torch.float64),
    ),
    "arrays and tensors": ([torch.ones(2), np.ones(1, np.float32)], [[2, 1]], torch.ones(3)),
    "two levels of arrays": (
        [[np.ones(2), np.ones(1)], []],
        [[2, 0], [2, 1]],
        torch.ones(3, dtype=torch.float64),
    ),
    "a column of lists": (objects([1, 2], [3]), [[2, 1]], torch.tensor([1, 2, 3])),
    "a column of arrays": (objects(np.ones(2), np.ones(3)), [[2, 3]], torch.ones(5, dtype=torch.float64)),
    "whole numbers": ([[1, 2], [], (3,), range(2)], [[2, 0, 1, 2]], torch.tensor([1, 2, 3, 0, 1])),
    "numbers of two kinds": ([[1, 2], [0.5]], [[2, 1]], torch.tensor([1.0, 2.0, 0.5])),
    "truth": ([[True], [False]], [[1, 1]], torch.tensor([True, False])),
    "numpy's numbers": ([[np.float32(1)], [np.float32(2)]], [[1, 1]], torch.tensor([1.0, 2.0])),
    "nested tensors": (
        [torch.nested.nested_tensor([torch.ones(2), torch.ones(0)], layout=torch.jagged)] * 2,
        [[2, 2], [2, 0, 2, 0]],
        torch.ones(4),
    ),
    "two levels of numbers": ([[[1, 2], [3]], [[4]]], [[2, 1], [2, 1, 1]], torch.tensor([1, 2, 3, 4])),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(name):
    given, lengths, values = TAKEN[name]
    for way in (given, iter(given)):
        x = LoDTensor.from_sequences(way)
        assert x.recursive_sequence_lengths() == lengths
        torch.testing.assert_close(x.values, values, rtol=0, atol=0)
        x.values.zero_()  # its own memory
    assert float(np.sum([np.sum(s) for s in read_only()])) == 3.0


REFUSED = {
    "one array": (np.zeros((2, 3)), ["takes a list of sequences", "list(...) of it"]),
    "a PackedSequence": (
        pack_sequence([torch.ones(2), torch.ones(1)]),
        ["a list", "LoDTensor.from_packed(...)"],
    ),
    "PackedSequences": (  # each would be taken for a list of its own tensors
        [pack_sequence([torch.tensor([2, 3]), torch.tensor([1])], enforce_sorted=False)],
        ["[0] is a PackedSequence", "got:      3 rows", "LoDTensor.from_packed(p)"],
    ),
    "a nested tensor": (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
        ["a list of sequences", "LoDTensor.from_nested(...)"],
    ),
    "numbers alone": ([1, 2], ["sequence [0] must be a tensor of shape [length, ...]", "int 1"]),
    "text": ([[1, "a"]], ["sequence [0][0]"]),
    "an array of text": ([np.array(["a"])], ["[0] holds no numbers"]),
    "other dtypes": ([torch.ones(2), np.ones(2)], ["sequence [1] does not fit", "float64", "float32"]),
    "an array without rows": ([np.array(1.0)], ["sequence [0] has no rows to count"]),
    "a number beside a list": ([[[1, 2], 3]], ["sequence [0][1] must be a tensor"]),
    "too large": ([[2**70]], ["[0] does not fit torch.int64"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    given, words = REFUSED[name]
    with pytest.raises(LoDError) as caught:
        LoDTensor.from_sequences(given)
    for word in words:
        assert word in str(caught.value)


def test_pinned_memory_is_torchs(monkeypatch):
    """Here torch is asked; on a machine without a GPU it raises, and a DataLoader does not ask."""
    x = LoDTensor(torch.arange(3.0), [[0, 1, 3]])
    assert not x.is_pinned()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    pinned = x.pin_memory()
    assert pinned.structure is x.structure
    assert pinned.values.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_a_loader_that_pins():
    from torch.utils.data import DataLoader

    data = [torch.ones(n) for n in (1, 2, 0)]
    loader = DataLoader(data, batch_size=3, collate_fn=LoDTensor.from_sequences, pin_memory=True)
    (batch,) = loader
    assert batch.recursive_sequence_lengths() == [[1, 2, 0]]
