"""The table of torch functions that keep rows apart, and how one of them is called on LoDTensors.

A function in the table gives a LoDTensor of the same LoD. What is not in it is refused: a function that
mixes rows of different sequences would give numbers that look right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepnet.data import row_rules as rules
from stepnet.data.row_rules import ALL, Call, Rule, feature_dims, leading, pointwise
from stepnet.errors import RowMixError

POINTWISE = """
    abs absolute neg negative positive sign sgn signbit square sqrt rsqrt reciprocal exp exp2 expm1 expit
    log log2 log10 log1p logit sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh
    asinh acosh atanh arcsinh arccosh arctanh sinc sigmoid erf erfc erfinv erfcx lgamma gammaln digamma psi
    polygamma i0 i0e i1 i1e ndtr ndtri log_ndtr entr floor ceil round trunc fix frac frexp
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
    dropout alpha_dropout bernoulli
    clone contiguous float double half bfloat16 cfloat cdouble int long short char byte bool cpu cuda
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__
    __mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__ __invert__
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__
    __lshift__ __rlshift__ __rshift__ __rrshift__
"""

IN_PLACE = "zero_ fill_ copy_ normal_ uniform_ exponential_ random_"

# Each row: the rule, and the functions that obey it (of torch, Tensor, torch.nn.functional and the rest).
TABLE: list[tuple[Rule, str]] = [
    (pointwise, POINTWISE),
    (rules.where, "where"),
    (
        feature_dims(1),
        """sum nansum mean nanmean prod amax amin all any logsumexp std var std_mean var_mean count_nonzero
        argmax argmin median nanmedian softmax log_softmax softmin cumsum cumprod cummax cummin
        logcumsumexp squeeze select narrow unflatten index_select""",
    ),
    (rules.reduces, "max min"),
    (feature_dims(1, default=-1), "glu mode argsort sort"),
    (feature_dims(1, default=0), "unbind"),
    (feature_dims(2, default=0), "split chunk tensor_split"),
    (feature_dims(2, default=-1), "topk kthvalue diff"),
    (feature_dims(2), "norm vector_norm repeat_interleave"),
    (feature_dims(2, default=1), "normalize"),
    (feature_dims(4, default=-1), "gumbel_softmax"),
    (feature_dims(1, "dims"), "flip"),
    (feature_dims(2, "dims"), "roll"),
    (feature_dims(1, "start_dim", 0), "flatten"),
    (feature_dims(1, new=1), "unsqueeze"),
    (feature_dims(1, "dim0", also="dim1"), "transpose swapdims"),
    (feature_dims(1, "axis0", also="axis1"), "swapaxes"),
    (feature_dims(1, "source", also="destination"), "movedim moveaxis"),
    (feature_dims(1, by_rows=ALL), "gather scatter scatter_add"),
    (feature_dims(1, default=0, by_rows=ALL), "cat concat concatenate"),
    (feature_dims(1, default=0, by_rows=ALL, new=1), "stack"),
    (rules.all_of(pointwise, feature_dims(2, default=1, by_rows=ALL)), "cosine_similarity"),
    (rules.keeps_rows(1, "shape", "reshape"), "reshape view"),
    (rules.keeps_rows(1, "size", "expand"), "expand broadcast_to"),
    (rules.keeps_rows(1, "repeats", "repeat"), "repeat"),
    (rules.keeps_rows(1, "dims", "permute"), "permute"),
    (rules.last_dims(1, "normalized_shape"), "layer_norm rms_norm"),
    (rules.last_dims(1, "pad", per_dim=2), "pad"),
    (rules.matmul, "matmul mm mv bmm __matmul__ __rmatmul__"),
    (rules.linear, "linear"),
    (leading(2), "group_norm prelu"),
    (leading(2, by_rows=2), "bilinear"),
    (leading(1), "embedding bucketize isin"),
    (leading(2, exactly=True), "multinomial"),
    (leading(3, exactly=True), "conv1d conv_transpose1d max_pool1d avg_pool1d"),
    (leading(3, exactly=True), "adaptive_avg_pool1d adaptive_max_pool1d"),
    (leading(4, exactly=True), "conv2d conv_transpose2d max_pool2d avg_pool2d"),
    (leading(4, exactly=True), "adaptive_avg_pool2d adaptive_max_pool2d"),
    (rules.batch_norm, "batch_norm"),
    (rules.one_hot, "one_hot"),
    (rules.loss(pointwise), "mse_loss l1_loss smooth_l1_loss huber_loss kl_div"),
    (rules.loss(pointwise), "binary_cross_entropy binary_cross_entropy_with_logits"),
    (rules.loss(leading(2, by_rows=2)), "cross_entropy nll_loss"),
]

# Answers about the values as a whole, in Python's own types.
ABOUT = "dim ndimension size numel is_floating_point is_complex is_contiguous element_size get_device"
COMPARE = "equal allclose"

REMEDIES = {
    "reduction='none' gives a loss per row; stepnet.sequence_pool, or x.values, reduces it": """
        cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss
        smooth_l1_loss huber_loss kl_div""",
    "stepnet.sequence_pool(x, ...) gives one result per sequence": """
        sum nansum mean nanmean prod max min amax amin all any logsumexp std var std_mean var_mean norm
        vector_norm argmax argmin median nanmedian mode count_nonzero aminmax
        adaptive_avg_pool1d adaptive_max_pool1d max_pool1d avg_pool1d""",
    "stepnet.sequence_softmax(x) takes it over each sequence": "softmax log_softmax softmin gumbel_softmax",
    "LoDTensor.cat([a, b]) puts the sequences of b after those of a; "
    "stepnet.sequence_concat([a, b]) joins sequence i of a and sequence i of b": """
        cat concat concatenate hstack vstack""",
    "stepnet.sequence_reverse(x) turns each sequence around": "flip fliplr flipud roll",
    "stepnet.sequence_slice(x, offset, length), or x[i] and x[i:j] for whole sequences": """
        narrow select index_select split chunk tensor_split unbind masked_select take gather""",
    "stepnet.sequence_expand(t, x) repeats one entry per sequence to the rows of x": """
        repeat_interleave repeat tile expand broadcast_to""",
    "stepnet.recurrent carries a value from row to row of each sequence": """
        cumsum cumprod cummax cummin logcumsumexp diff lstm gru rnn_tanh rnn_relu lstm_cell
        gru_cell rnn_tanh_cell rnn_relu_cell""",
    "layer_norm keeps rows apart, and so does batch_norm after eval()": "batch_norm instance_norm",
    "x.to_padded() gives [sequences, longest, ...]": """
        conv1d conv2d conv_transpose1d conv_transpose2d sort argsort topk kthvalue
        scaled_dot_product_attention multi_head_attention_forward einsum""",
    "torch.nn.functional.embedding(x, weight) looks rows of weight up": "embedding __getitem__",
}
OTHERWISE = "x.map(fn) if fn treats every row alike; otherwise work on x.values"

_SPACES = (torch, Tensor, F, torch.special, torch.linalg)


def _build() -> dict[Any, Rule]:
    table: dict[Any, Rule] = {}
    for rule, names in TABLE:
        for name in names.split():
            for space in _SPACES:
                _put(table, getattr(space, name, None), rule)
                _put(table, getattr(space, f"special_{name}", None), rule)
                if rule is pointwise and not name.startswith("__"):
                    _put(table, getattr(space, f"{name}_", None), rules.in_place)
    for name in IN_PLACE.split():
        _put(table, getattr(Tensor, name), rules.in_place)
    # torch.embedding(weight, indices) is torch.nn.functional.embedding(indices, weight) the other way round.
    del table[torch.embedding]
    return table


def _put(table: dict[Any, Rule], function: Any, rule: Rule) -> None:
    if callable(function):
        table[function] = rule


def _functions(names: str) -> set[Any]:
    return {
        f for name in names.split() for space in (torch, Tensor) if callable(f := getattr(space, name, None))
    }


RULES = _build()
_ABOUT = _functions(ABOUT)
_COMPARE = _functions(COMPARE)
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
    call = Call(function, args, kwargs, kind, _REMEDY.get(getattr(function, "__name__", ""), OTHERWISE))
    if function in _ABOUT:
        return call.on_values()
    if function in _COMPARE:
        return all(x._lod == call.ragged[0]._lod for x in call.ragged) and call.on_values()
    rule = RULES.get(function)
    if rule is None:
        raise RowMixError(
            f"{call.name} mixes the rows of a LoDTensor, or is not known to keep them apart",
            remedy=call.remedy,
        )
    rules.check_same_lod(call)
    if kwargs.get("out") is not None:
        call.refuse("out=...", remedy="leave out= away and take the result")
    rule(call)
    return _wrap(call, call.on_values())


def _wrap(call: Call, result: Any) -> Any:
    if isinstance(result, Tensor):
        first = call.ragged[0]
        if result is first._values:
            return first
        if result.ndim == 0 or result.shape[0] != call.rows:
            call.refuse(f"a result of shape {list(result.shape)}")
        return call.kind._make(result, first._lod)
    if isinstance(result, list | tuple):
        parts = [_wrap(call, part) for part in result]
        if type(result) in (list, tuple):
            return type(result)(parts)
        # torch.return_types take one iterable; a namedtuple takes its fields.
        return type(result)(*parts) if hasattr(result, "_make") else type(result)(parts)
    return result
