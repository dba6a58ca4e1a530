"""Mutates ONNX files and reads them: only a model or an IRError comes out, soon and in little memory; and so
from a run of what was read.

`python tests/onnx/fuzz.py 100000 [seed]` prints counts, and stops at the first other outcome.
"""

from __future__ import annotations

import os
import random
import re
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import torch
from onnx import AttributeProto, ModelProto

import stepnet
import stepnet.onnx
from stepnet.errors import IRError

KINDS = (
    r"test_(lstm|gru|simple_rnn|scan|loop|if|sequence|reversesequence|split|gather|reshape|slice|pad|conv"
    r"|tile|gridsample|col2im|roialign|nonmax|melweight)"
)
NUMBERS = [0, 1, -1, 2, 3, 7, 255, 2**16, 2**31, 2**40, 2**63 - 1, -(2**63)]
WORDS = ["", "x", "Relu", "Scan", "Loop", "If", "LSTM", "reverse", "forward", "ai.onnx", "½"]
WHOLE = re.compile(r"changed\.onnx: .+\n  got:      .+\n  expected: .+\n  remedy:   .+")
SLOW, HUGE = 20.0, 2**30  # seconds, bytes


Files = list[tuple[bytes, list[np.ndarray]]]


def nodes() -> Files:
    """Files and inputs of node tests of the wheel of onnx."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if re.match(KINDS, case.name)]
    return [(case.model.SerializeToString(), list(case.data_sets[0][0])) for case in cases]


def written() -> Files:
    """What we write."""
    x, found = torch.ones(3, 2, 2), []
    with tempfile.TemporaryDirectory() as folder:
        for cell in (stepnet.cells.GRU(2, 2), stepnet.cells.MinGRU(2, 2), stepnet.cells.PeepholeLSTM(2, 2)):
            stepnet.onnx.save(stepnet.Recurrent(cell), path := Path(folder) / "m.onnx", (x,))
            found.append((path.read_bytes(), [x.numpy()]))
    return found


HEAD = '<ir_version: 10, opset_import: ["": 18, "my": 1]>'
OF_FUNCTIONS = """g (float[N,3] x) => (float[N,3] y) { a = my.twice <k = 2.0> (x)  y = my.both(a, x) }
<domain: "my", opset_import: ["": 18, "my": 1]> twice <k> (u) => (v)
{ c = Constant<value_float: float = @k>()  w = Mul(u, c)  v = my.inner(w) }
<domain: "my", opset_import: ["": 18]> inner (u) => (v) { v = Tanh(u) }
<domain: "my", opset_import: ["": 18]> both (u, z) => (v) { s = Add(u, z)  v = Relu(s) }"""
NESTED = """g (float[N,3] x, bool c) => (float[N,3] y) { y = If(c) <
  then_branch = t () => (a) { n = Constant<value = int64 {3}>()  go = Constant<value = bool {1}>()
    a = Loop(n, go, x) <body = b (int64 i, bool d, float[N,3] s) => (bool e, float[N,3] r) {
      e = Identity(d)  z = Constant<value = int64 {1}>()  l = Less(i, z)
      r = If(l) <then_branch = p () => (q) { q = Add(s, x) }, else_branch = o () => (m) { m = Neg(s) }> }> },
  else_branch = f () => (k) {
    k = Scan(x) <num_scan_inputs = 1, body = w (float[3] row) => (float[3] out) { out = Tanh(row) }> }> }"""
OUTSIDE = "g (float[N,4] x) => (float[N,4] y) { p = MatMul(x, w)  y = Add(p, b) }"
PLACES = ["w.bin", "../w.bin", "/etc/passwd", "link.bin", "there/w.bin", "fifo", "w.bin\0x", ".", "w.bin/",
          "a" * 5000, "-1", "64", "81", "9" * 19, "1e3", "0x10"]  # fmt: skip


def special() -> Files:
    """Functions of a file's own, loops and branches in one another, and constants outside the file."""
    models = [onnx.parser.parse_model(HEAD + text) for text in (OF_FUNCTIONS, NESTED, OUTSIDE)]
    for name, dims, offset in (("w", (4, 4), 0), ("b", (4,), 64)):
        tensor = models[2].graph.initializer.add(name=name, data_type=1, dims=dims, data_location=1)
        for key, value in (("location", "w.bin"), ("offset", offset), ("length", 4 * int(np.prod(dims)))):
            tensor.external_data.add(key=key, value=str(value))
    x = np.ones((2, 3), np.float32)
    inputs = [[x], [x, np.array(True)], [np.ones((2, 4), np.float32)]]
    return [(model.SerializeToString(), given) for model, given in zip(models, inputs, strict=True)]


def around(folder: Path) -> None:
    """What constants outside a file may meet in its folder."""
    (folder / "w.bin").write_bytes(bytes(80))
    for name, to in (("link.bin", "/etc/passwd"), ("there", "/tmp")):
        (folder / name).symlink_to(to)
    os.mkfifo(folder / "fifo")


