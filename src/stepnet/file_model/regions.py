"""Regions of images: numbers pooled from boxes, and boxes that others hide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .misfit import Misfit, check_size, same_types


@dataclass(frozen=True)
class Aligning:
    """How a box of an image becomes a grid of numbers.

    Attributes:
        sizes: height and width of the grid.
        ratio: samples along each axis of one of its numbers; 0: as many as there are elements below it.
        scale: what places of the box are multiplied with.
        before, after: what is added to a place before and after that.
        least: the least length of a box along an axis.
        mode: avg, of the samples; positive: the largest of them and zero; corners: the largest of what each
            of the four elements around a sample counts for.
    """

    sizes: Sequence[int]
    ratio: int
    scale: float
    before: float
    after: float
    least: float
    mode: str

    def run(self, x: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
        """[n, C, *sizes], of images [N, C, H, W], boxes [n, 4] as x0, y0, x1, y1, and the image of each [n].

        Raises:
            Misfit: they do not fit, or the result is too large.
        """
        same_types([x, boxes])
        if x.dim() != 4 or boxes.dim() != 2 or boxes.shape[1] != 4 or which.shape != boxes.shape[:1]:
            shapes = f"{list(x.shape)}, {list(boxes.shape)}, {list(which.shape)}"
            wanted = "[N, C, H, W], [n, 4], [n]"
            raise Misfit("images, boxes and their images do not fit", shapes, wanted, dims=shapes)
        whole = check_size([len(boxes), x.shape[1], *self.sizes])
        if x.is_meta:
            return x.new_empty(whole)
        if not boxes.isfinite().all():
            raise Misfit("a box is not finite", "NaN or infinity", "numbers", dims="finite")
        images = which.tolist()
        if not all(0 <= k < len(x) for k in images):
            wanted = f"0 to {len(x) - 1}" if len(x) else "none: there are no images"
            raise Misfit("the image of a box is not there", images[:8], wanted, dims=str(images[:8]))
        found = [self._pooled(x[k], box) for k, box in zip(images, boxes.tolist(), strict=True)]
        return torch.stack(found) if found else x.new_zeros(whole)

    def _pooled(self, image: Tensor, box: list[float]) -> Tensor:
        x0, y0, x1, y1 = ((v + self.before) * self.scale + self.after for v in box)
        ways = []
        for low, high, count, size in zip((y0, x0), (y1, x1), self.sizes, image.shape[1:], strict=True):
            length = max(high - low, self.least)
            ratios = self.ratio if self.ratio > 0 else math.ceil(length / count)
            (samples,) = check_size([count * max(ratios, 0)])
            at = low + (torch.arange(samples, dtype=image.dtype) + 0.5) * (length / max(samples, 1))
            ways.append(_between(at, size))
        check_size([image.shape[0], len(ways[0][0][0]), len(ways[1][0][0])])
        corners = [image[:, y][:, :, x] * wy.unsqueeze(1) * wx for y, wy in ways[0] for x, wx in ways[1]]
        values = torch.stack(corners)
        values = values.amax(0) if self.mode == "corners" else values.sum(0)
        values = values.unflatten(2, (self.sizes[1], -1)).unflatten(1, (self.sizes[0], -1))
        if self.mode == "avg":
            return values.mean((2, 4))
        if not values.numel():  # a box that ends before it begins
            return values.new_zeros(values.shape[0], *self.sizes)
        most = values.amax((2, 4))
        return most if self.mode == "corners" else most.clamp(min=0)


def _between(at: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The two numbers of an axis that each place lies between, and their weights; none outside of it."""
    inside = (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    low = at.floor()
    far = at - low
    ends = (low, 1 - far), ((low + 1).clamp(max=size - 1), far)
    return [(place.long(), weight * inside) for place, weight in ends]


def suppressed(
    boxes: Tensor, scores: Tensor, most: int, overlap: float, least: float | None, *, centred: bool,
    sigma: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The boxes that no better one of their class hides: [n, 3] of batch, class and box, and scores [n].

    Args:
        boxes: [batch, boxes, 4], two corners, or, if `centred`, centres and sizes.
        scores: [batch, classes, boxes].
        most: boxes that a class may keep.
        overlap: the share of two boxes above which the better one hides the other.
        least: the score that a box must be above; None: any.
        centred: see `boxes`.
        sigma: above zero, a better box also lowers the scores of those that it does not hide.

    Raises:
        Misfit: shapes do not fit.
    """
    same_types([boxes, scores])
    if (
        boxes.dim() != 3
        or boxes.shape[2] != 4
        or scores.shape != (len(boxes), *scores.shape[1:2], *boxes.shape[1:2])
    ):
        shapes = f"{list(boxes.shape)}, {list(scores.shape)}"
        wanted = "[batch, boxes, 4], [batch, classes, boxes]"
        raise Misfit("boxes and scores do not fit", shapes, wanted, dims=shapes)
    if scores.is_meta:
        raise NotImplementedError("how many boxes are kept is not known without their numbers")
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (a - b / 2, a + b / 2) if centred else (torch.minimum(a, b), torch.maximum(a, b))
    kept: list[list[int]] = []
    found: list[Tensor] = []
    for k, c in itertools.product(*map(range, scores.shape[:2])):
        left, order = scores[k, c].clone(), torch.arange(scores.shape[2])
        taken = 0
        while taken < most:
            if least is not None:
                order = order[left[order] > least]
            if not len(order):
                break
            place = left[order].argsort(descending=True, stable=True)[0]
            best, order = order[place], torch.cat([order[:place], order[place + 1 :]])
            kept.append([k, c, int(best)])
            found.append(left[best])
            taken += 1
            share = _shared(low[k], high[k], best, order)
            order, share = order[share <= overlap], share[share <= overlap]
            if sigma > 0:
                left[order] *= torch.exp(-0.5 * share * share / sigma)
    return (
        torch.tensor(kept, dtype=torch.int64).reshape(-1, 3),
        torch.stack(found) if found else scores.new_zeros(0),
    )


def _shared(low: Tensor, high: Tensor, one: Tensor, others: Tensor) -> Tensor:
    """How much of a box and each of some others is in both."""
    both = (torch.minimum(high[one], high[others]) - torch.maximum(low[one], low[others])).clamp(min=0)
    both, areas = both.prod(-1), (high - low).prod(-1)
    return torch.where(both > 0, both / (areas[one] + areas[others] - both), 0.0)
