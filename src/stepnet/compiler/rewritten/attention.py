"""Attention as products and a softmax, with rows first: torch puts the heads of all rows in one dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Products and a softmax; 0 where a mask leaves nothing to attend to."""
    if dropout_p or query.dim() < 3 + enable_gqa or query.dim() != key.dim():
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        places = torch.arange(query.shape[-2])[:, None], torch.arange(key.shape[-2])
        scores = torch.where(places[0] >= places[1], scores, -torch.inf)
    elif attn_mask is None:
        return torch.softmax(scores, -1) @ value
    else:
        scores = scores + _as_numbers(~attn_mask if attn_mask.dtype == torch.bool else attn_mask, query)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    shares = torch.softmax(torch.where(nothing, 0.0, scores), -1)  # of numbers: their gradient is 0, no NaN
    return torch.where(nothing, 0.0, shares) @ value


def heads_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None,
    add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor | None,
    training: bool = True, key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """`F.multi_head_attention_forward` of queries, keys and values [places, rows, features]."""
    odd = (
        (dropout_p and training) or add_zero_attn or query.dim() != 3 or key.dim() != 3
        or any(t is not None for t in (bias_k, bias_v, static_k, static_v))
        or (is_causal if attn_mask is None else attn_mask.dim() != 2)
        or embed_dim_to_check != query.shape[2] or query.shape[2] % num_heads
        or key.shape[:2] != value.shape[:2]
    )  # fmt: skip
    if odd or any(type(t.shape[1]) is int or type(t.shape[0]) is not int for t in (query, key)):
        return NotImplemented
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = _projected((query, key, value), weights, biases)
    is_causal = is_causal and key_padding_mask is None and not need_weights  # a hint: torch looks at no mask
    mask = None if is_causal else _as_numbers(attn_mask, q)
    if key_padding_mask is not None:
        padding = _as_numbers(key_padding_mask, q)
        padding = padding[:, None, None]  # [rows, heads, queries, keys]
        mask = padding if mask is None else mask + padding
    heads = [t.unflatten(2, (num_heads, -1)).transpose(1, 2) for t in (q, k, v)]
    if need_weights:
        scores = (heads[0] * heads[0].shape[-1] ** -0.5) @ heads[1].transpose(-2, -1)
        found = torch.softmax(scores if mask is None else scores + mask, -1)
        out = found @ heads[2]
    else:
        found, out = None, attention(*heads, attn_mask=mask, is_causal=is_causal)
    out = F.linear(out.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1)
    if found is not None and average_attn_weights:
        found = found.mean(1)
    return out, found


def _projected(sources: tuple[Tensor, ...], weights: Any, biases: Any) -> list[Tensor]:
    """Rows first, times their weights; in one product where one tensor is all three."""
    query, key, value = (source.transpose(0, 1) for source in sources)
    if sources[0] is sources[1] is sources[2] and all(w.shape == weights[0].shape for w in weights):
        whole = F.linear(query, torch.cat([*weights]), None if biases[0] is None else torch.cat([*biases]))
        return [*whole.chunk(3, 2)]
    return [F.linear(t, w, b) for t, w, b in zip((query, key, value), weights, biases, strict=True)]


def _as_numbers(mask: Any, like: Tensor) -> Any:
    """What is added to scores; of truth values -inf where they are true."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.tensor(-torch.inf, dtype=like.dtype), torch.zeros((), dtype=like.dtype))
