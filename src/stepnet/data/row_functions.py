"""The table of torch functions that keep rows apart, and how one of them is called on LoDTensors.

A function in the table gives a LoDTensor of the same LoD. What is not in it is refused: a function that
mixes rows of different sequences would give numbers that look right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_flatten, tree_unflatten

from stepnet.data import row_rules as rules
from stepnet.data.in_graph import CAN_CAPTURE, teach_forms
from stepnet.data.row_rules import ALL, FunctionCall, Rule, batches, feature_dims, leading, pointwise
from stepnet.errors import LoDError, RowMixError

POINTWISE = """
    abs absolute neg negative positive sign sgn signbit square sqrt rsqrt reciprocal exp exp2 expm1 expit
    log log2 log10 log1p logit sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh
    asinh acosh atanh arcsinh arccosh arctanh sinc sigmoid erf erfc erfinv erfcx lgamma gammaln digamma psi
    polygamma mvlgamma multigammaln igamma igammac gammainc gammaincc i0 i0e i1 i1e ndtr ndtri log_ndtr entr
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
    modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p floor ceil round trunc fix frac frexp
    nan_to_num isnan isinf isfinite isposinf isneginf isreal deg2rad rad2deg angle conj conj_physical
    resolve_conj resolve_neg real imag logical_not bitwise_not clamp clamp_min clamp_max clip heaviside
    add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power
    atan2 arctan2 hypot copysign nextafter ldexp logaddexp logaddexp2 xlogy xlog1py maximum minimum fmax
    fmin lerp addcmul addcdiv gcd lcm polar complex zeta
    eq ne lt le gt ge not_equal less less_equal greater greater_equal isclose
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift masked_fill
    relu relu6 leaky_relu rrelu elu celu selu gelu silu mish hardswish hardsigmoid
    hardtanh hardshrink softshrink tanhshrink softsign softplus logsigmoid threshold
    dropout alpha_dropout bernoulli poisson binomial
    clone contiguous detach float double half bfloat16 cfloat cdouble chalf int long short char byte bool cpu
    cuda type expand_as
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__
    __mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__ __invert__
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__
    __lshift__ __rlshift__ __rshift__ __rrshift__
"""

IN_PLACE = """
    zero_ fill_ copy_ normal_ uniform_ exponential_ random_ cauchy_ geometric_ log_normal_ requires_grad_
    share_memory_
"""
# In place by the rule of the function without the underscore.
IN_PLACE_TOO = """
    cumsum_ cumprod_ scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_ index_fill_ index_reduce_
"""

# In one, two or three dimensions.
_OF_IMAGES = """
    conv* conv_transpose* max_pool* max_pool*_with_indices avg_pool* adaptive_avg_pool* adaptive_max_pool*
    adaptive_max_pool*_with_indices lp_pool* dropout*
