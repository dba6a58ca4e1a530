"""torch.compile of the loop over 100 steps, and how long it compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .harness import Case, Topic
from .recurrences import EFFORTS, case_of, findings, table
from .work import SIZES, WORKS, Setting, Size

STEPS = 100
PEERS = ("unrolled_loop", "eager_loop", "ours")
COMPILING = "seconds of torch.compile"


def cases(quick: bool) -> Iterator[Case]:
    """Training, dense, of cells that have no fused operator."""
    for size in (Size(4, 3, 8),) if quick else [size for size in SIZES if size.T == STEPS]:
        for name in ("layer_norm_lstm", "window_lstm"):
            case = case_of(Setting(WORKS[name], size, ragged=False), True, PEERS)
            facts: dict[str, float | str] = dict(case.facts)
            compiled = case.contenders["torch.compile"]
            clocked = replace(compiled, run=_clocked(compiled.run, facts))
            yield replace(
                case,
                name=f"{name} {case.name}",
                contenders={**case.contenders, "torch.compile": clocked},
                facts=facts,
            )


def _clocked(run: Callable[[], Any], facts: dict[str, float | str]) -> Callable[[], Any]:
    """`run`, whose first call, which compiles, leaves its time among the facts."""

    def first_clocked() -> Any:
        start = time.perf_counter()
        done = run()
        facts.setdefault(COMPILING, time.perf_counter() - start)
        return done

    return first_clocked


def all_findings(rows: Any) -> Mapping[str, float]:
    """Those of recurrences, and the time each case compiled."""
    return findings(rows) | {f"{COMPILING}: {row.case}": float(row.facts[COMPILING]) for row in rows}


TOPIC = Topic(
    name="compiled_loop",
    claim=f"against torch.compile of the loop over {STEPS} steps, which compiles for minutes",
    cases=cases,
    findings=all_findings,
    table=table,
    efforts=EFFORTS,
    on_request=True,
)
