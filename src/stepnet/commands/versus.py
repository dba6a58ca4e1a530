"""A model here and in OpenVINO or ONNX Runtime, run in turns on the same inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from stepnet.openvino import OpenVINOModel
from stepnet.report.text import add_row, print_parts, table
from stepnet.report.words import count, printable

from .arrays import array, tensors
from .models import is_onnx
from .outcome import CommandError


@dataclass(frozen=True)
class Difference:
    """Of one output; `relative` is to the other's value, where that is not 0. None: the shapes differ."""

    output: str
    ours: str
    theirs: str
    absolute: float | None
    relative: float | None
    agree: bool


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the first run, and of the others the median and the middle half."""

    first: float
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Versus:
    """What a comparison found; `other` is the time of `runtime`."""

    outputs: tuple[Difference, ...]
    stepnet: Timing
    other: Timing
    runtime: str
    version: str
    threads: int
    rounds: int
    loops: tuple[Any, ...]
    agree: bool


def versus(
    model: OpenVINOModel | Any, path: Path, bin: Path | None, values: Mapping[str, Any], *, rounds: int,
    atol: float | None, rtol: float | None,
) -> Versus:  # fmt: skip
    """Compare; a limit of None is that of each output's type.

    Raises:
        CommandError: the runtime is not installed, or does not take the model or the inputs.
        IRError: we do not take the inputs.
    """
    runtime = "ONNX Runtime" if is_onnx(path) else "OpenVINO"
    others = model.others(values)
    names = [*(socket.name for socket in model.inputs), *others]
    theirs, version = _onnxruntime(path, names) if runtime != "OpenVINO" else _openvino(path, bin, model)
    inputs = model.checked(tuple(values[socket.name] for socket in model.inputs), {})
    order = [*map(array, inputs), *(array(torch.as_tensor(value)) for value in others.values())]

    def ours() -> Any:
        with torch.no_grad():
            return model(*inputs, **others)

    ours_found, ours_first = _time(ours)
    try:
        theirs_found, theirs_first = _time(lambda: theirs(order))
    except Exception as error:  # ONNX Runtime's have no class of their own
        raise CommandError(f"{runtime} does not run {path}: {_reason(error)}") from error
    ours_times, theirs_times = [], []
    for _ in range(rounds):
        ours_times.append(_time(ours)[1])
        theirs_times.append(_time(lambda: theirs(order))[1])
    here = tensors(ours_found.items())
    there = tensors(zip(ours_found.keys(), theirs_found, strict=True))
    if here.keys() != there.keys():
        raise CommandError(
            f"{path}: lists of tensors differ",
            got=", ".join(here),
            expected=f"{', '.join(there)} as {runtime}",
        )
    differences = tuple(
        _difference(name, array(value), np.asarray(there[name]), atol, rtol) for name, value in here.items()
    )
    return Versus(
        differences,
        _timing(ours_first, ours_times),
        _timing(theirs_first, theirs_times),
        runtime,
        version,
        torch.get_num_threads(),
        rounds,
        model.loops,
        all(difference.agree for difference in differences),
    )


def _openvino(
    xml: Path, bin: Path | None, model: OpenVINOModel
) -> tuple[Callable[[list[Any]], list[Any]], str]:
    openvino = _imported("openvino", "OpenVINO")
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    try:
        read = core.read_model(str(xml), "" if bin is None else str(bin))
        compiled = core.compile_model(read, "CPU", settings)
    except RuntimeError as error:
        raise CommandError(f"OpenVINO does not take {xml}: {_reason(error)}") from error
    places = {name: i for i, port in enumerate(compiled.inputs) for name in (port.node.friendly_name,)}
    count = len(model.inputs) - len(model.states)  # which come last, and are no inputs there
    if len(places) != count:
        raise CommandError(f"OpenVINO sees {len(places)} inputs in {xml}", expected=count)
    request = compiled.create_infer_request()
    names = [places.get(socket.name, i) for i, socket in enumerate(model.inputs[:count])]

    def run(order: list[Any]) -> list[Any]:
        variables = {variable.name: variable for variable in request.query_state()}
        for socket, value in zip(model.inputs[count:], order[count:], strict=True):
            variables[socket.name].state = openvino.Tensor(value)
        fed = dict(zip(names, order[:count], strict=True))
        request.infer(fed, share_inputs=True, share_outputs=True)
        found = [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]
        return [*found, *(variables[name].state.data.copy() for name in model.states)]

    return run, openvino.__version__.split("-")[0]


def _onnxruntime(path: Path, names: Sequence[str]) -> tuple[Callable[[list[Any]], list[Any]], str]:
    onnxruntime = _imported("onnxruntime", "ONNX Runtime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of no class of its own
        raise CommandError(f"ONNX Runtime does not take {path}: {_reason(error)}") from error
    taken = {v.name for v in (*session.get_inputs(), *session.get_overridable_initializers())}

    def run(order: list[Any]) -> list[Any]:
        fed = zip(names, order, strict=True)
        return list(session.run(None, {name: value for name, value in fed if name in taken}))

    return run, onnxruntime.__version__


def _imported(package: str, runtime: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        text = f"comparing needs {runtime}, which is not installed"
        raise CommandError(text, remedy=f"pip install {package}") from error


def _reason(error: BaseException) -> str:
    """The last line of a runtime's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _time(call: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    found = call()
    return found, (perf_counter() - start) * 1e3


