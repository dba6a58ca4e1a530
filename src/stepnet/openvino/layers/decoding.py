"""Layers behind a recurrence that make words of its numbers: beams walked back, labels without repeats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepnet.file_model import distinct, within
from stepnet.openvino.attributes import Attributes
from stepnet.openvino.records import Layer

from .row import NUMBERS, Function, Misfit, Row, axis_in, differ, named, number, plain, same_types, shape_text


def _unique(layer: Layer, attributes: Attributes) -> Function:
    in_order = attributes.bool("sorted", True)
    index, count = (
        attributes.index_type(name, "i64").dtype for name in ("index_element_type", "count_element_type")
    )

    def unique(x: Tensor, axis: Any = None) -> tuple[Tensor, ...]:
        along = None if axis is None else axis_in(number(axis, "axis"), x.dim())
        values, first, place, counts = distinct(x, along, in_order)
        return values, first.to(index), place.to(index), counts.to(count)

    return unique


def _gather_tree(steps: Tensor, parents: Tensor, lengths: Tensor, end: Tensor) -> Tensor:
    """The words of each beam, from its last one back along what it came from."""
    same_types((steps, parents, lengths, end))
    if steps.dim() != 3 or steps.shape != parents.shape or lengths.shape != steps.shape[1:2]:
        text = f"{shape_text(steps)}, {shape_text(parents)} and {shape_text(lengths)} are no beams"
        raise Misfit(text, expected="[time, batch, beams] twice, and [batch]", dims=text)
    most, _, beams = steps.shape
    last = lengths.long().clamp(0, most).unsqueeze(1)  # [batch, 1]
    beam = torch.arange(beams, device=steps.device).expand(steps.shape[1:])
    words: list[Tensor] = []
    for t in range(most - 1, -1, -1):
        inside = t < last
        words.append(torch.where(inside, steps[t].gather(1, beam), end.to(steps.dtype)))
        beam = torch.where(inside, parents[t].gather(1, beam).long(), beam)
    found = torch.stack(words[::-1]) if words else steps
    ended = (found == end).long()
    return torch.where(ended.cumsum(0) - ended > 0, end.to(steps.dtype), found)


def _labels(scores: Tensor, lengths: Tensor, blank: int, merge: bool) -> tuple[Tensor, Tensor]:
    """The best label of each step of scores [batch, time, labels], without blanks, in front of -1; and how
    many there are."""
    best = scores.argmax(-1)
    steps = torch.arange(best.shape[1], device=scores.device)
    kept = (steps < lengths.unsqueeze(1)) & (best != blank)
    if merge:
        kept[:, 1:] &= best[:, 1:] != best[:, :-1]
    place = torch.where(kept, kept.cumsum(1) - 1, best.shape[1])  # one behind the end takes the others
    out = best.new_full((best.shape[0], best.shape[1] + 1), -1).scatter(1, place, best)[:, :-1]
    return out, kept.sum(1)


def _check_scores(scores: Tensor) -> None:
    if scores.dim() != 3 or not scores.shape[2]:
        raise Misfit(
            f"{shape_text(scores)} are no scores of labels", expected="3 dimensions", dims=scores.dim()
        )


def _ctc(scores: Tensor, mask: Tensor, *, ctc_merge_repeated: bool = True) -> Tensor:
    _check_scores(scores)
    lengths = (mask != 0).long().cumprod(0).sum(0)  # up to the first step that is none
    found, _ = _labels(scores.transpose(0, 1), lengths, scores.shape[2] - 1, ctc_merge_repeated)
    return found.to(scores.dtype)[:, :, None, None]


def _ctc_of_lengths(layer: Layer, attributes: Attributes) -> Function:
    merge = attributes.bool("merge_repeated", True)
    classes, counts = (
        attributes.index_type(name, "i32").dtype for name in ("classes_index_type", "sequence_length_type")
    )

    def decode(scores: Tensor, lengths: Tensor, blank: Any = None) -> tuple[Tensor, Tensor]:
        _check_scores(scores)
        batch, steps = scores.shape[:2]
        if lengths.dim() != 1 or differ(len(lengths), batch):
            raise Misfit(f"needs one length for each of {batch} sequences", shape_text(lengths), f"[{batch}]")
        fit = f"0 to {steps}, the steps of {shape_text(scores)}"
        lengths = within(lengths, steps, "sequence_length", fit)
        label = scores.shape[2] - 1 if blank is None else number(blank, "blank_index")
        found, some = _labels(scores, lengths, label, merge)
        return found.to(classes), some.to(counts)

    return decode


ROWS = (
    Row("Unique", _unique, (1, 2), (4, 4), values=(1,)),
    Row("GatherTree", plain(_gather_tree), (4, 4), takes=(NUMBERS,)),
    Row("CTCGreedyDecoder", named(_ctc), (2, 2)),
    Row("CTCGreedyDecoderSeqLen", _ctc_of_lengths, (2, 3), (2, 2), values=(2,)),
)
