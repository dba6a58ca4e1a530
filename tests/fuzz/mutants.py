"""Model files of both formats changed by structure: messages and elements moved, copied into one another,
left out, joined to other ends, with other numbers. Each is read, run, inspected and converted; a model or an
error of ours comes out, soon and in little memory.

`python -m fuzz.mutants [first] [count] [onnx|ir]` does so with those of some seeds.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import torch
from google.protobuf.message import Message
from onnx import ModelProto

import stepnet
import stepnet.onnx
import stepnet.openvino
from stepnet.errors import IRError, StepnetError
from stepnet.report.inspect import inspect_model

from .ir_graphs import make_ir, make_ir_inputs
from .onnx_graphs import make_inputs, make_model

TESTS = Path(__file__).parents[1]
NUMBERS = [0, 1, -1, 2, 3, -2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
TEXTS = [
    "",
    "x",
    "y",
    "?",
    "..",
    "½",
    "1.5",
    "nan",
    "1e999",
    "*/",
    "%s",
    "../m.bin",
    "/etc/passwd",
    "a" * 5000,
]
DTD = '<!DOCTYPE n [<!ENTITY a "aa"><!ENTITY b "&a;&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>'
SLOW, HUGE = 15, 2**20  # seconds, kilobytes


@cache
def _helpers(kind: str) -> dict[str, Any]:
    return runpy.run_path(str(TESTS / kind / "fuzz.py"))


@cache
def _files() -> list[tuple[bytes, list[np.ndarray]]]:
    """Node tests, what we write, functions of a file's own, constants outside a file."""
    it = _helpers("onnx")
    found = it["nodes"]() if os.environ.get("STEPNET_FUZZ_ALL") else []
    arrays = [each for each in found if all(_plain(value) for value in each[1])]
    return [*arrays, *it["written"](), *it["special"]()]


def _plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.isbuiltin == 1


# ---- what is changed


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _changed_proto(model: ModelProto, rng: random.Random) -> None:
    every = list(_messages(model))
    message = rng.choice(every)
    if rng.random() < 0.6:  # where most messages are alike, kinds are as likely as one another
        kind = rng.choice(sorted({type(m).__name__ for m in every}))
        message = rng.choice([m for m in every if type(m).__name__ == kind])
    set_ones = [field for field, _ in message.ListFields()]
    if not set_ones:
        return
    field = rng.choice(set_ones)
    alike = [m for m in every if field.message_type and m.DESCRIPTOR is field.message_type]
    if field.is_repeated:
        items: Any = getattr(message, field.name)
        at, to, how = rng.randrange(len(items)), rng.randrange(len(items)), rng.randrange(5)
        if how == 0:
            del items[at]
        elif alike:
            kept = [item.SerializeToString() for item in items]
            other = rng.choice(alike).SerializeToString()
            if how == 1:
                kept.insert(at, other)
            else:
                kept[at] = kept[to] if how == 2 else other
            if how == 4:
                rng.shuffle(kept)
            del items[:]
            for data in kept:
                items.add().ParseFromString(data)
        else:
            items[at] = _other(field, items[at], every, rng)
    elif alike:
        if rng.random() < 0.2:
            message.ClearField(field.name)
        else:  # a body in itself, another type
            getattr(message, field.name).ParseFromString(rng.choice(alike).SerializeToString())
    else:
        setattr(message, field.name, _other(field, getattr(message, field.name), every, rng))


def _other(field: Any, old: Any, every: list[Message], rng: random.Random) -> Any:
    """Another value for a field: one that stands elsewhere, or an odd one."""
    found = []
    for message in every if rng.random() < 0.7 else []:
        for each, value in message.ListFields():
            if each.type == field.type:
                found += [*value] if each.is_repeated else [value]
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if isinstance(old, str):
        return rng.choice(found or TEXTS)
    if isinstance(old, bytes):
        return rng.choice([*found, b"", old[:-1], old + b"\0", rng.randbytes(len(old) % 4096), b"\xff/"])
    if isinstance(old, float):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
    limit = 2**63 if field.type in (field.TYPE_INT64, field.TYPE_UINT64) else 2**31
    least = 0 if field.type in (field.TYPE_UINT64, field.TYPE_UINT32) else -limit
    numbers = [n for n in (*NUMBERS, old + 1, old - 1, -old) if least <= n < limit]
    return rng.choice(found or numbers)


def _changed_tree(root: Any, rng: random.Random) -> None:
    every = list(root.iter())
    kind = rng.choice(sorted({e.tag for e in every}))
    element = rng.choice([e for e in every if e.tag == kind])
    holder = rng.choice([e for e in every if len(e)] or every)
    how = rng.randrange(9)
    if how < 4 and element.attrib:
        name = rng.choice(sorted(element.attrib))
        others = [e.attrib[name] for e in every if name in e.attrib]
        if how == 3 and rng.random() < 0.3:
            del element.attrib[name]
        else:
            odd = [*map(str, NUMBERS), *TEXTS, *("".join(t) for t in root.itertext())]
            element.attrib[name] = rng.choice(others if rng.random() < 0.6 else odd)
    elif how == 4 and element.text and element.text.strip():
        element.text = rng.choice([*map(str, NUMBERS), *TEXTS, "-1"])
    elif how == 5 and len(holder):
        holder.remove(rng.choice(list(holder)))
    elif how == 6 and len(holder) > 1:
        parts = list(holder)
        a, b = rng.sample(range(len(parts)), 2)
        holder[a], holder[b] = parts[b], parts[a]
    elif len(list(element.iter())) * len(every) < 10_000:  # also a body in itself
        new = copy.deepcopy(element)
        alike = [e for e in every if any(c.tag == new.tag for c in e)]
        (rng.choice(alike) if alike and how < 8 else holder).insert(rng.randrange(3), new)


