"""Recurrences inside the steps of another, over sequences of sequences."""

from .loop_flattening import as_one_again as as_one_again
from .loop_flattening import loop_over_words as loop_over_words
from .loop_flattening import over_sentences as over_sentences
from .recreated_steps import by_twin as by_twin
