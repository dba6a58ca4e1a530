"""A trained model from elsewhere: the GRU encoder and decoder that g2p-en spells English words with.

Its wheel holds the weights as numpy arrays. Words of all lengths are read as one ragged batch, without
padding; the decoder says one sound after the other until each word has ended. It needs the extra `examples`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import stepnet
from stepnet import LoDTensor
from stepnet.decode import greedy

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
OTHERS = ["B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T",
          "TH", "UW", "V", "W", "Y", "Z", "ZH"]  # fmt: skip
STRESSED = [f"{vowel}{stress}" for vowel in VOWELS for stress in range(3)]
SOUNDS = ["<pad>", "<unk>", "<s>", "</s>", *sorted([*STRESSED, *OTHERS])]


class Speller(nn.Module):
    """Letters of words to sounds."""

    def __init__(self, arrays: dict[str, Tensor]) -> None:
        super().__init__()
        self.letters = nn.Embedding.from_pretrained(arrays["enc_emb"])
        self.sounds = nn.Embedding.from_pretrained(arrays["dec_emb"])
        self.encoder = stepnet.nn.GRU(256, 256)
        self.decoder = nn.GRUCell(256, 256)
        self.scores = nn.Linear(256, len(SOUNDS))
        names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
        self.encoder.load_state_dict({f"{ours}_l0": arrays[f"enc_{its}"] for ours, its in names.items()})
        self.decoder.load_state_dict({ours: arrays[f"dec_{its}"] for ours, its in names.items()})
        self.scores.load_state_dict({"weight": arrays["fc_w"], "bias": arrays["fc_b"]})

    def encode(self, words: LoDTensor) -> Tensor:
        """The state after the last letter of each word."""
        _, last = self.encoder(torch.nn.functional.embedding(words, self.letters.weight))
        return last[0]

    def decode(self, last: Tensor) -> LoDTensor:
        """At most 20 sounds for each word."""

        def step(sound: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.decoder(self.sounds(sound), h)
            return self.scores(h), h

        return greedy(step, last, bos=2, eos=3, max_length=20)[0]

    def forward(self, words: LoDTensor) -> LoDTensor:
        return self.decode(self.encode(words))


def speller() -> Speller:
    """The model, with the arrays of the wheel; nothing of the package is run."""
    package = find_spec("g2p_en")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("this example reads the wheel of g2p-en: pip install 'stepnet[examples]'")
    with np.load(Path(package.submodule_search_locations[0]) / "checkpoint20.npz") as arrays:
        return Speller({name: torch.from_numpy(arrays[name]) for name in arrays.files})


def letters_of(words: list[str]) -> LoDTensor:
    """The numbers of the letters of words, each with the end of the word."""
    known = {letter: i for i, letter in enumerate(LETTERS)}
    return LoDTensor.from_sequences([torch.tensor([*(known.get(c, 1) for c in word), 2]) for word in words])


def main() -> None:
    words = ["stepnet", "recurrence", "a", "activationist", "ragged"]
    with torch.no_grad():
        sounds = speller()(letters_of(words))
    for word, numbers in zip(words, sounds, strict=True):
        print(f"{word:15} {' '.join(SOUNDS[int(n)] for n in numbers)}")


if __name__ == "__main__":
    main()