"""

# Each row: the rule, and the functions that obey it (of torch, Tensor, torch.nn.functional and the rest;
# where those of one name differ, the place stands before it).
TABLE: list[tuple[Rule, str]] = [
    (pointwise, POINTWISE),
    (rules.all_of(pointwise, rules.by_first), "type_as view_as reshape_as"),
    (rules.where, "where"),
    (
        feature_dims(1),
        """sum nansum mean nanmean prod amax amin all any logsumexp std var std_mean var_mean count_nonzero
        argmax argmin median nanmedian softmax log_softmax softmin cumsum cumprod cummax cummin
        logcumsumexp squeeze select narrow narrow_copy unflatten index_select aminmax gradient fftshift
        ifftshift _safe_softmax squeeze_copy select_copy""",
    ),
    (rules.reduces, "max min"),
    (feature_dims(1, default=-1), "glu mode argsort sort"),
    (feature_dims(1, default=0), "unbind"),
    (feature_dims(2, default=0), "split chunk tensor_split split_with_sizes unsafe_split unsafe_chunk"),
    (feature_dims(2, default=-1), "topk kthvalue diff fft ifft rfft irfft hfft ihfft"),
    (feature_dims(2, default=(-2, -1)), "matrix_norm fft2 ifft2 rfft2 irfft2 hfft2 ihfft2"),
    (feature_dims(2), "norm vector_norm repeat_interleave fftn ifftn rfftn irfftn hfftn ihfftn"),
    (rules.quantile, "quantile nanquantile"),
    (feature_dims(2, default=1), "normalize"),
    (feature_dims(4, default=-1), "gumbel_softmax"),
    (feature_dims(1, "dims"), "flip"),
    (feature_dims(2, "dims"), "roll rot90"),
    (feature_dims(1, "dimension"), "Tensor.unfold unfold_copy"),
    (feature_dims(2, "dim1", also="dim2"), "diagonal diagonal_copy"),
    (feature_dims(2, "dim1", default=-2, also="dim2", new=1), "diag_embed"),
    (feature_dims(1, "start_dim", 0), "flatten"),
    (feature_dims(1, new=1), "unsqueeze unsqueeze_copy"),
    (feature_dims(1, "dim0", also="dim1"), "transpose swapdims transpose_copy"),
    (feature_dims(1, "axis0", also="axis1"), "swapaxes"),
    (feature_dims(1, "source", also="destination"), "movedim moveaxis"),
    (feature_dims(1, by_rows=ALL), "gather scatter scatter_add scatter_reduce"),
    (feature_dims(1, by_rows=ALL, shared=1), "index_add index_copy index_fill index_reduce"),
    (feature_dims(2, by_rows=ALL), "take_along_dim select_scatter slice_scatter"),
    (feature_dims(1, default=0, by_rows=ALL), "cat concat concatenate"),
    (feature_dims(1, default=0, by_rows=ALL, new=1), "stack"),
    (rules.all_of(pointwise, feature_dims(2, default=1, by_rows=ALL)), "cosine_similarity"),
    (rules.all_of(pointwise, feature_dims(2, default=-1, by_rows=ALL)), "vecdot linalg.cross"),
    (rules.all_of(pointwise, feature_dims(2, by_rows=ALL)), "cross"),
    (rules.all_of(pointwise, feature_dims(2, default=-1)), "trapezoid trapz cumulative_trapezoid"),
    (rules.all_of(pointwise, leading(2, by_rows=ALL)), "pairwise_distance"),
    (rules.keeps_rows("shape", "reshape"), "reshape view"),
    (rules.keeps_rows("size", "expand"), "expand broadcast_to"),
    (rules.keeps_rows("repeats", "repeat"), "repeat"),
    (rules.keeps_rows("dims", "tile"), "tile"),
    (rules.keeps_rows("dims", "permute"), "permute"),
    (rules.last_dims("normalized_shape"), "layer_norm rms_norm native_layer_norm"),
    (rules.last_dims("pad", per_dim=2), "pad constant_pad_nd"),
    (rules.matmul, "matmul mm mv bmm __matmul__ __rmatmul__"),
    (rules.linear, "linear"),
    (rules.added, "addmm addmv"),
    (rules.einsum, "einsum"),
    (batches(3), "solve solve_ex solve_triangular cholesky_solve baddbmm cdist"),
    (batches(3, by_rows=3), "scaled_dot_product_attention"),
    (leading(2), "inner group_norm prelu feature_dropout feature_alpha_dropout view_as_complex"),
    (leading(2, by_rows=2), "bilinear"),
    (leading(2), "hsplit"),
    (leading(2, by_rows=ALL), "hstack dstack"),
    (leading(1, by_rows=ALL), "column_stack"),
    (leading(1), "embedding bucketize isin view_as_real fake_quantize_per_tensor_affine"),
    (leading(2, exactly=True), "multinomial embedding_bag"),
    (
        rules.alone(3),
        """tril triu adjoint dsplit interpolate upsample local_response_norm channel_shuffle det logdet
        slogdet inverse inv inv_ex pinv pinverse cholesky cholesky_ex cholesky_inverse matrix_exp matrix_power
        matrix_rank cond eig eigh eigvals eigvalsh svd svdvals qr lu lu_factor lu_factor_ex""",
    ),
    (leading(3, exactly=True), "F.fold"),
    (leading(4, exactly=True), "F.unfold"),
    (leading(4), "pixel_shuffle pixel_unshuffle"),
    (leading(4, by_rows=2), "grid_sample"),
    *((leading(n + 2, exactly=True), _OF_IMAGES.replace("*", f"{n}d")) for n in (1, 2, 3)),
    *((leading(n + 2, exactly=True, by_rows=2), f"max_unpool{n}d") for n in (1, 2, 3)),
    (rules.batch_norm, "batch_norm"),
    (rules.instance_norm, "F.instance_norm"),
    (rules.one_hot, "one_hot"),
    (rules.loss(pointwise), "mse_loss l1_loss smooth_l1_loss huber_loss kl_div"),
    (rules.loss(pointwise), "binary_cross_entropy binary_cross_entropy_with_logits"),
    (rules.loss(pointwise), "poisson_nll_loss gaussian_nll_loss hinge_embedding_loss soft_margin_loss"),
    (rules.loss(pointwise), "margin_ranking_loss"),
    (rules.loss(leading(2, by_rows=2)), "cross_entropy nll_loss multi_margin_loss multilabel_margin_loss"),
    (rules.loss(batches(2, by_rows=2)), "multilabel_soft_margin_loss"),  # torch spreads a target of less
    (rules.loss(leading(2, by_rows=3)), "cosine_embedding_loss triplet_margin_loss"),
]

# Answers about the values as a whole, in Python's own types, and plain tensors of their dtype and device.
ABOUT = """
    dim ndimension size numel nelement stride storage_offset data_ptr element_size get_device
    is_floating_point is_complex is_signed is_contiguous is_conj is_neg is_inference is_shared result_type
    retain_grad register_hook new_zeros new_ones new_empty new_full new_tensor
