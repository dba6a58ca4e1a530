"""jax.lax.scan under jit, over padded steps with a mask where the input is ragged.

The input projection stays in the step: taking it out by hand changes XLA's time by less than a tenth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Contender
from benchmarks.work import Setting, named

os.environ.setdefault("NPROC", str(torch.get_num_threads()))  # the threads XLA makes when it starts
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid

from . import jax_linear

Weights = Mapping[str, Any]


def _gates(p: Weights, x: Any, h: Any) -> Any:
    return x @ p["weight_ih"].T + p["bias_ih"] + h @ p["weight_hh"].T + p["bias_hh"]


def _lstm(p: Weights, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(_gates(p, x, h), 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    h = sigmoid(o) * jnp.tanh(c)
    return h, (h, c)


def _gru(p: Weights, x: Any, state: Any) -> Any:
    (h,) = state
    x_r, x_z, x_n = jnp.split(x @ p["weight_ih"].T + p["bias_ih"], 3, -1)
    h_r, h_z, h_n = jnp.split(h @ p["weight_hh"].T + p["bias_hh"], 3, -1)
    z = sigmoid(x_z + h_z)
    h = (1 - z) * jnp.tanh(x_n + sigmoid(x_r + h_r) * h_n) + z * h
    return h, (h,)


def _norm(p: Weights, name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def _layer_norm_lstm(p: Weights, x: Any, state: Any) -> Any:
    h, c = state
    gates = _norm(p, "norm_ih", x @ p["weight_ih"].T) + _norm(p, "norm_hh", h @ p["weight_hh"].T)
    i, f, g, o = jnp.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    h = sigmoid(o) * jnp.tanh(_norm(p, "norm_c", c))
    return h, (h, c)


def _peephole_lstm(p: Weights, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(_gates(p, x, h), 4, -1)
    p_i, p_f, p_o = jnp.split(p["weight_c"], 3)
    c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * jnp.tanh(g)
    h = sigmoid(o + p_o * c) * jnp.tanh(c)
    return h, (h, c)


def _slstm(p: Weights, x: Any, state: Any) -> Any:
    h, c, n, m = state
    i, f, z, o = jnp.split(_gates(p, x, h), 4, -1)
    log_f = log_sigmoid(f) + m
    m = jnp.maximum(log_f, i)
    a, b = jnp.exp(log_f - m), jnp.exp(i - m)
    c, n = a * c + b * jnp.tanh(z), a * n + b
    h = sigmoid(o) * (c / n)
    return h, (h, c, n, m)


def _min_gru(p: Weights, x: Any, state: Any) -> Any:
    (h,) = state
    z, n = jnp.split(x @ p["weight_ih"].T + p["bias_ih"], 2, -1)
    z = sigmoid(z)
    h = (1 - z) * h + z * n
    return h, (h,)


def _window_lstm(p: Weights, x: Any, state: Any) -> Any:
    h, c = state
    a, b = x @ p["weight_ih"].T, h @ p["weight_hh"].T
    f, g, o = jnp.split(p["alpha"] * a * b + a + b + p["bias"], 3, -1)
    c = sigmoid(f) * c + (1 - sigmoid(f)) * jnp.tanh(g)
    h = jnp.exp(-o * o) * jnp.tanh(c)
    return h, (h, c)


STEPS: dict[str, Callable[[Weights, Any, Any], Any]] = {
    "lstm": _lstm,
    "gru": _gru,
    "layer_norm_lstm": _layer_norm_lstm,
    "peephole_lstm": _peephole_lstm,
    "slstm": _slstm,
    "min_gru": _min_gru,
    "window_lstm": _window_lstm,
    **jax_linear.STEPS,
}


def contenders(setting: Setting, training: bool) -> dict[str, Contender]:
    """`jax`. It returns y, and in training the gradients of x and of all weights, from one jitted call."""
    forward = _scan(STEPS[setting.work.name], setting)
    weights = {name: _array(weight) for name, weight in setting.weights.items()}
    x, seeds = _array(setting.x), _array(setting.seeds)

    def value_and_grads(p: Weights, x: Any, seeds: Any) -> Any:
        y, pull = jax.vjp(forward, p, x)
        return y, *pull(seeds)

    infer, train = jax.jit(forward), jax.jit(value_and_grads)

    def run() -> Any:
        return jax.block_until_ready(train(weights, x, seeds) if training else (infer(weights, x),))

    def values(done: Any) -> Mapping[str, Tensor]:
        y, *grads = jax.tree.map(_tensor, done)
        if not training:
            return setting.relative({"y": setting.to_rows(y)})
        found, grad_x = grads
        ordered = {name: found[name] for name in setting.weights}
        return setting.relative(named(setting.to_rows(y), setting.to_rows(grad_x), ordered))

    return {"jax": Contender(run, values)}


def _scan(step: Callable[[Weights, Any, Any], Any], setting: Setting) -> Callable[[Weights, Any], Any]:
    boot = setting.cell.initial_state(setting.size.B)
    leaves = boot if isinstance(boot, tuple) else (boot,)
    state = tuple(_array(leaf) for leaf in leaves)
    if not setting.ragged:
        return lambda p, x: jax.lax.scan(lambda s, x_t: step(p, x_t, s)[::-1], state, x)[1]
    valid = jnp.asarray(setting.valid.numpy())[:, :, None]

    def forward(p: Weights, x: Any) -> Any:
        def masked(state: Any, now: Any) -> Any:
            x_t, there = now
            y, new = step(p, x_t, state)
            return tuple(jnp.where(there, a, b) for a, b in zip(new, state, strict=True)), y

        return jax.lax.scan(masked, state, (x, valid))[1]

    return forward


def _array(tensor: Tensor) -> Any:
    return jnp.asarray(tensor.detach().numpy())


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(jax.device_get(array).copy())
