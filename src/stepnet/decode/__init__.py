"""Generate sequences from a step: the likeliest token each time, or beam search."""

from .beam import beam_search as beam_search
from .greedy import greedy as greedy
