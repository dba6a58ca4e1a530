"""Regions of images: numbers pooled from boxes, and boxes that others hide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

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
        if isinstance(boxes, FakeTensor) and boxes.constant is None:  # being saved: numbers come later
            if self.ratio < 1:
                was = "how many samples a box has depends on its numbers, which what is saved keeps open"
                raise Misfit(was, f"sampling_ratio={self.ratio}", "sampling_ratio above 0")
            return self._pooled(x, boxes, which, [self.ratio, self.ratio])
        if not boxes.isfinite().all():
            raise Misfit("a box is not finite", "NaN or infinity", "numbers", dims="finite")
        images = which.tolist()
        if not all(0 <= k < len(x) for k in images):
            wanted = f"0 to {len(x) - 1}" if len(x) else "none: there are no images"
            raise Misfit("the image of a box is not there", images[:8], wanted, dims=str(images[:8]))
        found = []
        for k, box in enumerate(boxes.split(1)):  # one at a time: samples of all of them take much memory
            ratios = [self.ratio, self.ratio]
            if self.ratio < 1:
                lengths = [way[1].item() for way in self._ways(box)]
                ratios = [max(math.ceil(a / count), 0) for a, count in zip(lengths, self.sizes, strict=True)]
            found.append(self._pooled(x, box, which[k : k + 1], ratios))
        return torch.cat(found) if found else x.new_zeros(whole)

    def _ways(self, boxes: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Down and across, where each box begins, and its length."""
        ends = (boxes.double() + self.before) * self.scale + self.after
        found = [(ends[:, k], ends[:, k + 2] - ends[:, k]) for k in (1, 0)]
        if self.least == -math.inf:
            return found
        return [(low, length.clamp(min=self.least)) for low, length in found]

    def _pooled(self, x: Tensor, boxes: Tensor, which: Tensor, ratios: Sequence[int]) -> Tensor:
        """As `run`, of as many samples along each axis of a number as `ratios` says."""
        ways, counts = [], [count * ratio for count, ratio in zip(self.sizes, ratios, strict=True)]
        check_size([boxes.shape[0], x.shape[1], *counts])
        for (low, length), samples, size in zip(self._ways(boxes), counts, x.shape[2:], strict=True):
            step = (length / max(samples, 1)).to(x.dtype)
            middles = torch.arange(samples, dtype=x.dtype) + 0.5
            ways.append(_between(low.to(x.dtype).unsqueeze(1) + middles * step.unsqueeze(1), size))
        table, images = x.permute(0, 2, 3, 1), which.long().reshape(-1, 1, 1)
        corners = [
            table[images, a.unsqueeze(2), b.unsqueeze(1)] * wa[:, :, None, None] * wb[:, None, :, None]
            for a, wa in ways[0]
            for b, wb in ways[1]
        ]
        values = torch.stack(corners)
        values = values.amax(0) if self.mode == "corners" else values.sum(0)
        (rows, columns), (down, across) = self.sizes, ratios
        values = values.reshape(boxes.shape[0], rows, down, columns, across, x.shape[1])
        if self.mode == "avg":
            values = values.mean((2, 4))
        elif 0 in ratios:  # a box that ends before it begins
            values = values.new_zeros(boxes.shape[0], rows, columns, x.shape[1])
        else:
            values = values.amax((2, 4))
            values = values if self.mode == "corners" else values.clamp(min=0)
        return values.permute(0, 3, 1, 2).contiguous()


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
