"""Whether numbers of a plan are those of the plain loop, as far as rounding goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepnet.compiler.pipeline import Compiled
from stepnet.errors import Unsupported
from stepnet.executors.higher_order import largest

_MOST_ROUNDING = 100.0  # of the least digits of 32 bits and more, which some gradients lose many of
_MOST_ROUNDING_OF_16_BITS = 4.0  # a hundred times that would be as much as the numbers themselves
_NUDGES = (-4.0, 2.0, 4.0), (-3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2.5, 3, 3.5)
_16_BITS = {"float16", "bfloat16"}


def looseness(compiled: Compiled) -> float:
    """How far numbers may be apart in a step of these dtypes, the least precise of them."""
    if of_16_bits(coarseness(compiled)):
        return 5e-2
    return 2e-4 if _dtypes(compiled) & {"float32", "complex64"} else 1e-9


def coarseness(compiled: Compiled) -> float:
    """The distance of numbers near 1 in the least precise dtype that a step computes in; 0: it is float64."""
    dtypes = _dtypes(compiled)
    coarse = [torch.finfo(getattr(torch, name)).eps for name in dtypes & _16_BITS]
    if torch.is_autocast_enabled("cpu"):
        coarse.append(torch.finfo(torch.get_autocast_dtype("cpu")).eps)
    if dtypes & {"float32", "complex64"}:
        coarse.append(torch.finfo(torch.float32).eps)
    return max(coarse, default=0.0)


def of_16_bits(coarse: float) -> bool:
    """Whether numbers of such a distance near 1 have 16 bits."""
    return coarse > 1e-4


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
    """Whether each number of a is as near to the exact one as that of b is, or nearer; what b overflows at is
    not."""
    if not a.is_floating_point() or a.shape != exact.shape:
        return False
    a, b, exact = (t.detach().double() for t in (a, b, exact))
    near = (a - exact).abs() <= (b - exact).abs() + loose * max(largest(exact), 1e-3)
    return bool((_alike(a, b) | (near & b.isfinite())).all())


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _explained(a: Tensor, b: Tensor, nudged: Sequence[Tensor], coarse: float, loose: float) -> bool:
    """Whether the plain loop's own rounding reaches about as far as a difference: the gradient of a norm over
    two numbers is a difference of equals, times a thousand; that of a maximum goes one way or the other."""
    if not (a.is_floating_point() or a.is_complex()):  # a threshold met exactly, the sign of a zero
        return bool(((a == b) | torch.stack([c != b for c in nudged]).any(0)).all())
    if a.is_complex():
        a, b, *nudged = map(torch.view_as_real, (a, b, *nudged))
    a, b = a.detach().double(), b.detach().double()
    moved = torch.stack([(c.detach().double() - b).abs().nan_to_num(0.0) for c in nudged])
    if of_16_bits(coarse):  # of each number by itself: whole rows of a gradient may hang on a tie
        reach = _MOST_ROUNDING_OF_16_BITS * moved.amax(0) + loose * max(largest(b), 1e-3)
    else:
        reach = _MOST_ROUNDING * moved.max()
    return bool((_alike(a, b) | ((a - b).abs() <= reach)).all())


def unexplained(
    far: list[int],
    pairs: Sequence[tuple[Tensor, Tensor]],
    nudged: Callable[[float], list[Tensor]],
    coarse: float,
    loose: float,
) -> list[int]:
    """Those of the places `far` where numbers are further apart than rounding takes the plain loop itself."""
    others: list[list[Tensor]] = []
    for some in _NUDGES:
        others += map(nudged, some)
        far = [at for at in far if not _explained(*pairs[at], [each[at] for each in others], coarse, loose)]
        if not far:
            break
    return far


def nudged(tensor: Tensor, by: float, coarse: float) -> Tensor:
    """A tensor with other last digits, such as a step that has numbers as coarse as that still sees."""
    tensor = tensor.detach()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    eps = max(torch.finfo(tensor.dtype).eps, coarse)
    if of_16_bits(eps):  # each digit by itself: all of them one way is more than rounding does to a sum
        drawn = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(int(10 * by) + 99))
        return tensor + by * eps * (2 * drawn - 1).to(tensor) * (tensor.abs() + eps)
    by *= eps
    return tensor * (1 + by) + by  # zeros, too


def widened(tensor: Tensor) -> Tensor:
    """A tensor in a dtype in which sums and products round far less than in 16 bits."""
    tensor = tensor.detach()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
