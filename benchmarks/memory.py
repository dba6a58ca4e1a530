"""Memory of training: what is kept from forward to backward, and the peak of a whole step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from . import peers
from .child import last_line
from .harness import Case, Contender, Effort, Row, Topic
from .peers import eager_loop, ours, torch_nn
from .peers.way import Way
from .recurrences import TOLERANCE
from .work import WORKS, Setting, Size

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
ONCE = Effort(rounds=1, warmup=0, shortest=0.0, budget=0.0)
CELLS = ("lstm", "window_lstm")
SIZES = (Size(1000, 8, 128), Size(100, 32, 256))
SMALL = Size(200, 8, 64)
PAGE = 4096
# Larger blocks are mapped each on its own, so what is freed leaves the process and is not counted twice.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def settings(quick: bool) -> Iterator[Setting]:
    """Two cells, dense and ragged; one of all for a quick look."""
    if quick:
        yield Setting(WORKS[CELLS[0]], SMALL, ragged=True)
        return
    for name in CELLS:
        for size in SIZES:
            for ragged in (False, True):
                yield Setting(WORKS[name], size, ragged)


def _case(setting: Setting, contenders: dict[str, Contender]) -> Case:
    return Case(
        name=f"{setting.work.name} {setting.name}",
        contenders=contenders,
        reference=lambda: setting.target(training=True),
        facts={"fill": setting.rows / setting.valid.numel(), "goal": 2.0 if setting.ragged else 1.0},
        rtol=0.0,
        atol=TOLERANCE,
    )


# ---- what is kept from forward to backward


@dataclass(frozen=True)
class Recorded(Contender):
    """A contender that autograd records, and how it runs."""

    way: Way | None = None


def held_cases(quick: bool) -> Iterator[Case]:
    """Who runs in torch."""
    for setting in settings(quick):
        contenders: dict[str, Contender] = {}
        for name, way in (torch_nn.ways(setting) | eager_loop.ways(setting) | ours.ways(setting)).items():
            plain = way.contender(training=True)
            contenders[name] = Recorded(plain.run, plain.values, way)
        yield _case(setting, contenders)


def held_bytes(forward: Callable[[], Any], leaves: Sequence[Tensor]) -> int:
    """Bytes of all tensors that autograd keeps, each storage once; not those of the leaves.

    >>> import torch
    >>> x = torch.ones(10, requires_grad=True)
    >>> held_bytes(lambda: x.exp().sin(), [x])  # sin keeps what exp gave, exp keeps the same
    40
    """
    own = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result  # until here everything kept is alive, so no two storages had one address
    return sum(kept.values())


def measure_held(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Bytes held of each contender."""
    found: dict[str, list[float]] = {}
    for name, contender in case.contenders.items():
        assert isinstance(contender, Recorded)
        assert contender.way is not None
        found[name] = [held_bytes(contender.way.forward, contender.way.leaves)]
    return found


# ---- the peak of a step


def peak_cases(quick: bool) -> Iterator[Case]:
    """Everyone who trains."""
    for setting in settings(quick):
        found, _ = peers.contenders(setting, training=True)
        yield _case(setting, {name: c for name, c in found.items() if name != peers.FIVE_LINES})


def peak_of(run: Callable[[], Any]) -> int:
    """Bytes by which one run raises the resident memory of this process at its peak (Linux, proc(5)).

    Raises:
        OSError: the system has no such record, or does not let it be reset.
    """
    gc.collect()
    RESET.write_text("5")  # the peak starts again from the present size
    before = _status("VmRSS")
    run()
    return max(_status("VmHWM") - before, PAGE)


def _status(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} does not say {name}")


def measure_peak(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Peak bytes of each contender, each in a process of its own."""
    return {
        name: [float(last_line("memory", *case.name.split(), name, environment=ENVIRONMENT))]
        for name in case.contenders
    }


def main() -> None:
    """Print the peak of one contender: WORK T,B,H dense|ragged CONTENDER."""
    work, size, layout, contender = sys.argv[1:]
    setting = Setting(WORKS[work], Size(*map(int, size.split(","))), layout == "ragged")
    whole = peers.contenders(setting, training=True)[0][contender]
    # First on two steps: what is loaded and built once does not count. XLA compiles for each size.
    tiny = Setting(WORKS[work], Size(2, 2, setting.size.H), layout == "ragged")
    first = whole if contender == "jax" else peers.contenders(tiny, training=True)[0][contender]
    first.run()
    print(peak_of(whole.run))


# ---- the tables


def table(rows: Sequence[Row]) -> RenderableType:
    """A line for each contender, in MiB."""
    return table_in("MiB", 2**20, 2, rows)


def table_in(unit: str, size: int, digits: int, rows: Sequence[Row]) -> RenderableType:
    """A line for each contender, in units of `size` bytes; with the goals of rows that have one."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("case", no_wrap=True)
    shown.add_column("contender")
    goals = any("goal" in row.facts for row in rows)
    for heading in (unit, "ratio", *(["goal"] if goals else [])):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.refused is not None:
            shown.add_row(escape(row.case), f"[red]refused: {escape(row.refused)}[/red]", end_section=True)
            continue
        for number, (name, spent) in enumerate(row.times.items(), 1):
            ratio = row.ratios.get(name)
            shown.add_row(
                row.case if number == 1 else "",
                name,
                f"{spent.median / size:.{digits}f}",
                "" if ratio is None else f"{ratio.median:.2f}",
                *([f"{row.facts['goal']:g}" if name.startswith("nn") else ""] if goals else []),
                end_section=number == len(row.times),
            )
    return shown


HELD = Topic(
    name="memory_held",
    claim="bytes that a training step keeps from forward to backward, beside parameters and input",
    cases=held_cases,
    table=table,
    measure=measure_held,
    unit="bytes",
    efforts=(ONCE, ONCE),
)
PEAK = Topic(
    name="memory_peak",
    claim="bytes by which a training step raises the memory of a process at its peak",
    cases=peak_cases,
    table=table,
    measure=measure_peak,
    unit="bytes",
    efforts=(ONCE, ONCE),
)

if __name__ == "__main__":
    main()
