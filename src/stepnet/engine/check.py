"""The plain loop on the rows of a call, and an executor held against it once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.capture import Replaced, without_modes
from stepnet.compiler.draws import kept
from stepnet.compiler.inner_loops import ENDED, TooFewSteps, is_guarded
from stepnet.compiler.iteration import code_of
from stepnet.compiler.pipeline import Compiled
from stepnet.data.lod import LoDTensor
from stepnet.data.tree import flatten
from stepnet.errors import StepError, Unsupported
from stepnet.executors import naive
from stepnet.executors.autograd import run
from stepnet.executors.call import Call
from stepnet.executors.exactness import exact_products
from stepnet.executors.layout import Layout
from stepnet.executors.ready import Ready
from stepnet.ir.loop import Loop

from .reads import Reads, read
from .rows import Noise, Sequences, few

Results = tuple[list[Tensor], list[Tensor]]


def plain_loop(
    loop: Loop,
    sequences: Sequences,
    reads: Reads | None = None,
    places: Sequence[int] = (),
    reader: Callable[..., Reads] = read,
    *,
    guarded: bool = False,
) -> Callable[..., Results]:
    """The plain loop over rows that lie as those of `sequences`, `plain(x, states, weights)`.

    With weights, those stand where the step reads its tensors at `places` of what `reads` found. They may be
    others than at the call by now, as under `functional_call`; the step may not. A `guarded` plan has one
    more result, which is true for each row.

    Raises:
        StepError: the step reads something else by now.
    """

    def plain(
        x: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> Results:
        if weights is None or reads is None:
            return run_it(x, states)
        now = read_again(loop, sequences, reads, x, states, reader)
        swap = {id(now.tensors[place]): w for place, w in zip(places, weights, strict=True)}
        with Replaced(swap):
            return run_it(x, states)

    def run_it(x: Sequence[Tensor], states: Sequence[Tensor]) -> Results:
        y, finals = _run(loop, sequences, x, states)
        return [*y, torch.ones(sequences.layout.rows, dtype=torch.bool)] if guarded else y, finals

    return plain


def read_again(
    loop: Loop,
    sequences: Sequences,
    reads: Reads,
    x: Sequence[Tensor],
    states: Sequence[Tensor],
    reader: Callable[..., Reads] = read,
) -> Reads:
    """What a loop reads now, which is what it read before, perhaps in other tensors.

    Raises:
        StepError: it is something else.
    """
    now = reader(loop, x, states, sequences.shared)
    if now.refusal is not None or now.whole != reads.whole:
        raise StepError(
            f"step '{loop.body.name}' reads something else by now than when it ran, "
            "so its gradient cannot be differentiated again",
            remedy="change what the step reads after the last backward; or backend='naive'",
        )
    return now


def _run(loop: Loop, sequences: Sequences, x: Sequence[Tensor], states: Sequence[Tensor]) -> Results:
    layout = sequences.layout
    sequence_rows = layout.by_sequence
    back = torch.empty_like(sequence_rows)
    back[sequence_rows] = torch.arange(len(sequence_rows))
    lengths = [layout.lengths]
    own = x[: len(loop.slices)]  # without noise
    tables = [
        LoDTensor.from_lengths(rows.index_select(0, sequence_rows.to(rows.device)), lengths) for rows in own
    ]
    values = zip(loop.sources, (tables, states, sequences.shared), strict=True)
    feeds = {source: value for sources, part in values for source, value in zip(sources, part, strict=True)}
    out = naive.run(loop.ragged.around(code_of(loop).fresh()), feeds)
    leaves = flatten({port.output: out[port.output] for port in loop.joined})[0]
    y = [leaf.values.index_select(0, back.to(leaf.values.device)) for leaf in leaves]
    return y, [out[f"last {port.parameter}"] for port in loop.merged]


def same_in_modes(loop: Loop, sequences: Sequences, generators: Sequence[torch.Generator]) -> bool:
    """Whether the TorchFunctionModes around only watch a step, which gives on a row what it gives without."""
    generator = torch.Generator().manual_seed(24)
    few_rows = sequences._replace(layout=Layout.ragged(torch.tensor([0, 1]), reverse=False))

    def run() -> list[Tensor]:
        with torch.random.fork_rng(devices=[]), kept(generators), torch.no_grad():
            return _joined(_run(loop, few_rows, x, states))

    with without_modes():
        x = [sampled(t, 1, 0.1, generator) for t in sequences.x_rows]
        states = [sampled(t, 1, 0.1, generator) for t in sequences.states]
        expected = run()
    found = run()
    with without_modes():
        pairs = zip(found, expected, strict=True)
        return all(type(a) is type(b) and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


_SAMPLE = (0, 2, 2, 5, 6)  # where four sequences of six rows begin and end, one of them empty


def sample_layout(offsets: Sequence[int] = _SAMPLE) -> Layout:
    """The sequences of the self-check."""
    return Layout.ragged(torch.tensor(offsets), reverse=False)


class _Differs(Unsupported):
    """The numbers are not those of the plain loop."""


def sampled(table: Tensor, n: int, spread: float, generator: torch.Generator) -> Tensor:
    """n rows of a table, with noise."""
    rows = few(table, n)
    if table.shape[0]:
        chosen = torch.randint(table.shape[0], (n,), generator=generator)
        rows = table.detach()[chosen.to(table.device)].clone()
    if rows.dtype.is_floating_point:
        noise = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        rows = rows + spread * noise.to(rows)
    return rows


@exact_products()
def self_check(
    loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
    weights: Sequence[Tensor],
) -> None:  # fmt: skip
    """Compare one small batch with the plain loop: values and every gradient. Once more, if another thread
    changed the weights meanwhile.

    Raises:
        Unsupported: they differ.
    """
    for more in reversed(range(_MOST_CHECKS)):
        before = versions(weights)
        try:
            _compare(loop, ready, compiled, noise, sequences, weights)
        except Exception as error:
            if not more or versions(weights) == before:
                if not isinstance(error, _Differs):
                    raise
                _compare(loop, ready, compiled, noise, sequences, weights, [0, 3, 6])
                raise Unsupported(
                    "the step depends on how many rows it is given: of one it makes something else than of "
                    "several",
                    remedy="treat one row as any number of them",
                ) from None
        else:
            return


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """A count for each tensor that every change in place raises; inference tensors have none."""
    return [0 if t.is_inference() else t._version for t in tensors]


def _compare(
    loop: Loop, ready: Ready, compiled: Compiled, noise: Noise, sequences: Sequences,
    weights: Sequence[Tensor], offsets: Sequence[int] = _SAMPLE,
) -> None:  # fmt: skip
    layout = sample_layout(offsets)
    generator = torch.Generator().manual_seed(20)

    def sample(table: Tensor, n: int, spread: float) -> Tensor:
        rows = sampled(table, n, spread, generator)
        return rows.requires_grad_(table.requires_grad and ready.backward is not None)

    guarded = is_guarded(compiled.y_spec)
    x = [sample(t, 6, 0.0) for t in sequences.x_rows]
    apart = 0.0 if guarded else 0.1  # what a check says holds of the states as they are
    boot = [sample(t, layout.sequences, apart) for t in sequences.states]
    # aliases: one weight may be made from another, and that history is the caller's
    own = [w.view_as(w) if w.requires_grad else w for w in weights]
    with_weights = plain_loop(loop, sequences._replace(layout=layout), guarded=guarded)

    def plain(x: Sequence[Tensor], states: Sequence[Tensor], own: Sequence[Tensor] = own) -> Results:
        with Replaced({id(w): t for w, t in zip(weights, own, strict=True)}):
            return with_weights(x, states)

    wanted = [t for t in (*x, *boot, *own) if t.requires_grad]
    with torch.random.fork_rng(devices=[]):
        call = Call(ready, layout, compiled.constants, noise.drawn_again(plain), guarded=guarded)
        with kept(noise.generators):
            drawn = noise.tables(layout)
        ours = run(call, [*x, *drawn], boot, own)
        with kept(noise.generators):
            theirs = _joined(plain(x, boot))
    if guarded and not bool(ours[len(theirs) - len(boot) - 1].all()):
        if ENDED in compiled.y_spec.keys:
            raise TooFewSteps("a while_loop in the step takes more steps on sample rows than were unrolled")
        raise Unsupported(
            "its Python asks whether something holds of all rows, which is not so at every step",
            remedy="torch.where(condition, a, b) in the place of Python's if",
        )
    names = [*(f"y{i}" for i in range(len(theirs) - len(boot))), *loop.carried.values()]
    names += [f"gradient of a {tuple(t.shape)}" for t in wanted]
    if ready.backward is not None and [a.requires_grad for a in ours] != [b.requires_grad for b in theirs]:
        raise Unsupported("self-check: other results carry gradients than those of the plain loop")
    seeds = [torch.randn(b.shape, generator=generator, dtype=torch.float64).to(b) for b in theirs]

    def all_of(results: list[Tensor], inputs: Sequence[Tensor] = wanted) -> list[Tensor]:
        return results + (_gradients(results, seeds, inputs) if ready.backward is not None else [])

    def nudged(by: float) -> list[Tensor]:
        """The plain loop's numbers for samples and weights that differ in their last digits."""
        moved = [_nudged(t, by, coarse).requires_grad_(t.requires_grad) for t in (*x, *boot, *own)]
        states = len(x) + len(boot)
        with torch.random.fork_rng(devices=[]), kept(noise.generators):
            results = _joined(plain(moved[: len(x)], moved[len(x) : states], moved[states:]))
        return all_of(results, [t for t in moved if t.requires_grad])

    loose, dtypes = looseness(compiled), _dtypes(compiled)
    coarse = torch.finfo(torch.float32).eps if dtypes & {"float32", "complex64"} else 0.0
    pairs = list(zip(all_of(ours), all_of(theirs), strict=False))
    far = [at for at, (a, b) in enumerate(pairs) if not same(names[at], a, b, loose)]
    if far and torch.is_autocast_enabled("cpu"):  # who of both is far from what nobody rounds?
        with contextlib.suppress(StepError, RuntimeError), torch.autocast("cpu", enabled=False):
            exact = all_of(_joined(plain(x, boot)))
            far = [at for at in far if not _nearer(*pairs[at], exact[at], loose)]
    far = _unexplained(far, pairs, nudged) if far else far
    if far:
        raise _Differs(
            f"self-check: {names[far[0]]} differs from the plain loop", remedy="please report this step"
        )


