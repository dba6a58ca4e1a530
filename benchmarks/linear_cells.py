"""Cells that are linear in their state, in training: against a loop in torch, a compiled step and jax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepnet import cells

from . import peers
from .harness import Case, Effort, Row, Topic
from .work import Setting, Size, Work

PEERS = ("eager_loop", "compiled_step", "jax_scan", "ours")
STEPS, SEQUENCES = 256, 32
# Of the largest value of a tensor: states of matrices add up what hundreds of steps wrote.
TOLERANCE = 2e-4
EFFORTS = (
    Effort(rounds=9, warmup=2, shortest=0.02, budget=10.0),
    Effort(rounds=3, warmup=1, shortest=0.0, budget=1.0),
)
VECTORS, MATRICES = (128,), (32, 64)  # features of x and of the state, or of each side of it
WORKS: dict[Work, tuple[int, ...]] = {
    Work("min_gru", "minGRU", lambda H: cells.MinGRU(H, H)): VECTORS,
    Work("min_lstm", "minLSTM", lambda H: cells.MinLSTM(H, H)): VECTORS,
    Work("rg_lru", "RG-LRU", cells.RGLRU): VECTORS,
    Work("slstm", "sLSTM", lambda H: cells.SLSTM(H, H)): VECTORS,
    Work("selective_ssm", "S6", cells.SelectiveSSM): VECTORS,
    Work("mlstm", "mLSTM", lambda H: cells.MLSTM(H, H)): MATRICES,
    Work("gla", "gated linear attention", lambda H: cells.GLA(H, H)): MATRICES,
    Work("delta_net", "DeltaNet", lambda H: cells.DeltaNet(H, H)): MATRICES,
    Work("gated_delta_net", "gated DeltaNet", lambda H: cells.GatedDeltaNet(H, H)): MATRICES,
}
GOALS = {VECTORS: 2.0, MATRICES: 1.3}


def cases(quick: bool) -> Iterator[Case]:
    """Each cell at its sizes, with all gradients. A quick run leaves out the step that torch compiles."""
    for work, widths in WORKS.items():
        for width in (16,) if quick else widths:
            size = Size(12, 5, width) if quick else Size(STEPS, SEQUENCES, width)
            setting = Setting(work, size, ragged=False)
            only = [name for name in PEERS if not (quick and name == "compiled_step")]
            found, absent = peers.contenders(setting, True, only)
            yield Case(
                name=f"{work.title} {size}",
                contenders=found,
                reference=lambda setting=setting: setting.target(True),
                facts={
                    "work": work.name,
                    "T": size.T,
                    "B": size.B,
                    "H": size.H,
                    "goal": GOALS[widths],
                    "absent": "; ".join(absent),
                },
                rtol=0.0,
                atol=TOLERANCE,
            )


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """How many rows reach their goal: the best of the others' time over ours."""
    best = [(min(ratio.median for ratio in row.ratios.values()), row) for row in rows if row.ratios]
    return {
        "rows": len(best),
        "rows that reach their goal": sum(ratio >= float(row.facts["goal"]) for ratio, row in best),
        "smallest ratio to the best of the others": min((ratio for ratio, _ in best), default=0.0),
    }


TOPIC = Topic(
    name="linear_cells",
    claim="cells linear in their state, in training: a loop in torch, a compiled step and jax over ours",
    cases=cases,
    findings=findings,
    efforts=EFFORTS,
)
