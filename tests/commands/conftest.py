"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from ir_files import Net
from stepnet.cli import app

CASES = Path(__file__).parent.parent / "openvino" / "cases"
ODD = "a<b>&\"'[red]x[/] \n\x9b31mü/.."  # for XML, markup, terminals and file names


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def stepnet(monkeypatch):
    """Run a command: its exit code, and what it wrote."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def invoke(*arguments: object) -> Ended:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def cases() -> Path:
    return CASES


@pytest.fixture
def odd(tmp_path) -> Path:
    """A loop in which every name is odd, and names are used twice."""
    net = Net()
    x, h0 = net.parameter(f"x{ODD}", "2,5,3"), net.parameter("self", "2,1,3")
    body = net.body()
    x_t, h = body.parameter(ODD, "2,1,3"), body.parameter(ODD, "2,1,3")
    total = body.add("Add", [h, x_t], name=f"add{ODD}")
    result = body.result(body.add("Tanh", [total], name=f"add{ODD}"), name=f"r{ODD}")
    rows = (
        f'<input external_port_id="0" internal_layer_id="{x_t[0]}" axis="1"/>'
        f'<input external_port_id="1" internal_layer_id="{h[0]}"/>'
        f'<output external_port_id="2" internal_layer_id="{result}" axis="1"/>'
    )
    edge = f'<edge from-layer="{result}" to-layer="{h[0]}"/>'
    loop = net.loop(body, [x, h0], rows, edge, dims=[(2, 5, 3)])
    net.result(loop, name=f"y{ODD}")
    return net.write(tmp_path)
