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


OPTIMISED = False  # the text is looked at; it names lines of this file
KINDS = {  # of 9 features, products are those of many rows; of 3, they are made row by row
    "rnn": (cells.RNN, 9),
    "small_rnn": (cells.RNN, 3),
    "layer_norm_rnn": (LayerNormRNN, 9),
    "greedy": (Greedy, 9),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_source_is_the_one_on_file(name):
    torch.manual_seed(0)
    kind, hidden = KINDS[name]
    cell = kind(2, hidden)
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
    kind, hidden = KINDS[name]
    cell = kind(2, hidden)
    x = torch.randn(4, 5, 2)
    text = (GOLDEN / f"{name}.c").read_text()
    assert "/* scan of forward" in text
    assert "/* scan of backward" in text
    fast, plain = (stepnet.recurrent(cell, x, backend=b)[0] for b in ("c", "naive"))
    torch.testing.assert_close(fast, plain)


def test_a_number_that_a_condition_picks_is_read_before_the_loop():
    """Inside, compilers of C read it for some lanes of a vector alone, and then have no vectors."""
    number, of_rows = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.ones(2, 1))

    def step(x, h):
        h = torch.where(x > 0, torch.tanh(h), number) + torch.where(h > x, of_rows, h)
        return h, h

    x, h = torch.randn(4, 5, 2, 3), torch.zeros(5, 2, 3)
    source = stepnet.explain(step, x, h, source=True, backend="c").source
    picked = [line for line in source.splitlines() if " ? " in line and "const float v" in line]
    assert picked
    assert not [line for line in picked if "_at[0]" in line or "_at[j0]" in line]
    ours, theirs = (stepnet.recurrent(step, x, h, backend=name)[0] for name in ("c", "naive"))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("features", "passes"), [(31, 1), (32, 2)])
def test_a_function_of_what_others_made_waits_for_the_next_pass(features, passes):
    """One long chain of such functions leaves a CPU too little to do at a time."""

    def step(x, h):
        h = torch.tanh(torch.sigmoid(h) * x.exp() + h.tanh())
        return h, h

    x, h = torch.randn(4, 5, features), torch.zeros(5, features)
    source = stepnet.explain(step, x, h, source=True, backend="c").source
    assert source.count("omp simd") == passes
