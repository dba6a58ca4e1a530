"""Models written in ONNX, in ONNX Runtime: beside the same cells with all of their step in a Scan, and beside
what torch's own exporter writes."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stepnet

from .harness import QUICK, Case, Contender, Effort, Topic
from .onnx_cells import OWN, Layer, Step, check_installed, findings, one, session_of


def cases(quick: bool) -> Iterator[Case]:
    """What is written, in ONNX Runtime."""
    check_installed()
    for name, make in OWN.items():
        for steps, batch, size in [(6, 3, 8)] if quick else [(100, 1, 256), (100, 32, 256)]:
            yield _all_inside(name, make, steps, batch, size)
    layers = {"LSTM": {}, "GRU": {}, "RNN": {}} if quick else {
        "LSTM": {}, "GRU": {}, "RNN": {}, "LSTM, two layers": {"num_layers": 2},
        "LSTM, two directions": {"bidirectional": True},
    }  # fmt: skip
    for name, how in layers.items():
        for steps, batch, size in [(6, 3, 8)] if quick else [(100, 1, 256), (100, 32, 256)]:
            yield _by_torch(name, how, steps, batch, size)


def _in_one_scan(step: Path, states: int) -> Any:
    """The model of a Scan around the model of a step, all of which is in it."""
    import onnx

    model = onnx.load(step)
    body, helper = model.graph, onnx.helper
    (x, *before), (y, *after) = [*body.input], [*body.output]
    ends = [[helper.make_tensor_value_info(f"{v.name}_whole", 1, None) for v in part]
            for part in ((x, *before), (y, *after))]  # fmt: skip
    for part, values in ((body.input, (*before, x)), (body.output, (*after, y))):
        kept = [type(v).FromString(v.SerializeToString()) for v in values]
        del part[:]
        part.extend(kept)
    (x_whole, *first), (y_whole, *last) = ends
    scan = helper.make_node(
        "Scan", [v.name for v in (*first, x_whole)], [v.name for v in (*last, y_whole)],
        body=body, num_scan_inputs=1,
    )  # fmt: skip
    graph = helper.make_graph([scan], "scan", [x_whole, *first], [y_whole, *last])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _all_inside(name: str, make: Callable[[int, int], Any], steps: int, batch: int, size: int) -> Case:
    import onnx

    torch.manual_seed(size)
    layer = Layer(make(size, size)).eval()
    with tempfile.TemporaryDirectory() as folder:
        ours, step, whole = (Path(folder) / f"{part}.onnx" for part in ("ours", "step", "whole"))
        stepnet.onnx.save(layer, ours, (torch.randn(4, 2, size), *layer.states(2)))
        example = torch.randn(2, size), *layer.states(2)
        stepnet.onnx.save(Step(layer.cell).eval(), step, example)
        onnx.save(_in_one_scan(step, len(example) - 1), whole)
        sessions = {"stepnet": session_of(ours), "all inside": session_of(whole)}
    given = torch.randn(steps, batch, size), *layer.states(batch)
    return _sessions_case(f"{name} T={steps} B={batch} H={size}", sessions, given)


def _by_torch(name: str, how: Mapping[str, Any], steps: int, batch: int, size: int) -> Case:
    torch.manual_seed(size)
    layer = getattr(torch.nn, name.split(",")[0])(size, size, **how).eval()
    twin = getattr(stepnet.nn, name.split(",")[0])(size, size, **how).eval()
    twin.load_state_dict(layer.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.onnx", Path(folder) / "theirs.onnx"
        stepnet.onnx.save(twin, ours, (torch.randn(4, 2, size),))
        x = torch.randn(steps, batch, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            torch.onnx.export(layer, (x,), theirs, dynamo=True, verbose=False, external_data=False)
        sessions = {"stepnet": session_of(ours), "torch's exporter": session_of(theirs)}
    return _sessions_case(f"{name} T={steps} B={batch} H={size}", sessions, (x,))


def _sessions_case(name: str, sessions: Mapping[str, Any], given: Sequence[Tensor]) -> Case:
    def runs(session: Any) -> Callable[[], Any]:
        feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), given, strict=True)}
        return lambda: session.run(None, feed)[0]

    return Case(
        name=name,
        contenders={who: Contender(runs(session), one) for who, session in sessions.items()},
        reference=[*sessions][-1],
        facts=dict(zip("TBH", given[0].shape, strict=True)),
        rtol=1e-2,
        atol=2e-3,  # of float32, after a hundred steps
    )


TOPIC = Topic(
    name="onnx_written",
    claim="models written in ONNX, run by ONNX Runtime: the time of the same otherwise written over ours",
    cases=cases,
    findings=findings,
    efforts=(Effort(rounds=15, warmup=2, shortest=0.02, budget=5.0), QUICK),
)
