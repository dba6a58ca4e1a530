"""Plans as bytes: what is read back is what was written, and bytes from outside are data, never more."""

from __future__ import annotations

import contextlib
import json
import random
import re
from dataclasses import replace

import pytest
import torch

from covering import few
from plan_steps import DTYPE, KALMAN, cell
from plans import entry_of, plans_made, read_back
from stepnet.compiler import stored
from stepnet.data.bounded_cache import Bounded
from stepnet.data.lod import LoDTensor
from stepnet.engine import plans
from stepnet.errors import Unsupported
from stepnet.executors.c import source as c_source
from stepnet.executors.ready import make_ready
from stepnet.executors.schedule import adopt
from stepnet.executors.torch_ops.executor import TORCH_OPS
from stepnet.ir.verify import verify

PLANS_ON_DISK = False  # plans are written and read here


def _odd(x, h):
    """Constants, numbers, lists and texts among the arguments of calls; y of every structure."""
    h = torch.cumsum(h + x, -1) * torch.tensor([1.0, -0.5, 2.0], dtype=DTYPE)
    low = torch.searchsorted(torch.tensor([0.0, 1.0], dtype=DTYPE), h.detach().contiguous(), right=True)
    h = torch.where(h > float("inf"), h, torch.div(h, 2.0, rounding_mode="floor") + h)
    h = h + h.gather(1, h.argmax(1, keepdim=True))
    return {"a": [low, (h, None)], 2: h.topk(2, -1)[0].flip(-1)}, h


def _turned(x, h):
    """Complex numbers, carried and shown."""
    h = h * torch.polar(torch.sigmoid(x), x) + torch.complex(x, -x)
    return (h, h.abs()), h


_WEIGHT = torch.randn(9, 3, dtype=DTYPE, requires_grad=True)


def _sliced(x, h):
    """One weight by its slices."""
    h = torch.tanh(x @ _WEIGHT[:3] + h @ _WEIGHT[3:6].roll(1, 1))
    return h, h


STEPS = {
    **{name: cell(name) for name in ("LSTM", "GRU", "LayerNormLSTM", "MinGRU")},
    "slices of a weight": (_sliced, torch.zeros(2, 3, dtype=DTYPE)),
    "a Kalman filter": KALMAN,
    "odd calls": (_odd, torch.zeros(2, 3, dtype=DTYPE)),
    "complex numbers": (_turned, torch.ones(2, 3, dtype=torch.complex128)),
}
X = LoDTensor.from_lengths(torch.randn(3, 3, dtype=DTYPE, requires_grad=True), [[2, 1]])
_made: dict = {}


def plan_of(name):
    """A compiled step, its bytes, and what `load` is given beside them."""
    if name not in _made:
        step, state = STEPS[name]
        with pytest.MonkeyPatch.context() as patch, plans_made() as made:
            patch.setattr(
                plans, "_entries", Bounded(plans._entries.most)
            )  # other tests have plans of these steps
            entry_of(step, X, state)
        [(compiled, given)] = made
        data = read_back(compiled, given)
        assert data is not None
        _made[name] = compiled, data, given
    return _made[name]


@pytest.mark.parametrize("name", few(STEPS, ["complex numbers", "a Kalman filter", "odd calls"]))
def test_what_is_written_is_read_back(name):
    assert plan_of(name)[1] is not None


EVIL = "*/ EVIL(); /*"
TEXTS = [
    EVIL, "EVIL\n#error EVIL", "EVIL\\", "??/EVIL", "*\\\n/EVIL();/*", "\0EVIL", "EVIL\u2028EVIL", "for",
    "a", "v1; EVIL()", "v1_copy0", "zero_0", "d_0", "w0", "float64", "float16", "system", "opaque",
    "randn", "shift", "aten.from_file.default", "os.system.default", "prim.EVIL.default", "aten.add_.Tensor",
    "../EVIL", "load", "aten.cumsum.out", "E" * 2000, "state[0]", "const_EVIL",
]  # fmt: skip
NUMBERS = [
    -1, 0, 1, 2, 7, 1 << 20, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 64, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), True, False,
]  # fmt: skip
OTHERS = [None, [], {}, [[]], [None], {"EVIL": 1}, [["EVIL"]]]


