"""Functions on autocast's lists: a compiled step casts what autocast casts, though it runs other ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from covering import few
from stepnet import LoDTensor, recurrent

N = 3
W = {
    name: torch.randn(shape, generator=torch.Generator().manual_seed(4)) / 2
    for name, shape in {"square": (N, N), "taps": (N, N, 3), "bias": (N,)}.items()
}

LOW = {
    "matmul": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, W["square"], W["bias"]) * b,
    "conv1d": lambda a, b: F.conv1d(a, W["taps"], W["bias"], padding=1) * b,
    "attention": lambda a, b: F.scaled_dot_product_attention(a, b, a),
    "causal attention": lambda a, b: F.scaled_dot_product_attention(a, a, b, is_causal=True),
}  # fmt: skip
FLOAT32 = {
    "solve": torch.linalg.solve,
    "solve from the right": lambda a, b: torch.linalg.solve(a, b, left=False),
    "solve a vector": lambda a, b: torch.linalg.solve(a, b[..., 0]),
    "inv": lambda a, b: torch.linalg.inv(a) @ b,
    "mse_loss": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "cdist": torch.cdist,
    "fourier": lambda a, b: torch.fft.irfft(torch.fft.rfft(a), n=N) * torch.fft.fft2(b).real,
    "reflected": lambda a, b: F.pad(a, (1, 1), mode="reflect") + F.pad(b, (2, 0), mode="replicate"),
    "avg_pool3d": lambda a, b: F.avg_pool3d(a.unsqueeze(1).unsqueeze(1), (1, 2, 2)).flatten(1, 3),
    "max_pool3d": lambda a, b: F.max_pool3d(b.unsqueeze(1).unsqueeze(1), (1, 2, 2)).flatten(1, 3),
}
WIDEST = {
    "cat": lambda a, b: torch.cat([a, b], 1),
    "stack": lambda a, b: torch.stack([a, b], 1),
}
NONE = {
    "batch_norm": lambda a, b: F.batch_norm(a, W["bias"], W["bias"] ** 2, W["bias"]) * b,
    "group_norm": lambda a, b: F.group_norm(a, 3) * b,
    "roll": lambda a, b: a.roll(1, 1) * b,
    "take_along_dim": lambda a, b: torch.take_along_dim(a, torch.arange(N)[None, :, None] % 2, 1) * b,
}
FUNCTIONS = {**LOW, **FLOAT32, **WIDEST, **NONE}
FULL, HALF = torch.float32, torch.bfloat16
PAIRS = [(FULL, HALF), (HALF, FULL), (HALF, HALF)]
CASES = [*((pair, "eager") for pair in PAIRS), (PAIRS[0], "c")]


def outcome(dtypes, backend):
    """What each function gives, its dtype, and the gradients."""
    numbers = torch.Generator().manual_seed(5)
    a = torch.randn(6, N, N, generator=numbers)
    a = (a @ a.mT / 4 + torch.eye(N)).to(dtypes[0]).requires_grad_()
    h0 = torch.randn(4, N, N, generator=numbers).to(dtypes[1]).requires_grad_()

    def step(x, h):
        results = {name: function(x, h) for name, function in FUNCTIONS.items()}
        return results, (h / 2 + x / 4).to(h.dtype)

    with torch.autocast("cpu", torch.bfloat16):
        y, h = recurrent(step, LoDTensor.from_lengths(a, [[2, 0, 1, 3]]), h0, backend=backend)
    loss = sum(rows.values.float().square().mean() for rows in y.values()) + h.float().mean()
    return {**{name: rows.values for name, rows in y.items()}, "h": h}, torch.autograd.grad(loss, [a, h0])


@pytest.mark.exhaustive  # others: test_autocast.py
@pytest.mark.parametrize(
    ("dtypes", "backend"),
    few(CASES, [(PAIRS[1], "eager")]),
    ids=["f32 bf16", "bf16 f32", "bf16 bf16", "in c"],
)
def test_a_compiled_step_casts_what_autocast_casts(dtypes, backend):
    ours, our_grads = outcome(dtypes, backend)
    plain, plain_grads = outcome(dtypes, "naive")
    for name, expected in plain.items():
        close(ours[name], expected, name)
    for got, expected in zip(our_grads, plain_grads, strict=True):
        close(got, expected, "gradient")


def close(got, expected, name):
    assert got.dtype == expected.dtype, name
    got, expected = got.detach().float(), expected.detach().float()
    assert bool(expected.isfinite().all()), name
    torch.testing.assert_close(
        got, expected, rtol=0, atol=0.03 * float(expected.abs().max()), msg=lambda m: f"{name}: {m}"
    )
