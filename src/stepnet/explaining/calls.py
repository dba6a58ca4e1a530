"""What kind of work torch's functions are, by name; for steps of which no graph could be made."""

from __future__ import annotations

from .records import Weight


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_MATMULS = _words("linear matmul rmatmul mm addmm bmm baddbmm mv addmv einsum bilinear")
_COSTLY = _words(
    "exp expm1 log log1p sqrt rsqrt sin cos tan tanh sigmoid erf pow rpow softmax log_softmax softplus gelu",
    "silu elu mish logsigmoid layer_norm dropout rand randn rand_like randn_like bernoulli multinomial",
)
_MOVES = _words(
    "reshape view chunk split unbind cat stack getitem index_select gather transpose permute t T mT clone",
    "detach contiguous expand unsqueeze squeeze flatten to float double zeros ones full empty zeros_like",
    "ones_like full_like empty_like new_zeros new_ones new_full tensor as_tensor arange",
    "narrow select requires_grad",
)
# they hand a tensor's values to Python
_LOOKS = _words("item bool int index tolist numpy nonzero unique contains len iter")


def looks(name: str) -> bool:
    """True for calls that hand a tensor's values to Python: what a step does next may depend on them."""
    return name in _LOOKS


def weight_of_call(name: str) -> Weight:
    """What kind of work a torch function is."""
    name = name.strip("_")
    if name in _LOOKS:
        return "call"
    if name in _MATMULS:
        return "matmul"
    if name in _MOVES:
        return "move"
    return "costly" if name in _COSTLY else "cheap"