def _special(model: ModelProto, rng: random.Random) -> None:
    """Change a function of the file's own, or where a constant lies."""
    outside = [tensor for tensor in model.graph.initializer if tensor.external_data]
    if outside:
        entry = rng.choice(rng.choice(outside).external_data)
        entry.value = rng.choice(PLACES)
        return
    names = [f.name for f in model.functions]
    function = rng.choice(model.functions)
    node, kind = rng.choice(function.node), rng.randrange(6)
    if kind < 2:
        node.op_type, node.domain = rng.choice(names), rng.choice(["my", ""])  # itself, too
    elif kind == 2 and node.input:
        node.input[0] = rng.choice(["u", "v", "z", "", *names])
    elif kind == 3:
        function.name = rng.choice(names)
    elif kind == 4 and function.input:
        del function.input[0]
    else:
        model.functions.remove(function)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: of bytes, or of what the file says."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _bytes(data, rng) if rng.random() < 0.4 else _content(data, rng)
    return data


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    at, kind = rng.randrange(len(changed)), rng.randrange(3)
    if kind == 0:
        changed[at] = rng.randrange(256)
    elif kind == 1:
        del changed[at : at + rng.randrange(1, 9)]
    else:
        changed[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(changed)


def _content(data: bytes, rng: random.Random) -> bytes:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # bytes were changed before
        return _bytes(data, rng)
    if rng.random() < 0.7 and (model.functions or any(t.external_data for t in model.graph.initializer)):
        _special(model, rng)
        return model.SerializeToString()
    graphs = [model.graph]
    for graph in graphs:  # grows
        graphs += [a.g for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
    graph = rng.choice(graphs)
    nodes = list(graph.node)
    kind = rng.randrange(9)
    if nodes and kind < 6:
        node = rng.choice(nodes)
        if kind == 0 and node.attribute:
            attribute = rng.choice(list(node.attribute))
            if rng.random() < 0.2:
                node.attribute.remove(attribute)
            elif attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
            elif attribute.type == AttributeProto.INT:
                attribute.i = rng.choice(NUMBERS)
            else:
                attribute.type = rng.randrange(1, 12)
        elif kind == 1 and node.input:
            names = [v.name for v in (*graph.input, *graph.initializer)] + [
                o for n in nodes for o in n.output
            ]
            texts = [name for name in names if isinstance(name, str)]  # bytes were changed before
            node.input[rng.randrange(len(node.input))] = rng.choice([*texts, *WORDS])
        elif kind == 2:
            kinds = [n.op_type for n in nodes if isinstance(n.op_type, str)]
            node.op_type = rng.choice(kinds + WORDS)
        elif kind == 3 and node.input:
            del node.input[rng.randrange(len(node.input))]
        elif kind == 4 and node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(WORDS)
        else:
            graph.node.remove(node)
    elif kind == 6 and graph.initializer:
        tensor = rng.choice(list(graph.initializer))
        if tensor.dims and rng.random() < 0.6:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        else:
            tensor.data_type = rng.randrange(25)
    elif kind == 7 and graph.input:
        kept = rng.choice(list(graph.input))
        if rng.random() < 0.5:
            kept.type.tensor_type.elem_type = rng.randrange(25)
        else:
            graph.input.remove(kept)
    elif model.opset_import:
        model.opset_import[0].version = rng.choice(NUMBERS)
    return model.SerializeToString()


def whole(error: IRError) -> None:
    """An error says where, what was given, what was expected, and the remedy."""
    assert WHOLE.fullmatch(str(error)), str(error)


def outcome(path: Path, inputs: list[np.ndarray]) -> str:
    """What comes out of reading a file, and of running it where it holds no loop without an end."""
    try:
        model = stepnet.onnx.load(path)
    except IRError as error:
        whole(error)
        return "IRError"
    if b"Loop" in path.read_bytes():
        return "model"
    try:
        with torch.no_grad():
            model(*inputs)
    except IRError as error:
        whole(error)
        return "model, IRError when run"
    return "model that runs"


def fuzz(count: int, seed: int, folder: Path, found: Files) -> Counter[str]:
    """Outcomes of so many files, each one of those changed.

    Raises:
        AssertionError: one took too long or too much memory; the file stays.
        Exception: whatever else came out of one.
    """
    rng, path = random.Random(seed), folder / "changed.onnx"
    counts: Counter[str] = Counter()
    before = stepnet.get_backend()
    stepnet.set_backend("naive")
    if not (folder / "w.bin").exists():
        around(folder)
    try:
        for _ in range(count):
            data, inputs = rng.choice(found)
            path.write_bytes(mutate(data, rng))
            start, most = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                counts[outcome(path, inputs)] += 1
            assert time.monotonic() - start < SLOW, path
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < HUGE // 1024, path
    finally:
        stepnet.set_backend(before)
    return counts


if __name__ == "__main__":
    assert onnx.__version__
    place = Path(tempfile.mkdtemp())
    print(f"files: {place}")
    print(
        fuzz(
            int(sys.argv[1]),
            int(sys.argv[2]) if len(sys.argv) > 2 else 0,
            place,
            [*nodes(), *written(), *special()],
        )
    )
