"""The plain loop on the rows of a call, and an executor held against it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.capture import Replaced
from stepnet.compiler.iteration import code_of
from stepnet.compiler.pipeline import Compiled
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import StepError, Unsupported
from stepnet.executors import naive
from stepnet.executors.autograd import Call, Ready, run
from stepnet.executors.layout import Layout
from stepnet.ir.loop import Loop

from .reads import Reads, read
from .rows import Sequences, few

Results = tuple[list[Tensor], list[Tensor]]


def plain_loop(
    loop: Loop, sequences: Sequences, reads: Reads | None = None, places: Sequence[int] = ()
) -> Callable[..., Results]:
    """The plain loop over rows that lie as those of `sequences`, `plain(x, states, weights)`.

    With weights, those stand where the step reads its tensors at `places` of what `reads` found. They may be
    others than at the call by now, as under `functional_call`; the step may not.

    Raises:
        StepError: the step reads something else by now.
    """

    def plain(
        x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> Results:
        if weights is None or reads is None:
            return _run(loop, sequences, x, states)
        now = read(loop, x, states, sequences.shared)
        if now.refusal is not None or now.key != reads.key:
            raise StepError(
                f"step '{loop.body.name}' reads something else by now than when it ran, "
                "so its gradient cannot be differentiated again",
                remedy="change what the step reads after the last backward; or backend='naive'",
            )
        swap = {id(now.tensors[place]): w for place, w in zip(places, weights, strict=True)}
        with Replaced(swap):
            return _run(loop, sequences, x, states)

    return plain


def _run(loop: Loop, sequences: Sequences, x: Sequence[Tensor], states: Sequence[Tensor]) -> Results:
    layout = sequences.layout
    sequence_rows = layout.by_sequence
    back = torch.empty_like(sequence_rows)
    back[sequence_rows] = torch.arange(len(sequence_rows))
    lengths = [layout.lengths]
    tables = [
        LoDTensor.from_lengths(rows.index_select(0, sequence_rows.to(rows.device)), lengths) for rows in x
    ]
    values = zip(loop.sources, (tables, states, sequences.shared), strict=True)
    feeds = {source: value for sources, part in values for source, value in zip(sources, part, strict=True)}
    out = naive.run(loop.ragged.around(code_of(loop).fresh()), feeds)
    leaves = flatten({port.output: out[port.output] for port in loop.joined})[0]
    y = [leaf.values.index_select(0, back.to(leaf.values.device)) for leaf in leaves]
    return y, [out[f"last {port.parameter}"] for port in loop.merged]


def self_check(
    loop: Loop, ready: Ready, compiled: Compiled, sequences: Sequences, weights: Sequence[Tensor]
) -> None:  # fmt: skip
    """Compare one small batch with the plain loop: values and every gradient.

    Raises:
        Unsupported: they differ.
    """
    layout = Layout.ragged(torch.tensor([0, 2, 2, 5, 6]), reverse=False)
    generator = torch.Generator().manual_seed(20)

    def sample(table: Tensor, n: int, spread: float) -> Tensor:
        rows = few(table, n)
        if table.shape[0]:
            chosen = torch.randint(table.shape[0], (n,), generator=generator)
            rows = table.detach()[chosen.to(table.device)].clone()
        if rows.dtype.is_floating_point:
            noise = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            rows = rows + spread * noise.to(rows)
        return rows.requires_grad_(table.requires_grad and ready.backward is not None)

    x = [sample(t, 6, 0.0) for t in sequences.x_rows]
    boot = [sample(t, 4, 0.1) for t in sequences.states]
    plain = plain_loop(loop, sequences._replace(layout=layout))
    with torch.random.fork_rng(devices=[]):
        ours = run(Call(ready, layout, compiled.constants, plain), x, boot, list(weights))
        y, finals = plain(x, boot)
    theirs = [*y, *finals]
    loose = _looseness(compiled)
    names = [*(f"y{i}" for i in range(len(y))), *loop.carried.values()]
    for name, a, b in zip(names, ours, theirs, strict=True):
        _compare(name, a, b, loose)
    if ready.backward is None:
        return
    wanted = [t for t in (*x, *boot, *weights) if t.requires_grad]
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.requires_grad]
    if [a.requires_grad for a in ours] != [b.requires_grad for b in theirs]:
        raise Unsupported("self-check: other results carry gradients than those of the plain loop")
    if not pairs:
        return
    seeds = [torch.randn(b.shape, generator=generator, dtype=torch.float64).to(b) for _, b in pairs]
    mine, other = (
        torch.autograd.grad(_weighed(results, seeds), wanted, allow_unused=True)
        for results in zip(*pairs, strict=True)
    )
    for tensor, a, b in zip(wanted, mine, other, strict=True):
        like = torch.zeros_like(tensor)
        a, b = (like if gradient is None else gradient for gradient in (a, b))
        _compare(f"gradient of a {tuple(tensor.shape)}", a, b, loose)


def _weighed(results: Sequence[Tensor], seeds: Sequence[Tensor]) -> Tensor:
    """One number whose gradient for each result is its seed. Differentiating tensors would make torch import
    what it traces with, which takes a second."""
    parts = [
        (torch.view_as_real(a) * torch.view_as_real(seed) if a.is_complex() else a * seed).sum()
        for a, seed in zip(results, seeds, strict=True)
    ]
    return torch.stack([part.float() for part in parts]).sum()


def _looseness(compiled: Compiled) -> float:
    """How far numbers may be apart in a step of these dtypes, the least precise of them."""
    dtypes = {value.dtype for value in compiled.joint.graph.values.values()}
    if torch.is_autocast_enabled("cpu") or dtypes & {"float16", "bfloat16"}:
        return 5e-2
    return 2e-4 if dtypes & {"float32", "complex64"} else 1e-9


def _compare(name: str, a: Tensor, b: Tensor, loose: float) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Unsupported(
            f"self-check: {name} is {a.dtype}{list(a.shape)}, the plain loop says {b.dtype}{list(b.shape)}"
        )
    if not (a.is_floating_point() or a.is_complex()):
        same = torch.equal(a, b)
    else:
        scale = float(b.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
        same = torch.allclose(a, b, rtol=loose, atol=loose * max(scale, 1e-3), equal_nan=True)
    if not same:
        raise Unsupported(f"self-check: {name} differs from the plain loop", remedy="please report this step")
