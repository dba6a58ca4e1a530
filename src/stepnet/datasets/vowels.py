"""The Japanese Vowels data: name the speaker of a short utterance."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepnet.data.lod import LoDTensor


class Split(NamedTuple):
    """Utterances and who spoke them.

    >>> x, labels = japanese_vowels().test
    >>> x.values.shape, labels.shape
    (torch.Size([5687, 12]), torch.Size([370]))
    """

    x: LoDTensor
    """The frames: values float32 [frames of all utterances, 12]; one sequence an utterance."""
    labels: Tensor
    """int64 [utterances]: the speaker, 0 to 8."""


class JapaneseVowels(NamedTuple):
    """What `japanese_vowels` returns.

    >>> train, test, speakers = japanese_vowels()
    >>> len(train.x) + len(test.x), speakers
    (640, 9)
    """

    train: Split
    """270 utterances, 30 by each speaker."""
    test: Split
    """370 utterances, 24 to 88 by each speaker."""
    speakers: int
    """How many speakers there are: 9."""


def japanese_vowels() -> JapaneseVowels:
    """The Japanese Vowels data, from a file of the package: nothing is downloaded.

    640 utterances of the vowels /ae/ by nine male speakers. Each is a sequence of 7 to 29 frames (6.4 ms
    apart) of 12 LPC cepstrum coefficients, which have no unit. They are the original values, not normalised.

    Source: M. Kudo, J. Toyama, M. Shimbo, "Japanese Vowels", UCI Machine Learning Repository (donated 2000),
    CC BY 4.0. Their paper (1999), "Multidimensional Curve Classification Using Passing-Through Regions",
    Pattern Recognition Letters 20(11-13), 1103-1111, reports a test accuracy of 94.1 %.

    >>> vowels = japanese_vowels()
    >>> len(vowels.train.x), len(vowels.test.x), vowels.speakers
    (270, 370, 9)
    >>> vowels.train.x[0].shape  # the first utterance: frames, coefficients
    torch.Size([20, 12])
    >>> int(vowels.train.labels[0])
    0
    """
    with files("stepnet.datasets").joinpath("japanese_vowels.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)

        def split(name: str) -> Split:
            values = torch.from_numpy(arrays[f"{name}_values"])
            x = LoDTensor.from_lengths(values, [arrays[f"{name}_lengths"].tolist()])
            return Split(x, torch.from_numpy(arrays[f"{name}_labels"]))

        train, test = split("train"), split("test")
    return JapaneseVowels(train, test, speakers=int(train.labels.max()) + 1)
