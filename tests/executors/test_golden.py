"""Generated C of small steps, kept as files: a change of the generator shows here as a change of text.

STEPNET_UPDATE_GOLDEN=1 rewrites the files.
"""

import os
from pathlib import Path

import pytest
import torch

import stepnet
from stepnet import cells

GOLDEN = Path(__file__).parent / "golden"


class Greedy(cells.RNN):
    """Reads the word that its state says most."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.words = torch.nn.Embedding(hidden_size, input_size)

    def forward(self, x, state):
        return super().forward(x + self.words(state.argmax(-1)), state)


class LayerNormRNN(cells.RNN):
    """Brings its state to one mean and one spread."""

    def forward(self, x, state):
        y, _ = super().forward(x, state)
        y = torch.nn.functional.layer_norm(y, y.shape[1:])
        return y, y


KINDS = {"rnn": cells.RNN, "layer_norm_rnn": LayerNormRNN, "greedy": Greedy}


@pytest.mark.parametrize("name", KINDS)
def test_the_source_is_the_one_on_file(name):
    torch.manual_seed(0)
    cell = KINDS[name](2, 3)
    x = torch.randn(4, 5, 2)
    found = stepnet.explain(cell, x, source=True, backend="c").source
    path = GOLDEN / f"{name}.c"
    if "STEPNET_UPDATE_GOLDEN" in os.environ:
        path.write_text(found)
    assert found == path.read_text(), "STEPNET_UPDATE_GOLDEN=1 rewrites the file, if the change is meant"


def test_the_sources_are_short_enough_to_be_read():
    lines = {path.name: len(path.read_text().splitlines()) for path in GOLDEN.iterdir()}
    assert not {name: count for name, count in lines.items() if count >= 250}


@pytest.mark.parametrize("name", KINDS)
def test_the_source_on_file_is_headed_by_its_ir_and_gives_the_right_numbers(name):
    torch.manual_seed(0)
    cell = KINDS[name](2, 3)
    x = torch.randn(4, 5, 2)
    text = (GOLDEN / f"{name}.c").read_text()
    assert "/* scan of forward" in text
    assert "/* scan of backward" in text
    fast, plain = (stepnet.recurrent(cell, x, backend=b)[0] for b in ("c", "naive"))
    torch.testing.assert_close(fast, plain)