def places(found, at=()):
    """Where everything in a tree of JSON is."""
    yield at
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def changed(found, at, value):
    """A copy with another value at a place; a key of a dict in place of the value now and then."""
    copy = json.loads(json.dumps(found))
    if not at:
        return value
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


def held_to_the_rules(loaded):
    """A plan that is taken keeps the rules of the IR, runs or is refused, and brings no text into C."""
    verify(loaded.joint.graph, "joint")
    for plan in (loaded.fused, loaded.hoisted):
        verify(plan, "plan")
    loops = [adopt.adopt(loop) for loop in (loaded.fused.forward, loaded.fused.backward) if loop is not None]
    for loop in loops:
        for region in loop.regions:
            if region.kind == "scan":
                try:
                    text = c_source.write(loop, region, "run").text
                except Unsupported:
                    continue
                assert text.isascii()
                assert "??" not in text
                code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
                assert not re.search(r"EVIL\s*\(|#\s*error|\\", code)
    with contextlib.suppress(Unsupported):
        make_ready(TORCH_OPS, loaded.hoisted)


def tried(data, given):
    """What becomes of bytes: True if they are taken."""
    try:
        loaded = stored.load(data, *given)
    except Unsupported:
        return False
    held_to_the_rules(loaded)
    return True


def test_no_line_reaches_c_but_in_a_comment():
    """What a file says of the user's lines: of each call another one."""
    _, data, given = plan_of("GRU")
    found = json.loads(data)
    short = [text for text in TEXTS if len(text) <= 1000]
    for start in range(0, len(short), len(found["nodes"])):
        for node, text in zip(found["nodes"], short[start:] + short, strict=False):
            node[4] = text
        assert tried(json.dumps(found).encode(), given)
    for text in {*TEXTS} - {*short}:
        found["nodes"][0][4] = text
        assert not tried(json.dumps(found).encode(), given)


@pytest.mark.parametrize("text", few(TEXTS, [*TEXTS[:7], *TEXTS[8:18:3], *TEXTS[-4:]]))
def test_no_name_reaches_c(text):
    """Of a step's own inputs."""
    _, data, given = plan_of("GRU")
    signature, *rest = given
    named = json.loads(data.replace(b'"state"', json.dumps(text).encode()))
    if not re.match("[vwd][0-9_]", text):  # else it is the name of another value, too
        assert tried(json.dumps(named).encode(), (replace(signature, state_names=(text,)), *rest)) == (
            len(text) <= 1000
        )


@pytest.mark.parametrize("gone", ["flow", "requires"])
def test_a_gradient_that_is_computed_is_said_to_flow(gone):
    """Where it is not, training would lose it in silence: the self-check has a sequence of no steps, whose
    final state is its first one, gradient and all."""
    _, data, given = plan_of("GRU")
    found = json.loads(data)
    assert any(found[gone])
    found[gone] = [[] for _ in found[gone]]
    with pytest.raises(Unsupported, match="how gradients flow"):
        stored.load(json.dumps(found).encode(), *given)


def test_a_call_that_no_rule_knows_is_not_written():
    with plans_made() as made:
        entry_of(lambda x, h: (torch.i0(h), h + x), X, torch.zeros(2, 3, dtype=DTYPE))
    [(compiled, given)] = made
    assert any(node.op == "opaque" for node in compiled.joint.graph.nodes)
    assert stored.dump(compiled, *given) is None


def test_a_call_of_torch_is_not_read():
    _, data, given = plan_of("GRU")
    found = json.loads(data)
    node = next(node for node in found["nodes"] if node[0] == "tanh")
    node[0] = "opaque"
    for attrs in ({}, {"target": "aten.tanh.default", "args": [["input", 0]], "kwargs": []}):
        node[3] = attrs
        with pytest.raises(Unsupported, match="an op"):
            stored.load(json.dumps(found).encode(), *given)


