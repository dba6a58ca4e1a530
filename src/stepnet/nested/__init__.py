"""Recurrences inside the steps of another, over sequences of sequences."""

from .as_one import as_one as as_one
from .as_one import as_one_again as as_one_again
from .as_one import loop_over_words as loop_over_words
