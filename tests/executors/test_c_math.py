"""sn_math.h: a few units in the last place over the whole range, torch's answer at every special value."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from stepnet.executors.c import build as c_build

pytestmark = pytest.mark.skipif(
    c_build.available() is not None, reason=f"no C compiler: {c_build.available()}"
)

DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
CTYPES = {"f32": "float", "f64": "double"}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def _erf(x: np.ndarray) -> np.ndarray:
    """2x/sqrt(pi) exp(-x^2) (1 + 2x^2/3 + (2x^2)^2/(3 5) + ...): all terms are positive, nothing cancels."""
    y = np.clip(x, -6.5, 6.5)
    term, total = np.ones_like(y), np.ones_like(y)
    for n in range(1, 170):
        term *= y * y * (2 / y.dtype.type(2 * n + 1))
        total += term
    return 2 * y / np.sqrt(np.arctan(y.dtype.type(1)) * 4) * np.exp(-y * y) * total


REFERENCE = {
    "exp": np.exp,
    "exp_below": lambda x: np.exp(np.minimum(x, 0)),
    "expm1": np.expm1,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "log": np.log,
    "log1p": np.log1p,
    "atanh": np.arctanh,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
EXACT = {  # torch defines these to the bit, NaN and signed zeros included
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "sign": torch.sign,
    "relu": torch.relu,
}
PAIRS = {"maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow}


@pytest.fixture(scope="module")
def library() -> c_build.Library:
    source = [c_build.preamble("f32", "f64")]
    for suffix, ctype in CTYPES.items():
        names = [(name, ("a",)) for name in (*REFERENCE, *EXACT)] + [(name, ("a", "b")) for name in PAIRS]
        for name, inputs in names:
            parameters = ", ".join(f"const {ctype} *{each}" for each in inputs)
            arguments = ", ".join(f"{each}[i]" for each in inputs)
            source.append(
                f"void {name}_{suffix}({parameters}, {ctype} *restrict y, int64_t n) {{\n"
                f'_Pragma("omp simd") for (int64_t i = 0; i < n; ++i)\n'
                f"    y[i] = sn_{name}_{suffix}({arguments});\n}}\n"
            )
    return c_build.build("".join(source))


def _call(library: c_build.Library, name: str, suffix: str, *inputs: np.ndarray) -> np.ndarray:
    result = np.full_like(inputs[0], 12345.0)
    pointers = [array.ctypes.data for array in (*inputs, result)]
    function = library.function(f"{name}_{suffix}", *[ctypes.c_void_p] * len(pointers), ctypes.c_int64)
    function(*pointers, result.size)
    return result


def _specials(dtype: np.dtype) -> np.ndarray:
    info = np.finfo(dtype)
    positive = [
        0.0,
        info.smallest_subnormal,
        3 * info.smallest_subnormal,
        info.tiny,
        info.eps,
        0.5,
        1,
        1.5,
        2.5,
    ]
    positive += [20.0, 88.5, 104, 710, 746, info.max, np.inf]
    return np.array([sign * value for value in positive for sign in (1.0, -1.0)] + [np.nan], dtype)


def _sweep(suffix: str, every: int) -> np.ndarray:
    """Every 6007th float32, or random doubles; dense where the functions bend; or some of these; specials."""
    rng = np.random.default_rng(0)
    dtype = DTYPES[suffix]
    if suffix == "f32":
        bits = np.arange(0, 2**32, 6007, dtype=np.uint64).astype(np.uint32)
    else:
        bits = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    near = [rng.uniform(-width, width, 60_000).astype(dtype) for width in (1.0, 10.0, 110.0, 750.0)]
    return np.concatenate([np.concatenate([bits.view(dtype), *near])[::every], _specials(dtype)])


def _error_in_ulp(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance of finite results in units in the last place; where infinities, NaN, signs of zero differ."""
    rounded = want.astype(got.dtype)
    finite = np.isfinite(rounded) & np.isfinite(got)
    gap = np.spacing(np.abs(np.where(finite, rounded, 1)))
    error = np.abs(np.where(finite, got - want, 0)) / gap
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    zeros = (rounded == 0) & (got == 0) & (np.signbit(got) != np.signbit(rounded))
    return error, (~finite & ~same) | zeros


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name", REFERENCE)
def test_within_four_ulp_and_right_at_specials(library, name, suffix, request):
    every = 1 if request.config.getoption("exhaustive") else 5
    x = _sweep(suffix, every * 4 if name == "erf" else every)  # the series for erf is slow
    got = _call(library, name, suffix, x)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64 if suffix == "f32" else np.longdouble))
        error, wrong = _error_in_ulp(got, want)
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5], want[wrong][:5])
    worst = int(error.argmax())
    assert error[worst] <= 4, (x[worst], got[worst], want[worst], error[worst])


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_rounding_and_signs_are_those_of_torch(library, name, suffix):
    x = np.concatenate([_specials(DTYPES[suffix]), np.arange(-9, 9, 0.25, DTYPES[suffix])])
    want = EXACT[name](torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(_call(library, name, suffix, x), want)


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_specials_are_those_of_torch(library, name, suffix):
    special = _specials(DTYPES[suffix])
    a, b = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(special, special))
    want = PAIRS[name](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(_call(library, name, suffix, a, b), want, rtol=4 * np.finfo(a.dtype).eps)


def test_the_error_measure_sees_a_wrong_bit():
    want = np.array([1.0, 2.0, np.inf, np.nan, -0.0], np.float32)
    got = np.array([1.0, np.nextafter(np.float32(2), np.float32(3)), -np.inf, 0.0, 0.0], np.float32)
    with np.errstate(all="ignore"):
        error, wrong = _error_in_ulp(got, want)
    assert error[:2].tolist() == [0, 1]
    assert wrong.tolist() == [False, False, True, True, True]
