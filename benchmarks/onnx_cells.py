"""Cells as models in ONNX, and what runs them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stepnet
from stepnet import cells

OUTPUT = "output"


def check_installed() -> None:
    """Raise RuntimeError where ONNX Runtime is not there."""
    try:
        import onnxruntime  # noqa: F401

        import stepnet.onnx  # noqa: F401
    except ImportError as error:
        raise RuntimeError("ONNX Runtime is not installed (pip install 'stepnet[bench,onnx]')") from error


class LayerNormLSTM(torch.nn.Module):
    """Normalised sums of gates, and a normalised cell."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = (
            torch.nn.Linear(features, 4 * hidden),
            torch.nn.Linear(hidden, 4 * hidden, bias=False),
        )
        self.of_gates, self.of_cell = torch.nn.LayerNorm(4 * hidden), torch.nn.LayerNorm(hidden)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(n, self.h.in_features), torch.zeros(n, self.h.in_features)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, g, o = self.of_gates(self.x(x) + self.h(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * self.of_cell(c).tanh()
        return h, (h, c)


class Gated(torch.nn.Module):
    """One gate, and a projection of what comes out."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.x, self.h = torch.nn.Linear(features, 2 * hidden), torch.nn.Linear(hidden, 2 * hidden)
        self.out = torch.nn.Linear(hidden, hidden)

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, self.h.in_features)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        gate, new = (self.x(x) + self.h(h)).chunk(2, -1)
        h = h + gate.sigmoid() * (new.tanh() - h)
        return torch.nn.functional.gelu(self.out(h)), h


class Slots(torch.nn.Module):
    """Attention over the last eight values of itself."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.query, self.new = torch.nn.Linear(features, hidden), torch.nn.Linear(features + hidden, hidden)
        self.out = torch.nn.Linear(hidden, hidden)

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 8, self.out.in_features)

    def forward(self, x: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        scores = (slots @ self.query(x).unsqueeze(2)).squeeze(2) / slots.shape[2] ** 0.5
        seen = (scores.softmax(1).unsqueeze(1) @ slots).squeeze(1)
        new = self.new(torch.cat([x, seen], 1)).tanh()
        return self.out(new), torch.cat([slots[:, 1:], new.unsqueeze(1)], 1)


OWN = {"MinGRU": cells.MinGRU, "LayerNormLSTM": LayerNormLSTM, "Gated": Gated, "Slots": Slots}


class Layer(torch.nn.Module):
    """A cell from a state that is given, its leaves one after the other."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def states(self, n: int) -> tuple[Tensor, ...]:
        state = self.cell.initial_state(n)
        return state if isinstance(state, tuple) else (state,)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        y, last = stepnet.recurrent(self.cell, x, states[0] if len(states) == 1 else states)
        return (y, *(last if isinstance(last, tuple) else (last,)))


class Step(Layer):
    """One step of it."""

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        y, new = self.cell(x, states[0] if len(states) == 1 else states)
        return (y, *(new if isinstance(new, tuple) else (new,)))


def session_of(model: Path | bytes) -> Any:
    """What runs a model, on as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Else its threads go on waiting busily for the next run, and take a core from whoever is next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def one(result: Tensor | np.ndarray) -> Mapping[str, Tensor]:
    """The values of a contender with one output."""
    return {OUTPUT: torch.as_tensor(result)}


def findings(rows: Sequence[Any]) -> Mapping[str, float]:
    """The least of the ratios."""
    return {"least ratio": min(ratio.median for row in rows for ratio in row.ratios.values())} if rows else {}