def _timing(first: float, times: list[float]) -> Timing:
    several = len(times) > 1
    low, _, high = quantiles(times, n=4, method="inclusive") if several else (times[0],) * 3
    return Timing(first, median(times), low, high)


def _difference(
    name: str, ours: np.ndarray, theirs: np.ndarray, atol: float | None, rtol: float | None
) -> Difference:
    mine, other = (f"{a.dtype}{list(a.shape)}" for a in (ours, theirs))
    if ours.shape != theirs.shape:
        return Difference(name, mine, other, None, None, False)
    half = ours.dtype == np.float16 or theirs.dtype == np.float16
    atol = atol if atol is not None else 1e-2 if half else 1e-5
    rtol = rtol if rtol is not None else 1e-2 if half else 1e-4
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)  # a number beside a NaN
    size = np.where(np.isfinite(b), np.abs(b), 0.0)
    relative = gap[size > 0] / size[size > 0]
    return Difference(
        name, mine, other, float(gap.max(initial=0.0)), float(relative.max(initial=0.0)),
        bool((gap <= atol + rtol * size).all()),
    )  # fmt: skip


def to_json(found: Versus) -> str:
    """JSON with the names of `Versus`; a difference without bound is null."""
    data = asdict(found)
    name = data.pop("runtime").lower().replace(" ", "")
    data = {name if key == "other" else key: value for key, value in data.items()}
    for row in data["outputs"]:
        for key in ("absolute", "relative"):
            row[key] = None if row[key] in (None, float("inf")) else row[key]
    return json.dumps(data, indent=1)


def print_table(found: Versus, console: Console) -> None:
    """Both side by side."""
    sizes = ("largest difference", "relative")
    answers = table("output", "type and shape", *sizes, "", right=sizes)
    for row in found.outputs:
        kind = row.ours if row.ours == row.theirs else f"{row.ours}, {found.runtime} {row.theirs}"
        differences = ("shapes differ", "")
        if row.absolute is not None:
            differences = (f"{row.absolute:.3g}", f"{row.relative:.3g}")
        verdict = "agrees" if row.agree else "DIFFERS"
        add_row(answers, row.output, kind, *differences, verdict, style=None if row.agree else "red")
    parts = ("first run", "median", "middle half")
    times = table("time, ms", *parts, right=parts)
    for name, timing in (("stepnet", found.stepnet), (f"{found.runtime} {found.version}", found.other)):
        middle = f"{timing.low:.3g} to {timing.high:.3g}"
        add_row(times, name, f"{timing.first:.3g}", f"{timing.median:.3g}", middle)
    print_parts((answers, times), console)
    ratio = found.other.median / found.stepnet.median
    told = f"is {ratio:.2f} times as fast as" if ratio >= 1 else f"takes {1 / ratio:.2f} times as long as"
    turns = f"{found.rounds} runs each in turns, {count(found.threads, 'thread')}"
    console.print(f"stepnet {told} {found.runtime} ({turns})")
    for loop in found.loops:
        state = "compiled" if loop.compiled else f"plain loop: {loop.reason}"
        console.print(Text(printable(f"{loop.where}: {state}"), style="dim"))
