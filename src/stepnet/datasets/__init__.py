"""Small data sets that come with the package."""

from __future__ import annotations

from .vowels import JapaneseVowels as JapaneseVowels
from .vowels import Split as Split
from .vowels import japanese_vowels as japanese_vowels
