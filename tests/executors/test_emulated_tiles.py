"""The library on a CPU with tiles: they are emulated, each of their instructions is checked as it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from c_programs import TILE_FLAGS, can_emulate_tiles, emulator_library
from stepnet.executors.c.products import has_tiles

# A process that imports torch anew: where a CPU has tiles, all other tests run by them.
pytestmark = [pytest.mark.exhaustive] if has_tiles() else []

PROGRAM = (
    f"""
import os, threading
import torch
import stepnet
from stepnet.executors.c import build, products, scan
from stepnet.executors.c.products import precision, product

scan.WORTH_SPLITTING = 1
for module in (product, precision):
    module.has_tiles = lambda: True
build._MACHINE_FLAGS = tuple((*flags, *{TILE_FLAGS}) for flags in build._MACHINE_FLAGS)
build._FLAGS = tuple("-O0" if flag == "-O2" else flag for flag in build._FLAGS)
torch.manual_seed(0)
torch.set_num_threads(2)
"""
    + """
H = 64
lengths = [2, 0, 1, 3] + [1] * 12
x = torch.randn(sum(lengths), H)
cell = stepnet.nn.LSTM(H, H)

def run(dtype, backend):
    model = stepnet.nn.LSTM(H, H, dtype=dtype)
    model.load_state_dict(cell.state_dict())
    rows = x.to(dtype).clone().requires_grad_()
    stepnet.set_backend(backend)
    y, (h, c) = model(stepnet.LoDTensor.from_lengths(rows, [lengths]))
    (y.values.double().square().sum() + h.double().sum() + c.double().sum()).backward()
    return [t.detach().double() for t in (y.values, h, c, rows.grad, *(p.grad for p in model.parameters()))]

wanted = run(torch.float64, "naive")

def error(got):
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted, strict=True))

found = {}
for name, most in (("highest", 1e-6), ("high", 1e-4), ("medium", 3e-2), ("highest", 1e-6)):
    torch.set_float32_matmul_precision(name)
    found[name] = error(run(torch.float32, "c"))
    assert found[name] < most, found
assert found["highest"] < found["high"] / 3 < found["medium"] / 9, found

def also():
    found["thread"] = error(run(torch.float32, "c"))

thread = threading.Thread(target=also)
thread.start()
thread.join()
assert found["thread"] < 1e-6
print("done", found)
"""
)


def test_lstm_by_tiles(tmp_path: Path):
    """Each precision, threads, a second thread; ragged, with an empty sequence."""
    if not can_emulate_tiles():
        pytest.skip("tile instructions cannot be emulated here")
    environment = {
        **os.environ, "LD_PRELOAD": str(emulator_library(tmp_path)), "EMULATED_TILES_COUNT": "1",
        "STEPNET_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("done")
    counts = [int(line.split()[0]) for line in done.stderr.splitlines() if line.endswith("products of tiles")]
    assert max(counts) > 500
