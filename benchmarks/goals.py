"""What is to be reached: the fastest peer's time over ours, by cell, size, kind of work and element type."""

from __future__ import annotations

from .work import Size

# The sizes in the order of the tuples below; rows of one sequence, the last, have no ragged form.
_SIZES: tuple[str, ...] = ("100,32,64", "500,32,64", "1000,8,128", "100,32,256", "50,128,512", "200,1,128")
_LSTM = {
    ("ragged", "train", "float32"): (3.0, 4.5, 4.0, 2.6, 2.6),
    ("dense", "train", "float32"): (1.5, 2.2, 2.2, 1.6, 1.6, 2.0),
    ("ragged", "forward", "float32"): (2.0, 2.6, 2.4, 2.2, 1.8),
    ("dense", "forward", "float32"): (1.3, 1.6, 1.6, 1.4, 1.3, 1.5),
    ("ragged", "train", "bfloat16"): (3.0, 4.0, 4.0, 2.5, 2.5),
    ("dense", "train", "bfloat16"): (1.3, 1.6, 1.6, 1.3, 1.3, 2.5),
    ("ragged", "forward", "bfloat16"): (2.0, 2.5, 2.5, 2.0, 2.0),
}
# Other cells in float32, by hidden size.
_HIDDEN = (64, 128, 256, 512)
_GRU = {
    ("ragged", "train"): (3.0, 2.4, 2.2, 2.0),
    ("ragged", "forward"): (2.6, 2.2, 2.0, 1.6),
    ("dense", "train"): (1.5, 1.25, 1.1, 1.05),
    ("dense", "forward"): (1.5, 1.15, 1.0, 1.0),
}
_OTHER = {
    ("ragged", "train"): (9.0, 8.0, 5.0, 2.5),
    ("dense", "train"): (4.5, 4.0, 3.5, 2.3),
}
_ONE_SEQUENCE = 2.0  # GRU, dense, forward


def goal(work: str, size: Size, ragged: bool, training: bool, dtype: str = "float32") -> float | None:
    """The goal of a row; None where none was set.

    Args:
        dtype: the element type of products, "float32" or "bfloat16".

    >>> goal("lstm", Size(100, 32, 256), ragged=True, training=True)
    2.6
    """
    key = ("ragged" if ragged else "dense", "train" if training else "forward")
    if work == "lstm":
        reached = _LSTM.get((*key, dtype), ())
        return dict(zip(_SIZES, reached, strict=False)).get(str(size))
    if dtype != "float32" or size.H not in _HIDDEN:
        return None
    if work == "gru" and size.B == 1 and key == ("dense", "forward"):
        return _ONE_SEQUENCE
    by_hidden = (_GRU if work == "gru" else _OTHER).get(key)
    return None if by_hidden is None else by_hidden[_HIDDEN.index(size.H)]
