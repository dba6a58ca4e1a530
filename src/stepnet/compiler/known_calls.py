"""Torch calls without a rule that a plan on disk may hold: known by name, pure, and no larger than they read.

A step with other calls is compiled in every process. Left out are calls that make values from numbers or of a
size that values decide, draw noise, know files or devices, or trust their arguments: torch's of the gradients
of pools and paddings write where an index tells them to, or beyond what has not the shape of the forward.
"""

from __future__ import annotations

from typing import Any

import torch

_NAMES = (
    "abs acos acosh _adaptive_avg_pool2d adaptive_max_pool2d add addcdiv addcmul addmm alias all amax "
    "amin aminmax angle any argsort asin asinh atan atan2 atanh avg_pool1d avg_pool2d baddbmm bitwise_and "
    "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bucketize cat "
    "_cdist_forward ceil celu cholesky_inverse cholesky_solve clamp clamp_max clamp_min clone "
    "constant_pad_nd convolution copysign cos cosh cov cross cummax cummin cumprod cumsum deg2rad detach "
    "diag_embed diagonal diagonal_scatter digamma dist div dot elu embedding eq erf erfc erfinv exp exp2 "
    "expand expm1 flip float_power floor floor_divide fmax fmin fmod frac frexp gather gcd ge gelu "
    "gelu_backward glu grid_sampler_2d gt hardshrink hardsigmoid hardswish hardtanh heaviside histc hypot "
    "i0 igamma igammac index index_add index_copy index_fill index_put index_select isfinite isinf isnan "
    "isneginf isposinf kron kthvalue lcm ldexp le leaky_relu lerp lgamma linalg_cholesky_ex linalg_cross "
    "_linalg_det _linalg_eigh linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex "
    "linalg_matrix_exp linalg_pinv linalg_qr _linalg_slogdet linalg_solve _linalg_solve_ex "
    "linalg_solve_triangular _linalg_svd linalg_vector_norm log log10 log1p log2 log_sigmoid_forward "
    "_log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit "
    "logsumexp lt masked_fill masked_scatter matmul max max_pool2d_with_indices maximum mean median min "
    "minimum mish mm mode mul mv mvlgamma nan_to_num nanmedian nansum native_layer_norm ne neg nextafter "
    "norm outer permute pixel_shuffle pixel_unshuffle polygamma pow prelu _prelu_kernel "
    "prod rad2deg reciprocal reflection_pad1d reflection_pad2d relu relu6 "
    "remainder renorm repeat replication_pad1d replication_pad2d reshape roll rot90 round rsqrt rsub "
    "scatter scatter_add scatter_reduce searchsorted select select_scatter selu sgn sigmoid "
    "sigmoid_backward sign signbit silu silu_backward sin sinc sinh slice slice_scatter _softmax softplus "
    "softshrink sort special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
    "special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr "
    "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_ndtr special_ndtri special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py special_zeta split "
    "split_with_sizes sqrt square squeeze stack std std_mean sub sum t take take_along_dim tan tanh "
    "tanh_backward threshold threshold_backward _to_copy topk trace transpose triangular_solve tril triu "
    "trunc unbind unfold unsqueeze upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d var var_mean view where xlogy "
)
_CALLS = frozenset(_NAMES.split())


def known_call(target: str) -> Any | None:
    """The call of a name such as 'aten.cumsum.default', or None if a plan on disk may not hold it.

    >>> known_call("aten.cumsum.default")
    <OpOverload(op='aten.cumsum', overload='default')>
    >>> known_call("aten.from_file.default"), known_call("aten.cumsum.out"), known_call("os.system.default")
    (None, None, None)
    """
    space, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if space != "aten" or name not in _CALLS:
        return None
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        return None
    found = getattr(packet, overload)
    schema = found._schema
    tensors = all("Tensor" in str(result.type) for result in schema.returns)
    return found if tensors and schema.returns and not schema.is_mutable else None
