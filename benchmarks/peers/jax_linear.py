"""Steps of cells that are linear in their state, for jax_scan: one head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid, silu, softplus

Weights = Mapping[str, Any]


def _linear(p: Weights, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _by_head(p: Weights, x: Any, *names: str) -> Any:
    return (_linear(p, name, x)[:, None] for name in names)


def _outer(k: Any, v: Any) -> Any:
    return k[..., :, None] * v[..., None, :]


def _lookup(matrix: Any, k: Any) -> Any:
    return jnp.einsum("bhkv,bhk->bhv", matrix, k)


def _unit(x: Any) -> Any:
    return x / jnp.maximum(jnp.sqrt((x * x).sum(-1, keepdims=True)), 1e-12)


def _min_lstm(p: Weights, x: Any, state: Any) -> Any:
    (h,) = state
    f, i, n = jnp.split(x @ p["weight_ih"].T + p["bias_ih"], 3, -1)
    d = softplus(-f) - softplus(-i)
    h = sigmoid(-d) * h + sigmoid(d) * n
    return h, (h,)


def _rg_lru(p: Weights, x: Any, state: Any) -> Any:
    (h,) = state
    log_a = -8.0 * sigmoid(_linear(p, "recurrence_gate", x)) * softplus(-p["decay"])
    share = jnp.sqrt(-jnp.expm1(2 * log_a))
    h = jnp.exp(log_a) * h + share * (sigmoid(_linear(p, "input_gate", x)) * x)
    return h, (h,)


def _selective_ssm(p: Weights, x: Any, state: Any) -> Any:
    (h,) = state
    n, rank = p["A_log"].shape[1], p["dt_proj.weight"].shape[1]
    t, b, c = jnp.split(_linear(p, "x_proj", x), [rank, rank + n], -1)
    dt = softplus(_linear(p, "dt_proj", t))[..., None]
    h = jnp.exp(-dt * jnp.exp(p["A_log"])) * h + dt * _outer(x, b)
    return (h * c[:, None, :]).sum(-1) + p["D"] * x, (h,)


def _mlstm(p: Weights, x: Any, state: Any) -> Any:
    c, n, m = state
    q, k, v = _by_head(p, x, "query", "key", "value")
    k = k / k.shape[-1] ** 0.5
    log_f, log_i = log_sigmoid(_linear(p, "forget_gate", x)) + m, _linear(p, "input_gate", x)
    m = jnp.maximum(jnp.maximum(log_f, log_i), 0)
    f, i = jnp.exp(log_f - m)[..., None], jnp.exp(log_i - m)[..., None]
    c, n = f[..., None] * c + _outer(i * k, v), f * n + i * k
    scale = jnp.maximum(jnp.abs((q * n).sum(-1)), jnp.exp(-m))[..., None]
    return sigmoid(_linear(p, "output_gate", x)) * (_lookup(c, q) / scale)[:, 0], (c, n, m)


def _gla(p: Weights, x: Any, state: Any) -> Any:
    (s,) = state
    q, k, v = _by_head(p, x, "query", "key", "value")
    decay = jnp.exp(log_sigmoid(_linear(p, "decay.1", _linear(p, "decay.0", x))) / 16)
    s = decay[:, None, :, None] * s + _outer(k, v)
    return _lookup(s, q)[:, 0], (s,)


def _delta_net(p: Weights, x: Any, state: Any) -> Any:
    (s,) = state
    q, k, v = _by_head(p, x, "query", "key", "value")
    q, k = _unit(silu(q)), _unit(silu(k))
    s = s + _outer(k, sigmoid(_linear(p, "write_share", x))[..., None] * (v - _lookup(s, k)))
    return _lookup(s, q)[:, 0], (s,)


def _gated_delta_net(p: Weights, x: Any, state: Any) -> Any:
    (s,) = state
    decay = jnp.exp(-jnp.exp(p["decay_rate"]) * softplus(_linear(p, "decay_time", x)))
    return _delta_net(p, x, (decay[..., None, None] * s,))


STEPS: dict[str, Callable[[Weights, Any, Any], Any]] = {
    "min_lstm": _min_lstm,
    "rg_lru": _rg_lru,
    "selective_ssm": _selective_ssm,
    "mlstm": _mlstm,
    "gla": _gla,
    "delta_net": _delta_net,
    "gated_delta_net": _gated_delta_net,
}
