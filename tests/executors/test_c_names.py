"""Names of users in generated C: whatever they are, the code is C and computes the same."""

from __future__ import annotations

import pytest
import torch

from stepnet import recurrent
from stepnet.executors.c import build as c_build
from stepnet.executors.c.text import comment, identifier

OPTIMISED = False
NAMES = [
    "*/ evil(); /*", "a\n#error evil", "\\", "??/", "é", "²", "", " ", "for", "int", "a", "row", "active",
    "before", "memcpy", "h", "h_next", "h_at", "h-at", "h at", "sn_tanh_f64", "SN_WIDTH", "TAKE", "1", "_",
    "__", "\0", "x" * 300,
]  # fmt: skip


def step(x, state):
    new = {name: torch.tanh(h + x[name] * 0.5) for name, h in state.items()}
    return new, new


@pytest.mark.skipif(c_build.available() is not None, reason="no C compiler")
def test_a_step_may_be_called_anything(monkeypatch):
    monkeypatch.setattr(step, "__name__", "*/ evil(); /*\n#error evil")
    x = {name: torch.randn(3, 2, 4, dtype=torch.float64) for name in NAMES}
    state = {name: torch.randn(2, 4, dtype=torch.float64) for name in NAMES}
    ours, last = recurrent(step, x, state, backend="c")
    theirs, end = recurrent(step, x, state, backend="naive")
    for name in NAMES:
        torch.testing.assert_close(ours[name], theirs[name])
        torch.testing.assert_close(last[name], end[name])


@pytest.mark.parametrize("name", NAMES)
def test_an_identifier_is_one_of_c_and_a_comment_stays_one(name):
    found = identifier(name)
    assert found.isascii()
    assert found.isidentifier()
    text = f"/* {comment(name)} */"
    assert text.isascii()
    assert text.count("*/") == 1
    assert "??" not in text
    assert "\\" not in text


def test_where_a_step_is_written_is_no_part_of_what_is_built(monkeypatch):
    built, build = [], c_build.build_together
    monkeypatch.setattr(
        c_build,
        "build_together",
        lambda parts, joined: (built.extend(part.source for part in parts), build(parts, joined))[1],
    )
    text = "def step(x, h):\n    h = torch.tanh(h + x)\n    return h * 2, h\n"
    x, results = torch.randn(3, 2, 4, dtype=torch.float64), []
    for lines in (0, 7):
        namespace = {"torch": torch}
        exec(compile("\n" * lines + text, "a_file.py", "exec"), namespace)
        made = namespace["step"]
        results.append(recurrent(made, x, torch.zeros(2, 4, dtype=torch.float64), backend="c")[0])
    first, second = built
    assert first == second
    assert torch.equal(*results)
    assert "/*" not in first.rpartition("typedef")[2]
