"""Cell states that a TensorIterator joins.

OpenVINO (2026.4, CPU) makes an LSTMSequence of one whose body is an LSTMCell, and takes what it joins for the
hidden states: it gives those, where the cell states were asked for.
"""

from __future__ import annotations

from stepnet.openvino.records import Layer
from stepnet.openvino.writing.edit import Editor


def cell_states_told(loop: Layer) -> None:
    """Join the larger of a cell state and itself, in place."""
    body = Editor(loop.bodies[""])
    for row in loop.maps[""].outputs:
        wide = body.net.layers[body.net.layers[row.internal].sources[0][0]]
        if row.axis is None or wide.type.lower() not in ("unsqueeze", "reshape"):
            continue
        state = wide.sources[0]
        if state[1] == 1 and body.net.layers[state[0]].type.lower() == "lstmcell":
            body.rewire(wide, 0, body.twice(state, wide))
    body.done()
