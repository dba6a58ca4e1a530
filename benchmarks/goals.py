"""What is to be reached: the fastest peer's time over ours, by cell, hidden size and kind of work."""

from __future__ import annotations

from .work import Size

HIDDEN = (64, 128, 256, 512)
GOALS = {
    ("LSTM or GRU", "ragged", "train"): (3.0, 2.4, 2.2, 2.0),
    ("LSTM or GRU", "ragged", "forward"): (2.6, 2.2, 2.0, 1.6),
    ("LSTM or GRU", "dense", "train"): (1.5, 1.25, 1.1, 1.05),
    ("LSTM or GRU", "dense", "forward"): (1.5, 1.15, 1.0, 1.0),
    ("other", "ragged", "train"): (9.0, 8.0, 5.0, 2.5),
    ("other", "dense", "train"): (4.5, 4.0, 3.5, 2.3),
}
ONE_SEQUENCE = 2.0  # LSTM or GRU, dense, forward


def goal(work: str, size: Size, ragged: bool, training: bool) -> float | None:
    """The goal of a row; None where none was set.

    >>> goal("gru", Size(100, 32, 256), ragged=True, training=True)
    2.2
    """
    kind = "LSTM or GRU" if work in ("lstm", "gru") else "other"
    key = (kind, "ragged" if ragged else "dense", "train" if training else "forward")
    if key not in GOALS or size.H not in HIDDEN:
        return None
    if key == ("LSTM or GRU", "dense", "forward") and size.B == 1:
        return ONE_SEQUENCE
    return GOALS[key][HIDDEN.index(size.H)]
