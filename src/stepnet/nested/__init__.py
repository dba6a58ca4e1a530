"""Recurrences inside the steps of another, over sequences of sequences."""

from .as_one import as_one as as_one
from .words import words_of as words_of