@pytest.fixture
def times(pytestconfig):
    return 200 if pytestconfig.getoption("exhaustive") else 30


@pytest.mark.parametrize("name", few(["GRU", "a Kalman filter", "odd calls"], ["GRU"]))
def test_bytes_with_changes_are_no_plan_or_one_that_keeps_the_rules(name, times):
    _, data, given = plan_of(name)
    rng = random.Random(name)
    for _ in range(4 * times):
        other = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(other))
            how = rng.randrange(4)
            if how == 0:
                other[at] = rng.randrange(256)
            elif how == 1:
                other[at] = rng.choice(b"0123456789")
            elif how == 2:
                del other[at : at + rng.choice((1, 1, 30))]
            else:
                start = rng.randrange(len(data))
                other[at:at] = data[start : start + rng.choice((1, 10, 100))]
        tried(bytes(other), given)


@pytest.mark.parametrize("name", few(["GRU", "a Kalman filter", "odd calls"], ["GRU"]))
def test_fields_with_crafted_values_are_no_plan_or_one_that_keeps_the_rules(name, times):
    _, data, given = plan_of(name)
    found = json.loads(data)
    spots = list(places(found))
    rng = random.Random(name)
    for _ in range(5 * times):
        other = found
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.choice(spots)
            value = rng.choice(rng.choice((TEXTS, NUMBERS, OTHERS)))
            try:
                other = changed(other, at, value)
            except (KeyError, IndexError, TypeError):  # the place went with an earlier change
                continue
        tried(json.dumps(other).encode(), given)


def restructured(found, rng, at):
    """A copy that is right in form, with something in the place of another thing of its kind."""
    copy = json.loads(json.dumps(found))
    values, nodes, results = copy["values"], copy["nodes"], copy["results"]
    names = [entry[0] for entry in values]
    ways = ("flow", "requires", "paired", "results", "shape", "kind", "dtype", "size", "reads", "node")
    how = ways[at % len(ways)]
    if how in ("flow", "requires"):
        row = [rng.randrange(len(results) + 1) for _ in range(rng.randrange(4))]
        copy[how][rng.randrange(len(copy[how]))] = rng.choice((row, sorted(set(row))))
    elif how == "paired":
        copy["paired"] = rng.choice(([0], [1, 0], sorted({rng.randrange(4), rng.randrange(4)})))
    elif how == "results":
        results[rng.randrange(len(results))] = rng.choice((None, *names))
    elif how in ("shape", "kind", "dtype"):
        field = ("kind", "shape", "dtype").index(how) + 1
        rng.choice(values)[field] = rng.choice(values)[field]
    elif how == "size":
        entry = rng.choice(values)
        entry[2] = [rng.choice((0, 5, 1 << 40)), *entry[2][1:]]
    elif how == "reads":
        reads = rng.choice([node[1] for node in nodes if node[1]])
        reads[rng.randrange(len(reads))] = rng.choice(names)
    else:
        one, other = rng.choice(nodes), rng.choice(nodes)
        one[0], other[0] = other[0], one[0]
        one[3], other[3] = other[3], one[3]
    return copy


GUARDS = (
    "how gradients flow",
    "which results are complex",
    "the size of its",
    "the gradient of",
    "the new '",
)


@pytest.mark.exhaustive
def test_what_is_right_in_form_is_held_against_the_step(times, monkeypatch):
    """Each guard is what refuses some of it; what all let by keeps the rules."""
    refused = set()

    def noted(right, what):
        if not right:
            refused.add(what)
            raise Unsupported(what)

    monkeypatch.setattr(stored, "_check", noted)
    for name in ("GRU", "odd calls", "complex numbers"):
        _, data, given = plan_of(name)
        found, rng = json.loads(data), random.Random(name)
        assert sum(tried(json.dumps(restructured(found, rng, at)).encode(), given) for at in range(times))
    assert [guard for guard in GUARDS if not any(what.startswith(guard) for what in refused)] == []