"""
COMPARE = "equal allclose"

# Attributes of Tensor that are row-wise functions of it.
ATTRIBUTES = {
    name: (getattr(Tensor, name).__get__, rule)
    for rule, names in ((pointwise, "real imag data"), (leading(3), "mT mH"))
    for name in names.split()
}

REMEDIES = {
    "reduction='none' gives a loss per row; stepnet.sequence_pool, or x.values, reduces it": """
        cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss
        smooth_l1_loss huber_loss kl_div poisson_nll_loss gaussian_nll_loss hinge_embedding_loss
        soft_margin_loss margin_ranking_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss cosine_embedding_loss""",
    "stepnet.sequence_pool(x, ...) gives one result per sequence; x.values has all rows as one tensor": """
        sum nansum mean nanmean prod max min amax amin all any logsumexp std var std_mean var_mean norm
        vector_norm matrix_norm argmax argmin median nanmedian mode count_nonzero aminmax quantile
        nanquantile adaptive_avg_pool1d adaptive_max_pool1d max_pool1d avg_pool1d""",
    "stepnet.sequence_softmax(x) takes it over each sequence": "softmax log_softmax softmin gumbel_softmax",
    "LoDTensor.cat([a, b]) puts the sequences of b after those of a; "
    "stepnet.sequence_concat([a, b]) joins sequence i of a and sequence i of b": """
        cat concat concatenate hstack vstack""",
    "stepnet.sequence_reverse(x) turns each sequence around": "flip fliplr flipud roll",
    "stepnet.sequence_slice(x, offset, length), or x[i] and x[i:j] for whole sequences": """
        narrow select index_select split chunk tensor_split unbind masked_select take gather vsplit
        split_with_sizes""",
    "stepnet.sequence_expand(t, x) repeats one entry per sequence to the rows of x": """
        repeat_interleave repeat tile expand broadcast_to""",
    "stepnet.recurrent carries a value from row to row of each sequence": """
        cumsum cumprod cummax cummin logcumsumexp diff lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell""",
    "stepnet.nn.LSTM, GRU and RNN take it, with the same parameters": "lstm gru rnn_tanh rnn_relu",
    "layer_norm keeps rows apart, and so does batch_norm after eval()": "batch_norm instance_norm",
    "x.to_padded() gives [sequences, longest, ...]": """
        conv1d conv2d conv_transpose1d conv_transpose2d sort argsort topk kthvalue
        scaled_dot_product_attention multi_head_attention_forward einsum ctc_loss msort""",
    "x.values.item(), x.values.tolist() and x.values.numpy() leave torch": """
        item tolist numpy __array__ __float__ __int__ __index__ __bool__ __contains__""",
    "x.values takes part in autograd: torch.autograd.grad(loss, x.values)": "grad",
    "torch.nn.functional.embedding(x, weight) looks rows of weight up; weight[x.values] has no LoD": """
        embedding __getitem__ __setitem__""",
}
OTHERWISE = "x.map(fn) if fn treats every row alike; otherwise work on x.values"

_BY_NUMBERS = (torch, Tensor, F, torch.special)  # torch.linalg.polar, new in 2.15, is of whole matrices
_SPACES = (*_BY_NUMBERS, torch.linalg, torch.fft)
_SPACES_BY_NAME = {"Tensor": Tensor, "F": F, "linalg": torch.linalg}


def _build() -> dict[Any, Rule]:
    table: dict[Any, Rule] = dict(ATTRIBUTES.values())
    for place, name, rule in sorted(_rows(), key=lambda row: len(row[0])):  # the name in one place comes last
        everywhere = _BY_NUMBERS if rule is pointwise else _SPACES
        for space in (_SPACES_BY_NAME[place],) if place else everywhere:
            _put(table, getattr(space, name, None), rule)
            _put(table, getattr(space, f"special_{name}", None), rule)
            if rule is pointwise and not name.startswith("__"):
                _put(table, getattr(space, f"{name}_", None), rules.in_place)
        if name.startswith("__"):  # as Dynamo calls it in an export
            _put(table, getattr(operator, name, None), rule)
    for name in IN_PLACE.split():
        _put(table, getattr(Tensor, name), rules.in_place)
    for name in IN_PLACE_TOO.split():
        own = table[getattr(Tensor, name.removesuffix("_"))]
        _put(table, getattr(Tensor, name), rules.all_of(rules.writes, own))
    # torch.embedding(weight, indices) is torch.nn.functional.embedding(indices, weight) the other way round.
    del table[torch.embedding], table[torch.embedding_bag]
    return table


def _rows() -> Iterator[tuple[str, str, Rule]]:
    """The names of the table: a place or "", a name, the rule."""
    for rule, names in TABLE:
        for name in names.split():
            place, _, last = name.rpartition(".")
            yield place, last, rule


def _put(table: dict[Any, Rule], function: Any, rule: Rule) -> None:
    if callable(function):
        table[function] = rule


def functions_named(names: str) -> set[Any]:
    """The functions of torch and methods of tensors of these names."""
    return {
        f for name in names.split() for space in (torch, Tensor) if callable(f := getattr(space, name, None))
    }


RULES = _build()
# Operators that torch wrote in Python, which Dynamo does not find in a table: by their names.
_IN_PYTHON = {
    f.__name__: RULES[f]
    for name, f in vars(Tensor).items()
    if name.startswith("__") and isinstance(f, FunctionType) and f in RULES
}
_ABOUT = functions_named(ABOUT)
_COMPARE = functions_named(COMPARE)
_REMEDY = {name: remedy for remedy, names in REMEDIES.items() for name in names.split()}


def call_by_rows(
    kind: type[Any], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a torch function on the values of the LoDTensors (of class ``kind``) among its arguments.

    Every tensor of the result comes back as a LoDTensor of the same LoD. An in-place function changes the
    values and gives back the LoDTensor that it was called on.

    Raises RowMixError for a function that would mix rows, or is not known not to; LoDError when two
    LoDTensors differ in LoD.
    """
    if torch.compiler.is_dynamo_compiling() and isinstance(function, HigherOrderOperator):
        return _on_leaves(function, *args, **kwargs)
    call = FunctionCall(
        function, args, kwargs, kind, _REMEDY.get(getattr(function, "__name__", ""), OTHERWISE)
    )
    if function in _ABOUT:
        return call.on_values()
    if function in _COMPARE:
        return all(x.structure == call.ragged[0].structure for x in call.ragged) and call.on_values()
    rule = None
    if torch.compiler.is_dynamo_compiling():
        if CAN_CAPTURE:
            teach_forms()
        rule = _IN_PYTHON.get(getattr(function, "__name__", ""))
    rule = rule or RULES.get(function)
    if rule is None:
        raise RowMixError(
            f"{call.name} mixes the rows of a LoDTensor, or is not known to keep them apart",
            remedy=call.remedy,
        )
    rules.check_same_lod(call)
    if kwargs.get("out") is not None:
        call.refuse("out=...", remedy="leave out= away and take the result")
    rule(call)
    try:
        return _wrap(call, call.on_values())
    except RuntimeError as error:
        if "nference" not in str(error) or not any(x.values.is_inference() for x in call.ragged):
            raise
        raise LoDError(
            f"{call.name}: a LoDTensor made in inference mode takes no part in training",
            got=str(error).partition(".")[0],
            remedy="x.clone() outside of inference mode; or make it under torch.no_grad()",
        ) from error


def _on_leaves(wrapping: Callable[..., Any], body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An operator of torch that runs a body, such as a checkpoint, in a graph: it takes tensors."""
    leaves, spec = tree_flatten(args)
    return wrapping(lambda *given: body(*tree_unflatten(given, spec)), *leaves, **kwargs)


def _wrap(call: FunctionCall, result: Any) -> Any:
    if isinstance(result, Tensor):
        first = call.ragged[0]
        if result is first.values:
            return first
        if result.ndim == 0 or result.shape[0] != call.rows:
            call.refuse(f"a result of shape {list(result.shape)}")
        return call.kind.of(result, first.structure)
    if isinstance(result, (list, tuple)):
        parts = [_wrap(call, part) for part in result]
        if type(result) in (list, tuple):
            return type(result)(parts)
        # torch.return_types take one iterable; a namedtuple takes its fields.
        return type(result)(*parts) if hasattr(result, "_make") else type(result)(parts)
    return result