def _unexplained(
    far: list[int], pairs: Sequence[tuple[Tensor, Tensor]], nudged: Callable[[float], list[Tensor]]
) -> list[int]:
    """Those of the places `far` where numbers are further apart than rounding takes the plain loop itself."""
    others: list[list[Tensor]] = []
    for some in _NUDGES:
        others += map(nudged, some)
        far = [at for at in far if not _explained(*pairs[at], [numbers[at] for numbers in others])]
        if not far:
            break
    return far


def _joined(results: Results) -> list[Tensor]:
    return [*results[0], *results[1]]


def _nudged(tensor: Tensor, by: float, coarse: float) -> Tensor:
    """A tensor with other last digits, such as a step that has numbers as coarse as that still sees."""
    tensor = tensor.detach()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    by *= max(torch.finfo(tensor.dtype).eps, coarse)
    return tensor * (1 + by) + by  # zeros, too


def _gradients(results: Sequence[Tensor], seeds: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of results, each of which is given its seed; zeros for a tensor that gets none."""
    pairs = [(r, s.to(r.dtype)) for r, s in zip(results, seeds, strict=True) if r.requires_grad]
    if not pairs:
        return []
    with torch.autocast("cpu", enabled=False):  # as the trace has it: some gradients of torch fail in it
        found = torch.autograd.grad(_weighed(pairs), wanted, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def _weighed(asked: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One number whose gradient for each result is its seed. Differentiating tensors would make torch import
    what it traces with, which takes a second."""
    parts = [
        (torch.view_as_real(a) * torch.view_as_real(seed) if a.is_complex() else a * seed).sum()
        for a, seed in asked
    ]
    return torch.stack([part.float() for part in parts]).sum()


def looseness(compiled: Compiled) -> float:
    """How far numbers may be apart in a step of these dtypes, the least precise of them."""
    dtypes = _dtypes(compiled)
    if torch.is_autocast_enabled("cpu") or dtypes & {"float16", "bfloat16"}:
        return 5e-2
    return 2e-4 if dtypes & {"float32", "complex64"} else 1e-9


def _dtypes(compiled: Compiled) -> set[str]:
    return {value.dtype for value in compiled.joint.graph.values.values()}


def same(name: str, a: Tensor, b: Tensor, loose: float) -> bool:
    """Whether two tensors hold the same numbers, as far as rounding goes.

    Raises:
        Unsupported: they do not have the same shape and dtype.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Unsupported(
            f"self-check: {name} is {a.dtype}{list(a.shape)}, the plain loop says {b.dtype}{list(b.shape)}"
        )
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return close(a, b, loose)


def close(a: Tensor, b: Tensor, loose: float) -> bool:
    """Whether the numbers of a are about those of b."""
    return torch.allclose(a, b, rtol=loose, atol=loose * max(_scale(b), 1e-3), equal_nan=True)


def _scale(b: Tensor) -> float:
    return float(b.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0


def _nearer(a: Tensor, b: Tensor, exact: Tensor, loose: float) -> bool:
    """Whether a is as near to exact numbers as b is, or nearer; or far, as b is: rounding leaves little of a
    gradient that is nearly zero, as of what a norm takes out again."""
    if not a.is_floating_point() or a.shape != exact.shape:
        return False
    off_a, off_b = ((t.detach().double() - exact.detach().double()).abs().max() for t in (a, b))
    most = 10.0 if off_b > 2 * loose * _scale(exact) else 1.0
    return bool(off_a <= most * off_b + loose * max(_scale(exact), 1e-3))  # False where one is NaN


_MOST_CHECKS = 16  # while other threads train the same weights
_MOST_ROUNDING = 100.0
_NUDGES = (-4.0, 2.0, 4.0), (-3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2.5, 3, 3.5)


def _explained(a: Tensor, b: Tensor, nudged: Sequence[Tensor]) -> bool:
    """Whether the plain loop's own rounding reaches about as far as a difference: the gradient of a norm over
    two numbers is a difference of equals, times a thousand."""
    if not (a.is_floating_point() or a.is_complex()):  # a threshold met exactly, the sign of a zero
        return bool(((a == b) | torch.stack([c != b for c in nudged]).any(0)).all())
    if a.is_complex():
        a, b, *nudged = map(torch.view_as_real, (a, b, *nudged))
    a, b = a.detach().double(), b.detach().double()
    reach = max(float((c.detach().double() - b).abs().nan_to_num(0.0).max()) for c in nudged)
    same = (a == b) | (a.isnan() & b.isnan())
    return bool((same | ((a - b).abs() <= _MOST_ROUNDING * reach)).all())
