from __future__ import annotations

from importlib.resources import files

import pytest
import torch

from stepnet.data.lod import LoDTensor
from stepnet.datasets import japanese_vowels


@pytest.fixture(scope="module")
def vowels():
    return japanese_vowels()


@pytest.mark.parametrize(
    ("name", "frames", "utterances_by_speaker"),
    [
        ("train", 4274, [30] * 9),
        ("test", 5687, [31, 35, 88, 44, 29, 24, 40, 50, 29]),  # as the repository's page lists them
    ],
)
def test_split(vowels, name, frames, utterances_by_speaker):
    split = getattr(vowels, name)
    assert isinstance(split.x, LoDTensor)
    assert split.x.lod_level == 1
    assert split.x.values.shape == (frames, 12)
    assert split.x.values.dtype == torch.float32
    assert split.labels.dtype == torch.int64
    assert torch.bincount(split.labels).tolist() == utterances_by_speaker
    lengths = split.x.lengths()
    assert len(split.x) == len(lengths) == len(split.labels)
    assert int(lengths.sum()) == frames


def test_lengths_and_speakers(vowels):
    assert vowels.speakers == 9
    lengths = torch.cat([vowels.train.x.lengths(), vowels.test.x.lengths()])
    assert (int(lengths.min()), int(lengths.max())) == (7, 29)


def test_first_frame(vowels):
    """One frame by its figures: rows out of order, or columns swapped, would show."""
    expected = [1.860936, -0.207383, 0.261557, -0.214562, -0.171253, -0.118167]
    torch.testing.assert_close(vowels.train.x[0][0, :6], torch.tensor(expected))


def test_calls_share_no_memory():
    first = japanese_vowels().train.x
    first.values.zero_()
    assert japanese_vowels().train.x.values.abs().sum() > 0


@pytest.mark.parametrize("name", ["README.md", "LICENSE"])
def test_attribution_lies_beside_the_data(name):
    text = files("stepnet.datasets").joinpath(name).read_text(encoding="utf-8")
    for words in ("Kudo", "Toyama", "Shimbo", "CC BY 4.0"):
        assert words in text