def make(folder: Path, seed: int, form: str) -> tuple[Path, list[np.ndarray]]:
    """The changed file of a seed, and inputs of what it was."""
    rng = random.Random(seed)
    changes = rng.choice((1, 1, 1, 2, 3))
    if form == "onnx":
        path = folder / "changed.onnx"
        if rng.random() < 0.5:
            model = make_model(seed // 8)
            inputs = [*make_inputs(model, seed, 3, 2).values()]
        else:
            data, inputs = rng.choice(_files())
            model = onnx.load_from_string(data)
        for _ in range(changes):
            _changed_proto(model, rng)
        path.write_bytes(model.SerializeToString())
        return path, inputs
    if rng.random() < 0.7:
        path = make_ir(seed // 8, folder)
        text, weights = path.read_text(), path.with_suffix(".bin").read_bytes()
    else:
        text, weights = rng.choice(_helpers("openvino")["seeds"]())
    path = folder / "model.xml"
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:  # a case of what is no XML
        root = ElementTree.fromstring('<net name="n" version="11"><layers/><edges/></net>')
    for _ in range(changes):
        _changed_tree(root, rng)
    text = ElementTree.tostring(root, encoding="unicode")
    path.write_text(DTD + text.replace('name="', 'name="&b;&c;', 1) if rng.random() < 0.01 else text)
    bin_path = path.with_suffix(".bin")
    bin_path.unlink(missing_ok=True)  # the old file stays mapped
    bin_path.write_bytes(weights if rng.random() < 0.9 else weights[: rng.randrange(len(weights) + 1)])
    return path, []


# ---- what comes out


def _inputs(model: Any) -> list[np.ndarray]:
    """Inputs of a model from IR: of those that are made, by their names; else small ones of its shapes."""
    names = [socket.name for socket in model.inputs]
    with contextlib.suppress(KeyError):
        return [*make_ir_inputs(names, 0, 6, 2).values()]
    shapes = [[2 if n == -1 else min(n, 50) for n in socket.shape or (2, 2)] for socket in model.inputs]
    return [
        torch.ones(shape[:4], dtype=socket.dtype).numpy()
        for shape, socket in zip(shapes, model.inputs, strict=True)
    ]


def outcome(path: Path, inputs: list[np.ndarray]) -> str:
    """How far a file comes: read, run, inspected, converted. Only errors of ours end that."""
    reading = stepnet.onnx.load if path.suffix == ".onnx" else stepnet.openvino.load
    reached = "refused"
    model = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = reading(path)
            reached = "read"
            inputs = inputs or _inputs(model)
            given = [torch.from_numpy(value) for value in inputs]
            with torch.no_grad():
                model(*given)
            reached = "run"
        except IRError as error:
            _helpers("onnx" if path.suffix == ".onnx" else "openvino")["whole"](error)
            if model is None:
                return reached
            given = []
        for step in ("inspected", "converted"):
            try:
                if step == "inspected":
                    inspect_model(path, None)
                elif given:
                    it, onnx_path, xml = (
                        tuple(given),
                        path.with_name("again.onnx"),
                        path.with_name("again.xml"),
                    )
                    stepnet.onnx.save(reading(path), onnx_path, it)
                    stepnet.openvino.save(reading(path), xml, *([it] if path.suffix == ".onnx" else []))
                reached = f"{reached}, {step}" if step == "inspected" or given else reached
            except StepnetError:
                reached = f"{reached}, not {step}"
    return reached


def run(first: int, count: int, form: str, folder: Path) -> Counter[str]:
    """How far the files of some seeds come; what is odd begins with "ODD"."""
    counts: Counter[str] = Counter()
    if form == "onnx" and not (folder / "w.bin").exists():
        _helpers("onnx")["around"](folder)

    def too_long(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    for seed in range(first, first + count):
        path, inputs = make(folder, seed, form)
        most, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        signal.alarm(SLOW)
        try:
            found = outcome(path, inputs)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most
            if grown > HUGE:
                found = f"ODD: {grown >> 10} MiB"
            elif time.process_time() - began > SLOW / 2:
                found = "ODD: slow"
        except TimeoutError:
            found = "long" if b"Loop" in path.read_bytes() else f"ODD: {traceback.format_exc()}"
        except BaseException:
            found = f"ODD: {traceback.format_exc()}"
        finally:
            signal.alarm(0)
        counts[found.split("\n")[0]] += 1
        if found.startswith("ODD"):
            print(f"---- seed {seed} ({form}): {found}", flush=True)
    signal.signal(signal.SIGALRM, before)
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    stepnet.set_backend("naive")
    with tempfile.TemporaryDirectory() as place:
        told = run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(place))
    print(dict(told.most_common()))
    sys.exit(any(name.startswith("ODD") for name in told))
