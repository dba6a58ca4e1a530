"""Whether numbers of a plan are those of the plain loop, as far as rounding goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.errors import Unsupported
from stepnet.executors.higher_order import largest

_MOST_ROUNDING = 100.0
_NUDGES = (-4.0, 2.0, 4.0), (-3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2.5, 3, 3.5)


def looseness(compiled: Compiled) -> float:
    """How far numbers may be apart in a step of these dtypes, the least precise of them."""
    dtypes = _dtypes(compiled)
    if torch.is_autocast_enabled("cpu") or dtypes & {"float16", "bfloat16"}:
        return 5e-2
    return 2e-4 if dtypes & {"float32", "complex64"} else 1e-9


def coarseness(compiled: Compiled) -> float:
    """The distance of numbers near 1 in a step that computes in float32; 0: it does so in float64."""
    return torch.finfo(torch.float32).eps if _dtypes(compiled) & {"float32", "complex64"} else 0.0


def overflows(compiled: Compiled, ours: Tensor, plain: Tensor) -> bool:
    """Whether numbers differ as float16 has no larger ones: torch rounds after each call, plans do not."""
    return "float16" in _dtypes(compiled) and bool((ours.isfinite() & ~plain.isfinite()).any())


def _dtypes(compiled: Compiled) -> set[str]:
    return {value.dtype for value in compiled.joint.graph.values.values()}


def same(name: str, a: Tensor, b: Tensor, loose: float) -> bool:
    """Whether two tensors hold the same numbers, as far as rounding goes.

    Raises:
        Unsupported: they do not have the same shape and dtype.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Unsupported(
            f"self-check: {name} is {a.dtype}{list(a.shape)}, the plain loop says {b.dtype}{list(b.shape)}"
        )
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return close(a, b, loose)


def close(a: Tensor, b: Tensor, loose: float) -> bool:
    """Whether the numbers of a are about those of b."""
    return torch.allclose(a, b, rtol=loose, atol=loose * max(largest(b), 1e-3), equal_nan=True)


def nearer(a: Tensor, b: Tensor, exact: Tensor, loose: float) -> bool:
    """Whether a is as near to exact numbers as b is, or nearer; or far, as b is: rounding leaves little of a
    gradient that is nearly zero, as of what a norm takes out again."""
    if not a.is_floating_point() or a.shape != exact.shape:
        return False
    off_a, off_b = ((t.detach().double() - exact.detach().double()).abs().max() for t in (a, b))
    most = 10.0 if off_b > 2 * loose * largest(exact) else 1.0
    return bool(off_a <= most * off_b + loose * max(largest(exact), 1e-3))  # False where one is NaN


def _explained(a: Tensor, b: Tensor, nudged: Sequence[Tensor]) -> bool:
    """Whether the plain loop's own rounding reaches about as far as a difference: the gradient of a norm over
    two numbers is a difference of equals, times a thousand."""
    if not (a.is_floating_point() or a.is_complex()):  # a threshold met exactly, the sign of a zero
        return bool(((a == b) | torch.stack([c != b for c in nudged]).any(0)).all())
    if a.is_complex():
        a, b, *nudged = map(torch.view_as_real, (a, b, *nudged))
    a, b = a.detach().double(), b.detach().double()
    reach = max(float((c.detach().double() - b).abs().nan_to_num(0.0).max()) for c in nudged)
    same = (a == b) | (a.isnan() & b.isnan())
    return bool((same | ((a - b).abs() <= _MOST_ROUNDING * reach)).all())


def unexplained(
    far: list[int], pairs: Sequence[tuple[Tensor, Tensor]], nudged: Callable[[float], list[Tensor]]
) -> list[int]:
    """Those of the places `far` where numbers are further apart than rounding takes the plain loop itself."""
    others: list[list[Tensor]] = []
    for some in _NUDGES:
        others += map(nudged, some)
        far = [at for at in far if not _explained(*pairs[at], [numbers[at] for numbers in others])]
        if not far:
            break
    return far


def nudged(tensor: Tensor, by: float, coarse: float) -> Tensor:
    """A tensor with other last digits, such as a step that has numbers as coarse as that still sees."""
    tensor = tensor.detach()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    by *= max(torch.finfo(tensor.dtype).eps, coarse)
    return tensor * (1 + by) + by  # zeros, too
