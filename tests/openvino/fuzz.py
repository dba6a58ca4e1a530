"""Mutates real IR files and reads them: only a model or an IRError comes out, soon and in little memory.

`python tests/openvino/fuzz.py 100000 [seed]` prints counts, and stops at the first other outcome.
"""

from __future__ import annotations

import math
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from stepnet.errors import IRError
from stepnet.executors.setting import set_backend
from stepnet.openvino import OpenVINOModel, load

CASES = Path(__file__).parent / "cases"
NUMBERS = [
    "", "0", "1", "-1", "2", "3", "7", "-2", "255", "65536", "2147483648", "1099511627776",
    "9223372036854775807", "-9223372036854775808", "99999999999999999999999",
    "x", "1.5", "nan", "1e999", "?", "..", "-0", "½",
]  # fmt: skip
WORDS = [
    "f32", "f16", "i64", "i4", "boolean", "FP16", "I64", "true", "numpy", "explicit", "Loop", "If", "Add",
    "Reshape", "LSTMCell", "Const", "Parameter", "Result", "opset1", "opset99", "sigmoid", "reverse", "&amp;",
]  # fmt: skip
WHOLE = re.compile(r"model\.(xml|bin): .+\n  got:      .+\n  expected: .+\n  remedy:   .+")
VALUE = re.compile(r'"([^"<>]*)"')
ELEMENT = re.compile(r"<(\w+)\b[^<>]*?(?:/>|>[^<>]*</\1>)")


def whole(error: IRError) -> None:
    """An error says where, what was given, what was expected, and the remedy."""
    assert WHOLE.fullmatch(str(error)), str(error)


def seeds() -> list[tuple[str, bytes]]:
    """Text and weights of every case that is XML."""
    found = []
    for folder in sorted(p for kind in CASES.iterdir() for p in kind.iterdir()):
        try:
            text = (folder / "model.xml").read_text()
        except UnicodeDecodeError:
            continue
        path = folder / "model.bin"
        found.append((text, path.read_bytes() if path.exists() else b""))
    return found


def mutate(text: str, weights: bytes, rng: random.Random) -> tuple[bytes, bytes]:
    """One to four changes: of a value, an element, a piece of text, or the weights."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.randrange(9)
        values = list(VALUE.finditer(text))
        elements = list(ELEMENT.finditer(text))
        if kind <= 3 and values:
            value = rng.choice(values)
            other = rng.choice(values).group(1)
            new = rng.choice([rng.choice(NUMBERS), "", rng.choice(WORDS), other, other])
            text = text[: value.start(1)] + new + text[value.end(1) :]
        elif kind == 4 and elements:
            gone = rng.choice(elements)
            text = text[: gone.start()] + text[gone.end() :]
        elif kind == 5 and len(elements) > 1:
            source, target = rng.choice(elements), rng.choice(elements)
            text = text[: target.start()] + source.group() + text[target.start() :]
        elif kind == 6:
            dims = list(re.finditer(r"<dim>([^<]*)</dim>", text))
            if dims:
                dim = rng.choice(dims)
                text = text[: dim.start(1)] + rng.choice(NUMBERS) + text[dim.end(1) :]
        elif kind == 7 and text:
            start = rng.randrange(len(text))
            stop = min(len(text), start + rng.randrange(1, 40))
            middle = rng.choice(
                ["", text[start:stop] * 2, chr(rng.randrange(1, 0x300)), "<", ">", '"', "]]>", "\0"]
            )
            text = text[:start] + middle + text[stop:]
        elif weights:
            at = rng.randrange(len(weights))
            weights = rng.choice(
                [
                    weights[:at],
                    weights[:at] + rng.randbytes(8) + weights[at + 8 :],
                    weights + rng.randbytes(4),
                ]
            )
    return text.encode("utf-8", "replace"), weights


def run(model: OpenVINOModel, rng: random.Random) -> None:
    """Run a model on small random inputs, where it allows them."""
    inputs = []
    for socket in model.inputs:
        if socket.shape is None:
            return
        shape = [rng.randrange(4) if d == -1 else d for d in socket.shape]
        if math.prod(shape) > 10_000:
            return
        inputs.append(torch.from_numpy(np.random.default_rng(0).integers(0, 3, shape)).to(socket.dtype))
    model(*inputs)


def fuzz(count: int, seed: int, folder: Path, *, running: float = 0.2) -> Counter[str]:
    """Read `count` mutated files; counts of the outcomes, and the slowest.

    Raises:
        AssertionError: something else than a model or an IRError came out, or it took more than a second.
    """
    rng = random.Random(seed)
    models = seeds()
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    xml, weights = folder / "model.xml", folder / "model.bin"
    for i in range(count):
        text, content = mutate(*rng.choice(models), rng)
        xml.write_bytes(text)
        weights.unlink(missing_ok=True)  # the old file stays mapped
        weights.write_bytes(content)
        started = time.process_time()
        try:
            model = load(xml, trainable=rng.random() < 0.2)
            outcome = "model"
        except IRError as error:
            whole(error)
            model, outcome = None, "IRError"
        except BaseException:
            keep(folder, i)
            raise
        took = time.process_time() - started
        if took > 1:
            keep(folder, i)
            raise AssertionError(f"input {i} of seed {seed} took {took:.2f} s")
        slowest = max(slowest, took)
        if model is not None and rng.random() < running and not endless(text):
            try:
                run(model, rng)
                outcome = "model, ran"
            except IRError as error:
                whole(error)
                outcome = "model, IRError when run"
            except BaseException:
                keep(folder, i)
                raise
        outcomes[outcome] += 1
    outcomes["slowest, ms"] = round(slowest * 1000)
    return outcomes


def endless(text: bytes) -> bool:
    """Whether a model may rightly run for long: a Loop whose trip count was changed."""
    return b'type="Loop"' in text


def keep(folder: Path, i: int) -> None:
    """Say where the files of a failure are."""
    print(f"input {i}: see {folder}", file=sys.stderr)


if __name__ == "__main__":
    set_backend("naive")
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp(prefix="stepnet-fuzz-"))
    begin = time.perf_counter()
    total = fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, place)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(dict(total), f"{time.perf_counter() - begin:.0f} s, peak {peak} MiB")
