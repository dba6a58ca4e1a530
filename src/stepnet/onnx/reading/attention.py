"""Attention: queries over keys and values, of several heads, with masks, a past and a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .info import Info, Misfit, Run, dtype_of, op

_MODES = range(4)  # of the scores that are a result: as they are, softcapped, masked, as probabilities


@op("Attention", inputs=(3, 7))
def _attention(node: Info) -> Run:
    causal, given, cap = node.get("is_causal", 0), node.get("scale"), node.get("softcap", 0.0)
    heads = node.get("q_num_heads"), node.get("kv_num_heads")
    mode, precise = node.get("qk_matmul_output_mode", 0), node.get("softmax_precision")
    window = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if mode not in _MODES or min(window) < -1:
        raise Misfit("no such mode or window", (mode, *window), "a mode of 0 to 3, windows of -1 or more")
    dtype = None if precise is None else dtype_of(precise)
    left, right = window[0], 0 if causal else window[1]

    def attend(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_k: Tensor | None = None,
        past_v: Tensor | None = None, filled: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if {q.dim(), k.dim(), v.dim()} not in ({3}, {4}) or (past_k is None) != (past_v is None):
            raise Misfit("Q, K and V must have 3 or 4 dimensions, and pasts come in pairs", q.dim(), "3 or 4")
        flat = q.dim() == 3
        if flat:
            q, k, v = _split(q, heads[0], "q"), _split(k, heads[1], "kv"), _split(v, heads[1], "kv")
        before = 0
        if past_k is not None and past_v is not None:
            before, k, v = past_k.shape[2], torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        if k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
            raise Misfit(
                "heads of Q are no multiple of those of K and V", (q.shape[1], k.shape[1], v.shape[1])
            )
        factor = (q.shape[3] ** -0.5 if given is None else given) ** 0.5
        each = q.shape[1] // k.shape[1]
        keys, values = (t.repeat_interleave(each, 1) if each > 1 else t for t in (k, v))
        plain = (q * factor) @ (keys * factor).transpose(2, 3)
        capped = torch.tanh(plain / cap) * cap if cap > 0 else plain
        bias = _bias(plain, mask, filled, before, left, right)
        masked = capped + bias
        none = (bias == -torch.inf).all(-1, keepdim=True)  # rows that no key is left to
        weights = torch.softmax(masked if dtype is None else masked.to(dtype), -1)
        weights = weights.masked_fill(none, 0).to(q.dtype)
        y = weights @ values
        if flat:
            y = y.transpose(1, 2).flatten(2)
        return (y, k, v, (plain, capped, masked, weights)[mode])[: node.count]

    return attend


def _bias(
    scores: Tensor, mask: Tensor | None, filled: Tensor | None, before: int, left: int, right: int
) -> Tensor:
    """What is added to the scores: minus infinity where a query does not see a key, as one more than `left`
    before it, or `right` behind it."""
    rows, columns = scores.shape[-2:]
    bias = scores.new_zeros((rows, columns))
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=bias.dtype).masked_fill(~mask, -torch.inf)
        bias = bias + F.pad(mask, [0, max(columns - mask.shape[-1], 0)], value=-torch.inf)
    key = torch.arange(columns, device=scores.device)
    place = torch.arange(rows, device=scores.device).unsqueeze(1) + before
    if filled is not None:
        lengths = filled.reshape(-1, 1, 1, 1)
        place = place + (lengths - rows) if before == 0 else place
        bias = bias.masked_fill(key >= lengths, -torch.inf)
    ahead = key - place  # how far a key lies behind its query
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    hidden = hidden | (ahead > right) if right >= 0 else hidden
    hidden = hidden | (ahead < -left) if left >= 0 else hidden
    return bias.masked_fill(hidden, -torch.inf)


def _split(x: Tensor, heads: Any, name: str) -> Tensor:
    """[batch, rows, features] as [batch, heads, rows, features of a head]."""
    if not heads or x.shape[2] % heads:
        raise Misfit(f"{name}_num_heads does not divide the features", heads, f"a divisor of {x.shape[2]}")
    return x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)
