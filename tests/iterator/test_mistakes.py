"""Mistakes in port maps and inputs: all of them in one error, each port as it was written."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stepnet import BackEdge, InputPort, LoDTensor, OutputPort, TensorIterator
from stepnet.data.outputs import Outputs
from stepnet.errors import LoopError, OutputError, StepError

PORTS = (InputPort("x", "x", axis=1), InputPort("h0", "h"), OutputPort("y", 1, axis=1), OutputPort("h", 0))
EDGES = (BackEdge(0, "h"),)


def body(x, h):
    h = h + x.squeeze(1)
    return h, h.unsqueeze(1)


def lines(raised):
    """The mistakes that an error lists; what torch says of a body is left out."""
    found = [line.removeprefix("  - ") for line in str(raised.value).splitlines() if line.startswith("  - ")]
    return [re.sub(r"^(the body fails on .*?: ).*", r"\1...", line) for line in found]


def make(*ports, edges=EDGES, body=body):
    return TensorIterator(body, ports, edges)


MADE = [
    ("a parameter that is not there", (*PORTS, InputPort("x", "z")), EDGES,
     ["InputPort('x', 'z'): the body has no parameter 'z'"]),
    ("a parameter fed twice", (*PORTS, InputPort("x", "x")), EDGES,
     ["InputPort('x', 'x'): InputPort('x', 'x', axis=1) already feeds parameter 'x'"]),
    ("a parameter fed by nothing", PORTS[1:], EDGES, ["no InputPort feeds parameter 'x' of the body"]),
    ("an edge to a slice", PORTS, (*EDGES, BackEdge(1, "x")),
     ["BackEdge(1, 'x'): InputPort('x', 'x', axis=1) cuts slices for this parameter; it cannot be carried as "
      "well"]),
    ("an edge to nothing", PORTS, (*EDGES, BackEdge(1, "z")),
     ["BackEdge(1, 'z'): the body has no parameter 'z'"]),
    ("two edges to one parameter", PORTS, (*EDGES, BackEdge(1, "h")),
     ["BackEdge(1, 'h'): BackEdge(0, 'h') already ends at parameter 'h'"]),
    ("stride 0", (InputPort("x", "x", axis=1, stride=0), *PORTS[1:]), EDGES,
     ["InputPort('x', 'x', axis=1, stride=0): stride must not be 0"]),
    ("a negative part_size", (InputPort("x", "x", axis=1, part_size=-1), *PORTS[1:]), EDGES,
     ["InputPort('x', 'x', axis=1, part_size=-1): part_size must be 1 or more"]),
    ("stride without part_size", (InputPort("x", "x", axis=1, stride=-2), *PORTS[1:]), EDGES,
     ["InputPort('x', 'x', axis=1, stride=-2): part_size 1 and stride -2 differ in size (slices would overlap"
      ", or leave elements out; give part_size=2)"]),
    ("a cut without an axis", (InputPort("x", "x", start=1), *PORTS[1:]), EDGES,
     ["InputPort('x', 'x', start=1): start=1 cuts nothing without an axis"]),
    ("no ints", (InputPort("x", "x", axis=True, end=None), *PORTS[1:]), EDGES,
     ["InputPort('x', 'x', axis=True, end=None): axis must be an int",
      "InputPort('x', 'x', axis=True, end=None): end must be an int"]),
    ("one output twice", (*PORTS, OutputPort("y", 0)), EDGES,
     ["OutputPort('y', 0): OutputPort('y', 1, axis=1) already is output 'y'"]),
    ("no outputs", PORTS[:2], EDGES, ["port_map has no OutputPort: the loop would return nothing"]),
    ("a result before the first", (*PORTS, OutputPort("z", -1)), EDGES,
     ["OutputPort('z', -1): result -1 is neither a position from 0 nor a name"]),
    ("results both ways", (*PORTS, OutputPort("z", "z")), EDGES,
     ["results are read by position and by name: a body returns a tuple or a dict, not both"]),
    ("no ports", (*PORTS, "x"), (*EDGES, (0, "h")),
     ["port_map holds 'x', which is neither an InputPort nor an OutputPort",
      "back_edges holds (0, 'h'), which is no BackEdge"]),
    ("many at once", (InputPort("x", "z"), OutputPort("y", 0, axis=0, stride=0)), (BackEdge(0, "q"),),
     ["OutputPort('y', 0, axis=0, stride=0): stride must not be 0",
      "InputPort('x', 'z'): the body has no parameter 'z'",
      "no InputPort feeds parameter 'x' of the body", "no InputPort feeds parameter 'h' of the body",
      "BackEdge(0, 'q'): the body has no parameter 'q'"]),
]  # fmt: skip


@pytest.mark.parametrize(("ports", "edges", "expected"), [m[1:] for m in MADE], ids=[m[0] for m in MADE])
def test_port_maps_are_checked_when_made(ports, edges, expected):
    with pytest.raises(LoopError, match="TensorIterator over 'body'") as raised:
        make(*ports, edges=edges)
    assert lines(raised) == expected


def test_an_edge_needs_a_first_value():
    ports = (PORTS[0], *PORTS[2:])
    with pytest.raises(LoopError, match=r"no InputPort gives parameter 'h' its first value"):
        make(*ports, body=lambda x, h=None: body(x, h))
    with pytest.raises(LoopError, match="no InputPort feeds parameter 'h'"):
        make(*ports)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "must be callable"),
        (lambda *args: args, r"ports feed parameters by name"),
        (torch.tanh, "its parameters are not known"),
    ],
    ids=["number", "args", "builtin"],
)
def test_bodies_that_ports_cannot_feed(wrong, message):
    with pytest.raises(LoopError, match=message):
        make(*PORTS, body=wrong)


def test_an_unknown_backend():
    with pytest.raises(StepError, match="no such backend"):
        TensorIterator(body, PORTS, EDGES, backend="cuda")


GIVEN = {"x": (2, 6, 3), "h0": (2, 3)}


def cut(**how):
    return InputPort("x", "x", axis=1, **how)


SHAPES = [
    ("unknown and missing", PORTS, {"x": (2, 6, 3), "z": (1,)},
     ["there is no input 'z'", "input 'h0' is not given"]),
    ("no shape", PORTS, GIVEN | {"h0": "wide"}, ["input 'h0' is str: neither a shape nor a tensor"]),
    ("no axis", (InputPort("x", "x", axis=3), *PORTS[1:]), GIVEN,
     ["InputPort('x', 'x', axis=3): input 'x' has no axis 3: it is [2, 6, 3]"]),
    ("outside", (cut(start=2, end=8), *PORTS[1:]), GIVEN,
     ["InputPort('x', 'x', axis=1, start=2, end=8): the slice of 'x' along axis 1 lies outside the tensor "
      "(got: start=2, end=8, stride=1, part_size=1 over 6 elements, expected: 0 <= start <= end <= 6, "
      "remedy: start=0, end=-1 take all of it; with a negative stride start=-1, end=0)"]),
    ("the wrong way round", (cut(start=-1, end=0), *PORTS[1:]), GIVEN,
     ["InputPort('x', 'x', axis=1, start=-1, end=0): the slice of 'x' along axis 1 lies outside the tensor "
      "(got: start=-1, end=0, stride=1, part_size=1 over 6 elements, expected: 0 <= start <= end <= 6, "
      "remedy: start=0, end=-1 take all of it; with a negative stride start=-1, end=0)"]),
    ("does not divide", (cut(stride=4, part_size=4), PORTS[1], PORTS[3]), GIVEN,
     ["InputPort('x', 'x', axis=1, stride=4, part_size=4): the slice of 'x' along axis 1 does not divide into"
      " steps (got: start=0, end=-1, stride=4, part_size=4 over 6 elements, expected: a multiple of 4 "
      "elements, remedy: end=4 leaves out the rest)",
      "the body fails on x float32[2, 4, 3], h float32[2, 3]: ..."]),
    ("a state of another shape", PORTS, GIVEN | {"h0": (1, 3)},
     ["BackEdge(0, 'h'): the state is float32[1, 3] and becomes float32[2, 3]"]),
    ("a state of another dtype", PORTS, GIVEN | {"h0": torch.empty(2, 3, dtype=torch.float16)},
     ["BackEdge(0, 'h'): the state is float16[2, 3] and becomes float32[2, 3]"]),
    ("counts", (cut(), *PORTS[1:2], OutputPort("y", 1, axis=1, start=0, end=4)), GIVEN,
     ["ports count different numbers of iterations: 6 by InputPort('x', 'x', axis=1), 4 by OutputPort('y', "
      "1, axis=1, end=4)"]),
    ("the body fails", PORTS, GIVEN | {"h0": (2, 5)},
     ["the body fails on x float32[2, 1, 3], h float32[2, 5]: ..."]),
    ("results", (*PORTS, OutputPort("z", 2), OutputPort("w", 0, axis=2), OutputPort("v", 0, axis=1)), GIVEN,
     ["it returns 2 results by position: there is no result 2",
      "OutputPort('w', 0, axis=2): result 0 has no axis 2: it is [2, 3]",
      "OutputPort('v', 0, axis=1): result 0 must have part_size=1 elements along axis 1: it is [2, 3]"]),
    ("no last value", (*PORTS, OutputPort("last", 1)), GIVEN | {"x": (2, 0, 3)},
     ["OutputPort('last', 1): there is no iteration to take the last value of, and no back edge"]),
]  # fmt: skip


@pytest.mark.parametrize(("ports", "given", "expected"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_infer_shape_lists_all_that_does_not_fit(ports, given, expected):
    with pytest.raises(LoopError, match="TensorIterator over 'body'") as raised:
        make(*ports).infer_shape(**given)
    assert lines(raised) == expected


def test_infer_shape_lists_mistakes_of_every_kind_at_once():
    ports = [InputPort("x", "x", axis=1), InputPort("y", "y", axis=0), InputPort("h0", "h")]
    ports += [OutputPort("z", 3), OutputPort("h", 0)]
    loop = TensorIterator(lambda x, y, h: (torch.cat([h, h]), y), ports, [BackEdge(0, "h")])
    with pytest.raises(LoopError) as raised:
        loop.infer_shape(x=(2, 6, 3), y=(5, 2), h0=(2, 3), extra=(1,))
    assert lines(raised) == [
        "there is no input 'extra'",
        "ports count different numbers of iterations: 6 by InputPort('x', 'x', axis=1), 5 by InputPort('y', "
        "'y', axis=0)",
        "it returns 2 results by position: there is no result 3",
        "BackEdge(0, 'h'): the state is float32[2, 3] and becomes float32[4, 3]",
    ]


def test_names_of_results():
    ports = [InputPort("x", "x", axis=0), OutputPort("y", "why")]
    with pytest.raises(LoopError, match="it returns a dict of 'y': there is no result 'why'"):
        TensorIterator(lambda x: {"y": x}, ports).infer_shape(x=(3, 1))
    with pytest.raises(LoopError, match=r"it returns one result, float32\[1, 1\]: there is no result 'why'"):
        TensorIterator(lambda x: x, ports)(torch.zeros(3, 1))
    with pytest.raises(LoopError, match="result 'why' is no tensor but int"):
        TensorIterator(lambda x: {"why": 3}, ports).infer_shape(x=(3, 1))


def test_infer_shape_runs_nothing():
    seen = []

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 7)

        def forward(self, x, h):
            seen.append(x.device.type)
            h = torch.tanh(self.linear(x.squeeze(1)) + h)
            return h, h.unsqueeze(1)

    loop = make(*PORTS, body=Body())
    expected = {"y": (2, 10**9, 7), "h": (2, 7)}
    assert loop.infer_shape(x=(2, 10**9, 3), h0=[2, 7]) == expected
    meta = {"x": torch.empty(2, 10**9, 3, device="meta"), "h0": torch.empty(2, 7, device="meta")}
    assert loop.infer_shape(**meta) == expected
    with FakeTensorMode():
        fake = {"x": torch.empty(2, 10**9, 3), "h0": torch.empty(2, 7)}
    assert loop.infer_shape(**fake) == expected
    assert seen == ["meta"] * 3
    assert loop.double().infer_shape(x=(2, 6, 3), h0=(2, 7)) == {"y": (2, 6, 7), "h": (2, 7)}


CALLS = [
    ("missing and unknown", ((2, 6, 3),), {"h": (2, 3)},
     ["there is no input 'h'", "input 'h0' is not given"]),
    ("twice", ((2, 6, 3), (2, 3)), {"x": (2, 6, 3)}, ["input 'x' is given by position and by name"]),
    ("too many", ((2, 6, 3), (2, 3), (1,)), {}, ["3 inputs are given by position, there are 2"]),
    ("no axis", ((2,), (2, 3)), {}, ["InputPort('x', 'x', axis=1): input 'x' has no axis 1: it is [2]"]),
]  # fmt: skip


@pytest.mark.parametrize(("args", "named", "expected"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_calls_are_checked(args, named, expected):
    loop = make(*PORTS)
    with pytest.raises(LoopError, match="TensorIterator over 'body'") as raised:
        loop(*map(torch.zeros, args), **{name: torch.zeros(shape) for name, shape in named.items()})
    assert lines(raised) == expected


@pytest.mark.parametrize("asked", ["yy", 2, -3, 0.5, None])
def test_outputs_that_are_not_there(asked):
    out = Outputs(("y", "h"), (torch.zeros(1), torch.ones(1)))
    assert (out["h"], out[-1], out[0]) == (1, 1, 0)
    assert out.get("yy") is None
    with pytest.raises(
        OutputError, match=r"there is no output.*\n.*got: .*\n.*expected: 'y', 'h'; or 0 to 1\n"
    ):
        out[asked]


def test_only_tensors_are_taken():
    loop = make(*PORTS)
    with pytest.raises(LoopError, match="input 'x' must be a tensor, not LoDTensor"):
        loop(LoDTensor.from_lengths(torch.zeros(3, 2), [[2, 1]]), [1.0])


def test_a_joined_output_is_named_in_a_call():
    loop = make(*PORTS, OutputPort("wide", 0, axis=9))
    with pytest.raises(StepError, match=r"output 'wide', of result 0, has too few dimensions"):
        loop(x=torch.randn(2, 6, 3), h0=torch.randn(2, 3))
