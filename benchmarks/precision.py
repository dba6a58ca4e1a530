"""How far float32 is from float64 over 500 steps, for each setting of `torch.set_float32_matmul_precision`.

`python -m benchmarks.precision` prints the table of docs/precision.md for the machine it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import stepnet
from stepnet import LoDTensor, cells

STEPS, SEQUENCES, SIZE = 500, 16, 64
SETTINGS = ("highest", "high", "medium")


def lengths() -> list[int]:
    """Ragged ones, the longest first, as packing likes them."""
    torch.manual_seed(0)
    return sorted([STEPS, *torch.randint(STEPS // 10, STEPS, (SEQUENCES - 1,)).tolist()], reverse=True)


def by_stepnet(model: torch.nn.Module, rows: Tensor, backend: str) -> Tensor:
    """The rows of all outputs."""
    stepnet.set_backend(backend)
    x = LoDTensor.from_lengths(rows, [lengths()])
    y, _ = model(x) if isinstance(model, stepnet.nn.LSTM) else stepnet.recurrent(model, x)
    return y.values


def by_torch(model: torch.nn.Module, rows: Tensor) -> Tensor:
    """The same by torch.nn on packed sequences, or by the plain loop where torch has no such cell."""
    if not isinstance(model, torch.nn.LSTM):
        return by_stepnet(model, rows, "naive")
    counts = lengths()
    packed = pack_padded_sequence(pad_sequence(list(rows.split(counts))), torch.tensor(counts))
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(model(packed)[0])
    return torch.cat([y[:count, at] for at, count in enumerate(counts)])


def results(
    run: Callable[[torch.nn.Module, Tensor], Tensor], model: torch.nn.Module, x: Tensor
) -> Iterator[Tensor]:
    """The outputs, then all gradients."""
    rows = x.to(next(model.parameters()).dtype).clone().requires_grad_()
    model.zero_grad()
    y = run(model, rows)
    y.double().square().sum().div(2 * len(y)).backward()
    yield y.detach()
    yield from (t.grad for t in (rows, *model.parameters()) if t.grad is not None)


def errors(found: list[Tensor], wanted: list[Tensor]) -> tuple[float, float]:
    """The largest error of outputs, and of gradients: each over the largest number of its tensor."""
    off = [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True)]
    return off[0], max(off[1:])


def rows() -> Iterator[tuple[str, str, str, float, float]]:
    """Cell, setting, who ran it, and the errors of its outputs and gradients."""
    x = torch.randn(sum(lengths()), SIZE)
    ours, theirs = stepnet.nn.LSTM(SIZE, SIZE), torch.nn.LSTM(SIZE, SIZE)
    theirs.load_state_dict(ours.state_dict())
    norm = cells.LayerNormLSTM(SIZE, SIZE)
    torch.nn.init.constant_(norm.norm_hh.weight, 0.25)  # at 1, errors grow from step to step
    for name, model, other in (("LSTM", ours, theirs), ("layer-norm LSTM", norm, norm)):
        exact = type(model)(SIZE, SIZE).double()
        exact.load_state_dict(model.state_dict())
        wanted = list(results(lambda m, r: by_stepnet(m, r, "naive"), exact, x))
        for setting in SETTINGS:
            torch.set_float32_matmul_precision(setting)
            found = list(results(lambda m, r: by_stepnet(m, r, "c"), model, x))
            yield name, setting, "stepnet", *errors(found, wanted)
            yield name, setting, "torch", *errors(list(results(by_torch, other, x)), wanted)


if __name__ == "__main__":
    for name, setting, who, of_outputs, of_gradients in rows():
        print(f"| {name} | {setting} | {who} | {of_outputs:.1e} | {of_gradients:.1e} |", flush=True)
