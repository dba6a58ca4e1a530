"""Products of several dimensions, in the order in which the rows of a step stay first.

Torch's einsum merges all dimensions that one operand has alone, and rows that do not come first among them
are lost to whoever follows rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST_HEADS = 16  # of weights that are multiplied one by one
_MOST_DIFFERENCES = 1 << 14  # between the numbers of two sets of vectors


def einsum(equation: Any, *operands: Any) -> Any:
    """Operands two by two, from the left; torch's own where that keeps rows apart, too."""
    if not isinstance(equation, str):
        return NotImplemented
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = (*operands[0],)
    found = _labels(equation, operands)
    rows = None if found is None else _rows(*found, operands)
    if found is None or rows is None or len(operands) < 2:
        return NotImplemented
    terms, out = found
    if len(operands) == 2 and not _merges_rows(terms[0], terms[1], out, rows):
        return NotImplemented
    made = contracted(terms, out, rows, operands)
    return NotImplemented if made is None else made


def contracted(terms: Sequence[str], out: str, rows: str, operands: Sequence[Tensor]) -> Tensor | None:
    """An einsum whose letter `rows` is never merged behind another one; None where it is summed over.

    >>> a, b = torch.ones(5, 2, 3), torch.ones(3, 4)
    >>> contracted(["rij", "jk"], "kri", "r", (a, b)).shape
    torch.Size([4, 5, 2])
    """
    whole, labels = operands[0], terms[0]
    for i, (other, its) in enumerate(zip(operands[1:], terms[1:], strict=True), 1):
        made = _pair(whole, labels, other, its, {*out}.union(*terms[i + 1 :]), rows)
        if made is None:
            return None
        whole, labels = made
    return whole.permute([labels.index(label) for label in out])


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """A product with the weights, and a sum of products."""
    count, n, m = weight.shape
    lines = F.linear(input1, weight.permute(0, 2, 1).reshape(count * m, n))
    result = (lines.unflatten(-1, (count, m)) * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """Differences and their norm, whose gradient at no difference is 0."""
    sizes = [n for n in (*x1.shape[-2:], x2.shape[-2]) if type(n) is int]
    points = len(sizes) == 2 and x1.dim() == x2.dim() == 2  # of each row one, on one side
    if p not in (1.0, 2.0) or not (len(sizes) == 3 or points) or prod(sizes) > _MOST_DIFFERENCES:
        return NotImplemented
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p == 1.0:
        return apart.abs().sum(-1)
    squares = apart.square().sum(-1)
    return torch.where(squares == 0, 0.0, torch.where(squares == 0, 1.0, squares).sqrt())


def _labels(equation: str, operands: Sequence[Any]) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; None of diagonals, and of what does not fit."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not all(isinstance(t, Tensor) for t in operands):
        return None
    if not arrow:
        every = left.replace("...", "").replace(",", "")
        out = "..." * ("..." in left) + "".join(
            sorted(label for label in {*every} if every.count(label) == 1)
        )
    dots = [t.dim() - len(term) + 3 for term, t in zip(terms, operands, strict=True) if "..." in term]
    unused = "".join(label for label in ascii_letters if label not in equation)[: max(dots, default=0)]
    terms = [_spelled(term, t.dim(), unused) for term, t in zip(terms, operands, strict=True)]
    out, left = out.replace("...", unused), "".join(terms)
    fits = all(len(term) == t.dim() for term, t in zip(terms, operands, strict=True))
    plain = all(term.isalpha() and len({*term}) == len(term) for term in terms) and len({*out}) == len(out)
    return (terms, out) if fits and plain and {*out} <= {*left} else None


def _spelled(term: str, dims: int, letters: str) -> str:
    """A term of so many dimensions, its dots as the last of these letters.

    >>> _spelled("...i", 2, "ab")
    'bi'
    """
    return term.replace("...", letters[len(letters) - (dims - len(term) + 3) :])


def _rows(terms: Sequence[str], out: str, operands: Sequence[Tensor]) -> str | None:
    """The letter of the rows; None where none has them, or the result has not."""
    sizes: dict[str, set[Any]] = {}
    for term, tensor in zip(terms, operands, strict=True):
        for label, size in zip(term, tensor.shape, strict=True):
            sizes.setdefault(label, set()).add(size if type(size) is int else "rows")
    if any(len(found) > 1 for found in sizes.values()):
        return None  # of one and more, or of other rows
    found = [label for label, size in sizes.items() if size == {"rows"}]
    return found[0] if len(found) == 1 and found[0] in out else None


def _merges_rows(a: str, b: str, out: str, rows: str) -> bool:
    """Whether torch would merge rows with other dimensions that come before them."""
    if not any(label in b and label not in out for label in a):
        return False  # no sum: a product number by number
    if rows in a and rows in b:
        return next(label for label in out if label in a and label in b) != rows
    own, other = (a, b) if rows in a else (b, a)
    return any(label in out and label not in other for label in own if label != rows)


def _pair(
    a: Tensor, its: str, b: Tensor, others: str, later: set[str], rows: str
) -> tuple[Tensor, str] | None:  # fmt: skip
    """The product of two operands, rows first if they have them, and its letters; None where it has none."""
    if rows not in its and rows in others:
        a, its, b, others = b, others, a, its
    a, its = _summed(a, its, later | {*others})
    b, others = _summed(b, others, later | {*its})
    shared = [label for label in its if label in others and label in later]
    inner = [label for label in its if label in others and label not in later]
    left = [label for label in its if label not in others]
    right = [label for label in others if label not in its]
    if rows not in its or rows in inner:
        made = "".join([*shared, *left, *right])
        return (torch.einsum(f"{its},{others}->{made}", a, b), made) if rows not in its else None
    size = dict(zip(its, a.shape, strict=True)) | dict(zip(others, b.shape, strict=True))

    def ordered(tensor: Tensor, own: str, *groups: list[str]) -> Tensor:
        """The tensor with its letters in that order, each group but the first as one dimension."""
        letters = [label for group in groups for label in group]
        turned = tensor.permute([own.index(label) for label in letters])
        lead = [size[label] for label in groups[0]]
        return turned.reshape(*lead, *(prod(size[label] for label in group) for group in groups[1:]))

    if not inner:
        made = [rows, *(label for label in (*shared, *left, *right) if label != rows)]
        return _spread(a, its, made) * _spread(b, others, made), "".join(made)
    if rows in shared:
        shared = [rows, *(label for label in shared if label != rows)]
        out = ordered(a, its, shared, left, inner) @ ordered(b, others, shared, inner, right)
        made = [*shared, *left, *right]
    else:
        left = [label for label in left if label != rows]
        made = [rows, *shared, *left, *right]
        if shared and not left:
            equation = f"{its},{others}->{''.join(made)}"
            return torch.einsum(equation, a, b), "".join(made)
        weights = ordered(b, others, shared, inner, right)
        if not shared and not left:
            out = ordered(a, its, [rows], inner) @ weights
        else:
            out = _by_heads(ordered(a, its, [rows, *shared], left, inner), weights, len(shared))
    return out.reshape([size[label] for label in made]), "".join(made)


def _by_heads(rows: Tensor, weights: Tensor, leading: int) -> Tensor:
    """Rows times matrices of weights, as many as the leading dimensions say."""
    heads = weights.shape[:leading].numel()
    if not leading or heads > _MOST_HEADS:
        return rows @ weights
    flat, matrices = rows.flatten(1, leading), weights.flatten(0, leading - 1)
    return torch.stack([flat[:, i] @ matrices[i] for i in range(heads)], 1)


def _summed(tensor: Tensor, labels: str, kept: set[str]) -> tuple[Tensor, str]:
    """A tensor summed over what nobody else reads."""
    alone = [i for i, label in enumerate(labels) if label not in kept]
    if not alone:
        return tensor, labels
    return tensor.sum(alone), "".join(label for label in labels if label in kept)


def _spread(tensor: Tensor, labels: str, made: Sequence[str]) -> Tensor:
    """A tensor with a dimension for each letter, of size 1 for those it has not."""
    have = [label for label in made if label in labels]
    turned = tensor.permute([labels.index(label) for label in have])
    for at, label in enumerate(made):
        if label not in labels:
            turned = turned.unsqueeze(at)
    return turned
